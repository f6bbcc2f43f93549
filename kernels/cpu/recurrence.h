/* kernels/cpu/recurrence.h: recurrent layers that are computed in T; recurrence.c includes it for f32 and f64.
 *
 * Rows of states have `wide` elements, which is H rounded up to blocks; what lies beyond H is zero or never read. */
#define NAME(name) CONCAT(name, SUFFIX)
#define LOAD_ROW CONCAT(load_row, SUFFIX)
#define STORE_ROW CONCAT(store_row, SUFFIX)
#define ACT CONCAT(act, SUFFIX)
#define SLOPE CONCAT(slope, SUFFIX)
#define PRODUCT CONCAT(product, SUFFIX)

/* A recurrence that runs.  T buffers: h of even and odd steps, c, r h; of backward: dh in h[0], dc in c. */
typedef struct NAME(Run) {
	const KRecurrenceDesc *d;
	const Operands *in;
	const Results *out;
	int gates;
	int64_t wide, blocks, groups;
	T *panel, *h[2], *c, *rh;
	T *d_gates[2];             /* of even and odd steps (G,B,H): gradient of h r^T; rows of G*H share cache sets */
	T lo[3], hi[3];            /* of each activation: the values that clipped inputs give */
	bool clips;
} NAME(Run);

/* Where a task works: states j.. of samples m.. */
typedef struct NAME(Part) { int64_t block, j, n, m, rows; } NAME(Part);

static NAME(Part) NAME(part)(const NAME(Run) *u, int64_t task)
{
	NAME(Part) p = {.block = task % u->blocks, .m = task / u->blocks * ROWS};
	p.j = p.block * COLS;
	p.n = MIN((int64_t)COLS, u->d->h - p.j);
	p.rows = MIN((int64_t)ROWS, u->d->b - p.m);
	return p;
}

static NAME(Run) NAME(run)(const KRecurrenceDesc *d, const Operands *in, const Results *out, void *work, bool grad)
{
	NAME(Run) u = {.d = d, .in = in, .out = out, .gates = gates_of(d), .wide = round_up(d->h, COLS),
		.blocks = ceil_div(d->h, COLS), .groups = ceil_div(d->b, ROWS), .clips = d->clip > 0};
	T *at = work;
	int64_t state = d->b * u.wide;
	u.panel = at;
	at += u.gates * d->h * u.wide;
	u.h[0] = at;
	u.c = at + state;
	at += 2 * state;
	for (int i = 0; grad && i < 2; i++, at += d->b * u.gates * d->h)
		u.d_gates[i] = at;
	u.h[1] = at;
	u.rh = at + state;
	for (int i = 0; u.clips && i < 3; i++) {
		T a = ACT(d->act[i], (T)d->alpha[i], (T)d->beta[i], (T)d->clip);
		T b = ACT(d->act[i], (T)d->alpha[i], (T)d->beta[i], (T)-d->clip);
		u.lo[i] = MIN(a, b);
		u.hi[i] = MAX(a, b);
	}
	return u;
}

/* Panel (block, g) of H rows of COLS: r^T's columns g*H + j.. for forward, r's columns j.. of gate g for backward. */
static T *NAME(panel)(const NAME(Run) *u, int64_t block, int g)
{
	return u->panel + (block * u->gates + g) * u->d->h * COLS;
}

/* Every COLS-th element of `to` is one of the row of r that begins at element `at`. */
static void NAME(pack_column)(const NAME(Run) *u, T *to, int64_t at)
{
	enum { PIECE = 256 };
	T row[PIECE];
	for (int64_t k = 0; k < u->d->h; k += PIECE) {
		int64_t n = MIN((int64_t)PIECE, u->d->h - k);
		LOAD_ROW(row, u->in->r, u->d->dtype, at + k, n);
		for (int64_t i = 0; i < n; i++)
			to[(k + i) * COLS] = row[i];
	}
}

