/* codegen/tables.c: writes what the runtime must know about the program: tensors, units, files, outputs, the loss.
 *
 * The tables are static data behind the functions of step.c.  Text that many rows share becomes a macro. */
#include "codegen/pieces.h"

#include "passes/passes.h"

#include <inttypes.h>
#include <string.h>

const char *dtype_constant(DType t)
{
	static const char *const id[] = {
#define DTYPE(id, ...) "DT_" #id,
#include "base/dtypes.def"
	};
	return id[t];
}

const char *kdtype_constant(DType t)
{
	static const char *const id[] = {
#define DTYPE(id, ...) "K_" #id,
#include "base/dtypes.def"
	};
	return id[t];
}

static const char *upper(Emit *e, const char *s)
{
	char *t = arena_strdup(e->a, s);
	for (char *c = t; *c; c++)
		*c = *c >= 'a' && *c <= 'z' ? (char)(*c - 'a' + 'A') : *c;
	return t;
}

static void put_unit_names(Emit *e, Buf *out)
{
	buf_printf(out, "static const char *const unit_names[] = {\n\t");
	for (int u = 0; u < e->m->n_units; u++)
		buf_printf(out, "%s%s", u ? ", " : "", emit_c_string(e, e->m->units[u]->name));
	buf_printf(out, "\n};\n\n/* Where a step first and last reads each. */\n"
		"static const char *const unit_uses[][2] = {\n\t");
	const PlanUnit *units = plan_units(e->m, e->a);
	for (int u = 0; u < e->m->n_units; u++)
		buf_printf(out, "%s{%s, %s}", u ? ", " : "", emit_c_string(e, units[u].first), emit_c_string(e, units[u].last));
	buf_printf(out, "\n};\n\n");
}

/* The macro whose text this is; if there is none yet it is written in front of the table. */
static const char *shared_macro(Emit *e, Buf *out, const char *stem, const char *parameters, const char *text)
{
	const char *key = arena_printf(e->a, "#define %s", text), *name = map_get(e->bodies, key);
	if (!name) {
		name = emit_unused(e, stem);
		map_put(e->bodies, key, (void *)name);
		emit_macro(out, arena_printf(e->a, "%s%s", name, parameters), arena_printf(e->a, "\t%s", text));
	}
	return name;
}

static const char *flats_text(Emit *e, const LayoutUnit *unit)
{
	const char *text = arena_printf(e->a, "%d, {", unit->n_flats);
	for (int f = 0; f < unit->n_flats; f++) {
		const LayoutFlat *flat = &unit->flat[f];
		text = arena_printf(e->a, "%s%s{%s, %s, %" PRId64 ", %s, %s, %s, %s, %s, %s, %s}", text, f ? ", " : "",
			dtype_constant(flat->dtype), flat->trainable ? "true" : "false", flat->numel,
			dtype_constant(flat->param), dtype_constant(flat->grad), dtype_constant(flat->reduce),
			dtype_constant(flat->kept), dtype_constant(flat->bcast), flat->master ? "true" : "false",
			flat->away ? "true" : "false");
	}
	return arena_printf(e->a, "%s}", text);
}

/* suffix: what the names of the tables end with. */
static void put_layout_units(Emit *e, Buf *out, const LayoutModel *l, const char *suffix)
{
	Buf rows = {0};
	for (int u = 0; u < l->n_units; u++) {
		const LayoutUnit *unit = &l->unit[u];
		buf_printf(&rows, "%s{STRATEGY_%s, %d, %s, %d, %s, %s, LAYOUT_OFFLOAD_%s, %" PRId64 "}", u ? ", " : "\t",
			upper(e, strategy_info[unit->strategy].text), unit->owner,
			shared_macro(e, out, "FLATS", "", flats_text(e, unit)), unit->grad_slot,
			unit->own_region ? "true" : "false", unit->apart ? "true" : "false",
			upper(e, offload_text[unit->offload]), unit->acts_free);
	}
	buf_printf(out, "/* FLATS: how many, {dtype, trainable, elements, dtypes gathered, of gradients, sent, kept, "
		"broadcast; f32 master, away}.\n"
		" * Units: strategy, owner, flats, slot of the gradient, own region, reduced gradient apart, offload,\n"
		" * bytes of the activations that its gradient finds free. */\n"
		"static const LayoutUnit units%s[] = {\n%s\n};\n\n", suffix, rows.at);
	buf_free(&rows);
	if (!l->n_gathers)
		return;
	buf_printf(out, "/* Gathers into the ring: unit, slot. */\nstatic const LayoutGather gathers%s[] = {\n\t", suffix);
	for (int i = 0; i < l->n_gathers; i++)
		buf_printf(out, "%s{%d, %d}", i ? ", " : "", l->gather[i].unit, l->gather[i].slot);
	buf_printf(out, "\n};\n\n");
}

