/* runtime/plane/control.c: a rank's side of the control plane: joining, exchanging small blobs, leaving.
 *
 * The calling thread sends and waits on a condition; the watchdog's thread (watch.c) receives.  Under a launcher, rank
 * 0 also runs the hub (hub.c) on a thread of its own and communicates with it over a socket, as all others do.
 *
 * The watchdog ensures that every wait here ends: with an answer, with the end of the run that the hub declares, or
 * because the hub is gone. */
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/plane/private.h"

int64_t control_timeout(const RtOptions *o)
{
	return o->text[OPT_timeout] ? o->timeout : 120;
}

/* Starts a thread of the control plane, which takes no signals and has a small stack. */
static bool start_thread(pthread_t *t, void *(*run)(void *), void *arg)
{
	sigset_t all, old;
	pthread_attr_t attr;
	sigfillset(&all);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 1 << 18);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	int failed = pthread_create(t, &attr, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return !failed;
}

static void *run_hub(void *control)
{
	Control *c = control;
	while (!hub_over(c->hub))
		hub_turn(c->hub, -1);
	if (hub_ending(c->hub) && !hub_left(c->hub, c->rank))
		end_process(EXIT_RUN);
	return NULL;
}

/* ---- joining ---- */

/* Opens the sockets to which ranks connect, in l, unless control_listen has done so.  False after a message. */
static bool listen_for_ranks(const Control *c, Launch *l, Diag *d)
{
	if (l->one_host && !address_is_here(l->address, c->program, d))
		return false;
	if (l->local_fd >= 0)
		listen(l->local_fd, SOMAXCONN); /* again, because the kernel vouches for the process that called listen last */
	else
		l->local_fd = listen_local(l->address, c->program, l->one_host ? d : NULL);
	if (l->listen_fd < 0 && !l->one_host)
		l->listen_fd = listen_at(l->address, c->program, d);
	if (!l->one_host && !l->secret.given)
		diag_warn(d, c->program, "the ranks are on several hosts and share no secret: whoever reaches %s can join the "
			"run or end it; give all ranks the same SHARDC_SECRET or SHARDC_SECRET_FILE (docs/trust.md)", l->address);
	return l->one_host ? l->local_fd >= 0 : l->listen_fd >= 0;
}

static void close_listening(Launch *l)
{
	if (l->listen_fd >= 0)
		close(l->listen_fd);
	if (l->local_fd >= 0)
		close(l->local_fd);
	l->listen_fd = l->local_fd = -1;
}

/* On rank 0 under a launcher: starts the hub and connects to it. */
static bool start_hub(Control *c, Launch *l, int64_t seconds, Arena *a, Diag *d)
{
	int ends[2];
	if (!listen_for_ranks(c, l, d)) {
		close_listening(l);
		return false;
	}
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) {
		diag_error(d, c->program, "rank 0 cannot start: no socket");
		close_listening(l);
		return false;
	}
	HubConfig config = {.size = c->size, .self = c->rank, .timeout = seconds * TICKS_PER_SECOND,
		.tcp_fd = l->listen_fd, .local_fd = l->local_fd, .secret = l->secret,
		.one_host = !l->carrier && !l->nccl, .program = c->program, .d = &c->d};
	if (!l->carrier)
		config.waits_for = arena_printf(a, "each needs this WORLD_SIZE, its own RANK and rank 0's address %s "
			"(MASTER_ADDR:MASTER_PORT)", l->address);
	l->listen_fd = l->local_fd = -1;
	c->hub = hub_new(&config);
	hub_attach(c->hub, ends[0], c->rank);
	link_open(&c->link, ends[1]);
	if (start_thread(&c->hub_thread, run_hub, c))
		return true;
	diag_error(d, c->program, "rank 0 cannot start a thread");
	link_close(&c->link);
	hub_free(c->hub);
	c->hub = NULL;
	return false;
}

/* Connects to the hub.  Rank 0 under a launcher, and children of --ranks, have a socket to the hub from the start and
 * prove themselves by having it. */
