/* tests/random/gen_onnx.c: ONNX models of random nodes, read by the frontend.
 *
 * Shapes are not inferred here: after each node the model so far is loaded, and what is refused is left out; the types
 * of the results are those that the frontend gives to the model's outputs. */
#include "tests/random/random.h"

#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/unit/onnx_model.h"

typedef struct NodeRow { const char *op; int since; const char *operands, *attrs; } NodeRow;
static const NodeRow rows[] = {
#define NODE(op, since, operands, attrs) {#op, since, operands, attrs},
#include "tests/random/onnx_nodes.def"
};
const char *const onnx_node_text[] = {
#define NODE(op, since, operands, attrs) #op,
#include "tests/random/onnx_nodes.def"
};
const int onnx_node_count = COUNT_OF(rows);

typedef struct Known { const char *name; Type type; bool used; } Known;

typedef struct Gen {
	Arena *a;
	Rng *r;
	Buf graph;       /* nodes and initializers that were accepted, without outputs */
	Buf draft;       /* of the node at hand */
	char in[400];    /* its operands */
	Type first;      /* type of its first operand */
	VEC(Known) pool;
	int opset, n;
	FILE *nodes;
} Gen;

/* ---- what is written ---- */

static void put_model(Gen *g, OnnxText *m, const Buf *more)
{
	buf_put(&m->graph, g->graph.at ? g->graph.at : "", g->graph.n);
	if (more)
		buf_put(&m->graph, more->at ? more->at : "", more->n);
}

/* Draws into m->graph of a model of its own, whose bytes are appended to the draft. */
static void take_part(Buf *to, OnnxText *m)
{
	Buf name = {0};
	pb_str(&name, 2, "g"); /* as model_new begins */
	buf_put(to, m->graph.at + name.n, m->graph.n - name.n);
	buf_free(&name);
	buf_free(&m->graph);
	free(m);
}

static const char *dims_text(Gen *g, const Type *t)
{
	const char *s = "";
	for (int i = 0; i < t->rank; i++)
		s = arena_printf(g->a, "%s%s%lld", s, i ? "," : "", (long long)t->dim[i]);
	return s;
}

static const char *new_name(Gen *g, const char *kind)
{
	return arena_printf(g->a, "%s%d", kind, g->n++);
}

/* A new parameter, constant or input of f32. */
static const char *new_floats(Gen *g, Type t, bool parameter)
{
	OnnxText *m = model_new();
	bool weight = parameter || !rng_one_of(g->r, 3);
	const char *name = weight ? arena_printf(g->a, "m%d.weight", g->n++) : new_name(g, "x");
	float v[RANDOM_MAX_NUMEL + 1];
	for (int i = 0; i <= RANDOM_MAX_NUMEL; i++)
		v[i] = (float)rng_unit(g->r) + (t.rank <= 1 ? 1.5f : 0);
	if (weight)
		model_floats(m, name, dims_text(g, &t), RANDOM_MAX_NUMEL, v);
	else
		model_input(m, name, dtype_info[t.dtype].onnx, dims_text(g, &t));
	take_part(&g->draft, m);
	return name;
}

static const char *new_input(Gen *g, Type t)
{
	OnnxText *m = model_new();
	const char *name = new_name(g, "x");
	model_input(m, name, dtype_info[t.dtype].onnx, dims_text(g, &t));
	take_part(&g->draft, m);
	return name;
}

static const char *new_ints(Gen *g, int n, const int64_t *v)
{
	OnnxText *m = model_new();
	const char *name = new_name(g, "c");
	model_ints(m, name, n, v);
	take_part(&g->draft, m);
	return name;
}

/* Literals of the shape t. */
static const char *new_shaped_ints(Gen *g, Type t, int64_t lo, int64_t hi)
{
	int64_t v[RANDOM_MAX_NUMEL + 1], numel = type_numel(&t);
	for (int64_t i = 0; i < numel; i++)
		v[i] = rng_in(g->r, lo, MAX(hi, lo));
	const char *flat = new_ints(g, (int)numel, v), *shape = new_ints(g, t.rank, t.dim), *name = new_name(g, "c");
	Buf node = node_text("", "Reshape", arena_printf(g->a, "%s,%s", flat, shape), name);
	pb_msg(&g->draft, 1, &node);
	return name;
}

