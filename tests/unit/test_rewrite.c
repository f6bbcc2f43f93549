/* tests/unit/test_rewrite.c: canon, patterns and layout keep what a module computes, and rewriting ends.
 *
 * Every golden test of these passes is run here too: its module and the rewritten one are evaluated in f64 on the same
 * random numbers and must agree, and a second run of the passes must change nothing.  Rules that undo one another show
 * that an endless rewrite is stopped and named. */
#include "passes/rewrite/measure.h"
#include "passes/passes.h"
#include "passes/rewrite/rewrite.h"
#include "tests/unit/unit.h"

#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static char *read_text(Arena *a, const char *path)
{
	FILE *f = fopen(path, "rb");
	Buf b = {0};
	for (int c; f && (c = getc(f)) != EOF;)
		buf_put(&b, &(char){(char)c}, 1);
	if (f)
		fclose(f);
	char *text = arena_strndup(a, b.at ? b.at : "", b.n);
	buf_free(&b);
	return text;
}

/* ---- evaluation ---- */

static double noise(const char *name, int64_t i)
{
	uint64_t h = hash_bytes(name, strlen(name), (uint64_t)i);
	return (double)(h >> 11) / (double)(1ull << 52) - 1; /* -1 .. 1 */
}

/* The only contents of files here are bools and f32. */
static void bind_file(EvalEnv *e, const Symbol *s)
{
	EvalTensor t = eval_alloc(e, s->type);
	FILE *f = fopen(s->src.file, "rb");
	CU_ASSERT_FATAL(f && (s->type.dtype == DT_BOOL || s->type.dtype == DT_F32));
	for (int64_t i = 0, n = type_numel(&s->type); i < n; i++) {
		float x = 0;
		if (s->type.dtype == DT_BOOL)
			t.i[i] = getc(f);
		else
			CU_ASSERT_FATAL(fread(&x, sizeof(x), 1, f) == 1);
		if (s->type.dtype == DT_F32)
			t.f[i] = (double)x;
	}
	fclose(f);
	eval_bind(e, s, t);
}

static void bind_noise(EvalEnv *e, const Symbol *s)
{
	EvalTensor t = eval_alloc(e, s->type);
	DTypeClass class = dtype_info[s->type.dtype].kind;
	for (int64_t i = 0, n = type_numel(&s->type); i < n; i++) {
		double x = noise(s->name, i);
		if (class == CLASS_FLOAT)
			t.f[i] = x;
		else
			t.i[i] = class == CLASS_BOOL ? x > -0.5 : (int64_t)(4 * fabs(x));
	}
	eval_bind(e, s, t);
}

static EvalEnv *run_forward(Module *m)
{
	EvalEnv *e = eval_new(m, m->arena);
	for (int i = 0; i < m->n_symbols; i++)
		if (m->symbols[i]->src.file)
			bind_file(e, m->symbols[i]);
		else if (m->symbols[i]->kind != SYM_OUTPUT)
			bind_noise(e, m->symbols[i]);
	eval_section(e, SEC_FORWARD);
	return e;
}

/* Norm of the difference over the norm; a NaN equals a NaN. */
static double difference(const EvalTensor *a, const EvalTensor *b)
{
	double d = 0, norm = 0;
	if (!type_equal(&a->type, &b->type))
		return INFINITY;
	for (int64_t i = 0, n = type_numel(&a->type); i < n; i++) {
		bool f = dtype_is_float(a->type.dtype);
		double x = f ? a->f[i] : (double)a->i[i], y = f ? b->f[i] : (double)b->i[i];
		if ((isnan(x) && isnan(y)) || x == y)
			continue;
		d += (x - y) * (x - y);
		norm += x * x;
	}
	return d == 0 ? 0 : sqrt(d / norm);
}

/* ---- one file ---- */

static Module *rewritten(const char *path, const char *text, const char *passes, Diag *d)
{
	Module *m = ir_parse(path, text, d);
	Options o = {.sharding.world = 1};
	PipelineView v = {.out = stdout};
	return m && pipeline_run(m, &o, &v, passes, d) ? m : NULL;
}

