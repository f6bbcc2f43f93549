/* tests/random/main.c: random graphs through the passes of MODEL and TRAIN, each pass checked.
 *
 * usage: random [--count N] [--seed N] [--jobs N] [--kind ir|onnx|both] [--show]
 * Graph number i of seed s is the same on every machine.  A graph that is refused with an error is fine; a pass that
 * changes what it computes, an internal error, a crash or five seconds of processor time without an end fail it: it is
 * made smaller and printed.  Graphs run in processes of their own, which go on with the next one where a graph ends
 * them.  Rewriting is watched (passes/rewrite/progress.h).  The first lines count what went through.  --show: graph
 * number --count alone.  Exit 1 when any failed. */
#include "tests/random/random.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FAILED = 400, SHRUNK = 8 };

typedef struct Call {
	int64_t count, jobs;
	uint64_t seed;
	const char *kind;
	bool show;
} Call;

/* Of one process, in memory that the first one sees. */
typedef struct Worker {
	int64_t at;              /* number of the graph at hand */
	Counts counts;
	int n_failed;
	int64_t failed[MAX_FAILED]; /* the first of them */
} Worker;

static bool is_onnx(const Call *c, int64_t i)
{
	return !strcmp(c->kind, "onnx") || (!strcmp(c->kind, "both") && i % 2);
}

static uint64_t seed_of(const Call *c, int64_t i)
{
	return c->seed * 1000003u + (uint64_t)i;
}

static Module *generate(const Call *c, int64_t i, Counts *counts, FILE *nodes, Diag *d)
{
	Rng r = {seed_of(c, i) * 0x9e3779b97f4a7c15u + 12345};
	return is_onnx(c, i) ? random_onnx(&r, counts, nodes, d) : random_ir(&r, d);
}

/* ---- many graphs ---- */

static void count_ops(Counts *c, const Module *m)
{
	IR_FOR_OPS(m, SEC_FORWARD, op)
		c->ops[op->kind]++;
}

static bool run_graph(const Call *c, int64_t i, Counts *counts, FILE *log)
{
	Diag d = {.out = log};
	Counts mine = {0};
	Module *m = generate(c, i, counts, NULL, &d);
	if (!m || !m->first[SEC_FORWARD]) {
		counts->refused++;
		ir_module_free(m);
		return true;
	}
	count_ops(&mine, m);
	Options o = random_options(seed_of(c, i));
	Verdict v = random_run(m, &o, log);
	counts->compared += v.compared;
	counts->passed += v.outcome == OUTCOME_OK;
	counts->refused += v.outcome == OUTCOME_REFUSED;
	for (int k = 0; k < OP_COUNT && v.outcome == OUTCOME_OK; k++)
		counts->ops[k] += mine.ops[k];
	ir_module_free(m);
	return v.outcome != OUTCOME_DIFFERS;
}

static void note_failed(Worker *w)
{
	if (w->n_failed < MAX_FAILED)
		w->failed[w->n_failed] = w->at;
	w->n_failed++;
}

static void work(const Call *c, Worker *w, int64_t from)
{
	FILE *log = fopen("/dev/null", "w");
	dup2(fileno(log), STDERR_FILENO);
	for (int64_t i = from; i < c->count; i += c->jobs) {
		w->at = i;
		random_limit();
		if (!run_graph(c, i, &w->counts, log))
			note_failed(w);
	}
	w->at = c->count;
	_exit(0);
}

static pid_t start(const Call *c, Worker *w, int64_t from)
{
	pid_t pid = fork();
	if (!pid)
		work(c, w, from);
	return pid;
}

static void run_all(const Call *c, Worker *w)
{
	pid_t *pid = calloc((size_t)c->jobs, sizeof(*pid));
	for (int64_t k = 0; k < c->jobs; k++)
		pid[k] = start(c, &w[k], k);
	for (int64_t left = c->jobs; left;) {
		int status, k = 0;
		pid_t ended = wait(&status);
		while (k < c->jobs && pid[k] != ended)
			k++;
		if (random_ended(status)) {
			left--;
			continue;
		}
		note_failed(&w[k]);
		pid[k] = start(c, &w[k], w[k].at + c->jobs);
	}
	free(pid);
}

/* ---- one that failed ---- */

