/* kernels/cpu/norm_join.c: joins the norms of two parts.  CUDA programs use it on the host, too. */
#include "kernels/cpu/common.h"

double k_norm_join(double a, double b, double p)
{
	if (!isinf(p))
		return a + b;
	return isnan(a) || a > b ? a : b;
}
