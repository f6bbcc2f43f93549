/* tests/fuzz/pipeline.c: any text as IR, from the level it stands at through all passes to PLAN: a plan that its
 * verifier accepts, or a message.  The input's hash decides the options.  A text at PLAN is accepted as a program, or
 * there is a message. */
#include "tests/fuzz/pass_options.h"

/* The passes from level `from` on, as --passes wants them. */
static const char *passes_from(Arena *a, Level from)
{
	Buf b = {0};
	for (int i = 0; i < pass_count; i++)
		if (pass_info[i].from >= from)
			buf_printf(&b, "%s%s", b.n ? "," : "", pass_info[i].name);
	const char *names = arena_strndup(a, b.at ? b.at : "", b.n);
	buf_free(&b);
	return names;
}

/* What a schedule file says of a plan is made from it; what memory it takes is counted. */
static void use_plan(Module *m, const Options *o)
{
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);
	Arena *a = arena_new();
	schedule_write(f, m, o);
	LayoutModel l = memory_layout(m, a);
	memory_complete(&l, m, o);
	memory_peak(m, a);
	fclose(f);
	free(text);
	arena_free(a);
}

static void accept_plan(Module *m, const Options *o, Diag *d)
{
	int before = d->errors;
	Variants v = {.of[VARIANT_ONLY] = m};
	Options same = *o;
	same.target.target = ir_train(m)->cuda ? TARGET_CUDA : TARGET_CPU;
	same.memory.memory_limit = 0;
	bool ok = pipeline_accept(&v, &same, d);
	if (ok != (d->errors == before))
		abort();
	if (ok)
		use_plan(m, o);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	char *text = malloc(n + 1);
	Arena *a = arena_new();
	FuzzLog *log = fuzz_log();
	Options o = fuzz_options(fuzz_hash(bytes, n));
	PipelineView view = {0};
	memcpy(text, bytes, n);
	text[n] = '\0';
	Module *m = ir_parse("text.ir", text, &log->d);
	if (m && m->level < LEVEL_PLAN && pipeline_run(m, &o, &view, passes_from(a, m->level), &log->d))
		use_plan(m, &o);
	if (m && m->level == LEVEL_PLAN && ir_verify(m, NULL, &log->d))
		accept_plan(m, &o, &log->d);
	ir_module_free(m);
	fuzz_log_free(log);
	arena_free(a);
	free(text);
	return 0;
}
