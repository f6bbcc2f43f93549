/* twin.c: what batches of one sample do not show.
 *
 * In a model that is read with one sample a dim of 1 may be the samples' or any other, and a factor of 1 their number.
 * Where its file leaves the batch free, the model is read once more with two: the samples of its outputs are those of
 * the first. */
#include <ctype.h>
#include <string.h>

#include "build.h"
#include "passes/loss/loss.h"

/* "batch=1" and "x=1x128" of this name, with 2 in place of 1. */
static void double_named(OptionList *list, const char *name, Arena *a)
{
	size_t n = strlen(name);
	for (int i = 0; i < list->n && n; i++) {
		const char *at = list->at[i];
		if (!strncmp(at, name, n) && at[n] == '=' && at[n + 1] == '1' && !isdigit((unsigned char)at[n + 2]))
			list->at[i] = arena_printf(a, "%s=2%s", name, at + n + 2);
	}
}

static bool is_listed(const OptionList *list, const char *name)
{
	for (int i = 0; i < list->n; i++)
		if (!strcmp(list->at[i], name))
			return true;
	return false;
}

/* Gives each input that has samples two of them; false: the file fixes how many it has. */
static bool double_batch(GraphOptions *o, const char *path, Arena *a)
{
	DeclaredInputVec inputs = {0};
	Diag silent = {.silent = true};
	bool is_free = onnx_declared(path, a, &inputs, &silent);
	for (int i = 0; i < inputs.n; i++) {
		const DeclaredInput *in = &inputs.at[i];
		if (in->rank < 1 || is_listed(&o->constants, in->name))
			continue;
		is_free = is_free && in->dim[0] < 0;
		double_named(&o->bind, in->param[0], a);
		double_named(&o->input_shape, in->name, a);
	}
	return is_free;
}

void twin_note(Module *m, const char *path, const FrontendOptions *as)
{
	Arena *a = arena_new();
	FrontendOptions f = *as;
	Diag silent = {.silent = true};
	f.say_roles = f.graph.strict_params = false;
	f.shapes_only = true;
	bool twin = m->batch == 1 && double_batch(&f.graph, path, a);
	Module *two = twin ? onnx_load(path, &f, &silent) : NULL;
	if (two && two->batch == 2)
		loss_note_samples(m, two);
	if (two)
		ir_module_free(two);
	arena_free(a);
}
