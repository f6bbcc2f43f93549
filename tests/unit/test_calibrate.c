/* tests/unit/test_calibrate.c: what calibrate makes of traces, whose times are known: no program runs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calibrate/private.h"
#include "passes/passes.h"
#include "tests/unit/unit.h"

static char path[] = "/tmp/test_calibrate_" "XX" "XX" "XX" ".json";

static bool equal(double x, double y)
{
	return fabs(x - y) <= 1e-4 * fabs(y);
}

/* ---- traces ---- */

/* A step of 100 us: op 0 alone, op 1 beside a gather for half of its time, op 2 beside two collectives at once. */
static const char head[] = "{\"traceEvents\": [\n";
#define SLICE(cat, tid, ts, dur, args) "{\"ph\": \"X\", \"cat\": \"" cat "\", \"tid\": " tid ", \"ts\": " ts \
	", \"dur\": " dur ", \"args\": {\"program\": \"step\", \"step\": 3, " args "}}"
static const char ops[] = SLICE("relu", "0", "1000", "20", "\"op\": 0") ",\n"
	SLICE("relu", "0", "1020", "40", "\"op\": 1") ",\n" SLICE("relu", "0", "1060", "40", "\"op\": 2") ",\n"
	SLICE("wait", "0", "1100", "5", "\"op\": 5") ",\n" SLICE("issue", "0", "1105", "3", "\"op\": 7, \"seq\": 4") ",\n";
static const char first[] = SLICE("all_gather", "1", "1000", "40", "\"op\": 3, \"seq\": 1, \"bytes\": 64") ",\n"
	SLICE("all_gather", "1", "1040", "60", "\"op\": 4, \"seq\": 2, \"bytes\": 64") ",\n"
	SLICE("reduce_scatter", "2", "1070", "20", "\"op\": 6, \"seq\": 3, \"bytes\": 32") "]}\n";
/* The other rank comes later to the first gather, and has all of the second one earlier. */
static const char second[] = SLICE("all_gather", "1", "1020", "20", "\"op\": 3, \"seq\": 1, \"bytes\": 64") ",\n"
	SLICE("all_gather", "1", "1060", "30", "\"op\": 4, \"seq\": 2, \"bytes\": 64") ",\n"
	SLICE("reduce_scatter", "2", "1070", "20", "\"op\": 6, \"seq\": 3, \"bytes\": 32") "]}\n";

static void write_trace(const char *to, const char *collectives)
{
	FILE *f = fopen(to, "w");
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	fprintf(f, "%s%s%s", head, ops, collectives);
	fclose(f);
}

static void traces(void)
{
	Arena *a = arena_new();
	Diag d = {.out = stderr};
	Steps s;
	const char *other = arena_printf(a, "%.*s.rank1.json", (int)strlen(path) - 5, path);
	write_trace(path, first);
	write_trace(other, second);
	if (!steps_read(path, 2, &s, a, &d))
		UNIT_END("the traces are not read");
	CU_ASSERT_EQUAL_FATAL(s.ops.n, 3);
	CU_ASSERT(equal(s.ops.at[1].seconds, 40e-6));
	CU_ASSERT(equal(s.seconds, 100e-6));
	CU_ASSERT(equal(s.whole, 108e-6));
	CU_ASSERT_EQUAL_FATAL(s.issues.n, 1);
	CU_ASSERT(s.issues.at[0].number == 7 && equal(s.issues.at[0].seconds, 3e-6));
	CU_ASSERT(s.ops.at[0].beside < 1e-6);
	CU_ASSERT(equal(s.ops.at[1].beside, 0.5));
	CU_ASSERT(equal(s.ops.at[2].beside, 0.75));
	CU_ASSERT_EQUAL_FATAL(s.transfers.n, 3);
	CU_ASSERT(equal(s.transfers.at[0].seconds, 20e-6));
	CU_ASSERT(equal(s.transfers.at[1].seconds, 30e-6));
	unlink(other);
	arena_free(a);
}

