/* tests/oracle/edit.c: a hand that edits schedule files.
 *
 * One idea: edits are small, so that many are right and the wrong ones are nearly right. */
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/mutate.h"

/* number op unit stream slot bytes issue wait release */
enum { WORD_SLOT = 4, WORD_POINT = 6, WORDS = 9, WORD_BYTES = 96 };
typedef char Word[WORD_BYTES];

static int below(uint64_t *random, int n)
{
	return (int)(mutate_draw(random) % (uint64_t)n);
}

/* Moves SECTION+N by up to three ops. */
static void shift(Word w, uint64_t *random)
{
	char *plus = strchr(w, '+');
	if (!plus || !strcmp(plus, "+end"))
		return;
	long now = strtol(plus + 1, NULL, 10) + below(random, 7) - 3;
	snprintf(plus + 1, (size_t)(WORD_BYTES - (plus + 1 - w)), "%ld", now < 0 ? 0 : now);
}

static bool cut(const char *line, Word *word)
{
	int n = 0;
	for (const char *s = line + strspn(line, " "); *s && *s != '#' && n < WORDS; n++) {
		size_t length = strcspn(s, " ");
		snprintf(word[n], WORD_BYTES, "%.*s", (int)length, s);
		s += length;
		s += strspn(s, " ");
	}
	return n == WORDS;
}

static void edit_line(FILE *f, const char *line, uint64_t *random)
{
	Word word[WORDS];
	if (!cut(line, word)) {
		fprintf(f, "%s\n", line);
		return;
	}
	if (!strcmp(word[1], "all_gather") && !below(random, 4))
		snprintf(word[WORD_SLOT], WORD_BYTES, "%c", "-0123"[below(random, 5)]);
	else
		shift(word[WORD_POINT + below(random, 3)], random);
	for (int i = 0; i < WORDS; i++)
		fprintf(f, "%s%c", word[i], i < WORDS - 1 ? ' ' : '\n');
}

void edit_schedule(FILE *f, const char *text, uint64_t seed)
{
	uint64_t random = seed;
	int n = 0, edits = 1 + below(&random, 3), chosen[3];
	char *copy = strdup(text), *rest = copy;
	for (const char *s = text; *s; s++)
		n += *s == '\n';
	for (int i = 0; i < edits; i++)
		chosen[i] = below(&random, n);
	for (int at = 0; rest && *rest; at++) {
		const char *line = strsep(&rest, "\n");
		bool changed = false;
		for (int i = 0; i < edits; i++)
			changed |= chosen[i] == at;
		if (changed)
			edit_line(f, line, &random);
		else
			fprintf(f, "%s\n", line);
	}
	free(copy);
}
