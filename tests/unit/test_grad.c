/* tests/unit/test_grad.c: the gradient of every op against central differences through the f64 reference.
 *
 * For each case of grad_cases.def a module is built whose loss is a fixed random combination of the op's results;
 * autodiff_build's gradients must agree with (loss(x + h) - loss(x - h)) / 2h to 1e-6 of the tensor's norm.  If a row
 * of ops.def has a gradient rule and no case, the test fails and names it.  The programs below check the combination of
 * rules: sums, slices of one value, values used twice.  Decisions against a rule (stop, nograd) are checked as well. */
#include "passes/grad/rules.h"
#include "tests/unit/unit.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double STEP = 1e-4, BOUND = 1e-6, FLOOR = 1e-9;
enum { MAX_OPERANDS = 8 };

typedef struct Operand {
	Type type;
	double lo, hi;
	const char *values; /* "1,2,3", else NULL */
	bool wanted, constant, absent;
} Operand;

typedef Value *ProgramFn(Builder *b, Value *const *in);
typedef struct Case {
	OpKind kind;
	const char *operands, *attrs;
	unsigned results;
	const char *name;      /* of a program */
	ProgramFn *program;
} Case;

static const Case cases[] = {
#define CASE(op, operands, attributes, results) {OP_##op, operands, attributes, results, NULL, NULL},
#include "tests/unit/grad_cases.def"
};

/* ---- reading a case ---- */

static Type read_type(const char **s)
{
	char name[16];
	Type t = {.kind = TYPE_TENSOR};
	size_t n = strcspn(*s, "[");
	snprintf(name, sizeof(name), "%.*s", (int)n, *s);
	DType dtype = DT_F32;
	if (!dtype_from_text(name, &dtype))
		ice("case: dtype %s", name);
	t.dtype = dtype;
	for (*s += n + 1; **s != ']';) {
		char *end;
		t.dim[t.rank++] = strtoll(*s, &end, 10);
		*s = end + (*end == ',');
	}
	++*s;
	return t;
}

static Operand read_operand(const char **s)
{
	Operand o = {.lo = -2, .hi = 2};
	char *end;
	if (**s == '_') {
		++*s;
		o.absent = true;
		return o;
	}
	o.type = read_type(s);
	o.wanted = dtype_is_float(o.type.dtype);
	if (**s == '@') {
		char lo[16];
		const char *dots = strstr(*s, "..");
		snprintf(lo, sizeof(lo), "%.*s", (int)(dots - *s - 1), *s + 1);
		o.lo = strtod(lo, NULL);
		o.hi = strtod(dots + 2, &end);
		*s = end;
	} else if (**s == '=') {
		o.values = ++*s;
		*s += strspn(*s, "0123456789-.,e");
	}
	for (; **s == '!' || **s == '#'; ++*s) {
		o.wanted = false;
		o.constant = o.constant || **s == '#';
	}
	return o;
}

static int read_operands(const char *s, Operand *out)
{
	int n = 0;
	for (; *s; s += *s == ' ')
		out[n++] = read_operand(&s);
	return n;
}

static Attr *read_list(Module *m, Attr *list, const char *key, const char *s)
{
	int64_t v[2 * IR_MAX_RANK];
	int n = 0;
	for (s++; *s != ']';) {
		char *end;
		v[n++] = strtoll(s, &end, 10);
		s = end + (*end == ',');
	}
	return attr_ints(m, list, key, n, v);
}

static Attr *read_floats(Module *m, Attr *list, const char *key, const char *s)
{
	double v[2 * IR_MAX_RANK];
	int n = 0;
	for (s++; *s != ']';) {
		char *end;
		v[n++] = strtod(s, &end);
		s = end + (*end == ',');
	}
	return attr_floats(m, list, key, n, v);
}

