/* tests/unit/test_runtime.c: the driver of a training binary, run as a process on the program of toy.h:
 * its numbers against a plain f64 loop, its files, its exit codes and what it says. */
#include <errno.h>
#include <jansson.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/filehash.h"
#include "tests/unit/toy.h"
#include "tests/unit/unit.h"

enum { N = 10 }; /* samples: not a multiple of the batch */

static char folder[] = "/tmp/test_runtime_" "XX" "XX" "XX";
static char text[1 << 16]; /* what the last run printed */
static float data_x[N][TOY_D];
static int64_t data_labels[N];
static double first_w[TOY_C][TOY_D];

/* ---- running a program ---- */

static void read_text(const char *path)
{
	FILE *f = fopen(path, "r");
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	text[fread(text, 1, sizeof(text) - 1, f)] = 0;
	fclose(f);
}

/* In the child: flags separated by blanks; output to a file; files may not grow beyond file_limit. */
static void child(const RtModel *m, const char *flags, rlim_t file_limit)
{
	char copy[2048], *argv[64] = {(char[]){"./toy"}};
	int argc = 1;
	snprintf(copy, sizeof(copy), "%s", flags);
	for (char *s = strtok(copy, " "); s; s = strtok(NULL, " "))
		argv[argc++] = s;
	if (!freopen("output", "w", stdout) || dup2(fileno(stdout), fileno(stderr)) < 0)
		_exit(99);
	struct rlimit limit = {file_limit, file_limit};
	if (file_limit)
		setrlimit(RLIMIT_FSIZE, &limit);
	device_set_threads(1); /* OpenMP's threads did not come along through fork */
	setenv("OMP_WAIT_POLICY", "passive", 1); /* or rt_main would start this test program again */
	int code = rt_main(argc, argv, m);
	fflush(stdout);
	_exit(code);
}

static pid_t start(const RtModel *m, const char *flags, rlim_t file_limit)
{
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0)
		child(m, flags, file_limit);
	return pid;
}

static int finish(pid_t pid)
{
	int status;
	waitpid(pid, &status, 0);
	read_text("output");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int run(const RtModel *m, const char *flags)
{
	return finish(start(m, flags, 0));
}

/* The program ends with this code and says that. */
#define EXPECT(model, flags, code, say) do { \
	int code_ = run(model, flags); \
	if (code_ != (code) || !strstr(text, say)) \
		fprintf(stderr, "\n[%s]\n  exit %d, wanted %d and \"%s\"; it said:\n%s", flags, code_, code, say, text); \
	CU_ASSERT_EQUAL(code_, code); \
	CU_ASSERT_PTR_NOT_NULL(strstr(text, say)); \
} while (0)

#define DATA "--data x=x.npy --data labels=labels.npy "

static void remove_all(const char *what)
{
	char command[256];
	snprintf(command, sizeof(command), "rm -rf %s", what);
	CU_ASSERT_EQUAL(system(command), 0);
}

static bool same_files(const char *a, const char *b)
{
	char command[512];
	snprintf(command, sizeof(command), "cmp -s %s %s", a, b);
	return system(command) == 0;
}

/* One tensor of a checkpoint, as doubles. */
static void read_tensor(const char *file, const char *name, double *out)
{
	Arena *a = arena_new();
	Diag d = {.out = stderr};
	SafeFile *f = safetensors_open(a, file, &d);
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	const SafeTensor *t = safetensors_find(f, name);
	CU_ASSERT_PTR_NOT_NULL_FATAL(t);
	for (int64_t i = 0; i < t->bytes / 4; i++) {
		float v;
		memcpy(&v, (const char *)t->data + 4 * i, 4);
		out[i] = v;
	}
	safetensors_close(f);
	arena_free(a);
}

static void write_inputs(void)
{
	static const int64_t dims[] = {N, TOY_D};
	double file[13] = {-1};
	srand(7);
	for (int i = 0; i < N; i++) {
		data_labels[i] = i * 7 % TOY_C;
		for (int d = 0; d < TOY_D; d++)
			data_x[i][d] = (float)(rand() % 1000) / 500 - 1;
	}
	for (int c = 0; c < TOY_C; c++)
		for (int d = 0; d < TOY_D; d++)
			file[1 + d * TOY_C + c] = first_w[c][d] = (float)(c - 1) * 0.125f + (float)d * 0.0625f;
	npy_write("x.npy", DT_F32, 2, dims, data_x);
	npy_write("labels.npy", DT_I64, 1, dims, data_labels);
	FILE *f = fopen("weights.bin", "wb");
	fwrite(file, 1, sizeof(file), f);
	fclose(f);
	toy_files[0].bytes = sizeof(file);
	toy_files[0].hash = filehash_sampled(file, sizeof(file));
}

/* ---- the numbers ---- */

typedef struct Reference { double p[15], m[15], v[15]; double loss, norm; } Reference;

