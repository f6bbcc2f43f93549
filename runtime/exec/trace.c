/* runtime/exec/trace.c: --trace: when the ops of some steps began, and when their collectives ran on their streams, as
 * a file for chrome://tracing and Perfetto.
 *
 * What computes leaves one chain of marks: an op, or what the host does between ops, lasts from its mark to the next.
 * So the slices of a step leave no time out.  Where the host runs ahead of a device, its marks are their own chain.
 * Of an evaluation the first batch is recorded op by op, and the others as one slice, so that all records of the steps
 * fit into memory that is mapped before the first of them. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/exec/private.h"

enum { COMPUTE = RT_STREAMS, NOTHING = -1, FILE_BUFFER = 1 << 16, STAMPS_MOST = 1 << 24 };
/* Rows of the file: computing, the streams of collectives, the host where it is apart, copies to its memory and
 * back. */
enum { ROW_COMPUTE = 0, ROW_STREAMS = 1, ROW_HOST = ROW_STREAMS + RT_STREAMS };

static int row_of(int beside)
{
	return ROW_STREAMS + beside + (beside >= RT_STREAMS);
}

/* An op begins (row >= 0: of the program's table), or the host does something (row NOTHING). */
typedef struct Mark {
	int64_t at;          /* a stamp; in the host's own chain nanoseconds */
	int64_t busy;        /* with turns: nanoseconds that the thread has had a core */
	int32_t step, row, seq;
	int8_t program, size, host; /* host: NOTHING: nothing is recorded until the next mark */
} Mark;
typedef struct Chain { Mark *at; int n, cap; } Chain;
typedef struct Transfer { int64_t begin, end, bytes; int mark; } Transfer;
typedef struct Transfers { Transfer *at; int n, cap; } Transfers;

struct Trace {
	void (*op)(Rt *rt);  /* what a mark calls, instead of recording; NULL: it records */
	int64_t first, last;
	Chain compute, host;
	Transfers beside[TRACE_BESIDE];
	int64_t step;
	Program program;
	const RtOp *(*rows)[PROGRAM_LAST + 1]; /* [size] */
	int next, n;         /* of the program that runs: the row of the next mark; rows */
	bool turns;          /* CPU: ranks take turns on cores: an op may take longer than it has a core */
	bool on;             /* steps are being recorded */
	bool has_eval;       /* the current step's evaluation has run its first batch */
	bool done, failed;
	const char *path, *model;
	const char **unit, **size; /* escaped for JSON */
	FILE *file;
};

static const char *const host_text[TRACE_HOSTS] = {[TRACE_LOOP] = "step loop", [TRACE_DATA] = "load data",
	[TRACE_EVAL] = "evaluation", [TRACE_SAVE] = "checkpoint", [TRACE_LOG] = "log"};
static const char *const program_text[] = {[PROGRAM_STEP] = "step", [PROGRAM_EVAL] = "eval",
	[PROGRAM_OUTSIDE] = "outside", [PROGRAM_FIRST] = "first", [PROGRAM_MIDDLE] = "middle", [PROGRAM_LAST] = "last"};
static const char *const section_text[] = {"forward", "backward", "update", "eval"};

