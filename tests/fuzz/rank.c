/* tests/fuzz/rank.c: any messages of a hub to a rank: it takes them, or says that no hub sends this.  What it then
 * knows of the others is printed, as it is when a run hangs.
 *
 * An input is a byte that says what the rank waits for, and then pieces: kind, two bytes of length, that many bytes;
 * or, by that byte, all that comes before a rank is let in. */
#include <sys/socket.h>

#include "runtime/plane/private.h"
#include "tests/fuzz/fuzz.h"

enum { RANKS = 3, PIECE = 3, SHAKES = 1, CHALLENGED = 2, GATHERS = 4, COMPARES = 8, RANK_0 = 16 };

static void send_all(int fd, const uint8_t *bytes, size_t n, bool pieces)
{
	Link hub;
	link_open(&hub, fd);
	while (pieces && n >= PIECE) {
		size_t length = MIN((size_t)(bytes[1] | bytes[2] << 8), n - PIECE);
		link_send(&hub, (MessageKind)bytes[0], bytes + PIECE, length);
		bytes += PIECE + length;
		n -= PIECE + length;
	}
	if (n)
		send(fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
	link_close(&hub);
}

static void shake(const int ends[2], const uint8_t *bytes, size_t n, bool challenged)
{
	Challenge c = {.magic = protocol_magic()};
	struct { uint32_t bytes, kind; } head = {sizeof(c), MSG_CHALLENGE};
	char why[300];
	Link l;
	Joiner j = {.hello = {.magic = protocol_magic(), .size = RANKS}};
	if (challenged && (send(ends[1], &head, sizeof(head), 0) < 0 || send(ends[1], &c, sizeof(c), 0) < 0))
		abort();
	link_open(&l, ends[0]);
	send(ends[1], bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
	shutdown(ends[1], SHUT_WR);
	int result = handshake(&l, &j, 1000, why, sizeof(why));
	if (result == 1 || result == -1 || !memchr(why, 0, sizeof(why)))
		abort(); /* without the keys of this connection nobody accepts or refuses */
	link_close(&l);
	close(ends[1]);
}

/* The watchdog's thread, with a rank that is leaving: nothing it hears may end the process. */
static void listen_to(const int ends[2], int flags, const uint8_t *bytes, size_t n)
{
	static const char *const text = "a text to be compared";
	Arena *a = arena_new();
	FuzzLog *log = fuzz_log();
	Buf b = {0};
	Control *c = NEW(a, Control);
	*c = (Control){.rank = flags & RANK_0 ? 0 : 1, .size = RANKS, .program = "fuzz", .d = log->d, .hub_process = -1,
		.leaving = true, .peers = NEW_N(a, Peer, RANKS), .rows = NEW_N(a, TableRow, RANKS),
		.table = NEW_N(a, TableRow, RANKS)};
	c->asked = flags & GATHERS ? MSG_GATHERED : flags & COMPARES ? MSG_COMPARED : 0;
	c->want = flags & GATHERS ? 8 * RANKS : 1;
	c->text = flags & COMPARES ? text : NULL;
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->changed, NULL);
	link_open(&c->link, ends[0]);
	c->link.limit = MESSAGE_LIMIT;
	send_all(ends[1], bytes, n, true);
	watch_hub(c);
	if (c->reply && c->answer.n && c->answer.n != c->want)
		abort();
	if (c->stop && c->rank)
		abort();
	say_ranks(&b, c->rows, c->peers, RANKS, &c->names);
	buf_free(&b);
	buf_free(&c->answer);
	link_close(&c->link);
	fuzz_log_free(log);
	arena_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	int ends[2];
	if (!n || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		return 0;
	if (bytes[0] & SHAKES)
		shake(ends, bytes + 1, n - 1, bytes[0] & CHALLENGED);
	else
		listen_to(ends, bytes[0], bytes + 1, n - 1);
	return 0;
}
