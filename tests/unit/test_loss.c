/* tests/unit/test_loss.c: the value of every --loss, and what its eval section computes.
 *
 * Modules are parsed and go through the passes loss and autodiff; the reported loss is compared with the loss's
 * definition, which is written out here, and the gradient with central differences. */
#include "passes/passes.h"
#include "tests/unit/unit.h"

#include <math.h>
#include <string.h>

enum { ROWS = 4, CLASSES = 3, N = ROWS * CLASSES };

static const double X[N] = {0.5, -1.25, 2, 0.75, 1.5, -0.5, -2, 0.25, 1, 3, -1.75, 0.125};
static const double W[CLASSES] = {1.5, -0.5, 0.75};
static const double TARGET[N] = {0, 1, 0.5, 1, 0, 0, 0.25, 1, 1, 0, 1, 0.75};
static const int64_t LABELS[ROWS] = {2, 0, 1, -100}, TOKENS[ROWS] = {1, 2, 0, 1};

/* logits = x * w, row by row */
static const char LINEAR[] =
	"module \"m\" level=MODEL batch=4 {\n"
	"  input \"x\" : f64[4,3] {batched=1}\n  param \"w\" : f64[3] {trainable=1}\n  output \"y\" : f64[4,3]\n"
	"  forward {\n    %x : f64[4,3] = input \"x\"\n    %w : f64[3] = param \"w\"\n"
	"    %d : f64[4,3] = dropout %x {axis=0, id=1, p=0.5}\n"
	"    %y : f64[4,3] = mul %d, %w\n    output \"y\" %y\n  }\n}\n";

/* logits[t] = table[token[t]] * w for one sample of four tokens */
static const char LANGUAGE[] =
	"module \"m\" level=MODEL batch=1 {\n"
	"  input \"input_ids\" : i32[1,4] {batched=1}\n  data \"x\" : f64[4,3]\n"
	"  param \"w\" : f64[3] {trainable=1}\n  output \"logits\" : f64[1,4,3]\n"
	"  forward {\n    %t : i32[1,4] = input \"input_ids\"\n    %x : f64[4,3] = read \"x\"\n"
	"    %w : f64[3] = param \"w\"\n    %z : f64[4,3] = mul %x, %w\n"
	"    %y : f64[1,4,3] = gather %z, %t {axis=0}\n    output \"logits\" %y\n  }\n}\n";

/* batch norm of [4,3] with running statistics; the loss is its mean */
static const char NORM[] =
	"module \"m\" level=MODEL batch=4 {\n"
	"  input \"x\" : f64[4,3] {batched=1}\n  param \"w\" : f64[3] {trainable=1}\n"
	"  buffer \"mean\" : f64[3]\n  buffer \"var\" : f64[3]\n  output \"y\" : f64[]\n"
	"  forward {\n    %x : f64[4,3] = input \"x\"\n    %w : f64[3] = param \"w\"\n"
	"    %b : f64[3] = const {value=[0.5]}\n    %n : f64[4,3], %m : f64[3], %v : f64[3] = batch_norm %x, %w, %b "
	"{eps=0.25, layout=0, mean=\"mean\", var=\"var\"}\n    write \"mean\" %m\n    write \"var\" %v\n"
	"    %y : f64[] = reduce_mean %n {axes=[0,1], keepdims=0}\n    output \"y\" %y\n  }\n}\n";

static void bind_floats(EvalEnv *e, const Module *m, const char *name, const double *v)
{
	const Symbol *s = ir_find_symbol(m, name);
	if (s)
		eval_bind(e, s, (EvalTensor){.type = s->type, .f = (double *)v});
}

static void bind_ints(EvalEnv *e, const Module *m, const char *name, const int64_t *v)
{
	const Symbol *s = ir_find_symbol(m, name);
	if (s)
		eval_bind(e, s, (EvalTensor){.type = s->type, .i = (int64_t *)v});
}

static const Op *find(const Module *m, SectionKind s, OpKind kind)
{
	IR_FOR_OPS(m, s, op)
		if (op->kind == kind)
			return op;
	return NULL;
}

static EvalEnv *evaluate(Module *m, Arena *a, SectionKind s, const double *w)
{
	EvalEnv *e = eval_new(m, a);
	bind_floats(e, m, "x", X);
	bind_floats(e, m, "w", w);
	bind_floats(e, m, "target", TARGET);
	bind_ints(e, m, "labels", LABELS);
	bind_ints(e, m, "input_ids", TOKENS);
	bind_floats(e, m, "mean", (double[]){0.25, -0.5, 1});
	bind_floats(e, m, "var", (double[]){0.75, 2, 1});
	if (s == SEC_BACKWARD)
		eval_section(e, SEC_FORWARD);
	eval_section(e, s);
	return e;
}

