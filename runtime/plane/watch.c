/* runtime/plane/watch.c: a rank's watchdog: each tick it tells the hub where this rank is, and it does what the hub
 * says.
 *
 * Its thread sleeps in poll, so that it takes no time from the computing, and blocks all signals.  It ends the process
 * when the hub says so, or when the hub itself is gone or silent; then the lowest rank that was alive reports for all,
 * from the hub's last table.
 *
 * The threads that compute may be stuck anywhere; this one never waits for them. */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "runtime/plane/private.h"

_Noreturn void end_process(int status)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	signal(SIGALRM, SIG_DFL);
	alarm(1);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	if (ftrylockfile(stdout) == 0) {
		fflush(stdout);
		funlockfile(stdout);
	}
	_exit(status);
}

/* Work on the device is aborted first, so that peers that wait for it learn it at once. */
static _Noreturn void end_rank(Control *c, int status)
{
	if (c->device.abort) {
		signal(SIGALRM, SIG_DFL);
		alarm(1);
		sigset_t set;
		sigemptyset(&set);
		sigaddset(&set, SIGALRM);
		pthread_sigmask(SIG_UNBLOCK, &set, NULL);
		c->device.abort(c->device.state);
	}
	end_process(status);
}

/* Called each tick.  A device also fails because a peer is gone; then a message about that peer is better, so there is
 * some time for it to arrive. */
static void check_device(Control *c)
{
	const char *why = c->device.failed && !c->leaving && !c->ended ? c->device.failed(c->device.state) : NULL;
	if (!why || ++c->failed_ticks < FAILED_TICKS)
		return;
	int32_t number = EXIT_RUN;
	clear_terminal_line();
	diag_error(&c->d, c->program, "rank %d: communication of the GPU failed: %s", c->rank, why);
	link_send(&c->link, MSG_LEAVE, &number, sizeof(number));
	link_flush(&c->link);
	end_rank(c, EXIT_RUN);
}

/* ---- the hub is gone or silent ---- */

static RankRecord record_now(const RankProgress *p)
{
	RankRecord r = {.step = atomic_load_explicit(&p->step, memory_order_relaxed),
		.program = atomic_load_explicit(&p->program, memory_order_relaxed)};
	for (int i = 0; i < RT_STREAMS; i++) {
		int32_t inside = atomic_load_explicit(&p->inside[i], memory_order_relaxed);
		r.inside[i] = inside ? inside : atomic_load_explicit(&p->issuing[i], memory_order_relaxed);
		r.ended[i] = atomic_load_explicit(&p->ended[i], memory_order_relaxed);
		r.done[i] = atomic_load_explicit(&p->done[i], memory_order_relaxed)
			+ atomic_load_explicit(&p->issued[i], memory_order_relaxed);
	}
	return r;
}

/* How many lower ranks were alive when the hub last spoke. */
static int live_before(const Control *c)
{
	int n = 0;
	for (int i = c->parent_hub ? 0 : 1; i < c->rank; i++)
		n += c->rows[i].state == RANK_HERE && c->rows[i].silent < SILENT_TICKS;
	return n;
}

static void report_hub(Control *c, const char *why)
{
	Buf b = {0};
	c->rows[c->rank].at = record_now(&c->progress);
	if (!c->parent_hub)
		c->rows[0].silent = (int32_t)c->silent;
	say_ranks(&b, c->rows, c->peers, c->size, &c->names);
	clear_terminal_line();
	diag_error(&c->d, c->program, "%s %s; the run is ended%s",
		c->parent_hub ? "the parent process of the ranks" : "rank 0", why, b.at);
	buf_free(&b);
}

/* Called each tick; acts when the hub has been silent for too long.  The lowest live rank reports; if it does not end
 * the run, the next ones act two ticks apart.  Each kills the hub's process, if it may, and ends itself. */
static void check_silence(Control *c)
{
	if (!c->timeout || c->silent < c->timeout || c->leaving)
		return;
	if (!c->welcomed) {
		c->failed = "gives no sign of life";
		return;
	}
	int before = live_before(c);
	if (c->silent < c->timeout + (int64_t)2 * before)
		return;
	if (before == 0) {
		char why[64];
		snprintf(why, sizeof(why), "gives no sign of life for %.1f s", (double)c->silent / TICKS_PER_SECOND);
		report_hub(c, why);
	}
	vouch_kill(c->hub_process);
	end_rank(c, EXIT_RUN);
}

static void hub_closed(Control *c)
{
	c->failed = c->failed ? c->failed : "has ended";
	if (c->leaving || c->ended || !c->welcomed)
		return;
	bool killed_for_silence = c->timeout && c->silent >= c->timeout;
	if (!killed_for_silence && !c->parent_hub && live_before(c) == 0)
		report_hub(c, "is gone: its process ended without saying so");
	end_rank(c, EXIT_RUN);
}

