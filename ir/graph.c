/* ir/graph.c: builds and edits modules.
 *
 * Each section is a doubly linked list of ops, and operands are linked into the use list of their value, so that every
 * edit is local.  Value names are unique in the module: a name that is taken gets a numbered suffix. */
#include "ir/epilogue.h"

#include <string.h>

/* ---- modules, symbols, units ---- */

Module *ir_module_new(const char *name)
{
	Arena *a = arena_new();
	Module *m = NEW(a, Module);
	m->arena = a;
	m->ops = arena_new();
	m->interned = map_new(a);
	m->symbol_by_name = map_new(a);
	m->unit_by_name = map_new(a);
	m->symbol_names = map_new(a);
	m->value_names = map_new(a);
	m->name = ir_intern(m, name);
	m->poison.name = "poison";
	return m;
}

void ir_module_free(Module *m)
{
	if (!m)
		return;
	arena_free(m->ops);
	arena_free(m->arena);
}

const Train *ir_train(const Module *m)
{
	static const Train none;
	return m->train ? m->train : &none;
}

LayoutOffload ir_offload(const Module *m, const Unit *u)
{
	return u->offload >= 0 ? (LayoutOffload)u->offload : ir_train(m)->offload;
}

const char *ir_intern(Module *m, const char *s)
{
	return map_intern(m->interned, s);
}

Symbol *ir_add_symbol(Module *m, SymbolKind kind, const char *name, Type type)
{
	Symbol *s = NEW(m->arena, Symbol);
	s->kind = kind;
	s->name = ir_intern(m, map_add_numbered(m->symbol_names, name));
	s->onnx = s->name;
	s->type = type;
	map_put(m->symbol_by_name, s->name, s);
	if (m->n_symbols == m->cap_symbols)
		m->symbols = arena_grow(m->arena, m->symbols, sizeof(*m->symbols), &m->cap_symbols);
	s->index = m->n_symbols;
	m->symbols[m->n_symbols++] = s;
	return s;
}

Symbol *ir_find_symbol(const Module *m, const char *name)
{
	return map_get(m->symbol_by_name, name);
}

Unit *ir_add_unit(Module *m, const char *name, Strategy strategy)
{
	Unit *u = NEW(m->arena, Unit);
	u->name = ir_intern(m, name);
	u->strategy = strategy;
	u->owner = u->reshard_after_forward = u->forward_prefetch = u->backward_prefetch = -1;
	u->param_dtype = u->reduce_dtype = u->offload = -1;
	u->index = m->n_units;
	if (m->n_units == m->cap_units)
		m->units = arena_grow(m->arena, m->units, sizeof(*m->units), &m->cap_units);
	m->units[m->n_units++] = u;
	if (!map_has(m->unit_by_name, name))
		map_put(m->unit_by_name, name, u);
	return u;
}

Unit *ir_find_unit(const Module *m, const char *name)
{
	return map_get(m->unit_by_name, name);
}

/* ---- uses ---- */

static void use_link(Use *u)
{
	Value *v = u->value;
	if (!v)
		return;
	u->prev = NULL;
	u->next = v->uses;
	if (v->uses)
		v->uses->prev = u;
	v->uses = u;
	v->n_uses++;
}

static void use_unlink(Use *u)
{
	Value *v = u->value;
	if (!v)
		return;
	if (u->prev)
		u->prev->next = u->next;
	else
		v->uses = u->next;
	if (u->next)
		u->next->prev = u->prev;
	v->n_uses--;
	u->value = NULL;
}

void ir_set_in(Op *op, int i, Value *v)
{
	Use *u = &op->in[i];
	if (u->value == v)
		return;
	use_unlink(u);
	u->value = v;
	use_link(u);
}

void ir_set_n_in(Module *m, Op *op, int n, Value *const *in)
{
	for (int i = 0; i < op->n_in; i++)
		use_unlink(&op->in[i]);
	op->in = NEW_N(m->ops, Use, n);
	op->n_in = n;
	for (int i = 0; i < n; i++) {
		op->in[i] = (Use){.value = in[i], .op = op};
		use_link(&op->in[i]);
	}
}

