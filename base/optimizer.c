/* base/optimizer.c: reads the name of an optimizer and its flags; the table is optimizers.def. */
#include "base/optimizer.h"

#include "base/base.h"

#include <string.h>

const Optimizer optimizer_known[] = {
#define OPTIMIZER(name, ...) {name, false, false, 0, {__VA_ARGS__}},
#include "base/optimizers.def"
};
const int optimizer_count = COUNT_OF(optimizer_known);
const char optimizer_forms[] = "sgd[:momentum[,nesterov]], adam, adamw, adagrad, lion";

static bool is_word(const char *s, size_t n, const char *word)
{
	return n == strlen(word) && !memcmp(s, word, n);
}

static bool read_flags(const char *flags, Optimizer *opt)
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

bool optimizer_read(const char *text, Optimizer *out)
{
	size_t n = strcspn(text, ":");
	for (int i = 0; i < optimizer_count; i++) {
		if (!is_word(text, n, optimizer_known[i].name))
			continue;
		bool sgd = !strcmp(optimizer_known[i].name, "sgd");
		*out = optimizer_known[i];
		if (text[n] && (!sgd || !read_flags(text + n + 1, out))) {
			*out = (Optimizer){0};
			return false;
		}
		while (out->n_states < COUNT_OF(out->states) && out->states[out->n_states])
			out->n_states++;
		if (sgd && !out->momentum)
			out->n_states = 0;
		return out->momentum || !out->nesterov;
	}
	*out = (Optimizer){0};
	return false;
}
