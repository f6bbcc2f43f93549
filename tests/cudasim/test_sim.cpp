/* tests/cudasim/test_sim.cpp: the emulation itself: kernels, orders, events, graphs, and errors that it must find.
 *
 * usage: test_sim */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cudnn.h>
#include <nccl.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

static int failures;

static void check(bool ok, const char *what)
{
	if (!ok)
		fprintf(stderr, "test_sim: failed: %s\n", what);
	failures += !ok;
}

static void launched(cudaError_t e, const char *kernel) { check(e == cudaSuccess, kernel); }

template <class T> static T *managed(int n)
{
	T *p;
	check(cudaMallocManaged(&p, (size_t)n * sizeof(T)) == cudaSuccess, "cudaMallocManaged");
	return p;
}

static cudaStream_t new_stream(void)
{
	cudaStream_t s;
	check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess, "cudaStreamCreateWithFlags");
	return s;
}

/* ---- kernels ---- */

__global__ void numbers(int *y)
{
	int block = (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
	int thread = (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
	int threads = (int)(blockDim.x * blockDim.y * blockDim.z);
	y[block * threads + thread] += block * threads + thread;
}

template <class T> __global__ void warp_sums(T *y)
{
	T x = (T)threadIdx.x, sum = x;
	for (int d = 16; d > 0; d /= 2)
		sum += __shfl_xor_sync(0xFFFFFFFFu, sum, d);
	T down = __shfl_down_sync(0xFFFFFFFFu, x, 3), up = __shfl_up_sync(0xFFFFFFFFu, x, 3, 8);
	T first = __shfl_sync(0xFFFFFFFFu, x, 0, 16);
	y[4 * threadIdx.x] = sum;
	y[4 * threadIdx.x + 1] = down;
	y[4 * threadIdx.x + 2] = up;
	y[4 * threadIdx.x + 3] = first;
}

__global__ void votes(unsigned *y)
{
	unsigned odd = __ballot_sync(0xFFFFFFFFu, threadIdx.x & 1);
	y[threadIdx.x] = odd + (unsigned)__any_sync(0xFFFFFFFFu, threadIdx.x == 40);
	y[threadIdx.x] += 2 * (unsigned)__all_sync(0xFFFFFFFFu, 1);
	if (threadIdx.x % 32 < 8) /* a part of a warp */
		y[threadIdx.x] ^= __ballot_sync(0xFFu, 1);
	__syncwarp();
}

/* Every thread reads what every other one wrote. */
__global__ void rotate(int *y, int rounds)
{
	__shared__ int at[256];
	SHARED(int, next);
	at[threadIdx.x] = (int)threadIdx.x;
	for (int i = 0; i < rounds; i++) {
		__syncthreads();
		next[threadIdx.x] = at[(threadIdx.x + 1) % blockDim.x];
		__syncthreads();
		at[threadIdx.x] = next[threadIdx.x];
	}
	y[blockIdx.x * blockDim.x + threadIdx.x] = at[threadIdx.x];
}

static void test_kernels(void)
{
	cudaStream_t s = new_stream();
	int *y = managed<int>(2 * 3 * 2 * 64);
	memset(y, 0, 2 * 3 * 2 * 64 * sizeof *y);
	LAUNCH(numbers, dim3(2, 3, 2), dim3(4, 8, 2), 0, s, y);
	cudaStreamSynchronize(s);
	bool ok = true;
	for (int i = 0; i < 2 * 3 * 2 * 64; i++)
		ok = ok && y[i] == i;
	check(ok, "every thread of every block runs once");
	double *d = managed<double>(256);
	unsigned *u = managed<unsigned>(64);
	LAUNCH((warp_sums<double>), 1, 64, 0, s, d);
	LAUNCH(votes, 1, 64, 0, s, u);
	LAUNCH(rotate, 3, 256, 256 * sizeof(int), s, y, 70);
	cudaStreamSynchronize(s);
	ok = true;
	for (int i = 0; i < 64; i++) {
		int lane = i % 32;
		ok = ok && d[4 * i] == (i < 32 ? 496 : 1520) && d[4 * i + 1] == (lane < 29 ? i + 3 : i);
		ok = ok && d[4 * i + 2] == (lane % 8 >= 3 ? i - 3 : i) && d[4 * i + 3] == i / 16 * 16;
	}
	check(ok, "shuffles");
	ok = true;
	for (int i = 0; i < 64; i++)
		ok = ok && u[i] == ((0xAAAAAAAAu + (i >= 32) + 2) ^ (i % 32 < 8 ? 0xFF : 0));
	check(ok, "votes");
	ok = true;
	for (int i = 0; i < 3 * 256; i++)
		ok = ok && y[i] == (i + 70) % 256;
	check(ok, "barriers and shared memory");
}

static void test_halves(void)
{
	bool ok = true;
	for (unsigned i = 0; i < 65536; i++) {
		float f = __half2float(__ushort_as_half((unsigned short)i));
		float b = __bfloat162float(__ushort_as_bfloat16((unsigned short)i));
		ok = ok && (f != f || __half_as_ushort(__float2half_rn(f)) == i);
		ok = ok && (b != b || __bfloat16_as_ushort(__float2bfloat16_rn(b)) == i);
	}
	check(ok, "halves keep their bits");
	check(__half_as_ushort(__float2half_rn(65520)) == 0x7C00 && __half_as_ushort(__float2half_rn(1e-9f)) == 0 &&
		__bfloat16_as_ushort(__float2bfloat16_rn(1 + 0x1p-8f)) == 0x3F80 &&
		__bfloat16_as_ushort(__float2bfloat16_rn(1 + 0x3p-8f)) == 0x3F82, "halves are rounded to nearest even");
}

/* ---- streams ---- */

__global__ void append(int *list, int x) { list[++list[0]] = x; }

/* What three streams that know nothing of each other append, after `issue` gave them work. */
static std::vector<int> order_of(int *list)
{
	cudaStream_t s[3] = {new_stream(), new_stream(), new_stream()};
	list[0] = 0;
	for (int i = 0; i < 8; i++)
		for (int k = 0; k < 3; k++)
			LAUNCH(append, 1, 1, 0, s[k], list, 100 * k + i);
	cudaDeviceSynchronize();
	return std::vector<int>(list + 1, list + 1 + list[0]);
}

static void test_orders(void)
{
	int *list = managed<int>(64), changes = 0;
	bool ok = true;
	std::vector<int> first = order_of(list);
	for (int i = 0; i < 20; i++) {
		std::vector<int> now = order_of(list);
		int next[3] = {};
		changes += now != first;
		for (int x : now)
			ok = ok && x % 100 == next[x / 100]++;
		ok = ok && now.size() == 24;
	}
	check(ok, "a stream's kernels run in order, and all of them");
	check(changes >= 15, "streams run in different orders");
}

/* Two streams get work in turn, a graph if `flags` are given: what is urgent runs first, and each in its order. */
static void run_urgent(const unsigned long long *flags)
{
	int *list = managed<int>(64), least, greatest;
	cudaStream_t s[2], head = new_stream();
	cudaEvent_t fork, join;
	cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
	cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
	cudaDeviceGetStreamPriorityRange(&least, &greatest);
	cudaStreamCreateWithPriority(&s[0], cudaStreamNonBlocking, least);
	cudaStreamCreateWithPriority(&s[1], cudaStreamNonBlocking, greatest);
	list[0] = 0;
	if (flags)
		cudaStreamBeginCapture(head, cudaStreamCaptureModeGlobal);
	cudaEventRecord(fork, head);
	for (int k = 0; k < 2; k++)
		cudaStreamWaitEvent(s[k], fork);
	for (int i = 0; i < 16; i++)
		LAUNCH(append, 1, 1, 0, s[i % 2], list, i);
	for (int k = 0; k < 2; k++) {
		cudaEventRecord(join, s[k]);
		cudaStreamWaitEvent(head, join);
	}
	if (flags) {
		cudaGraph_t g;
		cudaGraphExec_t exec;
		cudaStreamEndCapture(head, &g);
		cudaGraphInstantiate(&exec, g, *flags);
		cudaGraphLaunch(exec, head);
	}
	cudaStreamSynchronize(head);
	bool ok = list[0] == 16;
	for (int i = 0; i < 16; i++)
		ok = ok && list[1 + i] == (i < 8 ? 2 * i + 1 : 2 * (i - 8));
	fprintf(stderr, "ran %s\n", ok ? "as it should" : "in another order");
	_exit(1);
}

static void test_events(void)
{
	int *list = managed<int>(64);
	for (int round = 0; round < 20; round++) {
		cudaStream_t a = new_stream(), b = new_stream();
		cudaEvent_t e;
		cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
		list[0] = 0;
		LAUNCH(append, 1, 1, 0, a, list, 1);
		cudaEventRecord(e, a);
		cudaStreamWaitEvent(b, e);
		LAUNCH(append, 1, 1, 0, b, list, 2);
		cudaStreamSynchronize(b);
		check(list[0] == 2 && list[1] == 1 && list[2] == 2, "an event orders streams");
		LAUNCH(append, 1, 1, 0, a, list, 3);
		cudaEventRecord(e, a);
		while (cudaEventQuery(e) == cudaErrorNotReady) {}
		check(list[0] == 3 && list[3] == 3, "an event is polled until what it stands for is done");
		cudaEventDestroy(e);
		cudaStreamDestroy(a);
		cudaStreamDestroy(b);
	}
}

/* ---- graphs ---- */

__global__ void add(float *y, const float *x, int n)
{
	for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n; i += (int)(gridDim.x * blockDim.x))
		y[i] = y[i] * 0.5f + x[i];
}

enum { N = 1000 };

/* y gets x through two streams that fork from a and join it again. */
static void diamond(cudaStream_t a, cudaStream_t b, cudaEvent_t fork, cudaEvent_t join, float *y, float *const *x,
	const float *host)
{
	cudaMemcpyAsync(x[0], host, N * sizeof(float), cudaMemcpyHostToDevice, a);
	cudaEventRecord(fork, a);
	cudaStreamWaitEvent(b, fork);
	LAUNCH(add, 4, 64, 0, b, x[1], (const float *)x[0], N);
	LAUNCH(add, 4, 64, 0, a, x[2], (const float *)x[0], N);
	cudaEventRecord(join, b);
	cudaStreamWaitEvent(a, join);
	LAUNCH(add, 4, 64, 0, a, y, (const float *)x[1], N);
	LAUNCH(add, 4, 64, 0, a, y, (const float *)x[2], N);
}

/* A graph of n copies, each behind the one before it. */
static cudaGraph_t copies_of(cudaGraph_t one, int n)
{
	cudaGraph_t all;
	cudaGraphNode_t last = NULL;
	cudaGraphCreate(&all, 0);
	for (int i = 0; i < n; i++) {
		cudaGraphNode_t before = last;
		cudaGraphAddChildGraphNode(&last, all, i ? &before : NULL, i > 0, one);
	}
	return all;
}

static std::vector<float> run_diamonds(bool graph, int times)
{
	cudaStream_t a = new_stream(), b = new_stream();
	cudaEvent_t fork, join;
	cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
	cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
	float *y = managed<float>(N), *x[3], *host;
	cudaHostAlloc(&host, N * sizeof(float), cudaHostAllocDefault);
	memset(y, 0, N * sizeof(float));
	for (int i = 0; i < 3; i++) {
		cudaMalloc(&x[i], N * sizeof(float));
		cudaMemsetAsync(x[i], 0, N * sizeof(float), a);
	}
	cudaGraph_t g = NULL;
	cudaGraphExec_t exec = NULL;
	if (graph) {
		cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal);
		diamond(a, b, fork, join, y, x, host);
		cudaStreamEndCapture(a, &g);
		cudaGraph_t all = times > 1 ? copies_of(g, times) : g;
		cudaGraphInstantiate(&exec, all, 0);
		if (all != g)
			cudaGraphDestroy(all);
		cudaGraphDestroy(g);
	}
	for (int round = 0; round < 10; round++) {
		cudaStreamSynchronize(a);
		for (int i = 0; i < N; i++)
			host[i] = (float)((round * 31 + i * 7) % 100);
		if (graph)
			cudaGraphLaunch(exec, a);
		for (int i = 0; !graph && i < times; i++)
			diamond(a, b, fork, join, y, x, host);
	}
	cudaStreamSynchronize(a);
	std::vector<float> result(y, y + N);
	for (int i = 0; i < 3; i++)
		cudaFree(x[i]);
	cudaFreeHost(host);
	cudaFree(y);
	return result;
}