Op *ir_find_in_step(const Module *m, OpKind kind)
{
	for (int s = SEC_FORWARD; s <= SEC_UPDATE; s++)
		IR_FOR_OPS(m, s, op)
			if (op->kind == kind)
				return op;
	return NULL;
}

bool ir_updates_early(const Module *m)
{
	const Op *first = ir_find_in_step(m, OP_UPDATE_SHARD);
	return first && first->section == SEC_BACKWARD;
}

Op *ir_user(const Value *v, OpKind kind)
{
	for (const Use *u = v->uses; u; u = u->next)
		if (u->op->kind == kind)
			return u->op;
	return NULL;
}

void ir_replace_uses(Value *old, Value *now)
{
	while (old != now && old->uses) {
		Use *u = old->uses;
		use_unlink(u);
		u->value = now;
		use_link(u);
	}
}

/* ---- ops in lists ---- */

static void list_insert(Module *m, Op *op, SectionKind s, Op *before)
{
	op->section = s;
	for (Op *inner = op->body_first; inner; inner = inner->next)
		inner->section = s;
	op->next = before;
	op->prev = before ? before->prev : m->last[s];
	if (op->prev)
		op->prev->next = op;
	else
		m->first[s] = op;
	if (before)
		before->prev = op;
	else
		m->last[s] = op;
}

static void list_unlink(Module *m, Op *op)
{
	Op **first = op->parent ? &op->parent->body_first : &m->first[op->section];
	Op **last = op->parent ? &op->parent->body_last : &m->last[op->section];
	if (op->prev)
		op->prev->next = op->next;
	else
		*first = op->next;
	if (op->next)
		op->next->prev = op->prev;
	else
		*last = op->prev;
	op->prev = op->next = NULL;
}

void ir_remove(Module *m, Op *op)
{
	for (int i = 0; i < op->n_out; i++)
		if (op->out[i]->n_uses)
			ice("%%%s is removed but still used", op->out[i]->name);
	while (op->body_last) {
		Op *inner = op->body_last;
		for (int i = 0; i < inner->n_in; i++)
			use_unlink(&inner->in[i]);
		list_unlink(m, inner);
	}
	for (int i = 0; i < op->n_in; i++)
		use_unlink(&op->in[i]);
	list_unlink(m, op);
}

void ir_sweep(Module *m, SectionKind s)
{
	for (Op *op = m->last[s], *prev; op; op = prev) {
		prev = op->prev;
		if (!op_has_effect(op) && !op_is_read(op))
			ir_remove(m, op);
	}
}

void ir_move_before(Module *m, Op *op, Op *before)
{
	if (op == before)
		return;
	list_unlink(m, op);
	list_insert(m, op, before->section, before);
}

void ir_move_to_end(Module *m, Op *op, SectionKind s)
{
	list_unlink(m, op);
	list_insert(m, op, s, NULL);
}

void ir_move_behind(Module *m, Op *op, Op *at)
{
	if (at->next && at->next != op)
		ir_move_before(m, op, at->next);
	else if (!at->next && at != op)
		ir_move_to_end(m, op, at->section);
}

void ir_number(Module *m)
{
	for (int s = 0; s < SEC_COUNT; s++) {
		int64_t n = 0;
		IR_FOR_OPS(m, s, op)
			op->order = n++;
	}
}

/* ---- names ---- */

static const char *clean_name(Module *m, const char *name)
{
	const char *end = name;
	while (ir_is_name_char(*end))
		end++;
	if (*name && !*end)
		return name;
	char *s = arena_strdup(m->arena, *name ? name : "v");
	for (char *c = s; *c; c++)
		if (!ir_is_name_char(*c))
			*c = '_';
	return s;
}

void ir_rename(Module *m, Value *v, const char *name)
{
	v->name = map_add_numbered(m->value_names, clean_name(m, name));
}

/* ---- making ops ---- */

static Value *value_new(Module *m, Op *op, int index, Type type)
{
	Value *v = NEW(m->ops, Value);
	v->op = op;
	v->index = index;
	v->type = type;
	v->id = m->n_values++;
	return v;
}