/* Steps, one behind the other: of so many us, all of them an op's. */
static Steps read_steps(const int *us, int n, Arena *a)
{
	Diag d = {.out = stderr};
	Steps s = {0};
	FILE *f = fopen(path, "w");
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	fprintf(f, "{\"traceEvents\": [");
	for (int i = 0, at = 0; i < n; at += us[i++]) {
		fprintf(f, "%s\n{\"ph\": \"X\", \"cat\": \"relu\", \"tid\": 0, \"ts\": %d, \"dur\": %d, ", i ? "," : "",
			at, us[i]);
		fprintf(f, "\"args\": {\"program\": \"step\", \"step\": %d, \"op\": 0}},\n", i);
		fprintf(f, "{\"ph\": \"X\", \"cat\": \"all_reduce\", \"tid\": 2, \"ts\": %d, \"dur\": %d, ", at, us[i] / 2);
		fprintf(f, "\"args\": {\"program\": \"step\", \"step\": %d, \"op\": 1, \"seq\": 1, \"bytes\": 8}}", i);
	}
	fprintf(f, "]}\n");
	fclose(f);
	CU_ASSERT(steps_read(path, 1, &s, a, &d));
	return s;
}

/* Of a run's steps the middle half counts, without one in which the program was stopped. */
static void middle(void)
{
	static const int seven[] = {900, 400, 800, 100, 700, 300, 9000}, stopped[] = {9000, 600, 9000, 600, 9000, 500, 700},
		few[] = {200};
	Arena *a = arena_new();
	Steps s = read_steps(seven, COUNT_OF(seven), a);
	CU_ASSERT(equal(s.whole, 550e-6) && equal(s.seconds, 550e-6) && equal(s.ops.at[0].seconds, 550e-6));
	CU_ASSERT_EQUAL_FATAL(s.transfers.n, 1);
	CU_ASSERT(equal(s.transfers.at[0].seconds, 200e-6)); /* the quartile of 150, 200, 350 and 400 */
	s = read_steps(stopped, COUNT_OF(stopped), a);
	CU_ASSERT(equal(s.whole, 600e-6) && equal(s.ops.at[0].seconds, 600e-6));
	s = read_steps(few, COUNT_OF(few), a);
	CU_ASSERT(equal(s.whole, 200e-6));
	arena_free(a);
}

/* Of runs, too: what is between the shortest and the longest quarter. */
static void mean_of_runs(void)
{
	static const int us[][2] = {{500, 500}, {100, 100}, {800, 600}, {300, 300}, {9000, 9000}};
	Arena *a = arena_new();
	Steps run[COUNT_OF(us)];
	double spread;
	for (int i = 0; i < COUNT_OF(us); i++) {
		Steps s = read_steps(us[i], 2, a);
		run[i] = steps_copy(&s, a);
		run[i].ops.at[0].beside = 0.1 * i;
		vec_push(a, &run[i].issues, ((StepOp){0, 1e-6 * i, 0}));
	}
	Steps s = steps_mean(run, COUNT_OF(us), &spread); /* 300, 500 and 700: runs 3, 0 and 2 */
	CU_ASSERT(equal(s.whole, 500e-6) && equal(s.seconds, 500e-6) && equal(s.ops.at[0].seconds, 500e-6));
	CU_ASSERT(equal(s.transfers.at[0].seconds, (150e-6 + 250e-6 + 300e-6) / 3));
	CU_ASSERT(equal(s.ops.at[0].beside, 0.5 / 3) && equal(s.issues.at[0].seconds, 5e-6 / 3));
	CU_ASSERT(equal(spread, 4.0 / 3));
	s = steps_mean(run, 1, &spread);
	CU_ASSERT(equal(s.whole, 100e-6) && spread == 0);
	arena_free(a);
}

/* ---- machines ---- */

/* What an op takes, and how many times as long beside a collective. */
enum { OP_US = 10, STREAM_GB = 20 };
static const double slower = 1.25;
/* By how much a step is longer: of one rank, of ranks that have a core each, of ranks that take turns. */
static const MachineSkew alone = {1.03125, 0}, beside = {1.0625, 2e-6}, in_turns = {1.5, 20e-6};

static double seconds_of(const Op *op)
{
	Work w = cost_of(op, &(LayoutRank){.world = 1, .shard_size = 1});
	return MAX(OP_US * 1e-6, w.bytes / (STREAM_GB * 1e9));
}

