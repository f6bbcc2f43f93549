/* runtime/plane/hub.c: the hub, the one place that knows all ranks: it lets them in, passes their small blobs around,
 * compares their schedules, counts how long each has been silent, and ends a run that cannot continue.
 *
 * The parent of --ranks, or a thread of rank 0, calls hub_turn in a loop.  The hub never waits for a single rank: it is
 * a state machine that messages and ticks advance.  A process that connects is a stranger (strangers.c) until it has
 * proved to be a rank.  A rank that sends a message that no correct rank sends, or sends at that time, counts as lost.
 * The hub kills only children of its process, by number, and processes that the kernel vouches for, by pidfd.
 *
 * A run ends in only one way, hub_end: every rank is told, has a grace period, and is killed after it. */
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/plane/private.h"

enum { STRANGERS = 512, RESERVED_FILES = 128 };

typedef struct HubRank {
	Link link;
	Buf blob;                /* contents of MSG_GATHER or MSG_COMPARE, later of MSG_TEXT */
	bool has_text, asked_text;
	int process;             /* a pidfd that the kernel vouches for; -1: none */
	pid_t child;             /* the parent's child that runs this rank; 0: none or ended */
	int child_ticks;         /* ticks since its rank left */
} HubRank;

struct Hub {
	HubConfig c;
	HubRank *rank;
	TableRow *rows;
	Peer *peers;
	Strangers *strangers;    /* processes that have connected and are not known yet */
	struct pollfd *polled;
	int64_t next_tick, ticks, still;
	bool welcomed, moved;    /* moved: a collective ended since the last tick */
	bool ending, now;
	int status;
	int64_t end_ticks;
	int stop;                /* the signal that asks rank 0 to stop */
	int differs;             /* the rank whose text is compared with rank 0's; 0: none */
	char *names;             /* NUL-terminated names; each program ends with an empty one */
	size_t n_names;
};

static void *zeroed(size_t n, size_t size)
{
	void *p = calloc(n, size);
	if (!p)
		ice("out of memory");
	return p;
}

/* How many strangers are allowed beyond the number of ranks, so that descriptors remain for other files of the
 * process. */
static int spare_files(int size)
{
	struct rlimit most = {0};
	if (getrlimit(RLIMIT_NOFILE, &most) || most.rlim_cur > INT_MAX)
		return STRANGERS;
	int64_t left = (int64_t)most.rlim_cur - 2 * (int64_t)size - RESERVED_FILES;
	return (int)MAX(MIN(left, STRANGERS), 1);
}

Hub *hub_new(const HubConfig *c)
{
	Hub *h = zeroed(1, sizeof(*h));
	size_t n = (size_t)c->size;
	h->c = *c;
	h->rank = zeroed(n, sizeof(*h->rank));
	h->rows = zeroed(n, sizeof(*h->rows));
	h->peers = zeroed(n, sizeof(*h->peers));
	h->strangers = strangers_new(c->tcp_fd, c->local_fd, c->size + spare_files(c->size), c->size, &c->secret);
	h->polled = zeroed(n + (size_t)strangers_most(h->strangers) + 1, sizeof(*h->polled));
	h->next_tick = clock_ms() + TICK_MS;
	for (int i = 0; i < c->size; i++)
		h->rank[i].link.fd = h->rank[i].process = -1;
	return h;
}

void hub_free(Hub *h)
{
	for (int i = 0; i < h->c.size; i++) {
		link_close(&h->rank[i].link);
		buf_free(&h->rank[i].blob);
		if (h->rank[i].process >= 0)
			close(h->rank[i].process);
	}
	strangers_free(h->strangers);
	free(h->rank), free(h->rows), free(h->peers);
	free(h->polled), free(h->names);
	free(h);
}

/* ---- reports and the end of a run ---- */