/* ---- operands ---- */

static Type some_type(Gen *g, int least)
{
	static const int64_t dims[] = {1, 2, 2, 3, 3, 4, 4, 6};
	Type t = type_scalar(DT_F32);
	t.rank = (int)rng_in(g->r, least, rng_one_of(g->r, 5) ? 5 : 4);
	do {
		for (int i = 0; i < t.rank; i++)
			t.dim[i] = rng_one_of(g->r, 80) ? 0 : dims[rng_in(g->r, 0, COUNT_OF(dims) - 1)];
	} while (type_numel(&t) > RANDOM_MAX_NUMEL);
	return t;
}

static Type companion(Gen *g, Type t)
{
	int drop = rng_one_of(g->r, 3) ? (int)rng_in(g->r, 0, t.rank) : 0;
	Type c = t;
	c.rank -= drop;
	for (int i = 0; i < c.rank; i++)
		c.dim[i] = rng_one_of(g->r, 4) ? 1 : t.dim[i + drop];
	return c;
}

static bool is_kind(const Type *t, char kind)
{
	bool is_float = dtype_is_float(t->dtype);
	bool is_bool = t->dtype == DT_BOOL;
	return kind == 'v' || (kind == 'f' ? is_float : kind == 'b' ? is_bool : !is_float && !is_bool);
}

static const char *pick(Gen *g, char kind, Type *type)
{
	for (int i = 0; i < 10 && g->pool.n; i++) {
		Known *k = &g->pool.at[rng_in(g->r, rng_one_of(g->r, 2) ? MAX(0, g->pool.n - 4) : 0, g->pool.n - 1)];
		if (is_kind(&k->type, kind)) {
			*type = k->type;
			k->used = true;
			return k->name;
		}
	}
	*type = some_type(g, 0);
	type->dtype = kind == 'i' ? DT_I64 : kind == 'b' ? DT_BOOL : DT_F32;
	return type->dtype == DT_F32 ? new_floats(g, *type, false) : new_input(g, *type);
}

static const char *of_like(Gen *g, Type t)
{
	for (int i = 0; i < 5 && g->pool.n; i++) {
		Known *k = &g->pool.at[rng_in(g->r, 0, g->pool.n - 1)];
		Type to;
		if (k->type.dtype == t.dtype && type_broadcast(&k->type, &t, &to)) {
			k->used = true;
			return k->name;
		}
	}
	return t.dtype == DT_F32 ? new_floats(g, companion(g, t), false) : new_input(g, companion(g, t));
}

static int64_t extreme(Gen *g, int64_t v)
{
	static const int64_t ends[] = {INT64_MAX, INT64_MIN, INT32_MAX, -1, 0, INT64_MIN + 1};
	return rng_one_of(g->r, 12) ? ends[rng_in(g->r, 0, 5)] : v;
}

static const char *axes(Gen *g, int rank)
{
	int64_t v[8];
	int n = 0;
	for (int i = 0; i < rank && n < 6; i++)
		if (rng_one_of(g->r, 2))
			v[n++] = rng_one_of(g->r, 2) ? i : i - rank;
	return new_ints(g, n, v);
}

static const char *shape_of(Gen *g, bool expand)
{
	int64_t v[8], left = type_numel(&g->first);
	int n = 0;
	if (expand) {
		for (int i = 0; i < g->first.rank; i++)
			v[n++] = g->first.dim[i] == 1 ? rng_in(g->r, 1, 3) : rng_one_of(g->r, 3) ? 1 : g->first.dim[i];
	} else if (rng_one_of(g->r, 2)) {
		for (int i = 0; i < g->first.rank; i++) {
			if (n && rng_one_of(g->r, 3))
				v[n - 1] *= g->first.dim[i];
			else
				v[n++] = g->first.dim[i];
		}
		if (n && rng_one_of(g->r, 2))
			v[rng_in(g->r, 0, n - 1)] = rng_one_of(g->r, 2) ? -1 : 0;
	} else {
		while (left > 1 && n < 4) {
			int64_t d = rng_in(g->r, 1, MIN(left, 6));
			if (!(left % d)) {
				v[n++] = d;
				left /= d;
			}
		}
		v[n++] = rng_one_of(g->r, 2) ? -1 : left;
	}
	return new_ints(g, n, v);
}

