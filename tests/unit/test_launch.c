/* tests/unit/test_launch.c: which rank a process is, according to options and launchers' variables; secrets. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/plane/private.h"

#include "tests/unit/unit.h"

static const char *const of_cpu[] = {"self", "shm", "mpi", NULL};
static const char *const of_gpu[] = {"self", "shm", "nccl", "mpi", NULL};

static const char *const variables[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
	"MASTER_ADDR", "MASTER_PORT",
	"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
	"OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK",
	"PMI_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "TORCHELASTIC_USE_AGENT_STORE",
	"SHARDRT_RANK", "SHARDC_SECRET", "SHARDC_SECRET_FILE", "SLURM_STEP_NUM_NODES",
	"SHARDRT_WORLD", "SHARDRT_HUB_FD"};

/* environment: "A=1 B=2"; flags likewise. */
typedef struct FindCase {
	const char *environment, *flags;
	LaunchRole role;
	int rank, size;
	bool mpi;
	const char *address;
} FindCase;
#define AT_7 " MASTER_ADDR=a MASTER_PORT=7"
#define TASK "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2"
#define MPIRUN(rank, size) "OMPI_COMM_WORLD_RANK=" rank " OMPI_COMM_WORLD_SIZE=" size
static const FindCase find_cases[] = {
	{"", "", LAUNCH_ALONE, 0, 1, false, NULL},
	{"", "--ranks=1", LAUNCH_ALONE, 0, 1, false, NULL},
	{"", "--ranks=3", LAUNCH_PARENT, 0, 3, false, NULL},
	{"", "--ranks=3 --comm=shm", LAUNCH_PARENT, 0, 3, false, NULL},
	{"RANK=1 WORLD_SIZE=2" AT_7, "", LAUNCH_RANK, 1, 2, false, "a:7"},
	{"RANK=1 WORLD_SIZE=2 MASTER_ADDR=::1 MASTER_PORT=7", "", LAUNCH_RANK, 1, 2, false, "[::1]:7"},
	{"RANK=0 WORLD_SIZE=2" AT_7 " TORCHELASTIC_USE_AGENT_STORE=True", "", LAUNCH_RANK, 0, 2, false, "a:8"},
	{"RANK=0 WORLD_SIZE=1", "", LAUNCH_ALONE, 0, 1, false, NULL},
	{"RANK=0 WORLD_SIZE=1", "--ranks=2", LAUNCH_PARENT, 0, 2, false, NULL},
	{MPIRUN("2", "4"), "", LAUNCH_RANK, 2, 4, true, NULL},
	{"PMI_RANK=2 PMI_SIZE=4", "--comm=mpi", LAUNCH_RANK, 2, 4, true, NULL},
	{"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2", "", LAUNCH_ALONE, 0, 1, false, NULL},
	{"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2", "--comm=mpi", LAUNCH_RANK, 1, 2, true, NULL},
	{MPIRUN("1", "2") " RANK=1 WORLD_SIZE=2" AT_7, "--comm=shm", LAUNCH_RANK, 1, 2, false, "a:7"},
	{MPIRUN("1", "2") " RANK=1 WORLD_SIZE=2", "", LAUNCH_RANK, 1, 2, true, NULL},
	/* srun started mpirun's daemons, or torchrun's agents, one on each host, and not the ranks */
	{MPIRUN("9", "16") " " TASK, "--comm=mpi", LAUNCH_RANK, 9, 16, true, NULL},
	{TASK " RANK=9 WORLD_SIZE=16" AT_7, "--comm=nccl", LAUNCH_RANK, 9, 16, false, "a:7"},
	{TASK " RANK=0 WORLD_SIZE=1" AT_7, "--comm=nccl", LAUNCH_RANK, 1, 2, false, "a:7"},
	{TASK " RANK=9 WORLD_SIZE=16" AT_7, "--comm=mpi", LAUNCH_RANK, 1, 2, true, NULL},
};
typedef struct BadCase { const char *environment, *flags, *said; } BadCase;
static const BadCase bad_cases[] = {
	{MPIRUN("1", "2") " RANK=0 WORLD_SIZE=2", "",
		"rank 1 of 2 by OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE, but rank 0 of 2 by RANK and WORLD_SIZE; unset "
		"one pair, or choose with --comm=mpi or --comm=shm\n"},
	{MPIRUN("1", "2") " PMI_RANK=0 PMI_SIZE=2", "", "but rank 0 of 2 by PMI_RANK and PMI_SIZE; unset one pair\n"},
	{"RANK=1", "", "the variable RANK is set and WORLD_SIZE is not"},
	{"WORLD_SIZE=2", "", "the variable WORLD_SIZE is set and RANK is not"},
	{"RANK=2 WORLD_SIZE=2", "", "the variable RANK=2 should be a number from 0 to 1"},
	{"RANK=x WORLD_SIZE=2", "", "the variable RANK=x should be"},
	{"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a", "", "the variable MASTER_PORT is not set"},
	{"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=99999", "", "MASTER_PORT=99999 should be"},
	{"RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2" AT_7, "", "on several hosts"},
	{"RANK=0 WORLD_SIZE=2" AT_7, "--comm=mpi", "--comm=mpi needs a start by mpirun"},
	{"RANK=0 WORLD_SIZE=2" AT_7, "--comm=self", "--comm=self is for one rank"},
	{MPIRUN("1", "2"), "--ranks=2", "--ranks=2 starts ranks, but this is rank 1 of 2 already"},
	{MPIRUN("1", "2"), "--comm=shm", "ranks that mpirun starts find each other by --comm=mpi"},
	{"", "--comm=tcp", "--comm=tcp is not one of self, shm, mpi"},
	{"", "--ranks=0", "--ranks=0 should be from 1 to 4096"},
	{"", "--ranks=2 --comm=self", "--comm=self and --ranks=2"},
	{"", "--ranks=2 --comm=mpi", "for mpi start them with mpirun"},
	{"RANK=0 WORLD_SIZE=2 SHARDC_SECRET=short" AT_7, "", "the secret in SHARDC_SECRET has 5 characters"},
	{"RANK=0 WORLD_SIZE=2 SHARDC_SECRET_FILE=/nowhere/secret" AT_7, "",
		"SHARDC_SECRET_FILE=/nowhere/secret: No such file"},
	{"SHARDRT_RANK=1 SHARDRT_WORLD=2 SHARDRT_HUB_FD=77", "", "no parent process started this one"},
};

