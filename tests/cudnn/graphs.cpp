/* tests/cudnn/graphs.cpp: the real cuDNN, without a GPU, plans the graphs of attention and of convolutions
 * (convs.cpp) that programs make.
 *
 * The library compiles for a device that is only described (ahead of time, cuDNN 9.11 and later), so it says which
 * graphs its engines take and how much scratch they need; it computes nothing.  It wants a driver to be there: driver.c
 * stands for it. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/attention_graph.cuh"
#include "kernels/cuda/work.h"
#include "tests/cudasim/masks.h"
#include "tests/cudnn/device.h"

static void fail(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

extern "C" {
void (*k_fail)(const char *fmt, ...) __attribute__((format(printf, 1, 2))) = fail;
}

/* ---- devices ---- */

const Device h100 = {"H100", 900, 132, 232448}, a100 = {"A100", 800, 108, 166912};

/* What the library asks of a device, in the text that it writes itself. */
static cudnnBackendDescriptor_t describe(const Device &device)
{
	static char text[2048];
	cudnnBackendDescriptor_t d = NULL;
	snprintf(text, sizeof text, "{\"deviceName\":\"%s\",\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":13000,"
		"\"multiProcessorCount\":%d,\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
		"\"reservedSharedMemoryPerBlock\":1024,\"oversizedSharedMemoryPerBlock\":0,\"warpSize\":32,"
		"\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"maxThreadsPerBlock\":1024,"
		"\"maxThreadsPerSM\":2048,\"maxCtasPerSM\":32,\"regsPerBlock\":65536,\"maxRegistersPerSM\":65536,"
		"\"l2CacheSize\":52428800,\"memoryBusWidth\":5120,\"memClockRateKHz\":2619000,\"smClockRateKHz\":1980000,"
		"\"totalGlobalMem\":84942979072,\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
		"\"smCountOrigin\":0}", device.name, device.version, device.processors, device.shared);
	const int64_t n = (int64_t)strlen(text);
	if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d) != CUDNN_STATUS_SUCCESS
		|| cudnnBackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, n, text)
			!= CUDNN_STATUS_SUCCESS || cudnnBackendFinalize(d) != CUDNN_STATUS_SUCCESS) {
		char why[1024];
		cudnnGetLastErrorString(why, sizeof why);
		fail("cuDNN takes no description of a device: %s", why);
	}
	return d;
}

Graph *graph_for(const Device &device)
{
	Graph *g = (Graph *)calloc(1, sizeof(Graph));
	if (!g)
		fail("out of memory");
	g->device = describe(device);
	return g;
}

void graph_release(Graph *g)
{
	cudnnBackendDestroyDescriptor(g->device);
	graph_free(g);
	free(g);
}

bool plan_is(Graph *g, const Device &device, KDType type, const char *what, int64_t work, bool wanted)
{
	static const char *const names[] = {"f32", "f64", "f16", "bf16"};
	char why[4096] = "";
	bool ok = graph_plan(g, work);
	if (!ok)
		cudnnGetLastErrorString(why, sizeof why);
	printf("%s %-5s %-4s %-50s ", ok == wanted ? "ok  " : "FAIL", device.name, names[type], what);
	if (ok)
		printf("engine %d, scratch %lld of %lld\n", (int)g->engine, (long long)g->work, (long long)work);
	else
		printf("refused%s%s%s\n", g->failed ? ": " : "", g->failed ? g->failed : "", wanted ? why : "");
	fflush(stdout);
	return ok == wanted;
}

/* ---- attention ---- */

struct Case { const char *name; KAttention a; };

static const Case cases[] = {
	{"GPT-2", {.b = 64, .h = 12, .hk = 12, .t = 1024, .s = 1024, .d = 64, .dv = 64, .has_right = true, .layout = 1}},
	{"GPT-2, q, k and v in one row", {.b = 64, .h = 12, .hk = 12, .t = 1024, .s = 1024, .d = 64, .dv = 64,
		.has_right = true, .layout = 1, .q_pitch = 2304, .k_pitch = 2304, .v_pitch = 2304, .dq_pitch = 2304,
		.dk_pitch = 2304, .dv_pitch = 2304}},
	{"all keys, head first", {.b = 8, .h = 12, .hk = 12, .t = 512, .s = 512, .d = 64, .dv = 64}},
	{"grouped heads", {.b = 4, .h = 32, .hk = 8, .t = 2048, .s = 2048, .d = 128, .dv = 128, .has_right = true,
		.layout = 1}},
	{"window", {.b = 2, .h = 8, .hk = 8, .t = 1024, .s = 1024, .d = 64, .dv = 64, .has_left = true, .left = 255,
		.has_right = true, .layout = 1}},
	{"band", {.b = 2, .h = 8, .hk = 8, .t = 1024, .s = 1024, .d = 64, .dv = 64, .has_left = true, .left = 64,
		.has_right = true, .right = 64, .layout = 1}},
	{"open window", {.b = 2, .h = 8, .hk = 8, .t = 256, .s = 256, .d = 64, .dv = 64, .has_left = true, .left = 64}},
	{"more keys than rows", {.b = 2, .h = 8, .hk = 8, .t = 256, .s = 1024, .d = 64, .dv = 64, .has_right = true,
		.right = 768, .layout = 1}},
	{"no whole tiles", {.b = 3, .h = 5, .hk = 5, .t = 77, .s = 1000, .d = 40, .dv = 24, .layout = 1}},
	{"small heads", {.b = 2, .h = 2, .hk = 1, .t = 16, .s = 16, .d = 8, .dv = 8, .has_right = true, .layout = 1}},
	{"padding, as BERT's", {.b = 16, .h = 12, .hk = 12, .t = 512, .s = 512, .d = 64, .dv = 64, .layout = 1,
		.mask = K_MASK_BOOL, .mask_stride = {512, 0, 0, 1}}},
	{"a mask of pairs, causal, grouped heads", {.b = 4, .h = 32, .hk = 8, .t = 1024, .s = 1024, .d = 128, .dv = 128,
		.has_right = true, .layout = 1, .mask = K_MASK_HALF, .mask_stride = {1 << 20, 0, 1024, 1}}},
	{"a mask of heads, as T5's", {.b = 4, .h = 8, .hk = 8, .t = 256, .s = 384, .d = 64, .dv = 64,
		.mask = K_MASK_FLOAT, .mask_stride = {0, 256 * 384, 384, 1}}},
	{"a mask of samples, heads and pairs", {.b = 2, .h = 4, .hk = 4, .t = 128, .s = 128, .d = 40, .dv = 24,
		.mask = K_MASK_FLOAT, .mask_stride = {4 << 14, 1 << 14, 128, 1}}},
};

