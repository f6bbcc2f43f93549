/* tests/unit/test_shape.c: what shape rules refuse (shape_cases.def), with messages in the user's terms. */
#include "ir/ir.h"
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

typedef struct Refused { const char *op, *message; } Refused;

static const Refused refused[] = {
#define REFUSED(op, message) {op, message},
#include "tests/unit/shape_cases.def"
};

static const char *const operands[][2] = {
	{"a", "f32[2,3]"}, {"b", "f32[3,2]"}, {"v", "f32[3]"}, {"s", "f32[]"}, {"i", "i64[2,3]"},
	{"n", "bool[2,3]"},
	{"x", "f32[2,4,5,5]"}, {"w", "f32[8,2,3,3]"}, {"q", "f32[2,4,3,8]"}, {"k", "f32[2,2,5,8]"},
};

/* Parses a module that ends with `op`; what was said is in *said (to be freed). */
static Module *parse_with(const char *op, char **said)
{
	size_t n = 0;
	Buf text = {0};
	FILE *f = open_memstream(said, &n);
	Diag d = {.out = f};
	buf_printf(&text, "module \"t\" level=TRAIN {\noutput \"a\" : f32[2,3]\n");
	for (int i = 0; i < COUNT_OF(operands); i++)
		buf_printf(&text, "input \"in.%s\" : %s\n", operands[i][0], operands[i][1]);
	buf_printf(&text, "forward {\n");
	for (int i = 0; i < COUNT_OF(operands); i++)
		buf_printf(&text, "%%%s : %s = input \"in.%s\"\n", operands[i][0], operands[i][1], operands[i][0]);
	buf_printf(&text, "%s\n}\n}\n", op);
	Module *m = ir_parse("case", text.at, &d);
	if (m && !ir_verify(m, NULL, &d)) {
		ir_module_free(m);
		m = NULL;
	}
	fclose(f);
	buf_free(&text);
	return m;
}

static void test_refused(void)
{
	for (int i = 0; i < COUNT_OF(refused); i++) {
		char *said = NULL;
		Module *m = parse_with(refused[i].op, &said);
		UNIT_CHECK(m == NULL, refused[i].op);
		bool found = strstr(said, refused[i].message);
		UNIT_CHECK(found, refused[i].message);
		if (!found)
			printf("    %s\n    said: %s\n", refused[i].op, said);
		free(said);
		ir_module_free(m);
	}
}

/* Without the line under test the module is right, so the refusals are the line's. */
static void test_frame_is_right(void)
{
	char *said = NULL;
	Module *m = parse_with("output \"a\" %a", &said);
	CU_ASSERT_PTR_NOT_NULL(m);
	CU_ASSERT_STRING_EQUAL(said, "");
	free(said);
	ir_module_free(m);
}

/* The results of ops whose types are easy to get wrong; the parser compares them with the declared ones. */
static void test_accepted(void)
{
	static const char *const ok[] = {
		"%y : f32[2,1,1,5] = reduce_max %x {axes=[1,2], keepdims=1}\n"
			"%z : f32[2,4] = reduce_max %x {axes=[2,3], keepdims=0}",
		"%y : f32[2,4,3,3], %j : i32[2,4,3,3] = max_pool %x {kernel=[2,2], strides=[2,2], pads=[0,0,1,1], "
			"dilations=[1,1], layout=0}",
		"%y : f32[2,8,3,3] = conv %x, %w {strides=[2,2], pads=[1,1,1,1], dilations=[1,1], group=2, layout=0}",
		"%y : f32[2,3,2] = gather %b, %i {axis=0}",
		"%y : f32[2,4,3,8], %l : f32[2,4,3] = attention %q, %k, %k {scale=1.0, layout=0, "
			"empty=\"zero\"}",
		"%y : i64[2,3] = pow %i, %a",
		"%o : f32[8,8] = iota {axis=0}\n %y : f32[2,4,3,8] = matmul %q, %o {ta=0, tb=0}",
	};
	for (int i = 0; i < COUNT_OF(ok); i++) {
		char *said = NULL;
		Module *m = parse_with(ok[i], &said);
		UNIT_CHECK(m != NULL, ok[i]);
		free(said);
		ir_module_free(m);
	}
}

void suite_shape(void)
{
	CU_pSuite s = CU_add_suite("shape", NULL, NULL);
	CU_add_test(s, "the frame of the cases is right", test_frame_is_right);
	CU_add_test(s, "wrong operands and attributes are refused with both values", test_refused);
	CU_add_test(s, "right ones are accepted", test_accepted);
}
