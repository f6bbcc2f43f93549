/* tests/unit/test_runtime.c: the loop of a training binary: its numbers compared with a plain f64 loop, bad input,
 * memory, exit codes and messages. */
#include <jansson.h>
#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/exec/private.h"
#include "tests/unit/toy_run.h"

enum { N = 10 }; /* samples of toy_data */

/* ---- the numbers ---- */

typedef struct Moments { double m[TOY_P], v[TOY_P]; } Moments;

/* PyTorch's rules, element by element; the bias (from 12 on) is not decayed. */
static void reference_update(ToyReference *r, Moments *of, const char *name, const double *g, int t, double clip)
{
	double lr = 0.05, wd = 0.1, b1 = 0.8, b2 = 0.9, eps = 1e-3, coef = MIN(1, clip / (r->norm + 1e-6));
	for (int k = 0; k < TOY_P; k++) {
		double decay = k < TOY_BIAS_AT ? wd : 0, x = g[k] * coef, *p = &r->p[k], *m = &of->m[k], *v = &of->v[k];
		bool decoupled = !strcmp(name, "adamw") || !strcmp(name, "lion");
		x += decoupled ? 0 : decay * *p;
		*p -= decoupled ? lr * decay * *p : 0;
		if (!strcmp(name, "sgd"))
			*p -= lr * x;
		if (!strncmp(name, "sgd:", 4)) {
			*m = t == 1 ? x : b1 * *m + x;
			*p -= lr * (strstr(name, "nesterov") ? x + b1 * *m : *m);
		}
		if (!strncmp(name, "adam", 4)) {
			*m = b1 * *m + (1 - b1) * x;
			*v = b2 * *v + (1 - b2) * x * x;
			*p -= lr * (*m / (1 - pow(b1, t))) / (sqrt(*v / (1 - pow(b2, t))) + eps);
		}
		if (!strcmp(name, "adagrad")) {
			*m += x * x;
			*p -= lr * x / (sqrt(*m) + eps);
		}
		if (!strcmp(name, "lion")) {
			double c = b1 * *m + (1 - b1) * x;
			*p -= lr * ((c > 0) - (c < 0));
			*m = b2 * *m + (1 - b2) * x;
		}
	}
}

static double log_number(const char *line, const char *key)
{
	json_error_t e;
	json_t *root = json_loads(line, JSON_DISABLE_EOF_CHECK, &e);
	CU_ASSERT_PTR_NOT_NULL_FATAL(root);
	json_t *v = json_object_get(root, key);
	CU_ASSERT_PTR_NOT_NULL(v);
	double x = json_is_number(v) ? json_number_value(v) : NAN;
	json_decref(root);
	return x;
}

static void check_optimizer(const char *name, const char *flags)
{
	RtModel m = toy_model(name);
	ToyReference r;
	Moments moments = {0};
	char line[512];
	toy_reference(&r);
	snprintf(line, sizeof(line),
		DATA "--steps 7 --lr 0.05 --weight-decay 0.1 --clip-norm 0.5 --log log.jsonl --save ck %s", flags);
	EXPECT(&m, line, 0, "trained to step 7");
	FILE *log = fopen("log.jsonl", "r");
	for (int t = 1; t <= 7; t++) {
		double g[TOY_P];
		toy_gradient(&r, &toy_data, (t - 1) * TOY_B, TOY_B, g);
		CU_ASSERT_PTR_NOT_NULL_FATAL(fgets(line, sizeof(line), log));
		CU_ASSERT_DOUBLE_EQUAL(log_number(line, "loss"), r.loss, 3e-6);
		CU_ASSERT_DOUBLE_EQUAL(log_number(line, "grad_norm"), r.norm, 3e-6);
		CU_ASSERT_DOUBLE_EQUAL(log_number(line, "epoch"), t * 0.4, 1e-9);
		reference_update(&r, &moments, name, g, t, 0.5);
	}
	fclose(log);
	double p[TOY_P], frozen[TOY_D], seen;
	toy_read_trained("ck", p);
	toy_read_tensor("ck/latest/model.safetensors", "scale", frozen);
	toy_read_tensor("ck/latest/model.safetensors", "seen", &seen);
	for (int k = 0; k < TOY_P; k++)
		CU_ASSERT_DOUBLE_EQUAL(p[k], r.p[k], 5e-6);
	CU_ASSERT_EQUAL(frozen[3], 2);
	CU_ASSERT_EQUAL(seen, 7);
	toy_remove("ck");
}

