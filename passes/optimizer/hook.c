/* passes/optimizer/hook.c: parses --comm-hook=FILE.c:FUNCTION[:send=N,keep=N].
 *
 * Refuses other forms, and files that cannot be read or whose path no #include can contain. */
#include "base/near.h"
#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool parse_memory(char *text, Hook *out)
{
	char *save = NULL;
	for (char *w = strtok_r(text, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
		int64_t *field = !strncmp(w, "send=", 5) ? &out->send : !strncmp(w, "keep=", 5) ? &out->keep : NULL;
		if (!field || !w[5] || strspn(w + 5, "0123456789") != strlen(w + 5) || strlen(w + 5) > 3)
			return false;
		*field = atoi(w + 5);
	}
	return true;
}

bool hook_parse(const char *text, Hook *out, Arena *a, Diag *d)
{
	char *copy = arena_strdup(a, text), *colon = strrchr(copy, ':');
	bool ok = colon;
	*out = (Hook){0};
	if (ok && strchr(colon + 1, '=')) {
		*colon = '\0';
		ok = parse_memory(colon + 1, out);
		colon = strrchr(copy, ':');
		ok = ok && colon;
	}
	ok = ok && colon > copy && str_is_c_name(colon + 1);
	if (!ok) {
		diag_error(d, "--comm-hook", "\"%s\" is none of bf16, f16, FILE.c:FUNCTION, FILE.c:FUNCTION:send=N,keep=N "
			"(bytes per element of a gradient, at most 999)%s", text, near_choice(a, "--comm-hook", text, "bf16|f16"));
		return false;
	}
	*colon = '\0';
	char *real = realpath(copy, NULL);
	struct stat st;
	if (!real || access(real, R_OK) || stat(real, &st) || !S_ISREG(st.st_mode)) {
		diag_error(d, "--comm-hook", "\"%s\" cannot be read, or is no regular file", copy);
		free(real);
		return false;
	}
	out->file = arena_strdup(a, real);
	out->function = colon + 1;
	free(real);
	if (strpbrk(out->file, "\"\n"))
		diag_error(d, out->file, "no #include can name it: its path has a %s in it; move or rename it",
			strchr(out->file, '"') ? "double quote" : "line break");
	return !strpbrk(out->file, "\"\n");
}