static void test_graphs(void)
{
	std::vector<float> eager = run_diamonds(false, 1), thrice = run_diamonds(false, 3);
	check(eager[1] != 0 && eager != thrice, "there is something to compare");
	for (int i = 0; i < 10; i++) {
		check(run_diamonds(true, 1) == eager, "a graph gives what its calls give");
		check(run_diamonds(true, 3) == thrice, "a graph of copies gives what its calls give, one after the other");
	}
}

/* ---- errors ---- */

__global__ void half_way(int *y)
{
	if (threadIdx.x < 16)
		return;
	__syncthreads();
	y[0] = 1;
}

__global__ void wrong_lanes(int *y) { y[0] = __shfl_sync(threadIdx.x < 16 ? 0xFFFFFFFFu : 0xFFFF0000u, 1, 0); }

/* f in a process of its own must abort with a message that holds text. */
static void dies(const char *text, const std::function<void()> &f)
{
	int end[2];
	char got[4096] = {};
	size_t n = 0;
	check(!pipe(end), "pipe");
	fflush(NULL);
	pid_t pid = fork();
	if (!pid) {
		dup2(end[1], 2);
		f();
		_exit(0);
	}
	close(end[1]);
	for (ssize_t k; n < sizeof got - 1 && (k = read(end[0], got + n, sizeof got - 1 - n)) > 0;)
		n += (size_t)k;
	close(end[0]);
	int status = 0;
	waitpid(pid, &status, 0);
	std::string what = std::string("an error with \"") + text + "\", not: " + got;
	check(!(WIFEXITED(status) && !WEXITSTATUS(status)) && strstr(got, text), what.c_str());
}

