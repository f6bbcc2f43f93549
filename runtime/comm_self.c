/* runtime/comm_self.c: the communicator of one rank: every collective is complete at once.
 *
 * The one idea: at one shard a gathered flat is the shard and a flat gradient is the reduced one, so
 * nothing is copied and nothing is waited for; the calls stay in the program as its schedule. */
#include "runtime/internal.h"

void rt_all_gather(Rt *rt, int seq) { (void)rt, (void)seq; }
void rt_wait(Rt *rt, int seq) { (void)rt, (void)seq; }
void rt_reshard(Rt *rt, int unit) { (void)rt, (void)unit; }
void rt_reduce_scatter(Rt *rt, int seq) { (void)rt, (void)seq; }
void rt_all_reduce(Rt *rt, int seq) { (void)rt, (void)seq; }
void rt_reduce(Rt *rt, int seq) { (void)rt, (void)seq; }
void rt_broadcast(Rt *rt, int seq) { (void)rt, (void)seq; }
void rt_all_reduce_scalars(Rt *rt, int seq) { (void)rt, (void)seq; }