static void clear_variables(void)
{
	for (int i = 0; i < COUNT_OF(variables); i++)
		unsetenv(variables[i]);
}

static bool find(const char *environment, const char *flags, Launch *l, Arena *a, char *said, size_t n)
{
	const char *const *comms = strstr(flags, "nccl") ? of_gpu : of_cpu;
	char *argv[8] = {arena_strdup(a, "train")}, *save;
	int argc = 1;
	RtOptions o;
	Diag d = {.out = fmemopen(said, n, "w")};
	clear_variables();
	for (char *t = strtok_r(arena_strdup(a, environment), " ", &save); t; t = strtok_r(NULL, " ", &save))
		putenv(arena_strdup(a, t));
	for (char *t = strtok_r(arena_strdup(a, flags), " ", &save); t; t = strtok_r(NULL, " ", &save))
		argv[argc++] = t;
	bool ok = options_parse(&o, a, argc, argv, &d) && launch_find(l, &o, comms, a, &d);
	fclose(d.out);
	clear_variables();
	return ok;
}

static void launchers_variables_are_read(void)
{
	for (int i = 0; i < COUNT_OF(find_cases); i++) {
		const FindCase *f = &find_cases[i];
		Arena *a = arena_new();
		Launch l;
		char said[1000] = "", message[2000];
		bool ok = find(f->environment, f->flags, &l, a, said, sizeof(said));
		snprintf(message, sizeof(message), "[%s] [%s]: %s", f->environment, f->flags, said);
		UNIT_CHECK(ok && l.role == f->role && l.world.rank == f->rank && l.world.size == f->size, message);
		UNIT_CHECK(ok && !l.carrier == !f->mpi && !l.address == !f->address, message);
		UNIT_CHECK(!ok || !f->address || !strcmp(l.address, f->address), message);
		arena_free(a);
	}
}

/* Tasks of srun that --comm does not name as ranks are runs of their own, which is said; what one task or a batch job
 * has set, and tasks that a launcher numbers, are no such case. */
