/* frontend/onnx_modes.c: decides for each batch norm and dropout whether it is in training or in eval mode.
 *
 * Options decide first.  Next comes what the node says: its training_mode, and the ATen op in dynamo's metadata (under
 * shardc.export this is the mode at the time of the call, which a module's forward may have chosen).  Where the node
 * says nothing, the module's mode in shardc.export's metadata counts.
 *
 * Without that metadata, a model whose batch norms all say eval mode was most likely exported in that mode by
 * oversight: its batch norms are trained, with a warning.  If some batch norm or dropout says training mode, those that
 * say eval mode are taken to be meant so. */
#include "frontend/onnx_params.h"

#include <stdlib.h>
#include <string.h>

#include "base/pattern.h"

typedef enum { SAYS_NOTHING, SAYS_EVAL, SAYS_TRAIN } Says;

struct Modes {
	int norms_train, norms_eval;  /* batch norms that say training mode, or eval mode */
	int moving, still;            /* batch norms that use the batch's statistics, or their running ones */
	int forgetful;                /* batch norms whose running statistics are only those of the last batch */
	const char *first_forgetful;
	int dropouts;                 /* dropouts that say training mode */
	Map *constants;               /* result of a Constant, or of an Identity of a stored tensor -> OnnxTensor */
	int absent;                   /* dropout modules that the exporter reduced to an Identity */
	const char *first_absent;
	regex_t *re;                  /* compiled --bn=frozen:REGEX options */
	int *matched;                 /* by regex: how many batch norms it matches */
	VEC(const char *) norms;      /* the module of each batch norm, or its node */
	VEC(const char *) fixed;      /* batch norms left in eval mode because the exporter says so */
	int acting, ignored, in_eval; /* dropouts that act; that do not and say nothing of a mode; that do not and say eval
	                                 mode */
	const char *first_ignored;
	double ratio;                 /* the ratio of that node */
	Map *fx;                      /* the set of fx node names for which the model has a node */
	Map *sdpa;                    /* fx name of an attention with dropout -> not NULL if a Dropout node is left of it */
	int lost_stops;
	const char *lost_stop;
	double smoothing; /* label_smoothing that the exporter left out of a node; 0: none */
	const char *smoothed;
};

/* ---- batch norms ---- */

/* dynamo does not write training_mode, but names the ATen op that it decomposed. */
static Says norm_says(const Onnx__NodeProto *p)
{
	const char *fx = names_metadata(p, "pkg.torch.onnx.fx_node");
	if (fx && strstr(fx, "aten._native_batch_norm_legit_no_training."))
		return SAYS_EVAL;
	if (fx && strstr(fx, "aten._native_batch_norm_legit"))
		return SAYS_TRAIN;
	for (size_t i = 0; i < p->n_attribute; i++)
		if (!strcmp(p->attribute[i]->name, "training_mode"))
			return p->attribute[i]->i ? SAYS_TRAIN : SAYS_EVAL;
	return SAYS_NOTHING;
}

static const char *norm_name(const Node *n)
{
	return *n->scope ? n->scope : n->name;
}

/* Whether a --bn=frozen:REGEX option matches it. */
static bool norm_matches(Modes *s, const FrontendOptions *o, const char *name)
{
	bool any = false;
	for (int i = 0; i < o->graph.bn.frozen.n; i++) {
		bool hit = pattern_matches(&s->re[i], name);
		s->matched[i] += hit;
		any = any || hit;
	}
	return any;
}

/* The module in the metadata that this scope belongs to; "bn_1", the second call of "bn", belongs to "bn". */
static const MetaModule *norm_module(const Import *im, const char *scope)
{
	const MetaModule *m = im->meta ? map_get(im->meta->modules, scope) : NULL;
	for (int i = 0; im->meta && !m && i < map_count(im->meta->modules); i++)
		if (names_same_module(scope, map_key(im->meta->modules, i)))
			m = map_get(im->meta->modules, map_key(im->meta->modules, i));
	return m;
}