static int64_t now_ns(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static RtOps ops_of(const RtModel *m, Program program)
{
	if (program >= PROGRAM_FIRST)
		return m->programs ? m->programs[program - PROGRAM_FIRST].ops : (RtOps){NULL, 0};
	return program == PROGRAM_STEP ? m->step_ops : m->eval_ops;
}

/* ---- recording ---- */

static void put_mark(Rt *rt, Chain *c, int64_t at, int row, int host)
{
	const Trace *t = rt->p->trace;
	if (c->n == c->cap)
		ice("a trace has room for %d marks only", c->cap);
	int64_t busy = t->turns ? now_ns(CLOCK_THREAD_CPUTIME_ID) : 0;
	c->at[c->n++] = (Mark){.at = at, .busy = busy, .step = (int32_t)t->step, .row = row, .program = (int8_t)t->program,
		.size = (int8_t)rt->p->size, .host = (int8_t)host};
}

void rt_op(Rt *rt)
{
	Trace *t = rt->trace;
	if (t->op) {
		t->op(rt);
		return;
	}
	if (t->next == t->n)
		ice("a program has more than its %d ops", t->n);
	put_mark(rt, &t->compute, trace_stamp(rt, COMPUTE), t->next++, NOTHING);
}

Trace *trace_marks(const Rt *rt, void (*op)(Rt *rt))
{
	Trace *t = NEW(rt->p->arena, Trace);
	t->op = op;
	return t;
}

void trace_host(Rt *rt, TraceHost what)
{
	Trace *t = rt->p->trace;
	if (!t || !t->on)
		return;
	if (trace_host_apart)
		put_mark(rt, &t->host, now_ns(CLOCK_MONOTONIC), NOTHING, (int)what);
	else
		put_mark(rt, &t->compute, trace_stamp(rt, COMPUTE), NOTHING, (int)what);
}

void trace_program(Rt *rt, Program program)
{
	Trace *t = rt->p->trace;
	bool eval = program == PROGRAM_EVAL;
	if (!t || !t->on)
		return;
	rt->trace = eval && t->has_eval ? NULL : t;
	t->has_eval |= eval;
	t->program = program;
	t->next = 0;
	t->n = ops_of(rt->model, program).n;
}

void trace_program_end(Rt *rt)
{
	Trace *t = rt->trace;
	rt->trace = NULL;
	if (!t)
		return;
	if (t->next != t->n)
		ice("a program of %d ops ended after %d", t->n, t->next);
	if (trace_host_apart)
		put_mark(rt, &t->compute, trace_stamp(rt, COMPUTE), NOTHING, NOTHING);
	trace_host(rt, t->program == PROGRAM_EVAL ? TRACE_EVAL : TRACE_LOOP);
}

int trace_seq(Rt *rt, int seq)
{
	Trace *t = rt->trace;
	if (!t || !t->compute.n)
		return NOTHING;
	t->compute.at[t->compute.n - 1].seq = seq;
	return t->compute.n - 1;
}

void trace_transfer(Rt *rt, int beside, int mark, int64_t begin, int64_t end, int64_t bytes)
{
	Transfers *s = &rt->p->trace->beside[beside];
	if (s->n == s->cap)
		ice("a trace has room for %d collectives or copies of a stream only", s->cap);
	s->at[s->n++] = (Transfer){begin, end, bytes, mark};
}

/* ---- the file ---- */

static void put_time(FILE *f, int64_t begin, int64_t end)
{
	int64_t dur = MAX(end - begin, 0);
	fprintf(f, "\"ts\":%" PRId64 ".%03d,\"dur\":%" PRId64 ".%03d,", begin / 1000, (int)(begin % 1000), dur / 1000,
		(int)(dur % 1000));
}

static void put_names(const Rt *rt, FILE *f, int thread, const char *name)
{
	fprintf(f, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
		rt->p->world.rank, thread, name);
}

static void put_head(const Rt *rt, FILE *f)
{
	static const char *const streams[] = {
#define STREAM(id, text, carries) text,
#include "base/collectives.def"
	};
	const Trace *t = rt->p->trace;
	int rank = rt->p->world.rank;
	fprintf(f, "{\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"kind\":\"measured\",\"model\":\"%s\",\"program\":\"%016"
		PRIx64 "\",\"world\":%d,\"rank\":%d,\"threads\":%d,\"machine\":\"\",\"steps\":%" PRId64 "},\n"
		"\"traceEvents\":[\n"
		"{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d, measured\"}}", t->model,
		rt->model->hash, MAX(rt->p->world.size, 1), rank, device_threads(), MIN(t->step, t->last) - t->first + 1, rank,
		rank);
	put_names(rt, f, ROW_COMPUTE, "compute");
	for (int i = 0; i < RT_STREAMS; i++)
		put_names(rt, f, row_of(i), streams[i]);
	if (trace_host_apart)
		put_names(rt, f, ROW_HOST, "host");
	if (rt->model->n_copies) {
		put_names(rt, f, row_of(TRACE_OUT), "copies out");
		put_names(rt, f, row_of(TRACE_IN), "copies in");
	}
}

static void begin_slice(const Rt *rt, FILE *f, const char *before, const char *name, const char *cat, int n_cat)
{
	fprintf(f, ",\n{\"ph\":\"X\",\"name\":\"%s%s\",\"cat\":\"%.*s\",\"pid\":%d,", before, name, n_cat, cat,
		rt->p->world.rank);
}

/* The members of args that tell an op; they and the slice are left open. */
static void put_op(const Trace *t, FILE *f, const Mark *m, const RtOp *op)
{
	const char *unit = op->unit < 0 ? "" : t->unit[op->unit];
	fprintf(f, "\"args\":{\"op\":%d,\"section\":\"%s\",\"program\":\"%s\",\"unit\":\"%s\",\"node\":\"%s\",\"step\":%d",
		op->number, section_text[op->section], program_text[m->program], unit, op->node, m->step);
	if (t->size)
		fprintf(f, ",\"size\":\"%s\"", t->size[m->size]);
	if (m->seq)
		fprintf(f, ",\"seq\":%d", m->seq);
}

static int word(const char *name)
{
	return (int)strcspn(name, " ");
}

/* m[1] is the next mark. */
static void put_slice(const Rt *rt, FILE *f, const Mark *m, int thread, int64_t begin, int64_t end)
{
	static const char *const before[] = {[RT_COMPUTES] = "", [RT_ISSUES] = "issue ", [RT_WAITS] = "wait "};
	const Trace *t = rt->p->trace;
	if (m->row == NOTHING) {
		begin_slice(rt, f, "", host_text[m->host], "host", 4);
		fprintf(f, "\"tid\":%d,", thread);
		put_time(f, begin, end);
		fprintf(f, "\"args\":{\"step\":%d}}", m->step);
		return;
	}
	const RtOp *op = &t->rows[m->size][m->program][m->row];
	const char *cat = op->kind == RT_COMPUTES ? op->name : before[op->kind];
	begin_slice(rt, f, before[op->kind], op->name, cat, word(cat));
	fprintf(f, "\"tid\":%d,", thread);
	put_time(f, begin, end);
	if (t->turns)
		fprintf(f, "\"tdur\":%" PRId64 ".%03d,", (m[1].busy - m->busy) / 1000, (int)((m[1].busy - m->busy) % 1000));
	put_op(t, f, m, op);
	fputs("}}", f);
}

static void put_chain(const Rt *rt, FILE *f, const Chain *c, int thread)
{
	bool stamps = thread == ROW_COMPUTE;
	for (int i = 0; i + 1 < c->n; i++) {
		const Mark *m = &c->at[i];
		if (m->row == NOTHING && m->host == NOTHING)
			continue;
		put_slice(rt, f, m, thread, stamps ? trace_ns(rt, m->at) : m->at,
			stamps ? trace_ns(rt, m[1].at) : m[1].at);
	}
}

/* Where the host has a part in collectives, the next one may have been taken up before that: slices are cut so that
 * they follow each other. */
static void put_transfers(const Rt *rt, FILE *f, int beside)
{
	const Trace *t = rt->p->trace;
	int64_t free = 0;
	for (int i = 0; i < t->beside[beside].n; i++) {
		const Transfer *x = &t->beside[beside].at[i];
		const Mark *m = &t->compute.at[x->mark];
		const RtOp *op = &t->rows[m->size][m->program][m->row];
		begin_slice(rt, f, "", op->name, op->name, word(op->name));
		fprintf(f, "\"tid\":%d,", row_of(beside));
		put_time(f, MAX(trace_ns(rt, x->begin), free), trace_ns(rt, x->end));
		free = trace_ns(rt, x->end);
		put_op(t, f, m, op);
		fprintf(f, ",\"bytes\":%" PRId64 "}}", x->bytes);
	}
}

/* Ends the recording and writes what there is.  An older trace stays until then. */
static void write_trace(Rt *rt)
{
	Trace *t = rt->p->trace;
	FILE *f = t->file;
	if (t->on) {
		trace_host(rt, TRACE_LOOP);
		trace_stamps_end(rt);
	}
	t->on = false;
	t->done = true;
	struct stat st;
	bool older = !fstat(fileno(f), &st) && S_ISREG(st.st_mode) && st.st_size && ftruncate(fileno(f), 0);
	put_head(rt, f);
	put_chain(rt, f, &t->compute, ROW_COMPUTE);
	put_chain(rt, f, &t->host, ROW_HOST);
	for (int i = 0; i < TRACE_BESIDE; i++)
		put_transfers(rt, f, i);
	fputs("\n]}\n", f);
	t->failed = fflush(f) || ferror(f) || older;
	trace_stamps_close(rt);
}

void trace_step(Rt *rt, int64_t step)
{
	Trace *t = rt->p->trace;
	if (!t || t->done)
		return;
	if (step > t->last) {
		write_trace(rt);
		return;
	}
	t->step = step;
	t->has_eval = false;
	if (step == t->first) {
		t->on = true;
		trace_stamps_begin(rt);
	}
	trace_host(rt, TRACE_LOOP);
}

bool trace_close(Rt *rt, Diag *d)
{
	Trace *t = rt->p->trace;
	if (!t)
		return true;
	bool began = t->done || t->on;
	if (!t->done && t->on)
		write_trace(rt);
	else if (!began)
		trace_stamps_close(rt);
	if (!began && !rt->p->world.rank)
		diag_warn(d, t->path, "no step is traced: the run has ended before step %" PRId64 ", the first one to trace",
			t->first);
	rt->p->trace = NULL;
	bool ok = !fclose(t->file) && !t->failed;
	if (!ok)
		diag_unwritten(d, t->path);
	return ok;
}

/* ---- before the first step ---- */

/* Every rank writes a file of its own: t.json, t.rank1.json, .. */
const char *trace_path(const Rt *rt, int rank, Arena *a)
{
	const char *path = rt->p->options->trace, *end = strrchr(path, '.');
	int stem = (int)(end && !strchr(end, '/') ? end - path : (long)strlen(path));
	if (!rank)
		return path;
	return arena_printf(a, "%.*s.rank%d%s", stem, path, rank, path + stem);
}

bool trace_may_replace(const char *path, const char *begin)
{
	char head[40];
	size_t n = strlen(begin);
	struct stat st;
	if (stat(path, &st) || !S_ISREG(st.st_mode) || !st.st_size)
		return true;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool same = fd >= 0 && n <= sizeof(head) && pread(fd, head, n, 0) == (ssize_t)n && !memcmp(head, begin, n);
	if (fd >= 0)
		close(fd);
	return same;
}

static bool open_file(Trace *t, Arena *a, Diag *d)
{
	if (!trace_may_replace(t->path, "{\"displayTimeUnit\"")) {
		diag_error(d, t->path, "is there and is no trace: it is not replaced; give --trace another path, or remove it");
		return false;
	}
	int fd = open(t->path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
	t->file = fd >= 0 ? fdopen(fd, "w") : NULL;
	if (!t->file) {
		diag_error(d, t->path, "%s", errno == ENXIO ? "this is a pipe that nobody reads, or a socket: start its reader "
			"first, or name a file" : strerror(errno));
		return false;
	}
	fcntl(fd, F_SETFL, 0); /* opening does not wait, writing does */
	struct stat st;
	if (!fstat(fd, &st) && S_ISFIFO(st.st_mode))
		signal(SIGPIPE, SIG_IGN); /* a reader that ends early does not end the training */
	setvbuf(t->file, NEW_N(a, char, FILE_BUFFER), _IOFBF, FILE_BUFFER);
	return true;
}

static void escape_names(const Rt *rt, Trace *t, Arena *a)
{
	const RtModel *m = rt->model;
	t->model = str_escape(a, ESCAPE_JSON, m->name);
	t->unit = NEW_N(a, const char *, m->layout.n_units + 1);
	for (int i = 0; i < m->layout.n_units; i++)
		t->unit[i] = str_escape(a, ESCAPE_JSON, m->unit_names[i]);
	t->size = m->n_sizes ? NEW_N(a, const char *, m->n_sizes) : NULL;
	for (int i = 0; i < m->n_sizes; i++)
		t->size[i] = str_escape(a, ESCAPE_JSON, m->sizes[i].name);
}

/* The most that a step with an evaluation records. */
typedef struct Room { int64_t marks, hosts, transfers; } Room;
static Room room_of(Rt *rt, Trace *t)
{
	enum { BETWEEN = 16, OF_BATCH = 4 }; /* what the host does between steps; around a micro-batch */
	int64_t accum = rt->p->accum, marks = 0, transfers = 0;
	int now = rt->p->size;
	for (int size = 0; size < MAX(rt->model->n_sizes, 1); size++) {
		int64_t most = 0, rows = 0;
		program_size(rt, size);
		for (int p = 0; p <= PROGRAM_LAST; p++) {
			int n;
			RtOps ops = p == PROGRAM_OUTSIDE ? (RtOps){NULL, 0} : ops_of(rt->model, (Program)p);
			t->rows[size][p] = ops.rows;
			program_rows(rt->model, (Program)p, &n);
			most = p == PROGRAM_EVAL ? most : MAX(most, ops.n);
			rows = p == PROGRAM_EVAL ? rows : MAX(rows, n);
		}
		marks = MAX(marks, accum * (most + OF_BATCH) + rt->model->eval_ops.n + OF_BATCH);
		transfers = MAX(transfers, accum * MAX(rows, rt->model->n_copies) + rt->model->n_evaluation);
	}
	program_size(rt, now);
	return (Room){marks + BETWEEN, OF_BATCH * (accum + 1) + BETWEEN, transfers};
}

bool trace_open(Rt *rt, int64_t first, int64_t last, bool turns, Diag *d)
{
	Arena *a = rt->p->arena;
	int64_t steps = last - first + 1;
	Trace *t = NEW(a, Trace);
	*t = (Trace){.first = first, .last = last, .turns = turns && !trace_host_apart, .step = first - 1,
		.path = trace_path(rt, rt->p->world.rank, a)};
	t->rows = arena_alloc(a, (size_t)MAX(rt->model->n_sizes, 1) * sizeof(*t->rows));
	Room room = room_of(rt, t);
	int beside = rt->model->n_copies ? TRACE_BESIDE : RT_STREAMS;
	int64_t marks = steps * room.marks, stamps = marks + 2 * beside * steps * room.transfers;
	if (stamps > STAMPS_MOST) {
		diag_error(d, rt->p->options->program, "--trace-steps: %" PRId64 " steps are more than a trace of this program "
			"holds, %" PRId64, steps, STAMPS_MOST / (stamps / steps));
		return false;
	}
	t->compute = (Chain){NEW_N(a, Mark, marks), 0, (int)marks};
	t->host = trace_host_apart ? (Chain){NEW_N(a, Mark, steps * room.hosts), 0, (int)(steps * room.hosts)} : t->host;
	for (int i = 0; i < beside; i++)
		t->beside[i] = (Transfers){NEW_N(a, Transfer, steps * room.transfers), 0, (int)(steps * room.transfers)};
	escape_names(rt, t, a);
	if (!open_file(t, a, d) || !trace_stamps_open(rt, stamps, d))
		return false;
	rt->p->trace = t;
	return true;
}