static void reference_gradient(Reference *r, int64_t first, double *g)
{
	r->loss = 0;
	memset(g, 0, 15 * sizeof(*g));
	for (int b = 0; b < TOY_B; b++) {
		int64_t i = (first + b) % N;
		double y[TOY_C], z = 0;
		for (int c = 0; c < TOY_C; c++) {
			y[c] = r->p[12 + c];
			for (int d = 0; d < TOY_D; d++)
				y[c] += r->p[c * TOY_D + d] * (data_x[i][d] * 2.0 + 0.5);
			z += exp(y[c]);
		}
		r->loss += (log(z) - y[data_labels[i]]) / TOY_B;
		for (int c = 0; c < TOY_C; c++) {
			double dy = (exp(y[c]) / z - (c == data_labels[i])) / TOY_B;
			g[12 + c] += dy;
			for (int d = 0; d < TOY_D; d++)
				g[c * TOY_D + d] += dy * (data_x[i][d] * 2.0 + 0.5);
		}
	}
	r->norm = 0;
	for (int k = 0; k < 15; k++)
		r->norm += g[k] * g[k];
	r->norm = sqrt(r->norm);
}

/* PyTorch's rules, element by element; the bias (from 12 on) is not decayed. */
static void reference_update(Reference *r, const char *name, const double *g, int t, double clip)
{
	double lr = 0.05, wd = 0.1, b1 = 0.8, b2 = 0.9, eps = 1e-3, coef = MIN(1, clip / (r->norm + 1e-6));
	for (int k = 0; k < 15; k++) {
		double decay = k < 12 ? wd : 0, x = g[k] * coef, *p = &r->p[k], *m = &r->m[k], *v = &r->v[k];
		bool decoupled = !strcmp(name, "adamw") || !strcmp(name, "lion");
		x += decoupled ? 0 : decay * *p;
		*p -= decoupled ? lr * decay * *p : 0;
		if (!strcmp(name, "sgd"))
			*p -= lr * x;
		if (!strncmp(name, "sgd:", 4)) {
			*m = t == 1 ? x : b1 * *m + x;
			*p -= lr * (strstr(name, "nesterov") ? x + b1 * *m : *m);
		}
		if (!strncmp(name, "adam", 4)) {
			*m = b1 * *m + (1 - b1) * x;
			*v = b2 * *v + (1 - b2) * x * x;
			*p -= lr * (*m / (1 - pow(b1, t))) / (sqrt(*v / (1 - pow(b2, t))) + eps);
		}
		if (!strcmp(name, "adagrad")) {
			*m += x * x;
			*p -= lr * x / (sqrt(*m) + eps);
		}
		if (!strcmp(name, "lion")) {
			double c = b1 * *m + (1 - b1) * x;
			*p -= lr * ((c > 0) - (c < 0));
			*m = b2 * *m + (1 - b2) * x;
		}
	}
}

static double log_number(const char *line, const char *key)
{
	json_error_t e;
	json_t *root = json_loads(line, JSON_DISABLE_EOF_CHECK, &e);
	CU_ASSERT_PTR_NOT_NULL_FATAL(root);
	json_t *v = json_object_get(root, key);
	CU_ASSERT_PTR_NOT_NULL(v);
	double x = json_is_number(v) ? json_number_value(v) : NAN;
	json_decref(root);
	return x;
}

static void check_optimizer(const char *name, const char *flags)
{
	RtModel m = toy_model(name);
	Reference r = {0};
	char line[512];
	for (int k = 0; k < 15; k++)
		r.p[k] = k < 12 ? first_w[k / TOY_D][k % TOY_D] : 0.25;
	snprintf(line, sizeof(line),
		DATA "--steps 7 --lr 0.05 --weight-decay 0.1 --clip-norm 0.5 --log log.jsonl --save ck %s", flags);
	EXPECT(&m, line, 0, "trained to step 7");
	FILE *log = fopen("log.jsonl", "r");
	for (int t = 1; t <= 7; t++) {
		double g[15];
		reference_gradient(&r, (t - 1) * TOY_B, g);
		CU_ASSERT_PTR_NOT_NULL_FATAL(fgets(line, sizeof(line), log));
		CU_ASSERT_DOUBLE_EQUAL(log_number(line, "loss"), r.loss, 3e-6);
		CU_ASSERT_DOUBLE_EQUAL(log_number(line, "grad_norm"), r.norm, 3e-6);
		CU_ASSERT_DOUBLE_EQUAL(log_number(line, "epoch"), t * 0.4, 1e-9);
		reference_update(&r, name, g, t, 0.5);
	}
	fclose(log);
	double p[15], frozen[TOY_D], seen;
	read_tensor("ck/latest/model.safetensors", "fc.weight", p);
	read_tensor("ck/latest/model.safetensors", "fc.bias", p + 12);
	read_tensor("ck/latest/model.safetensors", "scale", frozen);
	read_tensor("ck/latest/model.safetensors", "seen", &seen);
	for (int k = 0; k < 15; k++)
		CU_ASSERT_DOUBLE_EQUAL(p[k], r.p[k], 5e-6);
	CU_ASSERT_EQUAL(frozen[3], 2);
	CU_ASSERT_EQUAL(seen, 7);
	remove_all("ck");
}

static void test_optimizers(void)
{
	check_optimizer("sgd", "");
	check_optimizer("sgd:momentum", "--momentum 0.8");
	check_optimizer("sgd:momentum,nesterov", "--momentum=0.8");
	check_optimizer("adam", "--betas 0.8,0.9 --eps 1e-3");
	check_optimizer("adamw", "--betas 0.8,0.9 --eps 1e-3");
	check_optimizer("adagrad", "--eps 1e-3");
	check_optimizer("lion", "--betas 0.8,0.9");
}

