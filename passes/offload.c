/* passes/offload.c: --offload-acts: values that forward leaves to backward lie in memory of the host meanwhile.
 *
 * Requires the final order of computing, at PLAN, and runs before pass memory, which then sees shorter lives.  Ensures
 * that a chosen value is copied out as soon as it is made, that its memory is free once that copy has ended and forward
 * has read it last, and that all ops behind forward read a copy of it that was copied in again.  No other op moves.
 *
 *   choice    block: what blocks leave, but for the last one, whose values are wanted at once; block:K: what K of those
 *             leave, which lie evenly among them from the first on, so that a slow bus has the time of several blocks
 *             for each; scope: what modules that match leave.  Values of less than --offload-acts-min bytes stay.
 *   window    as many bytes as the block leaves that leaves most.  No more than that are on their way out: a copy is
 *             waited for where the next would be too much.  So it has about a block of computing to end in, and
 *             forward holds the values of one block more than it reads.  The same of copies in: each begins as soon
 *             as the window has room, in the order in which backward reads them, no sooner than the last block's
 *             backward.
 *
 * A copy begins behind all that stands in front of it, so the place where it begins is an order, not a hint: see
 * docs/ir.md.
 * Refuses programs that are not for GPUs, and a choice of modules that leave nothing. */
#include "base/near.h"
#include "passes/passes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A value that forward leaves to later sections.  Positions are those of Buffers. */
typedef struct Left {
	Value *v;
	int64_t bytes;
	int made, last;            /* the op that makes it, and the last one of forward that reads it or a view of it */
	int first;                 /* the first one behind forward that does */
	int block;                 /* the last block that makes or reads it in forward; -1: none does */
	Value *host;               /* its copy */
	Value *back;               /* what was copied in of it, on its way */
} Left;
typedef VEC(Left *) Lefts;

typedef struct Offload {
	Module *m;
	Arena *a;
	const Buffers *b;
	const Blocks *blocks;
	int n_forward;             /* number of its ops, which is the position where backward begins */
	Lefts all, chosen;
	int64_t window;
} Offload;

/* ---- what forward leaves ---- */

static int block_of(const Offload *f, const Op *op)
{
	return op->n_out ? f->blocks->of_value[op->out[0]->id] : -1;
}

static bool is_view(const Op *op)
{
	return op_info[op->kind].flags & VIEW;
}

/* Notes who reads v, a view of x or x itself. */
static void note_readers(const Offload *f, Left *x, const Value *v)
{
	for (const Use *u = v->uses; u; u = u->next) {
		bool forward = u->op->section == SEC_FORWARD;
		if (!forward)
			x->first = MIN(x->first, (int)u->op->order);
		else if (!is_view(u->op))
			x->last = MAX(x->last, (int)u->op->order);
		x->block = forward ? MAX(x->block, block_of(f, u->op)) : x->block;
		if (is_view(u->op))
			note_readers(f, x, u->op->out[0]);
	}
}

/* Whether v is all that its buffer shows, and the buffer lies in the activation arena.  What is written into a part of
 * another value is left to that value. */
static bool is_whole(const Offload *f, Value *v)
{
	int buffer = f->b->of_value[v->id];
	bool placed = buffer >= 0 && f->b->at[buffer].place.region == REGION_ACT;
	return placed && !is_view(v->op) && value_whole(v) == v && value_stack(v) == v;
}

static void find_left(Offload *f)
{
	for (int p = 0; p < f->n_forward; p++)
		for (int i = 0; i < f->b->op[p]->n_out; i++) {
			Value *v = f->b->op[p]->out[i];
			Left x = {.v = v, .made = p, .last = p, .first = f->b->n_ops, .block = block_of(f, v->op)};
			if (!is_whole(f, v))
				continue;
			x.bytes = type_bytes(&v->type);
			note_readers(f, &x, v);
			if (x.first == f->b->n_ops)
				continue;
			Left *kept = NEW(f->a, Left);
			*kept = x;
			vec_push(f->a, &f->all, kept);
		}
}

/* ---- the choice ---- */

#define ACCEPTED "none|block|block:K|scope:REGEX"
static const char scope_word[] = "scope:", some_word[] = "block:";

