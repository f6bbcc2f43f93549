/* runtime/plane/launch.c: how this process came to be: alone, the parent of --ranks, or a rank that a launcher or the
 * parent started.
 *
 * Refuses whatever is ambiguous about which rank of how many this is: two launchers at once, or half of a launcher's
 * variables; and a communicator that cannot reach all ranks.
 *
 * LAUNCHERS of base/communicators.h has a row per launcher; a launcher with only one rank counts as none. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/near.h"
#include "runtime/plane/plane.h"

typedef struct Launcher {
	const char *name;
	Communicator comm;
	bool asked;
	const char *rank, *size, *local_rank, *local_size, *hosts;
} Launcher;
static const Launcher launchers[] = {
#define LAUNCHER(name, id, asked, ...) {name, COMM_##id, asked, __VA_ARGS__},
	LAUNCHERS(LAUNCHER)
};

typedef struct Found {
	const Launcher *by;
	int rank, size, local_rank, local_size;
	bool one_host;           /* the launcher says that all ranks are on one host */
} Found;

/* Reads the variable's number, in [low, high]; fallback where it is not set.  False after a message. */
static bool read_number(
	const char *name, int low, int high, int fallback, int *out, const char *where, Diag *d)
{
	const char *text = name ? getenv(name) : NULL;
	char *end;
	*out = fallback;
	if (!text || !*text)
		return true;
	errno = 0;
	long n = strtol(text, &end, 10);
	if (errno || *end || n < low || n > high) {
		diag_error(d, where, "the variable %s=%s should be a number from %d to %d", name, text, low, high);
		return false;
	}
	*out = (int)n;
	return true;
}

static bool is_set(const char *name)
{
	const char *text = name ? getenv(name) : NULL;
	return text && *text;
}

/* Reads the variables of one launcher; out->by stays NULL where they are not set.  False after a message. */
static bool read_launcher(const Launcher *l, Found *out, const char *where, Diag *d)
{
	enum { MOST = 1 << 20 };
	if (!is_set(l->rank) && !is_set(l->size))
		return true;
	if (!is_set(l->rank) || !is_set(l->size)) {
		bool rank = is_set(l->rank);
		diag_error(d, where, "the variable %s is set and %s is not: a launcher sets both; unset it where "
			"none started this rank", rank ? l->rank : l->size, rank ? l->size : l->rank);
		return false;
	}
	if (!read_number(l->size, 1, MOST, 1, &out->size, where, d) ||
		!read_number(l->rank, 0, out->size - 1, 0, &out->rank, where, d) ||
		!read_number(l->local_size, 1, out->size, out->size, &out->local_size, where, d) ||
		!read_number(l->local_rank, 0, out->local_size - 1, out->rank % out->local_size,
			&out->local_rank, where, d))
		return false;
	int hosts;
	if (!read_number(l->hosts, 1, MOST, 0, &hosts, where, d))
		return false;
	out->one_host = hosts == 1 || (is_set(l->local_size) && out->local_size == out->size);
	out->by = l;
	return true;
}

/* Whether programs of this target can use NCCL. */
static bool has_nccl(const char *const *comms)
{
	for (int i = 0; comms[i]; i++)
		if (comm_named(comms[i]) == COMM_NCCL)
			return true;
	return false;
}

/* --comm=shm ignores the variables of a launcher that has a communicator of its own, such as mpirun, so that another
 * launcher's may number the ranks; if there are none, it is an error. */
static bool check_shm(const Found *found, Communicator comm, const char *where, Diag *d)
{
	for (int i = 0; i < COUNT_OF(launchers) && comm == COMM_SHM && found->size < 2; i++) {
		Found f = {0};
		if (!launchers[i].comm || launchers[i].asked)
			continue;
		if (!read_launcher(&launchers[i], &f, where, d))
			return false;
		if (f.size < 2)
			continue;
		diag_error(d, where, "--comm=shm: this is rank %d of %d by %s and %s, and ranks that %s starts find each "
			"other by --comm=%s: leave out --comm (ranks of one host share memory all the same), or start the ranks "
			"with --ranks %d instead of %s", f.rank, f.size, f.by->rank, f.by->size, f.by->name,
			comm_info[f.by->comm].text, f.size, f.by->name);
		return false;
	}
	return true;
}