static void test_optimizers(void)
{
	check_optimizer("sgd", "");
	check_optimizer("sgd:momentum", "--momentum 0.8");
	check_optimizer("sgd:momentum,nesterov", "--momentum=0.8");
	check_optimizer("adam", "--betas 0.8,0.9 --eps 1e-3");
	check_optimizer("adamw", "--betas 0.8,0.9 --eps 1e-3");
	check_optimizer("adagrad", "--eps 1e-3");
	check_optimizer("lion", "--betas 0.8,0.9");
}

static void test_ignored_labels(void)
{
	RtModel m = toy_model("sgd");
	int64_t dim[] = {4}, labels[] = {1, TOY_IGNORE, 2, TOY_IGNORE};
	double g[TOY_P], p[3];
	ToyData some = toy_data;
	ToyReference r;
	toy_reference(&r);
	npy_write("x4.npy", DT_F32, 2, (int64_t[]){4, TOY_D}, some.x);
	npy_write("some.npy", DT_I64, 1, dim, labels);
	EXPECT(&m, "--data x=x4.npy --data labels=some.npy --steps 1 --lr 1 --save ck", 0, "trained to step 1");
	toy_read_tensor("ck/latest/model.safetensors", "fc.bias", p);
	/* the mean over the two valid rows is that over all four with those two twice */
	memcpy(some.x[1], some.x[0], sizeof(some.x[0]));
	memcpy(some.x[3], some.x[2], sizeof(some.x[0]));
	some.labels[0] = some.labels[1] = 1;
	some.labels[2] = some.labels[3] = 2;
	toy_gradient(&r, &some, 0, TOY_B, g);
	for (int c = 0; c < 3; c++)
		CU_ASSERT_DOUBLE_EQUAL(p[c], 0.25 - g[TOY_BIAS_AT + c], 1e-6);
	labels[0] = labels[2] = TOY_IGNORE;
	npy_write("none.npy", DT_I64, 1, dim, labels);
	EXPECT(&m, "--data x=x4.npy --data labels=none.npy --steps 1 --lr 1 --save none --weight-decay 1", 0,
		"loss 0.0000");
	toy_read_tensor("none/latest/model.safetensors", "fc.bias", p);
	CU_ASSERT_EQUAL(p[0], 0.25);
	toy_remove("ck none");
}

static void test_evaluation(void)
{
	RtModel m = toy_model("adamw");
	ToyReference r;
	double g[TOY_P];
	toy_reference(&r);
	toy_gradient(&r, &toy_data, 0, toy_data.n, g);
	EXPECT(&m, DATA "--steps 1 --lr 0 --eval-data x=x.npy --eval-data labels=labels.npy --log log.jsonl", 0,
		"eval after step 1");
	FILE *log = fopen("log.jsonl", "r");
	char line[512];
	CU_ASSERT_PTR_NOT_NULL_FATAL(fgets(line, sizeof(line), log));
	CU_ASSERT_PTR_NOT_NULL_FATAL(fgets(line, sizeof(line), log));
	fclose(log);
	CU_ASSERT_DOUBLE_EQUAL(log_number(line, "eval_loss"), r.loss, 1e-6);
	CU_ASSERT_DOUBLE_EQUAL(log_number(line, "eval_accuracy"), r.right / r.valid, 1e-9);
	m.loss.whole = "the loss is one number a batch";
	EXPECT(&m, DATA "--steps 1 --eval-data x=x.npy --eval-data labels=labels.npy", 0, "2 samples left out");
	EXPECT(&m, DATA "--steps 1 --eval-every 1", 2, "--eval-every needs --eval-data");
}

/* ---- bad input ---- */

