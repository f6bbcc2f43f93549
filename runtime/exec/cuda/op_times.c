/* runtime/exec/cuda/op_times.c: --time-ops FILE: the time of each kernel of a step alone, beside the GPU's ceilings.
 *
 * Ops of one kind, shape and dtype take the same time, so one of them is measured, where it stands in the step: there
 * its operands are those of a step.  What its calls issue is captured, and a graph with many copies of it runs between
 * two events: a series without the gaps between launches.  Other ops run call by call.
 *
 * Ops that write what they read are measured in runs of their own, which end behind the series: what comes after it
 * would have other numbers, and numbers that are zero or not finite take less power, so other kernels would seem
 * faster.  Before what is issued to other streams, or waited for, the host waits for the device. */
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/work.h"
#include "runtime/exec/cuda/backend.h"
#include "runtime/exec/cuda/cuda.h"

enum { SERIES = 7, MOST_CALLS = 200 };
static const double LONG_ENOUGH = 20e-3;  /* seconds of a series */
static const double FOR_CEILINGS = 0.1;   /* of the budget */
static const char first_member[] = "{\"timed\"";

typedef struct Timed {
	double ms, least, most; /* of a call: the median of several series, and the ends of their range */
	double wall;            /* seconds of a call that the host waits for */
	int series, calls;      /* calls in a series; 0: nothing is launched */
} Timed;

struct OpTimes {
	FILE *file;
	Trace *marks;
	const RtOp *rows;       /* of the step */
	int n, next;            /* rows; that of the next mark */
	int *count;             /* [kernel]: ops of the step */
	bool *done;             /* [kernel] */
	int left;               /* kernels */
	bool changing;          /* this run measures ops that write what they read: the first one, behind which it ends */
	const RtOp *now;        /* whose calls are captured; NULL: none */
	double end;             /* when the budget is over, in seconds */
	double product[DT_COUNT], copy; /* ceilings: TFLOP/s, GB/s; 0: not known */
	double sum;             /* ms: calls of the step's kernels, each as often as the step has it */
	cudaEvent_t from, till;
	jmp_buf leave;
};

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static cudaStream_t compute(const Rt *rt)
{
	return rt->p->cuda->stream[CUDA_COMPUTE];
}

/* ---- series ---- */

