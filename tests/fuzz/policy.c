/* tests/fuzz/policy.c: any bytes as the file of --wrap=file:POLICY.json: units of a small model, or a message.
 * The model is that of a golden test, so the target runs in the top folder. */
#include "passes/passes.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	static const char model[] = "tests/ir/units/wrap_size_inner_first.ir";
	static char *text;
	static Arena *a;
	FuzzFile f = fuzz_file(bytes, n);
	FuzzLog *log = fuzz_log();
	char policy[96];
	snprintf(policy, sizeof(policy), "file:%s", f.path);
	Options o = {.sharding = {.wrap = {{policy}, 1}, .world = 1}};
	PipelineView view = {0};
	if (!text && !(text = diag_read_file(&log->d, model, a = arena_new())))
		abort();
	Module *m = ir_parse(model, text, &log->d);
	if (!m || pipeline_run(m, &o, &view, "units", &log->d) != !log->d.errors)
		abort();
	ir_module_free(m);
	fuzz_log_free(log);
	close(f.fd);
	return 0;
}