static void test_kernel_errors(void)
{
	dies("block (0, 0, 0): its threads wait for ever: of 64, 48 are at __syncthreads, 16 have returned",
		[] {
			cudaStream_t s = new_stream();
			LAUNCH(half_way, 1, 64, 0, s, managed<int>(1));
			cudaStreamSynchronize(s);
		});
	dies("waits in __shfl_sync of lanes 0xffffffff", [] {
		cudaStream_t s = new_stream();
		LAUNCH(wrong_lanes, 1, 32, 0, s, managed<int>(1));
		cudaStreamSynchronize(s);
	});
}

static void test_stream_errors(void)
{
	dies("cudaStreamSynchronize of a stream that is being captured", [] {
		cudaStream_t s = new_stream();
		cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
		cudaStreamSynchronize(s);
	});
	dies("which the first one never joined", [] {
		cudaStream_t a = new_stream(), b = new_stream();
		cudaEvent_t e;
		cudaGraph_t g;
		int *list = managed<int>(4);
		cudaEventCreate(&e);
		cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal);
		cudaEventRecord(e, a);
		cudaStreamWaitEvent(b, e);
		LAUNCH(append, 1, 1, 0, b, list, 1);
		cudaStreamEndCapture(a, &g);
	});
	dies("an event that was never recorded", [] {
		cudaEvent_t e;
		cudaEventCreate(&e);
		cudaStreamWaitEvent(new_stream(), e);
	});
}