/* Warns of tasks that --comm has to ask for to be ranks: without it each of them is a run. Variables of a task alone,
 * or of which one is missing, are those of a batch job. */
static void warn_unasked(const char *const *comms, const char *where, Diag *d)
{
	Communicator c = comm_fitting(2, 2, has_nccl(comms));
	for (int i = 0; i < COUNT_OF(launchers); i++) {
		const Launcher *l = &launchers[i];
		const char *rank = getenv(l->rank), *size = getenv(l->size);
		if (l->asked && rank && *rank && size && strtol(size, NULL, 10) > 1)
			diag_warn(d, where, "this is task %s of %s by %s and %s, and every one of them is a run by itself: "
				"--comm=%s makes them ranks of one; --comm=self, or --comm=shm beside --ranks, leaves them as they are",
				rank, size, l->rank, l->size, comm_info[c].text);
	}
}

static void refuse_two(const Found *a, const Found *b, const char *where, Diag *d)
{
	const char *text = comm_info[MAX(a->by->comm, b->by->comm)].text;
	bool alike = a->by->comm == b->by->comm; /* --comm cannot tell them apart */
	diag_error(d, where, "this is rank %d of %d by %s and %s, but rank %d of %d by %s and %s; unset one pair%s%s%s",
		a->rank, a->size, a->by->rank, a->by->size, b->rank, b->size, b->by->rank, b->by->size,
		alike ? "" : ", or choose with --comm=", alike ? "" : text, alike ? "" : " or --comm=shm");
}

/* Finds the launcher whose variables count: those that count only if --comm asks for them say which task of a job
 * started another launcher, if there is one.  False after a message. */
static bool find_launcher(
	Found *out, Communicator comm, const char *const *comms, const char *where, Diag *d)
{
	*out = (Found){.size = 1, .local_size = 1};
	for (int i = 0; i < COUNT_OF(launchers); i++) {
		Found f = {0};
		const Launcher *l = &launchers[i];
		if ((l->asked && (!comm || comm_info[comm].reach < REACH_HOSTS || out->size > 1)) ||
			(l->comm && comm == COMM_SHM))
			continue;
		if (out->by && comm_info[comm].starter && l->comm != comm)
			continue;
		if (!read_launcher(l, &f, where, d))
			return false;
		if (!f.by || (f.size == 1 && out->by))
			continue;
		bool counts = out->by && out->size > 1 && !out->by->asked;
		if (counts && (f.size != out->size || f.rank != out->rank)) {
			refuse_two(out, &f, where, d);
			return false;
		}
		if (!counts)
			*out = f;
	}
	if (!comm && !out->by)
		warn_unasked(comms, where, d);
	return check_shm(out, comm, where, d);
}

static void set_world(Launch *l, const Found *f, Arena *a)
{
	l->world = (World){.rank = f->rank, .size = f->size, .local_rank = f->local_rank,
		.local_size = f->local_size,
		.host = f->rank / f->local_size, .n_hosts = (int)ceil_div(f->size, f->local_size),
		.host_of = NEW_N(a, int, f->size)};
	for (int i = 0; i < f->size; i++)
		l->world.host_of[i] = i / f->local_size;
}

