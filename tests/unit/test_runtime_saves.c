/* tests/unit/test_runtime_saves.c: the files that a run leaves when it ends, is stopped, is killed or finds the disk
 * full: checkpoints, runs that resume from them, logs. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/toy_run.h"

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
	CU_ASSERT(toy_same_files("whole/latest/model.safetensors", "again/latest/model.safetensors"));
	CU_ASSERT(toy_same_files("whole/latest/optim.safetensors", "again/latest/optim.safetensors"));
	CU_ASSERT(toy_same_files("whole/latest/state.json", "again/latest/state.json"));
	toy_remove("parts/step-00000009");
	CU_ASSERT_EQUAL(system("ln -sfn step-00000008 parts/latest"), 0);
	EXPECT(&m, DATA "--resume auto --save parts", 0, "trained to step 9");
	CU_ASSERT(toy_same_files("whole/latest/model.safetensors", "parts/latest/model.safetensors"));
	EXPECT(&m, DATA "--resume auto --save parts", 0, "nothing to train");
	EXPECT(&m, DATA "--resume auto --save fresh --steps 1", 0, "trained to step 1");
	EXPECT(&m, DATA "--resume whole --lr 0.2 --steps 10 --save again", 0, "--lr was 0.1 and is 0.2 now");
	toy_remove("whole parts again fresh");
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
	toy_remove("ck bad");
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
			toy_finish(toy_start(&m, DATA "--resume ck --steps 3 --save ck --save-every 1", limits[i])), 3);
		CU_ASSERT_EQUAL(
			system("test `readlink ck/latest` = step-00000001 && test `ls -A ck | wc -l` = 2"), 0);
		CU_ASSERT(toy_same_files("ck/latest/model.safetensors", "before"));
	}
	EXPECT(&m, DATA "--resume ck --steps 3 --save /proc/no", 1, "/proc/no: error: cannot be made");
	toy_remove("ck before");
}

/* Runs in a process of its own, whose disk is full and then enlarged. */
static int cut_a_log(void)
{
	struct rlimit all, few;
	Diag d = {.out = stderr};
	Log log;
	StepRecord r = {.step = 1};
	if (!freopen("/dev/null", "w", stderr) || getrlimit(RLIMIT_FSIZE, &all) ||
		!log_open(&log, "cut.jsonl", false, 3, "", &d))
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
	toy_remove("cut.jsonl");
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
		CU_ASSERT_EQUAL(!strstr(toy_said, " now"), !cases[i].says);
	}
	EXPECT(&m, DATA "--resume ck --threads 1 --steps 3", 0, "--steps was 2 and is 3 now");
	EXPECT(&m, DATA "--threads 1 --save epoch", 0, "trained to step 3");
	EXPECT(&m, DATA "--resume epoch --threads 1 --steps 4", 0, "--steps was 3 and is 4 now");
	toy_remove("ck epoch");
}

/* Killed at any instant: what `latest` names is whole, and the next save clears what was left over. */
static void test_kill(void)
{
	RtModel m = toy_model("adamw");
	for (int trial = 0; trial < 25; trial++) {
		pid_t pid = toy_start(&m, DATA "--steps 1000000000 --save ck --save-every 1 --keep 2 --resume auto", 0);
		while (access("ck/latest", F_OK))
			usleep(100);
		usleep((useconds_t)(trial * 731 % 9000));
		kill(pid, SIGKILL);
		CU_ASSERT_EQUAL(toy_finish(pid), 1000 + SIGKILL);
		EXPECT(&m, DATA "--resume ck --steps 0", 0, "nothing to train");
	}
	long long step = 0;
	CU_ASSERT_EQUAL(sscanf(strstr(toy_said, "step "), "step %lld", &step), 1);
	CU_ASSERT_EQUAL(system(": >ck/.shardc-0123456789abcdef"), 0); /* left where the kill came before the first step */
	char flags[256];
	snprintf(flags, sizeof(flags), DATA "--resume ck --steps %lld --save ck --keep 1", step + 1);
	EXPECT(&m, flags, 0, "trained");
	CU_ASSERT_EQUAL(system("test `ls -A ck | wc -l` = 2"), 0);
	toy_remove("ck");
}

static void test_signal(void)
{
	RtModel m = toy_model("adamw");
	static const int signals[] = {SIGTERM, SIGINT};
	for (int i = 0; i < COUNT_OF(signals); i++) {
		struct stat st = {0};
		unlink("log.jsonl");
		pid_t pid = toy_start(&m, DATA "--steps 1000000000 --save ck --log log.jsonl", 0);
		while (stat("log.jsonl", &st) || st.st_size == 0)
			usleep(1000);
		kill(pid, signals[i]);
		CU_ASSERT_EQUAL(toy_finish(pid), 0);
		CU_ASSERT_PTR_NOT_NULL(strstr(toy_said, "saved in ck"));
		CU_ASSERT_EQUAL(access("ck/latest/state.json", F_OK), 0);
		toy_remove("ck");
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
	toy_remove("ck new");
}

static void test_lost_file(void)
{
	RtModel m = toy_model("adamw");
	struct stat st = {0};
	unlink("log.jsonl");
	CU_ASSERT_EQUAL(system("cp x.npy cut.npy"), 0);
	pid_t pid = toy_start(&m, "--data x=cut.npy --data labels=labels.npy --steps 1000000000 --log log.jsonl", 0);
	while (stat("log.jsonl", &st) || st.st_size == 0)
		usleep(1000);
	CU_ASSERT_EQUAL(truncate("cut.npy", 0), 0);
	CU_ASSERT_EQUAL(toy_finish(pid), 3);
	CU_ASSERT_PTR_NOT_NULL(strstr(toy_said, "a file was cut short"));
}

void suite_runtime_saves(void)
{
	CU_pSuite s = CU_add_suite("runtime_saves", toy_enter, toy_leave);
	CU_ADD_TEST(s, test_resume_is_bitwise);
	CU_ADD_TEST(s, test_broken_checkpoints);
	CU_ADD_TEST(s, test_full_disk);
	CU_ADD_TEST(s, test_cut_log);
	CU_ADD_TEST(s, test_changed_flags);
	CU_ADD_TEST(s, test_kill);
	CU_ADD_TEST(s, test_signal);
	CU_ADD_TEST(s, test_signal_before_steps);
	CU_ADD_TEST(s, test_lost_file);
}
