/* ckpt/export.c: shardc ckpt export: writes a checkpoint's weights back into the ONNX model that they came from, or
 * writes weights or optimizer states as whole tensors under the framework's names into safetensors files.
 *
 * Refuses tensors that the model lacks or has in another shape, weights of the model that the checkpoint lacks, damaged
 * files, and outputs that exist. */
#include <stdlib.h>
#include <string.h>

#include "base/unfinished.h"
#include "ckpt/model.h"
#include "ckpt/states.h"

typedef struct Export {
	const char *onnx, *options, *out;
	const CkptCall *call;
	bool external, embed, optim;
	int64_t shard_bytes;
	Arena *a;
	Checkpoint *c;
	Diag *d;
} Export;

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), k = strlen(end);
	return n > k && !strcmp(s + n - k, end);
}

static const char *text_of(const Export *e, const char *key)
{
	return json_string_value(json_object_get(e->c->state, key));
}

/* ---- into the model ---- */

static void read_symbol(void *context, const Symbol *s, DType dtype, int64_t first, int64_t n, void *out)
{
	const Export *e = context;
	ckpt_elements(checkpoint_find(e->c, CHECKPOINT_MODEL, s->name), dtype, first, n, out);
}

/* Checks names and shapes in both directions; reports all that differ. */
static bool check_model(const Export *e, const Module *m)
{
	const CheckpointList *list = &e->c->section[CHECKPOINT_MODEL];
	int before = e->d->errors;
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		const CheckpointTensor *t = ckpt_is_weight(s) ? checkpoint_find(e->c, CHECKPOINT_MODEL, s->name) : NULL;
		if (t)
			ckpt_fits(e->c->dir, t, s, false, e->a, e->d);
		else if (ckpt_is_weight(s))
			diag_error(e->d, e->c->dir, "there is no tensor \"%s\", which the model has as %s",
				str_escape(e->a, ESCAPE_IR, s->name), type_str(e->a, &s->type));
	}
	for (int i = 0; i < list->n; i++) {
		const Symbol *s = ir_find_symbol(m, list->at[i].name);
		if (!s || !ckpt_is_weight(s))
			diag_error(e->d, e->c->dir, "the model has no tensor \"%s\"",
				str_escape(e->a, ESCAPE_IR, list->at[i].name));
	}
	if (e->d->errors > before)
		diag_note(e->d, e->onnx, "is it the model that the program was compiled from? (\"%s\", %s)",
			text_of(e, "model") ? text_of(e, "model") : "",
			text_of(e, "options") ? text_of(e, "options") : "no options");
	return e->d->errors == before;
}

static OnnxWriter *open_model(const Export *e)
{
	CkptModelOptions options;
	return ckpt_model_options(e->call, e->options, e->c, &options, e->a) ? ckpt_model(e->onnx, &options, e->d) : NULL;
}

static int to_model(Export *e)
{
	OnnxStore store = e->external ? ONNX_STORE_EXTERNAL : e->embed ? ONNX_STORE_EMBEDDED : ONNX_STORE_AS_IS;
	OnnxWriter *w = open_model(e);
	bool input = true, ok = false;
	if (!w)
		return CKPT_INPUT;
	if (check_model(e, onnx_writer_module(w)))
		ok = onnx_writer_save(w, e->out, store, read_symbol, e, &input, e->d);
	onnx_writer_close(w);
	return ok ? CKPT_OK : input ? CKPT_INPUT : CKPT_RUN;
}

/* ---- whole tensors ---- */

/* A tensor to write: a copy of a tensor of the checkpoint, of one in the model's file, or a single number. */
typedef struct Whole { const char *name; const CheckpointTensor *from; const HostTensor *stored; float number; } Whole;
typedef VEC(Whole) Wholes;

/* Adds the count of a parameter's updates, which PyTorch keeps beside its states.  rekey has added it to numbered
 * states already. */
static void add_count(const Export *e, Wholes *list, const CheckpointTensor *t)
{
	StateName k = state_name(t->name, e->a);
	if (k.form != STATE_NAMED || !state_is_counted(k.state))
		return;
	const char *name = arena_printf(e->a, "%s.step", k.param);
	int64_t updates = state_updates(e->c->state, k.param);
	if (updates >= 0 && !checkpoint_find(e->c, CHECKPOINT_OPTIM, name))
		vec_push(e->a, list, ((Whole){.name = name, .number = (float)updates}));
}

