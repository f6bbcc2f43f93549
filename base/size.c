/* base/size.c: parses sizes and counts: 4096, 60K, 1e8, 1.5G, and for bytes also 200MiB, 64MB.
 *
 *	DIGITS[.DIGITS][e[+]DIGITS][K|M|G|T]             counts: K is 1000
 *	DIGITS[.DIGITS][e[+]DIGITS][K|M|G|T[iB|B]|B]     bytes: K and KiB are 1024, KB is 1000
 *
 * E is the same as e, and k as K.  Signs and blanks are refused, and so are numbers that are not whole (1.5, 0.0001K)
 * or exceed 2^63 - 1; nothing is rounded. */
#include "base/base.h"

#include <string.h>

enum { MOST_EXPONENT = 30 };

/* Appends digits to the decimal number n and counts them; false if it overflows. */
static bool take_digits(const char **s, uint64_t *n, int *count)
{
	for (*count = 0; **s >= '0' && **s <= '9'; ++*s, ++*count)
		if (__builtin_mul_overflow(*n, 10, n) || __builtin_add_overflow(*n, (uint64_t)(**s - '0'), n))
			return false;
	return true;
}

/* The factor of a suffix; 0: it is not one. */
static uint64_t take_unit(const char *s, bool bytes)
{
	static const char letters[] = "KMGT";
	const char *letter = *s ? strchr(letters, *s == 'k' ? 'K' : *s) : NULL;
	uint64_t unit = 1;
	bool binary = bytes && strcmp(s + (letter ? 1 : 0), "B");
	if (letter && (!s[1] || (bytes && (!strcmp(s + 1, "B") || !strcmp(s + 1, "iB")))))
		for (int i = 0; i <= letter - letters; i++)
			unit *= binary ? 1024 : 1000;
	else if (*s && !(bytes && !strcmp(s, "B")))
		return 0;
	return unit;
}

/* Sets *out to n * 10^exponent * unit; false unless that is whole and fits. */
static bool scale(uint64_t n, int exponent, uint64_t unit, int64_t *out)
{
	for (; exponent < 0 && n % 10 == 0 && n; exponent++)
		n /= 10;
	if (__builtin_mul_overflow(n, unit, &n))
		return false;
	for (; exponent < 0 && n % 10 == 0; exponent++)
		n /= 10;
	for (; exponent > 0 && n; exponent--)
		if (__builtin_mul_overflow(n, 10, &n))
			return false;
	*out = (int64_t)n;
	return exponent >= 0 && n <= INT64_MAX;
}

bool str_to_size(const char *text, bool bytes, int64_t *out)
{
	uint64_t n = 0, exponent = 0;
	int whole, part = 0, digits = 1;
	const char *s = text;
	if (!take_digits(&s, &n, &whole) || !whole)
		return false;
	if (*s == '.' && (s++, !take_digits(&s, &n, &part) || !part))
		return false;
	if (*s == 'e' || *s == 'E') {
		s += s[1] == '+' ? 2 : 1;
		if (!take_digits(&s, &exponent, &digits) || !digits || exponent > MOST_EXPONENT)
			return false;
	}
	uint64_t unit = take_unit(s, bytes);
	return unit && scale(n, (int)exponent - part, unit, out);
}

bool str_to_count(const char *text, bool bytes, int64_t *out)
{
	int64_t n;
	if (!str_to_size(text, bytes, &n) || n == 0)
		return false;
	*out = n;
	return true;
}