static const char *many(Gen *g, int n, int64_t lo, int64_t hi, bool ends)
{
	int64_t v[16];
	n = MIN(n, 16);
	for (int i = 0; i < n; i++) {
		int64_t x = rng_in(g->r, lo, hi);
		v[i] = ends ? extreme(g, x) : x;
	}
	return new_ints(g, n, v);
}

static const char *weight_of(Gen *g, char letter)
{
	Type t = g->first;
	int64_t c = t.rank > 1 ? t.dim[1] : 1;
	t.dim[0] = letter == 'K' ? rng_in(g->r, 1, 4) : c;
	t.dim[1] = letter == 'K' ? c : rng_in(g->r, 1, 3);
	for (int i = 2; i < t.rank; i++)
		t.dim[i] = rng_in(g->r, 1, 3);
	return type_numel(&t) > RANDOM_MAX_NUMEL ? "none" : new_floats(g, t, true);
}

static const char *right_side(Gen *g)
{
	Type t = g->first;
	int keep = t.rank > 2 && rng_one_of(g->r, 2) ? t.rank : MIN(t.rank, 2);
	int64_t k = t.rank ? t.dim[t.rank - 1] : 1;
	memmove(t.dim, t.dim + t.rank - keep, sizeof(int64_t) * (size_t)keep);
	t.rank = keep;
	t.dim[MAX(keep - 2, 0)] = k;
	if (keep > 1)
		t.dim[keep - 1] = rng_one_of(g->r, 4) ? k : rng_in(g->r, 1, 4);
	return type_numel(&t) > RANDOM_MAX_NUMEL ? "none" : new_floats(g, t, true);
}

static const char *indices(Gen *g, char letter)
{
	Type t = some_type(g, 0), first = g->first;
	int64_t least = 6;
	for (int i = 0; i < first.rank; i++)
		least = MIN(least, first.dim[i]);
	int64_t hi = rng_one_of(g->r, 30) ? 6 : least - 1;
	t.rank = MIN(t.rank, 2);
	if (letter == 'e')
		t = first;
	if (letter == 't')
		t.dim[MAX(t.rank, 1) - 1] = rng_in(g->r, 1, MAX(first.rank, 1));
	t.rank = letter == 't' ? MAX(t.rank, 1) : t.rank;
	t.dtype = DT_I64;
	if (rng_one_of(g->r, 4))
		return new_input(g, t);
	return new_shaped_ints(g, t, rng_one_of(g->r, 2) ? -least : 0, hi);
}

static const char *number(Gen *g)
{
	OnnxText *m = model_new();
	const char *name = new_name(g, "k");
	float v = rng_one_of(g->r, 3) ? (float)rng_in(g->r, -1, 2) : (float)rng_unit(g->r);
	model_floats(m, name, "", 1, &v);
	take_part(&g->draft, m);
	return name;
}

static const char *per_channel(Gen *g, char letter)
{
	Type t = g->first;
	int at = letter == 'l' ? t.rank - 1 : 1;
	t.dim[0] = t.rank > at && at >= 0 ? t.dim[at] : 1;
	t.rank = 1;
	return new_floats(g, t, true);
}

static const char *operand(Gen *g, char letter)
{
	Type t;
	int rank = g->first.rank;
	switch (letter) {
	case 'f': case 'i': case 'b': case 'v': return pick(g, letter, &t);
	case 'c':
		t = g->first;
		t.dtype = t.dtype == DT_BOOL && rng_one_of(g->r, 2) ? DT_F32 : t.dtype;
		return of_like(g, t);
	case 's': case 'u': return g->first.dtype == DT_F32 ? new_floats(g, g->first, false) : new_input(g, g->first);
	case 'w': case 'l': return per_channel(g, letter);
	case 'M': return right_side(g);
	case 'K': case 'T': return weight_of(g, letter);
	case 'A': case 'X': return axes(g, rank);
	case 'H': return shape_of(g, false);
	case 'E': return shape_of(g, true);
	case 'P': return many(g, 2 * rank, rng_one_of(g->r, 4) ? -1 : 0, 2, false);
	case 'R': return many(g, rank, rng_one_of(g->r, 10) ? 0 : 1, 2, false);
	case 'S': return many(g, rng_one_of(g->r, 3) ? 1 : rank, -4, 3, true);
	case 'N': return many(g, rank, -3, 6, true);
	case 'D': return many(g, rank, 1, 2, true);
	case 'L': return many(g, 2, 1, 3, false);
	case 'x': case 'e': case 't': return indices(g, letter);
	case 'k': case 'd': return many(g, 1, 1, 3, true);
	case 'y': return new_floats(g, type_tensor(DT_F32, 1, (int64_t[]){2}), true);
	case '_': return "";
	default: return number(g);
	}
}