static const char *hub_name(const void *context, int program, int seq)
{
	const Hub *h = context;
	const char *at = h->names, *end = at ? at + h->n_names : NULL;
	for (int p = 0, i = 1; at < end; at += strlen(at) + 1) {
		if (!*at) {
			p++;
			i = 1;
		} else if (p == program && i++ == seq)
			return at;
	}
	return NULL;
}

static Names hub_names(const Hub *h) { return (Names){hub_name, h}; }

static void hub_end(Hub *h, int status, bool now)
{
	if (h->ending && (h->now || !now))
		return;
	if (!h->ending)
		h->status = status;
	h->ending = true;
	h->now = now;
	EndMessage m = {EXIT_RUN, now};
	for (int i = 0; i < h->c.size; i++)
		if (h->rows[i].state == RANK_HERE)
			link_send(&h->rank[i].link, MSG_END, &m, sizeof(m));
}

static void kill_rank(const Hub *h, int i)
{
	if (i == h->c.self)
		return;
	if (h->rank[i].child)
		kill(h->rank[i].child, SIGKILL); /* it has not been waited for, so the number is still its own */
	else if (h->rows[i].state == RANK_HERE)
		vouch_kill(h->rank[i].process);
}

/* Reports where all ranks are, and ends the run. */
static void report_stall(Hub *h)
{
	Buf b = {0};
	Names names = hub_names(h);
	int silent = -1;
	for (int i = h->c.size - 1; i >= 0; i--)
		if (h->rows[i].state == RANK_HERE && h->rows[i].silent >= SILENT_TICKS)
			silent = i;
	say_ranks(&b, h->rows, h->peers, h->c.size, &names);
	clear_terminal_line();
	if (silent >= 0)
		diag_error(h->c.d, h->c.program, "rank %d gives no sign of life; the run is ended%s", silent, b.at);
	else
		diag_error(h->c.d, h->c.program, "no collective has ended for %.1f s; the run is ended "
			"(--timeout=SECONDS allows more)%s", (double)h->still / TICKS_PER_SECOND, b.at);
	buf_free(&b);
	hub_end(h, EXIT_RUN, true);
	for (int i = 0; i < h->c.size; i++)
		if (h->rows[i].state == RANK_HERE && h->rows[i].silent >= SILENT_TICKS)
			kill_rank(h, i);
}

static void report_missing(Hub *h)
{
	Buf b = {0};
	int n = 0;
	for (int i = 0; i < h->c.size; i++)
		if (h->rows[i].state != RANK_HERE)
			buf_printf(&b, n++ ? ", %d" : "%d", i);
	diag_error(h->c.d, h->c.program, "%s %s of %d %s not joined within %.0f s%s%s",
		n > 1 ? "ranks" : "rank", b.at, h->c.size, n > 1 ? "have" : "has",
		(double)h->c.timeout / TICKS_PER_SECOND, h->c.waits_for ? ": " : "",
		h->c.waits_for ? h->c.waits_for : "");
	buf_free(&b);
	hub_end(h, EXIT_RUN, true);
}

void hub_lost(Hub *h, int i, int status, const char *why)
{
	Buf b = {0};
	Names names = hub_names(h);
	RankState was = (RankState)h->rows[i].state;
	h->rows[i].state = RANK_LOST;
	h->rank[i].child = 0;
	link_close(&h->rank[i].link);
	if (h->ending)
		return;
	say_place(&b, &h->rows[i], &names);
	clear_terminal_line();
	diag_error(h->c.d, h->c.program, "rank %d %s%s%s", i, why, was == RANK_HERE ? "; last seen: " : "",
		was == RANK_HERE ? b.at : was == RANK_LEFT ? ", after its last step" : "");
	buf_free(&b);
	hub_end(h, status, true);
}

/* ---- at start: blobs and texts ---- */

/* Finds line `line` (from 0) of a text, which need not end with a newline; false: there is none. */
static bool get_line(const Buf *b, int line, const char **at, int *n)
{
	const char *p = b->at, *end = b->at + b->n;
	for (; line > 0 && p < end; line--) {
		const char *next = memchr(p, '\n', (size_t)(end - p));
		p = next ? next + 1 : end;
	}
	if (p >= end)
		return false;
	const char *stop = memchr(p, '\n', (size_t)(end - p));
	*at = p;
	*n = (int)((stop ? stop : end) - p);
	return true;
}