/* What is 16 bits wide is rounded after each op, and a single op that stands for several rounds once. */
static double bound_of(const Module *m)
{
	IR_FOR_OPS(m, SEC_FORWARD, op)
		for (int i = 0; i < op->n_out; i++)
			if (op->out[i]->type.dtype == DT_F16 || op->out[i]->type.dtype == DT_BF16)
				return 1e-2;
	return 1e-5;
}

static void check_values(const char *path, Module *was, Module *now)
{
	double bound = bound_of(was);
	EvalEnv *a = run_forward(was), *b = run_forward(now);
	for (int i = 0; i < was->n_symbols; i++) {
		const Symbol *s = was->symbols[i];
		EvalTensor *x = eval_symbol(a, s), *y = eval_symbol(b, ir_find_symbol(now, s->name));
		double d = x && y ? difference(x, y) : INFINITY;
		if (d > bound)
			fprintf(stderr, "%s: %s \"%s\" differs by %g\n", path, x && y ? "" : "not computed:", s->name, d);
		CU_ASSERT(d <= bound);
	}
}

static void check_file(const char *path)
{
	Arena *a = arena_new();
	Diag d = {.out = stderr};
	char *text = read_text(a, path), passes[64] = "";
	sscanf(text, "# run: %63s", passes);
	Module *was = ir_parse(path, text, &d), *now = rewritten(path, text, passes, &d);
	CU_ASSERT_FATAL(was && now);
	check_values(path, was, now);
	char *once = ir_text(now, a);
	Module *twice = rewritten(path, once, passes, &d);
	bool same = twice && !strcmp(ir_text(twice, a), once);
	UNIT_CHECK(same, path);
	if (!same && twice)
		fprintf(stderr, "%s: a second run changes it to\n%s", path, ir_text(twice, a));
	ir_module_free(was);
	ir_module_free(now);
	ir_module_free(twice);
	arena_free(a);
}

static void check_folder(const char *pattern)
{
	glob_t found;
	CU_ASSERT_FATAL(glob(pattern, 0, NULL, &found) == 0);
	for (size_t i = 0; i < found.gl_pathc; i++)
		check_file(found.gl_pathv[i]);
	globfree(&found);
}

static void canon_keeps_values(void)
{
	check_folder("tests/ir/canon/*.ir");
}

static void patterns_keep_values(void)
{
	check_folder("tests/ir/patterns/*.ir");
}

static void layout_keeps_values(void)
{
	check_folder("tests/ir/layout/*.ir");
}

/* An id outside of its axis is the program's to refuse, whatever element the tuple would be as one number. */
static void ids_outside_stay(void)
{
	static const char text[] = "module \"m\" level=MODEL {\n input \"x\" : f32[2,2]\n"
		" output \"y\" : f32[4]\n forward {\n"
		"%x : f32[2,2] = input \"x\"\n %ids : i64[4,2] = const {value=[0,0,0,1,0,2,1,1]}\n"
		"%y : f32[4] = gather_nd %x, %ids {batch_dims=0}\n output \"y\" %y\n }\n}\n";
	Diag d = {.out = stderr};
	Module *m = rewritten("m.ir", text, "canon", &d);
	CU_ASSERT_FATAL(m != NULL);
	CU_ASSERT_PTR_NOT_NULL(strstr(ir_text(m, m->arena), "gather_nd"));
	ir_module_free(m);
}

/* ---- rules that undo one another ---- */

static Value *turn(Rewriter *r, Op *op)
{
	static const int perm[] = {1, 0};
	return def_of(op->in[0].value, OP_TRANSPOSE) ? NULL
		: ir_transpose(&r->b, ir_emit1(&r->b, op->kind, ir_transpose(&r->b, op->in[0].value, perm)), perm);
}

static Value *turn_back(Rewriter *r, Op *op)
{
	Op *inner = def_of(op->in[0].value, OP_EXP), *first = inner ? def_of(inner->in[0].value, OP_TRANSPOSE) : NULL;
	return first ? ir_emit1(&r->b, OP_EXP, first->in[0].value) : NULL;
}

static Value *halve(Rewriter *r, Op *op)
{
	Value *half = ir_emit1(&r->b, OP_NEG, op->in[0].value);
	return ir_emit1(&r->b, OP_NEG, ir_emit1(&r->b, OP_NEG, half));
}

