/* tests/unit/kernel_update.c: gaps, norms and updates of flat buffers against f64 loops. */
#include "tests/unit/kernel_cases.h"

/* ---- flat buffers and updates ---- */

static const Segment segments[3] = {{0, 1000, 0, 0, 0}, {1024, 20000, 1, 1, 0}, {21056, 7, 0, 2, 0}};
static const Segment *some_segments(void) { return case_bytes(segments, sizeof segments); }
enum { FLAT = 21120 };

void case_zero_gaps(void)
{
	float *x = case_floats(FLAT, 1, 2);
	k_zero_gaps(x, FLAT, some_segments(), 3, 4);
	case_sync();
	for (int64_t i = 0; i < FLAT; i++) {
		bool inside = false;
		for (int k = 0; k < 3; k++)
			inside |= i >= segments[k].begin && i < segments[k].begin + segments[k].length;
		case_true((x[i] != 0) == inside, "zero_gaps");
	}
}

static void case_norm_of(double p, KDType type)
{
	float *x = case_floats(FLAT, -1, 1);
	void *g = case_halves(x, FLAT, type);
	double *got = case_doubles(1), want = 0;
	const Segment *seg = some_segments();
	void *work = case_alloc(kwork_cuda_norm_parts(3));
	for (int k = 0; k < 3; k++)
		for (int64_t i = 0; i < segments[k].length; i++) {
			double v = fabs((double)x[segments[k].begin + i]);
			want = isinf(p) ? fmax(want, v) : want + pow(v, p);
		}
	CASE_SAME_BITS("norm", got, 8, (*got = 0, k_norm(got, g, type, seg, 3, p, work)));
	case_close64("norm", got, &want, 1, 1e-12);
	k_norm(got, g, type, seg, 2, p, work);
	k_norm(got, g, type, seg + 2, 1, p, work);
	want *= isinf(p) ? 1 : 2;
	case_close64("norm of parts", got, &want, 1, 1e-12);
}

/* What is not finite stays so, wherever it stands; what lies in a gap does not count. */
static void case_norm_not_finite(double p)
{
	static const float bad[] = {NAN, INFINITY, -INFINITY};
	void *work = case_alloc(kwork_cuda_norm_parts(3));
	const Segment *seg = some_segments();
	double *got = case_doubles(1);
	for (int b = 0; b < 3; b++)
		for (int k = 0; k < 3; k++) {
			float *x = case_floats(FLAT, -1, 1);
			x[segments[k].begin + (k == 1 ? segments[k].length - 1 : 0)] = bad[b];
			*got = 0;
			k_norm(got, x, K_F32, seg, 3, p, work);
			case_sync();
			case_true(b ? *got == (double)INFINITY : isnan(*got), "norm of what is not finite");
		}
	float *x = case_floats(FLAT, -1, 1);
	for (int64_t i = segments[2].begin + segments[2].length; i < FLAT; i++)
		x[i] = NAN;
	*got = 0;
	k_norm(got, x, K_F32, seg, 3, p, work);
	case_sync();
	case_true(isfinite(*got), "norm beside a gap");
}

void case_norm(void)
{
	static const double p[] = {1, 2, 3, 1.5, INFINITY};
	for (int i = 0; i < 5; i++) {
		case_norm_of(p[i], K_F32);
		case_norm_of(p[i], K_BF16);
		case_norm_of(p[i], K_F16);
		case_norm_not_finite(p[i]);
	}
	case_true(isnan(k_norm_join(NAN, 1, INFINITY)) && isnan(k_norm_join(1, NAN, INFINITY)), "NaN in a maximum");
}

typedef enum { SGD, MOMENTUM, NESTEROV, ADAM, ADAMW, ADAGRAD, LION } Rule;