static void test_usage(void)
{
	RtModel m = toy_model("adamw");
	static const struct { const char *flags, *say; } cases[] = {
		{"--colour red", "unknown flag --colour"},
		{"data", "is not a flag"},
		{"--steps", "--steps takes"},
		{"--steps x", "--steps takes a whole number"},
		{"--steps -1", "not \"-1\""},
		{"--lr nan", "--lr takes"},
		{"--betas 0.9", "--betas takes two numbers"},
		{"--betas 0.9,1", "--betas takes"},
		{"--on-nan=ignore", "stop or skip"},
		{"--lr-schedule=step", "constant, linear or cosine"},
		{"--accum=4", "one micro-batch a step"},
		{"--save-kind=sharded", "--save-kind needs --save DIR"},
		{"--save-kind=full", "--save-kind needs --save DIR"},
		{"--strict=0", "--strict needs --resume"},
		{"--save-kind=whole --save d", "full, sharded or local"},
		{"--hyper", "--hyper takes a value"},
		{"--trace-steps 7:3", "the first not above the second"}, {"--trace-steps 0:3", "two numbers from 1"},
		{"--time-budget=3", "--time-budget needs --time-ops"}, {"--time-ops t", "compiled for the CPU, where --trace"},
		{"--trace-steps 3", "two numbers from 1"}, {"--trace-steps 3:4x", "two numbers from 1"},
		{"--steps 2 --steps=3", "--steps is given twice, \"2\" and \"3\""},
		{"--infer a b --infer c d", "--infer is given twice"},
		{"--warmup_steps 3", "Hugging Face is --warmup here"},
		{"--optimizer=sgd", "it is compiled in: shardc MODEL.onnx --optimizer"},
		{"--wieght-decay 1", "did you mean --weight-decay?"},
		{"--lr-schedule=cos", "did you mean cosine?"},
		{"--comm=gloo", "gloo of PyTorch is shm here"},
		{"--steps 1.5", "--steps takes a whole number"},
		{"--steps 5KiB", "--steps takes a whole number"},
		{"--save-every 2", "--save-every needs --save"},
		{"--resume auto", "--resume=auto needs --save"},
		{"--keep 0 --save d", "--keep needs at least 1"},
		{"--print-plan=yes", "no value"},
		{"--infer a", "two folders"},
		{"--lr 0.1 --lr", "--lr takes a number that is not negative"},
		{"--comm-threads=2", "--comm-threads takes 0|1, not \"2\""},
	};
	for (int i = 0; i < COUNT_OF(cases); i++)
		EXPECT(&m, cases[i].flags, 2, cases[i].say);
	EXPECT(&m, "--help", 0, "--lr-schedule");
	EXPECT(&m, "-h", 0, "[adamw: 0.001]");
	EXPECT(&m, "-h", 0, "refused by this program: only --optimizer=sgd:momentum has it");
	EXPECT(&m, DATA "--steps 1e0 --seed 3", 0, "--seed is not used: this program draws no random numbers");
	EXPECT(&m, DATA "--steps 1 --min-lr 0.1", 0, "--min-lr is not used: the learning rate stays constant");
	EXPECT(&m, DATA "--steps 1 --shard-size 1", 0, "--shard-size is not used: no unit");
	EXPECT(&m, DATA "--steps 1 --timeout 9", 0, "--timeout is not used: there is one rank");
	EXPECT(&m, "--print-plan --log x.jsonl", 0, "--log is not used: nothing is trained");
	EXPECT(&m, "--version", 0, "toy: test");
	EXPECT(&m, DATA "--ranks 1 --accum=1 --steps 1", 0, "trained");
	EXPECT(&m, DATA "--momentum 0.9", 2, "only --optimizer=sgd:momentum has it");
	m = toy_model("sgd");
	EXPECT(&m, DATA "--eps 1", 2, "--eps is refused");
	m.clip = false;
	EXPECT(&m, DATA "--clip-norm 1", 2, "compile with --clip");
	m.optimizer = NULL;
	EXPECT(&m, DATA, 2, "compiled for inference");
}

