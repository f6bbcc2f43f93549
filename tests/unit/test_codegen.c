/* tests/unit/test_codegen.c: emitted programs compute what the f64 reference computes, whatever the names.
 *
 * One program has every op of codegen_ops.ir; it is emitted, compiled, linked and run like a user's program, and each
 * result is compared with ir/eval.  If an op of ops.def that is lowered to code is missing there, the test fails and
 * names it. */
#include "base/npy.h"
#include "codegen/pieces.h"
#include "passes/passes.h"
#include "tests/unit/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const double BOUND = 1e-6; /* of a tensor's norm; worst today 3e-7 (attention's gradient) */

typedef struct Work { Arena *a; Diag d; Module *m; EvalEnv *env; const char *dir; } Work;

/* ---- the module ---- */

static char *read_text(Arena *a, const char *path)
{
	FILE *f = fopen(path, "r");
	Buf b = {0};
	char chunk[4096];
	for (size_t n; f && (n = fread(chunk, 1, sizeof(chunk), f)) > 0;)
		buf_put(&b, chunk, n);
	if (f)
		fclose(f);
	char *text = arena_strndup(a, b.at ? b.at : "", b.n);
	buf_free(&b);
	return text;
}

static void add_outputs(Module *m)
{
	for (Op *op = m->last[SEC_EVAL], *last = op; op; op = op->prev) {
		for (int i = 0; i < op->n_out; i++) {
			if (op->out[i]->n_uses)
				continue;
			Builder b = {.m = m, .section = SEC_EVAL, .before = last->next, .loc = op->loc,
				.sym = ir_add_symbol(m, SYM_OUTPUT, arena_printf(m->arena, "out.%s", op->out[i]->name),
					op->out[i]->type)};
			ir_emit(&b, OP_OUTPUT, 1, &op->out[i], NULL);
		}
	}
}

/* Every op that becomes code, but for those that only training programs have. */
static void check_coverage(const Module *m)
{
	bool seen[OP_COUNT] = {false};
	IR_FOR_OPS(m, SEC_EVAL, op) {
		seen[op->kind] = true;
		for (const Op *inner = op->body ? op->body->first[SEC_FORWARD] : NULL; inner; inner = inner->next)
			seen[OP_ARGUMENT] = seen[OP_ARGUMENT] || inner->kind == OP_ARGUMENT;
	}
	for (int k = 0; k < OP_COUNT; k++) {
		const OpInfo *info = &op_info[k];
		bool wanted = info->last == LEVEL_PLAN && !(info->flags & (EFFECT | UNIT | COMM)) && k != OP_VIEW_OP
			&& k != OP_SUMSQ && k != OP_PACK && k != OP_LOSS_SCALE && k != OP_ACCUMULATE;
		if (wanted && !seen[k])
			UNIT_CHECK(false, arena_printf(m->arena, "codegen_ops.ir: no case for %s", info->text));
	}
}

/* ---- inputs ---- */

static double next_unit(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (double)(*state >> 11) / 9007199254740992.0;
}

/* Values follow the symbol's name, see codegen_ops.ir. */
static double pick(const char *name, DType t, double u)
{
	if (!strncmp(name, "id", 2) && name[2] >= '0' && name[2] <= '9')
		return floor(u * atoi(name + 2));
	if (!strncmp(name, "pos.", 4))
		return 0.1 + 2 * u;
	if (!strncmp(name, "unit.", 5))
		return 1.8 * u - 0.9;
	if (dtype_is_float(t))
		return 4 * u - 2;
	return dtype_info[t].kind == CLASS_INT ? floor(19 * u) - 9 : floor(10 * u);
}

static void put_element(char *at, DType t, double v)
{
	int64_t i = (int64_t)v;
	float f = (float)v;
	if (t == DT_F32)
		memcpy(at, &f, sizeof(f));
	else if (t == DT_F64)
		memcpy(at, &v, sizeof(v));
	else
		memcpy(at, &i, (size_t)dtype_info[t].bytes); /* little-endian */
}

static bool make_input(Work *w, const Symbol *s, int k, uint64_t *state)
{
	int64_t n = type_numel(&s->type), bytes = dtype_info[s->type.dtype].bytes;
	char *raw = arena_alloc(w->a, (size_t)(n * bytes));
	EvalTensor t = eval_alloc(w->env, s->type);
	for (int64_t i = 0; i < n; i++) {
		double v = dtype_round(s->type.dtype, pick(s->name, s->type.dtype, next_unit(state)));
		put_element(raw + i * bytes, s->type.dtype, v);
		if (dtype_is_float(s->type.dtype))
			t.f[i] = v;
		else
			t.i[i] = (int64_t)v;
	}
	eval_bind(w->env, s, t);
	const char *path = arena_printf(w->a, "%s/in/input_%d.npy", w->dir, k);
	return npy_write(path, s->type.dtype, s->type.rank, s->type.dim, raw);
}