Value *op_residual(const Op *op)
{
	bool norm = op->kind == OP_LAYER_NORM || op->kind == OP_RMS_NORM || op->kind == OP_LAYER_NORM_GRAD
		|| op->kind == OP_RMS_NORM_GRAD;
	return norm ? op_in(op, op_info[op->kind].n_in_max - 1) : NULL;
}

Value *op_sum(const Op *op)
{
	bool adds = op->kind == OP_MATMUL || op->kind == OP_MATMUL_EPILOGUE || op->kind == OP_MATMUL_F8
		|| op->kind == OP_GATHER_GRAD || op->kind == OP_LINEAR_CROSS_ENTROPY_GRAD;
	return adds ? op_in(op, op_info[op->kind].n_in_max - 1) : NULL;
}

/* Which results a loss head has behind its two sums. */
static int head_gradients(const Op *op)
{
	static const char *const given[] = {"dh", "dw", "db"};
	int n = 0;
	for (int i = 0; i < COUNT_OF(given); i++)
		n += attr_get_int(op->attrs, given[i], 0) != 0;
	return n;
}

int op_sum_result(const Op *op)
{
	return op->kind == OP_LINEAR_CROSS_ENTROPY_GRAD ? 2 + (attr_get_int(op->attrs, "dh", 0) != 0) : 0;
}

static int result_count(const Op *op)
{
	const OpInfo *info = &op_info[op->kind];
	if (!(info->flags & VAROUT))
		return info->n_out;
	if (op->kind == OP_LAYER_NORM || op->kind == OP_RMS_NORM)
		return info->n_out + (op_residual(op) != NULL);
	if (op->kind == OP_LINEAR_CROSS_ENTROPY_GRAD)
		return info->n_out + head_gradients(op);
	if (op->kind == OP_RECURRENCE || op->kind == OP_RECURRENCE_GRAD)
		return recurrence_results(op);
	if (op->kind == OP_MATMUL_EPILOGUE)
		return op_epilogue(op) == EPILOGUE_UNKNOWN ? info->n_out : epilogue_info[op_epilogue(op)].results;
	if (op->kind == OP_TO_F8)
		return (attr_get_int(op->attrs, "rows", 0) != 0) + (attr_get_int(op->attrs, "columns", 0) != 0);
	if (op->kind == OP_LOOP)
		return op->body && loop_yield(op) ? loop_yield(op)->n_in : 0;
	const Attr *sizes = attr_find(op->attrs, "sizes");
	if (sizes)
		return sizes->n;
	if (!(info->flags & UNIT))
		return op->n_in;
	int n = op->unit ? op->unit->n_flats : 0;
	if (op->kind == OP_BROADCAST_FLAT) /* only of trainable flats, which come first */
		while (n && !op->unit->flat[n - 1].trainable)
			n--;
	return n;
}

static Op *op_new(Module *m, OpKind kind, int n_in, Value *const *in, Attr *attrs, const Loc *loc)
{
	Op *op = NEW(m->ops, Op);
	op->kind = kind;
	op->n_in = n_in;
	op->in = NEW_N(m->ops, Use, n_in);
	for (int i = 0; i < n_in; i++)
		op->in[i] = (Use){.value = in[i], .op = op};
	op->attrs = attrs;
	op->loc = loc ? loc : loc_new(m, "", "", "", "");
	return op;
}

static void link_operands(Op *op)
{
	for (int i = 0; i < op->n_in; i++)
		use_link(&op->in[i]);
}

static bool has_poison(const Module *m, int n_in, Value *const *in)
{
	for (int i = 0; i < n_in; i++)
		if (in[i] == &m->poison)
			return true;
	return false;
}

static void shape_failed(Builder *b, const Op *op, const Buf *err)
{
	const char *text = err->at ? err->at : "operands do not fit";
	if (!b->diag)
		ice("%s: %s (from \"%s\")", op_info[op->kind].text, text, op->loc->node);
	diag_error(b->diag, loc_where(b->m, op->loc), "%s", text);
}