/* ---- messages of the hub ---- */

static bool take_end(Control *c, const Message *m)
{
	EndMessage end;
	if (!message_read(m, &end, sizeof(end)))
		return false;
	c->ended = true;
	if (end.now && c->welcomed && !c->leaving && !c->hub)
		end_rank(c, EXIT_RUN); /* a hub in this process ends it once the other ranks have ended */
	return true;
}

static bool take_welcome(Control *c, const Message *m)
{
	if (c->welcomed || !message_read(m, c->peers, sizeof(*c->peers) * (size_t)c->size))
		return false;
	for (int i = 0; i < c->size; i++) {
		if (!valid_peer(&c->peers[i], i))
			return false;
		c->rows[i].state = RANK_HERE; /* the first table may come later */
	}
	return c->welcomed = true;
}

/* An empty table is just a sign of life. */
static bool take_table(Control *c, const Message *m)
{
	size_t bytes = sizeof(*c->rows) * (size_t)c->size;
	if (m->bytes != bytes)
		return m->bytes == 0;
	memcpy(c->table, m->at, bytes);
	if (!valid_rows(c->table, c->size))
		return false;
	memcpy(c->rows, c->table, bytes);
	return true;
}

static bool take_answer(Control *c, const Message *m)
{
	if (c->asked != m->kind || (m->bytes && m->bytes != c->want))
		return false;
	c->answer.n = 0;
	buf_put(&c->answer, m->at, m->bytes);
	c->reply = m->kind;
	c->asked = 0;
	return true;
}

/* The hub asks for the text of a comparison that is under way. */
static bool take_question(Control *c, const Message *m)
{
	if (!c->text || c->asked != MSG_COMPARED || m->bytes)
		return false;
	link_send(&c->link, MSG_TEXT, c->text, strlen(c->text));
	return true;
}

static bool take_stop(Control *c, const Message *m)
{
	int32_t number;
	if (!message_read(m, &number, sizeof(number)) || number < 1 || number >= NSIG || c->rank > 0)
		return false;
	c->stop = number;
	return true;
}

/* False: a correct hub does not send this, or not now. */
static bool take(Control *c, const Message *m)
{
	switch (m->kind) {
	case MSG_WELCOME: return take_welcome(c, m);
	case MSG_TABLE: return take_table(c, m);
	case MSG_TEXT: return take_question(c, m);
	case MSG_END: return take_end(c, m);
	case MSG_STOP: return take_stop(c, m);
	case MSG_GATHERED: case MSG_COMPARED: return take_answer(c, m);
	default: return false;
	}
}

/* The peer is not a hub, or is broken: nothing that it says counts any more. */
static void hub_violates(Control *c)
{
	c->failed = "sent what no hub of this version of shardc sends";
	if (c->leaving || c->ended || !c->welcomed)
		return;
	report_hub(c, c->failed);
	end_rank(c, EXIT_RUN);
}

static void tick(Control *c)
{
	RankRecord r = record_now(&c->progress);
	if (!c->leaving && !c->link.out.n)
		link_send(&c->link, MSG_BEAT, &r, sizeof(r));
	c->silent++;
	check_silence(c);
	if (c->ended && c->welcomed && !c->leaving && !c->hub && ++c->end_ticks > LEAVE_TICKS)
		end_rank(c, EXIT_RUN);
	check_device(c);
}

/* Handles what has arrived, and a tick.  False: there is nothing left to watch. */
static bool turn(Control *c, bool ticks)
{
	Message m;
	bool open = link_receive(&c->link);
	while (!c->failed && link_next(&c->link, &m)) {
		c->silent = 0;
		if (!take(c, &m))
			hub_violates(c);
	}
	link_flush(&c->link);
	if (ticks)
		tick(c);
	if (!open || c->link.fd < 0)
		hub_closed(c);
	pthread_cond_broadcast(&c->changed);
	return !c->failed && !(c->leaving && c->timeout && c->silent >= c->timeout);
}

void *watch_hub(void *control)
{
	Control *c = control;
	int64_t next = clock_ms();
	for (bool on = true; on;) {
		struct pollfd p = {.fd = c->link.fd, .events = POLLIN};
		poll(&p, 1, (int)MAX(0, next - clock_ms()));
		bool ticks = clock_ms() >= next;
		if (ticks)
			next = clock_ms() + TICK_MS;
		pthread_mutex_lock(&c->lock);
		on = turn(c, ticks);
		pthread_mutex_unlock(&c->lock);
	}
	return NULL;
}