static void test_data_errors(void)
{
	RtModel m = toy_model("adamw");
	double wide[N][TOY_D] = {{0}};
	npy_write("f64.npy", DT_F64, 2, (int64_t[]){N, TOY_D}, wide);
	npy_write("flat.npy", DT_F32, 3, (int64_t[]){N, 2, 2}, toy_data.x);
	npy_write("short.npy", DT_I64, 1, (int64_t[]){N - 1}, toy_data.labels);
	npy_write("nothing.npy", DT_I64, 1, (int64_t[]){0}, toy_data.labels);
	EXPECT(&m, "--data x=f64.npy", 1, "f64.npy: error: shape [10,4] f64, input \"x\" wants [*,4] f32");
	EXPECT(&m, "--data x=flat.npy", 1, "flat.npy: error: shape [10,2,2] f32, input \"x\" wants [*,4] f32");
	EXPECT(&m, "--data x=x.npy", 1, "--data: error: input \"labels\" [*] i64 has no data");
	EXPECT(&m, "--data y=x.npy", 1, "is not NAME=FILE with an input's name");
	EXPECT(&m, "--data x=x.npy --data labels=short.npy", 1,
		"short.npy: error: 9 samples of input \"labels\", but x.npy has 10");
	EXPECT(&m, "--data x=x.npy --data x=x.npy", 1, "two sources");
	EXPECT(&m, "--data x=x.npy --data labels=nothing.npy", 1, "nothing.npy: error: 0 samples");
	EXPECT(&m, "--data x=weights.bin --data labels=labels.npy", 1,
		"weights.bin: error: this is not a .npy file");
	EXPECT(&m, "--data x=none.npz", 1, "none.npz: error: No such file");
	EXPECT(&m, "--const x=x.npy " DATA, 1, "has a sample axis");
	EXPECT(&m, "--tokens x.bin", 1, "no input is integers [B,T], as a token stream wants it");
}

static void test_bad_label(void)
{
	RtModel m = toy_model("adamw");
	int64_t labels[N] = {0, 1, 2, 0, 1, 3};
	npy_write("bad.npy", DT_I64, 1, (int64_t[]){N}, labels);
	EXPECT(&m, "--data x=x.npy --data labels=bad.npy --steps 3 --save ck", 1,
		"bad input in step 2: label 3 in row 1 is outside [0,3)");
	CU_ASSERT_PTR_NOT_NULL(strstr(toy_said, "bad.npy: error:"));
	CU_ASSERT_PTR_NOT_NULL(strstr(toy_said, "bad.npy: note: rows 0, 1, ... of that batch were samples 4, 5, 6, 7"));
	CU_ASSERT_NOT_EQUAL(access("ck", F_OK), 0);
	EXPECT(&m, DATA "--steps 1 --eval-data x=x.npy --eval-data labels=bad.npy", 1,
		"bad.npy: error: bad input in an evaluation: label 3");
}

static void test_not_finite(void)
{
	RtModel m = toy_model("adamw");
	float x[N][TOY_D];
	memcpy(x, toy_data.x, sizeof(x));
	x[5][0] = NAN;
	npy_write("nan.npy", DT_F32, 2, (int64_t[]){N, TOY_D}, x);
	EXPECT(&m, "--data x=nan.npy --data labels=labels.npy --steps 4 --save ck", 3,
		"step 2: the loss is not finite");
	CU_ASSERT_NOT_EQUAL(access("ck", F_OK), 0);
	EXPECT(&m, "--data x=nan.npy --data labels=labels.npy --steps 4 --save ck --on-nan skip --log log.jsonl",
		0, "trained to step 4");
	toy_read_text("log.jsonl");
	CU_ASSERT_PTR_NOT_NULL(strstr(toy_said, "\"loss\": null, \"grad_norm\": null"));
	toy_read_text("ck/latest/state.json");
	CU_ASSERT_PTR_NOT_NULL(strstr(toy_said, "\"step\": 4,\n  \"updates\": 2,"));
	toy_remove("ck");
}

