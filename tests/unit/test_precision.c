/* tests/unit/test_precision.c: a 16-bit program computes what the f32 one does, up to 16-bit roundings.
 *
 * The module of a golden file goes through the passes up to `cse`, once in f32 and once with --param-dtype, and both
 * are run by the reference evaluator on the same numbers: their losses and gradients must be close, and not equal.  The
 * dtypes of each flat, by strategy and options, are compared with the table of docs/precision.md. */
#include "passes/passes.h"
#include "tests/unit/unit.h"

#include <math.h>
#include <string.h>

static const char passes[] = "precision,loss,autodiff,optimizer,expand,legalize,cse,dce,fuse";

static const char *input_text(Arena *a, const char *path)
{
	Diag d = {.out = stderr};
	char *text = diag_read_file(&d, path, a);
	CU_ASSERT_PTR_NOT_NULL_FATAL(text);
	char *end = strstr(text, "# expect");
	if (end)
		*end = 0;
	return text;
}

static Module *build(Arena *a, const char *path, const char *names, Options o)
{
	Diag d = {.out = fopen("/dev/null", "w")};
	PipelineView view = {.out = stdout};
	CU_ASSERT_PTR_NOT_NULL_FATAL(d.out);
	o.graph.loss = "mse";
	o.sharding.world = MAX(o.sharding.world, 1);
	Module *m = ir_parse(path, input_text(a, path), &d);
	CU_ASSERT_FATAL(m && pipeline_run(m, &o, &view, names, &d));
	fclose(d.out);
	return m;
}

static EvalEnv *run_step(Module *m, Arena *a)
{
	EvalEnv *e = eval_new(m, a);
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		if (s->kind != SYM_INPUT && s->kind != SYM_PARAM)
			continue;
		EvalTensor t = eval_alloc(e, s->type);
		for (int64_t k = 0; k < type_numel(&s->type); k++) {
			uint64_t h = hash_bytes(s->name, strlen(s->name), (uint64_t)k);
			t.f[k] = (double)(h >> 11) / (double)(1ull << 52) - 1;
		}
		eval_bind(e, s, t);
	}
	for (int s = SEC_FORWARD; s <= SEC_BACKWARD; s++)
		eval_section(e, (SectionKind)s);
	return e;
}

static const EvalTensor *gradient(const Module *m, EvalEnv *e, const char *name)
{
	IR_FOR_OPS(m, SEC_UPDATE, op)
		if (op->kind == OP_UPDATE && !strcmp(op->sym->name, name))
			return eval_value(e, op_in(op, 0));
	return NULL;
}

/* Every gradient differs by rounding, and by no more. */
static void check_close(Arena *a, const char *path, Options o, double bound)
{
	Module *want = build(a, path, passes, (Options){0}), *got = build(a, path, passes, o);
	EvalEnv *x = run_step(want, a), *y = run_step(got, a);
	int n = 0;
	for (int i = 0; i < want->n_symbols; i++) {
		const char *name = want->symbols[i]->name;
		const EvalTensor *p = gradient(want, x, name), *q = gradient(got, y, name);
		if (!p)
			continue;
		CU_ASSERT_PTR_NOT_NULL_FATAL(q);
		double diff = 0, norm = 0;
		for (int64_t k = 0; k < type_numel(&p->type); k++) {
			diff += (p->f[k] - q->f[k]) * (p->f[k] - q->f[k]);
			norm += p->f[k] * p->f[k];
		}
		double error = sqrt(diff / norm);
		if (!(error > 0 && error < bound))
			UNIT_CHECK(false, arena_printf(a, "%s: gradient of \"%s\" differs by %g", path, name, error));
		n++;
	}
	CU_ASSERT(n > 0);
	ir_module_free(want);
	ir_module_free(got);
}

#define TWO_USES "tests/ir/precision/casts_for_each_use.ir"
#define BATCH_NORM "tests/ir/precision/batch_norm_stays_f32.ir"

static void test_gradients(void)
{
	Arena *a = arena_new();
	check_close(a, TWO_USES, (Options){.precision.param_dtype = DT_BF16}, 1e-2);
	check_close(a, TWO_USES, (Options){.precision.param_dtype = DT_F16}, 2e-3);
	check_close(a, TWO_USES, (Options){.precision.reduce_dtype = DT_BF16}, 4e-3);
	check_close(a, TWO_USES, (Options){.precision = {.param_dtype = DT_F16, .reduce_dtype = DT_BF16}}, 5e-3);
	check_close(a, TWO_USES, (Options){.precision = {.param_dtype = DT_F16, .loss_scale = "dynamic"}}, 2e-3);
	check_close(a, BATCH_NORM, (Options){.precision.param_dtype = DT_BF16}, 4e-2);
	check_close(a, BATCH_NORM, (Options){.precision.param_dtype = DT_F16}, 5e-3);
	arena_free(a);
}

/* ---- flats ---- */

static bool is_flat(const Flat *f, DType dtype, DType param, DType grad, DType reduce, DType kept, DType bcast,
	bool master)
{
	return f->dtype == dtype && f->param == param && f->grad == grad && f->reduce == reduce && f->kept == kept
		&& f->bcast == bcast && f->master == master;
}