/* Absent operands at the end of the list are not stored, so that equal lists are stored alike. */
static int trim_absent(OpKind kind, int n_in, Value *const *in)
{
	while (!(op_info[kind].flags & VARIN) && n_in > op_info[kind].n_in_min && !in[n_in - 1])
		n_in--;
	return n_in;
}

Op *ir_emit_op(Builder *b, OpKind kind, int n_in, Value *const *in, Attr *attrs, const Type *given)
{
	Module *m = b->m;
	const char *name = b->name ? b->name : op_info[kind].text;
	Op *op = NULL;
	if (!has_poison(m, n_in, in)) {
		op = op_new(m, kind, trim_absent(kind, n_in, in), in, attrs, b->loc);
		op->sym = b->sym;
		op->unit = b->unit;
		op->body = b->body;
		op->section = b->section;
		op->n_out = result_count(op);
		Type few[4] = {0}, *out = op->n_out > COUNT_OF(few) ? NEW_N(m->arena, Type, op->n_out) : few;
		Buf err = {0};
		if (ir_infer(m, op, given, out, &err)) {
			op->out = NEW_N(m->ops, Value *, op->n_out);
			for (int i = 0; i < op->n_out; i++) {
				op->out[i] = value_new(m, op, i, out[i]);
				ir_rename(m, op->out[i], name);
			}
			link_operands(op);
			list_insert(m, op, b->section, b->before);
		} else {
			shape_failed(b, op, &err);
			op = NULL;
		}
		buf_free(&err);
	}
	b->name = NULL;
	b->sym = NULL;
	b->unit = NULL;
	b->body = NULL;
	return op;
}

Value *ir_add_result(Module *m, Op *op, Type type, const char *name)
{
	Value **out = NEW_N(m->ops, Value *, op->n_out + 1);
	for (int i = 0; i < op->n_out; i++)
		out[i] = op->out[i];
	op->out = out;
	out[op->n_out] = value_new(m, op, op->n_out, type);
	ir_rename(m, out[op->n_out], name);
	return out[op->n_out++];
}

void ir_drop_result(Op *op, int i)
{
	for (op->n_out--; i < op->n_out; i++) {
		op->out[i] = op->out[i + 1];
		op->out[i]->index = i;
	}
}

static Value *first_result(Builder *b, const Op *op)
{
	if (!op)
		return &b->m->poison;
	return op->n_out ? op->out[0] : NULL;
}

Value *ir_emit(Builder *b, OpKind kind, int n_in, Value *const *in, Attr *attrs)
{
	return first_result(b, ir_emit_op(b, kind, n_in, in, attrs, NULL));
}

Value *ir_emit_typed(Builder *b, OpKind kind, int n_in, Value *const *in, Attr *attrs, Type type)
{
	return first_result(b, ir_emit_op(b, kind, n_in, in, attrs, &type));
}

Value *ir_emit1(Builder *b, OpKind kind, Value *x)
{
	return ir_emit(b, kind, 1, (Value *[]){x}, NULL);
}

Value *ir_emit2(Builder *b, OpKind kind, Value *x, Value *y)
{
	return ir_emit(b, kind, 2, (Value *[]){x, y}, NULL);
}

Value *ir_emit3(Builder *b, OpKind kind, Value *x, Value *y, Value *z)
{
	return ir_emit(b, kind, 3, (Value *[]){x, y, z}, NULL);
}

/* ---- common ops ---- */

Value *ir_const_full(Builder *b, Type type, double v)
{
	Attr *value = dtype_is_float(type.dtype) ? attr_floats(b->m, NULL, "value", 1, &v)
		: attr_ints(b->m, NULL, "value", 1, &(int64_t){int_of_double(v)});
	return ir_emit_typed(b, OP_CONST, 0, NULL, value, type);
}

Value *ir_const_float(Builder *b, DType dtype, double v)
{
	return ir_const_full(b, type_scalar(dtype), v);
}