/* One element, by the books, in f64. */
static void rule_one(Rule r, const Group *h, double lr, int t, double *p, double *m, double *v, double g)
{
	double b1 = h->beta1, b2 = h->beta2, wd = h->weight_decay;
	if (r == ADAMW || r == LION)
		*p *= 1 - lr * wd;
	else
		g += wd * *p;
	if (r == SGD)
		*p -= lr * g;
	if (r == MOMENTUM || r == NESTEROV) {
		*m = b1 * *m + g;
		*p -= lr * (r == NESTEROV ? g + b1 * *m : *m);
	}
	if (r == ADAM || r == ADAMW) {
		*m = b1 * *m + (1 - b1) * g;
		*v = b2 * *v + (1 - b2) * g * g;
		*p -= lr * (*m / (1 - pow(b1, t))) / (sqrt(*v / (1 - pow(b2, t))) + h->eps);
	}
	if (r == ADAGRAD) {
		*m += g * g;
		*p -= lr * g / (sqrt(*m) + h->eps);
	}
	if (r == LION) {
		double c = b1 * *m + (1 - b1) * g;
		*p -= lr * (c > 0 ? 1 : c < 0 ? -1 : 0);
		*m = b2 * *m + (1 - b2) * g;
	}
}

static void check_update_of(Rule r, void (*update)(const KUpdate *u), KDType type)
{
	static const Group groups[2] = {{1, 0.1f, 0.9f, 0.99f, 1e-6f}, {0.5f, 0, 0.8f, 0.95f, 1e-6f}};
	float *p = case_floats(FLAT, -1, 1), *m = case_alloc(FLAT * 4), *v = case_alloc(FLAT * 4);
	float *before = case_alloc(FLAT * 4);
	StepScalars *s = case_alloc(sizeof *s);
	const Segment *seg = some_segments();
	const Group *group = case_bytes(groups, sizeof groups);
	double *wp = case_doubles(FLAT), *wm = case_doubles(FLAT), *wv = case_doubles(FLAT);
	memset(m, 0, FLAT * 4);
	memset(v, 0, FLAT * 4);
	for (int64_t i = 0; i < FLAT; i++)
		wp[i] = p[i];
	for (int t = 1; t <= 5; t++) {
		float *read = case_floats(FLAT, -3, 3);
		void *g = case_halves(read, FLAT, type); /* read: what is left after rounding */
		*s = (StepScalars){.lr = 0.01f, .grad_scale = 0.5f, .clip_coef = 0.8f, .clip_value = 1, .step = t,
			.skip = t == 4};
		memcpy(before, p, FLAT * 4);
		KUpdate u = {.p = p, .state = {r == SGD ? NULL : m, r == ADAM || r == ADAMW ? v : NULL}, .g = g, .g_type = type,
			.segment = seg, .n_segments = 3, .group = group, .s = s, .nesterov = r == NESTEROV};
		update(&u);
		case_sync();
		for (int k = 0; k < 3 && !s->skip; k++)
			for (int64_t i = segments[k].begin; i < segments[k].begin + segments[k].length; i++) {
				const Group *h = &groups[segments[k].group];
				rule_one(r, h, 0.01 * h->lr_scale, t, wp + i, wm + i, wv + i, fmax(-1, fmin(1, read[i] * 0.4)));
			}
		case_true(!s->skip || memcmp(p, before, FLAT * 4) == 0, "a skipped step changes nothing");
	}
	case_close("update: parameters", p, wp, FLAT, 1e-6);
	if (r != SGD)
		case_close("update: first state", m, wm, FLAT, 1e-5);
}

static void check_update(Rule r, void (*update)(const KUpdate *u))
{
	check_update_of(r, update, K_F32);
	check_update_of(r, update, K_BF16);
	check_update_of(r, update, K_F16);
}

void case_momentum(void)
{
	check_update(MOMENTUM, k_momentum_f32);
	check_update(NESTEROV, k_momentum_f32);
}
void case_sgd(void) { check_update(SGD, k_sgd_f32); }
void case_adam(void) { check_update(ADAM, k_adam_f32); }
void case_adamw(void) { check_update(ADAMW, k_adamw_f32); }
void case_adagrad(void) { check_update(ADAGRAD, k_adagrad_f32); }
void case_lion(void) { check_update(LION, k_lion_f32); }
