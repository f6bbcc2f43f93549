/* ckpt/import.c: shardc ckpt import: makes a checkpoint of kind full, from which a program of the model can resume, of
 * PyTorch's weights and optimizer states in safetensors files.
 *
 * A state's name is split at its last dot; before it stands the parameter's name or number.  Buffers of integers and
 * second names of tied weights are left out.  Refuses, reporting all at once: tensors that only the model or only the
 * files have; differing shapes and dtypes; states of an optimizer that programs do not have. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/optimizer.h"
#include "base/unfinished.h"
#include "ckpt/model.h"
#include "ckpt/states.h"

typedef struct Import {
	const char *weights, *states, *onnx, *out, *options, *optimizer;
	const CkptCall *call;
	int64_t step, samples;      /* as given; step 0: not given */
	Arena *a;
	OnnxWriter *writer;
	Checkpoint *from, *optim;   /* optim: NULL when no states are given */
	const char *const *names;   /* parameters by number, for numbered states */
	int n_names;
	int64_t updates;
	Diag *d;
} Import;

static const char *quoted(const Import *im, const char *name)
{
	return str_escape(im->a, ESCAPE_IR, name);
}

/* ---- weights ---- */

static bool same_elements(const CheckpointTensor *a, const CheckpointTensor *b)
{
	enum { BYTES = 1 << 14 };
	char x[BYTES], y[BYTES];
	bool same = a->dtype == b->dtype && a->rank == b->rank &&
		!memcmp(a->dim, b->dim, (size_t)a->rank * sizeof(*a->dim));
	int64_t size = dtype_info[a->dtype].bytes;
	for (int64_t i = 0, n; same && i < a->numel; i += n) {
		n = MIN(BYTES / size, a->numel - i);
		ckpt_bytes(a, i, n, x);
		ckpt_bytes(b, i, n, y);
		same = !memcmp(x, y, (size_t)(n * size));
		ckpt_release(a, i, n);
		ckpt_release(b, i, n);
	}
	return same;
}

/* The first of two tensors that stand for one parameter; reports an error if they are not equal. */
static const CheckpointTensor *either(const Import *im, const char *where, const CheckpointTensor *a,
	const CheckpointTensor *b)
{
	if (a && b && a != b && !same_elements(a, b))
		diag_error(im->d, where, "tensors \"%s\" and \"%s\" are one parameter of the model, and are not equal: leave "
			"one of them out", quoted(im, a->name), quoted(im, b->name));
	return a ? a : b;
}

/* The tensor for a symbol, under any of the names that the framework has for it; NULL: there is none. */
static const CheckpointTensor *find(const Import *im, const Symbol *s)
{
	const char *const *alias;
	int n = onnx_writer_aliases(im->writer, s, im->a, &alias);
	const CheckpointTensor *t = checkpoint_find(im->from, CHECKPOINT_MODEL, s->name);
	for (int i = 0; i < n; i++)
		t = either(im, im->weights, t, checkpoint_find(im->from, CHECKPOINT_MODEL, alias[i]));
	return t;
}

static bool is_alias(const Import *im, const Symbol *s, const char *name)
{
	const char *const *alias;
	int n = onnx_writer_aliases(im->writer, s, im->a, &alias);
	for (int i = 0; i < n; i++)
		if (!strcmp(alias[i], name))
			return true;
	return false;
}

static const Symbol *symbol_of(const Import *im, const char *name)
{
	const Module *m = onnx_writer_module(im->writer);
	const Symbol *s = ir_find_symbol(m, name);
	if (s && ckpt_is_weight(s))
		return s;
	for (int i = 0; i < m->n_symbols; i++)
		if (ckpt_is_weight(m->symbols[i]) && is_alias(im, m->symbols[i], name))
			return m->symbols[i];
	return NULL;
}

static void take_weights(Import *im, OutputFile *f)
{
	const Module *m = onnx_writer_module(im->writer);
	const CheckpointList *list = &im->from->section[CHECKPOINT_MODEL];
	const char *left_out = NULL;
	int n = 0;
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		const CheckpointTensor *t = ckpt_is_weight(s) ? find(im, s) : NULL;
		if (t && ckpt_fits(im->weights, t, s, true, im->a, im->d))
			output_copy(im->a, f, s->name, t);
		else if (!t && ckpt_is_weight(s))
			diag_error(im->d, im->weights, "there is no tensor \"%s\", which the model has as %s", quoted(im, s->name),
				type_str(im->a, &s->type));
	}
	for (int i = 0; i < list->n; i++) {
		const CheckpointTensor *t = &list->at[i];
		if (!dtype_is_float(t->dtype))
			left_out = n++ ? left_out : t->name;
		else if (!symbol_of(im, t->name))
			diag_error(im->d, im->weights, "the model has no tensor \"%s\"", quoted(im, t->name));
	}
	if (n)
		diag_note(im->d, im->weights, "%d tensor(s) of integers are left out: \"%s\"%s", n, quoted(im, left_out),
			n > 1 ? ", .." : "");
}

