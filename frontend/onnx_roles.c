/* frontend/onnx_roles.c: decides what each initializer is: trained, frozen, a buffer or a constant, and by what
 * evidence.
 *
 * Evidence is taken in the order of trust (evidence.def): what shardc.export wrote; what PyTorch's exporter wrote; then
 * what the graph shows: the operands that the tensor is used as, its name, its numbers.  What remains is guessed, and
 * reported as a guess. */
#include "frontend/onnx_params.h"

#include <math.h>
#include <string.h>

const EvidenceInfo evidence_info[EVIDENCE_COUNT] = {
#define EVIDENCE(id, text, guess, doc) {text, guess, doc},
#include "frontend/evidence.def"
};

typedef struct Ending { const char *text; WeightClass class; bool sure; } Ending;

static const Ending endings[] = {
#define ENDING(text, is, sure) {text, WEIGHT_##is, sure},
#include "frontend/roles.def"
};

typedef struct Setting { const char *op; int operand; bool learned; } Setting;

static const Setting settings[] = {
#define NO_WEIGHT(op, operand, learned) {#op, operand, learned},
#include "frontend/roles.def"
};

static const char *const weighs[] = {
#define WEIGHS(op) #op,
#include "frontend/roles.def"
};

/* ---- names ---- */

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), k = strlen(end);
	return (n >= k && !strcmp(s + n - k, end)) || (*end == '.' && !strcmp(s, end + 1));
}

static const Ending *ending_of(const char *name)
{
	for (int i = 0; i < COUNT_OF(endings); i++)
		if (ends_with(name, endings[i].text))
			return &endings[i];
	return NULL;
}

bool name_is_buffer(const char *name)
{
	const Ending *e = ending_of(name);
	return e && e->class == WEIGHT_BUFFER;
}

/* A name that an exporter made up, but which also trained weights can have. */
static bool made_up_weight(const char *name)
{
	return !strncmp(name, "onnx::", 6) || !strncmp(name, "const_fold", 10) || (*name >= '0' && *name <= '9');
}

/* Whether dynamo gives such a name to the result of an op that transposes a matrix: the op's name, with a number behind
 * it for all but the first such op. */
static bool is_fx_transpose(const char *name)
{
	static const char *const ops[] = {"t", "permute", "transpose"};
	for (int i = 0; i < COUNT_OF(ops); i++) {
		size_t n = strlen(ops[i]);
		bool numbered = !strncmp(name, ops[i], n) && name[n] == '_' && name[n + 1] && names_all_digits(name + n + 1);
		if (numbered || !strcmp(name, ops[i]))
			return true;
	}
	return false;
}

/* Whether the node was a linear layer whose weight is the parameter, or whose own weight was equal and merged with it.
 * The MatMul of such a node reads the transpose. */
static bool is_linear_of(const Import *im, const WeightUse *u, const char *argument)
{
	if (strcmp(u->op, "MatMul") != 0 || u->operand != 1 || !u->fx
			|| !strstr(u->fx, "[target=torch.ops.aten.linear.default]"))
		return false;
	const char *own = map_get(im->signature, arena_printf(im->arena, "%s.weight", u->scope));
	return names_fx_reads(u->fx, argument) || (own && names_fx_reads(u->fx, own));
}

const char *weight_transposed_from(Import *im, const Weight *w)
{
	const char *name = w->folded.n == 1 ? w->folded.at[0] : NULL;
	if (!name || !w->typed || w->type.rank != 2 || !w->uses.n)
		return NULL;
	const Weight *other = map_get(im->weights, name);
	const char *argument = im->signature ? map_get(im->signature, name) : NULL;
	if (im->signature ? !argument || strcmp(signature_kind(argument), "PARAMETER") != 0 : !other)
		return NULL;
	if (other && weight_is_transpose(im, w, other))
		return name;
	bool all = argument != NULL;
	for (int i = 0; i < w->uses.n; i++)
		all = all && is_linear_of(im, &w->uses.at[i], argument);
	return all || (argument && is_fx_transpose(w->t->name)) ? name : NULL;
}