static void NAME(pack)(const NAME(Run) *u, bool turned)
{
	int64_t h = u->d->h;
	#pragma omp parallel for schedule(static) if (u->gates * h * h > PARALLEL_MIN)
	for (int64_t i = 0; i < u->blocks * u->gates; i++) {
		int64_t block = i / u->gates, g = i % u->gates, j = block * COLS, n = MIN((int64_t)COLS, h - j);
		T *to = NAME(panel)(u, block, (int)g);
		memset(to, 0, (size_t)(h * COLS) * sizeof *to);
		for (int64_t k = 0; !turned && k < h; k++)
			LOAD_ROW(to + k * COLS, u->in->r, u->d->dtype, (g * h + k) * h + j, n);
		for (int64_t c = 0; turned && c < n; c++)
			NAME(pack_column)(u, to + c, (g * h + j + c) * h);
	}
}

/* ---- activations of a row of a block; where H ends within it, of zeros as well ---- */

static void NAME(activate)(const NAME(Run) *u, int i, T *x, bool gate)
{
	KActivation a = u->d->act[i];
	T alpha = (T)u->d->alpha[i], beta = (T)u->d->beta[i], clip = (T)u->d->clip;
	for (int j = 0; gate && u->clips && j < COLS; j++)
		x[j] = x[j] > clip ? clip : x[j] < -clip ? -clip : x[j];
	if (a == K_ACT_SIGMOID)
		for (int j = 0; j < COLS; j++)
			x[j] = ACT(K_ACT_SIGMOID, 0, 0, x[j]);
	else if (a == K_ACT_TANH)
		for (int j = 0; j < COLS; j++)
			x[j] = ACT(K_ACT_TANH, 0, 0, x[j]);
	else
		for (int j = 0; j < COLS; j++)
			x[j] = ACT(a, alpha, beta, x[j]);
}

/* d *= the derivative of activation i where its value is y */
static void NAME(scale_by_slope)(const NAME(Run) *u, int i, T *d, const T *y, bool gate)
{
	KActivation a = u->d->act[i];
	T alpha = (T)u->d->alpha[i], beta = (T)u->d->beta[i];
	if (a == K_ACT_SIGMOID)
		for (int j = 0; j < COLS; j++)
			d[j] *= y[j] * (1 - y[j]);
	else if (a == K_ACT_TANH)
		for (int j = 0; j < COLS; j++)
			d[j] *= 1 - y[j] * y[j];
	else
		for (int j = 0; j < COLS; j++)
			d[j] *= SLOPE(a, alpha, beta, y[j]);
	for (int j = 0; gate && u->clips && j < COLS; j++)
		d[j] = y[j] > u->lo[i] && y[j] < u->hi[i] ? d[j] : 0;
}

/* ---- rows of tensors ---- */

/* Parts of blocks, and blocks of another type. */
static __attribute__((noinline)) void NAME(load_part)(T *to, const void *from, KDType t, int64_t at, int64_t n)
{
	memset(to, 0, COLS * sizeof *to);
	LOAD_ROW(to, from, t, at, n);
}

static __attribute__((noinline)) void NAME(store_part)(void *to, const T *from, KDType t, int64_t at, int64_t n)
{
	STORE_ROW(to, from, t, at, n);
}

/* Elements [at, at + n) of a tensor, and zeros up to a whole block. */
INLINE void NAME(load_cols)(T *to, const void *from, KDType t, int64_t at, int64_t n)
{
	if (n == COLS && t == NAME(own))
		memcpy(to, (const T *)from + at, COLS * sizeof *to);
	else
		NAME(load_part)(to, from, t, at, n);
}

INLINE void NAME(store_cols)(void *to, const T *from, KDType t, int64_t at, int64_t n)
{
	if (n == COLS && t == NAME(own))
		memcpy((T *)to + at, from, COLS * sizeof *from);
	else
		NAME(store_part)(to, from, t, at, n);
}

/* The same of an operand that may be absent: zeros. */
INLINE void NAME(load_or_zero)(T *to, const void *from, KDType t, int64_t at, int64_t n)
{
	if (from)
		NAME(load_cols)(to, from, t, at, n);
	else
		memset(to, 0, COLS * sizeof *to);
}

