/* kernels/cpu/conv_tiles.c: f32 convolutions of channels-last data and their gradients of x.
 *
 * A tile of MR positions x NR channels of the result stays in registers while it adds up channels of the operand, tap
 * by tap.  No patch is copied: at a tap each position of a tile reads its row of the operand where that lies, or a row
 * of zeros where the kernel reaches beyond the image (the indirect convolution algorithm, M. Dukhan 2019).  A gradient
 * of x is such a convolution of dy with the taps turned round.  With strides most taps of its positions meet nothing;
 * positions that meet the same taps follow each other, so tiles skip the others.
 *
 * Weights are packed once by chunks of KC rows (taps x channels), each by panels of NR columns.  An element of the
 * result is one chain of multiply-adds over chunks, so its bits do not depend on the number of threads.  Work holds a
 * row of zeros, what each axis meets, and the weights. */
#include "kernels/cpu/conv_axis.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/prim.h"
#include "kernels/cpu/team.h"

enum { MC = 16 * MR, MOST_TAPS = 64, AXES = 3 };

typedef struct Tiles {
	const KConvDesc *d;
	bool turned;
	int64_t in, out, taps; /* channels of the operand and of the result */
	ConvAxis axis[AXES];   /* dims that d lacks come first, with size 1 */
	const float *x, *zeros, *packed, *bias;
	float *y;
	const int64_t *met[AXES]; /* (to, taps) of each axis: the operand's position, or -1 */
} Tiles;

/* Positions of the result that meet the same taps: every up-th one of each axis. */
typedef struct Class { int64_t first[AXES], count[AXES], positions; } Class;

/* Up to MC positions of a class, and what they meet. */
typedef struct Block {
	int64_t n;
	float *y[MC];                      /* the positions' rows of the result */
	const float *row[MOST_TAPS][MC];   /* at each tap, of the operand or of zeros; beyond n, of zeros */
} Block;

static Tiles tiles_of(const KConvDesc *d, bool turned)
{
	Tiles t = {.d = d, .turned = turned, .in = turned ? d->o : d->c, .out = turned ? d->c : d->o,
		.taps = numel(d->rank, d->kernel)};
	for (int i = 0; i < AXES; i++)
		t.axis[i] = conv_axis(d, i - (AXES - d->rank), turned);
	return t;
}

static int64_t met_count(const Tiles *t)
{
	int64_t n = 0;
	for (int i = 0; i < AXES; i++)
		n += t->axis[i].to * t->axis[i].taps;
	return n;
}

static int64_t zeros_bytes(const Tiles *t) { return round_up(t->in * 4, 64); }
static int64_t met_bytes(const Tiles *t) { return round_up(met_count(t) * (int64_t)sizeof(int64_t), 64); }
static int64_t packed_bytes(const Tiles *t) { return t->taps * t->in * t->out * 4; }

/* ---- weights ---- */

/* Row k of the weights is channel k % in of tap k / in.  A chunk of rows is as deep as KC allows: some taps, or a part
 * of the channels of one. */
static int64_t chunk_end(const Tiles *t, int64_t k)
{
	int64_t tap = k / t->in, parts = ceil_div(t->in, KC), part = ceil_div(t->in, parts);
	if (parts > 1)
		return MIN(k + part, (tap + 1) * t->in);
	return MIN(tap + KC / t->in, t->taps) * t->in;
}

/* The panel of columns [j, j + NR) of the rows [k0, k1) */
static void pack_panel(const Tiles *t, float *to, const float *w, int64_t k0, int64_t k1, int64_t j)
{
	int64_t at_in = (t->turned ? t->out : 1) * t->taps, at_out = (t->turned ? 1 : t->in) * t->taps;
	for (int64_t k = k0; k < k1; k++, to += NR) {
		int64_t tap = k / t->in, turned = t->turned ? t->taps - 1 - tap : tap;
		const float *from = w + k % t->in * at_in + j * at_out + turned;
		for (int64_t c = 0; c < NR; c++)
			to[c] = from[c * at_out];
	}
}

