/* runtime/comm/mpi/object.c: the communicator of several hosts: pieces of peers' memory travel over MPI into staging
 * memory.
 *
 * Peers on this host are read in place, through the communicator of the host.  For takers on other hosts, a giver posts
 * the sends of everything that they take when the exchange begins; a taker has two pieces of each giver under way at
 * any time, and posts the next ones when it has moved past a piece.  The caller processes the bytes in rank order, so
 * results have the same bits as with shared memory.
 *
 * Sends are synchronous: a send that has ended was matched by its receive, so after the end of an exchange no data
 * needs further MPI calls of this rank to arrive.  MPI makes progress only inside its calls, so every wait polls MPI,
 * even waits for peers on this host.  Threads call MPI one at a time, under a lock, and no call blocks, so a library
 * that provides MPI_THREAD_SERIALIZED is enough.
 *
 * Pieces between one pair of ranks arrive in the order in which they were sent, so they carry no numbers: giver and
 * taker compute the same pieces from the exchange alone.
 *
 * Errors of MPI itself end the run: the library's default handler calls MPI_Abort. */
#include <mpi.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/comm/mpi/object.h"

enum { DEPTH = 2, PIECE_MOST = 1 << 20, PIECE_ALIGN = 64, SLEEP_NS = 50000, TAG = 1 };

/* The exchange that is under way on one channel. */
typedef struct Channel {
	MPI_Comm comm;
	char *staging;
	int64_t bytes;          /* of staging */
	MPI_Request *send;
	int n_send, cap_send;
	/* what I take from other hosts */
	int64_t piece, posted;  /* piece: bytes of a piece; posted: how many pieces of each giver have been posted */
	int n;                  /* givers on other hosts */
	int *giver;             /* [n]: its index among the members */
	int64_t *begin, *end;   /* [n]: range in its source */
	MPI_Request *receive;   /* [n * DEPTH] */
	int *on_host;           /* [host]: members */
} Channel;

typedef struct Mpi {
	Comm comm;
	Comm *local;
	Channel channel[RT_STREAMS];
	int spins;
} Mpi;

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

static void *need(void *p)
{
	if (!p) {
		fprintf(stderr, "error: out of memory\n");
		MPI_Abort(MPI_COMM_WORLD, 3);
	}
	return p;
}

/* ---- waiting ---- */

static void rest(const Mpi *m, int polls)
{
	const struct timespec t = {.tv_nsec = SLEEP_NS};
	if (polls < m->spins)
		wait_pause();
	else
		nanosleep(&t, NULL);
}

/* Called while this rank waits for a peer on this host: MPI continues to send what other hosts take from this rank. */
static void idle(void *context, int polls)
{
	Mpi *m = context;
	int flag;
	pthread_mutex_lock(&one_at_a_time);
	MPI_Iprobe(MPI_ANY_SOURCE, TAG, m->channel[0].comm, &flag, MPI_STATUS_IGNORE);
	pthread_mutex_unlock(&one_at_a_time);
	rest(m, polls);
}

static void wait_all(const Mpi *m, MPI_Request *r, int n)
{
	int done = n == 0;
	for (int polls = 0; !done; polls++) {
		pthread_mutex_lock(&one_at_a_time);
		MPI_Testall(n, r, &done, MPI_STATUSES_IGNORE);
		pthread_mutex_unlock(&one_at_a_time);
		if (!done)
			rest(m, polls);
	}
}

/* ---- who takes what ---- */

static int host(const Mpi *m, const Exchange *x, int member)
{
	return m->comm.world->host_of[x->ranks[member]];
}

/* Bytes of the pieces in which a member takes; every member can compute it, and it is the same for all givers. */
static int64_t piece_of(const Mpi *m, const Exchange *x, int taker)
{
	const Channel *ch = &m->channel[x->channel];
	int64_t givers = x->n - ch->on_host[host(m, x, taker)];
	int64_t piece = ch->bytes / (DEPTH * MAX(givers, 1));
	return MIN(piece, PIECE_MOST) & ~(int64_t)(PIECE_ALIGN - 1);
}

static void count_hosts(const Mpi *m, const Exchange *x)
{
	const Channel *ch = &m->channel[x->channel];
	memset(ch->on_host, 0, sizeof(*ch->on_host) * (size_t)m->comm.world->n_hosts);
	for (int i = 0; i < x->n; i++)
		ch->on_host[host(m, x, i)]++;
}

static void send_range(Mpi *m, const Exchange *x, int taker)
{
	Channel *ch = &m->channel[x->channel];
	int64_t begin, bytes, piece = piece_of(m, x, taker);
	x->range(x->context, taker, x->me, &begin, &bytes);
	int64_t n = ceil_div(bytes, piece);
	if (ch->n_send + n > ch->cap_send) {
		ch->cap_send = 2 * (ch->n_send + (int)n);
		ch->send = need(realloc(ch->send, sizeof(*ch->send) * (size_t)ch->cap_send));
	}
	for (int64_t at = 0; at < bytes; at += piece)
		MPI_Issend((const char *)x->source + begin + at, (int)MIN(piece, bytes - at), MPI_BYTE, x->ranks[taker], TAG,
			ch->comm, &ch->send[ch->n_send++]);
}

