/* calibrate/probes.c: writes the probe programs as IR text. */
#include <inttypes.h>
#include <string.h>

#include "calibrate/private.h"

/* A program that is being written.  n: parameters and values so far. */
typedef struct Writer { Buf symbols, ops; int n, loss, halvings; int64_t batch; } Writer;

/* A size that is halved with those of the other probes, down to 16. */
static int64_t halved(const Writer *w, int64_t n)
{
	int64_t least = 16;
	return MAX(n >> w->halvings, MIN(n, least));
}

/* Adds a parameter; returns its number: its value is %pN. */
static int put_param(Writer *w, const char *type)
{
	int n = w->n++;
	buf_printf(&w->symbols, "  param \"p%d\" : %s {trainable=1, init=\"uniform\", scale=0.1, seed=%d}\n", n, type, n);
	buf_printf(&w->ops, "    %%p%d : %s = param \"p%d\"\n", n, type, n);
	return n;
}

/* Adds a scalar to the loss. */
static void put_loss(Writer *w, const char *scalar)
{
	int n = w->n++;
	if (w->loss < 0)
		buf_printf(&w->ops, "    %%p%d : f32[] = neg %%%s\n", n, scalar);
	else
		buf_printf(&w->ops, "    %%p%d : f32[] = add %%p%d, %%%s\n", n, w->loss, scalar);
	w->loss = n;
}

/* Adds the mean of the squares of %NAME to the loss. */
static void put_mean(Writer *w, const char *name, const char *type, int rank)
{
	static const char *const axes[] = {"", "0", "0,1", "0,1,2", "0,1,2,3"};
	char scalar[32];
	int n = w->n++;
	buf_printf(&w->ops, "    %%p%d : %s = mul %%%s, %%%s\n", n, type, name, name);
	buf_printf(&w->ops, "    %%s%d : f32[] = reduce_mean %%p%d {axes=[%s], keepdims=0}\n", n, n, axes[rank]);
	snprintf(scalar, sizeof(scalar), "s%d", n);
	put_loss(w, scalar);
}

typedef char Text[96];
#define TEXT_OF(t, ...) snprintf(t, sizeof(t), __VA_ARGS__)

/* `count` products of [m,k] and [n,k]; forward transposes one operand, backward none and the other. */
static void product(Writer *w, int64_t m, int64_t n, int64_t k, int64_t count)
{
	Text a, b, y, name;
	char by[32] = "";
	m = halved(w, m), n = halved(w, n), k = halved(w, k);
	if (count > 1)
		TEXT_OF(by, "%" PRId64 ",", count);
	TEXT_OF(a, "f32[%s%" PRId64 ",%" PRId64 "]", by, m, k);
	TEXT_OF(b, "f32[%s%" PRId64 ",%" PRId64 "]", by, n, k);
	TEXT_OF(y, "f32[%s%" PRId64 ",%" PRId64 "]", by, m, n);
	int x = put_param(w, a), weight = put_param(w, b);
	TEXT_OF(name, "y%d", x);
	buf_printf(&w->ops, "    %%%s : %s = matmul %%p%d, %%p%d {ta=0, tb=1}\n", name, y, x, weight);
	put_mean(w, name, y, count > 1 ? 3 : 2);
}

/* Of [n,c,side,side] by `o` kernels of 3 x 3. */
static void convolve(Writer *w, int64_t n, int64_t c, int64_t side, int64_t o)
{
	Text x, k, y, name;
	n = halved(w, n), c = halved(w, c), side = halved(w, side), o = halved(w, o);
	TEXT_OF(x, "f32[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]", n, c, side, side);
	TEXT_OF(k, "f32[%" PRId64 ",%" PRId64 ",3,3]", o, c);
	TEXT_OF(y, "f32[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]", n, o, side, side);
	int a = put_param(w, x), b = put_param(w, k);
	TEXT_OF(name, "y%d", a);
	buf_printf(&w->ops, "    %%%s : %s = conv %%p%d, %%p%d {dilations=[1,1], group=1, layout=0, pads=[1,1,1,1], "
		"strides=[1,1]}\n", name, y, a, b);
	put_mean(w, name, y, 4);
}