static bool norm_trains(Node *n, const char *name, bool says)
{
	Import *im = n->im;
	const FrontendOptions *o = im->o;
	Modes *s = im->modes;
	const MetaModule *module = norm_module(im, n->scope);
	Says left = norm_says(n->proto);
	if (norm_matches(s, o, name) || o->graph.bn.all == NORM_FROZEN)
		return false;
	if (o->graph.bn.all == NORM_TRAIN || o->infer)
		return o->graph.bn.all == NORM_TRAIN || says;
	if (im->meta && left == SAYS_NOTHING)
		return module ? module->training : im->meta->training;
	if (im->meta)
		return left == SAYS_TRAIN;
	bool fixed = left == SAYS_EVAL && (s->norms_train || s->dropouts);
	if (fixed)
		vec_push(im->arena, &s->fixed, name);
	return !fixed;
}

bool modes_norm_trains(Node *n, bool says)
{
	Modes *s = n->im->modes;
	const char *name = norm_name(n);
	vec_push(n->im->arena, &s->norms, name);
	bool trains = norm_trains(n, name, says);
	s->moving += trains;
	s->still += !trains;
	return trains;
}

/* ---- dropouts ---- */

bool modes_dropout_acts(Node *n, double p, DropoutSays says)
{
	Import *im = n->im;
	Modes *s = im->modes;
	if (p <= 0 || im->o->graph.dropout == DROPOUT_OFF)
		return false;
	if (im->o->infer)
		return says == DROPOUT_SAYS_TRAIN;
	bool acts = im->o->graph.dropout == DROPOUT_ON || says == DROPOUT_SAYS_TRAIN
		|| (says == DROPOUT_SAYS_NOTHING && s->dropouts && !im->meta);
	s->acting += acts;
	s->ignored += !acts && says == DROPOUT_SAYS_NOTHING;
	s->in_eval += !acts && says == DROPOUT_SAYS_EVAL;
	if (!acts && !s->first_ignored) {
		s->first_ignored = n->name;
		s->ratio = p;
	}
	return acts;
}

/* ---- the survey ---- */

/* The name in "%name : [num_users=1] = call_function[..", with its "%"; "" when fx has another form. */
static const char *fx_name(Import *im, const char *fx)
{
	return *fx == '%' ? arena_strndup(im->arena, fx, strcspn(fx, " ")) : "";
}

/* The k-th argument of the call, as a number; 0 when there is no such argument or fx is another call. */
static double fx_argument(const char *fx, const char *call, int k)
{
	const char *at = strstr(fx, call);
	at = at ? at + strlen(call) : NULL;
	for (int i = 0; at && i < k; i++) {
		size_t n = strcspn(at, ",)");
		at = at[n] == ',' ? at + n + 1 : NULL;
	}
	return at ? strtod(at, NULL) : 0;
}

static bool fx_attention_drops(const char *fx)
{
	return fx_argument(fx, "aten.scaled_dot_product_attention.default](args = (", 4) > 0;
}

/* Counts batch norms with momentum 0: for momentum=None TorchScript writes the factor of the first step. */
static void survey_momentum(Import *im, const Onnx__NodeProto *p, Says says)
{
	Modes *s = im->modes;
	for (size_t i = 0; i < p->n_attribute && says == SAYS_TRAIN && im->pytorch && !im->meta; i++)
		if (!strcmp(p->attribute[i]->name, "momentum") && p->attribute[i]->f == 0 && !s->forgetful++)
			s->first_forgetful = p->name ? p->name : "";
}

/* The stored tensor of this name; NULL when a node computes it. */
static OnnxTensor *tensor_of(const Import *im, const char *name)
{
	const Weight *w = map_get(im->weights, name);
	return w ? (OnnxTensor *)(uintptr_t)w->t : map_get(im->modes->constants, name);
}

