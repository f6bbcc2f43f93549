/* base/collectives.c: the rows of collectives.def, by number. */
#include "base/collectives.h"

const CollectiveInfo collective_info[RT_COLLECTIVE_KINDS] = {
#define COLLECTIVE(id, op, call, stream, act, bytes, text, said) \
	{#id, #call, text, said, RT_STREAM_##stream, ACT_##act, BYTES_##bytes},
#include "base/collectives.def"
};

const StreamInfo stream_info[RT_STREAMS] = {
#define STREAM(id, text, carries) {#id, text, carries},
#include "base/collectives.def"
};