INLINE void NAME(store_if)(void *to, const T *from, KDType t, int64_t at, int64_t n)
{
	if (to)
		NAME(store_cols)(to, from, t, at, n);
}

/* x += elements [at, at + n) of an operand, which may be absent. */
INLINE void NAME(add_row)(T *x, const void *from, KDType t, int64_t at, int64_t n)
{
	T row[COLS];
	if (!from)
		return;
	NAME(load_cols)(row, from, t, at, n);
	for (int j = 0; j < COLS; j++)
		x[j] += row[j];
}

/* x += peep * c */
static void NAME(add_peep)(const NAME(Run) *u, T *x, int which, const T *c, const NAME(Part) *p)
{
	T row[COLS];
	if (!u->in->peep)
		return;
	NAME(load_cols)(row, u->in->peep, u->d->dtype, which * u->d->h + p->j, p->n);
	for (int j = 0; j < COLS; j++)
		x[j] += row[j] * c[j];
}

/* ---- forward ---- */

typedef struct NAME(Tile) { T z[4][ROWS][COLS]; } NAME(Tile);

static void NAME(multiply)(const NAME(Run) *u, NAME(Tile) *z, const T *h, const NAME(Part) *p, int from, int to)
{
	for (int g = from; g < to; g++)
		PRODUCT(p->rows, u->d->h, h + p->m * u->wide, u->wide, NAME(panel)(u, p->block, g), z->z[g][0], COLS, false);
}

/* z[g] of one row += x, and the bias of h r^T if `bias`. */
static void NAME(add_inputs)(const NAME(Run) *u, T *z, int g, int64_t row, const NAME(Part) *p, bool bias)
{
	int64_t at = g * u->d->h + p->j;
	if (bias)
		NAME(add_row)(z, u->in->bias, u->d->dtype, at, p->n);
	else
		NAME(add_row)(z, u->in->x, u->d->dtype, row * u->gates * u->d->h + at, p->n);
}

static void NAME(keep)(const NAME(Run) *u, const T *z, int g, int64_t row, const NAME(Part) *p)
{
	int64_t kept = (u->gates + u->d->after) * u->d->h;
	NAME(store_if)(u->out->gates, z, NAME(own), row * kept + g * u->d->h + p->j, p->n);
}

/* One row of a tile: from z and the state before to h, which may be rounded afterwards. */
static void NAME(rnn_row)(const NAME(Run) *u, NAME(Tile) *z, int64_t i, int64_t row, T *h, const NAME(Part) *p)
{
	T *x = z->z[0][i];
	NAME(add_inputs)(u, x, 0, row, p, false);
	NAME(activate)(u, 0, x, true);
	NAME(keep)(u, x, 0, row, p);
	memcpy(h, x, COLS * sizeof *h);
}

static void NAME(gru_gates)(const NAME(Run) *u, NAME(Tile) *z, int64_t i, int64_t row, const NAME(Part) *p)
{
	for (int g = 0; g < 2; g++) {
		NAME(add_inputs)(u, z->z[g][i], g, row, p, false);
		NAME(add_inputs)(u, z->z[g][i], g, row, p, true);
		NAME(activate)(u, 0, z->z[g][i], true);
		NAME(keep)(u, z->z[g][i], g, row, p);
	}
}

static void NAME(gru_row)(const NAME(Run) *u, NAME(Tile) *z, int64_t i, int64_t row, const T *before, T *h,
	const NAME(Part) *p)
{
	T *g = z->z[2][i], *zg = z->z[0][i], *r = z->z[1][i];
	if (u->d->after) {
		NAME(add_inputs)(u, g, 2, row, p, true);
		NAME(keep)(u, g, 3, row, p);
		for (int j = 0; j < COLS; j++)
			g[j] *= r[j];
	}
	NAME(add_inputs)(u, g, 2, row, p, false);
	NAME(activate)(u, 1, g, true);
	NAME(keep)(u, g, 2, row, p);
	for (int j = 0; j < COLS; j++)
		h[j] = (1 - zg[j]) * g[j] + zg[j] * before[j];
}

