/* passes/optimizer/optimizers.c: parses --optimizer=NAME[:FLAG,...], --clip=P[,value] and --loss-scale.
 *
 * Refuses names that optimizers.def does not list, flags that the optimizer does not have, and norms below 1. */
#include "base/near.h"
#include "passes/passes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_word(const char *s, size_t n, const char *word)
{
	return n == strlen(word) && !memcmp(s, word, n);
}

static void refuse_optimizer(const char *text, Diag *d)
{
	Arena *a = arena_new();
	const char **names = NEW_N(a, const char *, OPTIMIZER_COUNT);
	size_t n = strcspn(text, ":");
	bool is_known = false;
	for (int i = 0; i < OPTIMIZER_COUNT; i++) {
		names[i] = optimizer_info[i].name;
		is_known = is_known || is_word(text, n, names[i]);
	}
	const char *value = strchr(text, '=');
	const char *hint = is_known ? "" : near_hint(a, "--optimizer", arena_strndup(a, text, n), names, OPTIMIZER_COUNT);
	if (value && is_known)
		hint = "; its numbers are given when training, as in ./train --lr 1e-3 --momentum 0.9 --betas 0.9,0.99 "
			"--weight-decay 0.1";
	diag_error(d, "--optimizer", "\"%s\" is not an optimizer with these flags; accepted: %s%s", text, OPTIMIZER_FORMS,
		hint);
	arena_free(a);
}

bool optimizer_parse(const char *text, OptimizerChoice *out, Diag *d)
{
	text = text ? text : OPTIMIZER_DEFAULT;
	if (optimizer_read(text, out))
		return true;
	if (out->nesterov)
		diag_error(d, "--optimizer", "\"%s\": nesterov needs momentum (write sgd:momentum,nesterov)", text);
	else
		refuse_optimizer(text, d);
	return false;
}

bool optimizer_of(const Module *m, const Options *o, OptimizerChoice *out, Diag *d)
{
	return optimizer_parse(m->train ? m->train->optimizer : o->graph.optimizer, out, d);
}

static bool parse_clip_word(const char *s, size_t n, Clip *out, Arena *a)
{
	char *end;
	if (is_word(s, n, "value")) {
		bool again = out->value;
		out->value = true;
		return !again;
	}
	const char *word = arena_strndup(a, s, n);
	double p = is_word(s, n, "inf") ? (double)INFINITY : strtod(word, &end);
	bool ok = is_word(s, n, "inf") || (n && *s >= '0' && *s <= '9' && !*end && isfinite(p) && p >= 1);
	bool again = out->p > 0;
	out->p = p;
	return ok && !again;
}

/* Nobody writes the p of a norm as "1.0" or "0.5": a limit was meant.  True after a message. */
static bool is_limit(const char *text, Diag *d)
{
	char *end;
	double v = strtod(text, &end);
	bool whole = isfinite(v) && !(fabs(v - floor(v)) > 0);
	bool limit = end != text && (!*end || *end == ',') && v > 0 && (v < 1 || (whole && memchr(text, '.',
		(size_t)(end - text))));
	if (limit)
		diag_error(d, "--clip", "\"%s\" reads like the limit of a norm, and here stands the norm: compile with "
			"--clip=2%s and train with ./train --clip-norm %g", text, end, v);
	return limit;
}

bool clip_parse(const char *text, Clip *out, Arena *a, Diag *d)
{
	*out = (Clip){0};
	if (!text || !strcmp(text, "off"))
		return true;
	if (is_limit(text, d))
		return false;
	bool ok = true;
	const char *s = text;
	do {
		size_t n = strcspn(s, ",");
		ok = ok && parse_clip_word(s, n, out, a);
		s += n;
	} while (*s++ == ',');
	if (!ok) {
		diag_error(d, "--clip", "\"%s\" is not what gradients are clipped by; accepted: off, the p of a norm (a number "
			"from 1 on, or inf), value, or both as 2,value", text);
		return false;
	}
	if (out->p > 0 && out->p < (double)INFINITY && fabs(out->p - 2) > 0)
		diag_note(d, "--clip", "%g is the p of the norm, as in the %g-norm, not its limit: the usual one is --clip=2, "
			"and the limit is given to the program, as ./train --clip-norm %g", out->p, out->p, out->p);
	out->text = out->p > 0 ? arena_printf(a, out->value ? "%.17g,value" : "%.17g", out->p) : "value";
	return true;
}

/* ---- --loss-scale ---- */

static bool bad_loss_scale(const char *text, const char *why, Diag *d)
{
	diag_error(d, "--loss-scale", "\"%s\": %s; accepted: none, a number (a power of two rounds nothing), "
		"dynamic[:init=65536,growth_interval=2000]", text, why);
	return false;
}

/* A positive number that f32 holds. */
static bool read_scale(const char *text, size_t n, double *out)
{
	char *end;
	*out = strtod(text, &end);
	return n && end == text + n && *out > 0 && isfinite((float)*out) && (float)*out > 0;
}

static bool read_dynamic(const char *text, const char *keys, LossScale *out, Diag *d)
{
	while (*keys) {
		size_t n = strcspn(keys, ","), k = strcspn(keys, "=");
		if (k < n && is_word(keys, k, "init")) {
			if (!read_scale(keys + k + 1, n - k - 1, &out->value))
				return bad_loss_scale(text, "init is not a positive number", d);
		} else if (k < n && is_word(keys, k, "growth_interval")) {
			char interval[64];
			snprintf(interval, sizeof(interval), "%.*s", (int)MIN(n - k - 1, sizeof(interval) - 1), keys + k + 1);
			if (!str_to_count(interval, false, &out->growth_interval))
				return bad_loss_scale(text, "growth_interval is not a number of steps", d);
		} else {
			return bad_loss_scale(text, "unknown key", d);
		}
		keys += n + (keys[n] == ',');
	}
	return true;
}

bool loss_scale_parse(const char *text, LossScale *out, Diag *d)
{
	*out = (LossScale){LOSS_SCALE_NONE, 1, 0};
	if (!text || !strcmp(text, "none"))
		return true;
	if (!strncmp(text, "dynamic", 7) && (!text[7] || text[7] == ':')) {
		*out = (LossScale){LOSS_SCALE_DYNAMIC, 65536, 2000};
		return read_dynamic(text, text[7] ? text + 8 : "", out, d);
	}
	out->kind = LOSS_SCALE_FIXED;
	return read_scale(text, strlen(text), &out->value) || bad_loss_scale(text, "not a positive number", d);
}