static void begin_capture(const Rt *rt)
{
	cuda_must(cudaStreamBeginCapture(compute(rt), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

static cudaGraph_t end_capture(const Rt *rt)
{
	cudaGraph_t graph;
	cuda_must(cudaStreamEndCapture(compute(rt), &graph), "cudaStreamEndCapture");
	return graph;
}

static cudaGraphExec_t instantiate(cudaGraph_t graph)
{
	cudaGraphExec_t exec;
	cuda_must(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagUseNodePriority), "cudaGraphInstantiate");
	return exec;
}

/* n copies of a graph, each behind the one before it. */
static cudaGraphExec_t repeated(cudaGraph_t one, int n)
{
	cudaGraph_t all;
	cudaGraphNode_t last = NULL;
	cuda_must(cudaGraphCreate(&all, 0), "cudaGraphCreate");
	for (int i = 0; i < n; i++) {
		cudaGraphNode_t before = last;
		cuda_must(cudaGraphAddChildGraphNode(&last, all, i ? &before : NULL, i > 0, one),
			"cudaGraphAddChildGraphNode");
	}
	cudaGraphExec_t exec = instantiate(all);
	cuda_must(cudaGraphDestroy(all), "cudaGraphDestroy");
	return exec;
}

/* Seconds until the graph has run. */
static double run_once(const Rt *rt, cudaGraphExec_t exec)
{
	double begin = now_s();
	cuda_must(cudaGraphLaunch(exec, compute(rt)), "cudaGraphLaunch");
	cuda_must(cudaStreamSynchronize(compute(rt)), "a series");
	return now_s() - begin;
}

/* Milliseconds of one of its calls. */
static double run_series(const Rt *rt, const OpTimes *t, cudaGraphExec_t exec, int calls)
{
	float ms = 0;
	cuda_must(cudaEventRecord(t->from, compute(rt)), "cudaEventRecord");
	cuda_must(cudaGraphLaunch(exec, compute(rt)), "cudaGraphLaunch");
	cuda_must(cudaEventRecord(t->till, compute(rt)), "cudaEventRecord");
	cuda_must(cudaEventSynchronize(t->till), "a series");
	cuda_must(cudaEventElapsedTime(&ms, t->from, t->till), "cudaEventElapsedTime");
	return (double)ms / calls;
}

static int less(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Takes about so many seconds, or what three calls and a series need. */
static Timed measure(const Rt *rt, const OpTimes *t, cudaGraph_t one, double seconds)
{
	double ms[SERIES], begin = now_s();
	Timed m = {0};
	size_t nodes = 0;
	cuda_must(cudaGraphGetNodes(one, NULL, &nodes), "cudaGraphGetNodes");
	if (!nodes)
		return m;
	cudaGraphExec_t exec = instantiate(one);
	run_once(rt, exec); /* loads what is loaded when it is first used */
	m.wall = run_once(rt, exec);
	double n = MIN(LONG_ENOUGH, seconds / (SERIES + 1)) / MAX(m.wall, 1e-9);
	m.calls = n > MOST_CALLS ? MOST_CALLS : (int)MAX(n, 1);
	cuda_must(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
	exec = repeated(one, m.calls);
	run_once(rt, exec);
	do
		ms[m.series++] = run_series(rt, t, exec, m.calls);
	while (m.series < SERIES && now_s() - begin < seconds);
	cuda_must(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
	qsort(ms, (size_t)m.series, sizeof(*ms), less);
	m.ms = ms[m.series / 2];
	m.least = ms[0];
	m.most = ms[m.series - 1];
	return m;
}

/* The members that every measured row ends with; behind them stands nothing. */
static void put_timed(const OpTimes *t, const Timed *m)
{
	fprintf(t->file, "\"ms\":%.6g,\"least\":%.6g,\"most\":%.6g,\"series\":%d,\"calls\":%d}\n", m->ms, m->least, m->most,
		m->series, m->calls);
	fflush(t->file);
}

/* ---- ceilings: larger ones are tried as long as there is memory and time for them ---- */

enum { GROWS = 8 /* times as long */, ATTEMPTS = 8 };

/* Words of one f32, or of two 16-bit numbers, of both signs and sizes near 1: zeros would take less power.  NULL: there
 * is no memory beside the plan's. */
static char *numbers(const Rt *rt, int64_t bytes)
{
	enum { TILE = 1 << 18 };
	static uint32_t tile[TILE / 4];
	char *at = NULL;
	for (uint32_t i = 0; i < TILE / 4; i++)
		tile[i] = 0x3f003f00 | (i * 2654435761u >> 3 & 0x807f807f);
	if (cudaMalloc((void **)&at, (size_t)bytes) != cudaSuccess) {
		cudaGetLastError(); /* it is dealt with */
		return NULL;
	}
	int64_t done = MIN(bytes, TILE);
	cuda_send(at, tile, (size_t)done);
	for (int64_t more; done < bytes; done += more) {
		more = MIN(done, bytes - done);
		cuda_must(cudaMemcpyAsync(at + done, at, (size_t)more, cudaMemcpyDeviceToDevice, compute(rt)),
			"cudaMemcpyAsync");
	}
	cuda_must(cudaStreamSynchronize(compute(rt)), "cudaStreamSynchronize");
	return at;
}

/* A copy of `size` bytes, or a product of square matrices with sides of `size`. */
static bool try_one(const Rt *rt, const OpTimes *t, bool copies, DType dtype, int64_t size, double seconds, Timed *m)
{
	int64_t bytes = copies ? size : size * size * dtype_info[dtype].bytes;
	char *at = numbers(rt, 3 * bytes + K_LT_WORK);
	KPrim *p = copies || !at ? NULL : k_matmul_create(&(KMatmulDesc){.dtype = (KDType)dtype, .to = (KDType)dtype,
		.m = size, .n = size, .k = size, .work_bytes = K_LT_WORK});
	if (!at)
		return false;
	if (p)
		k_matmul_run(p, at, at + bytes, at + 2 * bytes, NULL, at + 3 * bytes); /* loads its kernel */
	begin_capture(rt);
	if (copies)
		cuda_must(cudaMemcpyAsync(at, at + bytes, (size_t)bytes, cudaMemcpyDeviceToDevice, compute(rt)),
			"cudaMemcpyAsync");
	else
		k_matmul_run(p, at, at + bytes, at + 2 * bytes, NULL, at + 3 * bytes);
	cudaGraph_t graph = end_capture(rt);
	*m = measure(rt, t, graph, seconds);
	cuda_must(cudaGraphDestroy(graph), "cudaGraphDestroy");
	if (p)
		k_prim_free(p);
	cuda_must(cudaFree(at), "cudaFree");
	return true;
}

/* Returns the rate of the largest that was tried: TFLOP/s, or GB/s read and written; 0: there is no memory. */
static double ceiling(const Rt *rt, const OpTimes *t, bool copies, DType dtype, double seconds)
{
	const int64_t most = copies ? 1 << 30 : 8192;
	Timed m = {0}, now;
	int64_t size = 0;
	for (int64_t next = most >> (ATTEMPTS - 1); next <= most && m.wall * 3 * GROWS < seconds / ATTEMPTS; next *= 2) {
		if (!try_one(rt, t, copies, dtype, next, seconds / ATTEMPTS, &now))
			break;
		m = now;
		size = next;
	}
	if (!size)
		return 0;
	double n = (double)size, rate = copies ? 2e-6 * n / m.ms : 2e-9 * n * n * n / m.ms;
	fprintf(t->file, "{\"ceiling\":\"%s\",\"dtype\":\"%s\",\"size\":%" PRId64 ",\"rate\":%.6g,\"unit\":\"%s\",",
		copies ? "copy" : "square product", copies ? "bytes" : dtype_info[dtype].text, size, rate,
		copies ? "GB/s" : "TFLOP/s");
	put_timed(t, &m);
	return rate;
}

/* Of copies, and of products of each type that the step multiplies, but for 8-bit floats. */
static void ceilings(const Rt *rt, OpTimes *t, double seconds)
{
	const RtModel *m = rt->model;
	bool wanted[DT_COUNT] = {false};
	int n = 1;
	for (int k = 0; k < m->n_kernels; k++) {
		DType x = m->kernels[k].dtype;
		if (t->count[k] && m->kernels[k].flops > 0 && dtype_is_float(x) && !dtype_is_scaled(x)) {
			n += !wanted[x];
			wanted[x] = true;
		}
	}
	t->copy = ceiling(rt, t, true, DT_F32, seconds / n);
	for (int x = 0; x < DT_COUNT; x++)
		if (wanted[x])
			t->product[x] = ceiling(rt, t, false, (DType)x, seconds / n);
}

/* ---- ops ---- */

/* The share of the ceiling: the least time that products or bytes need, over the time taken; 0: it is not known. */
static double percent(const OpTimes *t, const RtKernel *k, double ms)
{
	double least = 0;
	if (!t->copy || (k->flops > 0 && !t->product[k->dtype]) || !(ms > 0))
		return 0;
	if (k->flops > 0)
		least = k->flops / t->product[k->dtype] / 1e9;
	return 100 * MAX(least, k->bytes / t->copy / 1e6) / ms;
}

static void put_op(const Rt *rt, OpTimes *t, const RtOp *op, const Timed *m)
{
	static const char *const section[] = {"forward", "backward", "update", "eval"};
	const RtKernel *k = &rt->model->kernels[op->kernel - 1];
	int count = t->count[op->kernel - 1];
	double share = percent(t, k, m->ms);
	t->sum += count * m->ms;
	fprintf(t->file, "{\"kernel\":\"%s\",\"name\":\"%s\",\"section\":\"%s\",\"node\":\"%s\",\"op\":%d,\"count\":%d,"
		"\"flops\":%.0f,\"moved\":%.0f,\"rate\":%.6g,\"unit\":\"%s\",", k->text, op->name, section[op->section],
		op->node, op->number, count, k->flops, k->bytes,
		m->ms > 0 ? k->flops > 0 ? k->flops / m->ms / 1e9 : k->bytes / m->ms / 1e6 : 0,
		k->flops > 0 ? "TFLOP/s" : "GB/s");
	fprintf(t->file, share > 0 ? "\"percent\":%.4g," : "\"percent\":null,", share);
	fprintf(t->file, "\"changes\":%s,", op->changes ? "true" : "false");
	put_timed(t, m);
}

/* Behind the calls of an op. */
static void end_op(Rt *rt, OpTimes *t)
{
	const RtOp *op = t->now;
	t->now = NULL;
	if (!op)
		return;
	cudaGraph_t graph = end_capture(rt);
	Timed m = measure(rt, t, graph, MAX(t->end - now_s(), 0) / t->left);
	cuda_must(cudaGraphDestroy(graph), "cudaGraphDestroy");
	put_op(rt, t, op, &m);
	t->done[op->kernel - 1] = true;
	t->left--;
	if (op->changes)
		longjmp(t->leave, 1);
}

/* A mark: before the calls of the next op. */
static void at_op(Rt *rt)
{
	OpTimes *t = rt->p->cuda->times;
	end_op(rt, t);
	if (t->next == t->n)
		ice("a program has more than its %d ops", t->n);
	const RtOp *op = &t->rows[t->next++];
	if (op->kind != RT_COMPUTES)
		cuda_must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	else if (op->kernel && !t->done[op->kernel - 1] && op->changes == t->changing) {
		t->now = op;
		begin_capture(rt);
	}
}

void op_times_program(Rt *rt)
{
	OpTimes *t = rt->p->cuda->times;
	t->next = 0;
	streams_fork(rt);
	rt->trace = t->marks;
	if (!setjmp(t->leave)) {
		rt->model->forward(rt);
		rt->model->backward(rt);
		rt->model->update(rt);
		end_op(rt, t);
	}
	rt->trace = NULL;
	cuda_must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	streams_join(rt);
}

/* A step loads kernels and makes connections.  Updates that an overflow leaves out would take less time. */
static int settle(const Rt *rt, DeviceStep *step, void *context)
{
	enum { MOST_HALVES = 40 };
	int code = step(context);
	for (int i = 0; !code && rt->p->result.overflow && i < MOST_HALVES; i++)
		code = step(context);
	return code;
}

static int run_all(Rt *rt, OpTimes *t, DeviceStep *step, void *context)
{
	int code = EXIT_DONE;
	rt->p->cuda->times = t;
	while (!code && t->left) {
		int before = t->left;
		code = step(context);
		if (t->changing && before == t->left)
			ice("%d kernels of a step are never met", t->left);
		t->changing = true;
	}
	rt->p->cuda->times = NULL;
	return code;
}

/* ---- the file ---- */

static FILE *open_file(const char *path, Diag *d)
{
	FILE *f = NULL;
	if (!trace_may_replace(path, first_member))
		diag_error(d, path, "is there and was not written by --time-ops: it is not replaced; give another path, or "
			"remove it");
	else if (!(f = fopen(path, "w")))
		diag_error(d, path, "%s", strerror(errno));
	return f;
}

/* False where nothing can be written, which is seen before anything is measured. */
static bool put_head(const Rt *rt, const OpTimes *t)
{
	struct cudaDeviceProp p;
	cuda_must(cudaGetDeviceProperties(&p, rt->p->cuda->device), "cudaGetDeviceProperties");
	fprintf(t->file, "%s:\"%s\",\"program\":\"%016" PRIx64 "\",\"gpu\":\"%s\",\"budget\":%g}\n", first_member,
		str_escape(rt->p->arena, ESCAPE_JSON, rt->model->name), rt->model->hash,
		str_escape(rt->p->arena, ESCAPE_JSON, p.name), rt->p->options->time_budget);
	return fflush(t->file) == 0;
}

static OpTimes *times_new(Rt *rt, FILE *f)
{
	Arena *a = rt->p->arena;
	const RtModel *m = rt->model;
	OpTimes *t = NEW(a, OpTimes);
	*t = (OpTimes){.file = f, .marks = trace_marks(rt, at_op), .rows = m->step_ops.rows, .n = m->step_ops.n,
		.count = NEW_N(a, int, m->n_kernels + 1), .done = NEW_N(a, bool, m->n_kernels + 1)};
	for (int i = 0; i < t->n; i++)
		if (t->rows[i].kernel)
			t->left += !t->count[t->rows[i].kernel - 1]++;
	cuda_must(cudaEventCreate(&t->from), "cudaEventCreate");
	cuda_must(cudaEventCreate(&t->till), "cudaEventCreate");
	return t;
}

int device_time_ops(Rt *rt, DeviceStep *step, void *context, Diag *d)
{
	RtOptions *o = rt->p->options;
	o->time_budget = o->text[OPT_time_budget] ? o->time_budget : 30;
	FILE *f = open_file(o->time_ops, d);
	if (!f)
		return EXIT_INPUT;
	OpTimes *t = times_new(rt, f);
	int kernels = t->left, code = put_head(rt, t) ? settle(rt, step, context) : EXIT_RUN;
	double begin = now_s();
	t->end = begin + o->time_budget;
	if (!code) {
		ceilings(rt, t, FOR_CEILINGS * o->time_budget);
		if (!t->copy)
			diag_note(d, o->time_ops, "there is no memory beside the plan's to measure the GPU's ceilings");
		code = run_all(rt, t, step, context);
	}
	bool failed = ferror(f);
	failed = fclose(f) || failed;
	cudaEventDestroy(t->from);
	cudaEventDestroy(t->till);
	if (failed)
		diag_unwritten(d, o->time_ops);
	if (!code && !failed)
		printf("%d kernels of %d ops were timed in %.1f s: %.3f ms a step, alone; %s\n", kernels, t->n, now_s() - begin,
			t->sum, o->time_ops);
	return code ? code : failed ? EXIT_RUN : EXIT_DONE;
}
