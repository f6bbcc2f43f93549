/* tests/fuzz/report.c: any bytes as the log or the trace of a run that --report shows: rows of the page's data, which
 * are JSON, or a message.  The first byte says which it is. */
#include "report/private.h"
#include "tests/fuzz/fuzz.h"
#include "tests/oracle/cases.h"

static const Module *program(Diag *d)
{
	static Variants v;
	Module *m = v.of[VARIANT_ONLY] ? v.of[VARIANT_ONLY] : case_build(&cases[0], NULL, &v, d);
	if (!m)
		abort();
	return m;
}

/* What is put of a trace of this program is JSON. */
static void put_trace(json_t *trace, const Module *m)
{
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);
	Arena *a = arena_new();
	report_put_trace(f, trace, m, a);
	fclose(f);
	json_t *put = json_loadb(text, n, 0, NULL);
	if (!put)
		abort();
	json_decref(put);
	free(text);
	arena_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	if (!n)
		return 0;
	FuzzFile f = fuzz_file(bytes + 1, n - 1);
	FuzzLog *log = fuzz_log();
	Arena *a = arena_new();
	Options o = {.what = {.report_trace = f.path}};
	bool lines = bytes[0] % 2;
	const Module *m = program(&log->d);
	Report r = {.trace = lines ? NULL : report_read_trace(f.path, a, &log->d),
		.log = lines ? report_read_log(f.path, a, &log->d) : NULL};
	if ((r.log || r.trace) != !log->d.errors)
		abort();
	bool ok = report_accepts(&r, m, &o, &log->d);
	if (ok != (r.trace ? !log->d.errors : true))
		abort();
	if (ok && r.trace)
		put_trace(r.trace, m);
	report_end(&r);
	arena_free(a);
	fuzz_log_free(log);
	close(f.fd);
	return 0;
}