static void pack(const Tiles *t, float *to, const float *w)
{
	int64_t panels = t->out / NR, depth = t->taps * t->in;
	#pragma omp parallel for schedule(static)
	for (int64_t j = 0; j < panels; j++)
		for (int64_t k = 0, end; k < depth; k = end) {
			end = chunk_end(t, k);
			pack_panel(t, to + k * t->out + j * NR * (end - k), w, k, end, j * NR);
		}
}

/* ---- positions ---- */

static void find_met(Tiles *t, int64_t *to)
{
	for (int i = 0; i < AXES; i++) {
		t->met[i] = to;
		for (int64_t at = 0; at < t->axis[i].to; at++)
			for (int64_t tap = 0; tap < t->axis[i].taps; tap++)
				*to++ = conv_axis_met(&t->axis[i], at, tap);
	}
}

static Class class_at(const Tiles *t, int64_t number)
{
	Class c = {.positions = t->d->n};
	for (int i = 0; i < AXES; i++) {
		int64_t up = t->axis[i].up;
		c.first[i] = number % up;
		c.count[i] = MAX(0, ceil_div(t->axis[i].to - c.first[i], up));
		c.positions *= c.count[i];
		number /= up;
	}
	return c;
}

/* Where position `at` reads at each tap; column of b->row. */
static void find_rows(const Tiles *t, Block *b, int64_t column, int64_t sample, const int64_t *at)
{
	const ConvAxis *a = t->axis;
	const int64_t *m0 = t->met[0] + at[0] * a[0].taps, *m1 = t->met[1] + at[1] * a[1].taps,
		*m2 = t->met[2] + at[2] * a[2].taps;
	const float *x = t->x + sample * a[0].from * a[1].from * a[2].from * t->in;
	int64_t tap = 0;
	for (int64_t i = 0; i < a[0].taps; i++)
		for (int64_t j = 0; j < a[1].taps; j++)
			for (int64_t k = 0; k < a[2].taps; k++, tap++)
				b->row[tap][column] = m0[i] < 0 || m1[j] < 0 || m2[k] < 0 ? t->zeros
					: x + ((m0[i] * a[1].from + m1[j]) * a[2].from + m2[k]) * t->in;
}

/* Positions [begin, begin + n) of a class */
static void locate(const Tiles *t, const Class *c, Block *b, int64_t begin, int64_t n)
{
	b->n = n;
	for (int64_t i = 0; i < n; i++) {
		int64_t at[AXES], p = begin + i;
		for (int l = AXES - 1; l >= 0; l--) {
			at[l] = c->first[l] + p % c->count[l] * t->axis[l].up;
			p /= c->count[l];
		}
		b->y[i] = t->y + (((p * t->axis[0].to + at[0]) * t->axis[1].to + at[1]) * t->axis[2].to + at[2]) * t->out;
		find_rows(t, b, i, p, at);
	}
	for (int64_t i = n; i < round_up(n, MR); i++)
		for (int64_t tap = 0; tap < t->taps; tap++)
			b->row[tap][i] = t->zeros;
}

/* ---- tiles ---- */

/* s += rows of the operand times `depth` rows of weights */
INLINE void add_rows(Vec s[MR][NV], const float *const *row, int64_t channel, const float *w, int64_t depth)
{
	const float *a[MR];
	int64_t p = 0;
	#pragma GCC unroll 16
	for (int i = 0; i < MR; i++)
		a[i] = row[i] + channel;
	for (; p + TURN <= depth; p += TURN)
		gemm_rows(TURN, s, a, p, w + p * NR);
	for (; p < depth; p++)
		gemm_rows(1, s, a, p, w + p * NR);
}

static bool meets(const Tiles *t, const float *const *row)
{
	bool any = false;
	for (int i = 0; i < MR; i++)
		any = any || row[i] != t->zeros;
	return any;
}

/* y (MR rows) = start, or itself where that is NULL, + the sums of weight rows [k0, k1) of one panel.  ahead: the next
 * panel, which is fetched meanwhile, or NULL. */
