/* runtime/plane/strangers.c: processes that have connected to the hub and have not proved to be a rank of this run.
 *
 * Each gets a challenge, a small buffer and two seconds.  When there are too many, or the process has no descriptors
 * left, the one that has waited longest is dropped, those from the network first.  So a rank that comes among thousands
 * of strangers still gets a place: it needs a few milliseconds, and tries again if it was dropped.  The local socket
 * accepts only processes of this user.  Once all ranks are there, only a few strangers per tick are accepted, and are
 * told so.
 *
 * A stranger costs little, and for a short time only, so no number of strangers can keep a rank out. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/plane/private.h"

enum { STRANGER_TICKS = 20, PER_TURN = 128, FEW = 16 };

typedef struct Stranger {
	Link link;
	int64_t born;            /* how many came before it */
	int ticks, rank;         /* rank: the one of an attached socket; -1: it connected */
	bool local, proved;
	Challenge challenge;
	Hello hello;
} Stranger;

struct Strangers {
	Stranger *at;
	int n, most, attached, room;
	int64_t born;
	int fd[2];               /* listening sockets: on the network, local */
	int reserve;             /* a spare descriptor to close when there are no others; -1: it is closed */
	int budget;              /* how many may still be accepted in this tick; 0: none until the next */
	uint8_t run[NONCE_BYTES];
	Secret secret, none;     /* none: the empty secret, for attached sockets, which prove themselves */
};

static void *room_for(int n, size_t size)
{
	void *p = calloc((size_t)n, size);
	if (!p)
		ice("out of memory");
	return p;
}

