/* base/communicators.h: the communicators, by which ranks exchange bytes, and the launchers that start ranks for one.
 * Options, plans, the runtime's choice and its messages are made from these rows.
 *
 * ROW(id, text, reach, target, source, starter), the first that reaches all ranks is the default (comm_fitting):
 *   text     the word of --comm
 *   reach    REACH_reach: the ranks that it connects
 *   target   ANY: it moves memory of the host; CUDA: it moves memory of GPUs, in programs for them
 *   source   BUILT_IN(text): the runtime has it; FOLDER(text): the folder of this name in runtime/comm/ defines
 *            comm_TEXT (runtime/comm/comm.h)
 *   starter  what starts ranks that use it; NULL: --ranks, or any launcher.  Messages send users to the first row with
 *            HOSTS and ANY, which has one
 *
 * ROW(name, id, asked, rank, size, local_rank, local_size, hosts): the variables by which a launcher tells a process
 * which rank of how many it is (NULL: it has none for this; hosts: the number of hosts); `id` is the communicator that
 * its ranks use, UNSAID for any. asked: batch jobs and the agents of other launchers have these variables, too, so
 * that they count only if --comm names a communicator that reaches several hosts, and no other launcher has numbered
 * the ranks. */
#ifndef SHARDC_COMMUNICATORS_H
#define SHARDC_COMMUNICATORS_H

#include <stdbool.h>
#include <stdint.h>

#define COMMUNICATORS(ROW) \
	ROW(SELF, "self", RANK, ANY, BUILT_IN(self), NULL) \
	ROW(SHM, "shm", HOST, ANY, BUILT_IN(shm), NULL) \
	ROW(MPI, "mpi", HOSTS, ANY, FOLDER(mpi), "mpirun") \
	ROW(NCCL, "nccl", HOSTS, CUDA, BUILT_IN(nccl), NULL)

#define LAUNCHERS(ROW) \
	ROW("mpirun", MPI, false, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", \
		"OMPI_COMM_WORLD_LOCAL_SIZE", NULL) \
	ROW("mpirun", MPI, false, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL) \
	ROW("srun", MPI, true, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "SLURM_STEP_NUM_NODES") \
	ROW("the launcher", UNSAID, false, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL)

typedef enum Communicator {
	COMM_UNSAID,
#define COMM_ID(id, ...) COMM_##id,
	COMMUNICATORS(COMM_ID)
	COMMUNICATOR_COUNT
} Communicator;

typedef enum CommReach { REACH_RANK, REACH_HOST, REACH_HOSTS } CommReach;
typedef struct CommInfo {
	const char *text;
	CommReach reach;
	bool cuda;           /* it moves memory of GPUs */
	const char *starter;
} CommInfo;
extern const CommInfo comm_info[COMMUNICATOR_COUNT];

/* The words of a choice among communicators, for base/options.def and runtime/options.def. */
#define COMM_WORD(id, text, ...) WORD(COMM_##id, text)
#define COMM_OR(id, text, ...) "|" text

/* The communicator of this text; COMM_UNSAID if there is none, or text is NULL. */
Communicator comm_named(const char *text);
/* The first that reaches `ranks` ranks on `hosts` hosts and moves memory of GPUs, or of the host. */
Communicator comm_fitting(int64_t ranks, int64_t hosts, bool cuda);
/* What helps where memory of one host does not reach all ranks: "start them with mpirun, with --comm=mpi". */
static inline const CommInfo *comm_of_hosts(void) { return &comm_info[comm_fitting(2, 2, false)]; }

#endif
