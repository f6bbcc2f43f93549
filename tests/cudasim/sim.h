/* tests/cudasim/sim.h: the inside of the emulation, for the emulated libraries (blas.cpp, dnn.cpp, nccl.cpp).
 *
 * The one idea: whatever is issued to a stream becomes a node of one DAG (it comes after the stream's last node and
 * after the events that the stream waits for).  Nodes run when something waits, in an order that CUDASIM_ORDER and
 * CUDASIM_SEED choose among all that the DAG allows.  A capture keeps nodes; a launch of a graph issues copies. */
#ifndef CUDASIM_SIM_H
#define CUDASIM_SIM_H

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

/* Runs when all that comes before has finished; true: finished.  false: it waits for other processes, and is called
 * again until it is true; meanwhile other nodes run. */
typedef std::function<bool()> SimWork;

/* exclusive: between its first call and its end no other exclusive node is called, as collectives hold a device. */
void sim_issue(cudaStream_t stream, const std::string &name, SimWork work, bool exclusive = false);

/* The same for a kernel.  CUDASIM_LAUNCHES=FILE: at the end each name is added to the file, behind how often it was
 * issued, and not for a capture.  CUDASIM_IDLE=1: no kernel runs and device memory is not filled, so that a program of
 * any size shows what it issues. */
void sim_issue_kernel(cudaStream_t stream, const std::string &name, SimWork work);

/* Ends the process with a message: what the program did is an error on a device. */
[[noreturn]] void sim_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Dies unless [p, p + bytes) lies in memory that the device can reach; what: "cublasLtMatmul: A". */
void sim_must_reach(const void *p, size_t bytes, const char *what);

/* While one of these lives, no other thread runs nodes, and this one may read device memory. */
struct SimLock {
	SimLock();
	~SimLock();
};

/* Runs whatever is ready, once, and says whether something was: for calls that poll. */
bool sim_progress(void);

/* One number in [0, n) of the seeded sequence, which differs between devices, and so between ranks. */
unsigned sim_random(unsigned n);

/* ---- between the files of the emulation ---- */

/* memory.cpp */
void sim_memory_begin(void);                   /* nodes begin to run: device memory may be touched */
void sim_memory_end(void);
bool sim_pinned(const void *p, size_t bytes);  /* registered, managed or device memory */
bool sim_device_memory(const void *p, size_t bytes); /* device or managed memory */
/* device.cpp */
void sim_enter(const char *call);              /* every call of the API begins so */
cudaError_t sim_error(cudaError_t e);          /* remembers it */
int sim_arch(void);                            /* 90 */
int sim_device(void);                          /* that this process has chosen last */
long long sim_setting(const char *name, long long otherwise);
/* stream.cpp */
void sim_not_capturing(const char *call);      /* dies if a stream is being captured */
void sim_take_time(void);                      /* the next event is later than its number says */
void sim_finish_all(void);                     /* until nothing is left to run */
/* fiber.cpp */
size_t sim_most_shared(void);                  /* per block */

#endif