typedef enum OffloadKind { OFFLOAD_NONE, OFFLOAD_BLOCK, OFFLOAD_SOME, OFFLOAD_SCOPE, OFFLOAD_WRONG } OffloadKind;
typedef struct Choice {
	OffloadKind kind;
	const char *pattern;       /* of scope: */
	int64_t blocks;            /* of block:K */
} Choice;

static bool begins(const char *text, const char *word)
{
	return !strncmp(text, word, strlen(word));
}

/* A number of blocks: digits alone; 0: it is none. */
static int64_t blocks_of(const char *text)
{
	enum { DIGITS_MOST = 9 };
	size_t n = strspn(text, "0123456789");
	return text[n] || n > DIGITS_MOST ? 0 : strtoll(text, NULL, 10);
}

static Choice choice_of(const char *text)
{
	if (!text || !strcmp(text, "none"))
		return (Choice){.kind = OFFLOAD_NONE};
	if (!strcmp(text, "block"))
		return (Choice){.kind = OFFLOAD_BLOCK};
	if (begins(text, scope_word))
		return (Choice){.kind = OFFLOAD_SCOPE, .pattern = text + strlen(scope_word)};
	if (begins(text, some_word) && blocks_of(text + strlen(some_word)))
		return (Choice){.kind = OFFLOAD_SOME, .blocks = blocks_of(text + strlen(some_word))};
	return (Choice){.kind = OFFLOAD_WRONG};
}

/* Whether block i of n is one of those whose values are meant. */
static bool takes_block(const Choice *c, int64_t i, int64_t n)
{
	int64_t among = n - 1, chosen = c->kind == OFFLOAD_SOME ? c->blocks : c->kind == OFFLOAD_BLOCK ? among : 0;
	return i >= 0 && i < among && i * chosen % among < chosen;
}

bool offload_has_block(const Options *o, int block, int n)
{
	Choice c = choice_of(o->memory.offload_acts);
	return takes_block(&c, block, n);
}

/* Takes the values that the option means, of any size.  regex: that of its modules, NULL: those of blocks. */
static Lefts find_meant(const Offload *f, const Choice *c, const regex_t *regex)
{
	Lefts out = {0};
	for (int i = 0; i < f->all.n; i++) {
		Left *x = f->all.at[i];
		bool meant = regex ? pattern_matches(regex, blocks_scope(f->a, x->v->op->loc))
			: takes_block(c, x->block, f->blocks->n);
		if (meant)
			vec_push(f->a, &out, x);
	}
	return out;
}

static const char *scope_hint(const Offload *f, const char *text)
{
	VEC(const char *) scopes = {0};
	for (int i = 0; i < f->all.n; i++)
		vec_push(f->a, &scopes, blocks_scope(f->a, f->all.at[i]->v->op->loc));
	return near_pattern(f->a, text, scopes.at, scopes.n);
}

/* False after a message. */
static bool has_blocks(const Offload *f, const Choice *c, Diag *d)
{
	int among = MAX(f->blocks->n - 1, 0);
	bool ok = c->kind != OFFLOAD_SOME || !f->blocks->n || c->blocks <= among;
	if (!ok)
		diag_error(d, "--offload-acts", "block:%" PRId64 ": what the last of the model's %d repeated blocks leaves is "
			"wanted at once, so at most %d can have theirs on the host (block: all of these)", c->blocks, f->blocks->n,
			among);
	return ok;
}

/* False after a message. */
static bool choose(Offload *f, const Choice *c, int64_t least, Diag *d)
{
	regex_t regex;
	if (!has_blocks(f, c, d) || (c->pattern && !pattern_compile(&regex, c->pattern, "--offload-acts", d)))
		return false;
	Lefts meant = find_meant(f, c, c->pattern ? &regex : NULL);
	if (c->pattern)
		regfree(&regex);
	if (c->pattern && !meant.n) {
		diag_error(d, "--offload-acts", "\"%s\" matches no module of whose values backward reads any%s", c->pattern,
			scope_hint(f, c->pattern));
		return false;
	}
	for (int i = 0; i < meant.n; i++)
		if (meant.at[i]->bytes >= least)
			vec_push(f->a, &f->chosen, meant.at[i]);
	if (!c->pattern && !f->blocks->n)
		diag_warn(d, "--offload-acts", "the model has no repeated blocks: it is not used; scope:REGEX takes any "
			"modules");
	else if (!f->chosen.n)
		diag_warn(d, "--offload-acts", "none of the %d values that %s to backward has %" PRId64 " bytes "
			"(--offload-acts-min): it is not used", meant.n, c->pattern ? "these modules leave"
			: "blocks leave, but for the last one,", least);
	return true;
}

