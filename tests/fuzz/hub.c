/* tests/fuzz/hub.c: any messages of ranks, in any order, to a hub: it serves, ends the run, or loses the rank.
 *
 * An input is a byte of flags and then pieces: who, kind, two bytes of length, that many bytes.  Ranks have proved who
 * they are, so that messages come to what reads them; bytes that are no messages, and a rank that has not joined, come
 * too. */
#include <sys/socket.h>

#include "runtime/plane/private.h"
#include "tests/fuzz/fuzz.h"

enum { RANKS = 3, PIECE = 4, RAW = 0x80, LATE = 1 };

static void join(Link *l, int rank)
{
	Message m;
	Challenge c;
	LinkKey of_rank, of_hub;
	Secret none = {0};
	Hello h = {.magic = protocol_magic(), .size = RANKS};
	peer_self(&h.peer, rank);
	if (!link_receive(l) || !link_next(l, &m) || !message_read(&m, &c, sizeof(c)))
		abort();
	secret_prove(&none, &c, &h, h.proof);
	link_send(l, MSG_HELLO, &h, sizeof(h));
	secret_keys(&none, &c, &h, &of_rank, &of_hub);
	link_trust(l, &of_rank, &of_hub);
}

static void say(Link *l, const uint8_t *piece, const uint8_t *payload, size_t n)
{
	if (piece[0] & RAW)
		send(l->fd, payload, n, MSG_NOSIGNAL | MSG_DONTWAIT);
	else
		link_send(l, (MessageKind)piece[1], payload, n);
}

static void play(Hub *h, Link *l, const uint8_t *bytes, size_t n)
{
	while (n >= PIECE) {
		size_t length = MIN((size_t)(bytes[2] | bytes[3] << 8), n - PIECE);
		int who = (bytes[0] & 0x7f) % (RANKS + 1);
		if (who < RANKS && l[who].fd >= 0)
			say(&l[who], bytes, bytes + PIECE, length);
		else if (who == RANKS && bytes[1] == 'c')
			link_close(&l[bytes[2] % RANKS]);
		hub_drain(h);
		for (int i = 0; i < RANKS; i++)
			if (l[i].fd >= 0)
				link_receive(&l[i]);
		bytes += PIECE + length;
		n -= PIECE + length;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	if (!n)
		return 0;
	FuzzLog *log = fuzz_log();
	Link l[RANKS];
	HubConfig config = {.size = RANKS, .self = -1, .tcp_fd = -1, .local_fd = -1, .program = "fuzz", .d = &log->d};
	/* those that are attached prove themselves with the key of no secret, which is all zeros in a new Strangers */
	Hub *h = hub_new(&config);
	for (int i = 0; i < RANKS; i++) {
		int ends[2];
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
			abort();
		hub_attach(h, ends[0], i);
		link_open(&l[i], ends[1]);
		l[i].limit = MESSAGE_LIMIT;
		if (i < RANKS - 1 || !(bytes[0] & LATE))
			join(&l[i], i);
	}
	hub_drain(h);
	for (int i = 0; i < RANKS; i++)
		if (!(bytes[0] & LATE) && !hub_joined(h, i))
			abort();
	play(h, l, bytes + 1, n - 1);
	if (!hub_ending(h) && hub_status(h))
		abort();
	hub_free(h);
	for (int i = 0; i < RANKS; i++)
		link_close(&l[i]);
	fuzz_log_free(log);
	return 0;
}