static void NAME(lstm_row)(const NAME(Run) *u, NAME(Tile) *z, int64_t i, int64_t row, T *c, T *h, const NAME(Part) *p)
{
	T *in = z->z[0][i], *o = z->z[1][i], *f = z->z[2][i], *g = z->z[3][i], y[COLS];
	for (int k = 0; k < 4; k++)
		NAME(add_inputs)(u, z->z[k][i], k, row, p, false);
	NAME(add_peep)(u, in, 0, c, p);
	NAME(add_peep)(u, f, 2, c, p);
	NAME(activate)(u, 0, in, true);
	NAME(activate)(u, 0, f, true);
	NAME(activate)(u, 1, g, true);
	for (int j = 0; u->d->couple && j < COLS; j++)
		f[j] = 1 - in[j];
	for (int j = 0; j < COLS; j++)
		y[j] = c[j] = f[j] * c[j] + in[j] * g[j];
	NAME(add_peep)(u, o, 1, c, p);
	NAME(activate)(u, 0, o, true);
	NAME(activate)(u, 2, y, false);
	for (int j = 0; j < COLS; j++)
		h[j] = o[j] * y[j];
	for (int k = 0; k < 4; k++)
		NAME(keep)(u, z->z[k][i], k, row, p);
	NAME(store_if)(u->out->all_c, c, NAME(own), row * u->d->h + p->j, p->n);
}

/* What a step behind the sample's end gives: zeros. */
static void NAME(empty_row)(const NAME(Run) *u, int64_t row, const NAME(Part) *p)
{
	static const T zero[COLS];
	NAME(store_cols)(u->out->y, zero, u->d->dtype, row * u->d->h + p->j, p->n);
	for (int g = 0; g < u->gates + u->d->after; g++)
		NAME(keep)(u, zero, g, row, p);
	NAME(store_if)(u->out->all_c, zero, NAME(own), row * u->d->h + p->j, p->n);
}

static void NAME(step_row)(const NAME(Run) *u, NAME(Tile) *z, int64_t s, int64_t i, const NAME(Part) *p)
{
	int64_t t = step_at(u->d, s), b = p->m + i, at = b * u->wide + p->j, row = t * u->d->b + b;
	const T *before = u->h[s & 1] + at;
	T *h = u->h[~s & 1] + at;
	if (t >= length_at(u->d, u->in->lengths, b)) {
		memcpy(h, before, COLS * sizeof *h);
		NAME(empty_row)(u, row, p);
		return;
	}
	if (u->d->cell == K_CELL_LSTM)
		NAME(lstm_row)(u, z, i, row, u->c + at, h, p);
	else if (u->d->cell == K_CELL_RNN)
		NAME(rnn_row)(u, z, i, row, h, p);
	else
		NAME(gru_row)(u, z, i, row, before, h, p);
	NAME(store_cols)(u->out->y, h, u->d->dtype, row * u->d->h + p->j, p->n);
	NAME(load_cols)(h, u->out->y, u->d->dtype, row * u->d->h + p->j, p->n);
}

/* A gru whose last gate multiplies r h: z and r of this step are kept in c and rh until all of rh is there. */
static void NAME(first_gates)(const NAME(Run) *u, NAME(Tile) *z, int64_t s, const NAME(Part) *p)
{
	int64_t t = step_at(u->d, s);
	NAME(multiply)(u, z, u->h[s & 1], p, 0, 2);
	for (int64_t i = 0; i < p->rows; i++) {
		int64_t b = p->m + i, at = b * u->wide + p->j;
		if (t < length_at(u->d, u->in->lengths, b))
			NAME(gru_gates)(u, z, i, t * u->d->b + b, p);
		memcpy(u->c + at, z->z[0][i], COLS * sizeof(T));
		for (int j = 0; j < COLS; j++)
			u->rh[at + j] = z->z[1][i][j] * u->h[s & 1][at + j];
	}
}

