/* ir/op.c: the table of ops, the words of the IR's enums, and what an op or a unit by itself tells. */
#include "ir/ir.h"

#include <string.h>

const OpInfo op_info[OP_COUNT] = {
#define M LEVEL_MODEL
#define T LEVEL_TRAIN
#define S LEVEL_SHARD
#define P LEVEL_PLAN
#define OP(id, text, imin, imax, out, flags, first, last, attrs, shape, grad, eval, lower, cost, doc) \
	[OP_##id] = {text, imin, imax, out, flags, first, last, attrs, doc},
#include "ir/ops.def"
};

const char *const symbol_kind_text[SYM_COUNT] = {"input", "output", "param", "buffer", "data", "state", "scale"};
const char *const region_text[REGION_COUNT] = {"", "act", "input", "param", "grad", "state", "host"};
const char *const level_text[LEVEL_COUNT] = {"MODEL", "TRAIN", "SHARD", "PLAN"};
const char *const variant_text[VARIANT_COUNT] = {"only", "first", "middle", "last"};
const char *const sync_text[SYNC_COUNT] = {"none", "last", "every"};
const char *const section_text[SEC_COUNT] = {"forward", "backward", "update", "eval"};

static const OpKind op_of[RT_COLLECTIVE_KINDS] = {
#define COLLECTIVE(id, op, ...) OP_##op,
#include "base/collectives.def"
};

RtCollectiveKind op_collective(const Op *op)
{
	bool shard = op->n_in && op_in(op, 0) && op_in(op, 0)->type.kind == TYPE_SHARD;
	for (int k = 0; k < RT_COLLECTIVE_KINDS; k++)
		if (op_of[k] == op->kind && (collective_info[k].act == ACT_COMPLETE) == shard)
			return (RtCollectiveKind)k;
	ice("%s is a collective that no table knows", op_info[op->kind].text);
}

/* The first row of collectives.def that has this op; NULL: the op is no collective. */
static const CollectiveInfo *row_of(OpKind kind)
{
	for (int k = 0; k < RT_COLLECTIVE_KINDS; k++)
		if (op_of[k] == kind)
			return &collective_info[k];
	return NULL;
}

RtStream op_stream(OpKind kind)
{
	const CollectiveInfo *row = row_of(kind);
	return row ? row->stream : RT_STREAMS;
}

bool op_reduces(OpKind kind)
{
	const CollectiveInfo *row = row_of(kind);
	return row && row->act == ACT_REDUCE;
}

bool op_blocks(OpKind kind)
{
	return op_stream(kind) == RT_STREAM_SYNC;
}

bool op_from_text(const char *text, OpKind *out)
{
	for (int k = 0; k < OP_COUNT; k++) {
		if (op_info[k].text[0] == text[0] && !strcmp(op_info[k].text, text)) {
			*out = (OpKind)k;
			return true;
		}
	}
	return false;
}

bool op_has_effect(const Op *op)
{
	return op_info[op->kind].flags & EFFECT;
}

bool op_is_read(const Op *op)
{
	for (int i = 0; i < op->n_out; i++)
		if (op->out[i]->n_uses)
			return true;
	return false;
}

bool op_is_param_cast(const Op *op)
{
	if (op->kind != OP_CAST || op_in(op, 0)->op->kind != OP_PARAM || op->parent)
		return false;
	DType from = op_in(op, 0)->type.dtype, to = op->out[0]->type.dtype;
	return from == DT_F32 && dtype_is_half(to);
}

bool op_reads_heads(const Op *op, int i)
{
	int q = op->kind == OP_ATTENTION ? 0 : op->kind == OP_ATTENTION_GRAD ? 1 : i + 1;
	return i >= q && i < q + 3 && attr_get_int(op->attrs, "layout", 0);
}

bool op_reads_columns(const Op *op, int i)
{
	switch (op->kind) {
	case OP_MATMUL: case OP_MATMUL_EPILOGUE: return i < 2;
	case OP_ACCUMULATE: return op->n_in == 2; /* a product */
	case OP_CROSS_ENTROPY: return i == 0;
	case OP_CROSS_ENTROPY_GRAD: return i == 1;
	default: return op->kind == OP_FUSED || op_info[op->kind].flags & EW;
	}
}

int64_t value_pitch(Value *v)
{
	const Type *whole = &value_whole(v)->type;
	return whole->rank ? whole->dim[whole->rank - 1] : 1;
}

bool value_is_joined(const Value *v)
{
	return v->n_uses == 1 && v->uses->op->kind == OP_JOIN;
}

Value *value_whole(Value *v)
{
	return v->op->kind == OP_COLUMNS ? op_in(v->op, 0) : value_is_joined(v) ? v->uses->op->out[0] : v;
}

Value *value_stack(Value *v)
{
	return v->n_uses == 1 && v->uses->op->kind == OP_STACK ? v->uses->op->out[0] : v;
}

int64_t value_start(const Value *v)
{
	bool part = v->op->kind == OP_COLUMNS || v->op->kind == OP_ROWS;
	int64_t start = part ? attr_get_int(v->op->attrs, "start", 0) : 0;
	if (v->op->kind == OP_ROWS)
		return start * (type_numel(&v->type) / v->type.dim[0]);
	const Op *whole = v->n_uses == 1 ? v->uses->op : NULL;
	for (int i = 0; whole && whole->kind == OP_JOIN && op_in(whole, i) != v; i++)
		start += type_columns(&op_in(whole, i)->type, (int)attr_get_int(whole->attrs, "axis", 0));
	for (int i = 0; whole && whole->kind == OP_STACK && op_in(whole, i) != v; i++)
		start += type_numel(&op_in(whole, i)->type);
	return start;
}

int64_t value_offset(const Value *v)
{
	int64_t start = value_start(v);
	for (; op_info[v->op->kind].flags & VIEW && v->op->kind != OP_VIEW_OP; v = op_in(v->op, 0))
		start += value_start(op_in(v->op, 0));
	return start * dtype_info[v->type.dtype].bytes;
}

int64_t op_n_params(const Op *op)
{
	return attr_get_int(op->attrs, "params", 1);
}

Symbol *scale_param(const Module *m, const Symbol *scale)
{
	Symbol *s = scale->param ? ir_find_symbol(m, scale->param) : NULL;
	return s && s->kind == SYM_PARAM ? s : NULL;
}

Symbol *param_scale(const Module *m, const Symbol *param)
{
	for (int i = 0; i < m->n_symbols; i++) {
		Symbol *s = m->symbols[i];
		const Symbol *first = s->kind == SYM_SCALE ? scale_param(m, s) : NULL;
		if (first && first->unit == param->unit && param->member >= first->member
				&& param->member - first->member < s->n_params)
			return s;
	}
	return NULL;
}

bool unit_is_scaled(const Unit *u)
{
	return layout_is_scaled(u->flat, u->n_flats);
}

bool params_type(const Symbol *s, int64_t n, Type *out)
{
	int64_t end = s->offset + type_numel(&s->type);
	*out = s->type;
	if (n == 1)
		return true;
	if (n < 1 || !s->unit || !out->rank || n > s->unit->n_params - s->member)
		return false;
	for (int64_t i = 1; i < n; i++) {
		const Symbol *next = s->unit->params[s->member + i];
		Type t = next->type;
		int64_t rows = t.rank ? t.dim[0] : 0;
		if (t.rank)
			t.dim[0] = s->type.dim[0];
		if (next->flat != s->flat || next->offset != end || !type_equal(&t, &s->type))
			return false;
		out->dim[0] += rows;
		end += type_numel(&next->type);
	}
	return true;
}

bool unit_is_resident(const Unit *u)
{
	bool whole = strategy_info[u->strategy].group == GROUP_ONE;
	for (int f = 0; f < u->n_flats; f++)
		whole = whole && !layout_casts(&u->flat[f]);
	return whole;
}

bool unit_is_kept(const Unit *u)
{
	bool said = u->reshard_after_forward >= 0 && !unit_is_resident(u);
	return said ? !u->reshard_after_forward : strategy_info[u->strategy].kept;
}

bool ir_is_carried(const Module *m, const Unit *u)
{
	return ir_sums_flats(m) && unit_is_kept(u);
}

bool unit_gathers_rounded(const Unit *u)
{
	for (int f = 0; f < u->n_flats; f++)
		if (u->flat[f].dtype == DT_F32 && dtype_is_half(u->flat[f].param))
			return true;
	return false;
}

bool unit_has_master(const Unit *u)
{
	for (int f = 0; f < u->n_flats; f++)
		if (u->flat[f].master)
			return true;
	return false;
}
