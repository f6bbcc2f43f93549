/* base/json.c: reads JSON files that a user writes.
 *
 * Refuses files that are not regular, are not text, or have the same key twice in an object. */
#include "base/json.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

json_t *json_read(const char *path, Arena *a, Diag *d)
{
	json_error_t e;
	const char *text = diag_read_file(d, path, a);
	json_t *root = text ? json_loads(text, JSON_REJECT_DUPLICATES, &e) : NULL;
	if (text && !root)
		diag_error(d, arena_printf(a, "%s:%d:%d", path, e.line, e.column), "%s", e.text);
	return root;
}

json_t *json_read_given(const char *given, const char *option, Arena *a, Diag *d)
{
	json_error_t e;
	size_t n = strlen(given);
	bool named = n > 5 && !strcmp(given + n - 5, ".json");
	if (*given != '{' && !named && access(given, F_OK)) {
		diag_error(d, option, "\"%s\" is no file (%s), and no text, which begins with a brace: give a path, or {..}",
			str_escape(a, ESCAPE_TERMINAL, given), strerror(errno));
		return NULL;
	}
	if (*given != '{')
		return json_read(given, a, d);
	json_t *root = json_loads(given, JSON_REJECT_DUPLICATES, &e);
	if (!root)
		diag_error(d, option, "at %d:%d of its text: %s", e.line, e.column, e.text);
	return root;
}
