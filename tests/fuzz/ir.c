/* tests/fuzz/ir.c: any text as IR: a module or a message; what parses prints to text that prints itself again. */
#include "ir/ir.h"
#include "tests/fuzz/fuzz.h"

/* A text that reads as a sound module prints as one, and that print is what it prints again. */
static void check_again(const Module *m, Diag *d)
{
	Arena *a = arena_new();
	const char *once = ir_text(m, a);
	Module *again = ir_parse("again.ir", once, d);
	if (!again || !ir_verify(again, NULL, d)) {
		fputs(once, stderr);
		abort();
	}
	const char *twice = ir_text(again, a);
	if (strcmp(once, twice)) {
		fprintf(stderr, "%s\n---- again:\n%s", once, twice);
		abort();
	}
	ir_module_free(again);
	arena_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	char *text = malloc(n + 1);
	FuzzLog *log = fuzz_log();
	Diag *d = &log->d;
	memcpy(text, bytes, n);
	text[n] = '\0';
	Module *m = ir_parse("text.ir", text, d);
	if (!m != (d->errors > 0))
		abort();
	if (m && ir_verify(m, NULL, d))
		check_again(m, d);
	ir_module_free(m);
	fuzz_log_free(log);
	free(text);
	return 0;
}