/* ---- states ---- */

/* Reads the parameters' names from the file's metadata, one per line. */
static void read_names(Import *im)
{
	VEC(const char *) names = {0};
	const char *text = map_get(im->optim->files[0]->meta, STATE_PARAMS);
	for (const char *s = text; s && *s;) {
		size_t n = strcspn(s, "\n");
		const char *name = arena_strndup(im->a, s, n);
		vec_push(im->a, &names, name);
		s += n + (s[n] == '\n');
	}
	im->names = names.at;
	im->n_names = names.n;
}

/* The parameter that the state belongs to, and the state's own name, for "state.0.exp_avg", "0.exp_avg" or
 * "fc.weight.exp_avg".  NULL after an error. */
static const char *split(const Import *im, const char *name, const char **state)
{
	const char *dot = strrchr(name, '.'), *end;
	const char *param = dot ? arena_strndup(im->a, name, (size_t)(dot - name)) : "";
	*state = dot ? dot + 1 : "";
	if (!strncmp(param, "state.", 6) && !symbol_of(im, param))
		param += 6;
	end = param + strspn(param, "0123456789");
	if (end == param || *end)
		return param;
	int64_t i = strtoll(param, NULL, 10);
	if (i < im->n_names)
		return im->names[i];
	diag_error(im->d, im->states, im->n_names ? "tensor \"%s\": there are %d parameters"
		: "tensor \"%s\": which parameter is that?  Write their names, in the optimizer's order, one a line "
		"into the file's metadata \"params\"",
		quoted(im, name), im->n_names);
	return NULL;
}

typedef struct States {
	const CheckpointTensor *of[OPTIMIZER_STATES]; /* in the order of OptimizerInfo.states */
	double step;                                 /* -1: there is no such tensor */
} States;

static int find_state(const OptimizerInfo *info, const char *state)
{
	for (int k = 0; k < info->n_states; k++)
		if (!strcmp(info->states[k], state))
			return k;
	return -1;
}

/* The optimizer that a state is taken for: that of --optimizer; without it the default one, or the first in the table
 * that has such a state.  NULL: none has. */
static const OptimizerInfo *find_kind(const Import *im, const char *state)
{
	OptimizerChoice choice;
	if (optimizer_read(im->optimizer, &choice) && (im->optimizer || find_state(choice.info, state) >= 0))
		return find_state(choice.info, state) >= 0 ? choice.info : NULL;
	for (int i = 0; i < OPTIMIZER_COUNT; i++)
		if (find_state(&optimizer_info[i], state) >= 0)
			return &optimizer_info[i];
	return NULL;
}

static void take_step(const Import *im, const CheckpointTensor *t, States *to)
{
	double before = to->step;
	if (t->numel == 1)
		ckpt_numbers(t, 0, 1, &to->step);
	if (before >= 0 && to->step != before)
		diag_error(im->d, im->states, "tensor \"%s\" says %.17g updates, under another name it is %.17g",
			quoted(im, t->name), to->step, before);
	if (t->numel != 1 || !(to->step >= 0 && to->step <= 1e15 && to->step == floor(to->step)))
		diag_error(im->d, im->states, "tensor \"%s\" is not one number of updates", quoted(im, t->name));
}

static bool fits_state(const Import *im, const CheckpointTensor *t, const Symbol *s)
{
	Symbol state = *s;
	state.type.dtype = DT_F32;
	return ckpt_fits(im->states, t, &state, true, im->a, im->d);
}

/* Maps each symbol to its states; *kind is set to the optimizer that has these states. */
static PtrMap *sort_states(const Import *im, const OptimizerInfo **kind)
{
	PtrMap *of = ptrmap_new(im->a);
	const CheckpointList *list = &im->optim->section[CHECKPOINT_MODEL];
	for (int i = 0; i < list->n; i++) {
		const CheckpointTensor *t = &list->at[i];
		const char *state, *param = split(im, t->name, &state);
		const Symbol *s = param ? symbol_of(im, param) : NULL;
		const OptimizerInfo *k = find_kind(im, state);
		if (!s && param)
			diag_error(im->d, im->states, "tensor \"%s\": the model has no parameter \"%s\"", quoted(im, t->name),
				quoted(im, param));
		if (!s)
			continue;
		States *to = ptrmap_get(of, s);
		if (!to) {
			to = NEW(im->a, States);
			to->step = -1;
			ptrmap_put(of, s, to);
		}
		if (!strcmp(state, "step"))
			take_step(im, t, to);
		else if (!k || (*kind && k != *kind))
			diag_error(im->d, im->states, "tensor \"%s\": \"%s\" is no state of %s", quoted(im, t->name),
				quoted(im, state), *kind ? (*kind)->text : im->optimizer ? im->optimizer :
				"adam, adamw, sgd or adagrad");
		else if (fits_state(im, t, s)) {
			*kind = k;
			const CheckpointTensor **of_state = &to->of[find_state(k, state)];
			*of_state = either(im, im->states, *of_state, t);
		}
	}
	return of;
}