/* ---- attributes ---- */

static void put_str(Buf *node, const char *name, const char *s, size_t n)
{
	Buf a = {0};
	pb_str(&a, 1, name);
	pb_int(&a, 20, 3);
	pb_bytes(&a, 4, s, n);
	pb_msg(node, 5, &a);
}

static void put_word(Gen *g, Buf *node, const char *name, const char *words, size_t n)
{
	const char *end = words + n;
	for (const char *s = words;;) {
		const char *bar = memchr(s, '|', (size_t)(end - s));
		if (!bar || rng_one_of(g->r, 2)) {
			put_str(node, name, s, (size_t)((bar ? bar : end) - s));
			return;
		}
		s = bar + 1;
	}
}

static void put_ints(Gen *g, Buf *node, const char *name, char letter)
{
	int spatial = MAX(g->first.rank - 2, 0), n = letter == 'p' ? 2 * spatial : spatial;
	int64_t v[16];
	if (letter == 'm' || letter == 'A') {
		n = 0;
		for (int i = 0; i < g->first.rank; i++)
			if (letter == 'm' || rng_one_of(g->r, 2))
				v[n++] = letter == 'A' && rng_one_of(g->r, 2) ? i - g->first.rank : i;
		for (int i = n - 1; i > 0 && letter == 'm'; i--) {
			int k = (int)rng_in(g->r, 0, i);
			int64_t t = v[i];
			v[i] = v[k];
			v[k] = t;
		}
	}
	for (int i = 0; i < n && letter != 'm' && letter != 'A'; i++)
		v[i] = letter == 'p' ? rng_in(g->r, 0, 1) : letter == 'd' ? rng_in(g->r, 1, 2) : rng_in(g->r, 1, 3);
	attr_is(node, name, n, v);
}

static void put_attr(Gen *g, Buf *node, const char *name, const char *how, size_t n)
{
	static const int casts[] = {1, 6, 7, 9, 10, 11, 16, 2, 3};
	int rank = g->first.rank;
	switch (*how) {
	case 'a':
		attr_i(node, name, rng_one_of(g->r, 20) ? rng_in(g->r, -9, 9) : rng_in(g->r, -rank, MAX(rank - 1, 0)));
		break;
	case '0': attr_i(node, name, rng_in(g->r, 0, 1)); break;
	case '2': case '3': attr_i(node, name, *how - '0'); break;
	case '-': attr_i(node, name, -1); break;
	case 'r': attr_f(node, name, (float)(0.6 + 0.5 * rng_unit(g->r))); break;
	case 'g': attr_i(node, name, rng_one_of(g->r, 4) ? 2 : 1); break;
	case 'o': attr_i(node, name, 2); break;
	case 'C': attr_i(node, name, casts[rng_in(g->r, 0, COUNT_OF(casts) - 1)]); break;
	case '(': put_word(g, node, name, how + 1, n - 2); break;
	default: put_ints(g, node, name, *how); break;
	}
}

static void put_attrs(Gen *g, Buf *node, const char *s)
{
	for (; *s; s += strspn(s, " ")) {
		size_t n = strcspn(s, " "), k = strcspn(s, "=");
		if (!rng_one_of(g->r, 5) || strchr("kC2-", s[k + 1]))
			put_attr(g, node, arena_strndup(g->a, s, k), s + k + 1, n - k - 1);
		s += n;
	}
}

/* ---- growing the graph ---- */

static Module *load(Gen *g, OnnxText *m, Diag *d)
{
	m->opset = g->opset;
	Buf b = model_bytes(m);
	FuzzFile f = fuzz_file(b.at, b.n);
	buf_free(&b);
	FrontendOptions o = {.graph.dropout = DROPOUT_ON};
	Module *loaded = onnx_load(f.path, &o, d);
	close(f.fd);
	return loaded;
}

