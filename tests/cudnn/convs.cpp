/* tests/cudnn/convs.cpp: convolutions of known models, and odd ones, for graphs.cpp. */
#include <stdio.h>
#include <stdlib.h>

#include <initializer_list>

#include "kernels/cuda/conv_graph.cuh"
#include "kernels/cuda/work.h"
#include "tests/cudnn/device.h"

/* Square images and kernels; a gradient of x is what a transposed convolution computes. */
struct Square { const char *name; int64_t n, c, in, o, kernel, stride, group; };

static const Square resnet50[] = {
	{"ResNet-50, stem", 128, 3, 224, 64, 7, 2, 1},
	{"ResNet-50", 128, 64, 56, 64, 1, 1, 1}, {"ResNet-50", 128, 64, 56, 64, 3, 1, 1},
	{"ResNet-50", 128, 64, 56, 256, 1, 1, 1}, {"ResNet-50", 128, 256, 56, 64, 1, 1, 1},
	{"ResNet-50", 128, 256, 56, 128, 1, 1, 1}, {"ResNet-50", 128, 128, 56, 128, 3, 2, 1},
	{"ResNet-50", 128, 256, 56, 512, 1, 2, 1}, {"ResNet-50", 128, 128, 28, 512, 1, 1, 1},
	{"ResNet-50", 128, 512, 28, 128, 1, 1, 1}, {"ResNet-50", 128, 128, 28, 128, 3, 1, 1},
	{"ResNet-50", 128, 512, 28, 256, 1, 1, 1}, {"ResNet-50", 128, 256, 28, 256, 3, 2, 1},
	{"ResNet-50", 128, 512, 28, 1024, 1, 2, 1}, {"ResNet-50", 128, 256, 14, 1024, 1, 1, 1},
	{"ResNet-50", 128, 1024, 14, 256, 1, 1, 1}, {"ResNet-50", 128, 256, 14, 256, 3, 1, 1},
	{"ResNet-50", 128, 1024, 14, 512, 1, 1, 1}, {"ResNet-50", 128, 512, 14, 512, 3, 2, 1},
	{"ResNet-50", 128, 1024, 14, 2048, 1, 2, 1}, {"ResNet-50", 128, 512, 7, 2048, 1, 1, 1},
	{"ResNet-50", 128, 2048, 7, 512, 1, 1, 1}, {"ResNet-50", 128, 512, 7, 512, 3, 1, 1},
};
static const Square others[] = {
	{"MobileNetV2, depthwise", 64, 32, 112, 32, 3, 1, 32}, {"MobileNetV2, depthwise", 64, 96, 112, 96, 3, 2, 96},
	{"MobileNetV2, depthwise", 64, 144, 56, 144, 3, 1, 144}, {"MobileNetV2, depthwise", 64, 192, 28, 192, 3, 2, 192},
	{"MobileNetV2, depthwise", 64, 576, 14, 576, 3, 1, 576}, {"MobileNetV2, depthwise", 64, 960, 7, 960, 3, 1, 960},
	{"U-Net, transposed", 16, 64, 128, 128, 2, 2, 1}, {"U-Net, transposed", 16, 256, 32, 512, 2, 2, 1},
	{"DCGAN, transposed", 64, 3, 64, 64, 4, 2, 1}, {"ResNeXt, groups", 64, 128, 56, 128, 3, 1, 32},
	{"odd channels", 2, 5, 17, 7, 3, 1, 1},
};

static KConvDesc of_square(const Square &s, KDType type, int layout)
{
	int64_t pad = s.kernel % 2 ? s.kernel / 2 : (s.kernel - s.stride) / 2;
	int64_t out = (s.in + 2 * pad - s.kernel) / s.stride + 1;
	return {.dtype = type, .to = type, .rank = 2, .n = s.n, .c = s.c, .o = s.o, .group = s.group, .in = {s.in, s.in},
		.out = {out, out}, .kernel = {s.kernel, s.kernel}, .stride = {s.stride, s.stride}, .dilation = {1, 1},
		.pad = {pad, pad}, .pad_end = {pad, pad}, .layout = layout};
}