/* Writes a parameter's states; zeros if the file has none for it, or no file is given. */
static void put_states(const Import *im, OutputFile *f, const OptimizerInfo *kind, const Symbol *s,
	const States *states)
{
	for (int k = 0; k < kind->n_states; k++) {
		const char *name = arena_printf(im->a, "%s.%s", s->name, kind->states[k]);
		if (states && states->of[k])
			output_copy(im->a, f, name, states->of[k]);
		else if (states)
			diag_error(im->d, im->states, "there is no tensor \"%s\"", quoted(im, name));
		else if (!im->optim)
			output_tensor(im->a, f, name, DT_F32, s->type.rank, s->type.dim);
	}
}

static bool is_param(const Symbol *s)
{
	return s->kind == SYM_PARAM && dtype_is_float(s->type.dtype);
}

/* Sets the number of updates, and lists the parameters that had fewer. */
static void count_updates(Import *im, const PtrMap *of, json_t *began)
{
	const Module *m = onnx_writer_module(im->writer);
	bool counted = false;
	for (int i = 0; i < m->n_symbols; i++) {
		const States *states = ptrmap_get(of, m->symbols[i]);
		counted = counted || (states && states->step >= 0);
		im->updates = MAX(im->updates, states ? (int64_t)states->step : 0);
	}
	if (!counted)
		im->updates = im->step;
	for (int i = 0; i < m->n_symbols && counted; i++) {
		const States *states = ptrmap_get(of, m->symbols[i]);
		if (states && states->step < 0)
			diag_error(im->d, im->states, "there is no tensor \"%s.step\"", quoted(im, m->symbols[i]->name));
		else if (states && (int64_t)states->step < im->updates)
			json_object_set_new(began, m->symbols[i]->name, json_integer(im->updates - (int64_t)states->step));
	}
}

static void take_states(Import *im, OutputFile *f, json_t *began)
{
	const Module *m = onnx_writer_module(im->writer);
	const OptimizerInfo *kind = NULL;
	PtrMap *of = im->optim ? sort_states(im, &kind) : ptrmap_new(im->a);
	const char *without = NULL;
	int n_without = 0;
	OptimizerChoice choice;
	if (!im->optim && im->optimizer && optimizer_read(im->optimizer, &choice))
		kind = choice.info;
	for (int i = 0; i < m->n_symbols && kind; i++) {
		const Symbol *s = m->symbols[i];
		const States *states = ptrmap_get(of, s);
		if (is_param(s))
			put_states(im, f, kind, s, states);
		if (is_param(s) && im->optim && !states)
			without = n_without++ ? without : s->name;
	}
	if (im->optim)
		count_updates(im, of, began);
	if (n_without)
		diag_note(im->d, im->states, "%d parameter(s) have no states: \"%s\"%s; they begin with zeros", n_without,
			quoted(im, without), n_without > 1 ? ", .." : "");
	if (im->optim && !kind && !im->d->errors)
		diag_error(im->d, im->states, "there are no states of an optimizer");
}

/* ---- the checkpoint ---- */

static json_t *state_of(const Import *im, OutputFile *const *files, json_t *began)
{
	json_t *root = json_pack("{s:i, s:s, s:{s:s, s:[s,s]}, s:I, s:I, s:I, s:{}}", "format", 1, "model",
		onnx_writer_module(im->writer)->name, "layout", "kind", "full", "files", files[0]->name, files[1]->name,
		"step", (json_int_t)im->step, "updates", (json_int_t)im->updates, "samples", (json_int_t)im->samples, "flags");
	if (im->options && *im->options)
		json_object_set_new(root, "options", json_string(im->options));
	if (im->optimizer)
		json_object_set_new(root, "optimizer", json_string(im->optimizer));
	if (json_object_size(began))
		json_object_set(root, "began", began);
	return root;
}

