/* tests/fuzz/ir.c: any text as IR: a module or a message; what parses prints to text that prints itself again. */
#include <stdlib.h>
#include <string.h>

#include "ir/ir.h"

static char *print(const Module *m)
{
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);
	ir_print(f, m);
	fclose(f);
	return text;
}

/* A text that reads as a sound module prints as one, and that print is what it prints again. */
static void check_again(const Module *m, Diag *d)
{
	char *once = print(m);
	Module *again = ir_parse("again.ir", once, d);
	if (!again || !ir_verify(again, NULL, d)) {
		fputs(once, stderr);
		abort();
	}
	char *twice = print(again);
	if (strcmp(once, twice)) {
		fprintf(stderr, "%s\n---- again:\n%s", once, twice);
		abort();
	}
	free(once);
	free(twice);
	ir_module_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	char *text = malloc(n + 1), *log = NULL;
	size_t n_log = 0;
	memcpy(text, bytes, n);
	text[n] = '\0';
	Diag d = {.out = open_memstream(&log, &n_log)};
	Module *m = ir_parse("text.ir", text, &d);
	if (!m != (d.errors > 0))
		abort();
	if (m && ir_verify(m, NULL, &d))
		check_again(m, &d);
	ir_module_free(m);
	fclose(d.out);
	free(log);
	free(text);
	return 0;
}