static bool make_inputs(Work *w)
{
	uint64_t state = 1;
	bool ok = !mkdir(arena_printf(w->a, "%s/in", w->dir), 0777);
	for (int i = 0, k = 0; i < w->m->n_symbols; i++) {
		const Symbol *s = w->m->symbols[i];
		if (s->kind == SYM_INPUT)
			ok = make_input(w, s, k++, &state) && ok;
		if (s->kind != SYM_BUFFER)
			continue;
		EvalTensor t = eval_alloc(w->env, s->type);
		for (int64_t e = 0; e < type_numel(&s->type); e++)
			t.f[e] = s->src.fill;
		eval_bind(w->env, s, t);
	}
	return ok;
}

/* ---- results ---- */

static double element(const Npy *n, int64_t i)
{
	DType t = n->header.dtype;
	const char *at = (const char *)n->data + i * dtype_info[t].bytes;
	float f;
	double d;
	int64_t v = 0;
	if (t == DT_F32)
		return memcpy(&f, at, sizeof(f)), (double)f;
	if (t == DT_F64)
		return memcpy(&d, at, sizeof(d)), d;
	memcpy(&v, at, (size_t)dtype_info[t].bytes);
	if (dtype_info[t].kind == CLASS_INT && dtype_info[t].bytes == 4)
		v = (int32_t)v;
	return (double)v;
}

static double error_of(const Npy *got, const EvalTensor *want)
{
	double diff = 0, norm = 0;
	bool exact = !dtype_is_float(want->type.dtype);
	for (int64_t i = 0; i < type_numel(&want->type); i++) {
		double g = element(got, i), x = exact ? (double)want->i[i] : want->f[i];
		if (g == x || (isnan(g) && isnan(x)))
			continue;
		diff += isfinite(g) && isfinite(x) ? (g - x) * (g - x) : INFINITY;
		norm += x * x;
	}
	return exact && diff > 0 ? INFINITY : sqrt(diff / (norm > 0 ? norm : 1));
}

static void check_output(Work *w, const Symbol *s)
{
	const EvalTensor *want = eval_symbol(w->env, s);
	Npy got;
	if (!want || !npy_open(&got, arena_printf(w->a, "%s/out/%s.npy", w->dir, s->name), &w->d)) {
		UNIT_CHECK(false, arena_printf(w->m->arena, "%s: no result", s->name));
		return;
	}
	double error = got.header.dtype == s->type.dtype ? error_of(&got, want) : INFINITY;
	if (!(error <= BOUND))
		UNIT_CHECK(false, arena_printf(w->m->arena, "%s: error %.3g", s->name, error));
	npy_close(&got);
}