static void test_ignored_labels(void)
{
	RtModel m = toy_model("sgd");
	int64_t dim[] = {4}, labels[] = {1, TOY_IGNORE, 2, TOY_IGNORE};
	double g[15], p[3];
	Reference r = {0}, whole = {0};
	for (int k = 0; k < 15; k++)
		r.p[k] = whole.p[k] = k < 12 ? first_w[k / TOY_D][k % TOY_D] : 0.25;
	(void)whole;
	npy_write("x4.npy", DT_F32, 2, (int64_t[]){4, TOY_D}, data_x);
	npy_write("some.npy", DT_I64, 1, dim, labels);
	EXPECT(&m, "--data x=x4.npy --data labels=some.npy --steps 1 --lr 1 --save ck", 0, "trained to step 1");
	read_tensor("ck/latest/model.safetensors", "fc.bias", p);
	/* the mean over the two valid rows: reference over all four rows with those two twice */
	int64_t keep[N];
	float keep_x[N][TOY_D];
	memcpy(keep, data_labels, sizeof(keep));
	memcpy(keep_x, data_x, sizeof(keep_x));
	memcpy(data_x[1], data_x[0], sizeof(data_x[0]));
	memcpy(data_x[3], data_x[2], sizeof(data_x[0]));
	data_labels[0] = data_labels[1] = 1;
	data_labels[2] = data_labels[3] = 2;
	reference_gradient(&r, 0, g);
	memcpy(data_labels, keep, sizeof(keep));
	memcpy(data_x, keep_x, sizeof(keep_x));
	for (int c = 0; c < 3; c++)
		CU_ASSERT_DOUBLE_EQUAL(p[c], 0.25 - g[12 + c], 1e-6);
	labels[0] = labels[2] = TOY_IGNORE;
	npy_write("none.npy", DT_I64, 1, dim, labels);
	EXPECT(&m, "--data x=x4.npy --data labels=none.npy --steps 1 --lr 1 --save none --weight-decay 1", 0,
		"loss 0.0000");
	read_tensor("none/latest/model.safetensors", "fc.bias", p);
	CU_ASSERT_EQUAL(p[0], 0.25);
	remove_all("ck none");
}

static void test_evaluation(void)
{
	RtModel m = toy_model("adamw");
	double loss = 0, right = 0;
	for (int i = 0; i < N; i++) {
		double y[TOY_C], z = 0;
		int best = 0;
		for (int c = 0; c < TOY_C; c++) {
			y[c] = 0.25;
			for (int d = 0; d < TOY_D; d++)
				y[c] += first_w[c][d] * (data_x[i][d] * 2.0 + 0.5);
			z += exp(y[c]);
			best = y[c] > y[best] ? c : best;
		}
		loss += (log(z) - y[data_labels[i]]) / N;
		right += best == data_labels[i];
	}
	EXPECT(&m, DATA "--steps 1 --lr 0 --eval-data x=x.npy --eval-data labels=labels.npy --log log.jsonl", 0,
		"eval after step 1");
	FILE *log = fopen("log.jsonl", "r");
	char line[512];
	CU_ASSERT_PTR_NOT_NULL_FATAL(fgets(line, sizeof(line), log));
	CU_ASSERT_PTR_NOT_NULL_FATAL(fgets(line, sizeof(line), log));
	fclose(log);
	CU_ASSERT_DOUBLE_EQUAL(log_number(line, "eval_loss"), loss, 1e-6);
	CU_ASSERT_DOUBLE_EQUAL(log_number(line, "eval_accuracy"), right / N, 1e-9);
	m.loss.whole = "the loss is one number a batch";
	EXPECT(&m, DATA "--steps 1 --eval-data x=x.npy --eval-data labels=labels.npy", 0, "2 samples left out");
	EXPECT(&m, DATA "--steps 1 --eval-every 1", 2, "--eval-every needs --eval-data");
}

/* ---- checkpoints ---- */

static void test_resume_is_bitwise(void)
{
	RtModel m = toy_model("adamw");
	const char *hyper = DATA "--shuffle 5 --lr 0.1 --lr-schedule cosine --warmup 2 --min-lr 0.01 "
		"--steps 9 --clip-norm 1 ";
	char flags[512];
	snprintf(flags, sizeof(flags), "%s --save whole", hyper);
	EXPECT(&m, flags, 0, "trained to step 9");
	snprintf(flags, sizeof(flags), "%s --save parts --save-every 2 --keep 2", hyper);
	EXPECT(&m, flags, 0, "trained to step 9");
	CU_ASSERT_NOT_EQUAL(access("parts/step-00000006", F_OK), 0);
	CU_ASSERT_EQUAL(access("parts/step-00000008", F_OK), 0);
	/* flags that are not given come from the checkpoint */
	EXPECT(&m, DATA "--resume parts/step-00000008 --save again", 0, "trained to step 9");
	CU_ASSERT(same_files("whole/latest/model.safetensors", "again/latest/model.safetensors"));
	CU_ASSERT(same_files("whole/latest/optim.safetensors", "again/latest/optim.safetensors"));
	CU_ASSERT(same_files("whole/latest/state.json", "again/latest/state.json"));
	remove_all("parts/step-00000009");
	CU_ASSERT_EQUAL(system("ln -sfn step-00000008 parts/latest"), 0);
	EXPECT(&m, DATA "--resume auto --save parts", 0, "trained to step 9");
	CU_ASSERT(same_files("whole/latest/model.safetensors", "parts/latest/model.safetensors"));
	EXPECT(&m, DATA "--resume auto --save parts", 0, "nothing to train");
	EXPECT(&m, DATA "--resume auto --save fresh --steps 1", 0, "trained to step 1");
	EXPECT(&m, DATA "--resume whole --lr 0.2 --steps 10 --save again", 0, "--lr was 0.1 and is 0.2 now");
	remove_all("whole parts again fresh");
}

