/* tests/unit/test_quant.c: types that files have and the IR holds wider, and what QuantizeLinear and its kin refuse. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/narrow.h"
#include "tests/unit/loaded.h"
#include "tests/unit/unit.h"

/* Refused, with this in what was said. */
static void bad(OnnxText *m, const char *text)
{
	Loaded l = load_model(m, NULL);
	UNIT_CHECK(!l.m && l.errors > 0, text);
	expect(&l, text);
	loaded_free(&l);
}

/* y = op(x[4,6], s, z), s of these dims and numbers, z of type `zero` and the same dims (0: none); attributes can be
 * added to *node, which then goes to model_node. */
static OnnxText *quantizing(Buf *node, const char *op, int x, const char *dims, int n, const float *s, int zero)
{
	static const float none[] = {0};
	OnnxText *m = model_new();
	m->opset = 25;
	model_input(m, "x", x, "4,6");
	model_floats(m, "s", dims, n, s);
	if (zero) {
		Buf cast = node_text("zero", "Cast", "onnx::f", "z");
		model_floats(m, "onnx::f", dims, 1, none);
		attr_i(&cast, "to", zero);
		model_node(m, cast);
	}
	*node = node_text("q", op, zero ? "x,s,z" : "x,s", "y");
	model_output(m, "y");
	return m;
}

enum { FLOAT = 1, UINT8 = 2, INT8 = 3, INT4 = 22, E4M3FN = 17, E8M0 = 24 };

static void refuse(const char *op, int x, const char *dims, float scale, int zero, const char *attr, int64_t v,
	const char *text)
{
	Buf node;
	OnnxText *m = quantizing(&node, op, x, dims, 1, &scale, zero);
	if (attr)
		attr_i(&node, attr, v);
	model_node(m, node);
	bad(m, text);
}

static void test_refused(void)
{
	static const char q[] = "QuantizeLinear", d[] = "DequantizeLinear";
	refuse(q, FLOAT, "", 0, INT8, NULL, 0, "operand 1 (scale) is 0 at position 0: scales are positive and finite");
	refuse(q, FLOAT, "6", -2, INT8, NULL, 0, "operand 1 (scale) is -2 at position 0");
	refuse(d, INT8, "", NAN, INT8, NULL, 0, "operand 1 (scale) is nan at position 0");
	refuse(q, FLOAT, "6", 1, INT8, "axis", 2, "axis 2 is outside -2..1");
	refuse(q, FLOAT, "5", 1, INT8, "axis", 0, "f32[5]: f32[4,6] wants one number, 4 along axis 0, or block_size");
	refuse(q, FLOAT, "4,3", 1, INT8, "block_size", 4, "blocks of 4 along axis 1 of f32[4,6] want 2 there");
	refuse(q, FLOAT, "4,3", 1, INT8, "block_size", -1, "block_size is -1");
	refuse(q, FLOAT, "", 1, INT8, "output_dtype", UINT8, "output_dtype is u8, its zero point is i8[]");
	refuse(q, FLOAT, "", 1, 0, "output_dtype", FLOAT, "f32 is no type to quantise to");
	refuse(q, FLOAT, "", 1, 0, "output_dtype", E8M0, "f8e8m0 is no type to quantise to");
	refuse(q, FLOAT, "", 1, INT8, "precision", INT8, "precision is i8, a float type is wanted");
	refuse(d, INT4, "", 1, INT8, NULL, 0, "operand 0 is i4, its zero point is i8[]");
	refuse(d, FLOAT, "", 1, 0, NULL, 0, "operand 0 is f32[4,6], a quantised type is wanted");
	refuse("Mul", E4M3FN, "", 1, 0, NULL, 0, "it cannot compute in FLOAT8E4M3FN: put a Cast to a wider type before it");
	refuse("MatMulInteger", UINT8, "6,2", 1, 0, NULL, 0, "operand 1 is f32[6,2], i8 or u8 is wanted");
}

/* DequantizeLinear reads what QuantizeLinear made past the integers, whatever moved or clipped these between. */
static void test_pair(void)
{
	static const float scale[] = {0.5f};
	for (int exported = 0; exported < 2; exported++) {
		Buf node, turn = node_text("t", "Transpose", "y", "yt"), limit = node_text("limit", "Cast", "onnx::f", "top");
		OnnxText *m = quantizing(&node, "QuantizeLinear", FLOAT, "", 1, scale, INT8);
		m->producer = exported ? "pytorch" : "made by hand";
		model_node(m, node);
		attr_is(&turn, "perm", 2, (int64_t[]){1, 0});
		attr_i(&limit, "to", INT8);
		model_node(m, turn);
		model_node(m, limit);
		model_op(m, "c", "Clip", "yt,,top", "yc");
		model_op(m, "d", "DequantizeLinear", "yc,s,z", "back");
		model_output(m, "back");
		Loaded l = good(m, NULL);
		const Op *pair = find_op(l.m, OP_QUANTIZE);
		CU_ASSERT(count_ops(l.m, OP_QUANTIZE) == 2 && pair && pair->out[0]->n_uses == 2);
		/* An export of PyTorch's multiplies with the reciprocal, as fake_quantize does. */
		CU_ASSERT(pair && op_in(pair, 0)->op->kind == (exported ? OP_MUL : OP_DIV));
		loaded_free(&l);
	}
}

