/* advice.c: `shardc init`.
 *
 * What an input means is told by the ops that read it, and what loss fits by the shape of an output and the op that
 * makes it.  Each guess is printed with its evidence; names are evidence only where nothing else is. */
#include "advice.h"

#include <inttypes.h>
#include <string.h>

#include "options.h"

enum { BATCH = 32, LENGTH = 128, SIDE = 224, REACH = 64 };

/* ---- sizes of free dims ---- */

/* Axis 0 has samples; of four axes the last two are an image's, of two or three one is a length. */
static int64_t likely_size(const DeclaredInput *in, int axis)
{
	return !axis ? BATCH : in->rank == 4 && axis > 1 ? SIDE : LENGTH;
}

static bool add(OptionList *list, const char *value, Diag *d)
{
	if (list->n == OPTION_LIST_MAX) {
		diag_error(d, "shardc init", "the model has more than %d free dimensions", OPTION_LIST_MAX);
		return false;
	}
	list->at[list->n++] = value;
	return true;
}

/* An input with a dim that has no name gets a whole shape. */
static bool bind_shape(OptionList *shapes, const DeclaredInput *in, Arena *a, Diag *d)
{
	Buf b = {0};
	buf_printf(&b, "%s=", in->name);
	for (int k = 0; k < in->rank; k++)
		buf_printf(&b, "%s%" PRId64, k ? "x" : "", in->dim[k] < 0 ? likely_size(in, k) : in->dim[k]);
	const char *value = arena_strdup(a, b.at);
	buf_free(&b);
	return add(shapes, value, d);
}

static bool bind_input(GraphOptions *o, const DeclaredInput *in, Arena *a, Diag *d)
{
	if (options_list_has(&o->input_shape, in->name))
		return true;
	for (int k = 0; k < in->rank; k++)
		if (in->dim[k] < 0 && !*in->param[k])
			return bind_shape(&o->input_shape, in, a, d);
	for (int k = 0; k < in->rank; k++)
		if (in->dim[k] < 0 && !options_list_has(&o->bind, in->param[k])
				&& !add(&o->bind, arena_printf(a, "%s=%" PRId64, in->param[k], likely_size(in, k)), d))
			return false;
	return true;
}

bool advice_bind(Options *o, Arena *a, Diag *d)
{
	DeclaredInputVec inputs = {0};
	if (!onnx_declared(o->input, a, &inputs, d))
		return false;
	for (int i = 0; i < inputs.n; i++)
		if (!bind_input(&o->graph, &inputs.at[i], a, d))
			return false;
	return true;
}

/* ---- what a module says ---- */

typedef struct Advice {
	const Module *m;
	const Options *o;
	Arena *a;
	FILE *out;
	const Op *output;       /* the one that the loss reads; NULL: none fits */
	int64_t table;          /* rows of the table that the first token input indexes; 0 = there is none */
	const Symbol *tokens;   /* that input */
	const char *labels;     /* the input that the loss adds; NULL: none */
	DType labels_dtype;
	const char *shape;      /* of all its samples: "[N,128]" */
} Advice;

static bool is_param(const Value *v)
{
	while (v && v->op->kind != OP_PARAM && op_in(v->op, 0) && op_info[v->op->kind].flags & (VIEW | EW))
		v = v->op->in[0].value;
	return v && v->op->kind == OP_PARAM;
}

/* What reads an input, or a value that elementwise ops and moves make of it. */
typedef struct Reader { const Op *op; int at; } Reader;

static bool passes_on(const Op *op)
{
	return op_info[op->kind].flags & (EW | VIEW) || op->kind == OP_TRANSPOSE || op->kind == OP_SLICE
		|| op->kind == OP_BROADCAST;
}

static bool is_among(const Value *v, int n, const Value *const *seen)
{
	for (int i = 0; i < n; i++)
		if (seen[i] == v)
			return true;
	return false;
}

/* Whether op reads nothing but what is seen and constants, as far as one op tells. */
static bool is_alone(const Op *op, int n, const Value *const *seen)
{
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op_in(op, i);
		while (v && (v->op->kind == OP_BROADCAST || op_info[v->op->kind].flags & VIEW))
			v = op_in(v->op, 0);
		if (v && v->op->kind != OP_CONST && v->op->kind != OP_IOTA && !is_among(v, n, seen))
			return false;
	}
	return true;
}

