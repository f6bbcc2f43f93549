/* runtime/exec/cuda/graph.h: programs as CUDA graphs. */
#ifndef SHARDC_RUNTIME_CUDA_GRAPH_H
#define SHARDC_RUNTIME_CUDA_GRAPH_H

#include "runtime/exec/exec.h"

void graph_open(Rt *rt);
void graph_close(Rt *rt);
/* Runs a program (forward, backward and update of a micro-batch, or an evaluation) after what the compute stream has
 * already. */
void graph_run(Rt *rt, Program program);

#endif
