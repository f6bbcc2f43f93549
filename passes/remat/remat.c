/* passes/remat/remat.c: --remat: makes backward recompute what forward computed: all inside of repeated blocks, or what
 * a policy chooses of the whole model.
 *
 * Requires TRAIN, after cse (which would merge the copies back) and before shard (so that parameters which a
 * recomputation reads are gathered again).  Ensures that of the chosen values of a block (--remat=block: all) only
 * those live into backward that other parts of the forward read as well: the inputs of blocks.  Chosen values that
 * backward reads are recomputed: clones of the ops of a block that are needed for them stand in front of the first op
 * of backward that reads any of them, and the clone of an op outside of blocks in front of the first that needs its
 * result; norms, whose results are read again at the end of a block's backward, are made once more there.  A clone of a
 * random op draws the same numbers, so masks are equal.
 * Refuses a policy that does not fit the model.  Where nothing is to be recomputed it changes nothing and says so. */
#include "passes/remat/remat.h"

#include <string.h>

#include "base/near.h"

enum { NO_BLOCK = -1 };

static int block_of(const Remat *r, const Value *v)
{
	return v && v->op->section == SEC_FORWARD ? r->blocks->of_value[v->id] : NO_BLOCK;
}

static int block_of_op(const Remat *r, const Op *op)
{
	return op->n_out ? block_of(r, op->out[0]) : NO_BLOCK;
}

/* Marks values of blocks that an op in another part of the forward reads, which live anyway; and results and operands
 * of ops with an effect, which must not have it twice. */
static void find_kept(Remat *r)
{
	IR_FOR_OPS(r->m, SEC_FORWARD, op) {
		for (int i = 0; i < op->n_in; i++) {
			Value *v = op_in(op, i);
			bool other = v && block_of(r, v) != NO_BLOCK && block_of_op(r, op) != block_of(r, v);
			if (v && (other || op_has_effect(op)))
				r->kept[v->id] = true;
		}
		for (int i = 0; i < op->n_out; i++)
			if (op_has_effect(op))
				r->kept[op->out[i]->id] = true;
	}
}

static void find_fixed(Remat *r)
{
	IR_FOR_OPS(r->m, SEC_FORWARD, op) {
		bool fixed = op->n_in || op->kind == OP_PARAM || op->kind == OP_CONST;
		for (int i = 0; i < op->n_in; i++)
			fixed = fixed && (!op_in(op, i) || r->fixed[op_in(op, i)->id]);
		for (int i = 0; i < op->n_out; i++)
			r->fixed[op->out[i]->id] = fixed;
	}
}

Remat *remat_begin(Module *m, Arena *a)
{
	Remat *r = NEW(a, Remat);
	*r = (Remat){.m = m, .a = a, .blocks = blocks_find(m, a), .kept = NEW_N(a, bool, m->n_values),
		.fixed = NEW_N(a, bool, m->n_values), .chosen = NEW_N(a, bool, m->n_values),
		.wanted = NEW_N(a, bool, m->n_values)};
	r->before = NEW_N(a, Op *, r->blocks->n);
	r->first = NEW_N(a, Op *, m->n_values);
	ir_number(m);
	find_kept(r);
	find_fixed(r);
	return r;
}

bool remat_is_inner(const Remat *r, const Value *v)
{
	return block_of(r, v) != NO_BLOCK && !r->kept[v->id];
}

bool remat_may(const Remat *r, const Value *v)
{
	bool computed = v && v->op->section == SEC_FORWARD && !(op_info[v->op->kind].flags & SRC);
	return computed && v->type.kind == TYPE_TENSOR && !r->kept[v->id];
}

bool remat_is_open(const Remat *r, const Value *v)
{
	return r->blocks->n ? remat_is_inner(r, v) : remat_may(r, v);
}

bool remat_is_recomputed(const Remat *r, const Value *v)
{
	return remat_may(r, v) && r->chosen[v->id];
}

