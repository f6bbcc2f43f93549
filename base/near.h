/* base/near.h: what a word that nobody knows was meant to be: a typing error of a known one, or another system's word
 * for it (words.def).  Texts are for the ends of messages. */
#ifndef SHARDC_NEAR_H
#define SHARDC_NEAR_H

#include "base/base.h"

/* Typing errors from one word to the other: letters left out, added, changed, or two swapped; without case, and a dash
 * is an underscore. */
int near_distance(const char *x, const char *y);
/* The known word that is meant, NULL when none is near enough: at most a third of the given letters, rounded up, and
 * half of the known word's are wrong, or at least three letters are a beginning that no other word has. */
const char *near_word(const char *given, const char *const *known, int n);
/* What to write for `given`, a value of `option` ("--strategy") or, with "shardc" and "train", an option itself: "; did
 * you mean full_shard?", "; zero3 of DeepSpeed is full_shard here"; "" when nothing is near.  In the arena. */
const char *near_hint(Arena *a, const char *option, const char *given, const char *const *known, int n);
/* The same, with known words as "one|two|three". */
const char *near_choice(Arena *a, const char *option, const char *given, const char *choices);
/* The same for a regular expression that matched none of the names: the name that it nearly spells. */
const char *near_pattern(Arena *a, const char *pattern, const char *const *names, int n);

#endif
