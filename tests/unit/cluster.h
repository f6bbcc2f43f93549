/* tests/unit/cluster.h: several ranks of one small model as threads, which read each other's memory; layout, slices and
 * files are those of a real run.  The model has a unit of every strategy; tests can shift which unit has which. */
#ifndef SHARDC_TEST_CLUSTER_H
#define SHARDC_TEST_CLUSTER_H

#include <pthread.h>

#include "runtime/comm/private.h"
#include "runtime/store/private.h"

enum { MOST_RANKS = 6, N_UNITS = 6, N_TENSORS = 17, BN_MEAN = 12, BN_WIDE, BN_COUNT };

typedef struct Rank Rank;
typedef struct Cluster {
	LayoutUnit unit[N_UNITS];
	RtTensor tensor[N_TENSORS];
	RtModel model;
	RtFile file;
	Rank *rank;
	int world;
	Arena *a;
	pthread_barrier_t barrier;
	const void *source[MOST_RANKS];
} Cluster;

/* What a rank is told to do, and what came of it. */
struct Rank {
	Cluster *cluster;
	Rt rt;
	struct RtPrivate p;
	RtOptions o;
	Diag d;
	Comm comm;
	RankProgress seen;
	RtModel model;
	RtFile file;
	RtTensor tensor[N_TENSORS];
	SaveSet checkpoint;
	char *said;
	size_t n_said;
	const char *dir; /* of a resume */
	bool from_checkpoint, ok;
	char mailbox[COMM_MAILBOX];
};

/* ---- of clusters that are made from now on ---- */

extern CheckpointKind cluster_save_kind;
extern bool cluster_narrow_buffers; /* bn.mean is stored in bf16 */
extern bool cluster_in_halves;      /* units with an owner have masters, others are gathered in bf16 */

/* Unit u has strategy u + shift.  Writes weights.bin. */
Cluster *cluster_new(int world, int shard_size, int shift);
void cluster_free(Cluster *c);

/* ---- what ranks do ---- */

/* Every rank runs it; whether all, or none, say that it went well. */
bool cluster_all(Cluster *c, void *(*run)(void *rank), bool ok);
void *cluster_load(void *rank);
void *cluster_save(void *rank);
void *cluster_resume(void *rank); /* from its dir */
void cluster_said(const Cluster *c, const char *text); /* by one rank, and the others said nothing */

/* ---- contents ---- */

void cluster_set_step(Cluster *c, int64_t step);
void cluster_put_states(Cluster *c); /* of the optimizer */
double cluster_wanted(int tensor, int64_t k);     /* element k */
double cluster_get(const char *at, DType t);
int cluster_wrong(const Cluster *c, bool states); /* how many elements are not as they should be, on all ranks */

#endif