/* "axis=1 to=f32": each value is read as the kind that the op's table row states. */
static Attr *read_attrs(Module *m, OpKind kind, const char *s)
{
	Attr *list = NULL;
	for (; *s; s += strspn(s, " ")) {
		size_t n = strcspn(s, " "), k = strcspn(s, "=");
		const char *key = arena_strndup(m->arena, s, k);
		const char *text = arena_strndup(m->arena, s + k + 1, n - k - 1);
		const char *row = strstr(op_info[kind].attrs, arena_printf(m->arena, "%s:", key));
		DType t = DT_F32;
		switch (row ? row[k + 1] : 0) {
		case 'i': case 'a': case 'b': list = attr_int(m, list, key, strtoll(text, NULL, 10)); break;
		case 'f': list = attr_float(m, list, key, strtod(text, NULL)); break;
		case 's': list = attr_str(m, list, key, text); break;
		case 'I': list = read_list(m, list, key, text); break;
		case 'F': list = read_floats(m, list, key, text); break;
		case 'd': dtype_from_text(text, &t); list = attr_dtype(m, list, key, t); break;
		default: ice("case: %s has no attribute %s", op_info[kind].text, key);
		}
		s += n;
	}
	return list;
}

/* ---- values ---- */

static double spread(int64_t i, int operand)
{
	double x = 0.61803398874989485 * (double)(i + 1) + 0.137 * operand + 0.05;
	return x - floor(x);
}

static double listed(const char *values, int64_t i)
{
	const char *s = values;
	for (int64_t k = 0; k < i; k++) {
		s += strcspn(s, ",!# ");
		s = *s == ',' ? s + 1 : values;
	}
	return strtod(s, NULL);
}

static double element(const Operand *o, int operand, int64_t i)
{
	if (o->values)
		return listed(o->values, i);
	double x = spread(i, operand);
	return o->type.dtype == DT_BOOL ? x < 0.5 : o->lo + (o->hi - o->lo) * x;
}

static EvalTensor fill(Arena *a, const Operand *o, int operand)
{
	EvalTensor t = {.type = o->type};
	int64_t n = type_numel(&o->type);
	if (dtype_is_float(o->type.dtype))
		t.f = NEW_N(a, double, n);
	else
		t.i = NEW_N(a, int64_t, n);
	for (int64_t i = 0; i < n; i++) {
		if (dtype_is_float(o->type.dtype))
			t.f[i] = element(o, operand, i);
		else
			t.i[i] = (int64_t)element(o, operand, i);
	}
	return t;
}

/* ---- the module of a case ---- */

typedef struct Built {
	Module *m;
	Operand operand[MAX_OPERANDS];
	int n;
	Symbol *sym[MAX_OPERANDS];
	EvalTensor value[MAX_OPERANDS];
	Value *in[MAX_OPERANDS];
	Value *loss;
	Value **grad;
} Built;

/* Adds sum(w * y) to the loss, w fixed and different everywhere. */
static void add_to_loss(Builder *b, Built *k, Value *y, int which)
{
	int64_t axes[IR_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7}, n = type_numel(&y->type);
	double *w = NEW_N(k->m->arena, double, n);
	for (int64_t i = 0; i < n; i++)
		w[i] = 0.3 + spread(i, 11 + which);
	y = ir_cast(b, y, DT_F64);
	Attr *value = attr_floats(k->m, NULL, "value", (int)n, w);
	Value *weights = ir_emit_typed(b, OP_CONST, 0, NULL, value, y->type);
	y = ir_emit2(b, OP_MUL, y, weights);
	y = ir_reduce(b, OP_REDUCE_SUM, y, y->type.rank, axes, false);
	k->loss = k->loss ? ir_emit2(b, OP_ADD, k->loss, y) : y;
}

static void make_operands(Builder *b, Built *k, const Case *c)
{
	k->n = read_operands(c->operands, k->operand);
	for (int i = 0; i < k->n; i++) {
		Operand *o = &k->operand[i];
		if (o->absent)
			continue;
		k->value[i] = fill(k->m->arena, o, i);
		if (o->constant) {
			k->in[i] = ir_const_full(b, o->type, element(o, i, 0));
			continue;
		}
		k->sym[i] = ir_add_symbol(k->m, SYM_PARAM, arena_printf(k->m->arena, "x%d", i), o->type);
		k->in[i] = ir_read(b, k->sym[i]);
	}
}

static void make_forward(Builder *b, Built *k, const Case *c)
{
	if (c->program) {
		add_to_loss(b, k, c->program(b, k->in), 0);
		return;
	}
	Op *op = ir_emit_op(b, c->kind, k->n, k->in, read_attrs(k->m, c->kind, c->attrs), NULL);
	for (int i = 0; i < op->n_out; i++)
		if (dtype_is_float(op->out[i]->type.dtype) && (!c->results || c->results >> i & 1))
			add_to_loss(b, k, op->out[i], i);
}