/* Adds each tensor again under the other names that the framework has for it. */
static void add_aliases(const Export *e, Wholes *list, const OnnxWriter *w)
{
	const Module *m = onnx_writer_module(w);
	int n = list->n;
	for (int i = 0; i < n; i++) {
		const char *name = list->at[i].name, *dot = e->optim ? strrchr(name, '.') : NULL, *const *names;
		size_t k = dot ? (size_t)(dot - name) : strlen(name);
		const Symbol *s = ir_find_symbol(m, arena_strndup(e->a, name, k));
		int n_names = s ? onnx_writer_aliases(w, s, e->a, &names) : 0;
		for (int j = 0; j < n_names; j++) {
			Whole more = list->at[i];
			more.name = arena_printf(e->a, "%s%s", names[j], name + k);
			vec_push(e->a, list, more);
		}
	}
	if (list->n > n)
		diag_note(e->d, e->out, "%d tensors are written under further names: \"%s\"%s", list->n - n, list->at[n].name,
			list->n > n + 1 ? ", .." : "");
}

/* Adds tensors of the framework's module that the model does not use, and that were therefore not trained.  Their
 * values come from the model's file, if it has them. */
static void add_unused(const Export *e, Wholes *list, const OnnxWriter *w)
{
	const char *const *names, *lacks = "";
	int n = onnx_writer_absent(w, &names), n_lacks = 0;
	for (int i = 0; i < n; i++) {
		HostTensor *t = NEW(e->a, HostTensor);
		if (onnx_writer_stored(w, names[i], t))
			vec_push(e->a, list, ((Whole){.name = names[i], .stored = t}));
		else if (n_lacks++ < 4)
			lacks = arena_printf(e->a, "%s%s\"%s\"", lacks, *lacks ? ", " : "", names[i]);
	}
	if (n > n_lacks)
		diag_note(e->d, e->out, "%d tensors that the model does not use are written as its file has them", n - n_lacks);
	if (n_lacks)
		diag_note(e->d, e->out, "%d tensors of the module are not written, since the model does not use them under "
			"these names: %s%s; load_state_dict(strict=True) misses them", n_lacks, lacks, n_lacks > 4 ? ", .." : "");
}

/* *model is set to the opened model, which the caller closes when the list is written; NULL: no model was opened. */
static bool collect(const Export *e, Wholes *list, OnnxWriter **model)
{
	const CheckpointList *from = &e->c->section[e->optim ? CHECKPOINT_OPTIM : CHECKPOINT_MODEL];
	for (int i = 0; i < from->n; i++) {
		vec_push(e->a, list, ((Whole){.name = from->at[i].name, .from = &from->at[i]}));
		if (e->optim)
			add_count(e, list, &from->at[i]);
	}
	if (!e->onnx)
		return true;
	OnnxWriter *w = *model = open_model(e);
	bool ok = w && check_model(e, onnx_writer_module(w));
	if (ok) {
		add_aliases(e, list, w);
		if (!e->optim)
			add_unused(e, list, w);
	}
	return ok;
}

static int64_t bytes_of(const Whole *w)
{
	return w->from ? w->from->numel * dtype_info[w->from->dtype].bytes : w->stored ? type_bytes(&w->stored->type)
		: (int64_t)sizeof(w->number);
}

/* Decides which tensor begins each file; a file holds at least one tensor and at most --shard-bytes of several. */
static int cut(const Export *e, const Wholes *list, int *first)
{
	int n = 0;
	int64_t bytes = 0;
	for (int i = 0; i < list->n; i++) {
		int64_t more = bytes_of(&list->at[i]);
		if (!n || (e->shard_bytes && bytes > 0 && more > e->shard_bytes - bytes)) {
			first[n++] = i;
			bytes = 0;
		}
		bytes += more;
	}
	first[n] = list->n;
	return n;
}

static bool write_index(const Export *e, const Wholes *list, const int *first, const char *const *path, int n)
{
	int64_t total = 0;
	json_t *map = json_object();
	for (int f = 0; f < n; f++)
		for (int i = first[f]; i < first[f + 1]; i++) {
			const char *slash = strrchr(path[f], '/');
			json_object_set_new(map, list->at[i].name, json_string(slash ? slash + 1 : path[f]));
			total += bytes_of(&list->at[i]);
		}
	json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
	const char *index = arena_printf(e->a, "%s.index.json", e->out);
	char *text = json_dumps(root, JSON_INDENT(2));
	Buf b = {0};
	buf_printf(&b, "%s\n", text);
	bool ok = output_write_text(&b, index, e->d);
	buf_free(&b);
	free(text);
	json_decref(root);
	return ok;
}

static bool write_one(const Export *e, const Whole *at, int n, const char *path)
{
	OutputFile *f = output_file(e->a, path);
	for (int i = 0; i < n; i++) {
		if (at[i].from) {
			output_copy(e->a, f, at[i].name, at[i].from);
			continue;
		}
		const HostTensor *t = at[i].stored;
		output_tensor(e->a, f, at[i].name, t ? t->type.dtype : DT_F32, t ? t->type.rank : 0,
			t ? t->type.dim : &(int64_t){1});
		output_run(e->a, f, (OutputRun){.data = t ? t->data : &at[i].number, .n = t ? type_numel(&t->type) : 1});
	}
	return output_write_file(f, path, e->d);
}