/* What a run of the program would record: every second op runs beside a collective, if that has a thread or a GPU's
 * stream. */
static Steps recorded(const Module *m, const RunAs *as, Arena *a)
{
	Steps s = {0};
	bool contends = as->yields & YIELDS_CONTENTION;
	MachineSkew skew = as->layout.ranks == 1 ? alone : as->turns > 1 ? in_turns : beside;
	double issuing = 0;
	int number = 0;
	for (int section = SEC_FORWARD; section <= SEC_UPDATE; section++)
		IR_FOR_OPS(m, section, op) {
			bool slow = contends && number % 2;
			StepOp x = {number++, seconds_of(op) * (slow ? slower : 1), slow};
			vec_push(a, &s.ops, x);
			s.seconds += x.seconds;
			if (cost_of_issue(op, &(LayoutRank){.world = 1, .shard_size = 1}).class == COST_NONE)
				continue;
			vec_push(a, &s.issues, ((StepOp){x.number, OP_US * 1e-6, 0}));
			issuing += OP_US * 1e-6;
		}
	s.whole = (s.seconds + issuing) * as->turns * skew.times;
	if (as->layout.ranks > 1) {
		vec_push(a, &s.transfers, ((StepTransfer){RT_ALL_GATHER, 1e6, 1e-3}));
		vec_push(a, &s.transfers, ((StepTransfer){RT_ALL_GATHER, 1e3, as->comm == COMM_MPI ? 1e-9 : 1e-5}));
		s.whole += 1e-3 + s.transfers.at[1].seconds + 2 * skew.each;
	}
	return s;
}

/* The options of a probe that decide what its ops are: libraries have no reader of options. */
static Options options_of(const Probe *p)
{
	bool cuda = strstr(p->options, "--target=cuda"), tf32 = strstr(p->options, "--matmul-precision=tf32");
	return (Options){.graph = {.loss = "output:loss", .optimizer = "sgd"},
		.precision = {.param_dtype = strstr(p->options, "--param-dtype=bf16") ? DT_BF16 : DT_F32,
			.matmul_precision = tf32 ? MATMUL_TF32 : MATMUL_HIGHEST},
		.target = {.target = cuda ? TARGET_CUDA : TARGET_CPU}};
}

static void add_program(Measured *all, const Probe *p, const RunAs *run, int n, Arena *a)
{
	Diag d = {.out = stderr, .quiet = true};
	Options o = options_of(p);
	Variants v = {{NULL}};
	PipelineView silent = {.out = stdout};
	Steps s[RUNS_MAX];
	if (!ir_parse_program(p->name, p->text, &v, &d)
			|| !pipeline_run(v.of[VARIANT_ONLY], &o, &silent, NULL, &d))
		UNIT_END("a probe does not compile");
	const Module *m = v.of[VARIANT_ONLY];
	for (int i = 0; i < n; i++) {
		s[i] = recorded(m, &run[i], a);
		measured_add(all, m, &o, (MeasuredRun){&run[i], &s[i]}, a);
		if (run[i].yields & YIELDS_CONTENTION)
			measured_beside(all, m, &o, (MeasuredRun){&run[i], &s[i]},
				(MeasuredRun){&run[run[i].alone], &s[run[i].alone]}, a);
		if (run[i].yields & YIELDS_STEP)
			measured_step(all, p->name, m, &o, (MeasuredRun){&run[i], &s[i]}, a);
	}
	ir_module_free(v.of[VARIANT_ONLY]);
}

/* The machine file of a host that takes these times. */
static Machine *calibrated(const Host *h, bool mpi, Arena *a)
{
	Probe probe[PROBES_MAX];
	RunAs run[RUNS_MAX];
	Diag d = {.out = stderr};
	Measured all = {.host = h, .by_op = map_new(a)};
	int n = runs_choose(run, h, mpi), programs = probes_write(probe, h->cuda, h->cuda ? 6 : 0, a);
	for (int i = 0; i < programs; i++)
		add_program(&all, &probe[i], run, n, a);
	if (!measured_write(&all, NULL, path, true, &d))
		UNIT_END("the file is not written");
	Machine *m = machine_read(path, a, &d);
	CU_ASSERT_PTR_NOT_NULL_FATAL(m);
	CU_ASSERT_EQUAL(m->cuda, h->cuda);
	CU_ASSERT_EQUAL(m->of[MACHINE_RANKS], h->ranks);
	CU_ASSERT(equal(m->of[MACHINE_BANDWIDTH], STREAM_GB * 1e9));
	return m;
}

