/* kernels/cuda/attention_graph.cuh: attention and its gradient as operation graphs of cuDNN, which its engines for
 * attention recognise and run as one kernel, the scores in registers (NVIDIA, cuDNN 8.9 and later).
 *
 * They serve the band and a bias: neither documents nor soft caps, dropout; attention_dnn.cu decides.  Log-sum-exps
 * are the numbers of our own kernels (natural, of the scaled scores), so that an attention of cuDNN and a gradient of
 * ours fit each other, and the reverse.
 *
 * The gradient has no sums by atomics: dq is the direct result of its product, not a sum in memory.  Its engines keep
 * the gradients of the scores for that, in scratch of B H T S elements. */
#ifndef SHARDC_CUDA_ATTENTION_GRAPH_CUH
#define SHARDC_CUDA_ATTENTION_GRAPH_CUH

#include "kernels/cuda/attention_bias.cuh"
#include "kernels/cuda/graph.cuh"

/* The tensors of a run.  delta (B,H,T) is f32 scratch, bias what a mask becomes; those from scale on are numbers of
 * AttentionNumbers. */
enum AttentionTensor {
	AT_Q = 1, AT_K, AT_V, AT_O, AT_LSE, AT_DO, AT_DQ, AT_DK, AT_DV, AT_DELTA, AT_BIAS, AT_SCALE, AT_HIDDEN, AT_ONE,
	AT_RIGHT, AT_LEFT, AT_TENSORS
};

struct AttentionNumbers { float scale, hidden, one, left; int32_t right; };
AttentionNumbers attention_numbers(const KAttention *a);

/* Add the operations to a new graph.  stats: the log-sum-exps are wanted. */
void attention_graph(Graph *g, const KAttention *a, KDType type, bool stats);
void attention_grad_graph(Graph *g, const KAttention *a, KDType type);

#endif
