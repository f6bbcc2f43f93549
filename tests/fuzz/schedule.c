/* tests/fuzz/schedule.c: any bytes as the file of --schedule-in, for one of the oracle's cases: a schedule that the
 * verifier accepts, or a message.  The first byte says which case.
 *
 * usage: fuzz_schedule --print CASE      the case's own schedule as such an input: a seed */
#include "tests/fuzz/fuzz.h"
#include "tests/oracle/cases.h"

static void print_seed(int number)
{
	Diag d = {.out = stderr};
	Variants v = {0};
	const Case *c = &cases[number % n_cases];
	Options o = case_options(c);
	Module *m = case_build(c, NULL, &v, &d);
	if (!m)
		abort();
	putchar(number % n_cases);
	schedule_write(stdout, m, &o);
	pipeline_free(&v);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	if (*argc == 3 && !strcmp((*argv)[1], "--print")) {
		print_seed(atoi((*argv)[2]));
		exit(0);
	}
	return 0;
}

/* What pass prefetch, which applies the file, gets in case i. */
static const char *text_of(int i, Diag *d)
{
	static const char *text[256];
	static Arena *texts;
	texts = texts ? texts : arena_new();
	if (!text[i] && !(text[i] = case_text(&cases[i], "schedule", texts, d)))
		abort();
	return text[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	if (!n)
		return 0;
	int i = bytes[0] % MIN(n_cases, 256);
	FuzzFile f = fuzz_file(bytes + 1, n - 1);
	FuzzLog *log = fuzz_log();
	Options o = case_options(&cases[i]);
	PipelineView view = {0};
	o.sharding.schedule_in = f.path;
	Module *m = ir_parse("case.ir", text_of(i, &log->d), &log->d);
	if (!m || pipeline_run(m, &o, &view, "prefetch,memory", &log->d) != !log->d.errors)
		abort();
	ir_module_free(m);
	fuzz_log_free(log);
	close(f.fd);
	return 0;
}
