/* tests/fuzz/onnx.c: any bytes as an ONNX file: a module or a message; what loads goes through canon to layout. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "frontend/frontend.h"
#include "passes/passes.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	static const char *const binds[] = {"N=2", "batch=2"};
	FrontendOptions o = {.binds = binds, .n_binds = COUNT_OF(binds)};
	PassOptions p = {.world = 1, .threads = 1, .workspace = 1 << 20};
	PipelineView view = {0};
	char path[64], *log = NULL;
	size_t n_log = 0;
	int fd = memfd_create("model", 0);
	if (fd < 0 || write(fd, bytes, n) != (ssize_t)n)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	Diag d = {.out = open_memstream(&log, &n_log)};
	Module *m = onnx_load(path, &o, &d);
	if (!m != (d.errors > 0))
		abort();
	if (m)
		pipeline_run(m, &p, &view, "canon,patterns,layout", &d);
	ir_module_free(m);
	fclose(d.out);
	free(log);
	close(fd);
	return 0;
}
