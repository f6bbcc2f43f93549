/* base/pattern.c: compiles regular expressions that users write, or says what to write instead.
 *
 * POSIX extended expressions are accepted, and also \w \W \s \S \b \B \< \>, which the C library supports with Perl's
 * meaning. */
#include "base/pattern.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* A construct of Perl's expressions that POSIX lacks; instead: what means the same, or NULL. */
typedef struct Foreign { const char *text, *instead; } Foreign;
static const Foreign escapes[] = {
	{"\\d", "[0-9]"}, {"\\D", "[^0-9]"}, {"\\A", "^"}, {"\\Z", "$"}, {"\\z", "$"}, {"\\h", "[ ]"}, {"\\Q", NULL},
};
static const Foreign in_brackets[] = {
	{"\\d", "0-9"}, {"\\w", "[:alnum:]_"}, {"\\s", "[:space:]"},
};
static const Foreign groups[] = {
	{"(?:", "("}, {"(?=", NULL}, {"(?!", NULL}, {"(?<", NULL}, {"(?P", "("}, {"(?i", NULL},
};
static const char known_escapes[] = "wWsSbB123456789"; /* those that are letters or digits */

static const Foreign *find(const Foreign *table, int n, const char *s)
{
	for (int i = 0; i < n; i++)
		if (!strncmp(s, table[i].text, strlen(table[i].text)))
			return &table[i];
	return NULL;
}

static bool refuse(const char *pattern, const char *s, size_t n, const char *instead, const char *where, Diag *d)
{
	diag_error(d, where, "\"%s\": %.*s is Perl's, expressions here are POSIX extended ones, as egrep's%s%s", pattern,
		(int)n, s, instead ? ": write " : ", which have nothing like it", instead ? instead : "");
	return false;
}

/* s is behind a "[": returns the end of the bracket expression; NULL after an error.  A backslash is an ordinary
 * character there. */
static const char *skip_brackets(const char *pattern, const char *s, const char *where, Diag *d)
{
	s += *s == '^';
	for (const char *first = s; *s && (*s != ']' || s == first); s++) {
		const char *end = *s == '[' && s[1] && strchr(":.=", s[1]) ? strchr(s + 2, ']') : NULL;
		const Foreign *f = *s == '\\' ? find(in_brackets, COUNT_OF(in_brackets), s) : NULL;
		if (f || (*s == '\\' && isalnum((unsigned char)s[1]))) {
			refuse(pattern, s, 2, f ? f->instead : NULL, where, d);
			return NULL;
		}
		s = end ? end : s;
	}
	return s;
}

static bool is_posix(const char *pattern, const char *where, Diag *d)
{
	for (const char *s = pattern; *s; s++) {
		const Foreign *group = find(groups, COUNT_OF(groups), s), *escape = find(escapes, COUNT_OF(escapes), s);
		if (group || (*s == '(' && s[1] == '?'))
			return refuse(pattern, s, MIN(strlen(s), (size_t)3), group ? group->instead : NULL, where, d);
		if (escape || (*s == '\\' && isalnum((unsigned char)s[1]) && !strchr(known_escapes, s[1])))
			return refuse(pattern, s, 2, escape ? escape->instead : NULL, where, d);
		if (*s == '[' && !(s = skip_brackets(pattern, s + 1, where, d)))
			return false;
		if ((*s == '\\' && s[1]) && s++)
			continue;
		if (!*s)
			break; /* "[" without an end: regcomp reports it */
	}
	return true;
}

/* ---- repeats ---- */

/* How often the C library copies what the repeat operators at *s follow; *s goes behind them. */
static double copies(const char **s)
{
	double n = 1;
	for (;; ++*s) {
		if (**s == '+')
			n *= 2; /* a+ is aa* */
		if (**s == '{') {
			char *end;
			long least = strtol(*s + 1, &end, 10), most = least;
			if (*end == ',')
				most = end[1] == '}' ? least + (least < LONG_MAX) : strtol(end + 1, NULL, 10);
			while (*end == ',' || isdigit((unsigned char)*end))
				end++;
			if (*end != '}') /* not a repeat: regcomp judges it */
				return n;
			n *= (double)MAX(MAX(least, most), 1);
			*s = end;
		} else if (!**s || !strchr("*?+", **s)) {
			return n;
		}
	}
}

/* How many parts regcomp makes of the text at *s, to its end or a group's ")".  It recurs as regcomp does. */
static double parts(const char **s, bool group, const char *where, Diag *d)
{
	double sum = 0;
	while (**s && (**s != ')' || !group)) {
		double one = 1;
		if (**s == '(') {
			++*s;
			one += parts(s, true, where, d);
		} else if (**s == '[') {
			*s = skip_brackets(*s, *s + 1, where, d);
		} else if (**s == '\\' && (*s)[1]) {
			++*s;
		}
		*s += **s != 0;
		sum += one * copies(s);
	}
	return sum;
}

/* Repeats of repeats multiply: a++++++++++++++++++++++++++++++ would want all memory. */
static bool is_small(const char *pattern, const char *where, Diag *d)
{
	const char *s = pattern;
	double n = parts(&s, false, where, d), most = 1000 + 4 * (double)strlen(pattern);
	if (n > most)
		diag_error(d, where, "\"%s\": its repeats (+ and {n,m}), written out, come to %.3g parts, of at most %.0f: "
			"write them once, not behind or around one another", pattern, n, most);
	return n <= most;
}

bool pattern_compile(regex_t *re, const char *pattern, const char *where, Diag *d)
{
	char text[200];
	if (!is_posix(pattern, where, d) || !is_small(pattern, where, d))
		return false;
	int code = regcomp(re, pattern, REG_EXTENDED | REG_NOSUB);
	if (!code)
		return true;
	regerror(code, re, text, sizeof(text));
	diag_error(d, where, "\"%s\" is not an extended regular expression: %s%s", pattern, text,
		*pattern == '*' || *pattern == '?' ? "; a shell's * is .* here, its ? is ." : "");
	return false;
}

bool pattern_check(const char *pattern, const char *where, Diag *d)
{
	regex_t re;
	bool ok = pattern_compile(&re, pattern, where, d);
	if (ok)
		regfree(&re);
	return ok;
}

static void put_literally(Buf *b, const char *text, size_t n)
{
	for (size_t i = 0; i < n; i++)
		buf_printf(b, strchr("\\.[]{}()*+?|^$", text[i]) ? "\\%c" : "%c", text[i]);
}

char *pattern_of_names(const char *const *name, int n, Arena *a)
{
	Buf b = {0};
	size_t same = strlen(name[0]);
	for (int i = 1; i < n; i++)
		while (strncmp(name[i], name[0], same))
			same--;
	while (n > 1 && same && name[0][same - 1] != '.')
		same--;
	buf_printf(&b, "^");
	put_literally(&b, name[0], same);
	for (int i = 0; i < n && n > 1; i++) {
		buf_printf(&b, i ? "|" : "(");
		put_literally(&b, name[i] + same, strlen(name[i]) - same);
	}
	buf_printf(&b, n > 1 ? ")$" : "$");
	char *text = arena_strndup(a, b.at, b.n);
	buf_free(&b);
	return text;
}
