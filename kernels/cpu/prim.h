/* kernels/cpu/prim.h: a primitive is one of oneDNN's, one of our own kernels, or one of ours that runs another inside.
 *
 * oneDNN may split a sum over threads, so its products and convolutions repeat bit by bit for a fixed number of
 * threads only.  Where k_threads_exact is set, it computes convolutions alone: those whose elements are each summed by
 * one thread, and others on one thread (conv_parts.c).  The library's reference implementations are never taken. */
#ifndef SHARDC_CPU_PRIM_H
#define SHARDC_CPU_PRIM_H

#include <dnnl.h>

#include "kernels/cpu/common.h"

enum { PRIM_MAX_ARGS = 6, PRIM_MAX_PRODUCTS = 7 };

/* The tensors of a primitive in the order of its run function; its create function knows which argument of oneDNN each
 * is. */
typedef struct PrimArgs { void *at[4]; } PrimArgs;

struct KPrim {
	void (*run)(KPrim *p, PrimArgs *args, char *work);
	char impl[64];
	int64_t work;
	/* oneDNN */
	dnnl_primitive_t prim;
	int n_args;
	dnnl_exec_arg_t arg[PRIM_MAX_ARGS];
	dnnl_memory_t scratch;
	/* copies weights between the caller's layout and the implementation's own */
	dnnl_primitive_t reorder;
	dnnl_exec_arg_t reorder_arg[2];
	int64_t packed_bytes;
	/* our own kernels */
	KPrim *inner;
	KMatmulDesc matmul;
	KConvDesc conv;
	/* a loss head: its products */
	KLossHeadDesc head;
	KRecurrenceDesc recurrence;
	KPrim *product[PRIM_MAX_PRODUCTS];
	KPrim **slot; /* of a convolution by parts */
	int64_t n_slots;
};

dnnl_engine_t prim_engine(void);
dnnl_stream_t prim_stream(void);
KPrim *prim_new(const char *impl);
void prim_check(dnnl_status_t status, const char *what);
dnnl_data_type_t prim_type(KDType t);
INLINE bool is_half(KDType t) { return t == K_BF16 || t == K_F16; }
INLINE KDType matmul_to(const KMatmulDesc *d) { return is_half(d->dtype) ? d->to : d->dtype; }
/* Adds an argument to the primitive; returns its index in arg. */
int prim_add_arg(KPrim *p, int id, const dnnl_memory_desc_t *md);
void prim_set(KPrim *p, int i, const void *at);
void prim_execute(KPrim *p);

/* Among the library's implementations of op_desc, the first that is not a reference and that accept takes; NULL when
 * there is none.  accept may be NULL; a caller uses it to refuse scratch that does not fit.  add: the result is added
 * to what its memory holds.  The caller destroys the descriptor. */
typedef bool PrimAccept(const char *impl, dnnl_primitive_desc_t pd, const void *context);
dnnl_primitive_desc_t prim_choose(const_dnnl_op_desc_t op_desc, dnnl_primitive_desc_t hint, bool add,
	PrimAccept *accept, const void *context);
int64_t prim_scratch_bytes(dnnl_primitive_desc_t pd);
const dnnl_memory_desc_t *prim_md(dnnl_primitive_desc_t pd, dnnl_query_t what);
/* Makes p run pd: takes over its name, creates the primitive and adds the scratch argument (the last one). */
void prim_take(KPrim *p, dnnl_primitive_desc_t pd);

/* matmul_plain.c, conv_plain.c: any shape, by loops.  matmul_packed.c: f32, m, n and k at least 1.  matmul_wide.c:
 * 16-bit operands. */
KPrim *matmul_plain_create(const KMatmulDesc *d);
KPrim *matmul_wide_create(const KMatmulDesc *d);
KPrim *matmul_packed_create(const KMatmulDesc *d);
/* matmul_amx.c: NULL where it does not serve d. */
KPrim *matmul_amx_create(const KMatmulDesc *d);
typedef enum ConvKind { CONV_FORWARD, CONV_GRAD_X, CONV_GRAD_W } ConvKind;
KPrim *conv_plain_create(const KConvDesc *d, ConvKind kind);
/* conv_product.c: NULL when d is not a matrix product, or when its scratch does not fit. */
KPrim *conv_product_create(const KConvDesc *d, ConvKind kind);
/* conv_grad_w.c, conv_grad_w_amx.c, conv_grad_w_thin.c, conv_depthwise.c, conv_depthwise_f32.c, conv_patch.c,
 * conv_tiles.c: NULL when they do not serve d. */
KPrim *conv_grad_w_create(const KConvDesc *d);
KPrim *conv_grad_w_amx_create(const KConvDesc *d);
KPrim *conv_depthwise_create(const KConvDesc *d, ConvKind kind);
KPrim *conv_grad_w_thin_create(const KConvDesc *d);
KPrim *conv_depthwise_grad_w_create(const KConvDesc *d);
KPrim *conv_patch_create(const KConvDesc *d, ConvKind kind);
KPrim *conv_tiles_create(const KConvDesc *d, ConvKind kind);
/* conv_parts.c: NULL where create makes no primitive of a part, or its work does not fit; create: the library's. */
typedef KPrim *ConvCreate(const KConvDesc *d, ConvKind kind);
KPrim *conv_parts_create(const KConvDesc *d, ConvKind kind, ConvCreate *create);

#endif