static void report_difference(Hub *h)
{
	const char *a = "", *b = "";
	int na = 0, nb = 0, line = 0;
	bool has_a, has_b;
	do {
		has_a = get_line(&h->rank[0].blob, line, &a, &na);
		has_b = get_line(&h->rank[h->differs].blob, line, &b, &nb);
		line++;
	} while (has_a && has_b && na == nb && !memcmp(a, b, (size_t)na));
	static const char none[] = "(nothing: it ends before)";
	if (!has_a)
		a = none, na = sizeof(none) - 1;
	if (!has_b)
		b = none, nb = sizeof(none) - 1;
	Buf said = {0};
	buf_printf(&said, "\n  rank 0: ");
	say_text(&said, a, (size_t)na);
	buf_printf(&said, "\n  rank %d: ", h->differs);
	say_text(&said, b, (size_t)nb);
	diag_error(h->c.d, h->c.program, "rank %d was started with another binary or other flags than rank 0; "
		"line %d, the first that differs, of what has to be equal:%s", h->differs, line, said.at);
	buf_free(&said);
}

static void answer(Hub *h, MessageKind kind, const void *p, size_t n)
{
	for (int i = 0; i < h->c.size; i++) {
		if (!h->rows[i].asked)
			continue;
		h->rows[i].asked = 0;
		h->rank[i].has_text = false;
		link_send(&h->rank[i].link, kind, p, n);
	}
	h->moved = true;
}

static void ask_text(Hub *h, int i)
{
	h->rank[i].asked_text = true;
	link_send(&h->rank[i].link, MSG_TEXT, NULL, 0);
}

static void compare(Hub *h)
{
	char ok = 1;
	if (h->differs) {
		if (!h->rank[0].has_text || !h->rank[h->differs].has_text)
			return;
		report_difference(h);
		ok = 0;
	} else {
		for (int i = h->c.size - 1; i > 0; i--)
			if (memcmp(h->rank[i].blob.at, h->rank[0].blob.at, h->rank[0].blob.n))
				h->differs = i;
		if (h->differs) {
			ask_text(h, 0);
			ask_text(h, h->differs);
			return;
		}
	}
	h->differs = 0;
	answer(h, MSG_COMPARED, &ok, 1);
}

/* Answers all ranks that have asked, once all have, or once a rank is gone. */
static void answer_when_complete(Hub *h)
{
	int asked = 0, kind = 0, gone = 0;
	bool same = true;
	size_t bytes = 0;
	for (int i = 0; i < h->c.size; i++) {
		gone += h->rows[i].state == RANK_LEFT || h->rows[i].state == RANK_LOST;
		if (!h->rows[i].asked)
			continue;
		same = same && (!asked || (kind == h->rows[i].asked && (h->differs || bytes == h->rank[i].blob.n)));
		kind = h->rows[i].asked;
		bytes = h->rank[i].blob.n;
		asked++;
	}
	if (asked && gone)
		answer(h, kind == MSG_GATHER ? MSG_GATHERED : MSG_COMPARED, NULL, 0);
	if (gone || asked < h->c.size)
		return;
	if (!same) {
		diag_error(h->c.d, h->c.program, "the ranks run different programs: they do not agree on what to "
			"exchange at start");
		hub_end(h, EXIT_RUN, true);
	} else if (kind == MSG_COMPARE)
		compare(h);
	else {
		Buf all = {0};
		for (int i = 0; i < h->c.size; i++)
			buf_put(&all, h->rank[i].blob.at, h->rank[i].blob.n);
		answer(h, MSG_GATHERED, all.at, all.n);
		buf_free(&all);
	}
}

