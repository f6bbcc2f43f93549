/* tests/e2e/library.c: model.h used and misused, on examples/digits: one rank (all, failing, moved, loose DIR),
 * or one of two (ranks, rounding DIR).
 *
 * Prints what failed and how many checks passed; exit 1 where any failed. */
#include <dirent.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <model.h>

enum { MOST_ROWS = 256, PIXELS = 64 };
static int passed, failed;
static float pixels[MOST_ROWS * PIXELS];
static int64_t digit[MOST_ROWS];

#define CHECK(ok) check((ok) ? 1 : 0, #ok, __LINE__, NULL)
static void check(int ok, const char *text, int line, const char *more)
{
	passed += !!ok;
	failed += !ok;
	if (!ok)
		printf("library.c:%d: %s %s\n", line, text, more ? more : "");
}

/* A call ends with this code and says this. */
#define EXPECT(m, call, code, say) expect((m), (call), (code), (say), __LINE__)
static void expect(const Model *m, int got, int code, const char *say, int line)
{
	char text[80];
	snprintf(text, sizeof(text), "gave %d, wanted %d and \"%s\":", got, code, say);
	check(got == code && strstr(model_error(m), say), text, line, model_error(m));
}

static Model *make(const char *a, const char *b)
{
	const char *options[] = {a ? a : "--threads=1", b, NULL};
	Model *m;
	EXPECT(m, model_create(options, &m), MODEL_OK, "");
	return m;
}

/* Rows first.. of samples that anyone can make. */
static void fill(int64_t first, int64_t rows)
{
	for (int64_t i = 0; i < rows; i++) {
		digit[i] = (first + i) % 10;
		for (int k = 0; k < PIXELS; k++)
			pixels[i * PIXELS + k] = sinf((float)((first + i) * 7 + k * digit[i]));
	}
}

typedef struct Pair { int64_t xs[4], ls[1]; ModelArray at[2]; } Pair;

static ModelArray *pair(Pair *p, int64_t rows)
{
	*p = (Pair){{rows, 1, 8, 8}, {rows}, {{"x", "f32", 4, p->xs, pixels}, {"labels", "i64", 1, p->ls, digit}}};
	return p->at;
}

/* Step number `at` of this model; its loss. */
static double step(Model *m, int64_t at)
{
	Pair p;
	ModelResult r = {0};
	fill((at * model_world(m) + model_rank(m)) * model_rows(m), model_rows(m));
	EXPECT(m, model_step(m, pair(&p, model_rows(m)), 2, &r), MODEL_OK, "");
	return r.loss;
}

/* The largest trained parameter. */
static const char *find_weight(const Model *m, int64_t *n)
{
	const char *name = NULL;
	ModelTensor t;
	*n = 0;
	for (int i = 0; model_get_tensor(m, i, &t); i++) {
		int64_t numel = 1;
		for (int k = 0; k < t.rank; k++)
			numel *= t.shape[k];
		if (t.trainable && numel > *n) {
			*n = numel;
			name = t.name;
		}
	}
	return name;
}

/* ---- one rank ---- */

static void wrong_arrays(Model *m)
{
	Pair p;
	int64_t rows = model_rows(m), wide[] = {rows, 1, 8, 9}, short_rows[] = {rows - 1, 1, 8, 8};
	ModelResult r;
	fill(0, rows);
	ModelArray *a = pair(&p, rows);
	EXPECT(m, model_step(m, a, 1, &r), MODEL_INPUT, "labels: error: this input has no array; it wants i64[32]");
	a[1].name = "label";
	EXPECT(m, model_step(m, a, 2, &r), MODEL_INPUT, "label: error: there is no input of this name");
	a[1].name = "x";
	EXPECT(m, model_step(m, a, 2, &r), MODEL_INPUT, "given twice");
	a = pair(&p, rows);
	a[0].shape = wide;
	EXPECT(m, model_step(m, a, 2, &r), MODEL_INPUT, "the array is f32[32,1,8,9], the input wants f32[32,1,8,8]");
	a[0].shape = short_rows;
	EXPECT(m, model_step(m, a, 2, &r), MODEL_INPUT, "the array is f32[31,1,8,8]");
	a = pair(&p, rows);
	a[0].dtype = "f64";
	a[1].data = NULL;
	EXPECT(m, model_step(m, a, 2, &r), MODEL_INPUT, "the array is f64[32,1,8,8]");
	CHECK(strstr(model_error(m), "labels: error: the array's data is NULL"));
	a = pair(&p, rows);
	digit[3] = 10;
	int64_t before = model_steps(m);
	EXPECT(m, model_step(m, a, 2, &r), MODEL_INPUT, "label 10 ");
	digit[3] = 3;
	pixels[5] = INFINITY;
	EXPECT(m, model_step(m, a, 2, &r), MODEL_FAILED, "is not finite");
	CHECK(r.skipped && model_steps(m) == before);
}

