/* kernels/place.h: where the heads of the tensors of an attention and of a rope stand.  The code is valid C, C++ and
 * CUDA. */
#ifndef SHARDC_PLACE_H
#define SHARDC_PLACE_H

#include "kernels/kernels.h"

/* Elements from sample to sample, head to head, row to row. */
typedef struct Place { int64_t batch, head, row; } Place;

/* Of a tensor with `rows` rows of `width` elements a head, in a layout and with a pitch as of KAttention; a pitch that
 * cannot be fails. */
static inline Place place_of(int layout, int64_t heads, int64_t rows, int64_t width, int64_t pitch)
{
	int64_t whole = heads * width, row = pitch ? pitch : whole;
	if (pitch != 0 && (!layout || pitch < whole))
		k_fail("a pitch of %lld in layout %d, for %lld heads of %lld elements: the layout must be 1, and the pitch no "
			"less than they need", (long long)pitch, layout, (long long)heads, (long long)width);
	Place head_first = {rows * whole, rows * width, width}, row_first = {rows * row, width, row};
	return layout ? row_first : head_first;
}

#endif
