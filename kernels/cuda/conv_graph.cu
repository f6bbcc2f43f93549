/* kernels/cuda/conv_graph.cu: convolutions as operation graphs of cuDNN. */
#include "kernels/cuda/conv_graph.cuh"

/* ---- padding ---- */

static int64_t outputs(const KConvDesc *d, int i, int64_t in, int64_t pad)
{
	int64_t span = in + 2 * pad - d->dilation[i] * (d->kernel[i] - 1) - 1;
	return span < 0 ? 0 : span / d->stride[i] + 1;
}

bool conv_padding(ConvPadding *p, const KConvDesc *d)
{
	*p = {};
	for (int i = 0; i < d->rank; i++) {
		if (d->pad[i] < 0 || d->pad_end[i] < 0)
			return false;
		p->pad[i] = d->pad[i];
		p->padded[i] = d->in[i];
		if (outputs(d, i, d->in[i], p->pad[i]) != d->out[i]) {
			p->pad[i] = d->pad[i] < d->pad_end[i] ? d->pad[i] : d->pad_end[i];
			p->before[i] = d->pad[i] - p->pad[i];
			p->padded[i] = d->in[i] + d->pad[i] + d->pad_end[i] - 2 * p->pad[i];
			p->rims = true;
		}
		if (outputs(d, i, p->padded[i], p->pad[i]) != d->out[i])
			return false;
	}
	return true;
}

/* ---- tensors ---- */

static cudnnDataType_t type_of(KDType t)
{
	return t == K_F64 ? CUDNN_DATA_DOUBLE : t == K_BF16 ? CUDNN_DATA_BFLOAT16 : t == K_F16 ? CUDNN_DATA_HALF
		: CUDNN_DATA_FLOAT;
}

/* Dims (n, channels, spatial...), and strides of that order or with channels last. */
struct Image { Dims dim, stride; };

static Image image(int layout, int rank, int64_t n, int64_t channels, const int64_t *spatial)
{
	Image t = {{{n, channels}, 2 + rank}, {{}, 2 + rank}};
	int64_t positions = 1;
	for (int i = rank - 1; i >= 0; i--) {
		t.dim.at[2 + i] = spatial[i];
		t.stride.at[2 + i] = positions * (layout ? channels : 1);
		positions *= spatial[i];
	}
	t.stride.at[1] = layout ? 1 : positions;
	t.stride.at[0] = positions * channels;
	return t;
}

static GraphTensor given(Graph *g, ConvTensor uid, KDType type, const Image &t)
{
	return graph_tensor(g, uid, type_of(type), t.dim, t.stride);
}

/* ---- the graph ---- */

#define NOTE(name) (1u << CUDNN_NUMERICAL_NOTE_##name)

/* Notes of engines that compute with less than f32 sums of products, or other products. */
static unsigned refused(KDType type, bool tf32)
{
	unsigned always = NOTE(REDUCED_PRECISION_REDUCTION) | NOTE(FFT) | NOTE(WINOGRAD) | NOTE(WINOGRAD_TILE_4x4)
		| NOTE(WINOGRAD_TILE_6x6) | NOTE(WINOGRAD_TILE_13x13);
	unsigned narrow = NOTE(DOWN_CONVERT_INPUTS), tensor_cores = type == K_F32 ? NOTE(TENSOR_CORE) : 0;
	return type == K_F32 && tf32 ? always : always | narrow | tensor_cores;
}

void conv_graph(Graph *g, const KConvDesc *d, ConvKind kind, const ConvPadding *padding, bool bias, bool tf32)
{
	static const cudnnBackendDescriptorType_t ops[] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
		CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
		CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR};
	const cudnnDataType_t compute = d->dtype == K_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
	const int64_t one[3] = {1, 1, 1};
	GraphWindow window = {};
	for (int i = 0; i < d->rank; i++) {
		window.pad[i] = padding->pad[i];
		window.stride[i] = d->stride[i];
		window.dilation[i] = d->dilation[i];
	}
	Image result = image(d->layout, d->rank, d->n, d->o, d->out);
	GraphTensor x = given(g, CONV_X, d->dtype, image(d->layout, d->rank, d->n, d->c, padding->padded));
	GraphTensor w = given(g, CONV_W, d->dtype, image(d->layout, d->rank, d->o, d->c / d->group, d->kernel));
	GraphTensor y = given(g, CONV_Y, d->dtype, result);
	g->refused = refused(d->dtype, tf32);
	if (!bias) {
		graph_conv(g, ops[kind], window, compute, x, w, y);
		return;
	}
	GraphTensor sum = graph_between(g, compute, result.dim, result.stride);
	GraphTensor b = given(g, CONV_BIAS, d->dtype, image(d->layout, d->rank, 1, d->o, one));
	graph_conv(g, ops[kind], window, compute, x, w, sum);
	graph_pointwise(g, CUDNN_POINTWISE_ADD, sum, &b, NULL, y, compute, -1);
}