bool weight_is_folded_vector(const Weight *w)
{
	int wide = 0;
	for (int i = 0; i < w->type.rank; i++)
		wide += w->type.dim[i] != 1;
	return wide == 1 && w->type.rank > 1 && w->uses.n > 0 && *w->uses.at[0].scope
		&& (!strncmp(w->t->name, "onnx::Mul_", 10) || !strncmp(w->t->name, "onnx::Add_", 10));
}

/* ---- deciding ---- */

static void decide(Weight *w, WeightClass class, Evidence evidence, const char *why)
{
	w->class = class;
	w->evidence = evidence;
	w->why = why;
}

static void by_metadata(Import *im, Weight *w)
{
	const MetaTensor *t = w->meta;
	if (!t)
		decide(w, WEIGHT_CONST, EVIDENCE_METADATA, "not a tensor of the module");
	else if (t->kind == META_PARAMETER)
		decide(w, WEIGHT_PARAM, EVIDENCE_METADATA, t->trained ? "a parameter"
			: "a parameter with requires_grad=False");
	else if (t->kind == META_BUFFER && (t->persistent || weight_only_statistics(w)))
		decide(w, WEIGHT_BUFFER, EVIDENCE_METADATA, "a buffer");
	else
		decide(w, WEIGHT_CONST, EVIDENCE_METADATA, t->kind == META_BUFFER ? "a buffer that is not saved"
			: "a constant");
	w->frozen = t && t->kind == META_PARAMETER && !t->trained;
	if (t && t->kind != META_BUFFER && weight_only_statistics(w))
		diag_error(im->d, im->onnx->path, "tensor \"%s\" is the running statistics of a batch norm, and the metadata "
			"say that it is %s: export the model again", str_escape(im->arena, ESCAPE_IR, t->name), w->why);
}

/* PyTorch's exporter says which tensors are parameters and which are buffers, but not which have requires_grad. */
static void by_exporter(Import *im, Weight *w)
{
	if (w->folded_from && !w->kind) {
		bool turned = weight_transposed_from(im, w) != NULL;
		decide(w, turned ? WEIGHT_PARAM : WEIGHT_CONST, EVIDENCE_EXPORTER,
			arena_printf(im->arena, "folded from %s", str_escape(im->arena, ESCAPE_IR, w->folded_from)));
	} else if (!strcmp(w->kind, "PARAMETER")) {
		decide(w, WEIGHT_PARAM, EVIDENCE_EXPORTER, "a parameter");
	} else if (!strcmp(w->kind, "BUFFER") && !w->transient) {
		decide(w, WEIGHT_BUFFER, EVIDENCE_EXPORTER, "a buffer");
	} else {
		decide(w, WEIGHT_CONST, EVIDENCE_EXPORTER, w->transient ? "a buffer that is not saved" : "a constant");
	}
}

/* Whether all uses are operands that only set an op up.  A tensor that PyTorch's exporter stores under a name of the
 * framework belongs to a module, so for the operands marked `learned` it may be trained all the same. */
static bool only_settings(const Import *im, const Weight *w)
{
	bool all = w->uses.n > 0, module = im->pytorch && !names_is_made_up(w->as);
	for (int i = 0; all && i < w->uses.n; i++) {
		bool found = false;
		for (int k = 0; k < COUNT_OF(settings); k++)
			found = found || (w->uses.at[i].operand == settings[k].operand && !(settings[k].learned && module)
				&& !strcmp(w->uses.at[i].op, settings[k].op));
		all = found;
	}
	return all;
}

static const char *uses_text(Import *im, const Weight *w)
{
	const char *first = w->uses.n ? w->uses.at[0].op : NULL;
	if (!first)
		return "no node of the main graph uses it";
	const char *shown = str_escape(im->arena, ESCAPE_IR, first);
	for (int i = 1; i < w->uses.n; i++)
		if (strcmp(w->uses.at[i].op, first) != 0)
			return arena_printf(im->arena, "used by %s and %s", shown,
				str_escape(im->arena, ESCAPE_IR, w->uses.at[i].op));
	return arena_printf(im->arena, "used by %s", shown);
}

/* Whether some op uses it as weights are used.  A tensor that is multiplied and then reduced may hold the weights of a
 * loss's terms, which are a buffer; such uses do not count. */
