/* tests/fuzz/config.c: any bytes as the file of --config, and as a text of options: options, or a message. */
#include "options.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	FuzzFile f = fuzz_file(bytes, n);
	FuzzLog *log = fuzz_log();
	Arena *a = arena_new();
	Options o = {0}, again = {0};
	bool usage = false;
	char *text = arena_strndup(a, (const char *)bytes, n);
	char *argv[] = {"shardc", "model.onnx", "--config", f.path, NULL};
	if (options_parse(4, argv, &o, a, &log->d, &usage) != !log->d.errors)
		abort();
	options_read(text, "text", false, &again, a, &log->d);
	options_read(text, "text", true, &again, a, &log->d);
	arena_free(a);
	fuzz_log_free(log);
	close(f.fd);
	return 0;
}
