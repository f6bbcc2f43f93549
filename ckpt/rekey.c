/* ckpt/rekey.c: shardc ckpt rekey: renames an optimizer's states between "PARAM.exp_avg" and PyTorch's
 * "state.K.exp_avg", where K is the parameter's index in the list that the optimizer was given.
 *
 * Elements are copied unchanged.  Refuses files with names of both forms, numbers beyond the list, and states whose
 * shape differs from their parameter's. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/convert.h"
#include "ckpt/model.h"
#include "ckpt/states.h"

static const char crc_key[] = "crc32:";

typedef struct Order { const char **name; int n; Map *index; } Order; /* index: name -> position + 1 */

typedef struct Rekey {
	const char *to, *order_file, *onnx, *options, *out;
	const CkptCall *call;
	Arena *a;
	const Checkpoint *c;
	CheckpointSection section;
	Order order;
	OutputFile *file;
	int dropped;
	const char *first_dropped;
	Diag *d;
} Rekey;

/* ---- keys ---- */

/* The form that all names have; STATE_NONE after an error. */
static StateForm form_of(const Rekey *r)
{
	const CheckpointList *list = &r->c->section[r->section];
	const char *first = NULL;
	StateForm form = STATE_NONE;
	for (int i = 0; i < list->n; i++) {
		const char *name = list->at[i].name;
		StateName k = state_name(name, r->a);
		if (!k.form) {
			diag_error(r->d, r->c->dir, "tensor \"%s\" is no optimizer's state: PARAM.STATE or state.K.STATE was "
				"expected", name);
			return STATE_NONE;
		}
		if (form && k.form != form) {
			diag_error(r->d, r->c->dir, "keys of both forms: \"%s\" and \"%s\"", first, name);
			return STATE_NONE;
		}
		form = k.form;
		first = name;
	}
	if (!form)
		diag_error(r->d, r->c->dir, "there is no state of an optimizer");
	return form;
}

/* ---- the order of parameters ---- */

static bool add_name(Rekey *r, const char *name, const char *where)
{
	Order *o = &r->order;
	if (map_has(o->index, name)) {
		diag_error(r->d, where, "\"%s\" stands there twice", name);
		return false;
	}
	o->name[o->n++] = name;
	map_put(o->index, name, (void *)(intptr_t)o->n);
	return true;
}

/* Reads one name per line. */
static bool read_names(Rekey *r, char *text, const char *where)
{
	bool ok = true;
	r->order.name = NEW_N(r->a, const char *, strlen(text) + 1);
	for (char *line; ok && (line = strsep(&text, "\n"));) {
		line[strcspn(line, "\r")] = 0;
		if (*line)
			ok = add_name(r, line, where);
	}
	if (ok && !r->order.n)
		diag_error(r->d, where, "holds no names: one a line was expected");
	return ok && r->order.n;
}

static bool read_file(Rekey *r)
{
	char *text = diag_read_file(r->d, r->order_file, r->a);
	return text && read_names(r, text, r->order_file);
}

/* The names that --to=index wrote into the file's metadata; NULL: there are none. */
static const char *kept_names(const Rekey *r)
{
	const Map *meta = ckpt_meta(r->c, r->section);
	return meta ? map_get(meta, STATE_PARAMS) : NULL;
}

/* Whether the model's file shows the parameter's position in the framework's order. */
static bool has_place(const Rekey *r, const OnnxWriter *w, const Symbol *s)
{
	const char *const *alias;
	bool named = map_has(r->order.index, s->name);
	if (named && !onnx_writer_aliases(w, s, r->a, &alias))
		return true;
	if (named)
		diag_error(r->d, r->onnx, "parameter \"%s\" is \"%s\" too, and the model does not say which of them is the "
			"first: give the optimizer's parameters with --order", s->name, *alias);
	else
		diag_error(r->d, r->onnx, "parameter \"%s\" is under another name in the model, whose order is then not "
			"the framework's: give the optimizer's parameters with --order", s->name);
	return false;
}

/* Takes the parameters in the order of the model's tensors.  Exporters write these in the order in which the
 * framework's modules define them, whereas nodes stand in the order of their use. */
static bool read_model(Rekey *r)
{
	CkptModelOptions options;
	OnnxWriter *w = ckpt_model_options(r->call, r->options, r->c, &options, r->a) ?
		ckpt_model(r->onnx, &options, r->d) : NULL;
	if (!w)
		return false;
	const Module *m = onnx_writer_module(w);
	const char *const *names;
	int n = onnx_writer_tensors(w, r->a, &names);
	bool ok = true;
	r->order.name = NEW_N(r->a, const char *, n + 1);
	for (int i = 0; ok && i < n; i++) {
		const Symbol *s = ir_find_symbol(m, names[i]);
		ok = !s || s->kind != SYM_PARAM || add_name(r, names[i], r->onnx);
	}
	for (int i = 0; ok && i < m->n_symbols; i++)
		ok = m->symbols[i]->kind != SYM_PARAM || has_place(r, w, m->symbols[i]);
	onnx_writer_close(w);
	return ok;
}