/* Scratch that pass memory plans, without that of copies. */
static int64_t planned(const KConvDesc &d, ConvKind kind, const ConvPadding &padding)
{
	int64_t size = d.dtype == K_F32 ? 4 : d.dtype == K_F64 ? 8 : 2, pads[6];
	int64_t x[5] = {d.n}, y[5] = {d.n}, w[5] = {d.o, d.c / d.group}, copies = size * d.o * d.c / d.group;
	for (int i = 0; i < d.rank; i++) {
		int at = d.layout ? 1 + i : 2 + i;
		x[at] = d.in[i], y[at] = d.out[i], w[2 + i] = d.kernel[i];
		pads[i] = d.pad[i], pads[d.rank + i] = d.pad_end[i];
		copies *= d.kernel[i];
	}
	x[d.layout ? 1 + d.rank : 1] = d.c;
	y[d.layout ? 1 + d.rank : 1] = d.o;
	KShape X = {2 + d.rank, x, (int)size}, Y = {2 + d.rank, y, (int)size}, W = {2 + d.rank, w, (int)size};
	KWorkArgs args = {.group = d.group, .layout = d.layout, .pads = pads};
	args.in[0] = kind == CONV_GRAD_X ? Y : X;
	args.in[1] = kind == CONV_GRAD_W ? Y : W;
	args.out[0] = kind == CONV_FORWARD ? Y : kind == CONV_GRAD_X ? X : W;
	copies = kwork_up(copies, 256);
	for (int64_t i = 0, rim = padding.rims ? size * d.n * d.c : 0; rim && i <= d.rank; rim *= padding.padded[i++])
		copies += i == d.rank ? kwork_up(rim, 256) : 0;
	return (kind == CONV_FORWARD ? kwork_cuda_conv : kind == CONV_GRAD_X ? kwork_cuda_conv_grad_x
		: kwork_cuda_conv_grad_w)(&args) - copies;
}

static int failed(const char *name, const KConvDesc &d, const Device &device, ConvKind kind, bool bias, bool tf32)
{
	static const char *const kinds[] = {"forward", "dx", "dw"};
	char what[100], size[40] = "";
	ConvPadding padding;
	Graph *g = graph_for(device);
	if (d.rank == 2)
		snprintf(size, sizeof size, " %d to %d, %d by %d", (int)d.c, (int)d.o, (int)d.in[0], (int)d.kernel[0]);
	snprintf(what, sizeof what, "%s%s%s%s, %s", name, size, bias ? ", bias" : "", tf32 ? ", tf32" : "", kinds[kind]);
	bool ok = conv_padding(&padding, &d);
	if (ok) {
		conv_graph(g, &d, kind, &padding, bias, tf32);
		ok = plan_is(g, device, d.dtype, what, planned(d, kind, padding), true);
	}
	graph_release(g);
	return !ok;
}

static int failed_all(const char *name, const KConvDesc &d, const Device &device)
{
	int n = failed(name, d, device, CONV_FORWARD, true, false);
	for (ConvKind kind : {CONV_FORWARD, CONV_GRAD_X, CONV_GRAD_W})
		n += failed(name, d, device, kind, false, false);
	return n;
}

/* Shapes of other kinds, which no model above has. */
static int failed_others(void)
{
	const KConvDesc shapes[] = {
		{.rank = 2, .n = 4, .c = 24, .o = 32, .group = 1, .in = {20, 23}, .out = {10, 23}, .kernel = {3, 2},
			.stride = {2, 1}, .dilation = {1, 2}, .pad = {1, 1}, .pad_end = {0, 1}},
		{.rank = 3, .n = 2, .c = 16, .o = 32, .group = 1, .in = {8, 20, 20}, .out = {8, 10, 10}, .kernel = {3, 3, 3},
			.stride = {1, 2, 2}, .dilation = {1, 1, 1}, .pad = {1, 1, 1}, .pad_end = {1, 1, 1}},
	};
	static const char *const names[] = {"uneven padding, dilation", "three spatial dims"};
	int n = 0;
	for (int i = 0; i < 2; i++)
		for (KDType type : {K_BF16, K_F16, K_F32, K_F64})
			for (int layout = 0; layout < 2; layout++) {
				KConvDesc d = shapes[i];
				d.dtype = d.to = type;
				d.layout = layout;
				n += failed_all(names[i], d, h100);
			}
	return n;
}

int failed_convs(void)
{
	int n = failed_others();
	for (const Device *device : {&h100, &a100}) {
		for (const Square &s : resnet50)
			for (ConvKind kind : {CONV_FORWARD, CONV_GRAD_X, CONV_GRAD_W})
				n += failed(s.name, of_square(s, K_BF16, 1), *device, kind, false, false);
		for (const Square &s : others)
			n += failed_all(s.name, of_square(s, K_BF16, 1), *device);
	}
	for (int i : {0, 2, 5, 6, 16})
		for (KDType type : {K_F16, K_F32, K_F64})
			n += failed_all(resnet50[i].name, of_square(resnet50[i], type, i % 2), h100);
	for (ConvKind kind : {CONV_FORWARD, CONV_GRAD_X, CONV_GRAD_W})
		n += failed(resnet50[2].name, of_square(resnet50[2], K_F32, 1), h100, kind, false, true);
	return n;
}