static void put_blob(Hub *h, int i, const Message *m)
{
	HubRank *r = &h->rank[i];
	r->blob.n = 0;
	buf_put(&r->blob, m->at, m->bytes);
	h->moved = true;
}

/* Takes the hash of a text, or a blob for all ranks.  The blobs of all ranks together must fit into one message. */
static bool take_blob(Hub *h, int i, const Message *m)
{
	size_t each = m->kind == MSG_COMPARE ? COMPARE_BYTES : m->bytes;
	if (!h->welcomed || h->rows[i].asked || m->bytes != each || each > (size_t)BLOB_LIMIT / (size_t)h->c.size)
		return false;
	put_blob(h, i, m);
	h->rows[i].asked = m->kind;
	answer_when_complete(h);
	return true;
}

/* Takes a text that was asked for.  The comparison may have ended meanwhile because a rank is gone. */
static bool take_text(Hub *h, int i, const Message *m)
{
	HubRank *r = &h->rank[i];
	if (!r->asked_text)
		return false;
	r->asked_text = false;
	if (h->rows[i].asked != MSG_COMPARE)
		return true;
	put_blob(h, i, m);
	r->has_text = true;
	answer_when_complete(h);
	return true;
}

/* ---- messages ---- */

static bool take_names(Hub *h, int i, const Message *m)
{
	if (i > 0 || !valid_names(m))
		return false;
	free(h->names);
	h->names = zeroed(m->bytes + 1, 1);
	h->n_names = m->bytes;
	memcpy(h->names, m->at, m->bytes);
	return true;
}

static bool take_beat(Hub *h, int i, const Message *m)
{
	RankRecord r;
	if (!message_read(m, &r, sizeof(r)) || !valid_record(&r))
		return false;
	if (memcmp(r.done, h->rows[i].at.done, sizeof(r.done)))
		h->moved = true;
	h->rows[i].at = r;
	return true;
}

static bool take_leave(Hub *h, int i, const Message *m)
{
	int32_t status;
	if (!message_read(m, &status, sizeof(status)) || status < 0 || status > UCHAR_MAX)
		return false;
	h->rows[i].state = RANK_LEFT;
	h->rows[i].asked = 0;
	link_close(&h->rank[i].link);
	if (status)
		hub_end(h, status, false);
	answer_when_complete(h);
	return true;
}

static void take_message(Hub *h, int i, const Message *m)
{
	bool ok = false;
	h->rows[i].silent = 0;
	switch (m->kind) {
	case MSG_BEAT: ok = take_beat(h, i, m); break;
	case MSG_GATHER: case MSG_COMPARE: ok = take_blob(h, i, m); break;
	case MSG_TEXT: ok = take_text(h, i, m); break;
	case MSG_NAMES: ok = take_names(h, i, m); break;
	case MSG_LEAVE: ok = take_leave(h, i, m); break;
	default: break;
	}
	if (ok)
		return;
	kill_rank(h, i);
	hub_lost(h, i, EXIT_RUN, "sent what no rank of this version of shardc sends");
}

static void read_rank(Hub *h, int i)
{
	Message m;
	HubRank *r = &h->rank[i];
	bool open = link_receive(&r->link);
	while (h->rows[i].state == RANK_HERE && link_next(&r->link, &m))
		take_message(h, i, &m);
	if (h->rows[i].state != RANK_HERE || (open && r->link.fd >= 0))
		return;
	if (r->child) {
		link_close(&r->link); /* the parent will learn how the process ended */
		return;
	}
	char why[200];
	snprintf(why, sizeof(why), "is gone: its process %d on %.63s ended without saying so",
		h->peers[i].pid, h->peers[i].name);
	hub_lost(h, i, EXIT_RUN, why);
}

/* ---- joining ---- */