static void put_layout(Buf *out, const LayoutModel *l, const char *suffix)
{
	char host[64] = "";
	if (l->host_bytes)
		snprintf(host, sizeof(host), ", .host_bytes = %" PRId64, l->host_bytes);
	buf_printf(out, "{.unit = %s%s, .n_units = %d, .gather = %s%s, .n_gathers = %d, .n_slots = %d,\n"
		"\t\t.n_grad_slots = %d%s, .act_bytes = %" PRId64 ", .input_bytes = %" PRId64 ", .state_bytes = %" PRId64
		",\n\t\t.work_bytes = %" PRId64 "%s, .average_bytes = %" PRId64 ", .saved_bytes = %" PRId64
		",\n\t\t.hook_send = %" PRId64
		", .hook_keep = %" PRId64 ", .sync_bytes = %" PRId64 "},\n",
		l->n_units ? "units" : "NULL", l->n_units ? suffix : "", l->n_units, l->n_gathers ? "gathers" : "NULL",
		l->n_gathers ? suffix : "", l->n_gathers, l->n_slots, l->n_grad_slots,
		l->brief ? ", .brief = true" : "", l->act_bytes, l->input_bytes,
		l->state_bytes, l->work_bytes, host, l->average_bytes, l->saved_bytes, l->hook_send, l->hook_keep,
		l->sync_bytes);
}

/* ---- collectives ---- */

int emit_event(Emit *e, const Op *op)
{
	return (int)(intptr_t)ptrmap_get(e->events, (void *)op);
}

/* The number of the event that a collective waits for; 0: it has none of its own. */
static int event_before(Emit *e, const Op *op)
{
	const Value *last = op->n_in ? op_in(op, op->n_in - 1) : NULL;
	return codegen_cuda(e->target) && last && last->type.kind == TYPE_EVENT ? emit_event(e, last->op) : 0;
}

/* "ALL_GATHER": the macro of what all collectives of one kind share. */
static const char *collective_macro(Emit *e, Buf *out, const Op *op)
{
	const CollectiveInfo *row = &collective_info[op_collective(op)];
	return shared_macro(e, out, row->id, "(unit, slot, event)",
		arena_printf(e->a, "{RT_%s, RT_STREAM_%s, unit, slot, %" PRId64 ", %s, event, %s}", row->id,
		stream_info[row->stream].id, plan_message(e->m, op),
		attr_get_int(op->attrs, "add", 0) ? "true" : "false", attr_find(op->attrs, "round") ? "true" : "false"));
}

/* Returns how many collectives there are. */
static int put_collectives(Emit *e, Buf *out, SectionKind from, SectionKind to, const char *name)
{
	int n = 0;
	Buf rows = {0};
	for (int s = (int)from; s <= (int)to; s++) {
		IR_FOR_OPS(e->m, s, op) {
			if (!(op_info[op->kind].flags & COMM))
				continue;
			buf_printf(&rows, "%s%s(%d, %d, %d)", n++ ? ", " : "\t", collective_macro(e, out, op),
				op->unit ? op->unit->index : -1, (int)attr_get_int(op->attrs, "slot", -1), event_before(e, op));
		}
	}
	if (n)
		buf_printf(out, "/* In the order of their numbers, from 1. */\nstatic const RtCollective %s[] = {\n%s\n};\n\n",
			name, rows.at);
	buf_free(&rows);
	return n;
}

/* ---- outputs ---- */

static bool lies_at(const Symbol *s, const Place *at)
{
	if (at->region == REGION_PARAM)
		return s->kind == SYM_PARAM && s->unit == at->unit && s->flat == at->flat
			&& s->offset * dtype_info[s->unit->flat[s->flat].param].bytes == at->offset;
	bool input = s->kind == SYM_INPUT;
	return s->kind != SYM_PARAM && input == (at->region == REGION_INPUT) && s->offset == at->offset;
}

/* The index in tensors[] of the tensor in which the place lies; places in the arena have none. */
static int tensor_at(const Emit *e, const Place *at)
{
	int n = 0;
	for (int i = 0; i < e->m->n_symbols; i++) {
		const Symbol *s = e->m->symbols[i];
		if (!tensors_has(s))
			continue;
		if (lies_at(s, at))
			return n;
		n++;
	}
	ice("an output lies in no tensor");
}