static void test_memory_errors(void)
{
	dies("its source is not within pinned memory", [] {
		float host[4] = {}, *p;
		cudaMalloc(&p, sizeof host);
		cudaMemcpyAsync(p, host, sizeof host, cudaMemcpyHostToDevice, new_stream());
	});
	dies("its destination is not within device memory", [] {
		float *p, host[4] = {};
		cudaMalloc(&p, 8);
		cudaMemcpy(p, host, sizeof host, cudaMemcpyHostToDevice);
	});
	dies("cudaMalloc while a stream is being captured", [] {
		float *p;
		cudaStreamBeginCapture(new_stream(), cudaStreamCaptureModeGlobal);
		cudaMalloc(&p, 8);
	});
	dies("kernel append is given 0x", [] {
		int list[4] = {};
		LAUNCH(append, 1, 1, 0, new_stream(), list, 1);
	});
#ifndef __SANITIZE_ADDRESS__
	dies("the host touches device memory", [] {
		volatile float *p;
		cudaMalloc((void **)&p, 8);
		p[0] = 1;
	});
#endif
}

#ifdef __SANITIZE_ADDRESS__
__global__ void fill(char *y, int begin, int end)
{
	for (int i = begin; i < end; i++)
		y[i] = 1;
}

__global__ void fill_shared(int n, bool dynamic)
{
	__shared__ char fixed[100];
	SHARED(char, asked);
	volatile char *y = dynamic ? asked : fixed;
	for (int i = 0; i < n; i++)
		y[i] = 1;
}