static void NAME(last_gate)(const NAME(Run) *u, NAME(Tile) *z, const NAME(Part) *p)
{
	NAME(multiply)(u, z, u->rh, p, 2, 3);
	for (int64_t i = 0; i < p->rows; i++)
		memcpy(z->z[0][i], u->c + (p->m + i) * u->wide + p->j, COLS * sizeof(T));
}

static void NAME(task)(const NAME(Run) *u, int64_t s, int64_t task, bool late)
{
	NAME(Tile) z;
	NAME(Part) p = NAME(part)(u, task);
	if (late)
		NAME(last_gate)(u, &z, &p);
	else
		NAME(multiply)(u, &z, u->h[s & 1], &p, 0, u->gates);
	for (int64_t i = 0; i < p.rows; i++) {
		bool runs = step_at(u->d, s) < length_at(u->d, u->in->lengths, p.m + i);
		if (runs && !late && u->d->cell == K_CELL_GRU)
			NAME(gru_gates)(u, &z, i, step_at(u->d, s) * u->d->b + p.m + i, &p);
		NAME(step_row)(u, &z, s, i, &p);
	}
}

static void NAME(first_task)(const NAME(Run) *u, int64_t s, int64_t task)
{
	NAME(Tile) z;
	NAME(Part) p = NAME(part)(u, task);
	NAME(first_gates)(u, &z, s, &p);
}

/* Rows of states, padded with zeros, from (B,H), and back. */
static void NAME(load_states)(const NAME(Run) *u, T *to, const void *from)
{
	memset(to, 0, (size_t)(u->d->b * u->wide) * sizeof *to);
	for (int64_t b = 0; from && b < u->d->b; b++)
		LOAD_ROW(to + b * u->wide, from, u->d->dtype, b * u->d->h, u->d->h);
}

static void NAME(store_states)(const NAME(Run) *u, void *to, const T *from)
{
	for (int64_t b = 0; to && b < u->d->b; b++)
		STORE_ROW(to, from + b * u->wide, u->d->dtype, b * u->d->h, u->d->h);
}

static void NAME(forward)(const KRecurrenceDesc *d, const Operands *in, const Results *out, void *work)
{
	NAME(Run) u = NAME(run)(d, in, out, work, false);
	int64_t tasks = u.blocks * u.groups;
	bool late = d->cell == K_CELL_GRU && !d->after;
	NAME(pack)(&u, true);
	NAME(load_states)(&u, u.h[0], in->h0);
	NAME(load_states)(&u, u.c, in->c0);
	#pragma omp parallel if (d->b * d->h * d->h > PARALLEL_MIN)
	for (int64_t s = 0; s < d->t; s++) {
		if (late) {
			#pragma omp for schedule(static)
			for (int64_t i = 0; i < tasks; i++)
				NAME(first_task)(&u, s, i);
		}
		#pragma omp for schedule(static)
		for (int64_t i = 0; i < tasks; i++)
			NAME(task)(&u, s, i, late);
	}
	NAME(store_states)(&u, out->h, u.h[d->t & 1]);
	NAME(store_states)(&u, out->c, u.c);
}

/* ---- backward: h[0] and c hold dh and dc ---- */

/* A row of a step, as all cells go back through it. */
typedef struct NAME(Back) {
	int64_t row, b;
	T kept[4][COLS], h[COLS], c[COLS]; /* the gates; the states before */
	T *dh, *dc, *dg;           /* dg: the row of d_gates of gate 0, from column j on */
} NAME(Back);

/* Of the step before in the sample, a row of y or all c, or of the first state. */
static void NAME(load_before)(const NAME(Run) *u, T *to, const void *all, KDType t, const void *first,
	const NAME(Back) *k, int64_t length, const NAME(Part) *p)
{
	int64_t now = k->row / u->d->b, step = u->d->reverse ? now + 1 : now - 1;
	if (step >= 0 && step < length)
		NAME(load_cols)(to, all, t, (step * u->d->b + k->b) * u->d->h + p->j, p->n);
	else
		NAME(load_or_zero)(to, first, u->d->dtype, k->b * u->d->h + p->j, p->n);
}