typedef struct Reported { double sum, weight; } Reported;

static Reported reported(Module *m, SectionKind s, const double *w)
{
	Arena *a = arena_new();
	const Op *op = find(m, s, OP_REPORT_LOSS);
	EvalEnv *e = evaluate(m, a, s, w);
	Reported r = {eval_value(e, op_in(op, 0))->f[0], eval_value(e, op_in(op, 1))->f[0]};
	arena_free(a);
	return r;
}

static Module *with_loss(const char *text, const char *loss, LossNorm norm)
{
	Diag d = {.out = stderr};
	Options o = {.graph = {.loss = loss, .loss_norm = norm, .dropout = DROPOUT_OFF}};
	Module *m = ir_parse("test", text, &d);
	CU_ASSERT_FATAL(m && pass_loss(m, &o, &d) && ir_verify(m, "loss", &d));
	CU_ASSERT_FATAL(pass_autodiff(m, &o, &d));
	m->level = LEVEL_TRAIN;
	CU_ASSERT_FATAL(ir_verify(m, "autodiff", &d));
	return m;
}

/* The gradient of the reported loss, up to the seed's 1/n. */
static void check_gradient(Module *m)
{
	const double h = 1e-5;
	Arena *a = arena_new();
	const Op *report = find(m, SEC_FORWARD, OP_REPORT_LOSS), *grad = find(m, SEC_BACKWARD, OP_GRAD);
	double n = (double)attr_get_int(report->attrs, "n", 0);
	EvalTensor *g = eval_value(evaluate(m, a, SEC_BACKWARD, W), op_in(grad, 0));
	for (int i = 0; i < CLASSES; i++) {
		double up[CLASSES], down[CLASSES];
		memcpy(up, W, sizeof(W));
		memcpy(down, W, sizeof(W));
		up[i] += h;
		down[i] -= h;
		double slope = (reported(m, SEC_FORWARD, up).sum - reported(m, SEC_FORWARD, down).sum) / (2 * h);
		CU_ASSERT_DOUBLE_EQUAL(g->f[i], slope / n, 1e-8);
	}
	arena_free(a);
}

static void check(const char *text, const char *loss, double sum, double weight)
{
	Module *m = with_loss(text, loss, LOSS_NORM_GLOBAL);
	for (int s = 0; s < 2; s++) {
		Reported r = reported(m, s ? SEC_EVAL : SEC_FORWARD, W);
		CU_ASSERT_DOUBLE_EQUAL(r.sum, sum, 1e-10);
		CU_ASSERT_DOUBLE_EQUAL(r.weight, weight, 1e-10);
	}
	check_gradient(m);
	ir_module_free(m);
}

/* ---- definitions ---- */

static double log_softmax(const double *x, int at)
{
	double sum = 0;
	for (int c = 0; c < CLASSES; c++)
		sum += exp(x[c] * W[c]);
	return x[at] * W[at] - log(sum);
}

static double entropy(const double *x, int label, double smoothing)
{
	double loss = -(1 - smoothing) * log_softmax(x, label);
	for (int c = 0; c < CLASSES; c++)
		loss -= smoothing / CLASSES * log_softmax(x, c);
	return loss;
}

static void test_cross_entropy(void)
{
	double plain = 0, smooth = 0, shifted = 0;
	for (int i = 0; i < 3; i++) {
		plain += entropy(X + i * CLASSES, (int)LABELS[i], 0);
		smooth += entropy(X + i * CLASSES, (int)LABELS[i], 0.25);
		shifted += entropy(X + TOKENS[i] * CLASSES, (int)TOKENS[i + 1], 0);
	}
	check(LINEAR, "cross_entropy", plain, 3);
	check(LINEAR, "cross_entropy:label_smoothing=0.25,axis=1", smooth, 3);
	check(LANGUAGE, "cross_entropy:shift=1", shifted, 3);
}

static void test_against_target(void)
{
	double squares = 0, distances = 0, bce = 0;
	for (int i = 0; i < N; i++) {
		double y = X[i] * W[i % CLASSES], p = 1 / (1 + exp(-y));
		squares += (y - TARGET[i]) * (y - TARGET[i]);
		distances += fabs(y - TARGET[i]);
		bce -= TARGET[i] * log(p) + (1 - TARGET[i]) * log(1 - p);
	}
	check(LINEAR, "mse", squares, N);
	check(LINEAR, "l1", distances, N);
	check(LINEAR, "bce_with_logits", bce, N);
}