static Built build(const Case *c, Diag *d)
{
	Built k = {.m = ir_module_new("case")};
	k.m->level = LEVEL_TRAIN;
	Builder b = {.m = k.m, .section = SEC_FORWARD};
	make_operands(&b, &k, c);
	make_forward(&b, &k, c);
	Builder back = {.m = k.m, .section = SEC_BACKWARD};
	Value *seed = ir_const_float(&back, DT_F64, 1);
	bool *wanted = NEW_N(k.m->arena, bool, k.m->n_values);
	for (int i = 0; i < k.n; i++)
		if (k.in[i])
			wanted[k.in[i]->id] = k.operand[i].wanted;
	k.grad = autodiff_build(k.m, k.loss, seed, wanted, d);
	/* copies, which outlive the ops that pass_expand replaces */
	for (int i = 0; k.grad && i < k.n; i++)
		if (k.in[i] && k.grad[k.in[i]->id])
			k.grad[k.in[i]->id] = ir_emit1(&back, OP_COPY, k.grad[k.in[i]->id]);
	return k;
}

static EvalEnv *evaluate(Built *k, Arena *a, bool backward)
{
	EvalEnv *e = eval_new(k->m, a);
	for (int i = 0; i < k->n; i++)
		if (k->sym[i])
			eval_bind(e, k->sym[i], k->value[i]);
	eval_section(e, SEC_FORWARD);
	if (backward)
		eval_section(e, SEC_BACKWARD);
	return e;
}

static double loss_at(Built *k, double *x, double at)
{
	double keep = *x;
	Arena *a = arena_new();
	*x = at;
	double loss = eval_value(evaluate(k, a, false), k->loss)->f[0];
	*x = keep;
	arena_free(a);
	return loss;
}

/* ---- comparing ---- */

static const char *describe(Arena *a, const Case *c, int operand)
{
	const char *name = c->name ? c->name : op_info[c->kind].text;
	return arena_printf(a, "%s, operand %d of \"%s\" {%s}", name, operand, c->operands, c->attrs);
}

static void compare(Built *k, const Case *c, EvalEnv *e, int i)
{
	int64_t n = type_numel(&k->operand[i].type);
	Value *g = k->grad[k->in[i]->id];
	double error = 0, norm = 0;
	if (g && !type_equal(&g->type, &k->operand[i].type)) {
		UNIT_CHECK(false, arena_printf(k->m->arena, "%s: gradient is %s", describe(k->m->arena, c, i),
			type_str(k->m->arena, &g->type)));
		return;
	}
	for (int64_t j = 0; j < n; j++) {
		double *x = &k->value[i].f[j], at = *x;
		double want = (loss_at(k, x, at + STEP) - loss_at(k, x, at - STEP)) / (2 * STEP);
		double got = g ? eval_value(e, g)->f[j] : 0;
		error += (got - want) * (got - want);
		norm += want * want;
	}
	bool ok = sqrt(error) <= BOUND * sqrt(norm) + FLOOR; /* false for NaN */
	UNIT_CHECK(ok, ok ? "" : arena_printf(k->m->arena, "%s: error %g of %g", describe(k->m->arena, c, i),
		sqrt(error), sqrt(norm)));
}

static void compare_all(Built *k, const Case *c, Diag *d)
{
	Arena *a = arena_new();
	EvalEnv *e = evaluate(k, a, true);
	UNIT_CHECK(ir_verify(k->m, "autodiff", d), describe(k->m->arena, c, 0));
	for (int i = 0; i < k->n; i++)
		if (k->operand[i].wanted)
			compare(k, c, e, i);
	arena_free(a);
}

static bool contains(const Module *m, OpKind kind)
{
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			if (op->kind == kind)
				return true;
	return false;
}

/* As pass expand splits it, alone and with the collectives of one rank. */
static void check_expanded(const Case *c, BnSync bn_sync)
{
	Diag d = {.out = stderr};
	Built k = build(c, &d);
	pass_expand(k.m, &(Options){.graph.bn_sync = bn_sync}, &d);
	UNIT_CHECK(!contains(k.m, OP_BATCH_NORM) && !contains(k.m, OP_BATCH_NORM_GRAD), "expand");
	UNIT_CHECK(contains(k.m, OP_ALL_REDUCE_MOMENTS) == (bn_sync == BN_SYNC_SYNC), "statistics over ranks");
	compare_all(&k, c, &d);
	ir_module_free(k.m);
}