static void tile(const Tiles *t, float *const *y, const float *start, const float *const (*row)[MC], int64_t k0,
	int64_t k1, const float *w, const float *ahead)
{
	Vec s[MR][NV];
	#pragma GCC unroll 16
	for (int i = 0; i < MR; i++)
		#pragma GCC unroll 4
		for (int j = 0; j < NV; j++)
			s[i][j] = vec_load((start ? start : y[i]) + j * VW);
	for (int64_t l = 0; ahead && l < (k1 - k0) * NR; l += 16)
		__builtin_prefetch(ahead + l, 0, 2);
	for (int64_t k = k0, depth; k < k1; k += depth) {
		const float *const *at = row[k / t->in];
		depth = MIN(t->in - k % t->in, k1 - k);
		if (meets(t, at))
			add_rows(s, at, k % t->in, w + (k - k0) * NR, depth);
	}
	#pragma GCC unroll 16
	for (int i = 0; i < MR; i++)
		#pragma GCC unroll 4
		for (int j = 0; j < NV; j++)
			vec_store(y[i] + j * VW, s[i][j]);
}

/* The tile of positions i.. of a block and the panel of columns j.., which may have fewer rows than MR. */
static void tile_at(const Tiles *t, Block *b, int64_t i, int64_t j, int64_t k0, int64_t k1, const float *w,
	const float *ahead)
{
	static const float none[NR];
	float spare[MR][NR] = {{0}}, *y[MR];
	const float *start = k0 ? NULL : t->bias ? t->bias + j : none;
	for (int64_t r = 0; r < MR; r++)
		y[r] = i + r < b->n ? b->y[i + r] + j : spare[r];
	for (int64_t r = i + MR; r < MIN(i + 2 * MR, b->n); r++)
		__builtin_prefetch(b->y[r] + j, 1);
	tile(t, y, start, (const float *const (*)[MC])(const void *)&b->row[0][i], k0, k1, w, ahead);
}

static void compute(const Tiles *t, const Class *c, int64_t begin, int64_t end)
{
	Block b;
	int64_t depth = t->taps * t->in;
	for (; begin < end; begin += MC) {
		locate(t, c, &b, begin, MIN(MC, end - begin));
		for (int64_t k = 0, next; k < depth; k = next) {
			next = chunk_end(t, k);
			for (int64_t j = 0; j < t->out; j += NR) {
				const float *w = t->packed + k * t->out + j * (next - k);
				for (int64_t i = 0; i < b.n; i += MR)
					tile_at(t, &b, i, j, k, next, w, i == MR ? w + NR * (next - k) : NULL);
			}
		}
	}
}

static void run(KPrim *p, PrimArgs *args, char *work, bool turned)
{
	Tiles t = tiles_of(&p->conv, turned);
	int64_t classes = t.axis[0].up * t.axis[1].up * t.axis[2].up;
	float *packed = (float *)(void *)(work + zeros_bytes(&t) + met_bytes(&t));
	t.y = args->at[0];
	t.x = args->at[1];
	t.bias = args->at[3];
	t.packed = packed;
	t.zeros = memset(work, 0, (size_t)zeros_bytes(&t));
	find_met(&t, (int64_t *)(void *)(work + zeros_bytes(&t)));
	pack(&t, packed, args->at[2]);
	#pragma omp parallel
	for (int64_t i = 0; i < classes; i++) {
		Class c = class_at(&t, i);
		int64_t tiles = ceil_div(c.positions, MR), rank = team_rank(), size = team_size();
		compute(&t, &c, tiles * rank / size * MR, MIN(c.positions, tiles * (rank + 1) / size * MR));
	}
}

static void forward(KPrim *p, PrimArgs *t, char *work) { run(p, t, work, false); }
static void grad_x(KPrim *p, PrimArgs *t, char *work) { run(p, t, work, true); }

KPrim *conv_tiles_create(const KConvDesc *d, ConvKind kind)
{
	if (kind == CONV_GRAD_W || d->dtype != K_F32 || d->layout != 1 || d->w_layout || d->group != 1)
		return NULL;
	Tiles t = tiles_of(d, kind == CONV_GRAD_X);
	int64_t bytes = zeros_bytes(&t) + met_bytes(&t) + packed_bytes(&t);
	if (t.taps > MOST_TAPS || t.out % NR || t.in < 32 || bytes > d->work_bytes)
		return NULL;
	KPrim *p = prim_new("own:tiles");
	p->conv = *d;
	p->work = bytes;
	p->run = kind == CONV_GRAD_X ? grad_x : forward;
	return p;
}
