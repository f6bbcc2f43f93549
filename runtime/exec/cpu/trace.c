/* runtime/exec/cpu/trace.c: points of time on a CPU: a stamp is the time itself. */
#include <time.h>

#include "runtime/exec/private.h"

const bool trace_host_apart = false;

bool trace_stamps_open(Rt *rt, int64_t n, Diag *d)
{
	(void)rt, (void)n, (void)d;
	return true;
}

void trace_stamps_begin(Rt *rt)
{
	(void)rt;
}

void trace_stamps_end(Rt *rt)
{
	(void)rt;
}

void trace_stamps_close(Rt *rt)
{
	(void)rt;
}

int64_t trace_stamp(Rt *rt, int stream)
{
	(void)rt, (void)stream;
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t trace_ns(const Rt *rt, int64_t stamp)
{
	(void)rt;
	return stamp;
}