/* This process is a child of launch_ranks. */
static bool find_parent(Launch *l, const char *where, Arena *a, Diag *d)
{
	Found f = {0};
	struct stat s;
	if (!read_number("SHARDRT_WORLD", 2, 1 << 20, 2, &f.size, where, d) ||
		!read_number("SHARDRT_RANK", 0, f.size - 1, 0, &f.rank, where, d) ||
		!read_number("SHARDRT_HUB_FD", 3, 1 << 20, -1, &l->hub_fd, where, d))
		return false;
	if (l->hub_fd < 0 || fstat(l->hub_fd, &s) || !S_ISSOCK(s.st_mode)) {
		diag_error(d, where, "the variable SHARDRT_RANK is set, but no parent process started this one; "
			"unset it");
		return false;
	}
	fcntl(l->hub_fd, F_SETFD, FD_CLOEXEC);
	unsetenv("SHARDRT_RANK");
	unsetenv("SHARDRT_WORLD");
	unsetenv("SHARDRT_HUB_FD");
	f.local_rank = f.rank;
	f.local_size = f.size;
	l->role = LAUNCH_RANK;
	set_world(l, &f, a);
	return true;
}

/* The first host of a list: of "gpu[03-07,9]-ib,..." it is "gpu03-ib". */
static const char *first_host(const char *list, Arena *a)
{
	size_t head = strcspn(list, "[,");
	if (list[head] != '[')
		return arena_strndup(a, list, head);
	const char *number = list + head + 1, *end = strchr(number, ']');
	const char *tail = end ? end + 1 : "";
	return arena_printf(a, "%.*s%.*s%.*s", (int)head, list, (int)strcspn(number, "-,]"), number,
		(int)strcspn(tail, ","), tail);
}

/* For ranks of srun without MASTER_ADDR: rank 0 is on the step's first host, at a port derived from the numbers of job
 * and step. */