static void welcome(Hub *h)
{
	int n = 0;
	for (int i = 0; i < h->c.size; i++)
		n += h->rows[i].state != RANK_AWAY;
	if (n < h->c.size || h->welcomed)
		return;
	for (int i = 1; h->c.one_host && i < h->c.size; i++) {
		if (h->peers[i].host == h->peers[0].host)
			continue;
		diag_error(h->c.d, h->c.program, "rank %d runs on %.63s and rank 0 on %.63s, but --comm=shm needs "
			"all ranks on one host: start the ranks with %s, with --comm=%s", i, h->peers[i].name,
			h->peers[0].name, comm_of_hosts()->starter, comm_of_hosts()->text);
		hub_end(h, 2, true);
		return;
	}
	h->welcomed = true;
	for (int i = 0; i < h->c.size; i++)
		link_send(&h->rank[i].link, MSG_WELCOME, h->peers, sizeof(*h->peers) * (size_t)h->c.size);
}

/* The answer to a process that knows the secret, and the reason if it is not let in.  A rank that has left may come
 * back for the next run at this address, before all of this run have left: it comes too early. */
static MessageKind find_answer(const Hub *h, const Proved *p, char *why, size_t n)
{
	const Hello *hello = &p->hello;
	int i = hello->peer.rank;
	if (hello->size != h->c.size)
		snprintf(why, n, "it was started as one of %d ranks, rank 0 as one of %d", hello->size, h->c.size);
	else if (i < 0 || i >= h->c.size)
		snprintf(why, n, "there are %d ranks only", h->c.size);
	else if (!valid_peer(&hello->peer, i))
		snprintf(why, n, "it has no number, or its host no name of printable characters");
	else if (h->rows[i].state == RANK_LEFT) {
		snprintf(why, n, "a run of which rank %d has left is there, and has not ended", i);
		return MSG_LATER;
	} else if (h->ending)
		snprintf(why, n, "the run is ending");
	else if (h->rows[i].state != RANK_AWAY || (i == h->c.self && !p->attached))
		snprintf(why, n, "rank %d is there already; two ranks have the same number, or two runs the same MASTER_PORT",
			i);
	return *why ? MSG_REFUSE : MSG_ACCEPT;
}

static void let_in(Hub *h, Proved *p)
{
	char why[200] = "";
	int i = p->hello.peer.rank;
	MessageKind answer = find_answer(h, p, why, sizeof(why));
	link_send(&p->link, answer, why, strlen(why));
	if (answer != MSG_ACCEPT) {
		link_close(&p->link);
		if (p->pidfd >= 0)
			close(p->pidfd);
		return;
	}
	h->rank[i].link = p->link;
	h->rank[i].process = p->pidfd;
	h->peers[i] = p->hello.peer;
	h->rows[i] = (TableRow){.state = RANK_HERE};
	if (i == 0 && h->stop)
		hub_stop(h, h->stop);
	welcome(h);
}

void hub_attach(Hub *h, int fd, int rank) { strangers_attach(h->strangers, fd, rank); }

/* ---- time ---- */

static void tick_rank(Hub *h, int i)
{
	Link *l = &h->rank[i].link;
	int every = MAX(1, h->c.size / 16);
	if (h->rows[i].state == RANK_LEFT && h->rank[i].child && h->c.timeout &&
		++h->rank[i].child_ticks == h->c.timeout) {
		diag_error(h->c.d, h->c.program, "rank %d has said that it ends and has not, for %.0f s: it is "
			"killed", i,
			(double)h->c.timeout / TICKS_PER_SECOND);
		hub_end(h, EXIT_RUN, true);
		kill_rank(h, i);
	}
	if (h->rows[i].state != RANK_HERE)
		return;
	h->rows[i].silent++;
	if (l->out.n) /* it does not read, so nothing more is sent to it */
		return;
	bool full = h->ticks % every == 0;
	link_send(l, MSG_TABLE, h->rows, full ? sizeof(*h->rows) * (size_t)h->c.size : 0);
}

