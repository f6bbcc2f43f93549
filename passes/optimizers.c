/* passes/optimizers.c: what --optimizer=NAME[:FLAG,...] says.
 *
 * Refuses names that optimizers.def does not list, and flags that the optimizer has not. */
#include "passes/passes.h"

#include <string.h>

static const Optimizer known[] = {
#define OPTIMIZER(name, ...) {name, false, false, 0, {__VA_ARGS__}},
#include "passes/optimizers.def"
};

static const char accepted[] = "accepted: sgd[:momentum[,nesterov]], adam, adamw, adagrad, lion";

static bool is_word(const char *s, size_t n, const char *word)
{
	return n == strlen(word) && !memcmp(s, word, n);
}

static bool parse_flags(const char *flags, Optimizer *opt)
{
	while (*flags) {
		size_t n = strcspn(flags, ",");
		if (is_word(flags, n, "momentum"))
			opt->momentum = true;
		else if (is_word(flags, n, "nesterov"))
			opt->nesterov = true;
		else
			return false;
		flags += n + (flags[n] == ',');
	}
	return true;
}

bool optimizer_parse(const char *text, Optimizer *out, Diag *d)
{
	size_t n;
	if (!text)
		text = "adamw";
	n = strcspn(text, ":");
	for (int i = 0; i < COUNT_OF(known); i++) {
		if (!is_word(text, n, known[i].name))
			continue;
		bool sgd = !strcmp(known[i].name, "sgd");
		*out = known[i];
		if (text[n] && (!sgd || !parse_flags(text + n + 1, out)))
			break;
		if (out->nesterov && !out->momentum) {
			diag_error(d, "--optimizer", "\"%s\": nesterov needs momentum (write sgd:momentum,nesterov)", text);
			return false;
		}
		while (out->n_states < COUNT_OF(out->states) && out->states[out->n_states])
			out->n_states++;
		if (sgd && !out->momentum)
			out->n_states = 0;
		return true;
	}
	diag_error(d, "--optimizer", "\"%s\" is not an optimizer with these flags; %s", text, accepted);
	return false;
}