static void NAME(put_gate)(const NAME(Run) *u, const NAME(Back) *k, int g, const T *dx, const NAME(Part) *p)
{
	NAME(store_if)(u->out->dx, dx, u->d->dtype, k->row * u->gates * u->d->h + g * u->d->h + p->j, p->n);
}

/* Puts the gradient of gate g of h r^T, which is also that of x unless a gru's last gate is scaled by r. */
static void NAME(put_product)(const NAME(Run) *u, const NAME(Back) *k, int g, const T *d, const NAME(Part) *p)
{
	NAME(store_cols)(k->dg, d, NAME(own), g * u->d->b * u->d->h, p->n);
	if (u->d->after)
		NAME(store_if)(u->out->product, d, u->d->dtype, k->row * 3 * u->d->h + g * u->d->h + p->j, p->n);
}

static void NAME(back_rnn)(const NAME(Run) *u, NAME(Back) *k, const NAME(Part) *p)
{
	NAME(scale_by_slope)(u, 0, k->dh, k->kept[0], true);
	NAME(put_gate)(u, k, 0, k->dh, p);
	NAME(put_product)(u, k, 0, k->dh, p);
	memset(k->dh, 0, COLS * sizeof *k->dh);
}

/* Gates z and n; r as well, unless it needs the product of dn first.  dh becomes the part that z lets through. */
static void NAME(back_gru)(const NAME(Run) *u, NAME(Back) *k, const NAME(Part) *p)
{
	const T *z = k->kept[0], *r = k->kept[1], *g = k->kept[2], *q = k->kept[3];
	T dz[COLS], dn[COLS], dr[COLS];
	for (int j = 0; j < COLS; j++) {
		dz[j] = k->dh[j] * (k->h[j] - g[j]);
		dn[j] = k->dh[j] * (1 - z[j]);
		k->dh[j] *= z[j];
	}
	NAME(scale_by_slope)(u, 0, dz, z, true);
	NAME(scale_by_slope)(u, 1, dn, g, true);
	NAME(put_gate)(u, k, 0, dz, p);
	NAME(put_product)(u, k, 0, dz, p);
	NAME(put_gate)(u, k, 2, dn, p);
	for (int j = 0; u->d->after && j < COLS; j++) {
		dr[j] = dn[j] * q[j];
		dn[j] *= r[j];
	}
	NAME(put_product)(u, k, 2, dn, p);
	if (!u->d->after)
		return;
	NAME(scale_by_slope)(u, 0, dr, r, true);
	NAME(put_gate)(u, k, 1, dr, p);
	NAME(put_product)(u, k, 1, dr, p);
}

/* Gate r of a gru whose last gate multiplies r h, from d(r h). */
static void NAME(back_reset)(const NAME(Run) *u, NAME(Back) *k, const T *drh, const NAME(Part) *p)
{
	const T *r = k->kept[1];
	T dr[COLS], rh[COLS];
	for (int j = 0; j < COLS; j++) {
		dr[j] = drh[j] * k->h[j];
		rh[j] = r[j] * k->h[j];
		k->dh[j] += drh[j] * r[j];
	}
	NAME(scale_by_slope)(u, 0, dr, r, true);
	NAME(put_gate)(u, k, 1, dr, p);
	NAME(put_product)(u, k, 1, dr, p);
	NAME(store_if)(u->out->product, rh, u->d->dtype, k->row * u->d->h + p->j, p->n);
}