static void check_numbers(int onnx, int n, const double *v, const unsigned *bits)
{
	const Narrow *t = narrow_from_onnx(onnx);
	for (int i = 0; i < n; i++)
		UNIT_CHECK(narrow_decode(t, bits[i]) == v[i] && narrow_encode(t, v[i]) == bits[i], t->text);
	for (unsigned b = 0; b < 1u << t->bits; b++) {
		double x = narrow_decode(t, b);
		UNIT_CHECK(x != x || narrow_encode(t, x) == b, t->text);
		UNIT_CHECK(!isfinite(x) || (x >= narrow_min(t) && x <= t->max), t->text);
	}
}

static void test_numbers(void)
{
	check_numbers(17, 4, (double[]){1, -448, 0x1p-9, 0.875}, (unsigned[]){0x38, 0xFE, 0x01, 0x36});
	check_numbers(18, 3, (double[]){1, 240, -0x1p-10}, (unsigned[]){0x40, 0x7F, 0x81});
	check_numbers(19, 3, (double[]){1, -57344, INFINITY}, (unsigned[]){0x3C, 0xFB, 0x7C});
	check_numbers(20, 2, (double[]){1, 57344}, (unsigned[]){0x40, 0x7F});
	check_numbers(24, 3, (double[]){1, 0x1p-127, 0x1p127}, (unsigned[]){127, 0, 254});
	check_numbers(23, 4, (double[]){0.5, 1.5, -6, 0}, (unsigned[]){1, 3, 15, 0});
	check_numbers(22, 3, (double[]){-8, -1, 7}, (unsigned[]){8, 15, 7});
	check_numbers(21, 2, (double[]){15, 3}, (unsigned[]){15, 3});
	check_numbers(26, 2, (double[]){-2, 1}, (unsigned[]){2, 1});
	check_numbers(25, 1, (double[]){3}, (unsigned[]){3});
	CU_ASSERT(!narrow_from_onnx(1) && !narrow_from_text("f32") && narrow_from_text("u2") == narrow_from_onnx(25));
	CU_ASSERT(narrow_packed(narrow_from_onnx(22), 5) == 3 && narrow_packed(narrow_from_onnx(25), 5) == 2);
	CU_ASSERT(isnan(narrow_decode(narrow_from_onnx(17), 0x7F)) && isnan(narrow_decode(narrow_from_onnx(18), 0x80)));
	CU_ASSERT_EQUAL(narrow_find_other(narrow_from_onnx(22), (int8_t[]){7, -8, 8}, 3), 2);
	CU_ASSERT_EQUAL(narrow_find_other(narrow_from_onnx(23), (float[]){6, 0.5f, 0}, 3), -1);
}

/* ONNX ops that only move elements keep the type. */
static void test_symbols(void)
{
	OnnxText *m = model_new();
	m->opset = 25;
	model_input(m, "x", INT4, "4,6");
	model_op(m, "t", "Flatten", "x", "y");
	model_output(m, "y");
	Loaded l = good(m, NULL);
	const Symbol *x = symbol(&l, "x"), *y = symbol(&l, "y");
	CU_ASSERT(x->type.dtype == DT_I8 && x->narrow && !strcmp(x->narrow, "i4") && y->narrow && !strcmp(y->narrow, "i4"));
	loaded_free(&l);
}

/* Files hold one byte an element, of a type that they do not name: only who asks for it gets them. */
static void test_files(void)
{
	static const uint8_t bytes[] = {0x08, 0x0F, 0x07};
	Arena *a = arena_new();
	const char *path = arena_printf(a, "%s/narrow.npy", model_folder());
	int8_t wide[3];
	uint8_t back[3];
	char text[400] = "";
	Diag d = {.out = fmemopen(text, sizeof(text), "w")};
	Npy file;
	CU_ASSERT(npy_write_narrow(path, 1, (int64_t[]){3}, bytes));
	CU_ASSERT_FATAL(npy_open_any(&file, path, &d));
	CU_ASSERT(file.header.narrow && file.header.numel == 3 && !memcmp(file.data, bytes, 3));
	narrow_widen(narrow_from_text("i4"), wide, file.data, 3);
	narrow_narrow(narrow_from_text("i4"), back, wide, 3);
	CU_ASSERT(wide[0] == -8 && wide[1] == -1 && wide[2] == 7 && !memcmp(back, bytes, 3));
	npy_close(&file);
	CU_ASSERT(!npy_open(&file, path, &d) && d.errors == 1);
	fclose(d.out);
	CU_ASSERT(strstr(text, "save them with .astype('float32')") != NULL);
	unlink(path);
	arena_free(a);
}

void suite_quant(void)
{
	CU_TestInfo tests[] = {
		{"what is refused", test_refused},
		{"pairs of QuantizeLinear and DequantizeLinear", test_pair},
		{"numbers of narrow types", test_numbers},
		{"inputs and outputs of narrow types", test_symbols},
		{"files of narrow types", test_files},
		CU_TEST_INFO_NULL,
	};
	CU_SuiteInfo suites[] = {{"quant", NULL, NULL, NULL, NULL, tests}, CU_SUITE_INFO_NULL};
	CU_register_suites(suites);
}
