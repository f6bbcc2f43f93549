/* tests/unit/test_draws.c: random numbers of a model: which of them are dropout, and along which axis samples lie. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/loaded.h"
#include "tests/unit/unit.h"

static const float zero[] = {0}, keep[] = {0.75f};

static void random_op(OnnxText *m, const char *name, const char *op, const char *dims, const char *out, float seed)
{
	int64_t dim[IR_MAX_RANK];
	int n = 0;
	char *end = (char *)(uintptr_t)dims;
	for (; *end; end += *end == ',')
		dim[n++] = strtoll(end, &end, 10);
	Buf b = node_text(name, op, "", out);
	attr_is(&b, "shape", n, dim);
	if (seed >= 0)
		attr_f(&b, "seed", seed);
	model_node(m, b);
}

static void constant(OnnxText *m, const char *name, float v)
{
	Buf b = node_text(name, "Constant", "", name);
	attr_f(&b, "value_float", v);
	model_node(m, b);
}

/* ---- masks ---- */

typedef enum { SCALED = 1, RETURNED = 2, CHOSEN = 4, COMPLEMENT = 8, ADDED = 16, SHIFTED = 32,
	BEHIND = 64 /* the scale is behind the product */ } Form;

/* y = x mask, where x is f32[4,3,5] and the mask f32[dims] keeps 3 of 4. */
static OnnxText *masked(const char *dims, int form)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,3,5");
	model_floats(m, "like", dims, 1, zero);
	constant(m, "keep", 0.75f);
	constant(m, "zero", 0);
	model_op(m, "u", "RandomUniformLike", "like", form & SHIFTED ? "random" : "u");
	if (form & SHIFTED)
		model_op(m, "shift", "Add", "random,keep", "u");
	model_op(m, "less", "Less", form & COMPLEMENT ? "keep,u" : "u,keep", "bits");
	Buf cast = node_text("cast", "Cast", "bits", "mask");
	attr_i(&cast, "to", 1);
	model_node(m, cast);
	model_op(m, "div", "Div", "mask,keep", "scaled");
	if (form & CHOSEN)
		model_op(m, "mul", "Where", "bits,x,zero", "y");
	else
		model_op(m, "mul", "Mul", form & SCALED ? "x,scaled" : "x,mask", form & (ADDED | BEHIND) ? "kept" : "y");
	if (form & BEHIND)
		model_op(m, "scale", "Div", "kept,keep", "y");
	if (form & ADDED) {
		model_op(m, "rest", "Sub", "keep,mask", "others");
		model_op(m, "sum", "Add", "kept,others", "y");
	}
	model_output(m, "y");
	if (form & RETURNED)
		model_output(m, "mask");
	return m;
}

static void check_mask(const char *dims, int form, OpKind kind, double hi, const char *note)
{
	FrontendOptions say = {.say_roles = true};
	Loaded l = good(masked(dims, form), &say);
	const Op *op = find_op(l.m, kind);
	CU_ASSERT_PTR_NOT_NULL_FATAL(op);
	CU_ASSERT_EQUAL(attr_get_int(op->attrs, "axis", -1), 0);
	CU_ASSERT_EQUAL(find_op(l.m, OP_LT) != NULL, hi == 0);
	if (kind == OP_DRAW && hi > 0) {
		CU_ASSERT_EQUAL(attr_get_float(op->attrs, "off", -1), 1);
		CU_ASSERT_EQUAL(attr_get_float(op->attrs, "lo", -1), 0);
		CU_ASSERT_EQUAL(attr_get_float(op->attrs, "hi", -1), hi);
	}
	if (hi > 0) {
		CU_ASSERT_EQUAL(attr_get_float(op->attrs, "p", -1), form & COMPLEMENT ? 0.75 : 0.25);
	} else {
		CU_ASSERT_PTR_NULL(attr_find(op->attrs, "off"));
	}
	CU_ASSERT_EQUAL(strstr(l.log, "does not scale what it keeps") != NULL, note != NULL);
	CU_ASSERT_EQUAL(strstr(l.log, "note: 1 draw of random numbers, first node \"u\", is no dropout") != NULL, hi == 0);
	loaded_free(&l);
}