static bool want(Remat *r, const Value *v)
{
	return remat_is_recomputed(r, v) && (r->wanted[v->id] = true);
}

static bool is_wanted(const Remat *r, const Op *op)
{
	for (int i = 0; i < op->n_out; i++)
		if (r->wanted[op->out[i]->id])
			return true;
	return false;
}

/* Has the value, which op or its clone reads, ready in front of `at`, an op of backward. */
static void want_before(Remat *r, const Value *v, Op *at)
{
	if (!want(r, v))
		return;
	int block = block_of(r, v);
	Op **first = block == NO_BLOCK ? &r->first[v->id] : &r->before[block];
	*first = *first && (*first)->order <= at->order ? *first : at;
}

/* The op of backward in front of which the clone of op stands. */
static Op *place_of(const Remat *r, const Op *op)
{
	int block = block_of_op(r, op);
	Op *first = block == NO_BLOCK ? NULL : r->before[block];
	for (int i = 0; i < op->n_out && block == NO_BLOCK; i++) {
		Op *at = r->wanted[op->out[i]->id] ? r->first[op->out[i]->id] : NULL;
		first = at && (!first || at->order < first->order) ? at : first;
	}
	return first;
}

/* Marks the values that backward reads and then, from the last op to the first, the values that their ops read.  No
 * value that may be recomputed is read by another block, so the place of a block is known when its ops are reached. */
void remat_find_wanted(Remat *r)
{
	memset(r->wanted, 0, sizeof(*r->wanted) * (size_t)r->m->n_values);
	memset(r->first, 0, sizeof(*r->first) * (size_t)r->m->n_values);
	for (int k = 0; k < r->blocks->n; k++)
		r->before[k] = NULL;
	IR_FOR_OPS(r->m, SEC_BACKWARD, op)
		for (int i = 0; i < op->n_in; i++)
			want_before(r, op_in(op, i), op);
	for (Op *op = r->m->last[SEC_FORWARD]; op; op = op->prev)
		for (int i = 0; i < op->n_in && is_wanted(r, op); i++)
			want_before(r, op_in(op, i), place_of(r, op));
}

/* Clones the wanted ops, in forward order where they stand in front of the same op of backward; so what a clone reads
 * is made before it.  again: gets the clones. */
static int recompute(Remat *r, PtrMap *clones, PtrMap *again)
{
	int n = 0;
	IR_FOR_OPS(r->m, SEC_FORWARD, op) {
		if (!is_wanted(r, op))
			continue;
		Builder b = {.m = r->m, .section = SEC_BACKWARD, .before = place_of(r, op),
			.loc = loc_with_role(r->m, op->loc, "remat")};
		Op *clone = ir_clone(&b, op, clones);
		ptrmap_put(again, clone, clone);
		/* some results may be kept while others are recomputed; kept ones are read as they are */
		for (int i = 0; i < op->n_out; i++)
			if (!remat_is_recomputed(r, op->out[i]))
				ptrmap_put(clones, op->out[i], op->out[i]);
		n++;
	}
	return n;
}

static void use_clones(const Remat *r, const PtrMap *clones, SectionKind s)
{
	IR_FOR_OPS(r->m, s, op) {
		for (int i = 0; i < op->n_in; i++) {
			Value *v = op_in(op, i);
			Value *now = v && remat_is_recomputed(r, v) ? ptrmap_get(clones, v) : NULL;
			if (now)
				ir_set_in(op, i, now);
		}
	}
}

/* ---- norms, which cost little ---- */

static bool is_remat_norm(const Op *op, const PtrMap *again)
{
	return (op->kind == OP_LAYER_NORM || op->kind == OP_RMS_NORM) && ptrmap_get(again, op);
}