static int count_rows(const Machine *m, Communicator comm, int ranks)
{
	int n = 0;
	for (int i = 0; i < m->n_collectives; i++)
		n += m->collective[i].comm == comm && m->collective[i].ranks == ranks;
	return n;
}

static bool like(MachineSkew x, MachineSkew y)
{
	return fabs(x.times - y.times) < 1e-4 && fabs(x.each - y.each) < 1e-7;
}

/* Steps of which not all coefficients follow: all with the same collectives for their ops, faster than their ops, with
 * collectives that save time. */
static void odd_steps(void)
{
	MachineStep alike[] = {{"a", {2, 1}, 10, 1, 1.5}, {"b", {2, 1}, 20, 2, 3}}, fast[] = {{"a", {2, 1}, 10, 1, 0.5}},
		saving[] = {{"a", {2, 1}, 10, 1, 1.25}, {"b", {2, 1}, 0, 1, 1.5}};
	Machine m = {.of[MACHINE_RANKS] = 2, .step = alike, .n_steps = 2};
	MachineLayout l = {2, 1};
	CU_ASSERT(like(machine_skew(&m, l), (MachineSkew){1.5, 0}));
	m.step = fast, m.n_steps = 1;
	CU_ASSERT(like(machine_skew(&m, l), (MachineSkew){1, 0}));
	m.step = saving, m.n_steps = 2;
	MachineSkew s = machine_skew(&m, l);
	CU_ASSERT(s.times > 1.25 && s.times < 1.5 && s.each == 0);
	CU_ASSERT(like(machine_skew(&m, (MachineLayout){1, 1}), (MachineSkew){1, 0}));
}

/* A step that something else on the machine made long is out of line with the others, and does not pull. */
static void disturbed_steps(void)
{
	MachineStep step[] = {{"a", {2, 1}, 10, 1, 1.03}, {"b", {2, 1}, 0, 1, 1.02}, {"c", {2, 1}, 40, 2, 2.08},
		{"d", {2, 1}, 20, 1, 1.6}, {"e", {2, 1}, 30, 3, 3.09}};
	Machine m = {.of[MACHINE_RANKS] = 2, .step = step, .n_steps = COUNT_OF(step)};
	MachineSkew s = machine_skew(&m, (MachineLayout){2, 1});
	CU_ASSERT(fabs(s.times - 1.02) < 2e-3 && fabs(s.each - 0.001) < 1e-4);
}

/* Of steps that are shorter than a millisecond most is how threads wake, so longer ones decide where there are some. */
static void short_steps(void)
{
	MachineStep step[] = {{"tiny", {2, 1}, 10, 1e-4, 6e-4}, {"long", {2, 1}, 10, 1, 1.02}};
	Machine m = {.of[MACHINE_RANKS] = 2, .step = step, .n_steps = 2};
	CU_ASSERT(like(machine_skew(&m, (MachineLayout){2, 1}), (MachineSkew){1.02, 0}));
	m.n_steps = 1;
	CU_ASSERT(like(machine_skew(&m, (MachineLayout){2, 1}), (MachineSkew){6, 0}));
}

/* Probes say how much collectives add to ops, and the steps of models how long both are together. */
static void steps_of_models(void)
{
	MachineStep step[] = {{"probe a", {2, 1}, 0, 1, 1.2}, {"probe b", {2, 1}, 10, 1, 1.3}, {"c", {2, 1}, 5, 1, 1.125},
		{"probe d", {2, 1}, 20, 2, 2.6}};
	Machine m = {.of[MACHINE_RANKS] = 2, .step = step, .n_steps = COUNT_OF(step)};
	MachineSkew s = machine_skew(&m, (MachineLayout){2, 1});
	CU_ASSERT(fabs(s.times - 1.08) < 2e-3 && fabs(s.each - 0.009) < 1e-3 && equal(s.times + 5 * s.each, 1.125));
	step[2].rest = 0.625; /* ops alone take a second */
	s = machine_skew(&m, (MachineLayout){2, 1});
	CU_ASSERT(s.times == 1 && fabs(s.each - 0.0078) < 1e-4);
}