static void survey_constant(Import *im, const Onnx__NodeProto *p)
{
	OnnxTensor *t = !strcmp(p->op_type, "Identity") && p->n_input == 1 ? tensor_of(im, p->input[0]) : NULL;
	for (size_t i = 0; i < p->n_attribute && !strcmp(p->op_type, "Constant"); i++) {
		const Onnx__AttributeProto *a = p->attribute[i];
		OnnxTensor *held = NEW(im->arena, OnnxTensor);
		if (!strcmp(a->name, "value") && a->has_t
				&& onnx_tensor_parse(im->arena, im->onnx->file, (Span){a->t.data, a->t.len}, held))
			t = held;
	}
	if (t && p->n_output)
		map_put(im->modes->constants, p->output[0], t);
}

/* Whether the operand is a stored tensor that holds a single boolean, true. */
static bool is_true(const Import *im, const char *name)
{
	const OnnxTensor *t = tensor_of(im, name);
	Diag quiet = *im->d;
	int64_t *v;
	quiet.max_errors = -1; /* errors are reported when the node is imported */
	return t && !t->problem && t->data_type == dtype_info[DT_BOOL].onnx
		&& onnx_dims_numel(t->rank, t->dim) == 1
		&& onnx_tensor_ints(im->onnx, t, im->arena, &v, &quiet) && *v;
}

static void survey_node(Import *im, const Onnx__NodeProto *p)
{
	Modes *s = im->modes;
	const char *op = p->op_type ? p->op_type : "", *fx = names_metadata(p, "pkg.torch.onnx.fx_node");
	const char *classes = names_metadata(p, "pkg.torch.onnx.class_hierarchy");
	bool dropout = !strcmp(op, "Dropout");
	if (!strcmp(op, "BatchNormalization")) {
		Says says = norm_says(p);
		s->norms_train += says == SAYS_TRAIN;
		s->norms_eval += says == SAYS_EVAL;
		survey_momentum(im, p, says);
	}
	if (!strcmp(op, "Constant") || !strcmp(op, "Identity"))
		survey_constant(im, p);
	s->dropouts += dropout && p->n_input > 2 && is_true(im, p->input[2]);
	if (!strcmp(op, "Identity") && classes && strstr(classes, "torch.nn.modules.dropout.")
			&& strstr(classes, "aten.clone.") && !s->absent++)
		s->first_absent = p->name ? p->name : "";
	if (!fx)
		return;
	const char *name = fx_name(im, fx);
	double smoothing = fx_argument(fx, "aten.cross_entropy_loss.default](args = (", 5);
	if (smoothing > 0 && !strcmp(op, "SoftmaxCrossEntropyLoss")) {
		s->smoothing = smoothing;
		s->smoothed = p->name ? p->name : "";
	}
	map_put(s->fx, name, s);
	if (dropout || (fx_attention_drops(fx) && !map_get(s->sdpa, name)))
		map_put(s->sdpa, name, dropout ? s : NULL);
}

/* Counts results of detach() that a node's fx text reads but no node of the model makes. */
static void survey_stops(Import *im, const Onnx__NodeProto *p)
{
	Modes *s = im->modes;
	const char *fx = names_metadata(p, "pkg.torch.onnx.fx_node"), *at = fx ? strstr(fx, "(args = ") : NULL;
	while (at && (at = strstr(at, "%detach"))) {
		size_t n = strspn(at + 1, "abcdefghijklmnopqrstuvwxyz_0123456789") + 1;
		const char *name = arena_strndup(im->arena, at, n);
		if (strspn(name + 7, "_0123456789") == n - 7 && !map_has(s->fx, name) && !s->lost_stops++)
			s->lost_stop = p->name ? p->name : "";
		at += n;
	}
}

static bool read_regexes(Import *im)
{
	const FrontendOptions *o = im->o;
	Modes *s = im->modes;
	s->re = NEW_N(im->arena, regex_t, o->graph.bn.frozen.n);
	s->matched = NEW_N(im->arena, int, o->graph.bn.frozen.n);
	for (int i = 0; i < o->graph.bn.frozen.n; i++) {
		if (pattern_compile(&s->re[i], o->graph.bn.frozen.at[i], "--bn", im->d))
			continue;
		while (i--)
			regfree(&s->re[i]);
		return false;
	}
	return true;
}