/* Writes the outputs of eval, the only section of a forward-only program; they are kept until its end. */
static int put_outputs(Emit *e, Buf *out)
{
	int n = 0;
	if (e->m->first[SEC_FORWARD])
		return 0;
	IR_FOR_OPS(e->m, SEC_EVAL, op) {
		if (op->kind != OP_OUTPUT)
			continue;
		const Type *t = &op->sym->type;
		const Place *at = &op_in(op, 0)->place;
		int input = at->region == REGION_ACT || at->region == REGION_NONE ? -1 : tensor_at(e, at);
		buf_printf(out, n++ ? "%s" : "static const RtOutput outputs[] = {\n", "");
		buf_printf(out, "\t{%s, %s, %d, %s, %" PRId64 ", %d},\n", emit_c_string(e, op->sym->name),
			dtype_constant(t->dtype), t->rank, emit_int_list(e, t->rank, t->dim), at->offset, input);
	}
	if (n)
		buf_printf(out, "};\n\n");
	return n;
}

/* ---- the loss ---- */

static const Op *find_in_eval(const Module *m, OpKind kind)
{
	IR_FOR_OPS(m, SEC_EVAL, op)
		if (op->kind == kind)
			return op;
	return NULL;
}

/* The number n by which backward's gradients are divided. */
static double loss_count(const Module *m)
{
	const Op *report = ir_find_in_step(m, OP_REPORT_LOSS);
	return report && !attr_get_int(report->attrs, "mean", 0) ? (double)attr_get_int(report->attrs, "n", 1) : 1;
}

/* The seed and the scaling of gradients follow forward's report; the averaging of an evaluation follows eval's. */
static void put_loss(Emit *e, Buf *out)
{
	const Op *report = ir_find_in_step(e->m, OP_REPORT_LOSS);
	const Op *eval = find_in_eval(e->m, OP_REPORT_LOSS);
	bool mean = !report || attr_get_int(report->attrs, "mean", 0);
	const char *node = eval ? attr_get_str(eval->attrs, "whole", NULL) : NULL;
	bool number = eval && attr_get_int(eval->attrs, "mean", 0);
	buf_printf(out, "\t.loss = {.global = %s, .n = %s, .adds = %s, .accuracy = %s, .whole = %s, .shift = %s},\n",
		mean ? "false" : "true", emit_c_float(e, loss_count(e->m)),
		report && attr_get_int(report->attrs, "adds", 0) ? "true" : "false",
		find_in_eval(e->m, OP_REPORT_ACC) ? "true" : "false",
		number ? "\"the loss is one number a batch\"" : node ? emit_c_string(e, arena_printf(e->a,
		"samples of a batch meet or are told apart in node \"%s\"", node)) : "NULL",
		e->train->shift ? "true" : "false");
}

/* Writes which norm the program computes, and which kinds of clipping it can do. */
static void put_clip(Emit *e, Buf *out)
{
	const Train *t = e->train;
	buf_printf(out, "\t.grad_norm = %s, .norm_p = %s, .clip = %s, .clip_value = %s,\n", t->norm ? "true" : "false",
		emit_c_float(e, t->norm && t->clip > 0 ? t->clip : 2), t->clip > 0 ? "true" : "false",
		t->clip_value ? "true" : "false");
}

static void put_loss_scale(Emit *e, Buf *out)
{
	const Train *t = e->train;
	if (t->loss_scale > 0)
		buf_printf(out, "\t.loss_scale = {.init = %s, .dynamic = %s, .interval = %" PRId64 "},\n",
			emit_c_float(e, t->loss_scale), t->growth_interval ? "true" : "false", t->growth_interval);
}

/* Returns how many groups there are. */
static int put_groups(Emit *e, Buf *out)
{
	const ParamGroup *group = e->train->group;
	int n = e->train->n_groups;
	if (!n)
		return 0;
	buf_printf(out, "/* Parameter groups: regular expression; %s", group_key_info[0].name);
	for (int k = 1; k < GROUP_KEYS; k++)
		buf_printf(out, ", %s", group_key_info[k].name);
	buf_printf(out, "; NAN: as in all. */\nstatic const ParamGroup groups[] = {\n");
	for (int i = 0; i < n; i++) {
		buf_printf(out, "\t{%s, {", emit_c_string(e, group[i].regex));
		for (int k = 0; k < GROUP_KEYS; k++)
			buf_printf(out, "%s%s", k ? ", " : "", emit_c_float(e, group[i].value[k]));
		buf_printf(out, "}},\n");
	}
	buf_printf(out, "};\n\n");
	return n;
}