static void NAME(back_lstm)(const NAME(Run) *u, NAME(Back) *k, const NAME(Part) *p)
{
	const T *in = k->kept[0], *o = k->kept[1], *f = k->kept[2], *g = k->kept[3];
	T d[4][COLS], y[COLS], dc[COLS];
	NAME(load_cols)(y, u->in->all_c, NAME(own), k->row * u->d->h + p->j, p->n);
	NAME(activate)(u, 2, y, false);
	for (int j = 0; j < COLS; j++) {
		d[1][j] = k->dh[j] * y[j];
		dc[j] = k->dh[j] * o[j];
	}
	NAME(scale_by_slope)(u, 0, d[1], o, true);
	NAME(scale_by_slope)(u, 2, dc, y, false);
	NAME(add_peep)(u, dc, 1, d[1], p);
	for (int j = 0; j < COLS; j++) {
		dc[j] += k->dc[j];
		d[0][j] = dc[j] * g[j] - (u->d->couple ? dc[j] * k->c[j] : 0);
		d[2][j] = u->d->couple ? 0 : dc[j] * k->c[j];
		d[3][j] = dc[j] * in[j];
		k->dc[j] = dc[j] * f[j];
	}
	NAME(scale_by_slope)(u, 0, d[0], in, true);
	NAME(scale_by_slope)(u, 0, d[2], f, true);
	NAME(scale_by_slope)(u, 1, d[3], g, true);
	NAME(add_peep)(u, k->dc, 0, d[0], p);
	NAME(add_peep)(u, k->dc, 2, d[2], p);
	for (int i = 0; i < 4; i++) {
		NAME(put_gate)(u, k, i, d[i], p);
		NAME(put_product)(u, k, i, d[i], p);
	}
	memset(k->dh, 0, COLS * sizeof *k->dh);
}

/* A step behind the sample's end: zeros; states pass. */
static void NAME(back_empty)(const NAME(Run) *u, NAME(Back) *k, const NAME(Part) *p)
{
	static const T zero[COLS];
	NAME(store_if)(u->out->before, zero, u->d->dtype, k->row * u->d->h + p->j, p->n);
	for (int g = 0; g < u->gates; g++) {
		NAME(put_gate)(u, k, g, zero, p);
		NAME(put_product)(u, k, g, zero, p);
	}
	if (u->d->cell == K_CELL_GRU && !u->d->after)
		NAME(store_if)(u->out->product, zero, u->d->dtype, k->row * u->d->h + p->j, p->n);
}

static bool NAME(open_row)(const NAME(Run) *u, NAME(Back) *k, int64_t s, int64_t i, const NAME(Part) *p)
{
	int64_t t = step_at(u->d, s), h = u->d->h, length;
	k->b = p->m + i;
	k->row = t * u->d->b + k->b;
	k->dh = u->h[0] + k->b * u->wide + p->j;
	k->dc = u->c + k->b * u->wide + p->j;
	k->dg = u->d_gates[s & 1] + k->b * h + p->j;
	length = length_at(u->d, u->in->lengths, k->b);
	if (t >= length)
		return false;
	for (int g = 0; g < u->gates + u->d->after; g++)
		NAME(load_cols)(k->kept[g], u->in->gates, NAME(own), (k->row * (u->gates + u->d->after) + g) * h + p->j, p->n);
	NAME(load_before)(u, k->h, u->in->y, u->d->dtype, u->in->h0, k, length, p);
	if (u->d->cell == K_CELL_LSTM)
		NAME(load_before)(u, k->c, u->in->all_c, NAME(own), u->in->c0, k, length, p);
	return true;
}

/* dh += d_gates r, for gates `from` to `to` of step s, into rows of `row` elements at dh. */
static void NAME(multiply_back)(const NAME(Run) *u, int64_t s, const NAME(Part) *p, int from, int to, T *dh,
	int64_t row)
{
	int64_t h = u->d->h;
	for (int g = from; g < to; g++)
		PRODUCT(p->rows, h, u->d_gates[s & 1] + (g * u->d->b + p->m) * h, h, NAME(panel)(u, p->block, g), dh, row,
			true);
}

static void NAME(back_task)(const NAME(Run) *u, int64_t s, int64_t task)
{
	NAME(Part) p = NAME(part)(u, task);
	int gates = u->d->cell == K_CELL_GRU && !u->d->after ? 2 : u->gates;
	if (s < u->d->t - 1)
		NAME(multiply_back)(u, s + 1, &p, 0, gates, u->h[0] + p.m * u->wide + p.j, u->wide);
	for (int64_t i = 0; i < p.rows && s >= 0; i++) {
		NAME(Back) k;
		if (!NAME(open_row)(u, &k, s, i, &p)) {
			NAME(back_empty)(u, &k, &p);
			continue;
		}
		NAME(store_if)(u->out->before, k.h, u->d->dtype, k.row * u->d->h + p.j, p.n);
		NAME(add_row)(k.dh, u->in->dy, u->d->dtype, k.row * u->d->h + p.j, p.n);
		if (u->d->cell == K_CELL_LSTM)
			NAME(back_lstm)(u, &k, &p);
		else if (u->d->cell == K_CELL_RNN)
			NAME(back_rnn)(u, &k, &p);
		else
			NAME(back_gru)(u, &k, &p);
	}
}