static void test_masks(void)
{
	check_mask("4,1,1", SCALED, OP_DRAW, 1 / 0.75, NULL);
	check_mask("4,3,1", SCALED, OP_DRAW, 1 / 0.75, NULL);
	check_mask("4,3,5", SCALED, OP_DROPOUT, 1 / 0.75, NULL);
	check_mask("4,1,1", 0, OP_DRAW, 1, "said");
	check_mask("4,1,1", CHOSEN, OP_DRAW, 1, "said");
	check_mask("4,3,5", BEHIND, OP_DROPOUT, 1 / 0.75, NULL);
	check_mask("4,1,1", BEHIND, OP_DRAW, 1 / 0.75, NULL);
	check_mask("4,3,5", SCALED | BEHIND, OP_DROPOUT, 1 / 0.75, NULL); /* what divides once more is not the mask's */
	check_mask("4,3,5", ADDED, OP_DRAW, 1, "said");
	check_mask("4,3,5", ADDED | SCALED, OP_DRAW, 1 / 0.75f, "said"); /* not the numbers of AlphaDropout */
	check_mask("4,3,5", SHIFTED, OP_DRAW, 0, NULL);             /* u + 0.75 < 0.75: a mask of zeros, not of 3 in 4 */
	check_mask("4,1,1", SCALED | RETURNED, OP_DRAW, 0, NULL);   /* the mask is wanted itself */
	check_mask("4,1,1", SCALED | COMPLEMENT, OP_DRAW, 0, NULL); /* kept are 1 of 4, which 1/0.75 does not scale */
	FrontendOptions off = {.graph.dropout = DROPOUT_OFF};
	for (int form = 0; form <= CHOSEN; form++) {
		Loaded l = good(masked("4,3,1", form), &off);
		CU_ASSERT_EQUAL(count_ops(l.m, OP_DRAW), (form & RETURNED) != 0);
		loaded_free(&l);
	}
}

/* ---- axes ---- */

/* y = x OP noise, or x OP (w * noise), for noise of these dims; the batch is 4. */
static int axis_of(const char *x, const char *op, const char *dims, bool weights, bool by_samples)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, x);
	if (weights)
		model_floats(m, "layer.weight", dims, 1, keep);
	random_op(m, "noise", "RandomNormal", dims, "n", -1);
	if (weights)
		model_op(m, "scale", "Mul", "layer.weight,n", "w");
	model_op(m, "meet", op, weights ? "x,w" : "x,n", "y");
	model_output(m, "y");
	Loaded l = good(m, NULL);
	const Op *draw = find_op(l.m, OP_DRAW);
	CU_ASSERT_PTR_NOT_NULL_FATAL(draw);
	int axis = (int)attr_get_int(draw->attrs, "axis", -1);
	if (by_samples && draw->out[0]->type.rank)
		CU_ASSERT_EQUAL(draw->out[0]->type.dim[0], 4);
	loaded_free(&l);
	return axis;
}

static void test_axes(void)
{
	CU_ASSERT_EQUAL(axis_of("4,3", "Add", "4,3", false, true), 0);
	CU_ASSERT_EQUAL(axis_of("4,3", "Add", "4,1", false, true), 0);
	CU_ASSERT_EQUAL(axis_of("4,3", "Add", "3", false, false), -1);
	CU_ASSERT_EQUAL(axis_of("4,4", "Add", "4", false, false), -1);      /* as long as the batch, along features */
	CU_ASSERT_EQUAL(axis_of("4,4", "Add", "1,4", false, false), -1);
	CU_ASSERT_EQUAL(axis_of("4,4,4", "Add", "4,4,1", false, true), 0);
	CU_ASSERT_EQUAL(axis_of("4,4", "MatMul", "4,4", true, false), -1);  /* noise of weights */
	CU_ASSERT_EQUAL(axis_of("4,4", "MatMul", "4,4", false, false), -1);
	CU_ASSERT_EQUAL(axis_of("4,4", "Add", "4,4", true, false), -1);
}

/* Noise that meets no sample is by sample if its first axis is as long as the batch. */
static void test_generator(void)
{
	for (int dims = 0; dims < 2; dims++) {
		OnnxText *m = model_new();
		model_input(m, "x", 1, "4,3");
		model_floats(m, "layer.weight", "5,3", 1, keep);
		random_op(m, "z", "RandomNormal", dims ? "6,5" : "4,5", "z", -1);
		model_op(m, "g", "MatMul", "z,layer.weight", "fake");
		model_output(m, "fake");
		Loaded l = good(m, NULL);
		CU_ASSERT_EQUAL(attr_get_int(find_op(l.m, OP_DRAW)->attrs, "axis", 7), dims ? -1 : 0);
		loaded_free(&l);
	}
}

