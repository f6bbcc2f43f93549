/* kernels/cpu/norm.c: layer norm, RMS norm and their gradients over rows.  Weight gradients are summed by chunks of
 * rows (kwork_norm_chunks of kernels/work.h), then over chunks in order. */
#include "kernels/cpu/half.h"
#include "kernels/work.h"

#define LINKAGE
#define NAME(op) k_##op
#define TEMPLATE "kernels/cpu/norm.h"
#include "kernels/cpu/each_float.h"
#undef LINKAGE
#undef NAME

/* Each 16-bit row is read several times, so rows of up to ROW elements are widened once, on the stack. */
enum { ROW = 4096 };
#define LINKAGE static
#define NAME(op) long_##op
#define TEMPLATE "kernels/cpu/norm.h"
#include "kernels/cpu/each_half.h"
#define TEMPLATE "kernels/cpu/norm_half.h"
#include "kernels/cpu/each_half.h"

/* Gradients whose dw and db have type D: that of x, or the type that x is computed in. */
#define NORM_GRAD(T, W, D, name, grad) \
void k_layer_norm_grad_##name(T *dx, D *dw, D *db, const T *dy, const T *x, const T *w, const W *mean, const W *rstd, \
	const T *ds, int64_t rows, int64_t cols, void *work) \
{ \
	grad(dx, dw, db, sizeof(D) > sizeof(T), dy, x, w, mean, rstd, ds, rows, cols, work); \
} \
void k_rms_norm_grad_##name(T *dx, D *dw, const T *dy, const T *x, const T *w, const W *rstd, const T *ds, \
	int64_t rows, int64_t cols, void *work) \
{ \
	grad(dx, dw, NULL, sizeof(D) > sizeof(T), dy, x, w, NULL, rstd, ds, rows, cols, work); \
}
NORM_GRAD(float, float, float, f32, norm_grad_f32)
NORM_GRAD(double, double, double, f64, norm_grad_f64)
#define NORM_GRAD_HALF(T, W, t) NORM_GRAD(T, W, T, t, any_norm_grad_##t) NORM_GRAD(T, W, W, t##_f32, any_norm_grad_##t)
K_HALVES(NORM_GRAD_HALF)
