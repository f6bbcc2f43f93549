/* tests/cudasim/fiber.cpp: kernels: grids, blocks, threads, barriers and operations of warps.
 *
 * The one idea: a fiber runs threads of a block one after the other as plain calls.  A thread that must wait keeps
 * its fiber, and the next fiber goes on with the threads that have not begun: a kernel without barriers never switches.
 * Blocks, warps and lanes run in orders that the seed chooses; a wait that can never end is an error that says who
 * waits where. */
#include "tests/cudasim/sim.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
constexpr size_t STACK = 256 << 10;
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
constexpr size_t STACK = 64 << 10;
#endif
constexpr int LANES = 32, MOST_THREADS = 1024;
constexpr size_t GUARD = 4096, SHARED_BY_DEFAULT = 48 << 10;

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

/* ---- switching ---- */

/* Saves what a call must preserve on this stack, leaves its address in *save, goes on at `to`. */
extern "C" void cudasim_switch(void **save, void *to);
__asm__(R"(
	.text
	.globl cudasim_switch
	.type cudasim_switch, @function
cudasim_switch:
	pushq %rbp
	pushq %rbx
	pushq %r12
	pushq %r13
	pushq %r14
	pushq %r15
	movq %rsp, (%rdi)
	movq %rsi, %rsp
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %rbx
	popq %rbp
	ret
	.size cudasim_switch, .-cudasim_switch
)");

