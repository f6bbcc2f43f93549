/* base/near.c: finds what an unknown word was meant to be, by edit distance and by the words of other systems
 * (words.def).
 *
 * Every message that refuses a word ends with near_hint, so a new table of words gets its "did you mean" by one
 * call. */
#include "base/near.h"

#include <ctype.h>
#include <string.h>

enum { LONGEST = 48 }; /* longer words get no suggestion */

typedef struct Word { const char *option, *word, *ours, *whose; } Word;
static const Word words[] = {
#define WORD(option, word, ours, whose) {option, word, ours, whose},
#include "base/words.def"
};

static int fold(char c)
{
	return c == '-' ? '_' : tolower((unsigned char)c);
}

/* The edit distance, by dynamic programming: row i of the table has the distances of the first i letters of x to the
 * first k letters of y, and is stored in at[i % 3]. */
int near_distance(const char *x, const char *y)
{
	int at[3][LONGEST + 1], n = (int)strlen(x), m = (int)strlen(y);
	if (n > LONGEST || m > LONGEST)
		return MAX(n, m);
	for (int k = 0; k <= m; k++)
		at[0][k] = k;
	for (int i = 1; i <= n; i++) {
		int *now = at[i % 3], *last = at[(i + 2) % 3], *older = at[(i + 1) % 3];
		now[0] = i;
		for (int k = 1; k <= m; k++) {
			bool same = fold(x[i - 1]) == fold(y[k - 1]);
			now[k] = MIN(MIN(now[k - 1], last[k]) + 1, last[k - 1] + !same);
			if (i > 1 && k > 1 && fold(x[i - 1]) == fold(y[k - 2]) && fold(x[i - 2]) == fold(y[k - 1]))
				now[k] = MIN(now[k], older[k - 2] + 1);
		}
	}
	return at[n % 3][m];
}

static bool begins(const char *word, const char *with)
{
	for (; *with; word++, with++)
		if (fold(*word) != fold(*with))
			return false;
	return true;
}

/* The only known word that begins with the given letters; NULL = none or several. */
static const char *completion(const char *given, const char *const *known, int n)
{
	const char *found = NULL;
	if (strlen(given) < 3)
		return NULL;
	for (int i = 0; i < n; i++) {
		if (!begins(known[i], given))
			continue;
		if (found)
			return NULL;
		found = known[i];
	}
	return found;
}

const char *near_word(const char *given, const char *const *known, int n)
{
	const char *best = NULL;
	int least = ((int)strlen(given) + 2) / 3 + 1;
	for (int i = 0; i < n; i++) {
		int distance = near_distance(given, known[i]);
		if (distance >= least || distance * 2 > (int)strlen(known[i]))
			continue;
		least = distance;
		best = known[i];
	}
	return best ? best : completion(given, known, n);
}

/* Whether the row is for this option; rows of "dtype" are for all options of dtypes. */
static bool is_of(const Word *w, const char *option)
{
	size_t n = strlen(option), suffix = strlen("dtype");
	return !strcmp(w->option, option)
		|| (!strcmp(w->option, "dtype") && n > suffix && !strcmp(option + n - suffix, "dtype"));
}

static const Word *foreign(const char *option, const char *given)
{
	const char *word = begins(given, "torch.") ? given + strlen("torch.") : given + strspn(given, "-");
	for (int i = 0; i < COUNT_OF(words); i++)
		if (is_of(&words[i], option) && near_distance(words[i].word, word) == 0)
			return &words[i];
	return NULL;
}

const char *near_hint(Arena *a, const char *option, const char *given, const char *const *known, int n)
{
	const Word *w = foreign(option, given);
	if (w && isupper((unsigned char)*w->ours))
		return arena_printf(a, "; %c%s", tolower((unsigned char)*w->ours), w->ours + 1);
	if (w)
		return arena_printf(a, "; %s of %s is %s here", given, w->whose, w->ours);
	const char *near = near_word(given, known, n);
	return near ? arena_printf(a, "; did you mean %s?", near) : "";
}

const char *near_choice(Arena *a, const char *option, const char *given, const char *choices)
{
	VEC(const char *) known = {0};
	for (const char *c = choices; *c; c += *c == '|') {
		size_t n = strcspn(c, "|");
		vec_push(a, &known, arena_strndup(a, c, n));
		c += n;
	}
	return near_hint(a, option, given, known.at, known.n);
}

const char *near_pattern(Arena *a, const char *pattern, const char *const *names, int n)
{
	char *plain = arena_strdup(a, pattern), *end = plain;
	for (const char *s = pattern; *s; s++)
		if (!strchr("^$\\()[]*+?{}|", *s))
			*end++ = *s;
	*end = '\0';
	const char *near = *plain ? near_word(plain, names, n) : NULL;
	if (near)
		return arena_printf(a, "; did you mean %s?", near);
	return strchr(pattern, ',') ? "; a comma is a letter as others are: a|b matches what a or b matches" : "";
}
