/* base/collectives.h: the kinds of collectives (collectives.def) and the streams on which they run.  The constants
 * have the names that the tables of an emitted program use. */
#ifndef SHARDC_COLLECTIVES_H
#define SHARDC_COLLECTIVES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum RtStream {
#define STREAM(id, ...) RT_STREAM_##id,
#include "base/collectives.def"
	RT_STREAMS
} RtStream;

typedef enum RtCollectiveKind {
#define COLLECTIVE(id, ...) RT_##id,
#include "base/collectives.def"
	RT_COLLECTIVE_KINDS
} RtCollectiveKind;

/* What a collective does with a unit.  COMPLETE: it completes the unit's reduce by a sum across groups. */
typedef enum CollectiveAct { ACT_GATHER, ACT_REDUCE, ACT_COMPLETE, ACT_BROADCAST, ACT_TELL } CollectiveAct;

/* What a rank receives in a collective: parts of the unit, or the messages that ranks offer. */
typedef enum CollectiveBytes {
	BYTES_SHARDS, BYTES_GRADIENTS,            /* the other ranks' parts of a gathered or a reduced unit */
	BYTES_SUM_TO_ALL, BYTES_SUM_OVER_GROUPS, BYTES_SUM_TO_OWNER, /* pieces to be summed, then the sums */
	BYTES_FLATS_OF_OWNER,                     /* all trainable flats, except on the owner */
	BYTES_BUFFERS_OF_FIRST,                   /* rank 0's float buffers */
	BYTES_SCALES_OF_WEIGHTS,                  /* every other rank's largest magnitudes of its parts of them */
	BYTES_OPERANDS,                           /* every other rank's operands */
	BYTES_SCALARS                             /* every other rank's LAYOUT_SCALARS doubles */
} CollectiveBytes;

typedef struct CollectiveInfo {
	const char *id, *call, *text, *said;      /* "ALL_REDUCE_SHARDS", the columns of collectives.def */
	RtStream stream;
	CollectiveAct act;
	CollectiveBytes bytes;
} CollectiveInfo;
typedef struct StreamInfo { const char *id, *text, *carries; } StreamInfo;

extern const CollectiveInfo collective_info[RT_COLLECTIVE_KINDS];
extern const StreamInfo stream_info[RT_STREAMS];

/* all_reduce_moments: what a running variance is multiplied with over all ranks, of n elements of a channel on each.  A
 * program has multiplied it by n / (n-1) where it has more than one; 0: the variance stays biased. */
static inline double collective_unbiased(int64_t n, int ranks)
{
	double each = (double)n, all = each * ranks;
	return (n > 0 && all > 1 ? all / (all - 1) : 1) / (n > 1 ? each / (each - 1) : 1);
}

#ifdef __cplusplus
}
#endif

#endif