static bool weighs_something(const Weight *w)
{
	for (int i = 0; i < w->uses.n; i++) {
		const WeightUse *u = &w->uses.at[i];
		const Role *r = role_of(u->op, u->operand);
		if (u->call || (r && !strcmp(r->suffix, "weight") && (r->strong || !u->reduced)))
			return true;
		for (int k = 0; k < COUNT_OF(weighs); k++)
			if (!strcmp(weighs[k], u->op))
				return true;
	}
	return !w->uses.n;
}

/* Whether this ending of the name leaves no doubt about the tensor. */
static bool is_sure(const Weight *w, const Ending *e)
{
	size_t n = strlen(e->text);
	bool weight = e->class == WEIGHT_PARAM && n >= 6 && !strcmp(e->text + n - 6, "weight");
	return e->sure && (!weight || weighs_something(w));
}

/* Whether it is "a.weight" or "a.bias" beside an "a.running_mean" that no BatchNormalization reads.  In the frozen
 * norms of detectors (FrozenBatchNorm2d) all four tensors are buffers. */
static bool of_frozen_norm(const Import *im, const Weight *w)
{
	const char *dot = strrchr(w->as, '.');
	if (!dot || (strcmp(dot, ".weight") != 0 && strcmp(dot, ".bias") != 0))
		return false;
	const Weight *mean = map_get(im->weights, arena_printf(im->arena, "%.*s.running_mean", (int)(dot - w->as), w->as));
	return mean && !weight_only_statistics(mean);
}

/* Decides by a name that the framework gave; exporters write such names only for parameters and buffers. */
static void by_name(Import *im, Weight *w)
{
	const Ending *e = ending_of(w->as);
	const WeightUse *strong = weight_strong_use(w);
	if (of_frozen_norm(im, w))
		decide(w, WEIGHT_BUFFER, EVIDENCE_GUESS,
			"no batch norm reads its module's running_mean, as in a FrozenBatchNorm2d");
	else if (e)
		decide(w, e->class, is_sure(w, e) ? EVIDENCE_NAME : EVIDENCE_GUESS, !e->sure || is_sure(w, e)
			? arena_printf(im->arena, "its name ends in \"%s\"", e->text + (*e->text == '.'))
			: arena_printf(im->arena, "%s, as weights of layers are not", uses_text(im, w)));
	else if (strong && !im->pytorch)
		decide(w, WEIGHT_PARAM, EVIDENCE_USE, arena_printf(im->arena, "a weight of %s", strong->op));
	else if (type_numel(&w->type) == 1 && !strchr(w->as, '.') && !im->pytorch)
		decide(w, WEIGHT_CONST, EVIDENCE_NAME, "a single number that belongs to no module");
	else
		decide(w, WEIGHT_PARAM, EVIDENCE_GUESS, uses_text(im, w));
}

/* Whether a constant may have been computed from a parameter.  TorchScript folds what depends on one parameter alone,
 * such as a lookup of learned positions, into "onnx::Add_7"; onnxruntime folds it under the name of the result.  A
 * table with enough different fractional numbers may be such a result. */
static bool may_be_folded(Import *im, const Weight *w)
{
	enum { DIFFERENT = 16 };
	HostTensor h;
	int wide = 0, changes = 0;
	for (int i = 0; i < w->type.rank; i++)
		wide += w->type.dim[i] > 1;
	bool by_exporter = im->pytorch && !strncmp(w->t->name, "onnx::", 6);
	if ((!by_exporter && !im->runtime_folded) || wide < 2 || !weight_values(im, w, &h))
		return false;
	int64_t n = type_numel(&w->type);
	for (int64_t i = 1; i < n && changes < DIFFERENT; i++) {
		double v = host_get_float(&h, i);
		changes += v != floor(v) && v != host_get_float(&h, i - 1);
	}
	return changes == DIFFERENT;
}