template <class... P, class... A> static void launch_and_wait(void (*kernel)(P...), size_t shared, A... a)
{
	cudaStream_t s = new_stream();
	LAUNCH(kernel, 1, 1, shared, s, a...);
	cudaStreamSynchronize(s);
}

/* Memory that kernels may not touch, to the byte. */
static void test_bounds(void)
{
	auto of = [](int begin, int end) {
		char *p;
		cudaMalloc(&p, 1000);
		launch_and_wait(fill, 0, p, begin, end);
		fprintf(stderr, "ok: nothing reported");
		_exit(1);
	};
	dies("ok: nothing reported", [of] { of(0, 1000); });
	dies("AddressSanitizer: ", [of] { of(0, 1001); });
	dies("AddressSanitizer: ", [of] { of(-1, 1000); });
	dies("AddressSanitizer: ", [] { launch_and_wait(fill, 0, managed<char>(77), 0, 78); });
	dies("where no memory is that the device can reach", [] {
		char *p = managed<char>(8);
		cudaFree(p);
		launch_and_wait(fill, 0, p, 0, 1);
	});
	dies("AddressSanitizer: ", [] { launch_and_wait(fill_shared, 64, 65, true); });
	dies("AddressSanitizer: global-buffer-overflow", [] { launch_and_wait(fill_shared, 64, 101, false); });
}
#else
static void test_bounds(void) {}
#endif

static void test_settings(void)
{
	dies("ok: no CUDA-capable device", [] {
		setenv("CUDASIM_DEVICES", "0", 1);
		int n;
		fprintf(stderr, "ok: %s", cudaGetErrorString(cudaGetDeviceCount(&n)));
		_exit(1);
	});
	dies("ok: out of memory", [] {
		setenv("CUDASIM_MEMORY", "1000", 1);
		void *p;
		cudaMalloc(&p, 600);
		fprintf(stderr, "ok: %s", cudaGetErrorString(cudaMalloc(&p, 600)));
		_exit(1);
	});
}

/* Two ranks on one device; says on stderr what rank 0 learns. */
static void connect_two(const char *host0, const char *host1)
{
	ncclUniqueId id;
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclComm_t comm;
	ncclGetUniqueId(&id);
	pid_t other = fork();
	int rank = !other;
	setenv("NCCL_HOSTID", rank ? host1 : host0, 1);
	ncclResult_t r = ncclCommInitRankConfig(&comm, 2, id, rank, &config);
	if (rank)
		for (;;)
			pause();
	fprintf(stderr, "%s: %s", ncclGetErrorString(r), ncclGetLastError(comm));
	kill(other, SIGKILL);
	_exit(1);
}

static void test_duplicates(void)
{
	dies("invalid usage: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0",
		[] { connect_two("a", "a"); });
	dies("no error", [] { connect_two("a", "b"); });
}

/* Asks for errors of a communicator from a thread that did not make its last call; done: that call is settled. */
static void ask_elsewhere(bool done)
{
	ncclUniqueId id;
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclComm_t comm;
	ncclResult_t r = ncclInProgress;
	config.blocking = 0;
	ncclGetUniqueId(&id);
	ncclCommInitRankConfig(&comm, 1, id, 0, &config);
	while (done && r == ncclInProgress)
		ncclCommGetAsyncError(comm, &r);
	std::thread([comm, &r] { ncclCommGetAsyncError(comm, &r); }).join();
	fprintf(stderr, "ok: %s", ncclGetErrorString(r));
	_exit(1);
}

static void test_owners(void)
{
	dies("ncclCommGetAsyncError: another thread has a call of this communicator that is not done",
		[] { ask_elsewhere(false); });
	dies("ok: no error", [] { ask_elsewhere(true); });
}