static void test_broken_checkpoints(void)
{
	RtModel m = toy_model("adamw"), other = toy_model("lion");
	EXPECT(&m, DATA "--steps 2 --save ck", 0, "trained to step 2");
	EXPECT(&other, DATA "--resume ck --steps 3", 1, "2 tensor(s) that the program does not have");
	EXPECT(&m, DATA "--resume absent", 1, "absent: error: no state.json");
	CU_ASSERT_EQUAL(system("cp -r ck/latest/ bad && truncate -s -4 bad/model.safetensors"), 0);
	EXPECT(&m, DATA "--resume bad --steps 3", 1, "bad/model.safetensors: error:");
	CU_ASSERT_EQUAL(system("cp ck/latest/* bad/ && truncate -s 20 bad/state.json"), 0);
	EXPECT(&m, DATA "--resume bad --steps 3", 1, "bad/state.json: error:");
	CU_ASSERT_EQUAL(system("cp ck/latest/* bad/ && sed -i 's/\"step\": 2/\"step\": -2/' bad/state.json"), 0);
	EXPECT(&m, DATA "--resume bad --steps 3", 1, "bad/state.json: error: is damaged");
	CU_ASSERT_EQUAL(system("sed -i '/\"crc32\"/d' bad/state.json"), 0);
	EXPECT(&m, DATA "--resume bad --steps 3", 1, "was expected");
	CU_ASSERT_EQUAL(system("cp ck/latest/* bad/ && rm bad/optim.safetensors"), 0);
	EXPECT(&m, DATA "--resume bad --steps 3", 1, "there is no optim.safetensors: the checkpoint is not whole");
	remove_all("ck bad");
}

/* A file size limit fails a write as a full disk does; room for one file of 300 bytes, then less. */
static void test_full_disk(void)
{
	RtModel m = toy_model("adamw");
	EXPECT(&m, DATA "--steps 1 --save ck", 0, "trained to step 1");
	CU_ASSERT_EQUAL(system("cp ck/latest/model.safetensors before"), 0);
	static const rlim_t limits[] = {100, 420};
	for (int i = 0; i < COUNT_OF(limits); i++) {
		CU_ASSERT_EQUAL(
			finish(start(&m, DATA "--resume ck --steps 3 --save ck --save-every 1", limits[i])), 3);
		CU_ASSERT_EQUAL(
			system("test `readlink ck/latest` = step-00000001 && test `ls -A ck | wc -l` = 2"), 0);
		CU_ASSERT(same_files("ck/latest/model.safetensors", "before"));
	}
	EXPECT(&m, DATA "--resume ck --steps 3 --save /proc/no", 1, "/proc/no: error: cannot be made");
	remove_all("ck before");
}

/* In a process of its own: a disk that is full and then enlarged. */
static int cut_a_log(void)
{
	struct rlimit all, few;
	Diag d = {.out = stderr};
	Log log;
	StepRecord r = {.step = 1};
	if (!freopen("/dev/null", "w", stderr) || getrlimit(RLIMIT_FSIZE, &all) ||
		!log_open(&log, "cut.jsonl", false, 3, &d))
		return 1;
	few = (struct rlimit){500, all.rlim_max};
	signal(SIGXFSZ, SIG_IGN);
	log_step(&log, &r);
	r.step = 2;
	setrlimit(RLIMIT_FSIZE, &few);
	log_step(&log, &r);
	log_step(&log, &r); /* nothing of it fits */
	setrlimit(RLIMIT_FSIZE, &all);
	r.step = 3;
	log_step(&log, &r);
	return log_close(&log, &d) ? 2 : 0;
}

static void test_cut_log(void)
{
	fflush(NULL);
	pid_t pid = fork();
	int status;
	if (pid == 0)
		_exit(cut_a_log());
	waitpid(pid, &status, 0);
	CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CU_ASSERT_EQUAL(system("test \"`grep -c '^{\"step\": [123],.*' cut.jsonl`\" = 3 && test `wc -l <cut.jsonl` = 3 && "
		"test `grep -c '}$' cut.jsonl` = 2"), 0);
	remove_all("cut.jsonl");
}

