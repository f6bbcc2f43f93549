/* kernels/cuda/conv_graph.cuh: a convolution, or one of its gradients, as an operation graph of cuDNN.
 *
 * Plain host code, as graph.cuh. */
#ifndef SHARDC_CUDA_CONV_GRAPH_CUH
#define SHARDC_CUDA_CONV_GRAPH_CUH

#include "kernels/cuda/graph.cuh"
#include "kernels/kernels.h"

typedef enum ConvKind { CONV_FORWARD, CONV_GRAD_X, CONV_GRAD_W } ConvKind;

/* The tensors that a run is given. */
enum ConvTensor { CONV_X = 1, CONV_W, CONV_Y, CONV_BIAS };

/* Finds a padding that is as large at the end as at the beginning and gives the same outputs, which the library wants.
 * Where it has to copy x with rims of zeros for that, before and padded are the rim at the beginning and the size with
 * both rims, by spatial dim; else 0 and x's size.  False when there is none. */
typedef struct ConvPadding { int64_t pad[3], before[3], padded[3]; bool rims; } ConvPadding;
bool conv_padding(ConvPadding *p, const KConvDesc *d);

/* Adds the operations of a convolution of two or three spatial dims to an empty graph.  x (or dx) has the rims of
 * `padding`.  With channels last the filters and their gradient are (o, kernel, c / group), else as in kernels.h; all
 * tensors are d->dtype.  bias: forward adds one, as CONV_BIAS, before it rounds.  f32 stays f32 without tf32. */
void conv_graph(Graph *g, const KConvDesc *d, ConvKind kind, const ConvPadding *padding, bool bias, bool tf32);

#endif