static ncclComm_t connect_alone(void)
{
	ncclUniqueId id;
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclComm_t comm;
	ncclGetUniqueId(&id);
	ncclCommInitRankConfig(&comm, 1, id, 0, &config);
	return comm;
}

static void sum_alone(ncclComm_t comm, float *x, cudaStream_t stream)
{
	ncclResult_t r = ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comm, stream);
	while (r == ncclInProgress)
		ncclCommGetAsyncError(comm, &r);
}

static void test_aborts(void)
{
	dies("ncclCommGetAsyncError: the communicator was aborted, which has freed it", [] {
		ncclComm_t comm = connect_alone();
		ncclResult_t r;
		ncclCommAbort(comm);
		ncclCommGetAsyncError(comm, &r);
	});
	dies("ncclAllReduce: the communicator was aborted, which has freed it", [] {
		ncclComm_t comm = connect_alone();
		ncclCommAbort(comm);
		sum_alone(comm, managed<float>(1), new_stream());
	});
	dies("ncclCommAbort: another thread is in a call of the communicator, which is freed under it", [] {
		setenv("CUDASIM_NCCL_STUCK", "-1", 1);
		ncclComm_t comm = connect_alone();
		float *x = managed<float>(1);
		sum_alone(comm, x, new_stream());
		std::thread([=] { sum_alone(comm, x, new_stream()); }).detach();
		usleep(500000);
		ncclCommAbort(comm);
	});
	dies("an aborted sum is NaN", [] {
		ncclComm_t comm = connect_alone();
		float *x = managed<float>(1);
		cudaStream_t stream = new_stream();
		*x = 1;
		sum_alone(comm, x, stream);
		ncclCommAbort(comm);
		cudaStreamSynchronize(stream);
		fprintf(stderr, "an aborted sum is %s", *x != *x ? "NaN" : "a number");
		_exit(1);
	});
}

/* ---- descriptors of cuDNN ---- */

/* A tensor without the attribute `without`, whose dims are of `type`; how it ends. */
static cudnnStatus_t tensor_of(int64_t uid, bool is_virtual, int without, cudnnBackendAttributeType_t type,
	cudnnBackendDescriptor_t *d)
{
	const int64_t align = 16, dim[] = {1, 2, 8, 8}, stride[] = {128, 64, 8, 1};
	const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
	struct Set { cudnnBackendAttributeName_t name; cudnnBackendAttributeType_t type; int64_t n; const void *at; };
	const Set all[] = {
		{CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid},
		{CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32},
		{CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align},
		{CUDNN_ATTR_TENSOR_DIMENSIONS, type, 4, dim}, {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride},
		{CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual}};
	cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, d);
	for (const Set &a : all)
		if (a.name != without && cudnnBackendSetAttribute(*d, a.name, a.type, a.n, a.at) != CUDNN_STATUS_SUCCESS)
			return CUDNN_STATUS_BAD_PARAM;
	return cudnnBackendFinalize(*d);
}

