/* runtime/exec/check.c: --check-nan: finds the first value of a step that is not finite and reports it in the model's
 * terms.
 *
 * A NaN is always wrong.  An infinity is wrong where all operands were finite: masks are made of -inf, so an infinity
 * computed from one is no error; neither is the -inf that attention returns for a row that sees no key.
 *
 * The compiler emits one call after each op with a float result, and a table that describes the op and names the checks
 * of its operands; the calls remember which results had an infinity. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "runtime/exec/private.h"

void check_begin(Rt *rt)
{
	Check *c = &rt->p->check;
	int n = rt->model->n_checks;
	if (n && !c->inf)
		c->inf = NEW_N(rt->p->arena, bool, n);
	if (n)
		memset(c->inf, 0, (size_t)n * sizeof(*c->inf));
	c->found = false;
}

static void put_index(Buf *b, int rank, const int64_t *dim, int64_t i)
{
	int64_t at[8];
	for (int k = rank; k-- > 0; i /= dim[k])
		at[k] = i % dim[k];
	buf_printf(b, "[");
	for (int k = 0; k < rank; k++)
		buf_printf(b, k ? ",%" PRId64 : "%" PRId64, at[k]);
	buf_printf(b, "]");
}

static void found(Rt *rt, const char *kind, int rank, const int64_t *dim, int64_t i, const char *what)
{
	Check *c = &rt->p->check;
	Buf b = {0};
	buf_printf(&b, "the first is %s in element ", kind);
	put_index(&b, rank, dim, i);
	buf_printf(&b, " of %s", what);
	snprintf(c->text, sizeof(c->text), "%s", b.at);
	buf_free(&b);
	c->found = true;
}

void rt_check(Rt *rt, int number, const void *x)
{
	const RtCheck *row = &rt->model->checks[number];
	Check *c = &rt->p->check;
	int64_t n = 1, nan, inf;
	if (c->found)
		return;
	for (int k = 0; k < row->rank; k++)
		n *= row->dim[k];
	step_not_finite(rt, x, n, row->dtype, &nan, &inf);
	c->inf[number] = inf >= 0;
	bool given = false;
	for (int k = 0; k < row->n_from; k++)
		given = given || row->from[k] < 0 || c->inf[row->from[k]];
	if (nan >= 0)
		found(rt, "NaN", row->rank, row->dim, nan, row->what);
	else if (inf >= 0 && !given)
		found(rt, "an infinity", row->rank, row->dim, inf, row->what);
}

/* The trainable parameter of a segment, numbered as in optim.c. */
static const RtTensor *tensor_of(const RtModel *m, int unit, int number)
{
	for (int i = 0; i < m->n_tensors; i++)
		if (m->tensors[i].kind == RT_PARAM && m->tensors[i].unit == unit && number-- == 0)
			return &m->tensors[i];
	ice("unit %d has no such parameter", unit);
}

static void check_flat(Rt *rt, int unit, int f, const LayoutRank *who)
{
	const LayoutUnit *u = &rt->model->layout.unit[unit];
	const SegmentList *list = &rt->p->optim.mine[unit][f];
	DType type = layout_update_dtype(u, f, who);
	for (int64_t k = 0; k < list->n && !rt->p->check.found; k++) {
		const Segment *s = &list->at[k];
		int64_t nan, inf;
		const char *g = rt->grad_shard[unit][f];
		step_not_finite(rt, g + s->begin * dtype_info[type].bytes, s->length, type, &nan, &inf);
		if (nan < 0 && inf < 0)
			continue;
		const RtTensor *t = tensor_of(rt->model, unit, s->tensor);
		char what[300];
		int64_t i = layout_range(u, f, who).begin + s->begin - t->offset + (nan < 0 ? inf : nan);
		snprintf(what, sizeof(what), "the gradient of parameter \"%s\", summed over ranks", t->name);
		found(rt, nan < 0 ? "an infinity" : "NaN", t->rank, t->dim, i, what);
	}
}

void rt_check_gradient(Rt *rt, int unit)
{
	const LayoutUnit *u = &rt->model->layout.unit[unit];
	LayoutRank who = device_rank(rt);
	for (int f = 0; f < u->n_flats; f++)
		if (u->flat[f].trainable && rt->grad_shard[unit][f])
			check_flat(rt, unit, f, &who);
}

void check_say(const Rt *rt, Diag *d)
{
	const Check *c = &rt->p->check;
	if (c->found && !rt->p->result.overflow)
		diag_error(d, rt->p->options->program, "step %" PRId64 ", rank %d: %s", rt->p->progress.step + 1,
			rt->p->world.rank, c->text);
}