/* Of those that read v the first for which `is` holds; alone: what is read follows from v and constants alone.  Op
 * NULL: none within REACH values. */
static Reader reads(const Value *v, bool (*is)(const Op *op, int at), bool alone)
{
	const Value *seen[REACH] = {v};
	for (int i = 0, n = 1; i < n; i++)
		for (const Use *u = seen[i]->uses; u; u = u->next) {
			int at = (int)(u - u->op->in);
			if (is(u->op, at))
				return (Reader){u->op, at};
			if (passes_on(u->op) && n < REACH && (!alone || is_alone(u->op, n, seen)))
				seen[n++] = u->op->out[0];
		}
	return (Reader){0};
}

static Reader reader_of(const Value *v, bool (*is)(const Op *op, int at))
{
	return reads(v, is, false);
}

static bool looks_up(const Op *op, int at)
{
	return op->kind == OP_GATHER && at == 1 && is_param(op_in(op, 0));
}

static bool convolves(const Op *op, int at)
{
	return op->kind == OP_CONV && at == 0;
}

static bool masks(const Op *op, int at)
{
	return (op->kind == OP_ATTENTION && at >= 3) || op->kind == OP_SOFTMAX;
}

static bool chooses(const Op *op, int at)
{
	return op->kind == OP_WHERE && at == 0;
}

static bool classifies(const Op *op, int at)
{
	return op->kind == OP_CROSS_ENTROPY && at == 1;
}

static bool picks(const Op *op, int at)
{
	return op->kind == OP_GATHER_ELEMENTS && at == 1;
}

/* Numbers that are compared with positions, or that end recurrences. */
static bool ends(const Op *op, int at)
{
	return op->kind == OP_LT || op->kind == OP_LE || op->kind == OP_GT || op->kind == OP_GE
		|| (op->kind == OP_RECURRENCE && !dtype_is_float(op_in(op, at)->type.dtype));
}

/* Of whole numbers that choose among values, as the classes of a loss of the model's own; NULL: they do not. */
static const char *meaning_of_choice(Advice *c, const Value *v)
{
	Reader r = reader_of(v, classifies);
	if (r.op) {
		const Type *scores = &op_in(r.op, 0)->type;
		return arena_printf(c->a, "classes 0 to %" PRId64 ", or %" PRId64 " where there is none (a cross-entropy reads "
			"it)", scores->dim[scores->rank - 1] - 1, attr_get_int(r.op->attrs, "ignore_index", -100));
	}
	r = reader_of(v, picks);
	return r.op ? arena_printf(c->a, "numbers below %" PRId64 " (each picks one of so many values)",
		op_in(r.op, 0)->type.dim[attr_get_int(r.op->attrs, "axis", 0)]) : NULL;
}

static const char *meaning(Advice *c, const Symbol *s, const Value *v)
{
	Reader r = reader_of(v, looks_up);
	bool whole = !dtype_is_float(s->type.dtype);
	if (whole && r.op) {
		int64_t rows = op_in(r.op, 0)->type.dim[attr_get_int(r.op->attrs, "axis", 0)];
		if (!c->tokens && s->type.rank == 2) {
			c->tokens = s;
			c->table = rows;
		}
		return arena_printf(c->a, "numbers below %" PRId64 " (rows of a table of %" PRId64 " are looked up by it)",
			rows, rows);
	}
	r = reader_of(v, convolves);
	if (r.op && s->type.rank == 4)
		return "images (a convolution reads it)";
	if (r.op)
		return "a signal (a convolution reads it)";
	if (whole && s->type.rank == 1 && s->type.dtype != DT_BOOL && reader_of(v, ends).op)
		return "a number for each sample, such as its length (comparisons or recurrences read it)";
	const char *choice = whole ? meaning_of_choice(c, v) : NULL;
	if (choice)
		return choice;
	if (reader_of(v, masks).op || reads(v, chooses, true).op)
		return "a mask (attention or a choice between values reads it): 1 where there is something";
	return whole ? "whole numbers" : v->n_uses ? "values" : "not used by any output";
}

/* "[N,1,8,8]": the samples' axis as N. */
static const char *shape_text(Advice *c, const Type *t, int rank, bool batched)
{
	Buf b = {0};
	for (int k = 0; k < rank; k++)
		if (!k && batched)
			buf_printf(&b, "[N");
		else
			buf_printf(&b, "%s%" PRId64, k ? "," : "[", t->dim[k]);
	buf_printf(&b, "%s]", rank ? "" : "[");
	const char *text = arena_strdup(c->a, b.at);
	buf_free(&b);
	return text;
}