static void NAME(reset_task)(const NAME(Run) *u, int64_t s, int64_t task)
{
	T drh[ROWS][COLS];
	NAME(Part) p = NAME(part)(u, task);
	memset(drh, 0, sizeof drh);
	NAME(multiply_back)(u, s, &p, 2, 3, drh[0], COLS);
	for (int64_t i = 0; i < p.rows; i++) {
		NAME(Back) k;
		if (NAME(open_row)(u, &k, s, i, &p))
			NAME(back_reset)(u, &k, drh[i], &p);
	}
}

/* dpeep: over all steps, the sum of the gates' gradients times c: before the step for i and f, behind it for o. */
static void NAME(peep_block)(const NAME(Run) *u, int64_t block)
{
	static const int gate[3] = {0, 1, 2};
	NAME(Part) p = {.j = block * COLS};
	p.n = MIN((int64_t)COLS, u->d->h - p.j);
	T sum[3][COLS] = {{0}}, dx[COLS];
	for (int64_t row = 0; row < u->d->t * u->d->b; row++) {
		NAME(Back) k = {.row = row, .b = row % u->d->b};
		int64_t length = length_at(u->d, u->in->lengths, k.b);
		if (row / u->d->b >= length)
			continue;
		for (int i = 0; i < 3; i++) {
			if (i == 1)
				NAME(load_cols)(k.c, u->in->all_c, NAME(own), row * u->d->h + p.j, p.n);
			else
				NAME(load_before)(u, k.c, u->in->all_c, NAME(own), u->in->c0, &k, length, &p);
			NAME(load_cols)(dx, u->out->dx, u->d->dtype, (row * 4 + gate[i]) * u->d->h + p.j, p.n);
			for (int j = 0; j < COLS; j++)
				sum[i][j] += dx[j] * k.c[j];
		}
	}
	for (int i = 0; i < 3; i++)
		NAME(store_cols)(u->out->dpeep, sum[i], u->d->dtype, i * u->d->h + p.j, p.n);
}

static void NAME(backward)(const KRecurrenceDesc *d, const Operands *in, const Results *out, void *work)
{
	NAME(Run) u = NAME(run)(d, in, out, work, true);
	int64_t tasks = u.blocks * u.groups;
	bool late = d->cell == K_CELL_GRU && !d->after;
	NAME(pack)(&u, false);
	NAME(load_states)(&u, u.h[0], in->dh);
	NAME(load_states)(&u, u.c, in->dc);
	#pragma omp parallel if (d->b * d->h * d->h > PARALLEL_MIN)
	for (int64_t s = d->t - 1; s >= (d->t ? -1 : 0); s--) {
		#pragma omp for schedule(static)
		for (int64_t i = 0; i < tasks; i++)
			NAME(back_task)(&u, s, i);
		if (late && s >= 0) {
			#pragma omp for schedule(static)
			for (int64_t i = 0; i < tasks; i++)
				NAME(reset_task)(&u, s, i);
		}
	}
	#pragma omp parallel for schedule(static) if (out->dpeep && d->t * d->b * d->h > PARALLEL_MIN)
	for (int64_t i = 0; i < (out->dpeep ? u.blocks : 0); i++)
		NAME(peep_block)(&u, i);
	NAME(store_states)(&u, out->dh0, u.h[0]);
	NAME(store_states)(&u, out->dc0, u.c);
}
#undef NAME
#undef LOAD_ROW
#undef STORE_ROW
#undef ACT
#undef SLOPE
#undef PRODUCT
#undef T
#undef SUFFIX
