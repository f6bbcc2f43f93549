/* tests/fuzz/onnx.c: any bytes as an ONNX file: a module or a message; what loads goes through canon to layout. */
#include "frontend/frontend.h"
#include "passes/passes.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	FrontendOptions o = {.graph.bind = {{"N=2", "batch=2"}, 2}};
	Options p = {.sharding.world = 1, .memory.workspace = 1 << 20};
	PipelineView view = {0};
	FuzzFile f = fuzz_file(bytes, n);
	FuzzLog *log = fuzz_log();
	Module *m = onnx_load(f.path, &o, &log->d);
	if (!m != (log->d.errors > 0))
		abort();
	if (m)
		pipeline_run(m, &p, &view, "canon,patterns,layout", &log->d);
	ir_module_free(m);
	fuzz_log_free(log);
	close(f.fd);
	return 0;
}