static bool write_folder(const Import *im, OutputFile *const *files, json_t *state)
{
	const char *name = checkpoint_name(im->a, im->step), *path = arena_printf(im->a, "%s/%s", im->out, name);
	char *json = json_dumps(state, JSON_INDENT(2));
	Buf plain = {0}, text = {0};
	buf_printf(&plain, "%s\n", json);
	checkpoint_seal(&text, plain.at, "");
	buf_free(&plain);
	free(json);
	int mark = unfinished_begin();
	const char *latest = arena_printf(im->a, "%s/latest", im->out);
	bool made = !mkdir(im->out, 0777), ok = made || errno == EEXIST;
	if (made)
		unfinished_add(im->out);
	if (!ok)
		diag_error(im->d, im->out, "the folder could not be made: %s", strerror(errno));
	ok = ok && output_write_folder(files, 2, &(OutputText){"state.json", &text}, 1, path, im->d);
	if (ok)
		unfinished_add(latest);
	if (ok && symlink(name, latest)) {
		diag_error(im->d, im->out, "`latest` could not be made: %s; nothing was left", strerror(errno));
		ok = false;
	}
	unfinished_end(mark, ok);
	buf_free(&text);
	return ok;
}

static int convert(Import *im)
{
	OutputFile *files[] = {output_file(im->a, "model.safetensors"), output_file(im->a, "optim.safetensors")};
	json_t *began = json_object();
	take_weights(im, files[0]);
	take_states(im, files[1], began);
	im->step = im->step ? im->step : im->updates;
	if (im->updates > im->step)
		diag_error(im->d, "--step", "%" PRId64 " steps, and the states are of %" PRId64 " updates", im->step,
			im->updates);
	int status = im->d->errors ? CKPT_INPUT : CKPT_OK;
	if (!status) {
		json_t *state = state_of(im, files, began);
		status = write_folder(im, files, state) ? CKPT_OK : CKPT_RUN;
		json_decref(state);
	}
	json_decref(began);
	return status;
}

static int run(Import *im)
{
	CkptModelOptions options;
	int status = CKPT_INPUT;
	im->from = output_is_free(im->out, true, im->d) ? checkpoint_open_file(im->a, im->weights, im->d) : NULL;
	im->optim = im->from && im->states ? checkpoint_open_file(im->a, im->states, im->d) : NULL;
	bool known = ckpt_model_options(im->call, im->options, NULL, &options, im->a);
	im->options = options.text; /* state.json has them as a program would record them */
	im->writer = im->from && known && !im->d->errors ? ckpt_model(im->onnx, &options, im->d) : NULL;
	if (im->writer && !str_is_utf8(onnx_writer_module(im->writer)->name))
		diag_error(im->d, quoted(im, im->onnx), "the model has its file's name, and state.json cannot say names that "
			"are not UTF-8: rename it");
	if (!str_is_utf8(im->options))
		diag_error(im->d, "shardc ckpt import: --options", "\"%s\" is not UTF-8, which state.json is",
			quoted(im, im->options));
	if (im->optim)
		read_names(im);
	if (im->writer && checkpoint_verify(im->from, 0, 1, true, im->d) &&
		(!im->optim || checkpoint_verify(im->optim, 0, 1, true, im->d)))
		status = convert(im);
	if (im->writer)
		onnx_writer_close(im->writer);
	if (im->optim)
		checkpoint_close(im->optim);
	if (im->from)
		checkpoint_close(im->from);
	return status;
}

int ckpt_import(const CkptCall *call)
{
	Diag *d = call->d;
	Arena *a = arena_new();
	Import im = {.a = a, .call = call, .d = d};
	CkptArgs args;
	const CkptOption options[] = {
		{"--onnx", CKPT_TEXT, &im.onnx, "MODEL.onnx", "the model that the program is compiled from", true},
		{"-o", CKPT_TEXT, &im.out, "DIR", "the folder, for the program's --resume", true},
		CKPT_MODEL_OPTIONS(im.options, ""),
		{"--optim", CKPT_TEXT, &im.states, "FILE", "states: PARAMETER.STATE or NUMBER.STATE, and .step", false},
		{"--optimizer", CKPT_CHOICE, &im.optimizer, optimizer_choices(a), "whose states they "
			"are; without --optim, whose zeros", false},
		{"--step", CKPT_COUNT, &im.step, "N", "steps done (default: the states' .step, or 0)", false},
		{"--samples", CKPT_COUNT, &im.samples, "N", "samples that they read (default 0: data is read from its "
			"beginning)", false},
	};
	int status;
	if (ckpt_parse(call, options, COUNT_OF(options), 1, 1, a, &args)) {
		im.weights = args.at[0];
		status = run(&im);
	} else {
		status = args.status;
	}
	arena_free(a);
	return status;
}