/* The text of graph i, from a process of its own; NULL: generating it ends the process. */
static char *text_of(const Call *c, int64_t i, bool nodes, Arena *a)
{
	FILE *f = tmpfile();
	int status = 0;
	fflush(NULL);
	pid_t pid = fork();
	if (!pid) {
		random_limit();
		FILE *none = fopen("/dev/null", "w");
		Diag d = {.out = none};
		Counts counts = {0};
		Module *m = generate(c, i, &counts, nodes ? f : NULL, &d);
		if (m && !nodes)
			ir_print(f, m);
		fflush(f);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	long n = fseek(f, 0, SEEK_END) ? 0 : ftell(f);
	char *text = arena_alloc(a, (size_t)n + 1);
	rewind(f);
	bool ok = (random_ended(status) || nodes) && fread(text, 1, (size_t)n, f) == (size_t)n && n;
	fclose(f);
	return ok ? text : NULL;
}

static void print_indented(const char *text)
{
	for (const char *s = text; *s; s += strcspn(s, "\n"), s += *s == '\n')
		printf("    %.*s\n", (int)strcspn(s, "\n"), s);
}

static void print_option(const char *name, const char *value, bool given)
{
	if (given)
		printf(" --%s=%s", name, value);
}

static void print_options(const Options *o)
{
	const GraphOptions *g = &o->graph;
	printf("  options: --loss=%s --param-dtype=%s --reduce-dtype=%s", g->loss,
		dtype_info[o->precision.param_dtype].text, dtype_info[o->precision.reduce_dtype].text);
	print_option("remat", "block", o->memory.remat && !strcmp(o->memory.remat, "block"));
	print_option("bn", "frozen", g->bn.all == NORM_FROZEN);
	print_option("bn-sync", "sync", g->bn_sync == BN_SYNC_SYNC);
	print_option("dropout", "off", g->dropout == DROPOUT_OFF);
	print_option("loss-norm", "rank", g->loss_norm == LOSS_NORM_RANK);
	print_option("loss-scale", o->precision.loss_scale, o->precision.loss_scale);
	print_option("clip", g->clip, g->clip);
	putchar('\n');
}

static void show_failed(const Call *c, int64_t i)
{
	static const char *const text[] = {"ok", "refused", "differs", "crashes", "hangs"};
	Arena *a = arena_new();
	Options o = random_options(seed_of(c, i));
	char *graph = text_of(c, i, false, a), *nodes = is_onnx(c, i) ? text_of(c, i, true, a) : NULL;
	printf("FAIL graph %lld of seed %llu (%s)\n", (long long)i, (unsigned long long)c->seed,
		is_onnx(c, i) ? "onnx" : "ir");
	if (nodes)
		print_indented(nodes);
	if (graph) {
		Verdict v = random_try_text(graph, &o, NULL);
		char *least = random_shrink(graph, &o, &v, a);
		printf("  %s  pass %s  rule \"%s\"  %s  at %s\n", text[v.outcome], v.pass, v.rule, v.what, v.op);
		print_options(&o);
		print_indented(least);
		fflush(stdout);
		random_try_text(least, &o, stdout);
	} else {
		printf("  generating it ends the process\n");
	}
	fflush(stdout);
	arena_free(a);
}

/* ---- the summary ---- */

static void add_counts(Counts *sum, const Counts *c)
{
	for (int k = 0; k < OP_COUNT; k++)
		sum->ops[k] += c->ops[k];
	for (int k = 0; k < COUNT_OF(c->nodes); k++)
		sum->nodes[k] += c->nodes[k];
	sum->passed += c->passed;
	sum->refused += c->refused;
	sum->compared += c->compared;
}

static void print_counts(const char *title, const int64_t *n, int count, const char *(*name)(int))
{
	int kinds = 0;
	printf("%s:", title);
	for (int k = 0; k < count; k++)
		if (n[k]) {
			printf(" %s %lld", name(k), (long long)n[k]);
			kinds++;
		}
	printf(" (%d kinds)\n", kinds);
}

static const char *op_name(int k)
{
	return op_info[k].text;
}

static const char *node_name(int k)
{
	return onnx_node_text[k];
}

static int report(const Call *c, const Worker *w, double seconds)
{
	Counts sum = {0};
	int failed = 0;
	for (int64_t k = 0; k < c->jobs; k++) {
		add_counts(&sum, &w[k].counts);
		failed += w[k].n_failed;
	}
	print_counts("ops of the IR", sum.ops, OP_COUNT, op_name);
	print_counts("nodes of ONNX", sum.nodes, onnx_node_count, node_name);
	printf("random: %lld graphs of seed %llu: %lld passed, %lld refused with an error, %d failed; %lld passes compared "
		"in %.0f s\n", (long long)c->count, (unsigned long long)c->seed, (long long)sum.passed, (long long)sum.refused,
		failed, (long long)sum.compared, seconds);
	int shown = 0;
	for (int64_t k = 0; k < c->jobs; k++)
		for (int i = 0; i < MIN(w[k].n_failed, MAX_FAILED) && shown < SHRUNK; i++, shown++)
			show_failed(c, w[k].failed[i]);
	int64_t lost = c->count - sum.passed - sum.refused - failed;
	if (lost)
		printf("FAIL %lld graphs were not counted\n", (long long)lost);
	return failed || lost;
}

static bool read_call(int argc, char **argv, Call *c)
{
	*c = (Call){.count = 500, .jobs = 2, .seed = 1, .kind = "both"};
	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : "";
		if (!strcmp(argv[i], "--show")) {
			c->show = true;
			continue;
		}
		if (!strcmp(argv[i], "--count"))
			c->count = atoll(value);
		else if (!strcmp(argv[i], "--seed"))
			c->seed = strtoull(value, NULL, 10);
		else if (!strcmp(argv[i], "--jobs"))
			c->jobs = atoll(value);
		else if (!strcmp(argv[i], "--kind"))
			c->kind = value;
		else
			return false;
		i++;
	}
	bool known = !strcmp(c->kind, "ir") || !strcmp(c->kind, "onnx") || !strcmp(c->kind, "both");
	return known && c->count > 0 && c->jobs > 0;
}

int main(int argc, char **argv)
{
	Call c;
	struct timespec begin, end;
	if (!read_call(argc, argv, &c)) {
		fprintf(stderr, "usage: random [--count N] [--seed N] [--jobs N] [--kind ir|onnx|both] [--show]\n");
		return 2;
	}
	if (c.show) { /* the graph whose number is --count */
		show_failed(&c, c.count);
		return 0;
	}
	setenv("SHARDC_CHECK_REWRITES", "1", 1);
	Worker *w = mmap(NULL, sizeof(*w) * (size_t)c.jobs, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	run_all(&c, w);
	clock_gettime(CLOCK_MONOTONIC, &end);
	return report(&c, w, (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec));
}
