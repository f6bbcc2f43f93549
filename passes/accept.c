/* passes/accept.c: whether the declarations of a PLAN that was read can be those of a program.
 *
 * The frontend and the passes make them right; a text may say anything, and emitted programs believe what they are
 * made of: how many samples a row of an input holds, where a file has a tensor, which rank updates a unit. */
#include "passes/passes.h"

#include <inttypes.h>

static void check_input(const Module *m, const Symbol *s, Diag *d)
{
	if (s->kind == SYM_INPUT && s->batched && (m->batch <= 0 || !s->type.rank || s->type.dim[0] != m->batch))
		diag_error(d, ir_where(m, s->at), "input \"%s\" %s is read by sample, and the module says batch=%" PRId64
			": the first dimension must be that", s->name, type_str(m->arena, &s->type), m->batch);
}

/* Whether perm turns the file's dimensions into the symbol's. */
static bool is_permuted(const Symbol *s)
{
	const Source *f = &s->src;
	bool taken[IR_MAX_RANK] = {false};
	for (int i = 0; i < f->rank; i++) {
		int from = f->perm[i];
		if (from < 0 || from >= f->rank || taken[from] || f->dim[from] != s->type.dim[i])
			return false;
		taken[from] = true;
	}
	return true;
}

static void check_source(const Module *m, const Symbol *s, Diag *d)
{
	const Source *f = &s->src;
	if (!f->file)
		return;
	if (f->offset < 0 || f->bytes < 0)
		diag_error(d, ir_where(m, s->at), "\"%s\": offset=%" PRId64 " and bytes=%" PRId64 " are no place in \"%s\"",
			s->name, f->offset, f->bytes, f->file);
	else if (f->rank == s->type.rank && !is_permuted(s))
		diag_error(d, ir_where(m, s->at), "\"%s\" %s: dims and perm say that \"%s\" holds another shape", s->name,
			type_str(m->arena, &s->type), f->file);
}

/* States of units start as zeros of f32, whatever a text says: programs read no contents for them. */
static void check_state(const Module *m, const Symbol *s, Diag *d)
{
	const Source *f = &s->src;
	if (s->kind == SYM_STATE && s->unit && (f->file || f->init || f->fill < 0 || f->fill > 0 || f->fill != f->fill))
		diag_error(d, ir_where(m, s->at), "state \"%s\" of unit %s starts as zeros: fill, file and init are not "
			"for it", s->name, s->unit->name);
}

/* Checks what the regular expressions of --param-group are checked for. */
static bool check_groups(const Module *m, Diag *d)
{
	bool ok = true;
	for (int i = 0; m->train && i < m->train->n_groups; i++)
		ok = pattern_check(m->train->group[i].regex, ir_where(m, m->train->at), d) && ok;
	return ok;
}

/* The input that a loss reads as its labels, possibly in another dtype; NULL: the program computes the labels. */
static const Symbol *labels_of(const Op *loss)
{
	const Op *op = value_root(op_in(loss, 1))->op;
	while (op->kind == OP_CAST || op->kind == OP_TRANSPOSE)
		op = value_root(op_in(op, 0))->op;
	return op->kind == OP_INPUT ? op->sym : NULL;
}

/* A program whose loss shifts gets its tokens as labels: one that reads its labels as they are would learn to repeat
 * them. */
static void check_shift(const Module *m, Diag *d)
{
	const Symbol *labels = NULL;
	IR_FOR_OPS(m, SEC_FORWARD, op) {
		const Symbol *read = op->kind == OP_CROSS_ENTROPY ? labels_of(op) : NULL;
		if (op->kind == OP_CROSS_ENTROPY && !read)
			return;
		labels = read ? read : labels;
	}
	if (m->train && m->train->shift && labels)
		diag_error(d, ir_where(m, m->train->at), "shift=1: the loss reads its labels from input \"%s\" as they are, "
			"and shift says that it moves them by one position; remove shift=1", labels->name);
}

static void check_owner(const Module *m, const Unit *u, Diag *d)
{
	if (!strategy_info[u->strategy].owned && u->owner >= 0)
		diag_error(d, ir_where(m, u->at), "unit %s has owner=%d, and units of %s have none", u->name, u->owner,
			strategy_info[u->strategy].text);
	else if (strategy_info[u->strategy].owned && (u->owner < 0 || u->owner >= m->world))
		diag_error(d, ir_where(m, u->at), "unit %s has owner=%d, which is no rank of world=%d: nobody would update "
			"it", u->name, u->owner, (int)m->world);
}

/* Only a GPU has memory of a host apart from its own. */
static void check_copies(const Module *m, Diag *d)
{
	for (int s = SEC_FORWARD; s <= SEC_UPDATE && !ir_train(m)->cuda; s++)
		IR_FOR_OPS(m, s, op)
			if (op->kind == OP_OFFLOAD) {
				diag_error(d, ir_where(m, op->at), "offload copies from a GPU to memory of its host, and the memory is "
					"planned for --target=cpu");
				return;
			}
}

bool accept_declarations(const Module *m, Diag *d)
{
	int before = d->errors;
	check_copies(m, d);
	for (int i = 0; i < m->n_symbols; i++) {
		check_input(m, m->symbols[i], d);
		check_source(m, m->symbols[i], d);
		check_state(m, m->symbols[i], d);
	}
	for (int i = 0; i < m->n_units; i++)
		check_owner(m, m->units[i], d);
	check_shift(m, d);
	return check_groups(m, d) && d->errors == before;
}