/* The largest of 2 x 2. */
static void pool(Writer *w, int64_t n, int64_t c, int64_t side, int64_t unused)
{
	(void)unused;
	Text x, y, z, name;
	n = halved(w, n), c = halved(w, c), side = halved(w, side);
	TEXT_OF(x, "f32[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]", n, c, side, side);
	TEXT_OF(y, "f32[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]", n, c, side / 2, side / 2);
	TEXT_OF(z, "i32[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]", n, c, side / 2, side / 2);
	int a = put_param(w, x);
	TEXT_OF(name, "y%d", a);
	buf_printf(&w->ops, "    %%%s : %s, %%i%d : %s = max_pool %%p%d {dilations=[1,1], kernel=[2,2], layout=0, "
		"pads=[0,0,0,0], strides=[2,2]}\n", name, y, a, z, a);
	put_mean(w, name, y, 4);
}

/* Causal, of b x h heads. */
static void attend(Writer *w, int64_t b, int64_t h, int64_t t, int64_t d)
{
	Text x, sums, name;
	h = halved(w, h), t = halved(w, t);
	TEXT_OF(x, "f32[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]", b, h, t, d);
	TEXT_OF(sums, "f32[%" PRId64 ",%" PRId64 ",%" PRId64 "]", b, h, t);
	int q = put_param(w, x), k = put_param(w, x), v = put_param(w, x);
	TEXT_OF(name, "y%d", q);
	buf_printf(&w->ops, "    %%%s : %s, %%l%d : %s = attention %%p%d, %%p%d, %%p%d {empty=\"zero\", layout=0, right=0, "
		"scale=0.125}\n", name, x, q, sums, q, k, v);
	put_mean(w, name, x, 4);
}

static void norm(Writer *w, int64_t rows, int64_t d, int64_t unused, int64_t unused2)
{
	(void)unused, (void)unused2;
	Text x, v, one, name;
	rows = halved(w, rows), d = halved(w, d);
	TEXT_OF(x, "f32[%" PRId64 ",%" PRId64 "]", rows, d);
	TEXT_OF(v, "f32[%" PRId64 "]", d);
	TEXT_OF(one, "f32[%" PRId64 ",1]", rows);
	int a = put_param(w, x), g = put_param(w, v), b = put_param(w, v), r = put_param(w, x);
	buf_printf(&w->ops, "    %%y%d : %s, %%m%d : %s, %%r%d : %s = layer_norm %%p%d, %%p%d, %%p%d {axis=1, eps=1e-05}\n",
		a, x, a, one, a, one, a, g, b);
	buf_printf(&w->ops, "    %%y%d : %s, %%m%d : %s = rms_norm %%p%d, %%p%d {axis=1, eps=1e-05}\n", r, x, r, one, r, g);
	TEXT_OF(name, "y%d", a);
	put_mean(w, name, x, 2);
	TEXT_OF(name, "y%d", r);
	put_mean(w, name, x, 2);
}

static void soft(Writer *w, int64_t rows, int64_t d, int64_t unused, int64_t unused2)
{
	(void)unused, (void)unused2;
	Text x, name;
	rows = halved(w, rows), d = halved(w, d);
	TEXT_OF(x, "f32[%" PRId64 ",%" PRId64 "]", rows, d);
	int a = put_param(w, x);
	TEXT_OF(name, "y%d", a);
	buf_printf(&w->ops, "    %%%s : %s = softmax %%p%d {axis=1}\n", name, x, a);
	put_mean(w, name, x, 2);
}

/* The labels are the ids. */
static void entropy(Writer *w, int64_t rows, int64_t classes, int64_t unused, int64_t unused2)
{
	(void)unused, (void)unused2;
	Text x, name;
	rows = halved(w, rows), classes = halved(w, classes);
	TEXT_OF(x, "f32[%" PRId64 ",%" PRId64 "]", rows, classes);
	int a = put_param(w, x);
	TEXT_OF(name, "y%d", a);
	buf_printf(&w->ops, "    %%%s : f32[], %%n%d : f32[], %%l%d : f32[%" PRId64 "] = cross_entropy %%p%d, %%ids "
		"{ignore_index=-100, smoothing=0.0}\n", name, a, a, rows, a);
	put_loss(w, name);
}

static void lookup(Writer *w, int64_t rows, int64_t d, int64_t words, int64_t unused)
{
	(void)unused;
	Text x, y, name;
	rows = halved(w, rows), d = halved(w, d), words = halved(w, words);
	TEXT_OF(x, "f32[%" PRId64 ",%" PRId64 "]", words, d);
	TEXT_OF(y, "f32[%" PRId64 ",%" PRId64 "]", rows, d);
	int a = put_param(w, x);
	TEXT_OF(name, "y%d", a);
	buf_printf(&w->ops, "    %%%s : %s = gather %%p%d, %%ids {axis=0}\n", name, y, a);
	put_mean(w, name, y, 2);
}