/* ---- counts of updates, which state.json has ---- */

/* Adds the tensor in which PyTorch's Adam counts a parameter's updates. */
static void add_step(Rekey *r, const char *param, int64_t index)
{
	int64_t updates = state_updates(r->c->state, param);
	float *step = NEW(r->a, float);
	if (updates < 0)
		return;
	*step = (float)updates;
	output_tensor(r->a, r->file, arena_printf(r->a, "state.%" PRId64 ".step", index), DT_F32, 0, &index);
	output_run(r->a, r->file, (OutputRun){.data = step, .n = 1});
}

/* A checkpoint's folder has the count in state.json, so a tensor "step" that agrees is left out. */
static bool check_step(const Rekey *r, const CheckpointTensor *t, const char *param)
{
	int64_t updates = state_updates(r->c->state, param);
	double step = -1;
	if (t->numel == 1)
		ckpt_numbers(t, 0, 1, &step);
	if (step == (double)updates)
		return true;
	diag_error(r->d, r->c->dir, "\"%s\" says %.17g updates of \"%s\", state.json %" PRId64, t->name, step, param,
		updates);
	return false;
}

/* ---- names ---- */

static bool check_shape(const Rekey *r, const CheckpointTensor *t, const char *param)
{
	const CheckpointTensor *of = r->c->state ? checkpoint_find(r->c, CHECKPOINT_MODEL, param) : NULL;
	bool same = !of || (of->rank == t->rank && !memcmp(of->dim, t->dim, (size_t)t->rank * sizeof(*t->dim)));
	if (!same)
		diag_error(r->d, r->c->dir, "\"%s\" does not have the shape of \"%s\": is the order of parameters the "
			"optimizer's?", t->name, param);
	return same;
}

static bool to_name(Rekey *r, const CheckpointTensor *t, const StateName *k)
{
	if (k->index >= r->order.n) {
		diag_error(r->d, r->c->dir, "\"%s\": there are %d parameters, numbered from 0", t->name, r->order.n);
		return false;
	}
	const char *param = r->order.name[k->index];
	if (r->c->state && !strcmp(k->state, "step"))
		return check_step(r, t, param);
	output_copy(r->a, r->file, arena_printf(r->a, "%s.%s", param, k->state), t);
	return check_shape(r, t, param);
}

/* In rising order of the index; the states of one parameter keep their order. */
static bool all_to_index(Rekey *r)
{
	const CheckpointList *list = &r->c->section[r->section];
	VEC(const CheckpointTensor *) *of = arena_alloc(r->a, sizeof(*of) * (size_t)(r->order.n + 1));
	for (int i = 0; i < list->n; i++) {
		StateName k = state_name(list->at[i].name, r->a);
		int64_t index = (intptr_t)map_get(r->order.index, k.param);
		if (index)
			vec_push(r->a, &of[index - 1], &list->at[i]);
		else if (!r->dropped++)
			r->first_dropped = list->at[i].name;
	}
	for (int64_t p = 0; p < r->order.n; p++) {
		bool counted = false, has_step = false;
		for (int i = 0; i < of[p].n; i++) {
			const char *state = state_name(of[p].at[i]->name, r->a).state;
			output_copy(r->a, r->file, arena_printf(r->a, "state.%" PRId64 ".%s", p, state), of[p].at[i]);
			counted = counted || state_is_counted(state);
			has_step = has_step || !strcmp(state, "step");
		}
		if (counted && !has_step)
			add_step(r, r->order.name[p], p);
	}
	if (r->dropped)
		diag_note(r->d, r->c->dir, "%d states of parameters that the list lacks are left out: \"%s\"%s", r->dropped,
			r->first_dropped, r->dropped > 1 ? ", .." : "");
	if (!r->file->tensor.n)
		diag_error(r->d, r->c->dir, "the list has none of its parameters");
	return r->file->tensor.n;
}

static bool all_to_name(Rekey *r)
{
	const CheckpointList *list = &r->c->section[r->section];
	bool ok = true;
	for (int i = 0; i < list->n; i++) {
		StateName k = state_name(list->at[i].name, r->a);
		ok = to_name(r, &list->at[i], &k) && ok;
	}
	return ok;
}

static bool plan(Rekey *r)
{
	StateForm wanted = strcmp(r->to, "index") ? STATE_NAMED : STATE_NUMBERED, form = form_of(r);
	const CheckpointList *list = &r->c->section[r->section];
	if (!form || (r->order_file && !read_file(r)) || (r->onnx && !read_model(r)))
		return false;
	if (form == wanted) {
		diag_note(r->d, r->c->dir, "keys are of this form already: they are copied as they are");
		r->order.n = 0;
		for (int i = 0; i < list->n; i++)
			output_copy(r->a, r->file, list->at[i].name, &list->at[i]);
		return true;
	}
	const char *kept = form == STATE_NUMBERED && !r->order_file && !r->onnx ? kept_names(r) : NULL;
	if (kept)
		return read_names(r, arena_strdup(r->a, kept), r->c->dir) && all_to_name(r);
	if (!r->order_file && !r->onnx) {
		diag_error(r->d, "shardc ckpt rekey", "the order of parameters is wanted: --order FILE or --onnx MODEL");
		return false;
	}
	return wanted == STATE_NUMBERED ? all_to_index(r) : all_to_name(r);
}