static void test_weight_files(void)
{
	RtModel m = toy_model("adamw");
	CU_ASSERT_EQUAL(system("cp weights.bin keep"), 0);
	CU_ASSERT_EQUAL(system("printf x | dd of=weights.bin bs=1 seek=20 conv=notrunc 2>/dev/null"), 0);
	EXPECT(&m, DATA, 1, "weights.bin: error: the file's contents have changed");
	CU_ASSERT_EQUAL(system("truncate -s 60 weights.bin"), 0);
	EXPECT(&m, DATA, 1,
		"weights.bin: error: the file has changed since this program was compiled: 60 bytes now, 104 then");
	unlink("weights.bin");
	EXPECT(&m, DATA, 1, "weights.bin: error: No such file");
	CU_ASSERT_EQUAL(rename("keep", "weights.bin"), 0);
	RtTensor *w = &toy_tensors[TOY_W];
	w->file_offset = 16;
	EXPECT(&m, DATA, 1, "tensor \"fc.weight\": bytes [16,112] of 104");
	w->file_offset = 8;
}

/* What every processor has that runs these tests. */
#if defined(__x86_64__)
#define HERE "sse3"
#else
#define HERE "atomics"
#endif

static void test_processor(void)
{
	RtModel m = toy_model("adamw");
	const char *need[] = {HERE, "no-such-isa", "nor-this", NULL};
	m.need_cpu = need;
	EXPECT(&m, DATA, 1, "this processor lacks: no-such-isa, nor-this; compile it with --arch");
#if defined(__x86_64__)
	__builtin_cpu_init();
	CU_ASSERT_EQUAL(cpu_supports("avx2"), !!__builtin_cpu_supports("avx2"));
	CU_ASSERT_EQUAL(cpu_supports("fma"), !!__builtin_cpu_supports("fma"));
	CU_ASSERT_EQUAL(cpu_supports("avx512f"), !!__builtin_cpu_supports("avx512f"));
	CU_ASSERT_EQUAL(cpu_supports("avx512bw"), !!__builtin_cpu_supports("avx512bw"));
	CU_ASSERT_EQUAL(cpu_supports("bmi2"), !!__builtin_cpu_supports("bmi2"));
	CU_ASSERT_EQUAL(cpu_supports("popcnt"), !!__builtin_cpu_supports("popcnt"));
#endif
}

/* ---- memory, forward only ---- */

enum { HEAP_STEPS = 64 };
static size_t heap_at_step[HEAP_STEPS];
static int heap_steps;

/* After the first step nothing may be allocated: 62 steps of the smallest block would be 2 KiB.  The C library
 * keeps a few hundred bytes when it prints numbers of new sizes. */
static void counting_forward(Rt *rt)
{
	toy_train_forward(rt);
	if (heap_steps < HEAP_STEPS)
		heap_at_step[heap_steps++] = mallinfo2().uordblks;
	if (heap_steps == HEAP_STEPS && heap_at_step[HEAP_STEPS - 1] > heap_at_step[1] + 1024)
		_exit(77);
}

/* Bytes of this process's anonymous mappings, the heap and the stack aside. */
static int64_t anonymous_bytes(void)
{
	char line[512];
	int64_t sum = 0;
	FILE *f = fopen("/proc/self/maps", "r");
	while (f && fgets(line, sizeof(line), f)) {
		unsigned long begin, end, inode = 0;
		char rights[8], name[256] = "";
		int n = sscanf(line, "%lx-%lx %7s %*s %*s %lu %255s", &begin, &end, rights, &inode, name);
		if (n >= 4 && inode == 0 && !name[0] && !strcmp(rights, "rw-p"))
			sum += (int64_t)(end - begin);
	}
	fclose(f);
	return sum;
}

/* What the plan says is what the kernel has mapped, up to the pages that each mapping's end fills. */
static void check_mappings(void)
{
#ifdef __SANITIZE_ADDRESS__
	const int64_t heap = 1 << 16; /* AddressSanitizer's heap grows by anonymous mappings of this size */
#else
	const int64_t heap = 0;
#endif
	RtModel m = toy_model("adamw");
	static RtOptions o = {.program = "toy"};
	Diag d = {.out = stderr};
	m.layout.act_bytes = (INT64_C(5) << 20) + 12345;
	m.layout.work_bytes = 100;
	struct RtPrivate p = {.arena = arena_new(), .options = &o};
	Rt rt = {.model = &m, .p = &p};
	CU_ASSERT_FATAL(optim_init(&p.optim, &m, &(LayoutRank){0, 1, 1}, p.arena, "toy", &d));
	CU_ASSERT_FATAL(device_map(&rt, &d)); /* once for what the C library keeps for itself */
	device_unmap(&rt);
	int64_t before = anonymous_bytes(), planned = 0;
	CU_ASSERT_FATAL(device_map(&rt, &d));
	int64_t mapped = anonymous_bytes() - before;
	for (int i = 0; i < ARENA_COUNT; i++)
		planned += round_up(p.memory.planned[i], sysconf(_SC_PAGESIZE));
	CU_ASSERT(mapped >= planned && mapped <= planned + heap);
	CU_ASSERT_EQUAL((uintptr_t)rt.act % 64, 0);
	device_unmap(&rt);
	CU_ASSERT(anonymous_bytes() - before >= 0 && anonymous_bytes() - before <= heap);
	arena_free(p.arena);
}