static void check_case(const Case *c)
{
	Diag d = {.out = stderr};
	Built k = build(c, &d);
	UNIT_CHECK(k.grad && !d.errors, describe(k.m->arena, c, 0));
	if (k.grad)
		compare_all(&k, c, &d);
	if (k.grad && contains(k.m, OP_BATCH_NORM)) {
		check_expanded(c, BN_SYNC_OFF);
		check_expanded(c, BN_SYNC_SYNC);
	}
	ir_module_free(k.m);
}

/* ---- programs ---- */

static Value *slice(Builder *b, Value *x, int64_t row, int64_t col, int64_t rows, int64_t cols, int64_t step)
{
	Attr *attrs = attr_ints(b->m, NULL, "starts", 2, (int64_t[]){row, col});
	attrs = attr_ints(b->m, attrs, "sizes", 2, (int64_t[]){rows, cols});
	return ir_emit(b, OP_SLICE, 1, &x, attr_ints(b->m, attrs, "steps", 2, (int64_t[]){step, 1}));
}

static Value *slice_rows(Builder *b, Value *x, int64_t begin, int64_t n)
{
	return slice(b, x, begin, 0, n, x->type.dim[1], 1);
}

/* x^2 + sin x + (x + x): four uses of one value */
static Value *reuse(Builder *b, Value *const *in)
{
	Value *x = in[0], *square = ir_emit2(b, OP_MUL, x, x), *sine = ir_emit1(b, OP_SIN, x);
	Value *sum = ir_emit2(b, OP_ADD, square, sine);
	return ir_emit2(b, OP_ADD, sum, ir_emit2(b, OP_ADD, x, x));
}

/* q k v cut from one value, as a fused projection is */
static Value *partition(Builder *b, Value *const *in)
{
	Value *x = ir_emit1(b, OP_SIN, in[0]);
	Value *k = slice_rows(b, x, 2, 2), *v = slice_rows(b, x, 4, 2), *q = slice_rows(b, x, 0, 2);
	return ir_emit2(b, OP_MUL, ir_emit2(b, OP_MUL, q, k), v);
}

/* four parts in another order */
static Value *quarters(Builder *b, Value *const *in)
{
	static const int order[] = {2, 0, 3, 1};
	Value *x = ir_emit1(b, OP_SIN, in[0]), *y = NULL;
	for (int i = 0; i < COUNT_OF(order); i++) {
		Value *part = slice_rows(b, x, 2 * order[i], 2);
		y = y ? ir_emit2(b, OP_MUL, ir_emit1(b, OP_EXP, y), part) : part;
	}
	return y;
}

/* slices that no concat can hold: corners, steps, two axes */
static Value *corners(Builder *b, Value *const *in)
{
	Value *x = ir_emit1(b, OP_SIN, in[0]);
	Value *p = slice(b, x, 0, 0, 2, 2, 1), *q = slice(b, x, 2, 2, 2, 2, 1), *r = slice(b, x, 1, 0, 2, 4, 2);
	Value *s = slice(b, x, 0, 1, 4, 2, 1), *t = slice(b, x, 0, 0, 2, 4, 2);
	Value *y = ir_emit2(b, OP_MUL, p, q), *z = ir_emit2(b, OP_MUL, r, t);
	Value *sum = ir_emit2(b, OP_ADD, slice(b, z, 0, 1, 2, 2, 1), y);
	return ir_emit2(b, OP_MUL, slice(b, s, 1, 0, 2, 2, 1), sum);
}

/* slices that leave a gap, overlap, and come with another use */
static Value *ragged(Builder *b, Value *const *in)
{
	Value *x = ir_emit1(b, OP_SIN, in[0]);
	Value *p = slice_rows(b, x, 0, 2), *q = slice_rows(b, x, 3, 2), *r = slice_rows(b, x, 1, 2);
	Value *s = ir_emit1(b, OP_EXP, slice_rows(b, x, 4, 2)), *t = slice_rows(b, ir_emit1(b, OP_COS, x), 0, 2);
	Value *sum = ir_emit2(b, OP_MUL, p, q);
	sum = ir_emit2(b, OP_ADD, sum, ir_emit2(b, OP_MUL, r, s));
	return ir_emit2(b, OP_MUL, sum, t);
}