static int run(const char *const *argv)
{
	int status = -1;
	fflush(NULL);
	pid_t child = fork();
	if (child == 0) {
		execvp(argv[0], (char *const *)argv);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#if defined(__SANITIZE_ADDRESS__)
#define COMPILER "cc -Wall -Wextra -Werror -fsanitize=address,undefined"
#else
#define COMPILER "cc -Wall -Wextra -Werror"
#endif

/* SHARDC_ARCH, SHARDC_NVCC: a GPU's, or the emulation's (tests/cudasim/codegen). */
static CodegenTarget target(void)
{
	const char *arch = getenv("SHARDC_ARCH");
	if (!arch)
		return (CodegenTarget){.options.cc = COMPILER};
	return (CodegenTarget){.options = {.target = TARGET_CUDA, .arch = arch, .nvcc = getenv("SHARDC_NVCC")}};
}

static bool build_and_run(Work *w)
{
	CodegenTarget o = target();
	const char *program = arena_printf(w->a, "%s/program", w->dir);
	const char *in = arena_printf(w->a, "%s/in", w->dir), *out = arena_printf(w->a, "%s/out", w->dir);
	return codegen_write(&(Sizes){1, {{{w->m}}}, {NULL}}, &o, w->dir, &w->d)
		&& codegen_compile(w->dir, w->m, &o, program, &w->d)
		&& !run((const char *[]){program, "--infer", in, out, NULL});
}

static void test_ops(void)
{
	char dir[] = "/tmp/shardc-codegen-XXXXXX";
	Work w = {.a = arena_new(), .d = {.out = stderr}};
	Options p = {.sharding.world = 1, .command = COMMAND_RUN,
		.target = target().options};
	CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(dir));
	w.dir = dir;
	w.m = ir_parse("codegen_ops.ir", read_text(w.a, "tests/unit/codegen_ops.ir"), &w.d);
	CU_ASSERT_PTR_NOT_NULL_FATAL(w.m);
	check_coverage(w.m);
	add_outputs(w.m);
	w.env = eval_new(w.m, w.a);
	eval_set_round(w.env, true); /* 16-bit values are what their bits say */
	bool ok = pass_memory(w.m, &p, &w.d) && make_inputs(&w) && build_and_run(&w);
	CU_ASSERT_TRUE(ok);
	if (ok) {
		eval_section(w.env, SEC_EVAL);
		for (int i = 0; i < w.m->n_symbols; i++)
			if (w.m->symbols[i]->kind == SYM_OUTPUT)
				check_output(&w, w.m->symbols[i]);
	}
	run((const char *[]){"rm", "-rf", dir, NULL});
	ir_module_free(w.m);
	arena_free(w.a);
}

/* Names that would end a comment, a string, a line or a rule of make, or stand for another character. */
static const char *const nasty[] = {
	"*/ int x = 1; /*", "\"); abort(); (\"", "a\nb\\", "?\?/ ?\?'", "$(shell false)#%", "//\\\n",
	"\xff\x01", "main",
};

static void test_names(void)
{
	char dir[] = "/tmp/shardc-codegen-XXXXXX";
	Work w = {.a = arena_new(), .d = {.out = stderr}};
	Options p = {.sharding.world = 1, .command = COMMAND_RUN,
		.target = target().options};
	CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(dir));
	w.dir = dir;
	w.m = ir_module_new(nasty[0]);
	w.m->level = LEVEL_PLAN;
	for (int i = 0; i < COUNT_OF(nasty); i++) {
		Type t = type_tensor(DT_F32, 1, (const int64_t[]){4});
		Builder b = {.m = w.m, .section = SEC_EVAL,
			.loc = loc_new(w.m, nasty[i], "Tanh", nasty[(i + 1) % COUNT_OF(nasty)], "")};
		Value *x = ir_read(&b, ir_add_symbol(w.m, SYM_INPUT, nasty[i], t));
		Value *y = ir_emit1(&b, OP_TANH, x);
		b.sym = ir_add_symbol(w.m, SYM_OUTPUT, arena_printf(w.m->arena, "o%s", nasty[i]), t);
		ir_emit(&b, OP_OUTPUT, 1, &y, NULL);
		ir_add_unit(w.m, nasty[i], STRATEGY_FULL_SHARD);
	}
	CodegenTarget o = target();
	o.text = nasty[1];
	const char *program = arena_printf(w.a, "%s/program", dir);
	CU_ASSERT_TRUE(pass_memory(w.m, &p, &w.d));
	CU_ASSERT_TRUE(codegen_write(&(Sizes){1, {{{w.m}}}, {NULL}}, &o, dir, &w.d)
		&& codegen_compile(dir, w.m, &o, program, &w.d));
	CU_ASSERT_EQUAL(run((const char *[]){"make", "-s", "-C", dir, "CC=" COMPILER, "train", NULL}), 0);
	run((const char *[]){"rm", "-rf", dir, NULL});
	ir_module_free(w.m);
	arena_free(w.a);
}

static bool holds(const char *path, const char *text)
{
	char got[16] = "";
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(got, 1, sizeof(got) - 1, f) : 0;
	if (f)
		fclose(f);
	return n == strlen(text) && !strcmp(got, text);
}

/* A build that fails says so, keeps the older binary, and leaves no objects or temporary files. */
static bool put(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");
	return f && fputs(text, f) >= 0 && !fclose(f);
}

static void test_failed_builds(void)
{
	static const CodegenTarget wrong[] = {
		{.options.cc = "/nonexistent/cc"}, {.options.cc = "cc -no-such-flag"}, {.options.arch = "no-such-arch"},
		{.options.cc = "false"},
	};
	char dir[] = "/tmp/shardc-codegen-XXXXXX";
	Arena *a = arena_new();
	Module *m = ir_module_new("wrong");
	CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(dir));
	const char *output = arena_printf(a, "%s/program", dir);
	Diag quiet = {.out = fopen("/dev/null", "w")};
	CU_ASSERT_PTR_NOT_NULL_FATAL(quiet.out);
	CU_ASSERT_TRUE(put(output, "old") && put(arena_printf(a, "%s/fused.c", dir), "old")
		&& put(arena_printf(a, "%s/step.c", dir), "int main(void) { return 0; }\n"));
	for (int i = 0; i < COUNT_OF(wrong); i++) {
		int before = quiet.errors;
		CU_ASSERT_FALSE(codegen_compile(dir, m, &wrong[i], output, &quiet));
		CU_ASSERT(quiet.errors > before);
	}
	CU_ASSERT_FALSE(codegen_compile(dir, m, &(CodegenTarget){0}, output, &quiet)); /* fused.c is no C */
	CU_ASSERT_TRUE(holds(output, "old"));
	const char *left[] = {"program.new", "step.o", "fused.o", "step.c.new"};
	for (int i = 0; i < COUNT_OF(left); i++)
		CU_ASSERT(access(arena_printf(a, "%s/%s", dir, left[i]), F_OK) != 0);
	run((const char *[]){"rm", "-rf", dir, NULL});
	fclose(quiet.out);
	ir_module_free(m);
	arena_free(a);
}