static bool reach_hub(Control *c, Launch *l, int64_t seconds, Arena *a, Diag *d)
{
	char why[300], key[KEY_BYTES];
	Joiner j = {.hello = {.magic = protocol_magic(), .size = c->size}, .one_host = l->one_host};
	bool attached = l->hub_fd >= 0 || c->rank == 0;
	peer_self(&j.hello.peer, c->rank);
	if (l->hub_fd < 0 && !address_key(l->address, key)) {
		diag_error(d, c->program, "\"%s\" is no address of a hub", l->address);
		return false;
	}
	if (l->hub_fd < 0 && strchr(l->address, '@'))
		secret_add(&l->secret, key);
	if (!attached) {
		j.secret = l->secret;
		if (l->one_host && !address_is_here(l->address, c->program, d))
			return false;
		bool ok = connect_to(&c->link, l->address, &j, seconds, c->program, d);
		c->hub_process = ok ? vouch_process(c->link.fd) : -1;
		return ok;
	}
	if (l->hub_fd >= 0) {
		link_open(&c->link, l->hub_fd);
		c->hub_process = vouch_parent();
	} else if (!start_hub(c, l, seconds, a, d))
		return false;
	int wait_ms = seconds && seconds < 1000000 ? (int)seconds * 1000 : 1000000000;
	if (handshake(&c->link, &j, wait_ms, why, sizeof(why)) == 1)
		return true;
	diag_error(d, c->program, "the process that serves the ranks does not answer: %s", why);
	return false;
}

/* Replaces what the launcher says about hosts by where the ranks really are. */
static void find_hosts(const Control *c, World *w, Arena *a)
{
	w->host_of = NEW_N(a, int, w->size);
	w->n_hosts = w->local_size = w->local_rank = 0;
	for (int i = 0; i < w->size; i++) {
		int first = 0;
		while (c->peers[first].host != c->peers[i].host)
			first++;
		w->host_of[i] = first < i ? w->host_of[first] : w->n_hosts++;
	}
	w->host = w->host_of[w->rank];
	for (int i = 0; i < w->size; i++) {
		w->local_rank += i < w->rank && w->host_of[i] == w->host;
		w->local_size += w->host_of[i] == w->host;
	}
}

static void stop_threads(Control *c)
{
	if (c->threaded)
		pthread_join(c->thread, NULL);
	link_close(&c->link);
	if (c->hub_process >= 0)
		close(c->hub_process);
	if (c->hub) {
		pthread_join(c->hub_thread, NULL);
		hub_free(c->hub);
	}
	buf_free(&c->answer);
	c->hub = NULL;
	c->hub_process = -1;
	c->threaded = false;
}

static bool wait_welcome(Control *c, Diag *d)
{
	pthread_mutex_lock(&c->lock);
	while (!c->welcomed && !c->ended && !c->failed)
		pthread_cond_wait(&c->changed, &c->lock);
	bool ok = c->welcomed && !c->ended;
	if (!c->ended && !ok)
		diag_error(d, c->program, "%s %s before all ranks had joined",
			c->parent_hub ? "the parent process of the ranks" : "rank 0", c->failed);
	pthread_mutex_unlock(&c->lock);
	d->errors += !ok && c->ended; /* the hub has printed it */
	return ok;
}

Control *control_join(Launch *l, const RtOptions *o, Arena *a, Diag *d)
{
	Control *c = NEW(a, Control);
	int64_t seconds = control_timeout(o);
	c->rank = l->world.rank;
	c->size = l->world.size;
	c->parent_hub = l->hub_fd >= 0;
	c->program = o->program;
	c->timeout = seconds * TICKS_PER_SECOND;
	c->d = (Diag){.out = l->messages ? l->messages : d->out, .prefix = d->prefix};
	c->link.fd = c->hub_process = -1;
	if (l->role == LAUNCH_ALONE)
		return c;
	c->peers = NEW_N(a, Peer, c->size);
	c->rows = NEW_N(a, TableRow, c->size);
	c->table = NEW_N(a, TableRow, c->size);
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->changed, NULL);
	if (!reach_hub(c, l, seconds, a, d)) {
		link_close(&c->link);
		return NULL;
	}
	c->threaded = start_thread(&c->thread, watch_hub, c);
	if (!c->threaded)
		diag_error(d, c->program, "rank %d cannot start a thread", c->rank);
	if (!c->threaded || !wait_welcome(c, d)) {
		control_leave(c, EXIT_RUN);
		return NULL;
	}
	find_hosts(c, &l->world, a);
	return c;
}