/* Posts receives up to, but not including, the k-th piece of every giver. */
static void post_until(Mpi *m, const Exchange *x, int64_t k)
{
	Channel *ch = &m->channel[x->channel];
	for (; ch->posted < k; ch->posted++)
		for (int i = 0; i < ch->n; i++) {
			int64_t bytes = ch->end[i] - ch->begin[i], at = ch->posted * ch->piece;
			int64_t slot = i * DEPTH + ch->posted % DEPTH;
			if (at < bytes)
				MPI_Irecv(ch->staging + slot * ch->piece, (int)MIN(ch->piece, bytes - at), MPI_BYTE,
					x->ranks[ch->giver[i]], TAG, ch->comm, &ch->receive[slot]);
		}
}

/* ---- exchanges ---- */

static void mpi_begin(Comm *c, const Exchange *x)
{
	Mpi *m = (Mpi *)c;
	Channel *ch = &m->channel[x->channel];
	m->local->ops->begin(m->local, x);
	count_hosts(m, x);
	ch->n = ch->n_send = 0;
	ch->posted = 0;
	ch->piece = piece_of(m, x, x->me);
	pthread_mutex_lock(&one_at_a_time);
	for (int i = 0; i < x->n; i++) {
		int64_t begin, bytes;
		if (host(m, x, i) == host(m, x, x->me))
			continue;
		send_range(m, x, i);
		x->range(x->context, x->me, i, &begin, &bytes);
		if (bytes == 0)
			continue;
		ch->giver[ch->n] = i;
		ch->begin[ch->n] = begin;
		ch->end[ch->n++] = begin + bytes;
	}
	for (int i = 0; i < ch->n * DEPTH; i++)
		ch->receive[i] = MPI_REQUEST_NULL;
	post_until(m, x, DEPTH);
	pthread_mutex_unlock(&one_at_a_time);
}

static int64_t mpi_take(Comm *c, const Exchange *x, int64_t at, int64_t most, const char **from)
{
	Mpi *m = (Mpi *)c;
	Channel *ch = &m->channel[x->channel];
	if (ch->n == 0)
		return m->local->ops->take(m->local, x, at, most, from);
	int64_t k = at / ch->piece, inside = at % ch->piece;
	pthread_mutex_lock(&one_at_a_time);
	post_until(m, x, k + DEPTH);
	pthread_mutex_unlock(&one_at_a_time);
	int64_t n = m->local->ops->take(m->local, x, at, MIN(most, ch->piece - inside), from);
	for (int i = 0; i < ch->n && n > 0; i++) {
		int64_t slot = i * DEPTH + k % DEPTH;
		if (ch->end[i] - ch->begin[i] <= at)
			continue;
		wait_all(m, &ch->receive[slot], 1);
		from[ch->giver[i]] = ch->staging + slot * ch->piece + inside;
	}
	return n;
}

static void mpi_end(Comm *c, const Exchange *x)
{
	Mpi *m = (Mpi *)c;
	Channel *ch = &m->channel[x->channel];
	wait_all(m, ch->receive, ch->n * DEPTH);
	wait_all(m, ch->send, ch->n_send);
	m->local->ops->end(m->local, x);
}

/* ---- life ---- */

static void mpi_close(Comm *c)
{
	Mpi *m = (Mpi *)c;
	m->local->ops->close(m->local);
	for (int i = 0; i < RT_STREAMS; i++) {
		Channel *ch = &m->channel[i];
		free(ch->send);
		free(ch->giver);
		free(ch->begin);
		free(ch->end);
		free(ch->receive);
		free(ch->on_host);
	}
	free(m);
}

static const CommOps mpi_ops = {mpi_begin, mpi_take, mpi_end, mpi_close};

static void open_channel(Channel *ch, const World *w, char *staging, int64_t bytes)
{
	size_t n = (size_t)w->size;
	ch->staging = staging;
	ch->bytes = bytes;
	ch->giver = need(calloc(n, sizeof(*ch->giver)));
	ch->begin = need(calloc(n, sizeof(*ch->begin)));
	ch->end = need(calloc(n, sizeof(*ch->end)));
	ch->receive = need(calloc(n * DEPTH, sizeof(*ch->receive)));
	ch->on_host = need(calloc((size_t)w->n_hosts, sizeof(*ch->on_host)));
	MPI_Comm_dup(MPI_COMM_WORLD, &ch->comm);
}

static Comm *mpi_open(Comm *local, const World *w, char *staging, int64_t bytes, int spins)
{
	Mpi *m = need(calloc(1, sizeof(*m)));
	m->comm = (Comm){.ops = &mpi_ops, .world = w, .memory = local->memory, .file = local->file,
		.mailbox = local->mailbox};
	m->local = local;
	m->spins = spins;
	int64_t share = bytes / RT_STREAMS;
	for (int i = 0; i < RT_STREAMS; i++)
		open_channel(&m->channel[i], w, staging + i * share, share);
	local->idle = idle;
	local->idle_context = m;
	return &m->comm;
}

static bool start_mpi(MpiStart *out)
{
	int provided = MPI_THREAD_SINGLE, n = 0;
	char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
	if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
		return false;
	MPI_Comm_rank(MPI_COMM_WORLD, &out->rank);
	MPI_Comm_size(MPI_COMM_WORLD, &out->size);
	MPI_Get_library_version(version, &n);
	snprintf(out->version, sizeof(out->version), "%.*s", (int)strcspn(version, ",\n"), version);
	out->threads = provided >= MPI_THREAD_SERIALIZED;
	return true;
}

static void mpi_broadcast(void *p, int bytes)
{
	MPI_Bcast(p, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
}

static void stop_mpi(void)
{
	MPI_Finalize();
}

extern const MpiBackend shardrt_mpi;
const MpiBackend shardrt_mpi = {COMM_MPI_SHAPE, start_mpi, mpi_broadcast, mpi_open,
	stop_mpi};