static void test_norm_by_rank(void)
{
	Module *m = with_loss(LINEAR, "mse", LOSS_NORM_RANK), *global = with_loss(LINEAR, "mse", LOSS_NORM_GLOBAL);
	Reported sum = reported(global, SEC_FORWARD, W), mean = reported(m, SEC_FORWARD, W);
	CU_ASSERT_EQUAL(attr_get_int(find(m, SEC_FORWARD, OP_REPORT_LOSS)->attrs, "mean", 0), 1);
	CU_ASSERT_DOUBLE_EQUAL(mean.sum, sum.sum / N, 1e-12);
	CU_ASSERT_DOUBLE_EQUAL(mean.weight, 1, 0);
	CU_ASSERT_DOUBLE_EQUAL(reported(m, SEC_EVAL, W).sum, sum.sum, 1e-12);
	check_gradient(m);
	ir_module_free(m);
	ir_module_free(global);
}

/* No label is valid: loss and gradient are zero, not NaN, under both norms. */
static void test_no_valid_label(void)
{
	static const LossNorm norms[] = {LOSS_NORM_GLOBAL, LOSS_NORM_RANK};
	for (int i = 0; i < 2; i++) {
		Module *m = with_loss(LINEAR, "cross_entropy:ignore_index=1", norms[i]);
		static const int64_t ignored[ROWS] = {1, 1, 1, 1};
		Arena *a = arena_new();
		EvalEnv *e = eval_new(m, a);
		bind_floats(e, m, "x", X);
		bind_floats(e, m, "w", W);
		bind_ints(e, m, "labels", ignored);
		eval_section(e, SEC_FORWARD);
		eval_section(e, SEC_BACKWARD);
		CU_ASSERT_EQUAL(eval_value(e, op_in(find(m, SEC_FORWARD, OP_REPORT_LOSS), 0))->f[0], 0);
		for (int k = 0; k < CLASSES; k++)
			CU_ASSERT_EQUAL(eval_value(e, op_in(find(m, SEC_BACKWARD, OP_GRAD), 0))->f[k], 0);
		arena_free(a);
		ir_module_free(m);
	}
}

static void test_running_statistics(void)
{
	static const double mean[] = {0.25, -0.5, 1}, var[] = {0.75, 2, 1};
	Module *m = with_loss(NORM, "output:y", LOSS_NORM_GLOBAL);
	double want = 0;
	for (int i = 0; i < N; i++)
		want += W[i % 3] * (X[i] - mean[i % 3]) / sqrt(var[i % 3] + 0.25) + 0.5;
	CU_ASSERT_DOUBLE_EQUAL(reported(m, SEC_EVAL, W).sum, want / N, 1e-12);
	CU_ASSERT_DOUBLE_EQUAL(reported(m, SEC_FORWARD, W).sum, 0.5, 1e-12);
	CU_ASSERT_PTR_NULL(find(m, SEC_EVAL, OP_WRITE));
	CU_ASSERT_PTR_NOT_NULL(find(m, SEC_FORWARD, OP_WRITE));
	ir_module_free(m);
}

/* Without training there is only eval: the forward, outputs and all, with dropout unless it is turned off. */
static void test_inference(void)
{
	Diag d = {.out = stderr};
	Options o = {.command = COMMAND_RUN};
	Module *m = ir_parse("test", LINEAR, &d);
	CU_ASSERT(pass_loss(m, &o, &d) && find(m, SEC_EVAL, OP_DROPOUT));
	ir_module_free(m);
	o.graph.dropout = DROPOUT_OFF;
	m = ir_parse("test", LINEAR, &d);
	CU_ASSERT_FATAL(m && pass_loss(m, &o, &d) && pass_autodiff(m, &o, &d) && pass_optimizer(m, &o, &d));
	m->level = LEVEL_TRAIN;
	CU_ASSERT(ir_verify(m, "optimizer", &d));
	CU_ASSERT(!m->first[SEC_FORWARD] && !m->first[SEC_BACKWARD] && !m->first[SEC_UPDATE]);
	CU_ASSERT_PTR_NULL(find(m, SEC_EVAL, OP_DROPOUT));
	const Op *output = find(m, SEC_EVAL, OP_OUTPUT);
	CU_ASSERT_PTR_NOT_NULL_FATAL(output);
	Arena *a = arena_new();
	EvalTensor *y = eval_value(evaluate(m, a, SEC_EVAL, W), op_in(output, 0));
	for (int i = 0; i < N; i++)
		CU_ASSERT_EQUAL(y->f[i], X[i] * W[i % CLASSES]);
	arena_free(a);
	ir_module_free(m);
}

void suite_loss(void)
{
	CU_pSuite s = CU_add_suite("losses", NULL, NULL);
	CU_ADD_TEST(s, test_cross_entropy);
	CU_ADD_TEST(s, test_against_target);
	CU_ADD_TEST(s, test_norm_by_rank);
	CU_ADD_TEST(s, test_no_valid_label);
	CU_ADD_TEST(s, test_running_statistics);
	CU_ADD_TEST(s, test_inference);
}