/* ---- files and folders ---- */

/* Keeps a file's metadata except checksums; for numbered states adds the names that the numbers stand for. */
static void keep_metadata(Rekey *r)
{
	const Map *meta = ckpt_meta(r->c, r->section);
	int n_meta = meta ? map_count(meta) : 0, n = 0;
	SafeMeta *kept = NEW_N(r->a, SafeMeta, n_meta + 2);
	bool to_index = !strcmp(r->to, "index");
	Buf names = {0};
	for (int i = 0; i < r->order.n && to_index; i++)
		buf_printf(&names, "%s%s", i ? "\n" : "", r->order.name[i]);
	for (int i = 0; i < n_meta; i++) {
		const char *key = map_key(meta, i);
		if (strncmp(key, crc_key, sizeof(crc_key) - 1) && (!r->order.n || strcmp(key, STATE_PARAMS)))
			kept[n++] = (SafeMeta){key, map_get(meta, key)};
	}
	if (!meta)
		kept[n++] = *r->file->meta;
	if (names.n)
		kept[n++] = (SafeMeta){STATE_PARAMS, arena_strdup(r->a, names.at)};
	buf_free(&names);
	r->file->meta = kept;
	r->file->n_meta = n;
}

/* Prints what was written; returns the exit status. */
static int done(const Rekey *r, bool ok)
{
	Map *params = map_new(r->a);
	for (int i = 0; i < r->file->tensor.n; i++) {
		const char *name = r->file->tensor.at[i].name;
		map_put(params, arena_strndup(r->a, name, (size_t)(strrchr(name, '.') - name)), NULL);
	}
	if (ok)
		printf("%s: %d states of %d parameters\n", str_escape(r->a, ESCAPE_TERMINAL, r->out),
			r->file->tensor.n, map_count(params));
	return ok ? CKPT_OK : CKPT_RUN;
}

static int rekey_file(Rekey *r)
{
	r->file = output_file(r->a, "");
	if (!plan(r) || !checkpoint_verify(r->c, 0, 1, true, r->d))
		return CKPT_INPUT;
	keep_metadata(r);
	return done(r, output_write_file(r->file, r->out, r->d));
}

/* Writes a checkpoint of kind full, in which the states have other names. */
static int rekey_folder(Rekey *r)
{
	Convert v;
	int status = CKPT_INPUT;
	r->section = CHECKPOINT_OPTIM;
	if (convert_plan(&v, r->c, (ConvertTo){.kind = CHECKPOINT_FULL}, r->a, r->d)) {
		r->file = output_file(r->a, v.file[CHECKPOINT_OPTIM][0]->name);
		v.file[CHECKPOINT_OPTIM][0] = r->file;
		if (plan(r) && checkpoint_verify(r->c, 0, 1, true, r->d)) {
			keep_metadata(r);
			status = done(r, convert_write(&v, r->out));
		}
	}
	convert_free(&v);
	return status;
}

static bool check_options(const Rekey *r)
{
	int before = r->d->errors;
	if (r->onnx && r->order_file)
		diag_error(r->d, "shardc ckpt rekey", "give --order or --onnx, not both: each is the order of parameters");
	if (r->options && !r->onnx)
		diag_error(r->d, "shardc ckpt rekey", "--options needs --onnx MODEL");
	return r->d->errors == before;
}

int ckpt_rekey(const CkptCall *call)
{
	Diag *d = call->d;
	Arena *a = arena_new();
	Rekey r = {.a = a, .call = call, .order.index = map_new(a), .d = d};
	CkptArgs args;
	const CkptOption options[] = {
		{"--to", CKPT_CHOICE, &r.to, "name|index", "PARAM.STATE, or state.K.STATE as PyTorch's optimizers count", true},
		{"--order", CKPT_TEXT, &r.order_file, "FILE", "the optimizer's parameters in its order, a name a line", false},
		{"--onnx", CKPT_TEXT, &r.onnx, "MODEL", "the same: all parameters, as the tensors of the model's file lie",
			false},
		CKPT_MODEL_OPTIONS(r.options, " (default: state.json's)"),
		{"-o", CKPT_TEXT, &r.out, "PATH", "of a file a file, of a checkpoint one of kind full", true},
	};
	bool parsed = ckpt_parse(call, options, COUNT_OF(options), 1, 1, a, &args);
	if (parsed && !check_options(&r)) {
		args.status = CKPT_USAGE;
	} else if (parsed) {
		Checkpoint *c = ckpt_open(a, args.at[0], d);
		bool is_free = output_is_free(r.out, !c || c->state, d);
		r.c = c;
		args.status = !c || !is_free ? CKPT_INPUT : c->state ? rekey_folder(&r) : rekey_file(&r);
		if (c)
			checkpoint_close(c);
	}
	arena_free(a);
	return args.status;
}