/* ---- micro-batches ---- */

/* Writes the programs of a step of several micro-batches; size: with what the names of its functions begin. */
static void put_programs(Emit *e, Buf *out, const Variants *v, const char *size)
{
	int n[VARIANT_COUNT] = {0};
	for (int k = VARIANT_FIRST; k < VARIANT_COUNT; k++) {
		e->m = v->of[k];
		n[k] = put_collectives(e, out, SEC_FORWARD, SEC_UPDATE,
			arena_printf(e->a, "%s%s_collectives", size, variant_text[k]));
	}
	e->m = e->sizes->of[e->sizes->n - 1].of[VARIANT_ONLY];
	buf_printf(out, "static const RtProgram %smany_programs[] = {\n", size);
	for (int k = VARIANT_FIRST; k < VARIANT_COUNT; k++) {
		const char *t = arena_printf(e->a, "%s%s", size, variant_text[k]);
		const char *rows = n[k] ? arena_printf(e->a, "%s_collectives", t) : "NULL";
		buf_printf(out, "\t{%s_forward, %s_backward, %s_update, %s, %d, %s},\n", t, t, t, rows, n[k],
			ops_list(e, arena_printf(e->a, "%s_step", t)));
	}
	buf_printf(out, "};\n\n");
}

/* Writes the memory of steps of two micro-batches and of more. */
static void put_layouts(Emit *e, Buf *out)
{
	static const char *const suffix[] = {"_of_two", "_of_more"};
	LayoutModel layout[COUNT_OF(suffix)];
	for (int i = 0; i < COUNT_OF(suffix); i++) {
		layout[i] = memory_sizes(e->sizes, i + 2, e->a);
		put_layout_units(e, out, &layout[i], suffix[i]);
	}
	buf_printf(out, "static const LayoutModel many_layouts[] = {\n");
	for (int i = 0; i < COUNT_OF(suffix); i++) {
		buf_printf(out, "\t");
		put_layout(out, &layout[i], suffix[i]);
	}
	buf_printf(out, "};\n\n");
}

/* ---- several sizes ---- */

/* Writes the dims of each input at one size, in the order of tensors[]. */
static void put_dims(Emit *e, Buf *out, const Module *size, const char *name)
{
	buf_printf(out, "static const int64_t %sdims[][8] = {", name);
	const char *comma = "";
	for (int i = 0; i < e->m->n_symbols; i++) {
		const Symbol *s = e->m->symbols[i];
		if (s->kind != SYM_INPUT)
			continue;
		const Type *t = &ir_find_symbol(size, s->name)->type;
		buf_printf(out, "%s%s", comma, emit_int_list(e, t->rank, t->dim));
		comma = ", ";
	}
	buf_printf(out, "};\n");
}

static const char *size_row(Emit *e, Buf *out, int k)
{
	const Variants *v = &e->sizes->of[k];
	const Module *only = v->of[VARIANT_ONLY], *largest = e->m;
	const char *name = emit_size(e, k), *list = "{NULL, 0}", *eval = "{NULL, 0}";
	put_dims(e, out, only, *name ? name : "all_");
	e->m = only;
	int n = *name ? put_collectives(e, out, SEC_FORWARD, SEC_UPDATE, arena_printf(e->a, "%sstep_collectives", name))
		: e->n_step;
	int n_eval = *name ? put_collectives(e, out, SEC_EVAL, SEC_EVAL, arena_printf(e->a, "%seval_collectives", name))
		: e->n_evaluation;
	e->m = largest;
	if (*name && e->several)
		put_programs(e, out, v, name);
	if (n)
		list = arena_printf(e->a, "{%sstep_collectives, %d}", name, n);
	if (n_eval)
		eval = arena_printf(e->a, "{%seval_collectives, %d}", name, n_eval);
	return arena_printf(e->a,
		"\t{%s, %sdims, %s, %s, %s, %s, {%sforward, %sbackward, %supdate, NULL, 0, %s}, %s, %s},\n",
		emit_c_string(e, e->sizes->name[k]), *name ? name : "all_", emit_c_float(e, loss_count(only)), list, eval,
		e->several ? arena_printf(e->a, "%smany_programs", name) : "NULL", name, name, name,
		ops_list(e, arena_printf(e->a, "%sstep", name)), only->first[SEC_EVAL] ? arena_printf(e->a, "%seval", name)
		: "NULL", ops_list(e, arena_printf(e->a, "%seval", name)));
}