static void wrong_options(void)
{
	static const struct { const char *option; int code; const char *say; } cases[] = {
		{"--nothing=1", MODEL_USAGE, "unknown flag --nothing"}, {"--lr=fast", MODEL_USAGE, "--lr takes"},
		{"--ranks=2", MODEL_USAGE, "which starts no processes"},
		{"--data=x=y.npy", MODEL_USAGE, "model_step takes arrays"},
		{"--momentum=0.5", MODEL_USAGE, "--momentum is refused"},
		{"--resume=/nowhere", MODEL_INPUT, "not a checkpoint"},
		{"--lr-schedule=cosine", MODEL_USAGE, "needs --steps"}, {"--help", MODEL_USAGE, "option of the binary"},
		{"--check-replicas", MODEL_USAGE, "the binary compares"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const char *options[] = {cases[i].option, NULL};
		Model *m;
		EXPECT(m, model_create(options, &m), cases[i].code, cases[i].say);
		EXPECT(m, model_step(m, NULL, 0, NULL), MODEL_USAGE, "could not be created");
		CHECK(model_world(m) == 0);
		model_destroy(m);
	}
	model_destroy(NULL);
}

static void numbers(Model *m)
{
	Pair p;
	ModelResult r;
	double lr = 0;
	EXPECT(m, model_get_number(m, "lr", &lr), MODEL_OK, "");
	CHECK(lr == 1e-3);
	EXPECT(m, model_set_number(m, "lr", 0.25), MODEL_OK, "");
	EXPECT(m, model_set_number(m, "beta2", 0.5), MODEL_OK, "");
	EXPECT(m, model_set_number(m, "clip-norm", 2), MODEL_OK, "");
	double beta = 0;
	CHECK(!model_get_number(m, "beta2", &beta) && beta == 0.5 && !model_get_number(m, "beta1", &beta) && beta > 0.89);
	EXPECT(m, model_set_number(m, "temperature", 1), MODEL_USAGE, "there are lr, min-lr");
	EXPECT(m, model_set_number(m, "momentum", 0.5), MODEL_USAGE, "--momentum is refused");
	EXPECT(m, model_set_number(m, "lr", -1), MODEL_USAGE, "--lr takes");
	CHECK(!model_get_number(m, "lr", &lr) && lr == 0.25);
	fill(0, model_rows(m));
	EXPECT(m, model_step(m, pair(&p, model_rows(m)), 2, &r), MODEL_OK, "");
	CHECK(r.lr == 0.25 && r.grad_norm > 0);
}

static void full(Model *m)
{
	int64_t n;
	const char *name = find_weight(m, &n);
	EXPECT(m, model_full_end(m), MODEL_USAGE, "are not open");
	EXPECT(m, model_full_begin(m, MODEL_RANK0 | MODEL_WRITEBACK), MODEL_USAGE, "cannot be put back");
	EXPECT(m, model_full_begin(m, 64), MODEL_USAGE, "no such flag");
	for (int put = 1; put >= 0; put--) {
		EXPECT(m, model_full_begin(m, put ? MODEL_WRITEBACK : 0), MODEL_OK, "");
		float *w = model_full(m, name);
		CHECK(w && !((uintptr_t)w % 64) && !model_full(m, "nothing"));
		CHECK(put || (w[0] == 5 && w[n - 1] == 5));
		for (int64_t i = 0; w && i < n; i++)
			w[i] = put ? 5 : 6;
		EXPECT(m, model_full_begin(m, 0), MODEL_USAGE, "full parameters are open");
		EXPECT(m, model_step(m, NULL, 0, NULL), MODEL_USAGE, "full parameters are open");
		EXPECT(m, model_save(m, "nowhere"), MODEL_USAGE, "full parameters are open");
		EXPECT(m, model_full_end(m), MODEL_OK, "");
	}
	EXPECT(m, model_full_begin(m, 0), MODEL_OK, "");
	CHECK(((float *)model_full(m, name))[0] == 5);
	EXPECT(m, model_full_end(m), MODEL_OK, "");
}

/* Another model beside it changes nothing; from the checkpoint the same losses follow. */
static void two_models(const char *dir)
{
	Model *a = make("--threads=1", "--seed=3"), *b = make("--threads=1", "--seed=3");
	double one[6], two[6];
	for (int i = 0; i < 6; i++) {
		if (i == 3)
			EXPECT(a, model_save(a, dir), MODEL_OK, "");
		one[i] = step(a, i);
	}
	EXPECT(a, model_save(a, NULL), MODEL_USAGE, "say where to");
	EXPECT(a, model_load(a, dir), MODEL_OK, "");
	CHECK(model_steps(a) == 3);
	for (int i = 0; i < 6; i++) {
		two[i] = step(b, i);
		if (i >= 3)
			CHECK(step(a, i) == one[i]);
	}
	CHECK(!memcmp(one, two, sizeof(one)));
	EXPECT(a, model_load(a, "/nowhere"), MODEL_INPUT, "not a checkpoint");
	CHECK(model_steps(a) == 6 && step(a, 6) == step(b, 6));
	EXPECT(a, model_save(a, "/proc/nowhere"), MODEL_FAILED, "could not be written");
	CHECK(step(a, 7) == step(b, 7));
	model_destroy(a);
	model_destroy(b);
}

/* A number comes from a checkpoint or a file of --hyper, and what the caller sets stands above both. */
static void numbers_of_files(const char *dir)
{
	char at[3][512], flag[600];
	double lr = 0;
	for (int i = 0; i < 3; i++)
		snprintf(at[i], sizeof(at[i]), "%s_%d", dir, i);
	snprintf(flag, sizeof(flag), "--hyper=%s.json", dir);
	FILE *f = fopen(flag + 8, "w");
	CHECK(f && fputs("{\"lr\": 0.5}", f) >= 0 && !fclose(f));
	Model *m = make("--threads=1", NULL), *hyper = make("--threads=1", flag), *other = make("--threads=1", NULL);
	for (int i = 0; i < 2; i++) {
		EXPECT(m, model_set_number(m, "lr", i ? 0.25 : 0.125), MODEL_OK, "");
		EXPECT(m, model_save(m, at[i]), MODEL_OK, "");
	}
	EXPECT(hyper, model_save(hyper, at[2]), MODEL_OK, "");
	for (int i = 0; i < 6; i++) {
		EXPECT(other, model_load(other, at[i % 3]), MODEL_OK, "");
		CHECK(!model_get_number(other, "lr", &lr) && lr == 0.125 * (1 << i % 3));
	}
	CHECK(!model_get_number(hyper, "lr", &lr) && lr == 0.5);
	remove(flag + 8);
	for (Model *one = hyper; one; one = one == hyper ? other : NULL) {
		EXPECT(one, model_set_number(one, "lr", 0.0625), MODEL_OK, "");
		CHECK(!model_get_number(one, "lr", &lr) && lr == 0.0625);
		EXPECT(one, model_load(one, at[0]), MODEL_OK, "");
		CHECK(!model_get_number(one, "lr", &lr) && lr == 0.0625);
	}
	model_destroy(m);
	model_destroy(hyper);
	model_destroy(other);
}

/* The model has --check-nan, and a hook that fails once, in step 3. */
static void failing(const char *dir)
{
	Pair p;
	Model *m = make("--threads=1", NULL);
	double first = step(m, 0);
	EXPECT(m, model_save(m, dir), MODEL_OK, "");
	step(m, 1);
	fill(0, model_rows(m));
	EXPECT(m, model_step(m, pair(&p, model_rows(m)), 2, NULL), MODEL_FAILED, "returned 42");
	EXPECT(m, model_step(m, pair(&p, model_rows(m)), 2, NULL), MODEL_USAGE, "failed in the middle");
	EXPECT(m, model_load(m, dir), MODEL_OK, "");
	CHECK(model_steps(m) == 1 && step(m, 1) != first);
	step(m, 2);
	fill(0, model_rows(m));
	pixels[5] = INFINITY;
	EXPECT(m, model_step(m, pair(&p, model_rows(m)), 2, NULL), MODEL_FAILED, "the first is ");
	model_destroy(m);
	m = make("--threads=1", NULL);
	step(m, 0);
	step(m, 1);
	model_destroy(m);
}

/* A checkpoint without states of some parameters, which begin anew whatever the model did before it. */
static void states_of_none(const char *dir)
{
	Model *fresh = make("--threads=1", NULL), *used = make("--threads=1", NULL);
	step(used, 0);
	step(used, 1);
	EXPECT(fresh, model_load(fresh, dir), MODEL_OK, "begin with zeros");
	EXPECT(used, model_load(used, dir), MODEL_OK, "begin with zeros");
	for (int i = 2; i < 5; i++)
		CHECK(step(fresh, i) == step(used, i));
	model_destroy(fresh);
	model_destroy(used);
}

/* Flags of checkpoints that model_load and model_save name; dir has no states of an optimizer. */
static void loose(const char *dir)
{
	char to[512], index[600];
	Model *m = make("--threads=1", NULL);
	EXPECT(m, model_load(m, dir), MODEL_INPUT, "--strict=0 begins with zeros");
	model_destroy(m);
	m = make("--threads=1", "--strict=0");
	EXPECT(m, model_load(m, dir), MODEL_OK, "begin with zeros");
	step(m, 0);
	model_destroy(m);
	m = make("--threads=1", "--save-kind=sharded");
	snprintf(to, sizeof(to), "%s_sharded", dir);
	EXPECT(m, model_save(m, to), MODEL_OK, "");
	snprintf(index, sizeof(index), "%s/latest/index.json", to);
	CHECK(!access(index, R_OK));
	model_destroy(m);
}

/* An evaluation of parts adds up to that of the whole. */
static void evaluation(Model *m)
{
	Pair p;
	ModelResult all, a, b;
	fill(0, 70);
	EXPECT(m, model_evaluate(m, pair(&p, 70), 2, &all), MODEL_OK, "");
	EXPECT(m, model_evaluate(m, pair(&p, 50), 2, &a), MODEL_OK, "");
	fill(50, 20);
	EXPECT(m, model_evaluate(m, pair(&p, 20), 2, &b), MODEL_OK, "");
	CHECK(fabs(all.loss - (50 * a.loss + 20 * b.loss) / 70) < 1e-6 * all.loss);
	CHECK(fabs(all.accuracy - (50 * a.accuracy + 20 * b.accuracy) / 70) < 1e-12);
	EXPECT(m, model_evaluate(m, pair(&p, 0), 2, &b), MODEL_INPUT, "no samples");
}

static long resident_kb(void)
{
	long all = 0, pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	if (!f || fscanf(f, "%ld %ld", &all, &pages) != 2)
		pages = -1;
	if (f)
		fclose(f);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int open_files(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

static void hundred(void)
{
	long before = 0, files = 0;
	for (int i = 0; i < 100; i++) {
		if (i == 20) {
			before = resident_kb();
			files = open_files();
		}
		Model *m = make("--threads=1", NULL);
		step(m, 0);
		model_destroy(m);
	}
	long more = resident_kb() - before;
	printf("resident after 20 models %ld KiB, after 100 models %+ld KiB; files %+ld\n", before, more,
		open_files() - files);
	CHECK(open_files() == files);
	CHECK(getenv("LIBRARY_ASAN") || more < 2048); /* a model has 4 MiB */
}

/* ---- two ranks ---- */

static double sum_of(const float *w, int64_t n)
{
	double s = 0;
	for (int64_t i = 0; i < n; i++)
		s += (double)(i % 13 + 1) * w[i];
	return s;
}

/* Prints numbers that the script would see differ: both ranks check the same, from the same contents. */
static void full_on_two(Model *m)
{
	int64_t n;
	const char *name = find_weight(m, &n);
	EXPECT(m, model_full_begin(m, MODEL_WRITEBACK), MODEL_OK, "");
	float *w = model_full(m, name);
	double before = sum_of(w, n);
	for (int64_t i = 0; i < n; i++)
		w[i] *= 2;
	EXPECT(m, model_full_end(m), MODEL_OK, "");
	EXPECT(m, model_full_begin(m, MODEL_RANK0), MODEL_OK, "");
	w = model_full(m, name);
	CHECK(model_rank(m) == 0 ? w && sum_of(w, n) == 2 * before : !w);
	EXPECT(m, model_full_end(m), MODEL_OK, "");
	printf("full %s %.17g\n", name, before);
}

/* Ranks must write the same to elements that both hold; of the others each writes its own. */
static void different_writes(Model *m, int whole)
{
	int64_t n;
	const char *name = find_weight(m, &n);
	EXPECT(m, model_full_begin(m, MODEL_WRITEBACK), MODEL_OK, "");
	float *w = model_full(m, name), old = w[0];
	for (int64_t i = 0; i < n; i++)
		w[i] = (float)(model_rank(m) + 1);
	if (whole)
		EXPECT(m, model_full_end(m), MODEL_INPUT, model_rank(m) == 0 ? "have written different ones" : "");
	else
		EXPECT(m, model_full_end(m), MODEL_OK, "");
	EXPECT(m, model_full_begin(m, 0), MODEL_OK, "");
	w = model_full(m, name);
	CHECK(whole ? w[0] == old : w[0] == 1 && w[n - 1] == 2);
	EXPECT(m, model_full_end(m), MODEL_OK, "");
}

static void ranks(const char *dir, int whole)
{
	Pair p;
	Model *m = make("--timeout=30", "--seed=3");
	double losses[4];
	CHECK(model_world(m) == 2);
	for (int i = 0; i < 2; i++)
		step(m, i);
	full_on_two(m);
	EXPECT(m, model_save(m, dir), MODEL_OK, "");
	for (int i = 2; i < 4; i++)
		losses[i] = step(m, i);
	/* what one rank gets wrong stops the call on both */
	fill(0, model_rows(m));
	EXPECT(m, model_step(m, pair(&p, model_rows(m) - model_rank(m)), 2, NULL), MODEL_INPUT, "");
	digit[0] = model_rank(m) ? 99 : 0;
	EXPECT(m, model_step(m, pair(&p, model_rows(m)), 2, NULL), MODEL_INPUT, "");
	EXPECT(m, model_set_number(m, "lr", 1e-3 * (double)(1 + model_rank(m))), MODEL_USAGE, "");
	EXPECT(m, model_evaluate(m, pair(&p, 5 + model_rank(m)), 2, NULL), MODEL_INPUT, "");
	EXPECT(m, model_load(m, model_rank(m) ? "/nowhere" : dir), MODEL_INPUT, "");
	EXPECT(m, model_load(m, dir), MODEL_OK, "");
	for (int i = 2; i < 4; i++)
		CHECK(step(m, i) == losses[i]);
	different_writes(m, whole);
	model_destroy(m);
}

/* With stochastic rounding: what is loaded is rounded by the seed and the step of the checkpoint, whatever the model
 * did before. */
static void rounding(const char *dir)
{
	Model *m = make("--timeout=30", "--seed=3"), *fresh;
	double losses[5];
	char flag[600];
	for (int i = 0; i < 5; i++) {
		if (i == 2)
			EXPECT(m, model_save(m, dir), MODEL_OK, "");
		losses[i] = step(m, i);
	}
	EXPECT(m, model_load(m, dir), MODEL_OK, "");
	for (int i = 2; i < 5; i++)
		CHECK(step(m, i) == losses[i]);
	model_destroy(m);
	snprintf(flag, sizeof(flag), "--resume=%s", dir);
	for (int resumed = 0; resumed < 2; resumed++) {
		fresh = make("--timeout=30", resumed ? flag : NULL);
		if (!resumed)
			EXPECT(fresh, model_load(fresh, dir), MODEL_OK, "");
		for (int i = 2; i < 5; i++)
			CHECK(step(fresh, i) == losses[i]);
		model_destroy(fresh);
	}
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	if (!strcmp(argv[1], "all")) {
		Model *m = make("--threads=1", "--lr=1e-3");
		numbers(m);
		evaluation(m);
		full(m);
		wrong_arrays(m); /* batch norm's statistics are not finite behind it */
		model_destroy(m);
		wrong_options();
		two_models(argv[2]);
		numbers_of_files(argv[2]);
		hundred();
	} else if (!strcmp(argv[1], "moved"))
		states_of_none(argv[2]);
	else if (!strcmp(argv[1], "loose"))
		loose(argv[2]);
	else if (!strcmp(argv[1], "failing"))
		failing(argv[2]);
	else if (!strcmp(argv[1], "rounding"))
		rounding(argv[2]);
	else
		ranks(argv[2], strstr(argv[2], "no_shard") != NULL);
	printf("%d of %d checks passed\n", passed, passed + failed);
	return failed > 0;
}