/* z = x + y and x + x: one gradient is several values' */
static Value *shared(Builder *b, Value *const *in)
{
	Value *z = ir_emit2(b, OP_ADD, in[0], in[1]), *w = ir_emit2(b, OP_ADD, in[0], in[0]);
	Value *p = ir_emit2(b, OP_MUL, slice_rows(b, z, 0, 2), slice_rows(b, w, 1, 2));
	Value *q = ir_emit2(b, OP_MUL, slice_rows(b, in[0], 2, 2), slice_rows(b, in[1], 0, 2));
	return ir_emit2(b, OP_ADD, p, q);
}

/* a weight used as an embedding and as the output head */
static Value *tied(Builder *b, Value *const *in)
{
	Attr *axis = attr_int(b->m, NULL, "axis", 0);
	Value *h = ir_emit(b, OP_GATHER, 2, (Value *[]){in[0], in[1]}, axis);
	Attr *tb = attr_int(b->m, attr_int(b->m, NULL, "ta", 0), "tb", 1);
	return ir_emit(b, OP_MATMUL, 2, (Value *[]){ir_emit1(b, OP_TANH, h), in[0]}, tb);
}

/* rows looked up twice, once a single one, and the table itself */
static Value *lookups(Builder *b, Value *const *in)
{
	Attr *axis = attr_int(b->m, NULL, "axis", 0);
	Value *p = ir_emit(b, OP_GATHER, 2, (Value *[]){in[0], in[1]}, axis);
	Value *q = ir_emit(b, OP_GATHER, 2, (Value *[]){in[0], in[2]}, axis);
	Value *r = ir_emit2(b, OP_MUL, p, q);
	Value *table = ir_reduce(b, OP_REDUCE_SUM, ir_emit1(b, OP_TANH, in[0]), 1, (int64_t[]){0}, true);
	return ir_emit2(b, OP_ADD, r, table);
}

/* a branch that integers cut off, and one that is not wanted */
static Value *cut(Builder *b, Value *const *in)
{
	Value *steps = ir_cast(b, ir_cast(b, ir_emit2(b, OP_MUL, in[0], in[0]), DT_I64), DT_F64);
	Value *sum = ir_emit2(b, OP_ADD, ir_emit1(b, OP_FLOOR, in[0]), steps);
	return ir_emit2(b, OP_ADD, sum, ir_emit2(b, OP_MUL, in[1], in[0]));
}

/* h' = tanh(h u + x), k' = k + 1, c' = c (h' * v) + k', over the slices of x.  Stacked are what a step computes and a
 * state as it was. */
static Value *looped(Builder *b, Value *const *in, bool reverse)
{
	Module *body = ir_body_new(b->m);
	Builder s = {.m = body, .section = SEC_FORWARD, .loc = b->loc};
	Value *arg[6], *all[5];
	for (int i = 0; i < 6; i++)
		arg[i] = loop_argument(&s, i, i == 3 ? loop_slice(&in[i]->type) : in[i]->type);
	Attr *plain = attr_int(b->m, attr_int(b->m, NULL, "ta", 0), "tb", 0);
	Value *hu = ir_emit(&s, OP_MATMUL, 2, (Value *[]){arg[0], arg[4]}, plain);
	Value *h = ir_emit1(&s, OP_TANH, ir_emit2(&s, OP_ADD, hu, arg[3]));
	Value *k = ir_emit2(&s, OP_ADD, arg[2], ir_const_int(&s, DT_I64, 1));
	Value *hv = ir_emit2(&s, OP_MUL, h, arg[5]);
	Value *c = ir_emit2(&s, OP_ADD, ir_emit2(&s, OP_MUL, arg[1], hv), ir_cast(&s, k, DT_F64));
	ir_emit(&s, OP_YIELD, 5, (Value *[]){h, c, k, hv, arg[1]}, NULL);
	Attr *a = attr_int(b->m, attr_int(b->m, NULL, "states", 3), "stacked", 1);
	b->body = body;
	Op *loop = ir_emit_op(b, OP_LOOP, 6, in, attr_int(b->m, attr_int(b->m, a, "steps", in[3]->type.dim[0]), "reverse",
		reverse), NULL);
	for (int i = 0; i < 5; i++)
		all[i] = ir_emit1(b, OP_SIN, ir_cast(b, loop->out[i], DT_F64));
	Value *y = ir_emit2(b, OP_ADD, ir_emit2(b, OP_ADD, all[0], all[1]), all[2]);
	return ir_emit2(b, OP_ADD, ir_emit2(b, OP_MUL, all[3], all[4]), y);
}

