/* runtime/exec/cuda/graph.c: programs as CUDA graphs.  A program's first run is issued call by call, which makes all
 * connections and loads all kernels; its second run is captured, and from then on the graph is launched.
 *
 * Graphs never become invalid: what changes from step to step lies in memory at fixed addresses.  The only work of the
 * host that a replay leaves out is counting bytes, which streams_replay does.  Where the host has more to do in a
 * program (staged back end, --check-nan, --check-replicas), it is issued call by call every time; with --trace, which
 * takes the time of every op, until the trace is written; with --time-ops, whose graphs are of single ops.
 *
 * Kernels in a graph have the priority of the stream that they were captured from: those of collectives start before
 * what computing has waiting.
 *
 * A program begins and ends on the compute stream.  The streams of collectives fork from it and join it, and each copy
 * to or from memory of the host does by itself (copies.c); so programs run one after the other whether they are issued
 * or replayed, and a capture is complete. */
#include "runtime/exec/cuda/backend.h"
#include "runtime/exec/cuda/cuda.h"
#include "runtime/exec/cuda/graph.h"

struct CudaGraphs {
	struct ProgramGraph { bool warm; cudaGraphExec_t exec; } of[SIZES_MAX][PROGRAM_LAST + 1];
};

void graph_open(Rt *rt)
{
	rt->p->cuda->graphs = NEW(rt->p->arena, CudaGraphs);
}

void graph_close(Rt *rt)
{
	CudaGraphs *g = rt->p->cuda->graphs;
	for (int k = 0; k < SIZES_MAX; k++)
		for (int i = 0; i <= PROGRAM_LAST; i++)
			if (g->of[k][i].exec)
				cudaGraphExecDestroy(g->of[k][i].exec);
	rt->p->cuda->graphs = NULL;
}

static bool replays(const Rt *rt)
{
	const RtOptions *o = rt->p->options;
	bool asked = !o->text[OPT_cuda_graph] || o->cuda_graph;
	return asked && rt->p->cuda->backend->captures && !rt->model->n_checks && !o->check_replicas && !o->time_ops &&
		!rt->p->cuda->trace;
}

static void call(Rt *rt, Program program)
{
	const RtModel *m = rt->model;
	RtProgram alone = {.forward = m->forward, .backward = m->backward, .update = m->update};
	if (program == PROGRAM_EVAL) {
		m->eval(rt);
		return;
	}
	const RtProgram *p = program == PROGRAM_STEP ? &alone : &m->programs[program - PROGRAM_FIRST];
	p->forward(rt);
	p->backward(rt);
	p->update(rt);
}

static void issue(Rt *rt, Program program)
{
	streams_fork(rt);
	trace_program(rt, program);
	call(rt, program);
	streams_join(rt);
	trace_program_end(rt);
}

static cudaGraphExec_t capture(Rt *rt, Program program)
{
	cudaStream_t stream = rt->p->cuda->stream[CUDA_COMPUTE];
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	cuda_must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
	issue(rt, program);
	cuda_must(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
	cuda_must(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagUseNodePriority), "cudaGraphInstantiate");
	cuda_must(cudaGraphDestroy(graph), "cudaGraphDestroy");
	return exec;
}

void graph_run(Rt *rt, Program program)
{
	Cuda *c = rt->p->cuda;
	if (c->times) {
		op_times_program(rt);
		return;
	}
	struct ProgramGraph *g = &c->graphs->of[rt->p->size][program];
	if (!replays(rt) || !g->warm) {
		g->warm = true;
		issue(rt, program);
		return;
	}
	if (g->exec)
		streams_replay(rt);
	else
		g->exec = capture(rt, program);
	cuda_must(cudaGraphLaunch(g->exec, c->stream[CUDA_COMPUTE]), "cudaGraphLaunch");
}