static int64_t find_window(const Offload *f)
{
	int64_t *of_block = NEW_N(f->a, int64_t, f->blocks->n + 1), most = 0;
	for (int i = 0; i < f->chosen.n; i++) {
		const Left *x = f->chosen.at[i];
		int64_t sum = x->block < 0 ? x->bytes : (of_block[x->block] += x->bytes);
		most = MAX(most, sum);
	}
	return most;
}

/* ---- places ---- */

/* The op of forward at a position; NULL: its end. */
static Op *in_forward(const Offload *f, int at)
{
	return at < f->n_forward ? f->b->op[at] : NULL;
}

/* Puts an op in front of another, behind what was put there before; NULL: at the end of forward. */
static Value *put(const Offload *f, const Value *of, Op *before, OpKind kind, Value *const *in, const char *suffix)
{
	Builder b = {.m = f->m, .section = before ? before->section : SEC_FORWARD, .before = before,
		.loc = loc_with_role(f->m, of->op->loc, "offload"),
		.name = arena_printf(f->m->arena, "%s.%s", of->name, suffix)};
	return ir_emit(&b, kind, op_info[kind].n_in_min, in, NULL);
}

/* The position behind the last op of the last block's forward; the end of forward if there are no blocks. */
static int end_of_blocks(const Offload *f)
{
	int end = f->n_forward;
	while (f->blocks->n && end > 0 && block_of(f, f->b->op[end - 1]) != f->blocks->n - 1)
		end--;
	return end ? end : f->n_forward;
}

/* The position where backward first reads what the last block leaves; the start of backward if it leaves nothing. */
static int begin_of_blocks(const Offload *f)
{
	int begin = f->b->n_ops;
	for (int i = 0; i < f->all.n && f->blocks->n; i++)
		if (f->all.at[i]->block == f->blocks->n - 1)
			begin = MIN(begin, f->all.at[i]->first);
	return begin < f->b->n_ops ? begin : f->n_forward;
}

/* Waits for the copy out, in front of position `at` or, where forward reads the value later, behind that. */
static void end_out(const Offload *f, Left *x, int at)
{
	x->host = put(f, x->v, in_forward(f, MAX(at, x->last + 1)), OP_COPIED, (Value *[]){x->host, x->v}, "host");
}

static void copy_out(const Offload *f)
{
	int64_t flying = 0;
	int oldest = 0, end = end_of_blocks(f);
	for (int i = 0; i < f->chosen.n; i++) {
		Left *x = f->chosen.at[i];
		for (; oldest < i && flying + x->bytes > f->window; oldest++) {
			end_out(f, f->chosen.at[oldest], x->made + 1);
			flying -= f->chosen.at[oldest]->bytes;
		}
		x->host = put(f, x->v, in_forward(f, x->made + 1), OP_OFFLOAD, &x->v, "out");
		flying += x->bytes;
	}
	for (; oldest < f->chosen.n; oldest++)
		end_out(f, f->chosen.at[oldest], MAX(end, f->chosen.at[oldest]->made + 1));
}

/* ---- the way back ---- */

static bool is_read_later(const Value *v)
{
	for (const Use *u = v->uses; u; u = u->next)
		if (u->op->section != SEC_FORWARD || (is_view(u->op) && u->op->kind != OP_COPIED
				&& is_read_later(u->op->out[0])))
			return true;
	return false;
}

/* Makes what reads v behind forward read `back` instead.  Views that forward made are made again, behind `back`. */
static void read_back(const Offload *f, Value *v, Value *back, Op *before)
{
	for (Use *u = v->uses, *next; u; u = next) {
		Op *op = u->op;
		next = u->next;
		if (op->section != SEC_FORWARD) {
			ir_set_in(op, (int)(u - op->in), back);
			continue;
		}
		if (!is_view(op) || op->kind == OP_COPIED || !is_read_later(op->out[0]))
			continue;
		PtrMap *map = ptrmap_new(f->a);
		ptrmap_put(map, v, back);
		Builder b = {.m = f->m, .section = before->section, .before = before,
			.loc = loc_with_role(f->m, op->loc, "offload")};
		read_back(f, op->out[0], ir_clone(&b, op, map)->out[0], before);
		if (!op_is_read(op))
			ir_remove(f->m, op);
	}
}

