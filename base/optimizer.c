/* base/optimizer.c: reads the name of an optimizer and its flags, and writes lists of them; the table is
 * optimizers.def. */
#include "base/optimizer.h"

#include "base/base.h"

#include <math.h>
#include <string.h>

#define TEXT_NONE
#define TEXT_MOMENTUM ":momentum"
#define NESTEROV_NONE false
#define NESTEROV_MOMENTUM true
#define FORM_NONE(name) ", " name
#define FORM_MOMENTUM(name) "[:momentum[,nesterov]]"
#define HELP_NONE(name) " | " name
#define HELP_MOMENTUM(name) "[:momentum,nesterov]"

const OptimizerInfo optimizer_info[OPTIMIZER_COUNT] = {
#define OPTIMIZER(kernel, name, flag, lr, decay, b1, b2, eps, momentum, counted, n, ...) [OPTIMIZER_##kernel] = {name, \
	name TEXT_##flag, NESTEROV_##flag, n, {__VA_ARGS__}, counted, lr, {[GROUP_lr_scale] = 1, \
	[GROUP_weight_decay] = decay, [GROUP_beta1] = (double)b1, [GROUP_beta2] = (double)b2, [GROUP_eps] = (double)eps, \
	[GROUP_momentum] = (double)momentum}, {[GROUP_weight_decay] = #decay, [GROUP_beta1] = #b1, [GROUP_beta2] = #b2, \
	[GROUP_eps] = #eps, [GROUP_momentum] = #momentum}},
#include "base/optimizers.def"
};

#define OPTIMIZER(kernel, name, flag, lr, decay, b1, b2, eps, momentum, counted, n, ...) \
	_Static_assert(n <= OPTIMIZER_STATES && COUNT_OF(((const char *[]){__VA_ARGS__})) == (n ? n : 1), \
		"optimizers.def: " name " has another number of states");
#include "base/optimizers.def"

const char optimizer_form_list[] =
#define OPTIMIZER(kernel, name, flag, ...) FORM_##flag(name)
#include "base/optimizers.def"
;
const char optimizer_help_list[] =
#define OPTIMIZER(kernel, name, flag, ...) HELP_##flag(name)
#include "base/optimizers.def"
;

static bool is_word(const char *s, size_t n, const char *word)
{
	return n == strlen(word) && !memcmp(s, word, n);
}

static const OptimizerInfo *find(const char *name, size_t n, bool flagged)
{
	for (int i = 0; i < OPTIMIZER_COUNT; i++)
		if (is_word(name, n, optimizer_info[i].name) && optimizer_info[i].nesterov == flagged)
			return &optimizer_info[i];
	return NULL;
}

static bool read_flags(const char *flags, bool *momentum, bool *nesterov)
{
	while (*flags) {
		size_t n = strcspn(flags, ",");
		if (is_word(flags, n, "momentum"))
			*momentum = true;
		else if (is_word(flags, n, "nesterov"))
			*nesterov = true;
		else
			return false;
		flags += n + (flags[n] == ',');
	}
	return true;
}

bool optimizer_read(const char *text, OptimizerChoice *out)
{
	text = text ? text : OPTIMIZER_DEFAULT;
	size_t n = strcspn(text, ":");
	bool momentum = false, nesterov = false;
	*out = (OptimizerChoice){NULL, false};
	if (text[n] && (!find(text, n, true) || !read_flags(text + n + 1, &momentum, &nesterov)))
		return false;
	out->info = find(text, n, momentum);
	out->nesterov = nesterov;
	return out->info && (momentum || !nesterov);
}

/* ---- lists ---- */

static int find_readers(GroupKey key, const OptimizerInfo *out[OPTIMIZER_COUNT])
{
	int n = 0;
	for (int i = 0; i < OPTIMIZER_COUNT; i++)
		if (optimizer_reads(&optimizer_info[i], key))
			out[n++] = &optimizer_info[i];
	return n;
}

const char *optimizer_readers(Arena *a, GroupKey key, const char *comma, const char *last)
{
	const OptimizerInfo *of[OPTIMIZER_COUNT];
	const char *text = "";
	int n = find_readers(key, of);
	for (int i = 0; i < n; i++)
		text = arena_printf(a, "%s%s%s", text, i == 0 ? "" : i == n - 1 ? last : comma, of[i]->text);
	return text;
}

static bool same_numbers(const OptimizerInfo *x, const OptimizerInfo *y, GroupKey key, GroupKey second)
{
	return !strcmp(x->number_text[key], y->number_text[key]) && !strcmp(x->number_text[second], y->number_text[second]);
}

const char *optimizer_defaults(Arena *a, GroupKey key, GroupKey second)
{
	const OptimizerInfo *of[OPTIMIZER_COUNT];
	const char *text = "";
	int n = find_readers(key, of);
	for (int i = 0; i < n; i++) {
		bool more = i + 1 < n;
		text = arena_printf(a, "%s%s", text, of[i]->name);
		if (!more || !same_numbers(of[i], of[i + 1], key, second))
			text = arena_printf(a, "%s (default %s%s%s)%s", text, of[i]->number_text[key], second == key ? "" : ",",
				second == key ? "" : of[i]->number_text[second],
				more && same_numbers(of[i + 1], of[n - 1], key, second) ? " and " : more ? ", " : "");
		else
			text = arena_printf(a, "%s, ", text);
	}
	return text;
}

const char *optimizer_decays(Arena *a)
{
	const char *text = "";
	for (int i = 0; i < OPTIMIZER_COUNT; i++)
		if (optimizer_info[i].number[GROUP_weight_decay] > 0)
			text = arena_printf(a, "%s%s%s for %s", text, *text ? ", " : "",
				optimizer_info[i].number_text[GROUP_weight_decay], optimizer_info[i].text);
	return text;
}

const char *optimizer_choices(Arena *a)
{
	const char *text = OPTIMIZER_DEFAULT;
	for (int i = 0; i < OPTIMIZER_COUNT; i++)
		if (strcmp(optimizer_info[i].text, OPTIMIZER_DEFAULT))
			text = arena_printf(a, "%s|%s", text, optimizer_info[i].text);
	return text;
}
