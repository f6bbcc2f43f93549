/* ir/program.c: how traces name ops, and the number by which two traces are known to be of one program. */
#include <string.h>

#include "ir/ir.h"

/* The collective or the copy that an op is about: that which it waits for, or itself. */
static const Op *moved(const Op *op)
{
	bool waits = op->kind == OP_WAIT || op->kind == OP_COPIED;
	return waits && op->n_in && op_in(op, 0) ? op_in(op, 0)->op : op;
}

const Unit *op_unit(const Op *op)
{
	const Unit *unit = moved(op)->unit;
	for (int i = 0; i < op->n_in && !unit; i++)
		unit = op_in(op, i) && op_in(op, i)->place.region == REGION_PARAM ? op_in(op, i)->place.unit : NULL;
	for (int i = 0; i < op->n_out && !unit; i++)
		unit = op->out[i]->place.region == REGION_GRAD ? op->out[i]->place.unit : NULL;
	return unit;
}

const char *op_title(const Op *op, Arena *a)
{
	const Op *of = moved(op);
	const char *text = op_info[of->kind].text;
	if (of->unit)
		return arena_printf(a, "%s @%s", text, of->unit->name);
	return of->n_out && !(op_info[of->kind].flags & COMM) ? arena_printf(a, "%s %%%s", text, of->out[0]->name) : text;
}

static uint64_t hash_text(const char *s, uint64_t h)
{
	return hash_bytes(s, strlen(s) + 1, h);
}

/* Dtype and shape; sizes of flats and shards depend on the ranks, of which a program may run any number. */
static uint64_t hash_type(const Type *t, uint64_t h)
{
	int64_t words[2 + IR_MAX_RANK] = {t->kind, t->dtype};
	int n = t->kind == TYPE_TENSOR ? t->rank : 0;
	memcpy(words + 2, t->dim, (size_t)n * sizeof(*words));
	return hash_bytes(words, (size_t)(2 + n) * sizeof(*words), h);
}

static uint64_t hash_module(const Module *m, uint64_t h)
{
	for (int s = SEC_FORWARD; s <= SEC_EVAL; s++) {
		h = hash_text(section_text[s], h);
		IR_FOR_OPS(m, s, op) {
			h = hash_text(op_info[op->kind].text, h);
			h = op->unit ? hash_text(op->unit->name, h) : h;
			for (int i = 0; i < op->n_out; i++)
				h = hash_type(&op->out[i]->type, hash_text(op->out[i]->name, h));
		}
	}
	return h;
}

uint64_t ir_program_hash(const Sizes *program)
{
	uint64_t h = 1;
	for (int k = 0; k < program->n; k++) {
		h = program->name[k] ? hash_text(program->name[k], h) : h;
		for (int v = 0; v < VARIANT_COUNT; v++)
			h = program->of[k].of[v] ? hash_module(program->of[k].of[v], h) : h;
	}
	return h;
}