/* ---- blobs, texts, counters ---- */

RankProgress *control_progress(Control *c) { return &c->progress; }
int control_stop_signal(Control *c) { return c->stop; }

static void put_names(Buf *b, CollectiveName *name, const void *context)
{
	const char *text;
	for (int program = 0; program < PROGRAMS; program++) {
		for (int seq = 1; (text = name(context, program, seq)); seq++)
			buf_put(b, text, strlen(text) + 1);
		buf_put(b, "", 1);
	}
}

void control_set_names(Control *c, CollectiveName *name, const void *context)
{
	Buf b = {0};
	if (!c->threaded)
		return;
	pthread_mutex_lock(&c->lock);
	c->names = (Names){name, context};
	if (c->rank == 0) {
		put_names(&b, name, context);
		link_send(&c->link, MSG_NAMES, b.at, b.n);
	}
	pthread_mutex_unlock(&c->lock);
	buf_free(&b);
}

void control_set_device(Control *c, const DeviceWatch *w)
{
	if (!c->threaded)
		return;
	pthread_mutex_lock(&c->lock);
	c->device = *w;
	pthread_mutex_unlock(&c->lock);
}

/* Sends a message and waits for the answer, which has `want` bytes or none.  False: the answer is empty, or none will
 * come. */
static bool ask(Control *c, MessageKind kind, const void *p, size_t bytes, MessageKind reply, size_t want)
{
	c->reply = 0;
	c->asked = (int)reply;
	c->want = want;
	link_send(&c->link, kind, p, bytes);
	while (c->reply != (int)reply && !c->ended && !c->failed)
		pthread_cond_wait(&c->changed, &c->lock);
	return c->reply == (int)reply && c->answer.n == want;
}

bool control_all_gather(Control *c, const void *mine, int64_t bytes, void *all)
{
	size_t want = (size_t)bytes * (size_t)c->size;
	if (!c->threaded) {
		memcpy(all, mine, (size_t)bytes);
		return true;
	}
	pthread_mutex_lock(&c->lock);
	bool ok = ask(c, MSG_GATHER, mine, (size_t)bytes, MSG_GATHERED, want);
	if (ok)
		memcpy(all, c->answer.at, want);
	pthread_mutex_unlock(&c->lock);
	return ok;
}

bool control_compare(Control *c, const char *text, Diag *d)
{
	if (!c->threaded)
		return true;
	size_t n = strlen(text);
	_Static_assert(COMPARE_BYTES == 3 * sizeof(uint64_t), "as the hub expects");
	uint64_t key[3] = {n, hash_bytes(text, n, 1), hash_bytes(text, n, 2)};
	pthread_mutex_lock(&c->lock);
	c->text = text;
	bool ok = ask(c, MSG_COMPARE, key, sizeof(key), MSG_COMPARED, 1) && c->answer.at[0];
	c->text = NULL;
	pthread_mutex_unlock(&c->lock);
	d->errors += !ok; /* the hub has printed it */
	return ok;
}

void control_leave(Control *c, int status)
{
	int32_t number = status;
	if (!c->threaded && c->link.fd < 0)
		return;
	pthread_mutex_lock(&c->lock);
	c->leaving = true;
	link_send(&c->link, MSG_LEAVE, &number, sizeof(number));
	pthread_mutex_unlock(&c->lock);
	stop_threads(c);
}