static int any_descriptor(void)
{
	return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

Strangers *strangers_new(int tcp_fd, int local_fd, int most, int attached, const Secret *secret)
{
	Strangers *s = room_for(1, sizeof(*s));
	*s = (Strangers){.most = most, .attached = attached, .fd = {tcp_fd, local_fd}, .reserve = any_descriptor(),
		.budget = INT_MAX, .secret = *secret};
	secret_nonce(s->run);
	s->room = most + attached;
	s->at = room_for(s->room, sizeof(*s->at));
	return s;
}

void strangers_free(Strangers *s)
{
	for (int i = 0; i < s->n; i++)
		link_close(&s->at[i].link);
	for (int i = 0; i < 2; i++)
		if (s->fd[i] >= 0)
			close(s->fd[i]);
	if (s->reserve >= 0)
		close(s->reserve);
	free(s->at);
	free(s);
}

/* ---- coming and going ---- */

static void drop(Strangers *s, int i)
{
	link_close(&s->at[i].link);
	s->at[i] = s->at[--s->n];
}

static Stranger *add(Strangers *s, int fd, int rank)
{
	Stranger *one = &s->at[s->n++];
	*one = (Stranger){.born = s->born++, .rank = rank, .challenge.magic = protocol_magic()};
	memcpy(one->challenge.run, s->run, sizeof(s->run));
	secret_nonce(one->challenge.nonce);
	link_open(&one->link, fd);
	link_send(&one->link, MSG_CHALLENGE, &one->challenge, sizeof(one->challenge));
	return one;
}

void strangers_attach(Strangers *s, int fd, int rank)
{
	if (s->n == s->room)
		ice("%d sockets are attached to a hub of fewer ranks", s->n);
	add(s, fd, rank);
}

static bool goes_before(const Stranger *a, const Stranger *b)
{
	return a->local != b->local ? b->local : a->born < b->born;
}

/* Drops the stranger that goes first; false: there is none to drop. */
static bool drop_one(Strangers *s)
{
	int oldest = -1;
	for (int i = 0; i < s->n; i++)
		if (s->at[i].rank < 0 && !s->at[i].proved && (oldest < 0 || goes_before(&s->at[i], &s->at[oldest])))
			oldest = i;
	if (oldest >= 0)
		drop(s, oldest);
	return oldest >= 0;
}

static int connected(const Strangers *s)
{
	int n = 0;
	for (int i = 0; i < s->n; i++)
		n += s->at[i].rank < 0;
	return n;
}

/* Called when no descriptor was left: if a process waits to be accepted, frees a descriptor for it, or accepts none
 * until the next tick.  The kernel reports this error even where no process waits; then none is dropped. */
static bool free_descriptor(Strangers *s, int at)
{
	struct pollfd p = {.fd = at, .events = POLLIN};
	if (poll(&p, 1, 0) != 1)
		return false;
	if (drop_one(s))
		return true;
	if (s->reserve < 0) {
		s->budget = 0;
		return false;
	}
	close(s->reserve);
	s->reserve = -1;
	return true;
}

static void let_near(Strangers *s, int fd, bool local)
{
	int yes = 1;
	if (local && !vouch_user(fd)) {
		close(fd);
		return;
	}
	if (!local)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	if (connected(s) >= s->most && !drop_one(s)) {
		close(fd);
		return;
	}
	add(s, fd, -1)->local = local;
}

static void accept_all(Strangers *s, int at, bool local)
{
	for (int i = 0; i < PER_TURN && s->budget > 0; i++) {
		int fd = accept4(at, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		bool full = fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
		if (fd >= 0) {
			s->budget--;
			let_near(s, fd, local);
		} else if (full ? !free_descriptor(s, at) : errno != EINTR && errno != ECONNABORTED)
			return;
	}
}

void strangers_tick(Strangers *s, bool few)
{
	s->budget = few ? FEW : INT_MAX;
	s->most = few ? MIN(s->most, FEW) : s->most;
	for (int i = s->n - 1; i >= 0; i--)
		if (s->at[i].rank < 0 && ++s->at[i].ticks > STRANGER_TICKS)
			drop(s, i);
	while (connected(s) > s->most && drop_one(s))
		;
	if (s->reserve < 0)
		s->reserve = any_descriptor();
}

/* ---- their messages ---- */

static void doubt(Stranger *one, const char *why)
{
	link_send(&one->link, MSG_DOUBT, why, strlen(why));
	link_close(&one->link);
}

/* Judges the first message of a stranger; the caller drops it if its link was closed. */
static void judge(const Strangers *s, Stranger *one, const Message *m)
{
	Hello *h = &one->hello;
	uint8_t proof[SHA256_BYTES];
	LinkKey of_rank, of_hub;
	const Secret *secret = one->rank < 0 ? &s->secret : &s->none;
	if (m->kind != MSG_HELLO) {
		link_close(&one->link);
		return;
	}
	if (!message_read(m, h, sizeof(*h)) || h->magic != protocol_magic()) {
		doubt(one, "it was compiled by another version of shardc");
		return;
	}
	secret_prove(secret, &one->challenge, h, proof);
	if (!mac_equal(proof, h->proof, sizeof(proof))) {
		doubt(one, "its secret is not that of rank 0 (SHARDC_SECRET, SHARDC_SECRET_FILE)");
		return;
	}
	secret_keys(secret, &one->challenge, h, &of_rank, &of_hub);
	link_trust(&one->link, &of_hub, &of_rank);
	one->link.limit = MESSAGE_LIMIT;
	one->proved = true;
}

static void listen_to(Strangers *s, int i)
{
	Message m;
	Stranger *one = &s->at[i];
	bool open = one->proved || link_receive(&one->link);
	if (!one->proved && link_next(&one->link, &m))
		judge(s, one, &m);
	if (!one->proved && (!open || one->link.fd < 0))
		drop(s, i);
}

/* ---- turning ---- */

int strangers_most(const Strangers *s) { return 2 + s->room; }

int strangers_poll(Strangers *s, struct pollfd *p)
{
	for (int i = 0; i < 2; i++)
		p[i] = (struct pollfd){.fd = s->budget > 0 ? s->fd[i] : -1, .events = POLLIN};
	for (int i = 0; i < s->n; i++)
		p[2 + i] = (struct pollfd){.fd = s->at[i].link.fd, .events = POLLIN};
	return 2 + s->n;
}

void strangers_take(Strangers *s, const struct pollfd *p)
{
	for (int i = s->n - 1; i >= 0; i--) /* backwards, because the last one takes the place of one that is dropped */
		if (p[2 + i].revents)
			listen_to(s, i);
	for (int i = 0; i < 2; i++)
		if (p[i].revents)
			accept_all(s, s->fd[i], i == 1);
}

bool strangers_next(Strangers *s, Proved *out)
{
	for (int i = 0; i < s->n; i++) {
		Stranger *one = &s->at[i];
		if (!one->proved)
			continue;
		if (one->rank >= 0 && one->hello.peer.rank != one->rank) {
			drop(s, i--);
			continue;
		}
		*out = (Proved){one->link, one->hello, one->local ? vouch_process(one->link.fd) : -1, one->rank >= 0};
		s->at[i] = s->at[--s->n];
		return true;
	}
	return false;
}