static int write_list(const Export *e, Wholes list)
{
	int *first = NEW_N(e->a, int, list.n + 2), n = MAX(cut(e, &list, first), 1);
	const char **path = NEW_N(e->a, const char *, n);
	size_t stem = strlen(e->out) - strlen(".safetensors");
	bool ok = !e->shard_bytes || output_is_free(arena_printf(e->a, "%s.index.json", e->out), false, e->d);
	for (int f = 0; f < n; f++) {
		path[f] = e->shard_bytes ? arena_printf(e->a, "%.*s-%05d-of-%05d.safetensors", (int)stem, e->out, f + 1, n)
			: e->out;
		ok = output_is_free(path[f], false, e->d) && ok;
	}
	if (!ok)
		return CKPT_INPUT;
	int mark = unfinished_begin();
	for (int f = 0; f < n && ok; f++)
		ok = write_one(e, list.at + first[f], first[f + 1] - first[f], path[f]);
	ok = ok && (!e->shard_bytes || write_index(e, &list, first, path, n));
	unfinished_end(mark, ok);
	return ok ? CKPT_OK : CKPT_RUN;
}

static int to_safetensors(const Export *e)
{
	Wholes list = {0};
	OnnxWriter *model = NULL;
	int status = collect(e, &list, &model) ? write_list(e, list) : CKPT_INPUT;
	if (model)
		onnx_writer_close(model);
	return status;
}

/* ---- the command ---- */

static bool check_options(const Export *e)
{
	bool file = ends_with(e->out, ".safetensors");
	int before = e->d->errors;
	if (!file && !e->onnx)
		diag_error(e->d, "shardc ckpt export", "-o %s: FILE.safetensors, or with --onnx the model's new name", e->out);
	if (!file && (e->optim || e->shard_bytes))
		diag_error(e->d, "shardc ckpt export", "--optim and --shard-bytes need -o FILE.safetensors");
	if (file && (e->external || e->embed))
		diag_error(e->d, "shardc ckpt export", "--external and --embed need a model as output, not FILE.safetensors");
	if (e->external && e->embed)
		diag_error(e->d, "shardc ckpt export", "give --external or --embed, not both");
	if (e->options && !e->onnx)
		diag_error(e->d, "shardc ckpt export", "--options needs --onnx MODEL.onnx");
	if (e->shard_bytes && !str_is_utf8(e->out))
		diag_error(e->d, "shardc ckpt export", "-o %s: the index is JSON and cannot say names that are not UTF-8",
			str_escape(e->a, ESCAPE_IR, e->out));
	return e->d->errors == before;
}

static int run(Export *e)
{
	bool model = !ends_with(e->out, ".safetensors");
	bool is_free = output_is_free(e->out, false, e->d);
	if (!is_free || (model && !output_is_free(arena_printf(e->a, "%s.data", e->out), false, e->d)))
		return CKPT_INPUT;
	if (!checkpoint_verify(e->c, 0, 1, true, e->d))
		return CKPT_INPUT;
	if (!e->optim || e->c->section[CHECKPOINT_OPTIM].n)
		return model ? to_model(e) : to_safetensors(e);
	diag_error(e->d, e->c->dir, "there are no states of an optimizer");
	return CKPT_INPUT;
}

int ckpt_export(const CkptCall *call)
{
	Diag *d = call->d;
	Arena *a = arena_new();
	Export e = {.a = a, .call = call, .d = d};
	CkptArgs args;
	const CkptOption options[] = {
		{"-o", CKPT_TEXT, &e.out, "FILE", "a model, with --onnx; or FILE.safetensors: whole tensors by name", true},
		{"--onnx", CKPT_TEXT, &e.onnx, "MODEL.onnx", "the model that the program was compiled from; with -o "
			"FILE.safetensors tied weights get all their names", false},
		CKPT_MODEL_OPTIONS(e.options, " (default: state.json's)"),
		{"--external", CKPT_FLAG, &e.external, "", "weights of the model in FILE.data", false},
		{"--embed", CKPT_FLAG, &e.embed, "", "weights in the model (default: as the model has them)", false},
		{"--optim", CKPT_FLAG, &e.optim, "", "the optimizer's states instead of weights", false},
		{"--shard-bytes", CKPT_COUNT, &e.shard_bytes, "N", "files of at most N bytes if tensors are, and an index: "
			"FILE-0000K-of-0000N.safetensors, FILE.safetensors.index.json", false},
	};
	int status = CKPT_USAGE;
	if (!ckpt_parse(call, options, COUNT_OF(options), 1, 1, a, &args))
		status = args.status;
	else if (check_options(&e)) {
		e.c = ckpt_open(a, args.at[0], d);
		status = e.c ? run(&e) : CKPT_INPUT;
		if (e.c)
			checkpoint_close(e.c);
	}
	arena_free(a);
	return status;
}