static void cores(void)
{
	Arena *a = arena_new();
	Machine *m = calibrated(&(Host){.ranks = 4, .memory = 1e9, .name = "four"}, true, a);
	CU_ASSERT(equal(m->of[MACHINE_CONTENTION], slower));
	CU_ASSERT_PTR_NOT_NULL(strstr(m->source[MACHINE_CONTENTION], "measured by shardc calibrate: "));
	CU_ASSERT_EQUAL(count_rows(m, COMM_SHM, 4), 2);
	CU_ASSERT_EQUAL(count_rows(m, COMM_SHM, 8), 2);
	CU_ASSERT(like(machine_skew(m, (MachineLayout){1, 4}), alone));
	CU_ASSERT(like(machine_skew(m, (MachineLayout){4, 1}), beside));
	CU_ASSERT(like(machine_skew(m, (MachineLayout){2, 2}), beside));
	CU_ASSERT(like(machine_skew(m, (MachineLayout){6, 1}), in_turns));
	CU_ASSERT_EQUAL(count_rows(m, COMM_MPI, 4), 2);
	CU_ASSERT(equal(m->of[MACHINE_LINK_LATENCY], 1e-5)); /* of shm, not of mpi */
	m = calibrated(&(Host){.ranks = 2, .memory = 1e9, .name = "two"}, false, a);
	CU_ASSERT_EQUAL(m->of[MACHINE_CONTENTION], 1);
	CU_ASSERT_PTR_NOT_NULL(strstr(m->source[MACHINE_CONTENTION], "taken to be 1: two ranks leave no core of 2"));
	CU_ASSERT_EQUAL(count_rows(m, COMM_MPI, 2), 0);
	arena_free(a);
}

static void gpus(void)
{
	Arena *a = arena_new();
	Host h = {.cuda = true, .ranks = 2, .memory = 8e9, .processors = 100, .capability = 9.0, .name = "two GPUs"};
	Machine *m = calibrated(&h, false, a);
	int rounded = 0;
	for (int i = 0; i < m->n_kernels; i++) {
		rounded += m->kernel[i].tf32;
		CU_ASSERT(m->kernel[i].layout.ranks == 1 && m->kernel[i].layout.threads == 1);
		CU_ASSERT(!m->kernel[i].tf32 || (m->kernel[i].flops > 0 && strstr(m->kernel[i].op, " f32[")));
	}
	CU_ASSERT(rounded > 0);
	CU_ASSERT_EQUAL(m->of[MACHINE_PROCESSORS], 100);
	CU_ASSERT(equal(m->of[MACHINE_CAPABILITY], 9.0));
	CU_ASSERT(equal(m->of[MACHINE_CONTENTION], slower));
	CU_ASSERT_EQUAL(count_rows(m, COMM_NCCL, 2), 2);
	CU_ASSERT_EQUAL(m->n_steps, 0);
	CU_ASSERT(like(machine_skew(m, (MachineLayout){1, 1}), (MachineSkew){1, 0}));
	h.ranks = 1;
	m = calibrated(&h, false, a);
	CU_ASSERT_PTR_NULL(m->source[MACHINE_LINK]);
	CU_ASSERT_EQUAL(m->of[MACHINE_CONTENTION], 1);
	CU_ASSERT_EQUAL(m->n_collectives, 0);
	arena_free(a);
}

/* The ops of two layouts, both as a probe's module has them. */
static Measured measure_all(const Host *h, const Module *m, const Options *o, double one, double two, Arena *a)
{
	RunAs as[2] = {{.yields = YIELDS_KERNELS, .layout = {1, 1}, .turns = 1},
		{.yields = YIELDS_KERNELS, .layout = {2, 1}, .turns = 1}};
	Measured all = {.host = h, .by_op = map_new(a)};
	for (int i = 0; i < 2; i++) {
		Steps s = recorded(m, &as[i], a);
		for (int k = 0; k < s.ops.n; k++)
			s.ops.at[k].seconds *= k % 2 ? i ? two : one : 1;
		measured_add(&all, m, o, (MeasuredRun){&as[i], &s}, a);
	}
	return all;
}