Value *ir_const_int(Builder *b, DType dtype, int64_t v)
{
	if (dtype_is_float(dtype))
		return ir_const_full(b, type_scalar(dtype), (double)v);
	return ir_emit_typed(b, OP_CONST, 0, NULL, attr_ints(b->m, NULL, "value", 1, &v), type_scalar(dtype));
}

Value *ir_reshape(Builder *b, Value *x, int rank, const int64_t *dim)
{
	Type to = type_tensor(x->type.dtype, rank, dim);
	if (type_same_shape(&x->type, &to))
		return x;
	return ir_emit(b, OP_RESHAPE, 1, &x, attr_ints(b->m, NULL, "shape", rank, dim));
}

Value *ir_sum_so_far(Builder *b, const Op *accumulate)
{
	Builder of = *b;
	int64_t n = op_n_params(accumulate);
	of.sym = accumulate->sym;
	of.name = arena_printf(b->m->arena, "%s.carried", accumulate->out[0]->name);
	Value *sum = ir_emit(&of, OP_ACCUMULATE, 0, NULL, n > 1 ? attr_int(b->m, NULL, "params", n) : NULL);
	sum->op->order = accumulate->order;
	return sum;
}

Value *ir_transpose(Builder *b, Value *x, const int *perm)
{
	int64_t p[IR_MAX_RANK];
	bool identity = true;
	for (int i = 0; i < x->type.rank; i++) {
		p[i] = perm[i];
		identity = identity && perm[i] == i;
	}
	return identity ? x : ir_emit(b, OP_TRANSPOSE, 1, &x, attr_ints(b->m, NULL, "perm", x->type.rank, p));
}

Value *ir_broadcast(Builder *b, Value *x, const Type *to)
{
	if (type_same_shape(&x->type, to))
		return x;
	return ir_emit(b, OP_BROADCAST, 1, &x, attr_ints(b->m, NULL, "shape", to->rank, to->dim));
}

Value *ir_cast(Builder *b, Value *x, DType to)
{
	if (x->type.dtype == to)
		return x;
	return ir_emit(b, OP_CAST, 1, &x, attr_dtype(b->m, NULL, "to", to));
}

Value *ir_reduce(Builder *b, OpKind kind, Value *x, int n, const int64_t *axes, bool keepdims)
{
	Attr *attrs = attr_ints(b->m, attr_int(b->m, NULL, "keepdims", keepdims), "axes", n, axes);
	return ir_emit(b, kind, 1, &x, attrs);
}

Value *ir_unbroadcast(Builder *b, Value *x, const Type *to)
{
	int64_t axes[IR_MAX_RANK];
	int n = 0, extra = x->type.rank - to->rank;
	for (int i = 0; i < x->type.rank; i++)
		if (x->type.dim[i] != 1 && (i < extra || to->dim[i - extra] == 1))
			axes[n++] = i;
	if (n)
		x = ir_reduce(b, OP_REDUCE_SUM, x, n, axes, true);
	return ir_reshape(b, x, to->rank, to->dim);
}

Value *ir_read(Builder *b, Symbol *sym)
{
	OpKind kind = sym->kind == SYM_PARAM ? OP_PARAM : sym->kind == SYM_INPUT ? OP_INPUT : OP_READ;
	b->sym = sym;
	if (!b->name)
		b->name = sym->name;
	return ir_emit(b, kind, 0, NULL, NULL);
}

/* ---- fused bodies and clones ---- */

Op *ir_emit_fused(Builder *b, int n_in, Value *const *in, int n_out, const Type *out)
{
	Module *m = b->m;
	Op *op = op_new(m, OP_FUSED, n_in, in, NULL, b->loc);
	op->n_out = n_out;
	op->out = NEW_N(m->ops, Value *, n_out);
	for (int i = 0; i < n_out; i++) {
		op->out[i] = value_new(m, op, i, out[i]);
		ir_rename(m, op->out[i], b->name ? b->name : "fused");
	}
	op->args = NEW_N(m->ops, Value *, n_in);
	for (int i = 0; i < n_in; i++)
		op->args[i] = value_new(m, op, i, type_scalar(in[i]->type.dtype));
	link_operands(op);
	list_insert(m, op, b->section, b->before);
	b->name = NULL;
	return op;
}