/* A flag is compared with what was in force, whether it was given or not. */
static void test_changed_flags(void)
{
	RtModel m = toy_model("adamw");
	static const struct { const char *flags, *says; } cases[] = {
		{"--seed 3", "--seed was 0 and is 3 now"}, {"--seed 0", NULL}, {"--seed 00", NULL},
		{"--warmup 2", "--warmup was not given then and is 2 now"}, {"--lr 0.1", NULL},
		{"--shuffle 4", "--shuffle was not given then and is 4 now"}, {"--accum 1", NULL}, {"", NULL},
	};
	EXPECT(&m, DATA "--steps 2 --lr 0.1 --save ck --threads 1", 0, "trained to step 2");
	for (int i = 0; i < COUNT_OF(cases); i++) {
		char flags[256];
		snprintf(flags, sizeof(flags), DATA "--resume ck --threads 1 %s", cases[i].flags);
		EXPECT(&m, flags, 0, cases[i].says ? cases[i].says : "nothing to train");
		CU_ASSERT_EQUAL(!strstr(text, " now"), !cases[i].says);
	}
	EXPECT(&m, DATA "--resume ck --threads 1 --steps 3", 0, "--steps was 2 and is 3 now");
	EXPECT(&m, DATA "--threads 1 --save epoch", 0, "trained to step 3");
	EXPECT(&m, DATA "--resume epoch --threads 1 --steps 4", 0, "--steps was 3 and is 4 now");
	remove_all("ck epoch");
}

/* Killed at any instant: what `latest` names is whole, and the next save clears what was left over. */
static void test_kill(void)
{
	RtModel m = toy_model("adamw");
	for (int trial = 0; trial < 25; trial++) {
		pid_t pid = start(&m, DATA "--steps 1000000000 --save ck --save-every 1 --keep 2 --resume auto", 0);
		while (access("ck/latest", F_OK))
			usleep(100);
		usleep((useconds_t)(trial * 731 % 9000));
		kill(pid, SIGKILL);
		CU_ASSERT_EQUAL(finish(pid), 1000 + SIGKILL);
		EXPECT(&m, DATA "--resume ck --steps 0", 0, "nothing to train");
	}
	long long step = 0;
	CU_ASSERT_EQUAL(sscanf(strstr(text, "step "), "step %lld", &step), 1);
	CU_ASSERT_EQUAL(system(": >ck/.shardc-0123456789abcdef"), 0); /* left where the kill came before the first step */
	char flags[256];
	snprintf(flags, sizeof(flags), DATA "--resume ck --steps %lld --save ck --keep 1", step + 1);
	EXPECT(&m, flags, 0, "trained");
	CU_ASSERT_EQUAL(system("test `ls -A ck | wc -l` = 2"), 0);
	remove_all("ck");
}

static void test_signal(void)
{
	RtModel m = toy_model("adamw");
	static const int signals[] = {SIGTERM, SIGINT};
	for (int i = 0; i < COUNT_OF(signals); i++) {
		struct stat st = {0};
		unlink("log.jsonl");
		pid_t pid = start(&m, DATA "--steps 1000000000 --save ck --log log.jsonl", 0);
		while (stat("log.jsonl", &st) || st.st_size == 0)
			usleep(1000);
		kill(pid, signals[i]);
		CU_ASSERT_EQUAL(finish(pid), 0);
		CU_ASSERT_PTR_NOT_NULL(strstr(text, "saved in ck"));
		CU_ASSERT_EQUAL(access("ck/latest/state.json", F_OK), 0);
		remove_all("ck");
	}
}

static void setup_and_stop(Rt *rt)
{
	toy_setup(rt);
	kill(getpid(), SIGTERM);
	while (!report_stop_signal)
		usleep(100);
}

/* Stopped before its first step a run has saved nothing, and does not say that it has. */
static void test_signal_before_steps(void)
{
	RtModel m = toy_model("adamw");
	EXPECT(&m, DATA "--steps 2 --save ck", 0, "trained to step 2");
	m.setup = setup_and_stop;
	for (int i = 0; i < 2; i++) {
		EXPECT(&m, i ? DATA "--steps 5 --save new --resume ck" : DATA "--steps 5 --save new", 0,
			i ? "after step 2; no step was done, so nothing was to be saved" : "after step 0; no step was done");
		CU_ASSERT_NOT_EQUAL(access("new/latest", F_OK), 0);
	}
	EXPECT(&m, DATA "--steps 5", 0, "after step 0\n");
	remove_all("ck new");
}

static void test_lost_file(void)
{
	RtModel m = toy_model("adamw");
	struct stat st = {0};
	unlink("log.jsonl");
	CU_ASSERT_EQUAL(system("cp x.npy cut.npy"), 0);
	pid_t pid = start(&m, "--data x=cut.npy --data labels=labels.npy --steps 1000000000 --log log.jsonl", 0);
	while (stat("log.jsonl", &st) || st.st_size == 0)
		usleep(1000);
	CU_ASSERT_EQUAL(truncate("cut.npy", 0), 0);
	CU_ASSERT_EQUAL(finish(pid), 3);
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "a file was cut short"));
}

/* ---- bad input ---- */