/* What was measured now replaces what the file had; the rest of it stays. */
static void again(void)
{
	Arena *a = arena_new();
	Diag d = {.out = stderr, .quiet = true};
	Host h = {.ranks = 2, .memory = 1e9, .name = "two"};
	Probe probe[PROBES_MAX];
	probes_write(probe, false, 0, a);
	Options o = options_of(&probe[0]);
	Variants v = {{NULL}};
	PipelineView silent = {.out = stdout};
	if (!ir_parse_program(probe[0].name, probe[0].text, &v, &d)
			|| !pipeline_run(v.of[VARIANT_ONLY], &o, &silent, NULL, &d))
		UNIT_END("a probe does not compile");
	const Module *m = v.of[VARIANT_ONLY];
	Measured then = measure_all(&h, m, &o, 2, 0.5, a), now = measure_all(&h, m, &o, 1, 1, a),
		all = measure_all(&h, m, &o, 1, 1, a);
	MachineKernel *row = NEW_N(a, MachineKernel, then.kernels.n + 1);
	MachineStep old[] = {{"both", {2, 1}, 0, 1, 1.5}, {"then", {2, 1}, 0, 1, 2}};
	MachineCollective talked[] = {{RT_ALL_GATHER, 2, 8, 1e-6, COMM_SHM}, {RT_ALL_GATHER, 2, 16, 2e-6, COMM_SHM}};
	for (int i = 0; i < then.kernels.n; i++)
		row[i] = then.kernels.at[i].row;
	row[then.kernels.n] = (MachineKernel){.op = "other", .kind = "other", .layout = {1, 1}, .seconds = 3};
	Steps step = {.seconds = 1, .whole = 1.75};
	vec_push(a, &step.transfers, ((StepTransfer){RT_ALL_GATHER, 8, 5e-6}));
	MeasuredRun run = {&(RunAs){.yields = YIELDS_COLLECTIVES, .layout = {2, 1}, .comm = COMM_SHM, .turns = 1}, &step};
	measured_add(&all, m, &o, run, a);
	measured_step(&all, "both", m, &o, run, a);
	measured_join(&all, &(Machine){.kernel = row, .n_kernels = then.kernels.n + 1, .step = old, .n_steps = 2,
		.collective = talked, .n_collectives = 2}, a);
	CU_ASSERT_EQUAL_FATAL(all.kernels.n, now.kernels.n + 1);
	for (int i = 0; i < now.kernels.n; i++)
		CU_ASSERT_EQUAL(all.kernels.at[i].row.seconds, now.kernels.at[i].row.seconds);
	CU_ASSERT_EQUAL(all.kernels.at[now.kernels.n].row.seconds, 3);
	CU_ASSERT(all.steps.n == 2 && equal(all.steps.at[0].rest, 1.75 - 5e-6) && all.steps.at[1].rest == 2);
	CU_ASSERT(all.collectives.n == 2 && all.collectives.at[0].seconds == 5e-6 && all.collectives.at[1].seconds == 2e-6);
	ir_module_free(v.of[VARIANT_ONLY]);
	arena_free(a);
}

static int make_file(void)
{
	int fd = mkstemps(path, 5);
	return fd < 0 || close(fd);
}

static int remove_file(void)
{
	return unlink(path);
}

void suite_calibrate(void)
{
	CU_pSuite s = CU_add_suite("calibrate", make_file, remove_file);
	CU_add_test(s, "what traces say", traces);
	CU_add_test(s, "steps in the middle", middle);
	CU_add_test(s, "runs in the middle", mean_of_runs);
	CU_add_test(s, "a machine of cores", cores);
	CU_add_test(s, "a machine of GPUs", gpus);
	CU_add_test(s, "steps that do not say all", odd_steps);
	CU_add_test(s, "steps that were disturbed", disturbed_steps);
	CU_add_test(s, "short steps", short_steps);
	CU_add_test(s, "steps of models beside those of probes", steps_of_models);
	CU_add_test(s, "what was measured before", again);
}