static Value *loop_forth(Builder *b, Value *const *in)
{
	return looped(b, in, false);
}

static Value *loop_back(Builder *b, Value *const *in)
{
	return looped(b, in, true);
}

#define LOOPED "f64[2,3] f64[2,3] i64[]=2! f64[4,2,3] f64[3,3] f64[3]"

static const Case programs[] = {
	{OP_LOOP, LOOPED, "", 0, "loop", loop_forth},
	{OP_LOOP, LOOPED, "", 0, "loop that goes back", loop_back},
	{OP_COUNT, "f64[3,5]", "", 0, "reuse", reuse},
	{OP_COUNT, "f64[6,3]", "", 0, "partition", partition},
	{OP_COUNT, "f64[8,3]", "", 0, "quarters", quarters},
	{OP_COUNT, "f64[4,4]", "", 0, "corners", corners},
	{OP_COUNT, "f64[7,3]", "", 0, "ragged", ragged},
	{OP_COUNT, "f64[4,3] f64[4,3]", "", 0, "shared", shared},
	{OP_COUNT, "f64[5,3] i64[4]=1,0,4,1!", "", 0, "tied", tied},
	{OP_COUNT, "f64[5,3] i64[2,2]=1,0,-1,1! i64[]=1!", "", 0, "lookups", lookups},
	{OP_COUNT, "f64[3,4] f64[4]!", "", 0, "cut", cut},
};

static void test_programs(void)
{
	for (int i = 0; i < COUNT_OF(programs); i++)
		check_case(&programs[i]);
}

static void test_every_op_has_a_case(void)
{
	for (int kind = 0; kind < OP_COUNT; kind++) {
		bool found = grad_rule[kind] == grad_stop || grad_rule[kind] == grad_nograd;
		char text[100];
		for (int i = 0; i < COUNT_OF(cases); i++)
			found = found || (int)cases[i].kind == kind;
		for (int i = 0; i < COUNT_OF(programs); i++)
			found = found || (int)programs[i].kind == kind;
		snprintf(text, sizeof(text), "ops.def: %s: no gradient case", op_info[kind].text);
		UNIT_CHECK(found, text);
	}
}

static double value_at(OpKind kind, double x)
{
	Module *m = ir_module_new("step");
	Builder b = {.m = m, .section = SEC_FORWARD};
	Type t = {.kind = TYPE_TENSOR, .dtype = DT_F64};
	Symbol *s = ir_add_symbol(m, SYM_PARAM, "x", t);
	Value *v = ir_emit1(&b, kind, ir_read(&b, s));
	EvalEnv *e = eval_new(m, m->arena);
	eval_bind(e, s, (EvalTensor){.type = t, .f = &x});
	eval_section(e, SEC_FORWARD);
	double y = eval_value(e, v)->f[0];
	ir_module_free(m);
	return y;
}

/* What is imported has a gradient or stops one; what stops one, though it makes floats of floats, is constant between
 * its steps. */
static void test_decisions(void)
{
	static const OpKind steps[] = {OP_SIGN, OP_FLOOR, OP_CEIL, OP_ROUND};
	for (int kind = 0; kind < OP_COUNT; kind++)
		UNIT_CHECK(op_info[kind].level > LEVEL_MODEL || grad_rule[kind] != grad_nograd, op_info[kind].text);
	for (int i = 0; i < COUNT_OF(steps); i++)
		for (double x = -2.39; x < 2.5; x += 0.3)
			UNIT_CHECK(grad_rule[steps[i]] == grad_stop && value_at(steps[i], x) == value_at(steps[i], x + 1e-6),
				op_info[steps[i]].text);
}

static void test_differences(void)
{
	for (int i = 0; i < COUNT_OF(cases); i++)
		check_case(&cases[i]);
}

void suite_grad(void)
{
	CU_pSuite s = CU_add_suite("gradients", NULL, NULL);
	CU_ADD_TEST(s, test_every_op_has_a_case);
	CU_ADD_TEST(s, test_decisions);
	CU_ADD_TEST(s, test_differences);
	CU_ADD_TEST(s, test_programs);
}