static Module *sharded(Arena *a, const char *path, Strategy strategy, Options o)
{
	o.sharding.strategy = strategy;
	o.sharding.wrap = (OptionList){{"none"}, 1};
	return build(a, path, arena_printf(a, "%s,units,shard", passes), o);
}

static void test_flats(void)
{
	Arena *a = arena_new();
	Options half = {.precision.param_dtype = DT_BF16};
	Options sent = {.precision.bcast_dtype = DT_BF16, .given.bcast_dtype = true};
	Options low = {.precision = {.param_dtype = DT_BF16, .reduce_dtype = DT_BF16}}, sums = low;
	low.precision.keep_low_precision_grads = true;
	sums.graph.accum = ACCUM_MANY;
	static const Strategy gathered[] = {STRATEGY_FULL_SHARD, STRATEGY_SHARD_GRAD_OP, STRATEGY_HYBRID_SHARD,
		STRATEGY_NO_SHARD};
	for (int i = 0; i < COUNT_OF(gathered); i++) {
		Module *m = sharded(a, TWO_USES, gathered[i], half);
		CU_ASSERT(is_flat(&m->units[0]->flat[0], DT_F32, DT_BF16, DT_F32, DT_F32, DT_F32, DT_F32, false));
		CU_ASSERT(!unit_is_resident(m->units[0]));
		m = sharded(a, TWO_USES, gathered[i], low);
		const Flat *f = &m->units[0]->flat[0];
		CU_ASSERT(f->grad == DT_BF16 && f->reduce == DT_BF16 && f->kept == DT_BF16);
		m = sharded(a, TWO_USES, gathered[i], sums);
		f = &m->units[0]->flat[0];
		CU_ASSERT(f->grad == DT_F32 && f->reduce == DT_BF16 && f->kept == DT_F32);
	}
	static const Strategy owned[] = {STRATEGY_OSS, STRATEGY_SHARDED_DDP};
	for (int i = 0; i < COUNT_OF(owned); i++) {
		Module *m = sharded(a, TWO_USES, owned[i], half);
		CU_ASSERT(is_flat(&m->units[0]->flat[0], DT_BF16, DT_BF16, DT_F32, DT_F32, DT_F32, DT_BF16, true));
		CU_ASSERT(unit_is_resident(m->units[0]));
		m = sharded(a, TWO_USES, owned[i], sent);
		CU_ASSERT(is_flat(&m->units[0]->flat[0], DT_F32, DT_F32, DT_F32, DT_F32, DT_F32, DT_BF16, true));
	}
	Module *m = sharded(a, BATCH_NORM, STRATEGY_OSS, half);
	CU_ASSERT_EQUAL_FATAL(m->units[0]->n_flats, 2);
	CU_ASSERT(is_flat(&m->units[0]->flat[0], DT_F32, DT_F32, DT_F32, DT_F32, DT_F32, DT_F32, false));
	CU_ASSERT(is_flat(&m->units[0]->flat[1], DT_BF16, DT_BF16, DT_F32, DT_F32, DT_F32, DT_BF16, true));
	m = sharded(a, BATCH_NORM, STRATEGY_FULL_SHARD, low);
	CU_ASSERT_EQUAL_FATAL(m->units[0]->n_flats, 2);
	CU_ASSERT(m->units[0]->flat[0].param == DT_F32 && m->units[0]->flat[0].kept == DT_F32);
	CU_ASSERT(m->units[0]->flat[1].param == DT_BF16 && m->units[0]->flat[1].kept == DT_BF16);
	arena_free(a);
}

static void test_loss_scale(void)
{
	Diag quiet = {.out = fopen("/dev/null", "w")};
	LossScale s;
	CU_ASSERT_PTR_NOT_NULL_FATAL(quiet.out);
	CU_ASSERT(loss_scale_parse(NULL, &s, &quiet) && s.kind == LOSS_SCALE_NONE && s.value == 1);
	CU_ASSERT(loss_scale_parse("none", &s, &quiet) && s.kind == LOSS_SCALE_NONE);
	CU_ASSERT(loss_scale_parse("1024", &s, &quiet) && s.kind == LOSS_SCALE_FIXED && s.value == 1024);
	CU_ASSERT(loss_scale_parse("dynamic", &s, &quiet) && s.kind == LOSS_SCALE_DYNAMIC && s.value == 65536
		&& s.growth_interval == 2000);
	CU_ASSERT(loss_scale_parse("dynamic:growth_interval=3,init=8", &s, &quiet) && s.value == 8
		&& s.growth_interval == 3);
	static const char *const wrong[] = {"", "0", "-2", "inf", "nan", "1e99", "1e-99", "2x", "dynamics", "dynamic:init",
		"dynamic:init=0", "dynamic:growth_interval=0", "dynamic:growth_interval=2.5", "dynamic:backoff=2"};
	for (int i = 0; i < COUNT_OF(wrong); i++)
		CU_ASSERT_FALSE(loss_scale_parse(wrong[i], &s, &quiet));
	fclose(quiet.out);
}

void suite_precision(void)
{
	CU_pSuite s = CU_add_suite("precision", NULL, NULL);
	CU_add_test(s, "16-bit gradients are close to f32 ones", test_gradients);
	CU_add_test(s, "dtypes of flats by strategy", test_flats);
	CU_add_test(s, "--loss-scale is read", test_loss_scale);
}