static void by_use(Import *im, Weight *w)
{
	const WeightUse *strong = weight_strong_use(w);
	if (!strong && may_be_folded(im, w))
		decide(w, WEIGHT_CONST, EVIDENCE_GUESS, im->runtime_folded
			? "onnxruntime folded it, maybe from a parameter, which is then lost: compile the model from before"
			: "the exporter folded it, maybe from a parameter, which is then lost: do_constant_folding=False keeps "
				"that");
	else if (strong && im->runtime_folded && !made_up_weight(w->t->name) && may_be_folded(im, w))
		decide(w, WEIGHT_PARAM, EVIDENCE_GUESS, arena_printf(im->arena, "onnxruntime folded it, and it stands where "
			"weights of %s do", strong->op));
	else if (!strong || im->signature)
		decide(w, WEIGHT_CONST, EVIDENCE_NAME, "the exporter made the name up");
	else if (!made_up_weight(w->t->name))
		decide(w, WEIGHT_CONST, EVIDENCE_GUESS, arena_printf(im->arena, "the exporter made the name up, but it stands "
			"where weights of %s do", strong->op));
	else
		decide(w, WEIGHT_PARAM, EVIDENCE_USE, arena_printf(im->arena, "a weight of %s", strong->op));
}

/* Marks a trained parameter as frozen if it is exactly a sinusoidal table, and its uses allow a table of positions:
 * such numbers were not trained. */
static void suspect_positions(Import *im, Weight *w)
{
	const WeightUse *strong = weight_strong_use(w);
	if (w->class != WEIGHT_PARAM || w->evidence == EVIDENCE_METADATA || (strong && strcmp(strong->op, "Gather") != 0)
			|| !weight_is_sinusoidal(im, w))
		return;
	decide(w, WEIGHT_PARAM, EVIDENCE_VALUE, "a table of sines and cosines");
	w->frozen = true;
}

/* Whether the file has the part's name: as the name of an Identity, or of the tensor itself. */
static bool is_named(const Weight *part)
{
	bool any = !strcmp(part->as, part->t->name) && !names_is_made_up(part->as);
	for (int i = 0; i < part->uses.n; i++)
		any = any || (part->uses.at[i].alias && !strcmp(part->uses.at[i].alias, part->as));
	return any;
}

void weight_decide_part(Import *im, Weight *part)
{
	const WeightUse *strong = weight_strong_use(part);
	const char *argument = im->signature ? map_get(im->signature, part->as) : NULL;
	bool computed = part->folded_from || names_is_made_up(part->t->name);
	if (argument) {
		part->kind = signature_kind(argument);
		part->transient = !strcmp(part->kind, "BUFFER") && !signature_is_saved(argument);
	}
	if (weight_only_statistics(part))
		decide(part, WEIGHT_BUFFER, EVIDENCE_USE, "running statistics of BatchNormalization");
	else if (argument)
		by_exporter(im, part);
	else if (is_named(part))
		by_name(im, part);
	else if (!computed && strong)
		decide(part, WEIGHT_PARAM, EVIDENCE_USE, arena_printf(im->arena, "a weight of %s", strong->op));
	else if (!computed)
		decide(part, WEIGHT_PARAM, EVIDENCE_GUESS, uses_text(im, part));
	if (part->class == WEIGHT_CONST)
		part->class = WEIGHT_BUFFER; /* a buffer, so that writing the model can give its tensor to another part */
	suspect_positions(im, part);
}

void weight_decide(Import *im, Weight *w)
{
	bool floats = w->typed && dtype_is_float(w->type.dtype);
	w->meta = im->meta && !w->inner ? map_get(im->meta->by_initializer, w->t->name) : NULL;
	if (im->meta)
		by_metadata(im, w);
	else if (!floats)
		decide(w, WEIGHT_CONST, EVIDENCE_DTYPE, onnx_dtype_name(w->t->data_type));
	else if (weight_only_statistics(w))
		decide(w, WEIGHT_BUFFER, EVIDENCE_USE, "running statistics of BatchNormalization");
	else if (w->kind || w->folded_from)
		by_exporter(im, w);
	else if (w->inner && im->pytorch)
		decide(w, WEIGHT_CONST, EVIDENCE_EXPORTER, "inside a subgraph, where PyTorch's exporters put constants alone");
	else if (weight_is_folded_vector(w))
		decide(w, WEIGHT_PARAM, EVIDENCE_USE, "scale or shift of a norm");
	else if (only_settings(im, w))
		decide(w, WEIGHT_CONST, EVIDENCE_USE, uses_text(im, w));
	else if (names_is_made_up(w->t->name))
		by_use(im, w);
	else
		by_name(im, w);
	if (!floats)
		w->class = WEIGHT_CONST;
	w->frozen = w->frozen && w->class == WEIGHT_PARAM;
	suspect_positions(im, w);
}