namespace {

struct Fiber {
	void *sp;
	char *stack;     /* lowest address */
	size_t bytes;
	void *fake;      /* AddressSanitizer's */
	int thread;      /* the one that waits on it */
};

enum Wait { RUNS, AT_BARRIER, IN_WARP, ENDED };
struct Thread {
	Wait wait;
	Fiber *fiber;    /* while it waits */
	unsigned mask;   /* IN_WARP */
	SimWarpOp op;
	const char *name;
	void *mine;
};

struct Block {
	const char *name;
	const void *kernel, *args;
	SimThread call;
	int threads, begun, ended, at_barrier;
	bool backwards;  /* threads begin from the last */
	int thread;      /* the one that runs */
	Thread all[MOST_THREADS];
	unsigned in_warp[MOST_THREADS / LANES]; /* lanes that wait for others of their warp */
	int ready[MOST_THREADS], first_ready, n_ready; /* a ring: waits have ended */
};

Block block;
Fiber main_fiber, *running;
std::vector<Fiber *> idle; /* that run nothing */
alignas(256) unsigned char dynamic_shared[256 << 10];
size_t shared_now;
std::map<const void *, int> shared_allowed;

/* ---- fibers ---- */

void fiber_main();

Fiber *fiber_new()
{
	Fiber *f = new Fiber();
	f->bytes = STACK;
	char *at = (char *)mmap(NULL, STACK + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		-1, 0);
	if (at == MAP_FAILED || mprotect(at, GUARD, PROT_NONE))
		sim_die("no memory for the stack of a kernel's thread");
	f->stack = at + GUARD;
	void **top = (void **)(f->stack + STACK);
	*--top = NULL;                  /* as if fiber_main had been called: its frame is aligned */
	*--top = (void *)fiber_main;
	for (int i = 0; i < 6; i++)
		*--top = NULL;
	f->sp = top;
	return f;
}

/* AddressSanitizer wants to know of stacks; it tells where the main stack lies, which depends on the thread. */
#ifdef __SANITIZE_ADDRESS__
Fiber *left;
void begin_switch(Fiber *from, Fiber *to)
{
	left = from;
	__sanitizer_start_switch_fiber(&from->fake, to->stack, to->bytes);
}
void end_switch(Fiber *self)
{
	const void *stack;
	size_t bytes;
	__sanitizer_finish_switch_fiber(self->fake, &stack, &bytes);
	left->stack = (char *)stack;
	left->bytes = bytes;
}
#else
void begin_switch(Fiber *, Fiber *) {}
void end_switch(Fiber *) {}
#endif

void switch_to(Fiber *to)
{
	Fiber *from = running;
	running = to;
	begin_switch(from, to);
	cudasim_switch(&from->sp, to->sp);
	end_switch(from);
}

void set_thread(int t)
{
	block.thread = t;
	if ((unsigned)t < blockDim.x) {
		threadIdx = {(unsigned)t, 0, 0};
		return;
	}
	threadIdx.x = (unsigned)t % blockDim.x;
	threadIdx.y = (unsigned)t / blockDim.x % blockDim.y;
	threadIdx.z = (unsigned)t / blockDim.x / blockDim.y;
}

[[noreturn]] void die_deadlocked()
{
	std::string text;
	int shown = 0;
	for (int t = 0; t < block.threads && shown < 4; t++) {
		const Thread *x = &block.all[t];
		if (x->wait != IN_WARP)
			continue;
		char line[160];
		snprintf(line, sizeof line, "; thread %d waits in %s of lanes 0x%08x", t, x->name, x->mask);
		text += line;
		shown++;
	}
	sim_die("kernel %s, block (%u, %u, %u): its threads wait for ever: of %d, %d are at __syncthreads, "
		"%d have returned, %d wait for lanes of their warp%s", block.name, blockIdx.x, blockIdx.y, blockIdx.z,
		block.threads, block.at_barrier, block.ended, block.threads - block.at_barrier - block.ended, text.c_str());
}

/* Goes on with somebody else; returns when the thread that runs on this fiber may go on, or (an idle fiber) when
 * there are threads to begin. */
void give_way()
{
	if (block.n_ready) {
		int t = block.ready[block.first_ready];
		block.first_ready = (block.first_ready + 1) % MOST_THREADS;
		block.n_ready--;
		Fiber *f = block.all[t].fiber;
		block.all[t].wait = RUNS;
		f->thread = t;
		if (f != running)
			switch_to(f);
	} else if (block.begun < block.threads) {
		if (idle.empty())
			idle.push_back(fiber_new());
		Fiber *f = idle.back();
		idle.pop_back();
		switch_to(f);
	} else if (block.ended == block.threads) {
		switch_to(&main_fiber);
	} else {
		die_deadlocked();
	}
}

void run_threads()
{
	while (block.begun < block.threads && !block.n_ready) {
		int i = block.begun++;
		int t = block.backwards ? block.threads - 1 - i : i;
		set_thread(t);
		block.all[t].wait = RUNS;
		block.call(block.kernel, block.args);
		block.all[block.thread].wait = ENDED;
		block.ended++;
	}
}

void fiber_main()
{
	end_switch(running);
	for (;;) {
		run_threads();
		idle.push_back(running);
		give_way();
	}
}

void wait_as(Wait wait)
{
	Thread *t = &block.all[block.thread];
	int id = block.thread;
	t->wait = wait;
	t->fiber = running;
	give_way();
	set_thread(id);
}

void make_ready(int t)
{
	block.ready[(block.first_ready + block.n_ready++) % MOST_THREADS] = t;
}

void run_block()
{
	block.begun = block.ended = block.at_barrier = 0;
	block.first_ready = block.n_ready = 0;
	block.backwards = sim_random(2);
	main_fiber.thread = -1;
	running = &main_fiber;
	give_way();
}

struct Launch {
	std::string name;
	dim3 grid, block;
	size_t shared;
	const void *kernel;
	SimThread call;
	std::vector<char> args;
};

/* Under AddressSanitizer what lies behind a block's dynamic shared memory cannot be touched. */
void open_shared(size_t bytes)
{
	ASAN_UNPOISON_MEMORY_REGION(dynamic_shared, bytes);
	ASAN_POISON_MEMORY_REGION(dynamic_shared + bytes, sizeof dynamic_shared - bytes);
	shared_now = bytes;
}

/* CUDASIM_LAST=N: of each grid the last N-th of its blocks runs, and no other, so that a test of a large grid is quick.
 * It is read at each launch: a test sets it for a while. */
uint64_t first_block(uint64_t n)
{
	const char *text = getenv("CUDASIM_LAST");
	long long part = text ? atoll(text) : 1;
	return part > 1 ? n - n / (uint64_t)part : 0;
}

void run_grid(const Launch &l)
{
	gridDim = l.grid;
	blockDim = l.block;
	block.name = l.name.c_str();
	block.kernel = l.kernel;
	block.args = l.args.data();
	block.call = l.call;
	block.threads = (int)(l.block.x * l.block.y * l.block.z);
	open_shared(l.shared);
	uint64_t n = (uint64_t)l.grid.x * l.grid.y * l.grid.z, first = first_block(n);
	uint64_t begin = sim_random((unsigned)n), backwards = sim_random(2);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t b = ((backwards ? n - 1 - i : i) + begin) % n;
		if (b < first)
			continue;
		blockIdx.x = (unsigned)(b % l.grid.x);
		blockIdx.y = (unsigned)(b / l.grid.x % l.grid.y);
		blockIdx.z = (unsigned)(b / l.grid.x / l.grid.y);
		memset(dynamic_shared, 0xFF, l.shared); /* NaN */
		run_block();
	}
}

} // namespace

/* ---- what kernels call ---- */

int sim_lane(void) { return block.thread % LANES; }

void *sim_shared(void)
{
	if (!shared_now)
		sim_die("kernel %s uses dynamic shared memory and was launched with none", block.name);
	return dynamic_shared;
}

