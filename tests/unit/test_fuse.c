/* tests/unit/test_fuse.c: fuse changes no result, and saves memory traffic.
 *
 * Random programs of elementwise ops, broadcasts, literals, reductions and softmaxes over forward and
 * backward are evaluated before and after the pass: every output must agree to the bit, since fusion
 * reorders nothing inside an expression.  The fused module must verify and print back. */
#include "passes/passes.h"
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

enum { PROGRAMS = 300, OPS = 40, MAX_VALUES = 256 };

typedef struct Program {
	Module *m;
	Builder b;
	uint64_t seed;
	Value *value[MAX_VALUES];
	int n;
} Program;

static int roll(Program *p, int n)
{
	p->seed = p->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (int)((p->seed >> 33) % (uint64_t)n);
}

static Value *keep(Program *p, Value *v)
{
	if (p->n == MAX_VALUES)
		ice("too many values");
	return p->value[p->n++] = v;
}

/* A value of the class; recent ones more often. */
static Value *choose(Program *p, bool is_bool)
{
	for (int tries = 0; tries < 100; tries++) {
		int back = roll(p, 2) ? MIN(p->n, 6) : p->n;
		Value *v = p->value[p->n - 1 - roll(p, back)];
		if ((v->type.dtype == DT_BOOL) == is_bool)
			return v;
	}
	return p->value[is_bool ? 1 : 0];
}

static Value *number(Program *p)
{
	return roll(p, 5) ? choose(p, false) : ir_const_float(&p->b, DT_F32, roll(p, 7) * 0.25 - 0.5);
}

static void add_op(Program *p)
{
	static const OpKind unary[] = {OP_NEG, OP_TANH, OP_SIGMOID, OP_RELU, OP_ABS, OP_SILU};
	static const OpKind binary[] = {OP_ADD, OP_MUL, OP_SUB, OP_MAX, OP_MIN};
	static const OpKind compare[] = {OP_GT, OP_LE};
	const Type full = type_tensor(DT_F32, 2, (const int64_t[]){4, 6});
	Builder *b = &p->b;
	switch (roll(p, 13)) {
	case 0: case 1: case 2: keep(p, ir_emit1(b, unary[roll(p, COUNT_OF(unary))], choose(p, false))); break;
	case 3: case 4: case 5: case 6:
		keep(p, ir_emit2(b, binary[roll(p, COUNT_OF(binary))], choose(p, false), number(p)));
		break;
	case 7: keep(p, ir_emit2(b, compare[roll(p, 2)], choose(p, false), number(p))); break;
	case 8: keep(p, ir_emit3(b, OP_WHERE, choose(p, true), choose(p, false), number(p))); break;
	case 9: keep(p, ir_broadcast(b, choose(p, false), &full)); break;
	case 10: {
		Value *x = choose(p, false);
		if (x->type.rank == 2)
			keep(p, ir_reduce(b, OP_REDUCE_SUM, x, 1, (const int64_t[]){roll(p, 2)}, true));
		break;
	}
	case 11: {
		Value *x = choose(p, false);
		if (x->type.rank)
			keep(p, ir_emit(b, OP_SOFTMAX, 1, &x, attr_int(p->m, NULL, "axis", x->type.rank - 1)));
		break;
	}
	case 12: keep(p, ir_cast(b, ir_cast(b, choose(p, false), roll(p, 2) ? DT_BF16 : DT_F16), DT_F32)); break;
	}
}

static void add_output(Program *p, Value *v)
{
	p->b.sym = ir_add_symbol(p->m, SYM_OUTPUT, "o", v->type);
	ir_emit(&p->b, OP_OUTPUT, 1, &v, NULL);
}

static Module *make_program(uint64_t seed)
{
	static const int64_t dims[][2] = {{4, 6}, {1, 6}, {4, 1}};
	Program p = {.m = ir_module_new("random"), .seed = seed};
	p.m->level = LEVEL_TRAIN;
	p.b = (Builder){.m = p.m, .section = SEC_FORWARD, .loc = loc_new(p.m, "", "", "", "")};
	for (int i = 0; i < 3; i++) {
		Symbol *s = ir_add_symbol(p.m, SYM_INPUT, "x", type_tensor(DT_F32, 2, dims[i]));
		keep(&p, ir_read(&p.b, s));
		if (i == 0)
			keep(&p, ir_emit2(&p.b, OP_GT, p.value[0], ir_const_float(&p.b, DT_F32, 0)));
	}
	for (int s = SEC_FORWARD; s <= SEC_BACKWARD; s++) {
		p.b.section = (SectionKind)s;
		for (int i = 0; i < OPS; i++)
			add_op(&p);
	}
	for (int i = 4; i < p.n; i++)
		if (!p.value[i]->n_uses || !roll(&p, 12))
			add_output(&p, p.value[i]);
	return p.m;
}

/* ---- comparing ---- */

static EvalEnv *evaluate(Module *m, Arena *a)
{
	EvalEnv *env = eval_new(m, a);
	for (int i = 0; i < m->n_symbols; i++) {
		if (m->symbols[i]->kind != SYM_INPUT)
			continue;
		EvalTensor t = eval_alloc(env, m->symbols[i]->type);
		for (int64_t k = 0; k < type_numel(&t.type); k++)
			t.f[k] = (double)((k * 7 + i * 5) % 11) * 0.25 - 1.25;
		eval_bind(env, m->symbols[i], t);
	}
	eval_section(env, SEC_FORWARD);
	eval_section(env, SEC_BACKWARD);
	return env;
}

static bool same_outputs(const Module *a, EvalEnv *ea, const Module *b, EvalEnv *eb)
{
	bool same = true;
	for (int i = 0; i < a->n_symbols; i++) {
		if (a->symbols[i]->kind != SYM_OUTPUT)
			continue;
		const EvalTensor *x = eval_symbol(ea, a->symbols[i]), *y = eval_symbol(eb, b->symbols[i]);
		same = same && x && y && !memcmp(x->f, y->f, sizeof(double) * (size_t)type_numel(&x->type));
	}
	return same;
}

/* Elements that ops outside of loops read and write. */
static int64_t traffic(const Module *m)
{
	int64_t n = 0;
	for (int s = 0; s < SEC_COUNT; s++) {
		IR_FOR_OPS(m, s, op) {
			for (int i = 0; i < op->n_in; i++)
				n += type_numel(&op_in(op, i)->type);
			for (int i = 0; i < op->n_out; i++)
				n += type_numel(&op->out[i]->type);
		}
	}
	return n;
}

static void test_random_programs(void)
{
	Options o = {.sharding.world = 1};
	int64_t before = 0, after = 0;
	for (int k = 0; k < PROGRAMS; k++) {
		Diag d = {.out = stderr};
		Arena *a = arena_new();
		Module *plain = make_program((uint64_t)k + 1), *fused = make_program((uint64_t)k + 1);
		EvalEnv *ep = evaluate(plain, a);
		bool ok = pass_fuse(fused, &o, &d) && ir_verify(fused, "fuse", &d);
		ok = ok && same_outputs(plain, ep, fused, evaluate(fused, a));
		before += traffic(plain);
		after += traffic(fused);
		if (!ok)
			UNIT_CHECK(false, arena_printf(fused->arena, "program %d: another result", k + 1));
		arena_free(a);
		ir_module_free(plain);
		ir_module_free(fused);
	}
	CU_ASSERT(after * 10 < before * 9);
}

void suite_fuse(void)
{
	CU_pSuite s = CU_add_suite("fuse", NULL, NULL);
	CU_add_test(s, "random programs give the same bits", test_random_programs);
}