/* ---- ids ---- */

static int64_t id_of(const Loaded *l, int k)
{
	IR_FOR_OPS(l->m, SEC_FORWARD, op)
		if (op->kind == OP_DRAW && !k--)
			return attr_get_int(op->attrs, "id", -1);
	return -1;
}

static void test_ids(void)
{
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,3");
	random_op(m, "a", "RandomNormal", "4,3", "a", -1);
	random_op(m, "b", "RandomUniform", "4,3", "b", 5);
	random_op(m, "c", "RandomUniform", "4,3", "c", 5);
	random_op(m, "d", "RandomUniform", "4,3", "d", 6);
	model_op(m, "sum", "Sum", "x,a,b,c,d", "y");
	model_output(m, "y");
	Loaded l = good(m, NULL);
	CU_ASSERT_EQUAL(id_of(&l, 0), 0);
	for (int k = 1; k < 4; k++)
		CU_ASSERT_EQUAL(id_of(&l, k) & UINT32_MAX, k);
	CU_ASSERT(id_of(&l, 1) >> 32 == id_of(&l, 2) >> 32 && id_of(&l, 1) >> 32 != 0);
	CU_ASSERT(id_of(&l, 2) >> 32 != id_of(&l, 3) >> 32);
	loaded_free(&l);
}

/* ---- bad input ---- */

static void refuses(OnnxText *m, const char *text)
{
	model_output(m, "y");
	Loaded l = load_model(m, NULL);
	CU_ASSERT_PTR_NULL(l.m);
	expect(&l, text);
	loaded_free(&l);
}

static OnnxText *with_node(Buf node, int dtype)
{
	OnnxText *m = model_new();
	model_input(m, "x", dtype, "4,3");
	model_node(m, node);
	return m;
}

static void test_bad(void)
{
	static const int64_t negative[] = {4, -1};
	Buf n = node_text("r", "RandomNormal", "", "y");
	refuses(with_node(n, 1), "attribute shape is missing");
	n = node_text("r", "RandomNormal", "", "y");
	attr_is(&n, "shape", 2, negative);
	refuses(with_node(n, 1), "dim 1 of its shape is negative");
	n = node_text("r", "RandomUniformLike", "x", "y");
	attr_f(&n, "low", 2);
	refuses(with_node(n, 1), "numbers between low=2 and high=1");
	n = node_text("r", "RandomNormalLike", "x", "y");
	refuses(with_node(n, 7), "random numbers of i64, expected floats");
	n = node_text("r", "Bernoulli", "x", "y");
	refuses(with_node(n, 7), "its probabilities are i64, expected floats");
	n = node_text("r", "Bernoulli", "p", "y");
	OnnxText *m = model_new();
	model_input(m, "x", 1, "4,3");
	constant(m, "p", 1.5f);
	model_node(m, n);
	refuses(m, "its probability 1.5 is outside [0, 1]");
	n = node_text("r", "Multinomial", "x", "y");
	attr_i(&n, "sample_size", 0);
	refuses(with_node(n, 1), "0 draws from f32[4,3], expected at least one from floats [batch, classes]");
	n = node_text("r", "Multinomial", "x", "y");
	attr_i(&n, "dtype", 1);
	refuses(with_node(n, 1), "its dtype is f32, expected int32 or int64");
	n = node_text("r", "Multinomial", "x", "y");
	attr_i(&n, "sample_size", 2);
	node_fx(&n, "multinomial", "multinomial.default(%x, 2)");
	refuses(with_node(n, 1), "draws 2 classes without replacement");
}

void suite_draws(void)
{
	CU_pSuite s = CU_add_suite("draws", NULL, NULL);
	CU_add_test(s, "masks of one draw and constants are dropout, others are noise", test_masks);
	CU_add_test(s, "samples lie where the numbers meet samples", test_axes);
	CU_add_test(s, "a generator's noise is by sample", test_generator);
	CU_add_test(s, "each node draws other numbers, seed or not", test_ids);
	CU_add_test(s, "bad attributes are refused", test_bad);
}