static void tasks_that_run_alone_are_named(void)
{
	static const struct { const char *environment, *flags; bool warned; } cases[] = {
		{TASK, "", true}, {TASK, "--ranks=3", true}, {TASK, "--comm=self", false},
		{TASK, "--comm=shm --ranks=3", false}, {TASK, "--comm=mpi", false},
		{"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1", "", false}, {"SLURM_PROCID=0", "", false},
		{"SLURM_STEP_NUM_TASKS=2", "", false}, {TASK " RANK=0 WORLD_SIZE=1", "", false},
		{TASK " " MPIRUN("0", "2"), "", false}};
	for (int i = 0; i < COUNT_OF(cases); i++) {
		Arena *a = arena_new();
		Launch l;
		char said[1000] = "", message[2000];
		bool ok = find(cases[i].environment, cases[i].flags, &l, a, said, sizeof(said));
		bool warned = strstr(said, "warning: this is task 1 of 2 by SLURM_PROCID and SLURM_STEP_NUM_TASKS, and every "
			"one of them is a run by itself: --comm=mpi makes them ranks of one");
		snprintf(message, sizeof(message), "[%s] [%s]: %s", cases[i].environment, cases[i].flags, said);
		UNIT_CHECK(ok && warned == cases[i].warned && (warned || !*said), message);
		arena_free(a);
	}
}

static void contradictions_are_refused(void)
{
	for (int i = 0; i < COUNT_OF(bad_cases); i++) {
		const BadCase *f = &bad_cases[i];
		Arena *a = arena_new();
		Launch l;
		char said[1000] = "", message[2000];
		bool ok = find(f->environment, f->flags, &l, a, said, sizeof(said));
		snprintf(message, sizeof(message), "[%s] [%s]: %s", f->environment, f->flags, said);
		UNIT_CHECK(!ok && strstr(said, f->said), message);
		arena_free(a);
	}
}

/* ---- secrets ---- */

#define SECRET "a secret of some length"

static bool finds_secret(const char *text, const char *path, char *said, size_t n)
{
	Secret s;
	Diag d = {.out = fmemopen(said, n, "w")};
	text ? setenv("SHARDC_SECRET", text, 1) : unsetenv("SHARDC_SECRET");
	path ? setenv("SHARDC_SECRET_FILE", path, 1) : unsetenv("SHARDC_SECRET_FILE");
	bool ok = secret_find(&s, "train", &d);
	fclose(d.out);
	unsetenv("SHARDC_SECRET");
	unsetenv("SHARDC_SECRET_FILE");
	return ok && s.given == (text || path);
}

static void secrets_are_long_and_files_private(void)
{
	char path[] = "/tmp/control-secret-XXXXXX", said[500];
	int fd = mkstemp(path);
	CU_ASSERT_EQUAL(write(fd, SECRET "\n", sizeof(SECRET)), sizeof(SECRET));
	CU_ASSERT(finds_secret(NULL, NULL, said, sizeof(said)));
	CU_ASSERT(finds_secret(SECRET, NULL, said, sizeof(said)));
	CU_ASSERT(finds_secret(NULL, path, said, sizeof(said)));
	Secret of_file, of_text;
	setenv("SHARDC_SECRET_FILE", path, 1);
	CU_ASSERT(secret_find(&of_file, "train", NULL));
	unsetenv("SHARDC_SECRET_FILE");
	setenv("SHARDC_SECRET", SECRET, 1);
	CU_ASSERT(secret_find(&of_text, "train", NULL));
	unsetenv("SHARDC_SECRET");
	CU_ASSERT_EQUAL(memcmp(of_file.key, of_text.key, sizeof(of_text.key)), 0);
	fchmod(fd, 0640);
	CU_ASSERT_FALSE(finds_secret(NULL, path, said, sizeof(said)));
	CU_ASSERT_PTR_NOT_NULL(strstr(said, "can be read by other users"));
	CU_ASSERT_FALSE(finds_secret("", NULL, said, sizeof(said)));
	CU_ASSERT_PTR_NOT_NULL(strstr(said, "has 0 characters"));
	CU_ASSERT_FALSE(finds_secret("fifteen letters", NULL, said, sizeof(said)));
	CU_ASSERT_FALSE(finds_secret(NULL, "/dev/zero", said, sizeof(said)));
	CU_ASSERT_PTR_NOT_NULL(strstr(said, "is no regular file"));
	CU_ASSERT_FALSE(finds_secret(SECRET, path, said, sizeof(said)));
	CU_ASSERT_PTR_NOT_NULL(strstr(said, "unset one"));
	close(fd);
	unlink(path);
}

void suite_launch(void)
{
	CU_pSuite s = CU_add_suite("launch", NULL, NULL);
	CU_ADD_TEST(s, launchers_variables_are_read);
	CU_ADD_TEST(s, tasks_that_run_alone_are_named);
	CU_ADD_TEST(s, contradictions_are_refused);
	CU_ADD_TEST(s, secrets_are_long_and_files_private);
}