static cudnnStatus_t put_part(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
	cudnnBackendDescriptor_t part)
{
	return cudnnBackendSetAttribute(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

/* A graph of one sum of all heads, of x. */
static cudnnStatus_t sum_of(cudnnBackendDescriptor_t x, cudnnHandle_t handle)
{
	const cudnnReduceTensorOp_t add = CUDNN_REDUCE_TENSOR_ADD;
	const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
	cudnnBackendDescriptor_t how, op, y, graph;
	cudnnBackendCreateDescriptor(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, &how);
	cudnnBackendSetAttribute(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &add);
	cudnnBackendCreateDescriptor(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, &op);
	check(put_part(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how) == CUDNN_STATUS_BAD_PARAM, "an unfinished part");
	check(cudnnBackendFinalize(how) == CUDNN_STATUS_BAD_PARAM, "a reduction without a type");
	cudnnBackendSetAttribute(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32);
	check(cudnnBackendFinalize(how) == CUDNN_STATUS_SUCCESS, "a reduction");
	check(tensor_of(2, false, -1, CUDNN_TYPE_INT64, &y) == CUDNN_STATUS_SUCCESS, "a result");
	put_part(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
	put_part(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
	put_part(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
	check(cudnnBackendFinalize(op) == CUDNN_STATUS_SUCCESS, "an operation");
	cudnnBackendCreateDescriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &graph);
	put_part(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, op);
	check(cudnnBackendFinalize(graph) == CUDNN_STATUS_BAD_PARAM, "a graph without a handle");
	cudnnBackendSetAttribute(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
	cudnnStatus_t s = cudnnBackendFinalize(graph);
	for (cudnnBackendDescriptor_t d : {graph, op, how, y})
		cudnnBackendDestroyDescriptor(d);
	return s;
}

/* The description of a window of `dims` spatial dims, three of whose lists have two elements and one `strides`. */
static cudnnStatus_t window_of(int64_t dims, int64_t strides, cudnnConvolutionMode_t mode)
{
	const int64_t zero[] = {0, 0, 0}, one[] = {1, 1, 1};
	const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
	cudnnBackendDescriptor_t d;
	cudnnBackendCreateDescriptor(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, &d);
	cudnnBackendSetAttribute(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32);
	cudnnBackendSetAttribute(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
	cudnnBackendSetAttribute(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
	cudnnBackendSetAttribute(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, zero);
	cudnnBackendSetAttribute(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, zero);
	cudnnBackendSetAttribute(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, strides, one);
	cudnnBackendSetAttribute(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, one);
	cudnnStatus_t s = cudnnBackendFinalize(d);
	cudnnBackendDestroyDescriptor(d);
	return s;
}

static void test_windows(void)
{
	check(window_of(2, 2, CUDNN_CROSS_CORRELATION) == CUDNN_STATUS_SUCCESS, "a window");
	check(window_of(3, 2, CUDNN_CROSS_CORRELATION) == CUDNN_STATUS_BAD_PARAM, "lists that are too short");
	check(window_of(2, 3, CUDNN_CROSS_CORRELATION) == CUDNN_STATUS_BAD_PARAM, "a list that is too long");
	check(window_of(2, 2, CUDNN_CONVOLUTION) == CUDNN_STATUS_BAD_PARAM, "a window that is turned over");
}

static void test_descriptors(void)
{
	cudnnBackendDescriptor_t d;
	cudnnHandle_t handle;
	const int64_t uid = 3;
	cudnnCreate(&handle);
	check(tensor_of(1, false, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, &d) == CUDNN_STATUS_BAD_PARAM, "no strides");
	cudnnBackendDestroyDescriptor(d);
	check(tensor_of(1, false, -1, CUDNN_TYPE_DATA_TYPE, &d) == CUDNN_STATUS_BAD_PARAM, "dims of a wrong type");
	cudnnBackendDestroyDescriptor(d);
	check(tensor_of(1, true, -1, CUDNN_TYPE_INT64, &d) == CUDNN_STATUS_SUCCESS, "a tensor");
	check(sum_of(d, handle) == CUDNN_STATUS_BAD_PARAM, "a virtual tensor that nothing makes");
	check(cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid) == CUDNN_STATUS_BAD_PARAM,
		"an attribute behind the end");
	cudnnBackendDestroyDescriptor(d);
	check(tensor_of(1, false, -1, CUDNN_TYPE_INT64, &d) == CUDNN_STATUS_SUCCESS, "another tensor");
	check(sum_of(d, handle) == CUDNN_STATUS_SUCCESS, "a graph");
	cudnnBackendDestroyDescriptor(d);
	cudnnDestroy(handle);
}

static void test_priorities(void)
{
	static const unsigned long long none = 0, kept = cudaGraphInstantiateFlagUseNodePriority;
	setenv("CUDASIM_ORDER", "priority", 1);
	dies("ran as it should", [] { run_urgent(NULL); });
	dies("ran as it should", [] { run_urgent(&kept); });
	dies("loses the priorities of the captured streams", [] { run_urgent(&none); });
	unsetenv("CUDASIM_ORDER");
}

int main(void)
{
	/* Those that fork come first: a process that has used CUDA cannot. */
	test_kernel_errors();
	test_stream_errors();
	test_memory_errors();
	test_bounds();
	test_settings();
	test_duplicates();
	test_owners();
	test_aborts();
	test_priorities();
	test_kernels();
	test_halves();
	test_orders();
	test_events();
	test_graphs();
	test_descriptors();
	test_windows();
	printf("test_sim: %s\n", failures ? "failed" : "ok");
	return failures != 0;
}