static void body_append(Op *fused, Op *op)
{
	op->parent = fused;
	op->section = fused->section;
	op->prev = fused->body_last;
	*(op->prev ? &op->prev->next : &fused->body_first) = op;
	fused->body_last = op;
}

void ir_body_move(Module *m, Op *fused, Op *op)
{
	list_unlink(m, op);
	body_append(fused, op);
	op->order = 0;
	op->loc = fused->loc;
	op->at = (TextPlace){0};
	op->out[0]->type = type_scalar(op->out[0]->type.dtype);
	op->out[0]->name = NULL;
}

bool ir_body_try(Module *m, Op *fused, OpKind kind, int n_in, Value *const *in, Attr *attrs, DType dtype, Value **out,
	Buf *err)
{
	Op *op = op_new(m, kind, n_in, in, attrs, fused->loc);
	op->n_out = op_info[kind].n_out;
	op->out = NEW_N(m->ops, Value *, op->n_out);
	Type type = type_scalar(dtype), given = type;
	if (!ir_infer(m, op, &given, &type, err))
		return false;
	for (int i = 0; i < op->n_out; i++)
		op->out[i] = value_new(m, op, i, type);
	link_operands(op);
	body_append(fused, op);
	*out = op->n_out ? op->out[0] : NULL;
	return true;
}

Value *ir_body_emit(Module *m, Op *fused, OpKind kind, int n_in, Value *const *in, Attr *attrs)
{
	const Attr *value = attr_find(attrs, "value");
	DType dtype = value && value->kind == ATTR_INTS ? DT_I64 : DT_F32;
	Value *out = NULL;
	Buf err = {0};
	if (!ir_body_try(m, fused, kind, n_in, in, attrs, dtype, &out, &err))
		ice("fused body: %s: %s", op_info[kind].text, err.at);
	buf_free(&err);
	return out;
}

static Value *mapped(const PtrMap *map, Value *v)
{
	Value *to = v ? ptrmap_get(map, v) : NULL;
	return to ? to : v;
}

static void clone_body(Module *m, const Op *from, Op *to, PtrMap *map)
{
	for (int i = 0; i < from->n_in; i++)
		ptrmap_put(map, from->args[i], to->args[i]);
	for (const Op *op = from->body_first; op; op = op->next) {
		Value **in = NEW_N(m->arena, Value *, op->n_in);
		for (int i = 0; i < op->n_in; i++)
			in[i] = mapped(map, op->in[i].value);
		Value *v = ir_body_emit(m, to, op->kind, op->n_in, in, op->attrs);
		if (v) {
			v->type = op->out[0]->type;
			ptrmap_put(map, op->out[0], v);
		}
	}
}

Op *ir_clone_fused(Builder *b, const Op *op, Value *const *in, const Type *out, PtrMap *map)
{
	Op *copy = ir_emit_fused(b, op->n_in, in, op->n_out, out);
	clone_body(b->m, op, copy, map);
	return copy;
}

Op *ir_clone(Builder *b, const Op *op, PtrMap *map)
{
	Module *m = b->m;
	Value **in = NEW_N(m->arena, Value *, op->n_in);
	Type *out = NEW_N(m->arena, Type, MAX(op->n_out, 1));
	Op *copy;
	for (int i = 0; i < op->n_in; i++)
		in[i] = mapped(map, op->in[i].value);
	for (int i = 0; i < op->n_out; i++)
		out[i] = op->out[i]->type;
	if (op->n_out)
		b->name = op->out[0]->name;
	if (op->kind == OP_FUSED) {
		copy = ir_clone_fused(b, op, in, out, map);
	} else {
		b->sym = op->sym;
		b->unit = op->unit;
		b->body = op->body ? loop_clone_body(m, op) : NULL;
		copy = ir_emit_op(b, op->kind, op->n_in, in, op->attrs, out);
	}
	if (!copy)
		ice("clone of %s failed", op_info[op->kind].text);
	for (int i = 0; i < op->n_out; i++)
		ptrmap_put(map, op->out[i], copy->out[i]);
	return copy;
}