bool modes_survey(Import *im)
{
	const OnnxGraph *g = &im->onnx->graph;
	Modes *s = im->modes = NEW(im->arena, Modes);
	s->fx = map_new(im->arena);
	s->sdpa = map_new(im->arena);
	s->constants = map_new(im->arena);
	if (!read_regexes(im))
		return false;
	for (int i = 0; i < g->nodes.n; i++)
		survey_node(im, g->nodes.at[i]);
	for (int i = 0; i < g->nodes.n; i++)
		survey_stops(im, g->nodes.at[i]);
	return true;
}

/* ---- messages ---- */

static const char *names_text(Import *im, int n, const char *const *names)
{
	const char *text = "";
	for (int i = 0; i < n && i < 4; i++)
		text = arena_printf(im->arena, "%s%s\"%s\"", text, i ? ", " : "", str_escape(im->arena, ESCAPE_IR, names[i]));
	return n > 4 ? arena_printf(im->arena, "%s, ..", text) : text;
}

static void check_regexes(Import *im)
{
	Modes *s = im->modes;
	for (int i = 0; i < im->o->graph.bn.frozen.n; i++) {
		if (!s->matched[i])
			diag_error(im->d, "--bn", "\"frozen:%s\" matches no batch norm; there are: %s",
				im->o->graph.bn.frozen.at[i], s->norms.n ? names_text(im, s->norms.n, s->norms.at) : "none");
		regfree(&s->re[i]);
	}
}

/* Reports what it means for batch norms and dropouts that the model was exported in eval mode. */
static void say_eval(Import *im)
{
	const Modes *s = im->modes;
	const char *path = im->onnx->path;
	bool mixed = s->norms_train || s->dropouts;
	bool eval = im->meta ? !im->meta->training : !mixed && (s->norms_eval || s->absent);
	if (s->fixed.n)
		diag_note(im->d, path, "batch norms in eval mode beside modules that train, as the exporter says, use their "
			"running statistics: %d, %s (--bn=train: all train)", s->fixed.n, names_text(im, s->fixed.n, s->fixed.at));
	if (!im->meta && mixed && s->absent)
		diag_note(im->d, path, "dropouts in eval mode, or with the ratio 0, beside modules that train: %d, first "
			"\"%s\"; they drop nothing", s->absent, str_escape(im->arena, ESCAPE_IR, s->first_absent));
	if (!eval)
		return;
	const char *absent = s->absent ? arena_printf(im->arena, "; %d dropout%s gone, first \"%s\", unless their ratio "
		"was 0", s->absent, s->absent == 1 ? " is" : "s are", str_escape(im->arena, ESCAPE_IR, s->first_absent))
		: "; dropouts, if it has any, are gone";
	const char *norms = !s->norms.n ? "" : !s->moving ? ", its batch norms use their running statistics"
		: im->meta && im->o->graph.bn.all == NORM_AUTO && !s->still ? ", its batch norms use the batch's statistics"
		: !s->still ? ", its batch norms train on the batch's statistics all the same (--bn=frozen: on their own)"
		: arena_printf(im->arena, ", %d of its batch norms train on the batch's statistics, %d use their running ones "
			"(--bn=frozen: all do)", s->moving, s->still);
	diag_warn(im->d, path, "the model was exported in eval mode%s%s: export model.train() to train it so", norms,
		absent);
}

static void say_dropouts(Import *im)
{
	const Modes *s = im->modes;
	/* Where some modules train, those in eval mode are taken to be meant so. */
	int lost = 0, n = s->ignored + (s->acting || im->meta ? 0 : s->in_eval);
	for (int i = 0; i < map_count(s->sdpa); i++)
		lost += !map_get(s->sdpa, map_key(s->sdpa, i));
	if (n)
		diag_warn(im->d, im->onnx->path, "%d dropout%s ignored, first node \"%s\" with ratio %g, as the model %s: "
			"--dropout=on trains with all of them, --dropout=off without any", n, n == 1 ? " is" : "s are",
			str_escape(im->arena, ESCAPE_IR, s->first_ignored), s->ratio,
			s->ignored ? "does not say that it trains" : "says that it does not train");
	if (lost && im->o->graph.dropout != DROPOUT_OFF)
		diag_warn(im->d, im->onnx->path, "the exporter's optimizer took the dropout of %d attention%s away: export "
			"with optimize=False to train with it, or give --dropout=off", lost, lost == 1 ? "" : "s");
}