static bool find_slurm(Launch *l, const char *where, Arena *a, Diag *d)
{
	enum { FIRST_PORT = 15000, PORTS = 15000, MANY = 2147483647 };
	const char *hosts = getenv(is_set("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST");
	int job, step;
	if (!hosts || !*hosts) {
		diag_error(d, where, "neither SLURM_STEP_NODELIST nor MASTER_ADDR is set: ranks that srun starts find each "
			"other on the first host of the one, or at MASTER_ADDR and MASTER_PORT");
		return false;
	}
	if (!read_number("SLURM_JOB_ID", 0, MANY, 0, &job, where, d) ||
		!read_number("SLURM_STEP_ID", 0, MANY, 0, &step, where, d))
		return false;
	int port = FIRST_PORT + (int)(((int64_t)job * 7 + step) % PORTS);
	l->address = arena_printf(a, "%s:%d", first_host(hosts, a), port);
	return true;
}

/* torchrun's agent may itself listen at MASTER_PORT, and then says so; in this case the hub uses the next port. */
static bool find_address(Launch *l, const char *where, Arena *a, Diag *d)
{
	const char *host = getenv("MASTER_ADDR"), *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
	int port;
	if (!is_set("MASTER_ADDR") || !is_set("MASTER_PORT")) {
		diag_error(d, where, "the variable %s is not set: ranks started by RANK and WORLD_SIZE find each "
			"other at MASTER_ADDR, rank 0's machine, and MASTER_PORT, a free port there",
			is_set("MASTER_ADDR") ? "MASTER_PORT" : "MASTER_ADDR");
		return false;
	}
	if (!read_number("MASTER_PORT", 1, 65534, 0, &port, where, d))
		return false;
	port += agent && !strcmp(agent, "True");
	l->address = arena_printf(a, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
	return true;
}

static bool find_rank(Launch *l, const Found *f, const RtOptions *o, Arena *a, Diag *d)
{
	Communicator comm = comm_named(o->comm);
	bool nccl = comm == COMM_NCCL, master = is_set("MASTER_ADDR") && is_set("MASTER_PORT");
	set_world(l, f, a);
	l->role = LAUNCH_RANK;
	l->carrier = nccl && (master || f->by->asked) ? COMM_UNSAID : f->by->comm;
	if (comm == COMM_SELF) {
		diag_error(d, o->program, "--comm=%s is for one rank, and this is one of %d by %s and %s",
			o->comm, f->size,
			f->by->rank, f->by->size);
		return false;
	}
	if (comm_info[comm].starter && l->carrier != comm) {
		diag_error(d, o->program, "--comm=%s needs a start by %s; this is one of %d ranks by %s and %s", o->comm,
			comm_info[comm].starter, f->size, f->by->rank, f->by->size);
		return false;
	}
	if (!l->carrier && !l->nccl && f->local_size < f->size) {
		diag_error(d, o->program, "the ranks are on several hosts (WORLD_SIZE=%d, LOCAL_WORLD_SIZE=%d), "
			"which shared memory does not reach: start them with %s, with --comm=%s", f->size, f->local_size,
			comm_of_hosts()->starter, comm_of_hosts()->text);
		return false;
	}
	if (!secret_find(&l->secret, o->program, d))
		return false;
	l->one_host = !l->carrier && (!l->nccl || f->one_host);
	if (l->carrier)
		return true;
	return f->by->asked && !master ? find_slurm(l, o->program, a, d) : find_address(l, o->program, a, d);
}

static bool check_values(const RtOptions *o, const char *const *comms, Diag *d)
{
	bool ok = true, is_known = !o->comm;
	Buf known = {0};
	for (int i = 0; comms[i]; i++) {
		is_known = is_known || !strcmp(o->comm, comms[i]);
		buf_printf(&known, i ? ", %s" : "%s", comms[i]);
	}
	if (!is_known) {
		diag_error(d, o->program, "--comm=%s is not one of %s%s", o->comm, known.at, comm_named(o->comm) == COMM_NCCL ?
			": nccl wants a program compiled with --target=cuda" :
			near_choice(o->arena, "comm", o->comm, option_info[OPT_comm].argument));
		ok = false;
	}
	buf_free(&known);
	if (o->text[OPT_ranks] && (o->ranks < 1 || o->ranks > 4096)) {
		diag_error(d, o->program, "--ranks=%lld should be from 1 to 4096", (long long)o->ranks);
		ok = false;
	}
	return ok;
}

bool launch_find(Launch *l, const RtOptions *o, const char *const *comms, Arena *a, Diag *d)
{
	*l = (Launch){.hub_fd = -1, .listen_fd = -1, .local_fd = -1};
	Found f = {.size = 1, .local_size = 1};
	Communicator comm = comm_named(o->comm);
	if (!check_values(o, comms, d))
		return false;
	set_world(l, &f, a);
	if (is_set("SHARDRT_RANK")) {
		if (!find_parent(l, o->program, a, d))
			return false;
	} else if (!find_launcher(&f, comm, comms, o->program, d)) {
		return false;
	} else if (f.size > 1) {
		if (o->text[OPT_ranks]) {
			diag_error(d, o->program, "--ranks=%lld starts ranks, but this is rank %d of %d already by "
				"%s=%d and %s=%d; leave out --ranks, or unset these variables", (long long)o->ranks,
				f.rank, f.size,
				f.by->rank, f.rank,
				f.by->size, f.size);
			return false;
		}
		l->nccl = has_nccl(comms) && (!comm || comm == COMM_NCCL);
		if (!find_rank(l, &f, o, a, d))
			return false;
	} else if (o->text[OPT_ranks] && o->ranks > 1) {
		if (comm && comm != COMM_SHM && comm != COMM_NCCL) {
			diag_error(d, o->program, "--comm=%s and --ranks=%lld: ranks that --ranks starts talk by "
				"shm%s%s", o->comm, (long long)o->ranks, has_nccl(comms) ? " or nccl" : "",
				comm_info[comm].starter ? arena_printf(a, "; for %s start them with %s", o->comm,
				comm_info[comm].starter) : "");
			return false;
		}
		l->role = LAUNCH_PARENT;
		l->world.size = l->world.local_size = (int)o->ranks;
	} else
		l->carrier = comm_info[comm].starter && f.by ? f.by->comm : COMM_UNSAID;
	if (l->world.rank > 0)
		d->prefix = arena_printf(a, "[rank %d/%d] ", l->world.rank, l->world.size);
	return true;
}