static void put_sizes(Emit *e, Buf *out)
{
	Buf rows = {0};
	for (int k = 0; k < e->sizes->n; k++) {
		const char *row = size_row(e, out, k);
		buf_put(&rows, row, strlen(row));
	}
	buf_printf(out, "/* Sizes: name, dims of inputs, elements of the loss, collectives, programs. */\n"
		"static const RtSize sizes[] = {\n%s};\n\n", rows.at);
	buf_free(&rows);
}

/* ---- the model ---- */

static const char *optimizer_name(const Emit *e)
{
	return ir_find_in_step(e->m, OP_UPDATE_SHARD) ? e->train->optimizer : NULL;
}

/* The options of the module, followed by those of the target. */
static const char *options_text(Emit *e)
{
	const char *made = e->train->options ? e->train->options : "", *built = e->target->text ? e->target->text : "";
	return arena_printf(e->a, "%s%s%s", made, *made && *built ? " " : "", built);
}

/* Whether --seed changes what a step or an evaluation computes. */
static bool draws_numbers(const Emit *e)
{
	for (int s = SEC_FORWARD; s <= SEC_EVAL; s++)
		IR_FOR_OPS(e->m, s, op)
			if (op_draws(op) || attr_find(op->attrs, "round"))
				return true;
	return false;
}

static bool owners_round_by_chance(const Module *m)
{
	for (int s = SEC_BACKWARD; s <= SEC_UPDATE; s++)
		IR_FOR_OPS(m, s, op)
			if (op->kind == OP_UPDATE_SHARD && attr_find(op->attrs, "round"))
				return true;
	return false;
}

static void put_hook(Emit *e, Buf *out)
{
	const Hook *h = &e->train->hook;
	const char *slash = strrchr(h->file, '/');
	buf_printf(out, "/* --comm-hook: %s */\nHookReduce %s;\nHookInit %s_init __attribute__((weak));\n"
		"HookExit %s_exit __attribute__((weak));\n", str_escape(e->a, ESCAPE_C_COMMENT, h->file), h->function,
		h->function, h->function);
	buf_printf(out, "static const RtHook hook = {%s, \"%s\", %s, %s_init, %s_exit};\n\n",
		emit_c_string(e, arena_printf(e->a, "%s:%s", slash ? slash + 1 : h->file, h->function)), h->function,
		h->function, h->function, h->function);
}

/* Writes what the code was built for: features of a processor, or an architecture of GPUs. */
static void put_needs(Emit *e, Buf *out)
{
	const char *arch = str_escape(e->a, ESCAPE_C_STRING, e->target->options.arch ? e->target->options.arch : "native");
	buf_printf(out, "\t.versions = \"compiler \" __VERSION__ \", arch %s\",\n", arch);
	if (codegen_cuda(e->target))
		buf_printf(out, "\t.need_cuda = \"%s\", .tf32 = %s,\n", arch,
			e->target->tf32 || e->train->tf32 ? "true" : "false");
	else
		buf_printf(out, "\t.need_cpu = need_cpu,\n");
}

/* The number of rows of each table. */
typedef struct Counts { int files, tensors, step, evaluation, outputs, groups, checks, scales; } Counts;