/* A transpose whose result a reduction reads. */
static void turn(Writer *w, int64_t rows, int64_t columns, int64_t unused, int64_t unused2)
{
	(void)unused, (void)unused2;
	Text x, y, name;
	rows = halved(w, rows), columns = halved(w, columns);
	TEXT_OF(x, "f32[8,%" PRId64 ",%" PRId64 "]", rows, columns / 8);
	TEXT_OF(y, "f32[8,%" PRId64 ",%" PRId64 "]", columns / 8, rows);
	int a = put_param(w, x);
	buf_printf(&w->ops, "    %%t%d : %s = transpose %%p%d {perm=[0,2,1]}\n", a, y, a);
	buf_printf(&w->ops, "    %%y%d : %s = softmax %%t%d {axis=2}\n", a, y, a);
	TEXT_OF(name, "y%d", a);
	put_mean(w, name, y, 3);
}

/* A loop over n elements; body: of two tensors, an exponential, several, of four tensors. */
static void loop(Writer *w, int64_t n, int64_t body, int64_t unused, int64_t unused2)
{
	(void)unused, (void)unused2;
	Text x, name;
	n = halved(w, halved(w, n)); /* of two axes in one */
	TEXT_OF(x, "f32[%" PRId64 "]", n);
	int a = put_param(w, x);
	TEXT_OF(name, "y%d", a);
	if (body == 0) {
		buf_printf(&w->ops, "    %%%s : %s = relu %%p%d\n", name, x, a);
	} else if (body == 1) {
		buf_printf(&w->ops, "    %%%s : %s = gelu %%p%d {tanh=0}\n", name, x, a);
	} else {
		int b = put_param(w, x), c = body > 2 ? put_param(w, x) : b;
		buf_printf(&w->ops, "    %%u%d : %s = tanh %%p%d\n    %%v%d : %s = mul %%u%d, %%p%d\n", a, x, a, a, x, a, b);
		buf_printf(&w->ops, "    %%w%d : %s = exp %%v%d\n    %%%s : %s = sub %%w%d, %%p%d\n", a, x, a, name, x, a, c);
	}
	put_mean(w, name, x, 1);
}

static const char *text_of(Writer *w, const char *name, Arena *a)
{
	const char *text = arena_printf(a, "module \"%s\" level=MODEL batch=%" PRId64 " {\n  input \"ids\" : i64[%" PRId64
		"] {batched=1}\n  output \"loss\" : f32[]\n%.*s  forward {\n    %%ids : i64[%" PRId64
		"] = input \"ids\"\n%.*s    output \"loss\" %%p%d\n  }\n}\n", name, w->batch, w->batch, (int)w->symbols.n,
		w->symbols.at, w->batch, (int)w->ops.n, w->ops.at, w->loss);
	buf_free(&w->symbols);
	buf_free(&w->ops);
	return text;
}

/* Begins a program: every one reads its ids, so that it has an input. */
static Writer *begin(Writer *w, int64_t batch, int halvings)
{
	*w = (Writer){.loss = -1, .halvings = halvings};
	w->batch = halved(w, batch);
	lookup(w, batch, 16, 10, 0);
	return w;
}

static int write_cpu(Probe *out, Writer *w, int halvings)
{
	int n = 0;
#define PROGRAM(id, batch, groups, how) \
	out[n] = (Probe){#id, how " --loss=output:loss", NULL, groups}; \
	begin(&w[n++], batch, halvings);
#define PROBE(family, ...) family(&w[n - 1], __VA_ARGS__);
#include "calibrate/probes.def"
	return n;
}

static int write_cuda(Probe *out, Writer *w, int halvings)
{
	int n = 0;
#define PROGRAM(id, batch, groups, how) \
	out[n] = (Probe){#id, how " --target=cuda --loss=output:loss", NULL, groups}; \
	begin(&w[n++], batch, halvings);
#define PROBE(family, ...) family(&w[n - 1], __VA_ARGS__);
#include "calibrate/probes_cuda.def"
	return n;
}

int probes_write(Probe *out, bool cuda, int halvings, Arena *a)
{
	Writer w[PROBES_MAX];
	int n = (cuda ? write_cuda : write_cpu)(out, w, halvings);
	for (int i = 0; i < n; i++)
		out[i].text = text_of(&w[i], out[i].name, a);
	return n;
}