static void test_memory(void)
{
	RtModel m = toy_model("adamw");
	static const struct { const char *name; int64_t bytes; } plan[] = {{"parameters", (128 + 64) * 4},
		{"gradients", 128 * 4}, {"optimizer states", 2 * 128 * 4}, {"buffers", 128}, {"inputs", 128},
		{"activations", TOY_ACT}, {"workspace", 0}, {"total", 2816}};
	EXPECT(&m, "--print-plan", 0, "planned bytes");
	for (int i = 0; i < COUNT_OF(plan); i++) {
		long long planned = -1;
		const char *line = strstr(toy_said, plan[i].name);
		CU_ASSERT_PTR_NOT_NULL_FATAL(line);
		sscanf(line + strlen(plan[i].name), "%lld", &planned);
		CU_ASSERT_EQUAL(planned, plan[i].bytes);
	}
	check_mappings();
	m.layout.act_bytes = INT64_C(1) << 46;
	EXPECT(&m, "--print-plan", 3, "bytes for activations cannot be mapped");
	m.layout.act_bytes = TOY_ACT;
	m.forward = counting_forward;
	EXPECT(&m, DATA "--steps 64 --log log.jsonl", 0, "trained to step 64");
}

static void test_inference(void)
{
	RtModel m = toy_model(NULL);
	Diag d = {.out = stderr};
	Npy npy;
	CU_ASSERT_EQUAL(system("mkdir in && cp x4.npy in/x.npy && cp some.npy in/input_1.npy"), 0);
	EXPECT(&m, "--infer in out", 0, "");
	CU_ASSERT_FATAL(npy_open(&npy, "out/out_logits.npy", &d));
	CU_ASSERT(npy.header.rank == 2 && npy.header.dim[0] == TOY_B && npy.header.dim[1] == TOY_C);
	double y = 0.25;
	for (int k = 0; k < TOY_D; k++)
		y += toy_first(2 * TOY_D + k) * (toy_data.x[3][k] * 2.0 + 0.5);
	CU_ASSERT_DOUBLE_EQUAL(((const float *)npy.data)[3 * TOY_C + 2], y, 1e-6);
	npy_close(&npy);
	CU_ASSERT(toy_same_files("out/x.npy", "in/x.npy"));
	CU_ASSERT_EQUAL(system("cp x.npy in/x.npy"), 0);
	EXPECT(&m, "--infer in out", 1, "in/x.npy: error: shape [10,4] f32, input \"x\" wants [4,4] f32");
	unlink("in/x.npy");
	EXPECT(&m, "--infer in out", 1, "in/x.npy: error: input \"x\" is neither here nor in input_0.npy");
	m.eval = NULL;
	EXPECT(&m, "--infer in out", 2, "compiled for training");
}

void suite_runtime(void)
{
	CU_pSuite s = CU_add_suite("runtime", toy_enter, toy_leave);
	CU_ADD_TEST(s, test_optimizers);
	CU_ADD_TEST(s, test_ignored_labels);
	CU_ADD_TEST(s, test_evaluation);
	CU_ADD_TEST(s, test_usage);
	CU_ADD_TEST(s, test_data_errors);
	CU_ADD_TEST(s, test_bad_label);
	CU_ADD_TEST(s, test_not_finite);
	CU_ADD_TEST(s, test_weight_files);
	CU_ADD_TEST(s, test_processor);
	CU_ADD_TEST(s, test_memory);
	CU_ADD_TEST(s, test_inference);
}
