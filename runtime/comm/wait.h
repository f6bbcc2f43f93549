/* runtime/comm/wait.h: waiting for a counter that another thread or process moves on. */
#ifndef SHARDC_WAIT_H
#define SHARDC_WAIT_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint32_t Counter;

/* Returns when *c has reached `target` (differences wrap): spins `spins` times, then sleeps. */
void wait_reach(Counter *c, uint32_t target, int spins);
/* Adds 1, publishing what was written before, and wakes who sleeps on it. */
void wait_post(Counter *c);
/* Spins worth while: few when `threads` want more cores than this process may use. */
int wait_spins(int threads);

#endif