static bool stalls(Hub *h)
{
	bool waiting = false, silent = false;
	for (int i = 0; i < h->c.size; i++) {
		const TableRow *r = &h->rows[i];
		if (r->state != RANK_HERE)
			continue;
		waiting = waiting || r->asked;
		for (int k = 0; k < RT_STREAMS; k++)
			waiting = waiting || r->at.inside[k];
		silent = silent || r->silent >= h->c.timeout;
	}
	h->still = waiting && !h->moved ? h->still + 1 : 0;
	h->moved = false;
	return h->c.timeout && (silent || h->still >= h->c.timeout);
}

static void tick(Hub *h)
{
	h->ticks++;
	for (int i = 0; i < h->c.size; i++)
		tick_rank(h, i);
	strangers_tick(h->strangers, h->welcomed);
	if (h->ending) {
		if (++h->end_ticks >= GRACE_TICKS)
			for (int i = 0; i < h->c.size; i++)
				kill_rank(h, i);
	} else if (!h->welcomed && h->c.timeout && h->ticks >= h->c.timeout)
		report_missing(h);
	else if (stalls(h))
		report_stall(h);
}

static int add_poll(Hub *h, int n, const Link *l)
{
	h->polled[n] = (struct pollfd){.fd = l->fd, .events = (short)(POLLIN | (l->out.n ? POLLOUT : 0))};
	return n + 1;
}

static bool serve(Hub *h, int extra_fd, int wait_ms)
{
	int n = 0;
	Proved p;
	for (int i = 0; i < h->c.size; i++)
		n = add_poll(h, n, &h->rank[i].link);
	n += strangers_poll(h->strangers, h->polled + n);
	h->polled[n++] = (struct pollfd){.fd = extra_fd, .events = POLLIN};
	if (poll(h->polled, (nfds_t)n, wait_ms) <= 0)
		return false;
	bool extra = h->polled[n - 1].revents;
	for (int i = 0; i < h->c.size; i++) {
		if (!h->polled[i].revents || h->polled[i].fd != h->rank[i].link.fd)
			continue;
		link_flush(&h->rank[i].link);
		read_rank(h, i);
	}
	strangers_take(h->strangers, h->polled + h->c.size);
	while (strangers_next(h->strangers, &p))
		let_in(h, &p);
	return extra;
}

bool hub_turn(Hub *h, int extra_fd)
{
	int64_t wait = h->next_tick - clock_ms();
	bool extra = serve(h, extra_fd, (int)MAX(0, wait));
	int64_t now = clock_ms();
	if (now >= h->next_tick) {
		h->next_tick = now + TICK_MS;
		tick(h);
	}
	return extra;
}

void hub_drain(Hub *h) { serve(h, -1, 0); }

/* ---- calls by the owner of the hub ---- */

void hub_child(Hub *h, int i, pid_t pid) { h->rank[i].child = pid; }
void hub_stop(Hub *h, int number)
{
	int32_t n = h->stop = number;
	link_send(&h->rank[0].link, MSG_STOP, &n, sizeof(n));
}

void hub_gone(Hub *h, int i, int status)
{
	h->rank[i].child = 0;
	link_close(&h->rank[i].link);
	h->rows[i].state = RANK_LEFT;
	if (status && !h->ending)
		hub_end(h, status, false);
	answer_when_complete(h);
}

bool hub_over(const Hub *h)
{
	if (h->ending && h->end_ticks > GRACE_TICKS)
		return true;
	for (int i = 0; i < h->c.size; i++) {
		RankState s = (RankState)h->rows[i].state;
		if (s == RANK_LEFT || s == RANK_LOST || (h->ending && s == RANK_AWAY))
			continue;
		if (i != h->c.self || !h->ending || !(h->now || h->end_ticks > LEAVE_TICKS))
			return false;
	}
	return true;
}

bool hub_left(const Hub *h, int i) { return h->rows[i].state == RANK_LEFT; }
bool hub_joined(const Hub *h, int i) { return h->rows[i].state != RANK_AWAY; }
bool hub_ending(const Hub *h) { return h->ending; }
int hub_status(const Hub *h) { return h->status; }