/* The first op of backward itself that reads what a clone made; NULL: only clones read it, or only backward does. */
static Op *late_reader(const Value *v, const PtrMap *again)
{
	Op *first = NULL;
	bool early = false;
	for (const Use *u = v->uses; u; u = u->next) {
		if (ptrmap_get(again, u->op))
			early = true;
		else if (!first || u->op->order < first->order)
			first = u->op;
	}
	return early ? first : NULL;
}

/* Between the clones, which read a norm's result first, and the gradients of what reads it lies all of the block's
 * backward behind it: there the norm is made once more, rather than its result kept. */
static void split_norms(Module *m, const PtrMap *again)
{
	Arena *a = arena_new();
	ir_number(m);
	IR_FOR_OPS(m, SEC_BACKWARD, op) {
		Op *reader = is_remat_norm(op, again) ? late_reader(op->out[0], again) : NULL;
		if (!reader)
			continue;
		Builder b = {.m = m, .section = SEC_BACKWARD, .before = reader, .loc = op->loc};
		Value *now = ir_clone(&b, op, ptrmap_new(a))->out[0];
		for (Use *u = op->out[0]->uses, *next; u; u = next) {
			next = u->next;
			if (!ptrmap_get(again, u->op))
				ir_set_in(u->op, (int)(u - u->op->in), now);
		}
	}
	arena_free(a);
}

/* ---- the pass ---- */

bool remat_is_file(const char *text)
{
	size_t n = strlen(text);
	return n > 5 && !strcmp(text + n - 5, ".json");
}

RematMode remat_mode(const char *text)
{
	if (!text || !strcmp(text, "none"))
		return REMAT_NONE;
	if (!strcmp(text, "block"))
		return REMAT_BLOCK;
	if (!strcmp(text, "auto"))
		return REMAT_AUTO;
	return *text == '{' || remat_is_file(text) ? REMAT_POLICY : REMAT_WRONG;
}

static bool choose(Remat *r, const char *text, Diag *d)
{
	RematMode mode = remat_mode(text);
	if (mode == REMAT_POLICY)
		return remat_policy(r, text, d);
	if (mode == REMAT_WRONG)
		diag_error(d, "--remat", "\"%s\" is refused; accepted: none|block|auto|FILE.json%s", text,
			near_choice(r->a, "--remat", text, "none|block|auto"));
	else if (mode == REMAT_AUTO)
		diag_error(d, "--remat", "auto plans the whole program: leave out --passes and --stop-after, or give the file "
			"that --remat-out wrote");
	IR_FOR_OPS(r->m, SEC_FORWARD, op)
		for (int i = 0; i < op->n_out && mode == REMAT_BLOCK; i++)
			r->chosen[op->out[i]->id] = remat_is_inner(r, op->out[i]);
	return mode == REMAT_BLOCK;
}

static void apply(Remat *r, Diag *d)
{
	PtrMap *clones = ptrmap_new(r->a), *again = ptrmap_new(r->a);
	remat_find_wanted(r);
	int n = recompute(r, clones, again);
	use_clones(r, clones, SEC_BACKWARD);
	split_norms(r->m, again);
	if (n)
		diag_info(d, "--remat", "%s%s recomputed in backward",
			r->blocks->n ? arena_printf(r->a, "%s, ", str_count(r->a, r->blocks->n, "block")) : "",
			n == 1 ? "1 op is" : arena_printf(r->a, "%d ops are", n));
	else
		diag_warn(d, "--remat", "%s found, and nothing is to be recomputed: it is not used", r->blocks->n == 1
			? "1 repeated block was" : arena_printf(r->a, "%d repeated blocks were", r->blocks->n));
}

bool pass_remat(Module *m, const Options *o, Diag *d)
{
	if (remat_mode(o->memory.remat) == REMAT_NONE)
		return true;
	Arena *a = arena_new();
	Remat *r = remat_begin(m, a);
	bool ok = choose(r, o->memory.remat, d);
	if (ok)
		apply(r, d);
	arena_free(a);
	return ok;
}