/* Whether a batch norm reads the statistic of this name, so that the program updates and saves it. */
static bool is_kept(Import *im, const char *name)
{
	for (int i = 0; i < map_count(im->weights); i++) {
		const Weight *w = map_get(im->weights, map_key(im->weights, i));
		for (int k = 0; k < w->uses.n; k++) {
			const WeightUse *u = &w->uses.at[k];
			if (is_statistic(u->op, u->operand) && !strcmp(weight_name(im, w, u), name))
				return true;
		}
	}
	return false;
}

/* Whether nothing needs to be said of a buffer that forward changes: the program keeps it as a batch norm statistic; it
 * is the num_batches_tracked beside one, which starts anew with each program; or it belongs to a norm that the exporter
 * folded away, which has its own warning. */
static bool is_kept_buffer(Import *im, const char *name)
{
	static const char count[] = "num_batches_tracked";
	const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
	for (int i = 0; i < im->folded_norms.n; i++) {
		size_t n = strlen(im->folded_norms.at[i]);
		if (!strncmp(name, im->folded_norms.at[i], n) && name + n + 1 == last)
			return true;
	}
	if (strcmp(last, count) != 0)
		return is_kept(im, name);
	return is_kept(im, arena_printf(im->arena, "%.*srunning_mean", (int)(last - name), name));
}

/* Warns of buffers that forward changes, as dynamo lists them: a program updates only statistics of batch norms. */
static void say_changed(Import *im)
{
	static const char key[] = ": BUFFER_MUTATION target='";
	const char *text = arena_strdup(im->arena, wire_str(im->arena, im->onnx->graph.signature));
	for (const char *s = strstr(text, key); s && !im->meta; s = strstr(s, key)) {
		s += strlen(key);
		const char *name = arena_strndup(im->arena, s, strcspn(s, "'"));
		if (!is_kept_buffer(im, name))
			diag_warn(im->d, im->onnx->path, "forward changes buffer \"%s\", and the program does not: it stays as it "
				"is in the file (docs/export.md)", str_escape(im->arena, ESCAPE_IR, name));
	}
}

static void say_forgetful(Import *im)
{
	const Modes *s = im->modes;
	if (s->forgetful)
		diag_warn(im->d, im->onnx->path, "the running statistics of %d batch norm%s, first node \"%s\", are those of "
			"the last batch (momentum 0): PyTorch writes this for momentum=None, an average over all steps, which a "
			"program does not make: give the module a momentum", s->forgetful, s->forgetful == 1 ? "" : "s",
			str_escape(im->arena, ESCAPE_IR, s->first_forgetful));
}

void modes_report(Import *im)
{
	const Modes *s = im->modes;
	check_regexes(im);
	if (im->o->infer || !im->o->say_roles)
		return;
	say_eval(im);
	say_dropouts(im);
	say_forgetful(im);
	say_changed(im);
	if (s->lost_stops && !im->meta)
		diag_warn(im->d, im->onnx->path, "the exporter's optimizer took %d detach() away, first before node \"%s\", so "
			"gradients flow where the model stops them: export with optimize=False", s->lost_stops,
			str_escape(im->arena, ESCAPE_IR, s->lost_stop));
	if (s->smoothing > 0)
		diag_warn(im->d, im->onnx->path, "the exporter left label_smoothing=%g out of node \"%s\", so the loss is "
			"another than the model's: output the logits, with --loss=cross_entropy:label_smoothing=%g", s->smoothing,
			str_escape(im->arena, ESCAPE_IR, s->smoothed), s->smoothing);
}