/* ---- lines ---- */

/* Undoes what wrap_text does to one line. */
static const char *unwrapped(Arena *a, const char *text)
{
	Buf b = {0};
	for (const char *s = text; *s; s++) {
		size_t in = *s == '\n' ? 1 + strspn(s + 1, "\t") : 0;
		if (!in || !s[in]) {
			buf_put(&b, s, !in);
		} else if (s[-1] == '"' && s[in] == '"') {
			b.n--;
			s += in;
		} else {
			buf_put(&b, " ", 1);
			s += in - 1;
		}
	}
	const char *line = arena_strndup(a, b.at, b.n);
	buf_free(&b);
	return line;
}

static void test_lines(void)
{
	Arena *a = arena_new();
	Buf words = {0}, bytes = {0};
	for (int i = 0; i < 60; i++) {
		buf_printf(&words, i % 7 ? ", ACT(value_%d)" : ", LIST(int64_t, %d, 2, 3)", i);
		buf_printf(&bytes, i % 3 ? "\\%03o" : "a, \\042(", i + 128);
	}
	const char *const lines[] = {
		arena_printf(a, "\tk_kernel(NULL%s);", words.at),
		arena_printf(a, "\t{\"%s\", 1, {2, 3}, \"%s\"},", bytes.at, bytes.at),
		arena_printf(a, "\tconst int64_t a = 1%s; /* a comment, which stays whole */", words.at),
		arena_printf(a, "\t.name = \"%s\",", bytes.at), "\tshort(1, 2); /* as it is */",
	};
	for (int i = 0; i < COUNT_OF(lines); i++) {
		Buf out = {0};
		wrap_text(&out, lines[i], WRAP_COLUMNS);
		CU_ASSERT_STRING_EQUAL(unwrapped(a, out.at), lines[i]);
		for (const char *at = out.at; *at; at += strcspn(at, "\n") + 1)
			CU_ASSERT(strcspn(at, "\n") + 3 * strspn(at, "\t") <= WRAP_COLUMNS);
		buf_free(&out);
	}
	buf_free(&words);
	buf_free(&bytes);
	arena_free(a);
}

/* Comments are cut between characters. */
static void test_comments(void)
{
	Buf text = {0}, out = {0};
	for (int i = 0; i < 100; i++)
		buf_printf(&text, "\303\251");
	for (int i = 0; i < 2; i++) {
		wrap_statement(&out, "\t", "call();", text.at + 2 * i);
		out.at[out.n - strlen("... */\n")] = '\0';
		CU_ASSERT(str_is_utf8(out.at));
		CU_ASSERT(strlen(out.at) > 100 && strlen(out.at) < WRAP_COLUMNS);
		buf_free(&out);
		out = (Buf){0};
		buf_printf(&text, "x");
	}
	buf_free(&text);
}

static void test_columns(void)
{
	Arena *a = arena_new();
	Columns c = columns_new(a, 3);
	const int64_t same[] = {5, 5, 5}, far[] = {7, 107, 207}, beside[] = {3, 103, 203}, other[] = {7, 107, 208};
	CU_ASSERT(columns_constant(&c, same) && !columns_constant(&c, far));
	CU_ASSERT_STRING_EQUAL(columns_text(&c, PART_ACT, true, "x", far, "b->"), "b->x");
	CU_ASSERT_STRING_EQUAL(columns_text(&c, PART_ACT, true, "y", beside, "b->"), "b->x - 4");
	CU_ASSERT_STRING_EQUAL(columns_text(&c, PART_ACT, true, "x", other, "b->"), "b->x_2");
	CU_ASSERT_STRING_EQUAL(columns_text(&c, PART_UNIT, false, "unit", far, ""), "unit"); /* another kind */
	CU_ASSERT_STRING_EQUAL(columns_text(&c, PART_UNIT, false, "unit", beside, ""), "unit_2");
	CU_ASSERT_EQUAL(c.all.n, 4);
	arena_free(a);
}

void suite_codegen(void)
{
	CU_pSuite s = CU_add_suite("codegen", NULL, NULL);
	CU_add_test(s, "every op as the reference computes it", test_ops);
	CU_add_test(s, "names cannot break out", test_names);
	CU_add_test(s, "a failed build keeps the old binary", test_failed_builds);
	CU_add_test(s, "long lines are broken and stay the same text", test_lines);
	CU_add_test(s, "long comments are cut between characters", test_comments);
	CU_add_test(s, "what differs from row to row is a column", test_columns);
}