/* What numpy's astype is given; bf16 is a type of another package. */
static const char *numpy_type(Advice *c, DType t)
{
	static const char *const kinds[] = {[CLASS_FLOAT] = "float", [CLASS_INT] = "int", [CLASS_UINT] = "uint"};
	const DTypeInfo *i = &dtype_info[t];
	if (t == DT_BF16)
		return "ml_dtypes.bfloat16";
	return i->kind == CLASS_BOOL ? "\"bool\"" : arena_printf(c->a, "\"%s%d\"", kinds[i->kind], 8 * (int)i->bytes);
}

/* The name as one of a file and of a variable of Python. */
static const char *plain_name(Advice *c, const char *name)
{
	char *plain = arena_strdup(c->a, name);
	for (char *s = plain; *s; s++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", *s))
			*s = '_';
	return plain;
}

/* The text as one word of a shell; what a terminal must not get is escaped, and such a word is to be read only. */
static const char *word(Advice *c, const char *text)
{
	const char *shown = str_escape(c->a, ESCAPE_TERMINAL, text);
	if (strcmp(shown, text))
		return str_escape(c->a, ESCAPE_SHELL, shown);
	const char *plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,-+@%";
	return *text && !text[strspn(text, plain)] ? text : str_escape(c->a, ESCAPE_SHELL, text);
}

static void print_inputs(Advice *c)
{
	fprintf(c->out, "inputs\n");
	for (const Op *op = c->m->first[SEC_FORWARD]; op; op = op->next) {
		if (op->kind != OP_INPUT)
			continue;
		const Symbol *s = op->sym;
		fprintf(c->out, "  %-16s %s: %s%s\n", str_escape(c->a, ESCAPE_TERMINAL, s->name), type_str(c->a, &s->type),
			meaning(c, s, op->out[0]), s->batched || !c->m->batch ? "" : "; the same for all samples (--const)");
	}
}

/* ---- the loss ---- */

/* The output that a loss reads: one called loss or logits, else the first of floats. */
static const Op *output_of(const Module *m)
{
	const Op *first = NULL;
	for (const Op *op = m->first[SEC_FORWARD]; op; op = op->next) {
		if (op->kind != OP_OUTPUT || !dtype_is_float(op_in(op, 0)->type.dtype))
			continue;
		if (!strcmp(op->sym->name, "loss") || !strcmp(op->sym->name, "logits"))
			return op;
		first = first ? first : op;
	}
	return first;
}

static bool is_causal(const Module *m)
{
	for (const Op *op = m->first[SEC_FORWARD]; op; op = op->next)
		if (op->kind == OP_ATTENTION && attr_get_int(op->attrs, "right", -1) == 0)
			return true;
	return false;
}

/* An input of the same shape as the output, which is then a picture of it. */
static const Symbol *alike(const Advice *c, const Type *t)
{
	for (int i = 0; i < c->m->n_symbols; i++) {
		const Symbol *s = c->m->symbols[i];
		if (s->kind == SYM_INPUT && t->rank > 1 && dtype_is_float(s->type.dtype) && type_same_shape(&s->type, t))
			return s;
	}
	return NULL;
}

/* Whether a convolution makes v, so that axis 1 has its channels. */
static bool is_of_conv(const Value *v)
{
	while (op_info[v->op->kind].flags & EW && v->op->n_in && op_in(v->op, 0))
		v = op_in(v->op, 0);
	return v->op->kind == OP_CONV;
}

static const char *classes(Advice *c, const Type *t, int axis, const char *why)
{
	c->labels = "labels";
	c->labels_dtype = DT_I64;
	Type rest = *t;
	rest.rank = 0;
	for (int k = 0; k < t->rank; k++)
		if (k != axis)
			rest.dim[rest.rank++] = t->dim[k];
	c->shape = shape_text(c, &rest, rest.rank, true);
	fprintf(c->out, "  cross_entropy    %s; labels are classes 0 to %" PRId64 ", or -100 where there is none\n", why,
		t->dim[axis] - 1);
	bool plain = t->rank == 2 || (t->rank == 3 && c->table == t->dim[axis]);
	return plain ? "cross_entropy" : arena_printf(c->a, "cross_entropy:axis=%d", axis);
}

static const char *targets(Advice *c, const Type *t, const char *kind, const char *why)
{
	c->labels = "target";
	c->labels_dtype = DT_F32;
	c->shape = shape_text(c, t, t->rank, true);
	fprintf(c->out, "  %-16s %s\n", kind, why);
	return kind;
}

/* The value of --loss, and why. */
static const char *loss_of(Advice *c)
{
	const Value *v = op_in(c->output, 0);
	const Type *t = &v->type;
	const Symbol *same = alike(c, t);
	int64_t last = t->rank ? t->dim[t->rank - 1] : 0;
	if (type_numel(t) == 1 && t->rank <= 1) {
		fprintf(c->out, "  output:%-9s it is one number, which the model computes itself\n", c->output->sym->name);
		return arena_printf(c->a, "output:%s", c->output->sym->name);
	}
	if (c->table && t->rank == 3 && last == c->table)
		return classes(c, t, 2, is_causal(c->m)
			? "a number for each token of the table at each place, by attention to places before it: the next token"
			: "a number for each token of the table at each place: the token that belongs there");
	if (same)
		return targets(c, t, "mse", arena_printf(c->a, "it has the shape of input %s", same->name));
	bool by_conv = t->rank == 4 || (t->rank == 3 && is_of_conv(v));
	if (by_conv && t->dim[1] > 1)
		return classes(c, t, 1, t->rank == 4 ? "axis 1 has a number for each class at each place of an image"
			: "axis 1 has a number for each class at each place of a signal (a convolution makes it)");
	if (by_conv)
		return targets(c, t, "bce_with_logits",
			"one number for each place, as of a yes or no (mse, if it is measured)");
	if (t->rank >= 2 && last > 1)
		return classes(c, t, t->rank - 1,
			t->rank == 2
			? "the last axis has a number for each class (bce_with_logits, if several classes can be true at once; "
				"mse, if they are measured values: both read target.npy, f32 of the output's shape)"
			: "the last axis has a number for each class (mse, if they are measured values)");
	return targets(c, t, "mse",
		"one number for each sample, as of a measured value (bce_with_logits, if it is a yes or no)");
}

static void warn_end(Advice *c)
{
	OpKind kind = op_in(c->output, 0)->op->kind;
	if (kind == OP_SOFTMAX || kind == OP_SIGMOID)
		fprintf(c->out, "  note: the model ends in %s, which cross_entropy and bce_with_logits do themselves: export "
			"what is in front of it\n", op_info[kind].text);
}

/* ---- how it was exported ---- */

static void note_export(Advice *c)
{
	int convs = 0, biased = 0, norms = 0;
	for (const Op *op = c->m->first[SEC_FORWARD]; op; op = op->next) {
		bool conv = op->kind == OP_CONV;
		convs += conv;
		biased += conv && op->n_in > 2 && op_in(op, 2);
		norms += op->kind == OP_BATCH_NORM;
	}
	if (convs >= 8 && biased == convs && !norms)
		fprintf(c->out, "note: %d convolutions with biases, no batch norm: an export in eval mode folds batch norms "
			"into convolutions; to train as the module would, call model.train() and export it with shardc.export\n",
			convs);
}

/* Nothing binds the samples' axis: the batch is the export's example. */
static void note_batch(Advice *c)
{
	if (c->m->batch && !c->o->graph.bind.n && !c->o->graph.input_shape.n)
		fprintf(c->out, "note: the file fixes the batch, a step of each rank, at %" PRId64 " samples: an export with "
			"a free first axis leaves it to --bind (shardc.export: dynamic_batch=True; torch.onnx.export: dynamic_axes "
			"or dynamic_shapes)\n", c->m->batch);
}

/* Parameters of another type than f32 are refused when compiling. */
static void note_types(Advice *c)
{
	const Symbol *first = NULL;
	for (int i = 0; i < c->m->n_symbols && !first; i++) {
		const Symbol *s = c->m->symbols[i];
		if (s->kind == SYM_PARAM && s->trainable && s->type.dtype != DT_F32)
			first = s;
	}
	if (first)
		fprintf(c->out, "note: parameter %s is %s, and only f32 is trained: export model.float(); --param-dtype=bf16 "
			"then computes in 16 bits\n", str_escape(c->a, ESCAPE_TERMINAL, first->name),
			dtype_info[first->type.dtype].text);
}

/* ---- data and commands ---- */

static void print_data(Advice *c)
{
	fprintf(c->out, "\ndata: a file for each, samples along the first axis\n");
	for (int i = 0; i < c->m->n_symbols; i++) {
		const Symbol *s = c->m->symbols[i];
		const char *name = plain_name(c, s->name);
		if (s->kind == SYM_INPUT)
			fprintf(c->out, "  np.save(\"%s.npy\", %s.astype(%s))    # %s\n", name, name,
				numpy_type(c, s->type.dtype), shape_text(c, &s->type, s->type.rank, s->batched));
	}
	if (c->labels)
		fprintf(c->out, "  np.save(\"%s.npy\", %s.astype(%s))    # %s\n", c->labels, c->labels,
			numpy_type(c, c->labels_dtype), c->shape);
}

static int64_t trained_bytes(const Module *m)
{
	int64_t bytes = 0;
	for (int i = 0; i < m->n_symbols; i++)
		if (m->symbols[i]->kind == SYM_PARAM && m->symbols[i]->trainable)
			bytes += type_bytes(&m->symbols[i]->type);
	return bytes;
}

static void print_list(Advice *c, const char *flag, const OptionList *list)
{
	for (int i = 0; i < list->n; i++)
		fprintf(c->out, " %s %s", flag, word(c, list->at[i]));
}

/* A stream of tokens feeds one input and the labels, and no others. */
static bool is_fed_by_stream(const Advice *c)
{
	int n = 0;
	for (int i = 0; i < c->m->n_symbols; i++)
		n += c->m->symbols[i]->kind == SYM_INPUT && c->m->symbols[i]->batched && c->m->symbols[i] != c->tokens
			&& (!c->labels || strcmp(c->m->symbols[i]->name, c->labels));
	return c->tokens && c->labels && !n && is_causal(c->m);
}

static void print_training(Advice *c)
{
	fprintf(c->out, "\n  ./train");
	for (int i = 0; i < c->m->n_symbols; i++) {
		const Symbol *s = c->m->symbols[i];
		if (s->kind == SYM_INPUT)
			fprintf(c->out, " --%s %s", s->batched ? "data" : "const",
				word(c, arena_printf(c->a, "%s=%s.npy", s->name, plain_name(c, s->name))));
	}
	if (c->labels)
		fprintf(c->out, " --data %s=%s.npy", c->labels, c->labels);
	fprintf(c->out, " --steps 1000 --lr 1e-3 --save ckpt\n");
	if (is_fed_by_stream(c))
		fprintf(c->out, "  ./train --tokens tokens.u%d --steps 1000    one stream of tokens feeds inputs and labels\n",
			c->table > 65536 ? 32 : 16);
}

static void print_commands(Advice *c, const char *loss)
{
	int64_t bytes = trained_bytes(c->m);
	fprintf(c->out, "\ncompile and train\n  shardc %s -o train --loss=%s", word(c, c->o->input), word(c, loss));
	print_list(c, "--bind", &c->o->graph.bind);
	print_list(c, "--input-shape", &c->o->graph.input_shape);
	print_list(c, "--const", &c->o->graph.constants);
	print_training(c);
	fprintf(c->out, "  parameters, gradients and states of adamw take %.1f MiB: %s\n", (double)bytes * 4 / (1 << 20),
		bytes < (int64_t)1 << 30
			? "each rank may hold them whole (--strategy=no_shard), which moves least between ranks"
			: "--strategy=full_shard, the default, splits them over the ranks; see shardc plan --world=N");
}

void advice_print(FILE *out, const Module *m, const Options *o, Arena *a)
{
	Advice c = {.m = m, .o = o, .a = a, .out = out, .output = output_of(m)};
	print_inputs(&c);
	note_export(&c);
	note_batch(&c);
	note_types(&c);
	if (!c.output) {
		fprintf(out, "\nno output holds floats: there is nothing that a loss could read\n");
		return;
	}
	fprintf(out, "\nloss of output %s, %s\n", str_escape(a, ESCAPE_TERMINAL, c.output->sym->name),
		type_str(a, &op_in(c.output, 0)->type));
	const char *loss = loss_of(&c);
	warn_end(&c);
	print_data(&c);
	print_commands(&c, loss);
}
