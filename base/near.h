/* base/near.h: suggestions for a word that nobody knows: the known word that it misspells, or shardc's word for another
 * system's (words.def).  The texts are for the ends of messages. */
#ifndef SHARDC_NEAR_H
#define SHARDC_NEAR_H

#include "base/base.h"

/* The number of typing errors between two words: letters left out, added or changed, or two neighbours swapped.  Case
 * is ignored, and a dash equals an underscore. */
int near_distance(const char *x, const char *y);
/* The known word that is meant, or NULL.  Either at most a third of the given letters, rounded up, and at most half of
 * the known word's letters are wrong; or the given word has at least three letters and only one known word begins with
 * it. */
const char *near_word(const char *given, const char *const *known, int n);
/* A hint for `given`, which is a value of `option` ("--strategy"), or an option itself where option is "shardc" or
 * "train": "; did you mean full_shard?", "; zero3 of DeepSpeed is full_shard here"; "" when no word is near.  In the
 * arena. */
const char *near_hint(Arena *a, const char *option, const char *given, const char *const *known, int n);
/* The same, with the known words in the form "one|two|three". */
const char *near_choice(Arena *a, const char *option, const char *given, const char *choices);
/* The same for a regular expression that matched none of the names: suggests the name that it nearly spells. */
const char *near_pattern(Arena *a, const char *pattern, const char *const *names, int n);

#endif
