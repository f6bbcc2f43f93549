/* tests/fuzz/hyper.c: any bytes as the file of --hyper: numbers that are in range, written again as they were read, or
 * a message.  The first byte says which optimizer the program has. */
#include <jansson.h>

#include "runtime/train/train.h"
#include "tests/fuzz/fuzz.h"

/* What one reading leaves in the arena stays until the input is done, so each input has its own. */
static double *read_file(Rt *rt, const uint8_t *bytes, size_t n, Diag *d)
{
	FuzzFile f = fuzz_file(bytes, n);
	double *value = hyper_read(rt, f.path, d);
	close(f.fd);
	return value;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	static const char *const optimizers[] = {"sgd", "sgd:momentum,nesterov", "adam", "adamw", "adagrad", "lion"};
	if (!n)
		return 0;
	static const ParamGroup groups[] = {{.regex = "^a"}, {.regex = "b$"}};
	RtModel m = {.name = "fuzz", .optimizer = optimizers[bytes[0] % COUNT_OF(optimizers)], .groups = groups,
		.n_groups = COUNT_OF(groups)};
	Arena *a = arena_new();
	struct RtPrivate *p = NEW(a, struct RtPrivate);
	Rt rt = {.model = &m, .p = p};
	p->arena = a;
	FuzzLog *log = fuzz_log();
	LayoutRank who = {.world = 1, .shard_size = 1};
	if (!optim_init(&p->optim, &m, &who, a, m.name, &log->d))
		abort();
	double *value = read_file(&rt, bytes + 1, n - 1, &log->d);
	if (!value != (log->d.errors > 0))
		abort();
	if (value) {
		Buf b = {0};
		hyper_put(&b, a, &m, value);
		double *again = read_file(&rt, (const uint8_t *)b.at, b.n, &log->d);
		if (!again)
			abort();
		buf_free(&b);
	}
	fuzz_log_free(log);
	arena_free(a);
	return 0;
}