void sim_barrier(void)
{
	if (++block.at_barrier < block.threads) {
		wait_as(AT_BARRIER);
		return;
	}
	block.at_barrier = 0;
	/* Warps go on in turn from one that the seed chooses. */
	int warps = (block.threads + LANES - 1) / LANES, first = (int)sim_random((unsigned)warps), self = block.thread;
	for (int w = 0; w < warps; w++)
		for (int l = 0; l < LANES; l++) {
			int t = (w + first) % warps * LANES + l;
			if (t < block.threads && t != self)
				make_ready(t);
		}
}

void sim_warp(unsigned mask, void *mine, SimWarpOp op, const char *name)
{
	int self = block.thread, base = self / LANES * LANES;
	Thread *t = &block.all[self];
	if (!(mask >> (self - base) & 1))
		sim_die("kernel %s: thread %d calls %s with a mask without its own lane: 0x%08x", block.name, self, name, mask);
	if (block.threads - base < LANES && mask >> (block.threads - base))
		sim_die("kernel %s: %s with lanes 0x%08x in a warp of %d", block.name, name, mask, block.threads - base);
	t->mask = mask;
	t->op = op;
	t->mine = mine;
	t->name = name;
	unsigned *waiting = &block.in_warp[self / LANES];
	if (mask & ~(*waiting | 1u << (self - base))) {
		*waiting |= 1u << (self - base);
		wait_as(IN_WARP);
		return;
	}
	void *lane[LANES] = {};
	for (int l = 0; l < LANES; l++) {
		if (!(mask >> l & 1))
			continue;
		Thread *x = &block.all[base + l];
		if (base + l != self && (x->mask != mask || x->op != op)) {
			*waiting |= 1u << (self - base);
			wait_as(IN_WARP);
			return;
		}
		lane[l] = x->mine;
	}
	op(lane, mask);
	*waiting &= ~mask;
	for (int l = 0; l < LANES; l++)
		if ((mask >> l & 1) && base + l != self) {
			block.all[base + l].wait = RUNS;
			make_ready(base + l);
		}
}

/* ---- launches ---- */

/* By the table of compute capabilities in NVIDIA's programming guide. */
size_t sim_most_shared(void)
{
	switch (sim_arch()) {
	case 75: return 64 << 10;
	case 80: case 87: return 163 << 10;
	case 90: case 100: case 103: case 110: return 227 << 10;
	}
	return 99 << 10; /* of 8.6, 8.9 and 12.x */
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
	sim_enter("cudaFuncSetAttribute");
	if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
		if (value < 0 || (size_t)value > sim_most_shared())
			return sim_error(cudaErrorInvalidValue);
		shared_allowed[kernel] = value;
	}
	return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *kernel)
{
	sim_enter("cudaFuncGetAttributes");
	auto it = shared_allowed.find(kernel);
	*a = {};
	a->maxThreadsPerBlock = MOST_THREADS;
	a->ptxVersion = a->binaryVersion = (int)sim_setting("CUDASIM_CODE", sim_arch());
	if (a->binaryVersion / 10 != sim_arch() / 10)
		return sim_error(cudaErrorNoKernelImageForDevice);
	a->maxDynamicSharedSizeBytes = it == shared_allowed.end() ? (int)SHARED_BY_DEFAULT : it->second;
	return cudaSuccess;
}

cudaError_t sim_launch_raw(const char *name, dim3 grid, dim3 b, size_t shared, cudaStream_t stream, const void *kernel,
	SimThread thread, const void *args, size_t bytes)
{
	sim_enter(name);
	auto it = shared_allowed.find(kernel);
	size_t allowed = it == shared_allowed.end() ? SHARED_BY_DEFAULT : (size_t)it->second;
	uint64_t threads = (uint64_t)b.x * b.y * b.z;
	if (!threads || threads > MOST_THREADS || b.z > 64 || !grid.x || !grid.y || !grid.z || grid.x > 0x7FFFFFFF ||
		grid.y > 65535 || grid.z > 65535)
		return sim_error(cudaErrorInvalidConfiguration);
	if (shared > allowed)
		return sim_error(cudaErrorInvalidValue);
	if (sim_setting("CUDASIM_CODE", sim_arch()) / 10 != sim_arch() / 10)
		return sim_error(cudaErrorNoKernelImageForDevice);
	auto l = std::make_shared<Launch>();
	*l = {name, grid, b, shared, kernel, thread, std::vector<char>((const char *)args, (const char *)args + bytes)};
	sim_issue_kernel(stream, name, [l] { run_grid(*l); return true; });
	return cudaSuccess;
}