static int by_first(const void *x, const void *y)
{
	const Left *a = *(Left *const *)x, *b = *(Left *const *)y;
	return a->first != b->first ? a->first - b->first : a->made != b->made ? a->made - b->made
		: a->v->index - b->v->index;
}

/* Begins copies in, in front of position `at`, as far as the window has room; *ahead: bytes that have been copied, or
 * are on their way, and that no op has read. */
static int begin_in(const Offload *f, int next, int at, int64_t *ahead)
{
	for (; next < f->chosen.n && (!*ahead || *ahead + f->chosen.at[next]->bytes <= f->window); next++) {
		Left *x = f->chosen.at[next];
		x->back = put(f, x->v, f->b->op[at], OP_RELOAD, &x->host, "in");
		*ahead += x->bytes;
	}
	return next;
}

static void copy_in(Offload *f)
{
	qsort(f->chosen.at, (size_t)f->chosen.n, sizeof(*f->chosen.at), by_first);
	int64_t ahead = 0;
	int next = begin_in(f, 0, MIN(begin_of_blocks(f), f->chosen.at[0]->first), &ahead);
	for (int i = 0; i < f->chosen.n; i++) {
		Left *x = f->chosen.at[i];
		Op *reader = f->b->op[x->first];
		read_back(f, x->v, put(f, x->v, reader, OP_COPIED, (Value *[]){x->back, x->host}, "back"), reader);
		ahead -= x->bytes;
		next = begin_in(f, next, x->first, &ahead);
	}
}

/* ---- the pass ---- */

static bool check_options(const Options *o, const Choice *c, Arena *a, Diag *d)
{
	const char *text = o->memory.offload_acts;
	int before = d->errors;
	if (c->kind == OFFLOAD_WRONG && begins(text, some_word))
		diag_error(d, "--offload-acts", "\"%s\" is refused; accepted: block:K, where K is a number of blocks from 1 on",
			text);
	else if (c->kind == OFFLOAD_WRONG)
		diag_error(d, "--offload-acts", "\"%s\" is refused; accepted: " ACCEPTED "%s", text,
			near_choice(a, "--offload-acts", text, ACCEPTED));
	else if (!options_cuda(o))
		diag_error(d, "--offload-acts", "copies between a GPU and memory of its host: it wants --target=cuda");
	return d->errors == before;
}

static void apply(Offload *f, Diag *d)
{
	int64_t bytes = 0;
	for (int i = 0; i < f->chosen.n; i++)
		bytes += f->chosen.at[i]->bytes;
	f->window = find_window(f);
	copy_out(f);
	copy_in(f);
	diag_info(d, "--offload-acts", "%d values, %" PRId64 " bytes, lie in memory of the host from forward to backward, "
		"and up to %" PRId64 " bytes are on their way", f->chosen.n, bytes, f->window);
}

bool pass_offload(Module *m, const Options *o, Diag *d)
{
	if (o->memory.host_limit && !options_cuda(o))
		diag_warn(d, "--host-limit", "a program for CPUs pins no memory: it is not used");
	Choice c = choice_of(o->memory.offload_acts);
	if (c.kind == OFFLOAD_NONE) {
		if (o->given.offload_acts_min)
			diag_warn(d, "--offload-acts-min", "nothing is offloaded (--offload-acts=block): it is not used");
		return true;
	}
	Arena *a = arena_new();
	bool ok = check_options(o, &c, a, d);
	if (ok) {
		Offload f = {.m = m, .a = a, .b = buffers_find(m, false, a), .blocks = blocks_find(m, a)};
		while (f.n_forward < f.b->n_ops && f.b->op[f.n_forward]->section == SEC_FORWARD)
			f.n_forward++;
		find_left(&f);
		ok = choose(&f, &c, o->memory.offload_acts_min, d);
		if (ok && f.chosen.n)
			apply(&f, d);
	}
	arena_free(a);
	return ok;
}