static void test_usage(void)
{
	RtModel m = toy_model("adamw");
	static const struct { const char *flags, *say; } cases[] = {
		{"--colour red", "unknown flag --colour"},
		{"data", "is not a flag"},
		{"--steps", "--steps takes"},
		{"--steps x", "--steps takes a whole number"},
		{"--steps -1", "not \"-1\""},
		{"--lr nan", "--lr takes"},
		{"--betas 0.9", "--betas takes two numbers"},
		{"--betas 0.9,1", "--betas takes"},
		{"--on-nan=ignore", "stop or skip"},
		{"--lr-schedule=step", "constant, linear or cosine"},
		{"--accum=4", "one micro-batch a step"},
		{"--save-kind=sharded", "--save-kind needs --save DIR"},
		{"--save-kind=full", "--save-kind needs --save DIR"},
		{"--strict=0", "--strict needs --resume"},
		{"--save-kind=whole --save d", "full, sharded or local"},
		{"--hyper", "--hyper takes a value"},
		{"--trace t.json", "--trace is refused"},
		{"--steps 2 --steps=3", "--steps is given twice, \"2\" and \"3\""},
		{"--infer a b --infer c d", "--infer is given twice"},
		{"--warmup_steps 3", "Hugging Face is --warmup here"},
		{"--optimizer=sgd", "it is compiled in: shardc MODEL.onnx --optimizer"},
		{"--wieght-decay 1", "did you mean --weight-decay?"},
		{"--lr-schedule=cos", "did you mean cosine?"},
		{"--comm=gloo", "gloo of PyTorch is shm here"},
		{"--steps 1.5", "--steps takes a whole number"},
		{"--steps 5KiB", "--steps takes a whole number"},
		{"--save-every 2", "--save-every needs --save"},
		{"--resume auto", "--resume=auto needs --save"},
		{"--keep 0 --save d", "--keep needs at least 1"},
		{"--print-plan=yes", "no value"},
		{"--infer a", "two folders"},
		{"--lr 0.1 --lr", "--lr takes a number that is not negative"},
		{"--comm-threads=2", "--comm-threads takes 0|1, not \"2\""},
	};
	for (int i = 0; i < COUNT_OF(cases); i++)
		EXPECT(&m, cases[i].flags, 2, cases[i].say);
	EXPECT(&m, "--help", 0, "--lr-schedule");
	EXPECT(&m, "-h", 0, "[adamw: 0.001]");
	EXPECT(&m, "-h", 0, "refused by this program: only --optimizer=sgd:momentum has it");
	EXPECT(&m, DATA "--steps 1e0 --seed 3", 0, "--seed is not used: this program has neither");
	EXPECT(&m, DATA "--steps 1 --min-lr 0.1", 0, "--min-lr is not used: the learning rate stays constant");
	EXPECT(&m, DATA "--steps 1 --shard-size 1", 0, "--shard-size is not used: no unit");
	EXPECT(&m, DATA "--steps 1 --timeout 9", 0, "--timeout is not used: there is one rank");
	EXPECT(&m, "--print-plan --log x.jsonl", 0, "--log is not used: nothing is trained");
	EXPECT(&m, "--version", 0, "toy: test");
	EXPECT(&m, DATA "--ranks 1 --accum=1 --steps 1", 0, "trained");
	EXPECT(&m, DATA "--momentum 0.9", 2, "only --optimizer=sgd:momentum has it");
	m = toy_model("sgd");
	EXPECT(&m, DATA "--eps 1", 2, "--eps is refused");
	m.clip = false;
	EXPECT(&m, DATA "--clip-norm 1", 2, "compile with --clip");
	m.optimizer = NULL;
	EXPECT(&m, DATA, 2, "compiled for inference");
}

static void test_data_errors(void)
{
	RtModel m = toy_model("adamw");
	double wide[N][TOY_D] = {{0}};
	npy_write("f64.npy", DT_F64, 2, (int64_t[]){N, TOY_D}, wide);
	npy_write("flat.npy", DT_F32, 3, (int64_t[]){N, 2, 2}, data_x);
	npy_write("short.npy", DT_I64, 1, (int64_t[]){N - 1}, data_labels);
	npy_write("nothing.npy", DT_I64, 1, (int64_t[]){0}, data_labels);
	EXPECT(&m, "--data x=f64.npy", 1, "f64.npy: error: shape [10,4] f64, input \"x\" wants [*,4] f32");
	EXPECT(&m, "--data x=flat.npy", 1, "flat.npy: error: shape [10,2,2] f32, input \"x\" wants [*,4] f32");
	EXPECT(&m, "--data x=x.npy", 1, "--data: error: input \"labels\" [*] i64 has no data");
	EXPECT(&m, "--data y=x.npy", 1, "is not NAME=FILE with an input's name");
	EXPECT(&m, "--data x=x.npy --data labels=short.npy", 1,
		"short.npy: error: 9 samples of input \"labels\", but x.npy has 10");
	EXPECT(&m, "--data x=x.npy --data x=x.npy", 1, "two sources");
	EXPECT(&m, "--data x=x.npy --data labels=nothing.npy", 1, "nothing.npy: error: 0 samples");
	EXPECT(&m, "--data x=weights.bin --data labels=labels.npy", 1,
		"weights.bin: error: this is not a .npy file");
	EXPECT(&m, "--data x=none.npz", 1, "none.npz: error: No such file");
	EXPECT(&m, "--const x=x.npy " DATA, 1, "has a sample axis");
	EXPECT(&m, "--tokens x.bin", 1, "no input is integers [B,T], as a token stream wants it");
}

static void test_bad_label(void)
{
	RtModel m = toy_model("adamw");
	int64_t labels[N] = {0, 1, 2, 0, 1, 3};
	npy_write("bad.npy", DT_I64, 1, (int64_t[]){N}, labels);
	EXPECT(&m, "--data x=x.npy --data labels=bad.npy --steps 3 --save ck", 1,
		"bad input in step 2: label 3 in row 1 is outside [0,3)");
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "bad.npy: error:"));
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "bad.npy: note: rows 0, 1, ... of that batch were samples 4, 5, 6, 7"));
	CU_ASSERT_NOT_EQUAL(access("ck", F_OK), 0);
	EXPECT(&m, DATA "--steps 1 --eval-data x=x.npy --eval-data labels=bad.npy", 1,
		"bad.npy: error: bad input in an evaluation: label 3");
}

