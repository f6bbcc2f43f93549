/* ckpt/rekey.c: shardc ckpt rekey: an optimizer's states between "PARAM.exp_avg" and PyTorch's "state.K.exp_avg", K
 * being the parameter's place in the list that the optimizer was given.
 *
 * Refuses keys of both forms in one file, numbers beyond the list, states of another shape than their parameter's.
 *
 * The one idea: elements are not touched; a tensor is copied under another name. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/convert.h"
#include "ckpt/model.h"

enum { FORM_NAME = 1, FORM_INDEX = 2 };
static const char index_key[] = "state.", params_key[] = "params", crc_key[] = "crc32:";

typedef struct Order { const char **name; int n; Map *index; } Order; /* index: name -> place + 1 */
typedef struct Key { int form; int64_t index; const char *param, *state; } Key; /* index: of FORM_INDEX */

typedef struct Rekey {
	const char *to, *order_file, *onnx, *out;
	Arena *a;
	const Checkpoint *c;
	CheckpointSection section;
	Order order;
	OutputFile *file;
	int64_t updates; /* -1: not known */
	Map *steps;      /* of --to=index: parameters whose "step" is made */
	int dropped;
	const char *first_dropped;
	Diag *d;
} Rekey;

/* ---- keys ---- */

static Key split(const char *name, Arena *a)
{
	const char *dot = strrchr(name, '.'), *digits = name + sizeof(index_key) - 1;
	if (!dot || dot == name || !dot[1])
		return (Key){0};
	size_t n = strncmp(name, index_key, sizeof(index_key) - 1) ? 0 : strspn(digits, "0123456789");
	if (n && n <= 9 && digits + n == dot)
		return (Key){FORM_INDEX, strtoll(digits, NULL, 10), NULL, dot + 1};
	return (Key){FORM_NAME, 0, arena_strndup(a, name, (size_t)(dot - name)), dot + 1};
}

