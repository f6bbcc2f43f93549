/* kernels/layouts.h: packed layouts of convolution weights, by name.  Plain arithmetic, no library.
 *
 * Plain weights are (G, O, I, K): O and I are per group, K is the product of the kernel's dims.  A layout cuts O and I
 * into blocks of ob and ib, padded with zeros, and says how the pieces are nested.  The names are oneDNN's for two
 * spatial dims; one and three spatial dims use the same names. */
#ifndef SHARDC_KERNELS_LAYOUTS_H
#define SHARDC_KERNELS_LAYOUTS_H

#include <stdint.h>
#include <string.h>

typedef enum KNest {
	K_NEST_OIK_IO, /* [G][O/ob][I/ib][K][ib][ob]: forward */
	K_NEST_OIK_OI, /* [G][O/ob][I/ib][K][ob][ib]: gradient of x */
	K_NEST_OKI_O,  /* [G][O/ob][K][I][ob]: forward with few input channels, ib = 1 */
	K_NEST_GK_G,   /* [G/ob][K][ob]: depthwise, O = I = 1 */
} KNest;

typedef struct KLayout { const char *name; KNest nest; int ob, ib; } KLayout;

static const KLayout klayouts[] = {
	{"OIhw16i16o", K_NEST_OIK_IO, 16, 16}, {"OIhw8i8o", K_NEST_OIK_IO, 8, 8},
	{"OIhw16o16i", K_NEST_OIK_OI, 16, 16}, {"OIhw8o8i", K_NEST_OIK_OI, 8, 8},
	{"Ohwi16o", K_NEST_OKI_O, 16, 1}, {"Ohwi8o", K_NEST_OKI_O, 8, 1},
	{"Ohwi32o", K_NEST_OKI_O, 32, 1}, {"Ohwi48o", K_NEST_OKI_O, 48, 1}, {"Ohwi64o", K_NEST_OKI_O, 64, 1},
	{"Goihw16g", K_NEST_GK_G, 16, 1}, {"Goihw8g", K_NEST_GK_G, 8, 1},
};
enum { K_LAYOUTS = sizeof klayouts / sizeof klayouts[0] };

static inline const KLayout *klayout_find(const char *name)
{
	for (int i = 0; name && i < K_LAYOUTS; i++)
		if (strcmp(klayouts[i].name, name) == 0)
			return &klayouts[i];
	return 0;
}

/* Elements of weights (group, o, i, k) in the layout, including padding; o and i are per group. */
static inline int64_t klayout_numel(const KLayout *l, int64_t group, int64_t o, int64_t i, int64_t k)
{
	if (l->nest == K_NEST_GK_G)
		return (group + l->ob - 1) / l->ob * l->ob * k;
	return group * ((o + l->ob - 1) / l->ob * l->ob) * ((i + l->ib - 1) / l->ib * l->ib) * k;
}

typedef enum KConvUse { K_USE_FORWARD, K_USE_GRAD_X } KConvUse;

/* The layout for convolution kernels on vectors of vector_bytes; o and i are per group. */
static inline const KLayout *klayout_choose(KConvUse use, int64_t group, int64_t o, int64_t i,
	int vector_bytes)
{
	int wide = vector_bytes >= 64;
	if (group > 1 && o == 1 && i == 1)
		return klayout_find(wide ? "Goihw16g" : "Goihw8g");
	if (use == K_USE_GRAD_X)
		return klayout_find(wide ? "OIhw16o16i" : "OIhw8o8i");
	if (group == 1 && i < (wide ? 16 : 8))
		return klayout_find(wide ? "Ohwi16o" : "Ohwi8o");
	return klayout_find(wide ? "OIhw16i16o" : "OIhw8i8o");
}

#endif