static void test_not_finite(void)
{
	RtModel m = toy_model("adamw");
	float x[N][TOY_D];
	memcpy(x, data_x, sizeof(x));
	x[5][0] = NAN;
	npy_write("nan.npy", DT_F32, 2, (int64_t[]){N, TOY_D}, x);
	EXPECT(&m, "--data x=nan.npy --data labels=labels.npy --steps 4 --save ck", 3,
		"step 2: the loss is not finite");
	CU_ASSERT_NOT_EQUAL(access("ck", F_OK), 0);
	EXPECT(&m, "--data x=nan.npy --data labels=labels.npy --steps 4 --save ck --on-nan skip --log log.jsonl",
		0, "trained to step 4");
	read_text("log.jsonl");
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"loss\": null, \"grad_norm\": null"));
	read_text("ck/latest/state.json");
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"step\": 4,\n  \"updates\": 2,"));
	remove_all("ck");
}

static void test_weight_files(void)
{
	RtModel m = toy_model("adamw");
	CU_ASSERT_EQUAL(system("cp weights.bin keep"), 0);
	CU_ASSERT_EQUAL(system("printf x | dd of=weights.bin bs=1 seek=20 conv=notrunc 2>/dev/null"), 0);
	EXPECT(&m, DATA, 1, "weights.bin: error: the file's contents have changed");
	CU_ASSERT_EQUAL(system("truncate -s 60 weights.bin"), 0);
	EXPECT(&m, DATA, 1,
		"weights.bin: error: the file has changed since this program was compiled: 60 bytes now, 104 then");
	unlink("weights.bin");
	EXPECT(&m, DATA, 1, "weights.bin: error: No such file");
	CU_ASSERT_EQUAL(rename("keep", "weights.bin"), 0);
	RtTensor *w = &toy_tensors[TOY_W];
	w->file_offset = 16;
	EXPECT(&m, DATA, 1, "tensor \"fc.weight\": bytes [16,112] of 104");
	w->file_offset = 8;
}

static void test_processor(void)
{
	RtModel m = toy_model("adamw");
	const char *need[] = {"sse3", "no-such-isa", "nor-this", NULL};
	m.need_cpu = need;
	EXPECT(&m, DATA, 1, "this processor lacks: no-such-isa, nor-this; compile it with --arch");
	__builtin_cpu_init();
	CU_ASSERT_EQUAL(cpu_supports("avx2"), !!__builtin_cpu_supports("avx2"));
	CU_ASSERT_EQUAL(cpu_supports("fma"), !!__builtin_cpu_supports("fma"));
	CU_ASSERT_EQUAL(cpu_supports("avx512f"), !!__builtin_cpu_supports("avx512f"));
	CU_ASSERT_EQUAL(cpu_supports("avx512bw"), !!__builtin_cpu_supports("avx512bw"));
	CU_ASSERT_EQUAL(cpu_supports("bmi2"), !!__builtin_cpu_supports("bmi2"));
	CU_ASSERT_EQUAL(cpu_supports("popcnt"), !!__builtin_cpu_supports("popcnt"));
}

/* ---- memory, forward only ---- */

enum { HEAP_STEPS = 64 };
static size_t heap_at_step[HEAP_STEPS];
static int heap_steps;

/* After the first step nothing may be allocated: 62 steps of the smallest block would be 2 KiB.  The C library
 * keeps a few hundred bytes when it prints numbers of new sizes. */
static void counting_forward(Rt *rt)
{
	toy_train_forward(rt);
	if (heap_steps < HEAP_STEPS)
		heap_at_step[heap_steps++] = mallinfo2().uordblks;
	if (heap_steps == HEAP_STEPS && heap_at_step[HEAP_STEPS - 1] > heap_at_step[1] + 1024)
		_exit(77);
}

/* Bytes of this process's anonymous mappings, the heap and the stack aside. */
static int64_t anonymous_bytes(void)
{
	char line[512];
	int64_t sum = 0;
	FILE *f = fopen("/proc/self/maps", "r");
	while (f && fgets(line, sizeof(line), f)) {
		unsigned long begin, end, inode = 0;
		char rights[8], name[256] = "";
		int n = sscanf(line, "%lx-%lx %7s %*s %*s %lu %255s", &begin, &end, rights, &inode, name);
		if (n >= 4 && inode == 0 && !name[0] && !strcmp(rights, "rw-p"))
			sum += (int64_t)(end - begin);
	}
	fclose(f);
	return sum;
}