/* Writes fields in the order of RtModel's declaration, as C++ requires. */
static void put_model(Emit *e, Buf *out, const LayoutModel *layout, const Counts *n)
{
	const Module *m = e->m;
	buf_printf(out, "static const RtModel model = {\n\t.name = %s,\n\t.options = %s,\n", emit_c_string(e, m->name),
		emit_c_string(e, options_text(e)));
	put_needs(e, out);
	if (n->tensors)
		buf_printf(out, "\t.tensors = tensors, .n_tensors = %d,\n", n->tensors);
	if (m->n_units)
		buf_printf(out, "\t.unit_names = unit_names, .unit_uses = unit_uses,\n");
	buf_printf(out, "\t.layout = ");
	put_layout(out, layout, "");
	if (n->step)
		buf_printf(out, "\t.step = step_collectives, .n_step = %d,\n", n->step);
	if (n->evaluation)
		buf_printf(out, "\t.evaluation = eval_collectives, .n_evaluation = %d,\n", n->evaluation);
	if (e->several)
		buf_printf(out, "\t.programs = many_programs, .layouts = many_layouts,\n");
	if (e->sizes->n > 1)
		buf_printf(out, "\t.sizes = sizes, .n_sizes = %d,\n", e->sizes->n);
	buf_printf(out, "\t.world = %" PRId64 ",\n", m->world);
	if (n->files)
		buf_printf(out, "\t.files = files, .n_files = %d,\n", n->files);
	buf_printf(out, "\t.batch = %" PRId64 ", .optimizer = %s,\n", m->batch, emit_c_string(e, optimizer_name(e)));
	if (n->checks)
		buf_printf(out, "\t.checks = checks, .n_checks = %d,\n", n->checks);
	if (n->scales)
		buf_printf(out, "\t.scales = scales, .n_scales = %d,\n", n->scales);
	if (n->groups)
		buf_printf(out, "\t.groups = groups, .n_groups = %d,\n", n->groups);
	put_loss(e, out);
	put_loss_scale(e, out);
	if (draws_numbers(e))
		buf_printf(out, "\t.random = true,\n");
	if (owners_round_by_chance(e->m))
		buf_printf(out, "\t.by_chance = true,\n");
	put_clip(e, out);
	if (ir_find_in_step(m, OP_BROADCAST_BUFFERS))
		buf_printf(out, "\t.first_buffers = true,\n");
	buf_printf(out, "\t.setup = setup, .forward = forward, .backward = backward, .update = update,%s\n"
		"\t.n_prims = %d,\n", m->first[SEC_EVAL] ? " .eval = eval," : "", map_count(e->prims));
	if (e->n_copies)
		buf_printf(out, "\t.n_copies = %d,\n", e->n_copies);
	buf_printf(out, "\t.step_ops = %s, .eval_ops = %s, .hash = UINT64_C(0x%016" PRIx64 "),\n", ops_list(e, "step"),
		ops_list(e, "eval"), ir_program_hash(e->sizes));
	if (ops_kernels(e))
		buf_printf(out, "\t.kernels = op_kernels, .n_kernels = %d,\n", ops_kernels(e));
	if (e->train->hook.file)
		buf_printf(out, "\t.hook = &hook,\n");
	if (n->outputs)
		buf_printf(out, "\t.outputs = outputs, .n_outputs = %d,\n", n->outputs);
	buf_printf(out, "};\n\n");
}

/* Returns how many scales of weights there are.  They lie one behind the other. */
static int put_scales(Emit *e, Buf *out)
{
	const Module *m = e->m;
	int n = 0;
	int64_t end = 0;
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i], *first = s->kind == SYM_SCALE ? scale_param(m, s) : NULL;
		if (!first)
			continue;
		if (n && s->offset != end)
			ice("scale \"%s\" lies apart from the one before", s->name);
		end = s->offset + LAYOUT_SCALE_BYTES;
		buf_printf(out, "%s\t{%d, %d, %" PRId64 ", %" PRId64 "}", n++ ? ",\n"
			: "/* Scales of weights that are gathered in 8 bits: unit, flat, first element, bytes in the state. */\n"
			"static const RtScale scales[] = {\n", first->unit->index, first->flat, first->offset, s->offset);
	}
	buf_printf(out, n ? "\n};\n\n" : "");
	return n;
}

void tables_write(Emit *e, Buf *out)
{
	buf_printf(out, "#include \"ops.h\"\n\n");
	Counts n = {.files = tensors_files(e, out), .tensors = tensors_write(e, out)};
	LayoutModel layout = memory_sizes(e->sizes, 1, e->a);
	if (layout.n_units) {
		put_unit_names(e, out);
		put_layout_units(e, out, &layout, "");
	}
	n.step = put_collectives(e, out, SEC_FORWARD, SEC_UPDATE, "step_collectives");
	n.evaluation = put_collectives(e, out, SEC_EVAL, SEC_EVAL, "eval_collectives");
	n.outputs = put_outputs(e, out);
	n.groups = put_groups(e, out);
	n.checks = checks_write(e, out);
	n.scales = put_scales(e, out);
	e->n_step = n.step;
	e->n_evaluation = n.evaluation;
	if (e->several) {
		put_programs(e, out, e->several, "");
		put_layouts(e, out);
	}
	if (e->sizes->n > 1)
		put_sizes(e, out);
	if (e->train->hook.file)
		put_hook(e, out);
	put_model(e, out, &layout, &n);
	buf_printf(out, "%s", e->target->library ? "const RtModel *rt_library_model(void)\n{\n\treturn &model;\n}\n" :
		"int main(int argc, char **argv)\n{\n\treturn rt_main(argc, argv, &model);\n}\n");
}