/* Forward alone. */
static const Case ragged[] = {
	{"a mask of pairs, no whole tiles", {.b = 3, .h = 5, .hk = 5, .t = 77, .s = 1000, .d = 40, .dv = 24, .layout = 1,
		.mask = K_MASK_FLOAT, .mask_stride = {77000, 0, 1000, 1}}},
	{"padding, no whole tiles", {.b = 8, .h = 12, .hk = 12, .t = 197, .s = 197, .d = 64, .dv = 64, .layout = 1,
		.mask = K_MASK_BOOL, .mask_stride = {197, 0, 0, 1}}},
};

/* Scratch that pass memory plans for the library. */
static int64_t planned(const KAttention &a, bool grad)
{
	int h = a.layout ? 2 : 1, t = a.layout ? 1 : 2;
	int64_t q[4] = {a.b, 0, 0, a.d}, k[4] = {a.b, 0, 0, a.d}, v[4], o[4], mask[4];
	const int64_t all[4] = {a.b, a.h, a.t, a.s};
	q[h] = a.h, q[t] = a.t, k[h] = a.hk, k[t] = a.s;
	memcpy(v, k, sizeof v), memcpy(o, q, sizeof o);
	v[3] = o[3] = a.dv;
	KWorkArgs args = {};
	args.layout = a.layout, args.library = true;
	args.in[0] = {4, o, 2};
	args.in[grad] = {4, q, 2}, args.in[grad + 1] = {4, k, 2}, args.in[grad + 2] = {4, v, 2};
	for (int i = 0; i < 4; i++)
		mask[i] = a.mask_stride[i] ? all[i] : 1;
	if (a.mask != K_MASK_NONE)
		args.in[grad + 3] = {4, mask, 4};
	int64_t all_bytes = grad ? kwork_cuda_attention_grad(&args) : kwork_cuda_attention(&args);
	return all_bytes - kwork_dnn_places(&args, grad).scratch;
}

static bool takes(const Case &c, const Device &device, KDType type, bool grad, bool wanted = true)
{
	Graph *g = graph_for(device);
	KAttention a = c.a;
	char what[100];
	a.scale = 0.125f;
	if (grad)
		attention_grad_graph(g, &a, type);
	else
		attention_graph(g, &a, type, true);
	snprintf(what, sizeof what, "%-8s %s", grad ? "gradient" : "forward", c.name);
	bool as_wanted = plan_is(g, device, type, what, planned(a, grad), wanted);
	graph_release(g);
	return as_wanted;
}

/* What the kernels' tests have, in both layouts: shapes smaller than those of models. */
static int failed_masks(const Device &device)
{
	int failed = 0;
	for (const MaskCase &of : mask_cases)
		for (int i = 0; i < 2 * of.served; i++) {
			char name[100];
			int64_t dim[4];
			Case c = {name, of.a};
			c.a.layout = i % 2;
			mask_dims(&of, dim, c.a.mask_stride);
			snprintf(name, sizeof name, "a mask of %dx%dx%dx%d, heads of %d", (int)dim[0], (int)dim[1], (int)dim[2],
				(int)dim[3], (int)c.a.d);
			failed += !takes(c, device, i % 2 ? K_F16 : K_BF16, i / 2);
		}
	return failed;
}

int main(void)
{
	static const Case odd = {"heads of 12 elements", {.b = 1, .h = 2, .hk = 2, .t = 64, .s = 64, .d = 12, .dv = 12}};
	int failed = 0;
	printf("cuDNN %zu\n", cudnnGetVersion());
	for (const Case &c : cases)
		for (int grad = 0; grad < 2; grad++)
			failed += !takes(c, h100, grad ? K_F16 : K_BF16, grad);
	for (int grad = 0; grad < 2; grad++)
		failed += !takes(cases[1], a100, K_BF16, grad) + !takes(cases[3], a100, K_BF16, grad);
	for (const Case &c : ragged)
		failed += !takes(c, h100, K_BF16, false) + !takes(c, a100, K_F16, false);
	for (const Case &c : cases)
		for (int grad = 0; c.a.mask != K_MASK_NONE && grad < 2; grad++)
			failed += !takes(c, a100, K_BF16, grad);
	failed += failed_masks(h100) + failed_masks(a100) + !takes(odd, h100, K_BF16, false, false) + failed_convs();
	printf("tests/cudnn: %d failed\n", failed);
	return failed > 0;
}