/* What the plan says is what the kernel has mapped, up to the pages that each mapping's end fills. */
static void check_mappings(void)
{
#ifdef __SANITIZE_ADDRESS__
	const int64_t heap = 1 << 16; /* AddressSanitizer's heap grows by anonymous mappings of this size */
#else
	const int64_t heap = 0;
#endif
	RtModel m = toy_model("adamw");
	static RtOptions o = {.program = "toy"};
	Diag d = {.out = stderr};
	m.layout.act_bytes = (INT64_C(5) << 20) + 12345;
	m.layout.work_bytes = 100;
	struct RtPrivate p = {.arena = arena_new(), .options = &o};
	Rt rt = {.model = &m, .p = &p};
	CU_ASSERT_FATAL(optim_init(&p.optim, &m, &(LayoutRank){0, 1, 1}, p.arena, "toy", &d));
	CU_ASSERT_FATAL(device_map(&rt, &d)); /* once for what the C library keeps for itself */
	device_unmap(&rt);
	int64_t before = anonymous_bytes(), planned = 0;
	CU_ASSERT_FATAL(device_map(&rt, &d));
	int64_t mapped = anonymous_bytes() - before;
	for (int i = 0; i < ARENA_COUNT; i++)
		planned += round_up(p.memory.planned[i], sysconf(_SC_PAGESIZE));
	CU_ASSERT(mapped >= planned && mapped <= planned + heap);
	CU_ASSERT_EQUAL((uintptr_t)rt.act % 64, 0);
	device_unmap(&rt);
	CU_ASSERT(anonymous_bytes() - before >= 0 && anonymous_bytes() - before <= heap);
	arena_free(p.arena);
}

static void test_memory(void)
{
	RtModel m = toy_model("adamw");
	static const struct { const char *name; int64_t bytes; } plan[] = {{"parameters", (128 + 64) * 4},
		{"gradients", 128 * 4}, {"optimizer states", 2 * 128 * 4}, {"buffers", 128}, {"inputs", 128},
		{"activations", TOY_ACT}, {"workspace", 0}, {"total", 2816}};
	EXPECT(&m, "--print-plan", 0, "planned bytes");
	for (int i = 0; i < COUNT_OF(plan); i++) {
		long long planned = -1;
		const char *line = strstr(text, plan[i].name);
		CU_ASSERT_PTR_NOT_NULL_FATAL(line);
		sscanf(line + strlen(plan[i].name), "%lld", &planned);
		CU_ASSERT_EQUAL(planned, plan[i].bytes);
	}
	check_mappings();
	m.layout.act_bytes = INT64_C(1) << 46;
	EXPECT(&m, "--print-plan", 3, "bytes for activations cannot be mapped");
	m.layout.act_bytes = TOY_ACT;
	m.forward = counting_forward;
	EXPECT(&m, DATA "--steps 64 --log log.jsonl", 0, "trained to step 64");
}

static void test_inference(void)
{
	RtModel m = toy_model(NULL);
	Diag d = {.out = stderr};
	Npy npy;
	CU_ASSERT_EQUAL(system("mkdir in && cp x4.npy in/x.npy && cp some.npy in/input_1.npy"), 0);
	EXPECT(&m, "--infer in out", 0, "");
	CU_ASSERT_FATAL(npy_open(&npy, "out/out_logits.npy", &d));
	CU_ASSERT(npy.header.rank == 2 && npy.header.dim[0] == TOY_B && npy.header.dim[1] == TOY_C);
	double y = 0.25;
	for (int k = 0; k < TOY_D; k++)
		y += first_w[2][k] * (data_x[3][k] * 2.0 + 0.5);
	CU_ASSERT_DOUBLE_EQUAL(((const float *)npy.data)[3 * TOY_C + 2], y, 1e-6);
	npy_close(&npy);
	CU_ASSERT(same_files("out/x.npy", "in/x.npy"));
	CU_ASSERT_EQUAL(system("cp x.npy in/x.npy"), 0);
	EXPECT(&m, "--infer in out", 1, "in/x.npy: error: shape [10,4] f32, input \"x\" wants [4,4] f32");
	unlink("in/x.npy");
	EXPECT(&m, "--infer in out", 1, "in/x.npy: error: input \"x\" is neither here nor in input_0.npy");
	m.eval = NULL;
	EXPECT(&m, "--infer in out", 2, "compiled for training");
}

/* ---- the suite, in a folder of its own ---- */

static char old_folder[4096];

static int begin(void)
{
	if (!getcwd(old_folder, sizeof(old_folder)) || !mkdtemp(folder) || chdir(folder))
		return 1;
	write_inputs();
	return 0;
}

static int end(void)
{
	char command[64];
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return chdir(old_folder) || system(command);
}

void suite_runtime(void)
{
	CU_pSuite s = CU_add_suite("runtime", begin, end);
	CU_ADD_TEST(s, test_optimizers);
	CU_ADD_TEST(s, test_ignored_labels);
	CU_ADD_TEST(s, test_evaluation);
	CU_ADD_TEST(s, test_resume_is_bitwise);
	CU_ADD_TEST(s, test_broken_checkpoints);
	CU_ADD_TEST(s, test_full_disk);
	CU_ADD_TEST(s, test_cut_log);
	CU_ADD_TEST(s, test_changed_flags);
	CU_ADD_TEST(s, test_kill);
	CU_ADD_TEST(s, test_signal);
	CU_ADD_TEST(s, test_signal_before_steps);
	CU_ADD_TEST(s, test_lost_file);
	CU_ADD_TEST(s, test_usage);
	CU_ADD_TEST(s, test_data_errors);
	CU_ADD_TEST(s, test_bad_label);
	CU_ADD_TEST(s, test_not_finite);
	CU_ADD_TEST(s, test_weight_files);
	CU_ADD_TEST(s, test_processor);
	CU_ADD_TEST(s, test_memory);
	CU_ADD_TEST(s, test_inference);
}
