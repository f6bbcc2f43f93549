/* base/sizes.c: reads the sizes of a dimension. */
#include "base/sizes.h"

#include <string.h>

bool sizes_several(const char *bind)
{
	const char *equals = strrchr(bind, '=');
	return strchr(equals ? equals : bind, ',') != NULL;
}

int sizes_of(const char *bind, int64_t size[SIZES_MAX])
{
	const char *equals = strrchr(bind, '=');
	char word[32];
	int n = 0;
	for (const char *s = equals ? equals + 1 : bind;; s++) {
		size_t k = strcspn(s, ",");
		if (n == SIZES_MAX || k >= sizeof(word))
			return 0;
		snprintf(word, sizeof(word), "%.*s", (int)k, s);
		if (!str_to_size(word, false, &size[n++]))
			return 0;
		s += k;
		if (!*s)
			return n;
	}
}