/* The form that all keys have; 0 after a message. */
static int form_of(const Rekey *r)
{
	const CheckpointList *list = &r->c->section[r->section];
	const char *first = NULL;
	int form = 0;
	for (int i = 0; i < list->n; i++) {
		const char *name = list->at[i].name;
		Key k = split(name, r->a);
		if (!k.form) {
			diag_error(r->d, r->c->dir, "tensor \"%s\" is no optimizer's state: PARAM.STATE or state.K.STATE was "
				"expected", name);
			return 0;
		}
		if (form && k.form != form) {
			diag_error(r->d, r->c->dir, "keys of both forms: \"%s\" and \"%s\"", first, name);
			return 0;
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

/* A name a line. */
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

/* What --to=index left in the metadata of its file; NULL: nothing. */
static const char *kept_names(const Rekey *r)
{
	const CheckpointList *list = &r->c->section[r->section];
	return list->n && list->at->n_pieces ? map_get(list->at->piece->file->meta, params_key) : NULL;
}

/* Parameters as the model lists them; a checkpoint says which sizes it was compiled for. */
static bool read_model(Rekey *r)
{
	const char *options = json_string_value(json_object_get(r->c->state, "options"));
	OnnxWriter *w = ckpt_model(r->onnx, options, r->a, r->d);
	const Module *m = w ? onnx_writer_module(w) : NULL;
	bool ok = w;
	if (ok)
		r->order.name = NEW_N(r->a, const char *, m->n_symbols + 1);
	for (int i = 0; ok && i < m->n_symbols; i++)
		if (m->symbols[i]->kind == SYM_PARAM)
			ok = add_name(r, arena_strdup(r->a, m->symbols[i]->name), r->onnx);
	if (w)
		onnx_writer_close(w);
	return ok;
}

/* ---- steps, which state.json has ---- */

static int64_t steps_of(const Rekey *r, const char *param)
{
	return r->updates - json_integer_value(json_object_get(json_object_get(r->c->state, "began"), param));
}

/* PyTorch's Adam counts its updates in a tensor of each parameter. */
static bool makes_steps(const Rekey *r)
{
	const char *optimizer = json_string_value(json_object_get(r->c->state, "optimizer"));
	return r->updates >= 0 && optimizer && (!strncmp(optimizer, "adam", 4) || !strncmp(optimizer, "adagrad", 7));
}

static void add_step(Rekey *r, const char *param, int64_t index)
{
	float *step = NEW(r->a, float);
	if (!makes_steps(r) || map_has(r->steps, param))
		return;
	map_put(r->steps, param, NULL);
	*step = (float)steps_of(r, param);
	output_tensor(r->a, r->file, arena_printf(r->a, "%s%" PRId64 ".step", index_key, index), DT_F32, 0, &index);
	output_run(r->a, r->file, (OutputRun){.data = step, .n = 1});
}

/* Of a folder the count is state.json's, so a "step" that says the same is left out. */
static bool check_step(const Rekey *r, const CheckpointTensor *t, const char *param)
{
	double step = -1;
	if (t->numel == 1)
		ckpt_numbers(t, 0, 1, &step);
	if (step == (double)steps_of(r, param))
		return true;
	diag_error(r->d, r->c->dir, "\"%s\" says %.17g updates of \"%s\", state.json %" PRId64, t->name, step, param,
		steps_of(r, param));
	return false;
}

/* ---- names ---- */

static bool check_shape(const Rekey *r, const CheckpointTensor *t, const char *param)
{
	const CheckpointTensor *of = r->c->state ? checkpoint_find(r->c, CHECKPOINT_MODEL, param) : NULL;
	bool same = !of || (of->rank == t->rank && !memcmp(of->dim, t->dim, (size_t)t->rank * sizeof(*t->dim)));
	if (!same)
		diag_error(r->d, r->c->dir, "\"%s\" has not the shape of \"%s\": is the order of parameters the optimizer's?",
			t->name, param);
	return same;
}

static bool to_name(Rekey *r, const CheckpointTensor *t, const Key *k)
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

/* By rising index; within one as they were. */
static bool all_to_index(Rekey *r)
{
	const CheckpointList *list = &r->c->section[r->section];
	VEC(const CheckpointTensor *) *of = arena_alloc(r->a, sizeof(*of) * (size_t)(r->order.n + 1));
	for (int i = 0; i < list->n; i++) {
		Key k = split(list->at[i].name, r->a);
		int64_t index = (intptr_t)map_get(r->order.index, k.param);
		if (index)
			vec_push(r->a, &of[index - 1], &list->at[i]);
		else if (!r->dropped++)
			r->first_dropped = list->at[i].name;
	}
	for (int64_t p = 0; p < r->order.n; p++)
		for (int i = 0; i < of[p].n; i++) {
			Key k = split(of[p].at[i]->name, r->a);
			output_copy(r->a, r->file, arena_printf(r->a, "%s%" PRId64 ".%s", index_key, p, k.state), of[p].at[i]);
			if (i + 1 == of[p].n)
				add_step(r, k.param, p);
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
		Key k = split(list->at[i].name, r->a);
		ok = to_name(r, &list->at[i], &k) && ok;
	}
	return ok;
}

static bool plan(Rekey *r)
{
	int wanted = strcmp(r->to, "index") ? FORM_NAME : FORM_INDEX, form = form_of(r);
	const CheckpointList *list = &r->c->section[r->section];
	if (!form)
		return false;
	if (form == wanted) {
		diag_note(r->d, r->c->dir, "keys are of this form already: they are copied as they are");
		for (int i = 0; i < list->n; i++)
			output_copy(r->a, r->file, list->at[i].name, &list->at[i]);
		return true;
	}
	const char *kept = form == FORM_INDEX && !r->order_file && !r->onnx ? kept_names(r) : NULL;
	if (kept)
		return read_names(r, arena_strdup(r->a, kept), r->c->dir) && all_to_name(r);
	if (!r->order_file == !r->onnx) {
		diag_error(r->d, "shardc ckpt rekey", "the order of parameters is wanted: --order FILE or --onnx "
			"MODEL, one of them");
		return false;
	}
	if (r->order_file ? !read_file(r) : !read_model(r))
		return false;
	return wanted == FORM_INDEX ? all_to_index(r) : all_to_name(r);
}

/* ---- files and folders ---- */

/* A file's metadata stay, but for checksums; numbered states say which names the numbers stand for. */
static void keep_metadata(Rekey *r, const Map *meta)
{
	SafeMeta *kept = NEW_N(r->a, SafeMeta, map_count(meta) + 2);
	bool to_index = !strcmp(r->to, "index");
	Buf names = {0};
	int n = 0;
	for (int i = 0; i < r->order.n && to_index; i++)
		buf_printf(&names, "%s%s", i ? "\n" : "", r->order.name[i]);
	for (int i = 0; i < map_count(meta); i++) {
		const char *key = map_key(meta, i);
		if (strncmp(key, crc_key, sizeof(crc_key) - 1) && (!r->order.n || strcmp(key, params_key)))
			kept[n++] = (SafeMeta){key, map_get(meta, key)};
	}
	if (names.n)
		kept[n++] = (SafeMeta){params_key, arena_strdup(r->a, names.at)};
	buf_free(&names);
	r->file->meta = kept;
	r->file->n_meta = n;
}

/* What was written. */
static int done(const Rekey *r, bool ok)
{
	Map *params = map_new(r->a);
	for (int i = 0; i < r->file->tensor.n; i++) {
		const char *name = r->file->tensor.at[i].name;
		map_put(params, arena_strndup(r->a, name, (size_t)(strrchr(name, '.') - name)), NULL);
	}
	if (ok)
		printf("%s: %d states of %d parameters\n", r->out, r->file->tensor.n, map_count(params));
	return ok ? CKPT_OK : CKPT_RUN;
}

static int rekey_file(Rekey *r)
{
	r->file = output_file(r->a, "");
	if (!plan(r) || !checkpoint_verify(r->c, 0, 1, true, r->d))
		return CKPT_INPUT;
	keep_metadata(r, r->c->files[0]->meta);
	return done(r, output_write_file(r->file, r->out, r->d));
}

/* A checkpoint of kind full, but for the names of states. */
static int rekey_folder(Rekey *r)
{
	Convert v;
	int status = CKPT_INPUT;
	r->section = CHECKPOINT_OPTIM;
	json_t *updates = json_object_get(r->c->state, "updates");
	r->updates = json_is_integer(updates) ? json_integer_value(updates) : -1;
	if (convert_plan(&v, r->c, (ConvertTo){.kind = CHECKPOINT_FULL}, r->a, r->d)) {
		r->file = output_file(r->a, v.file[CHECKPOINT_OPTIM][0]->name);
		v.file[CHECKPOINT_OPTIM][0] = r->file;
		if (plan(r) && checkpoint_verify(r->c, 0, 1, true, r->d)) {
			keep_metadata(r, r->c->section[r->section].at->piece->file->meta);
			status = done(r, convert_write(&v, r->out));
		}
	}
	convert_free(&v);
	return status;
}

int ckpt_rekey(int argc, char **argv, Diag *d)
{
	Arena *a = arena_new();
	Rekey r = {.a = a, .updates = -1, .steps = map_new(a), .order.index = map_new(a), .d = d};
	CkptArgs args;
	const CkptOption options[] = {
		{"--to", CKPT_CHOICE, &r.to, "name|index", "PARAM.STATE, or state.K.STATE as PyTorch's optimizers count", true},
		{"--order", CKPT_TEXT, &r.order_file, "FILE", "the optimizer's parameters in its order, a name a line", false},
		{"--onnx", CKPT_TEXT, &r.onnx, "MODEL", "the same: all parameters, in the order of the model's", false},
		{"-o", CKPT_TEXT, &r.out, "PATH", "of a file a file, of a checkpoint one of kind full", true},
	};
	if (ckpt_parse(argc, argv, options, COUNT_OF(options), 1, 1, a, &args, d)) {
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