/* The types of names[0..n) when the graph with the draft is accepted. */
static bool accept(Gen *g, const char *names, Type *type, int n, Diag *d)
{
	OnnxText *m = model_new();
	put_model(g, m, &g->draft);
	for (const char *s = names; *s; s += *s == ',') {
		size_t k = strcspn(s, ",");
		model_output(m, arena_strndup(g->a, s, k));
		s += k;
	}
	Module *loaded = load(g, m, d);
	int found = 0;
	bool ok = loaded;
	for (int i = 0; ok && i < loaded->n_symbols; i++)
		if (loaded->symbols[i]->kind == SYM_OUTPUT && found < n)
			type[found++] = loaded->symbols[i]->type;
	ir_module_free(loaded);
	for (int i = 0; i < found; i++)
		ok = ok && type_numel(&type[i]) <= RANDOM_MAX_NUMEL;
	return ok && found == n;
}

static int outputs_of(const NodeRow *row)
{
	return !strcmp(row->op, "Split") || !strcmp(row->op, "TopK") ? 2 : 1;
}

static void draw_operands(Gen *g, const NodeRow *row)
{
	const char *end = strchr(row->operands, '?');
	int n = (int)strcspn(row->operands, "?"), least = end ? n - 1 : n;
	*g->in = 0;
	for (int i = 0; i < n && (i < least || rng_one_of(g->r, 2)); i++) {
		const char *name = i ? operand(g, row->operands[i]) : pick(g, row->operands[0], &g->first);
		size_t at = strlen(g->in);
		snprintf(g->in + at, sizeof(g->in) - at, "%s%s", i ? "," : "", name);
	}
}

static bool add_node(Gen *g, int k, Diag *d)
{
	const NodeRow *row = &rows[k];
	Type type[2];
	int n = outputs_of(row);
	g->draft = (Buf){0};
	draw_operands(g, row);
	const char *one = new_name(g, "v"), *two = new_name(g, "v");
	const char *out = n > 1 ? arena_printf(g->a, "%s,%s", one, two) : one;
	Buf node = node_text(arena_printf(g->a, "n%d", g->n), row->op, g->in, out);
	put_attrs(g, &node, row->attrs);
	pb_msg(&g->draft, 1, &node);
	if (g->nodes) {
		fprintf(g->nodes, "%s %s -> %s", row->op, g->in, out);
		fflush(g->nodes);
	}
	bool ok = row->since <= g->opset && accept(g, out, type, n, d);
	if (g->nodes)
		fprintf(g->nodes, ok ? "\n" : " refused\n");
	if (ok)
		buf_put(&g->graph, g->draft.at, g->draft.n);
	buf_free(&g->draft);
	for (int i = 0; ok && i < n; i++)
		vec_push(g->a, &g->pool, ((Known){i ? two : one, type[i], false}));
	return ok;
}

Module *random_onnx(Rng *r, Counts *c, FILE *nodes, Diag *d)
{
	static const int opsets[] = {11, 12, 13, 14, 16, 17, 18, 19, 20, 21, 23, 24};
	Gen g = {.a = arena_new(), .r = r, .nodes = nodes, .opset = opsets[rng_in(r, 0, COUNT_OF(opsets) - 1)]};
	int wanted = (int)rng_in(r, 1, 9), got = 0;
	for (int i = 0; i < 4 * wanted && got < wanted; i++) {
		Diag quiet = {.out = d->out};
		int k = (int)rng_in(r, 0, COUNT_OF(rows) - 1);
		bool ok = add_node(&g, k, &quiet);
		got += ok;
		c->nodes[k] += ok;
	}
	OnnxText *m = model_new();
	put_model(&g, m, NULL);
	for (int i = 0; i < g.pool.n; i++)
		if (!g.pool.at[i].used || i == g.pool.n - 1 || rng_one_of(r, 8))
			model_output(m, g.pool.at[i].name);
	Module *loaded = g.pool.n ? load(&g, m, d) : NULL;
	buf_free(&g.graph);
	if (loaded)
		random_loss(loaded, r);
	arena_free(g.a);
	return loaded;
}
