/* base/communicators.c: the rows of communicators.h, by number, and which of them a run needs. */
#include <stddef.h>
#include <string.h>

#include "base/communicators.h"

const CommInfo comm_info[COMMUNICATOR_COUNT] = {
#define TARGET_ANY false
#define TARGET_CUDA true
#define INFO(id, text, reach, target, source, starter) [COMM_##id] = {text, REACH_##reach, TARGET_##target, starter},
	COMMUNICATORS(INFO)
};

Communicator comm_named(const char *text)
{
	for (Communicator c = COMM_UNSAID + 1; text && c < COMMUNICATOR_COUNT; c++)
		if (!strcmp(comm_info[c].text, text))
			return c;
	return COMM_UNSAID;
}

Communicator comm_fitting(int64_t ranks, int64_t hosts, bool cuda)
{
	CommReach needed = ranks == 1 ? REACH_RANK : hosts == 1 ? REACH_HOST : REACH_HOSTS;
	Communicator c = COMM_UNSAID + 1;
	while (c + 1 < COMMUNICATOR_COUNT && (comm_info[c].reach < needed || comm_info[c].cuda != cuda))
		c++;
	return c;
}