static const Rule undoing[] = {{OP_EXP, "exp is turned", turn}, {OP_TRANSPOSE, "exp is turned back", turn_back}};
static const Rule growing[] = {{OP_NEG, "one minus becomes three", halve}};

static Module *one_op(const char *op)
{
	Diag d = {.out = stderr};
	Arena *a = arena_new();
	Module *m = ir_parse("m.ir", arena_printf(a, "module \"m\" level=MODEL {\n input \"x\" : f32[2,2]\n"
		" output \"y\" : f32[2,2]\n forward {\n %%x : f32[2,2] = input \"x\"\n"
		" %%e : f32[2,2] = %s %%x loc(\"/here\":\"Exp\")\n output \"y\" %%e\n }\n}\n", op), &d);
	arena_free(a);
	return m;
}

#ifndef __SANITIZE_ADDRESS__
/* This much more memory than there is: other suites left theirs. */
static void bound_memory(size_t more)
{
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	if (!f || fscanf(f, "%*u %*u %*u %*u %*u %lu", &pages) != 1)
		_exit(1);
	fclose(f);
	rlim_t most = pages * (size_t)sysconf(_SC_PAGESIZE) + more;
	setrlimit(RLIMIT_DATA, &(struct rlimit){most, most});
}
#endif

/* What rewriting says before it aborts, in a process of its own whose memory is bounded; "" when it ends well. */
static void said_by(const char *op, RuleSet set, bool checked, char *said, size_t room)
{
	int end[2], status;
	size_t n = 0;
	CU_ASSERT_FATAL(pipe(end) == 0);
	fflush(NULL);
	pid_t pid = fork();
	CU_ASSERT_FATAL(pid >= 0);
	if (!pid) {
		dup2(end[1], STDERR_FILENO);
		setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
#ifndef __SANITIZE_ADDRESS__
		bound_memory(256 << 20);
#endif
		setenv("SHARDC_CHECK_REWRITES", checked ? "1" : "0", 1);
		rewrite_module(one_op(op), &(Diag){.out = stderr}, 1, &set, NULL, NULL);
		_exit(0);
	}
	close(end[1]);
	for (ssize_t got; n + 1 < room && (got = read(end[0], said + n, room - 1 - n)) > 0;)
		n += (size_t)got;
	said[n] = 0;
	close(end[0]);
	CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
	CU_ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void expect_said(const char *said, const char *part)
{
	UNIT_CHECK(strstr(said, part) != NULL, part);
	if (!strstr(said, part))
		fprintf(stderr, "said: %s", said);
}

static void runaway_names_both_rules(void)
{
	char said[4096];
	said_by("exp", (RuleSet){undoing, COUNT_OF(undoing)}, false, said, sizeof(said));
	expect_said(said, "rewriting does not end");
	expect_said(said, "\"exp is turned\"");
	expect_said(said, "\"exp is turned back\"");
	expect_said(said, "node \"/here\" (Exp)");
	said_by("neg", (RuleSet){growing, COUNT_OF(growing)}, false, said, sizeof(said));
	expect_said(said, "rewriting does not end");
	expect_said(said, "the rule \"one minus becomes three\" repeats");
}

static void measure_names_the_rule(void)
{
	char said[4096];
	said_by("exp", (RuleSet){undoing, COUNT_OF(undoing)}, true, said, sizeof(said));
	expect_said(said, "the measure does not fall: rule \"exp is turned\" at exp of m: node \"/here\" (Exp)");
	expect_said(said, "WORK was");
	said_by("neg", (RuleSet){growing, COUNT_OF(growing)}, true, said, sizeof(said));
	expect_said(said, "the measure does not fall: rule \"one minus becomes three\"");
}

void suite_rewrite(void)
{
	CU_pSuite s = CU_add_suite("rewrite", NULL, NULL);
	CU_add_test(s, "canon keeps what a module computes", canon_keeps_values);
	CU_add_test(s, "patterns keep what a module computes", patterns_keep_values);
	CU_add_test(s, "layout keeps what a module computes", layout_keeps_values);
	CU_add_test(s, "ids outside of their axis stay", ids_outside_stay);
	CU_add_test(s, "a runaway is ended, and named", runaway_names_both_rules);
	CU_add_test(s, "a rule that does not lower the measure is named", measure_names_the_rule);
}
