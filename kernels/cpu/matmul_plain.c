/* kernels/cpu/matmul_plain.c: products by loops, for f64, integers (which wrap), empty shapes, and f32 where no
 * library kernel fits. */
#include "kernels/cpu/prim.h"

#define T float
#define SUFFIX f32
#include "kernels/cpu/matmul_plain.h"
#define T double
#define SUFFIX f64
#include "kernels/cpu/matmul_plain.h"
#define T uint64_t
#define SUFFIX u64
#include "kernels/cpu/matmul_plain.h"
#define T uint32_t
#define SUFFIX u32
#include "kernels/cpu/matmul_plain.h"

KPrim *matmul_plain_create(const KMatmulDesc *d)
{
	KPrim *p = prim_new("own:plain");
	p->matmul = *d;
	switch (d->dtype) {
	case K_F32: p->run = run_f32; break;
	case K_F64: p->run = run_f64; break;
	case K_I64: case K_U64: p->run = run_u64; break; /* signed ones have the same bits in two's complement */
	case K_I32: case K_U32: p->run = run_u32; break;
	default: k_fail("matmul has no kernel for dtype %d", (int)d->dtype);
	}
	return p;
}
