/* tests/cudasim/nccl.cpp: NCCL between processes of one host, in memory that they share.
 *
 * A communicator is a file without a name (the unique id says whose): a header, and an area for each rank, where it
 * puts what it sends.  An operation is a node of the stream.  It is over when all ranks have posted the same one and
 * this rank has read what it wants; ranks that post different ones end with both descriptions.  A rank whose process
 * is gone, or that aborted, makes an asynchronous error of the others, and what waits for it never ends.  Two ranks on
 * one device of one host are refused; the host is NCCL_HOSTID, else the machine's name.
 *
 * Sums are made in rank order in the type that travels, 16 bits rounded at each addition, as a ring does; averages
 * multiply by 1/n in that type first, as NCCL does.
 *
 * An abort frees its communicator: a call behind it, or one that another thread is in, is an error.  Operations that it
 * ends leave NaN.
 * CUDASIM_NCCL_STUCK=N: no call that launches is ever done behind the first N; -N: nor does it return.
 *
 * Memory is registered with a communicator only if ncclMemAlloc gave it, and what peers may then read in place must
 * lie at one offset of it on all ranks; nothing may be registered when a communicator ends or its memory is freed.
 *
 * The one idea: the k-th operation of a communicator is the same one on all ranks, so waiting is comparing counters
 * (posted, read) with k. */
#include <nccl.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <list>
#include <map>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "tests/cudasim/sim.h"

/* Behind the standard library, whose attributes they would alter. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

enum { MOST_RANKS = 64, HEADER = 1 << 16, HOST_BYTES = 256, NAP_US = 200, ABORT_US = 20000, MOST_POLLS = 4 };
const size_t AREA = (size_t)1 << 28; /* of each rank; the file is sparse */

enum Kind { GATHER, REDUCE_SCATTER, ALL_REDUCE, REDUCE, BROADCAST };
const char *const kind_names[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclReduce", "ncclBroadcast"};

/* What must be equal on all ranks. */
struct Same { int kind, type, op, root; size_t count; long long at; };
struct Place { int pid, fd; };
enum Life { AWAY, HERE, LEFT, ABORTED };
struct Rank {
	std::atomic<int> pid, life, splits, split_made;
	std::atomic<unsigned long long> posted, read;
	char host[HOST_BYTES];
	int device;
	Same same;
	int color, key;
	Place child;  /* of the last split, by its first member */
};
struct Header { std::atomic<int> size; Rank rank[MOST_RANKS]; };
static_assert(sizeof(Header) <= HEADER, "the header fits");

struct Op { Same same; const void *send; void *recv; };

} // namespace

struct ncclComm {
	Header *header;
	char *area;
	int size, rank, splits, registered;
	bool order_kept, met;
	unsigned long long next; /* operations that began */
	unsigned polls;          /* left, before it says that its last call is done */
	std::thread::id caller;  /* of that call */
	std::atomic<bool> aborted;
	std::atomic<int> inside; /* threads in a call */
	ncclResult_t error;
	std::string why;
};

namespace {

struct Listed { ncclComm *comm; const char *at; size_t bytes; };
std::map<const char *, size_t> lent; /* by ncclMemAlloc */
std::list<Listed> listed;

struct Posted { ncclComm *comm; cudaStream_t stream; Op op; };
int depth;
std::vector<Posted> group;

/* Each call that uses a communicator has one. */
struct Inside {
	ncclComm *comm;

	Inside(ncclComm *c, const char *call) : comm(c)
	{
		comm->inside++;
		if (comm->aborted)
			sim_die("%s: the communicator was aborted, which has freed it", call);
	}
	Inside(const Inside &) = delete;
	~Inside() { comm->inside--; }
};

/* ---- life of peers ---- */

bool is_gone(int pid)
{
	char path[64], line[512];
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	FILE *f = fopen(path, "r");
	if (!f)
		return true;
	size_t n = fread(line, 1, sizeof(line) - 1, f);
	fclose(f);
	line[n] = 0;
	const char *end = strrchr(line, ')');
	return end && (end[2] == 'Z' || end[2] == 'X');
}

ncclResult_t fail(ncclComm *c, ncclResult_t r, const std::string &why)
{
	c->error = r;
	c->why = why;
	return r;
}

/* A rank on the device of this one, of the same host; -1: none. */
int twin(const ncclComm *c)
{
	const Rank *mine = &c->header->rank[c->rank];
	for (int r = 0; r < c->size; r++) {
		const Rank *p = &c->header->rank[r];
		if (r != c->rank && p->device == mine->device && !strcmp(p->host, mine->host))
			return r;
	}
	return -1;
}

/* All ranks are there, each with a device of its own: what ranks find out before they connect. */
ncclResult_t meet(ncclComm *c)
{
	for (int r = 0; r < c->size; r++)
		if (c->header->rank[r].life == AWAY)
			return ncclInProgress;
	if (twin(c) >= 0)
		return fail(c, ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(c->rank) + " and rank " +
			std::to_string(twin(c)) + " both on CUDA device " + std::to_string(c->header->rank[c->rank].device));
	c->met = true;
	return ncclSuccess;
}

/* Whether the last call is done, and all ranks live. */
ncclResult_t look(ncclComm *c)
{
	ncclResult_t met = c->error != ncclSuccess || c->met ? c->error : meet(c);
	if (met != ncclSuccess && met != ncclInProgress)
		return met;
	for (int r = 0; r < c->size; r++) {
		Rank *p = &c->header->rank[r];
		int life = p->life;
		if (life == ABORTED)
			return fail(c, ncclRemoteError, "rank " + std::to_string(r) + " of the communicator aborted");
		if (life == HERE && is_gone(p->pid) && p->life == HERE)
			return fail(c, ncclRemoteError, "rank " + std::to_string(r) + " of the communicator is gone");
	}
	if (met == ncclInProgress)
		return met;
	return c->polls && c->polls-- ? ncclInProgress : ncclSuccess;
}

/* This thread has made a call that is done after so many looks. */
ncclResult_t called(ncclComm *c, unsigned polls)
{
	c->caller = std::this_thread::get_id();
	c->polls = polls;
	return polls ? ncclInProgress : ncclSuccess;
}

/* The same for a call that launches. */
ncclResult_t launched(ncclComm *c)
{
	static long long launches;
	long long most = sim_setting("CUDASIM_NCCL_STUCK", 0);
	bool stuck = most && ++launches > llabs(most);
	while (stuck && most < 0)
		pause();
	return called(c, stuck ? UINT_MAX : sim_random(MOST_POLLS));
}

/* ---- what an operation does ---- */

size_t bytes_of(int type)
{
	switch (type) {
	case ncclInt8: case ncclUint8: return 1;
	case ncclFloat16: case ncclBfloat16: return 2;
	case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
	default: return 4;
	}
}

struct Half {
	unsigned short bits;
	static Half from(float x) { return {__half_as_ushort(__float2half_rn(x))}; }
	float wide() const { return __half2float(__ushort_as_half(bits)); }
};
struct Brain {
	unsigned short bits;
	static Brain from(float x) { return {__bfloat16_as_ushort(__float2bfloat16_rn(x))}; }
	float wide() const { return __bfloat162float(__ushort_as_bfloat16(bits)); }
};
float wide(float x) { return x; }
double wide(double x) { return x; }
float wide(Half x) { return x.wide(); }
float wide(Brain x) { return x.wide(); }
template <class T> struct Round { template <class W> static T to(W x) { return T(x); } };
template <> struct Round<Half> { static Half to(float x) { return Half::from(x); } };
template <> struct Round<Brain> { static Brain to(float x) { return Brain::from(x); } };

template <class T> void sum(const ncclComm *c, const Op &op, size_t first, size_t n)
{
	bool mean = op.same.op == ncclAvg;
	auto part = wide(Round<T>::to(1.0f / (float)c->size));
	for (size_t i = 0; i < n; i++) {
		T sum = T();
		for (int r = 0; r < c->size; r++) {
			T x = ((const T *)(const void *)(c->area + AREA * (size_t)r))[first + i];
			x = mean ? Round<T>::to(wide(x) * part) : x;
			sum = r ? Round<T>::to(wide(sum) + wide(x)) : x;
		}
		((T *)op.recv)[i] = sum;
	}
}

void reduce(const ncclComm *c, const Op &op, size_t first, size_t n)
{
	switch (op.same.type) {
	case ncclFloat32: sum<float>(c, op, first, n); break;
	case ncclFloat64: sum<double>(c, op, first, n); break;
	case ncclFloat16: sum<Half>(c, op, first, n); break;
	case ncclBfloat16: sum<Brain>(c, op, first, n); break;
	default: sim_die("%s: the emulation reduces no integers", kind_names[op.same.kind]);
	}
}

size_t sent(const ncclComm *c, const Same &s)
{
	return s.count * bytes_of(s.type) * (s.kind == REDUCE_SCATTER ? (size_t)c->size : 1);
}

size_t received(const ncclComm *c, const Same &s)
{
	return s.count * bytes_of(s.type) * (s.kind == GATHER ? (size_t)c->size : 1);
}

void make(const ncclComm *c, const Op &op)
{
	const Same &s = op.same;
	size_t bytes = s.count * bytes_of(s.type);
	switch (s.kind) {
	case GATHER:
		for (int r = 0; r < c->size; r++)
			memcpy((char *)op.recv + bytes * (size_t)r, c->area + AREA * (size_t)r, bytes);
		break;
	case REDUCE_SCATTER: reduce(c, op, s.count * (size_t)c->rank, s.count); break;
	case ALL_REDUCE: reduce(c, op, 0, s.count); break;
	case REDUCE:
		if (c->rank == s.root)
			reduce(c, op, 0, s.count);
		break;
	default: memmove(op.recv, c->area + AREA * (size_t)s.root, bytes);
	}
}

std::string text(const Same &s)
{
	char line[200];
	snprintf(line, sizeof(line), "%s of %zu elements of type %d, operation %d, root %d, at %lld of registered memory",
		kind_names[s.kind], s.count, s.type, s.op, s.root, s.at);
	return line;
}

bool equal(const Same &a, const Same &b)
{
	return a.kind == b.kind && a.type == b.type && a.op == b.op && a.root == b.root && a.count == b.count &&
		a.at == b.at;
}

template <class F> bool all_have(const ncclComm *c, unsigned long long k, F counter)
{
	for (int r = 0; r < c->size; r++)
		if (counter(c->header->rank[r]) < k)
			return false;
	return true;
}

unsigned long long posted(const Rank &r) { return r.posted.load(); }
unsigned long long taken(const Rank &r) { return r.read.load(); }

/* One launch: its operations one after the other.  Copies of it are the launches of a graph. */
struct Launch {
	ncclComm *comm;
	std::vector<Op> ops;
	size_t at = 0;
	unsigned long long k = 0;  /* of the operation that has begun; 0: none */
	bool is_posted = false;
	unsigned delay = 0;

	bool step()
	{
		Rank *mine = &comm->header->rank[comm->rank];
		const Op &op = ops[at];
		if (!k) {
			k = ++comm->next;
			delay = sim_random(4);
		}
		if (delay && delay--)
			return false;
		if (!is_posted && !all_have(comm, k - 1, taken))
			return false;
		if (!is_posted) {
			memcpy(comm->area + AREA * (size_t)comm->rank, op.send, sent(comm, op.same));
			mine->same = op.same;
			mine->posted = k;
			is_posted = true;
		}
		if (!all_have(comm, k, posted))
			return false;
		for (int r = 0; r < comm->size; r++)
			if (!equal(comm->header->rank[r].same, op.same))
				sim_die("operation %llu of a communicator: rank %d calls %s, rank %d %s", k, comm->rank,
					text(op.same).c_str(), r, text(comm->header->rank[r].same).c_str());
		make(comm, op);
		mine->read = k;
		k = 0;
		is_posted = false;
		return ++at == ops.size();
	}

	void poison()
	{
		for (; at < ops.size(); at++)
			memset(ops[at].recv, 0xff, received(comm, ops[at].same));
	}

	bool operator()()
	{
		if (comm->aborted) {
			poison();
			return true;
		}
		while (!step())
			if (k)
				return false;
		return true;
	}
};

void launch(ncclComm *c, cudaStream_t stream, std::vector<Op> ops)
{
	std::string name = kind_names[ops[0].same.kind];
	Launch l;
	l.comm = c;
	l.ops = std::move(ops);
	sim_issue(stream, name, l, !c->order_kept);
}

void end_group()
{
	while (!group.empty()) {
		Posted first = group[0];
		std::vector<Op> ops;
		std::vector<Posted> rest;
		for (auto &p : group)
			if (p.comm == first.comm && p.stream == first.stream)
				ops.push_back(p.op);
			else
				rest.push_back(p);
		group = rest;
		launch(first.comm, first.stream, ops);
	}
}

/* Where in memory that is registered with the communicator; -1: in none. */
long long offset_of(const ncclComm *c, const void *p, size_t bytes)
{
	const char *at = (const char *)p;
	for (auto &l : listed)
		if (l.comm == c && at >= l.at && at + bytes <= l.at + l.bytes)
			return at - l.at;
	return -1;
}

void must_be_empty(const ncclComm *c, const char *call)
{
	for (auto &l : listed)
		if (l.comm == c)
			sim_die("%s: %zu bytes are still registered with the communicator", call, l.bytes);
}

ncclResult_t post(ncclComm *c, Op op, cudaStream_t stream)
{
	Same &s = op.same;
	Inside inside(c, kind_names[s.kind]);
	bool sends = s.kind == REDUCE_SCATTER || s.kind == REDUCE;
	bool takes = s.kind != REDUCE || s.root == c->rank, gives = s.kind != BROADCAST || s.root == c->rank;
	if (sent(c, s) > AREA)
		sim_die("%s: %zu bytes are more than the emulation's %zu", kind_names[s.kind], sent(c, s), AREA);
	if (gives)
		sim_must_reach(op.send, sent(c, s), (std::string(kind_names[s.kind]) + ": what is sent").c_str());
	if (takes)
		sim_must_reach(op.recv, received(c, s), (std::string(kind_names[s.kind]) + ": what is received").c_str());
	s.at = sends ? offset_of(c, op.send, sent(c, s)) : offset_of(c, op.recv, received(c, s));
	if (s.root < 0 || s.root >= c->size)
		return fail(c, ncclInvalidArgument, "there is no such root");
	ncclResult_t r = look(c);
	if (r == ncclInProgress)
		return fail(c, ncclInvalidUsage, "the communicator is not connected yet");
	if (r != ncclSuccess)
		return r;
	if (depth) {
		group.push_back({c, stream, op});
		return ncclSuccess;
	}
	launch(c, stream, {op});
	return launched(c);
}

/* ---- communicators ---- */

Place new_place()
{
	int fd = memfd_create("nccl", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)(HEADER + AREA * MOST_RANKS)))
		sim_die("nccl: no memory for a communicator: %s", strerror(errno));
	return {(int)getpid(), fd};
}

/* Before the rank is HERE. */
void sign_in(Rank *mine)
{
	const char *host = getenv("NCCL_HOSTID");
	mine->pid = (int)getpid();
	if (host && *host)
		snprintf(mine->host, sizeof(mine->host), "%s", host);
	else if (gethostname(mine->host, sizeof(mine->host) - 1))
		sim_die("gethostname: %s", strerror(errno));
	cudaGetDevice(&mine->device);
}

ncclResult_t attach(ncclComm_t *out, Place at, int size, int rank, const ncclConfig_t *config)
{
	char path[64];
	if (size < 1 || size > MOST_RANKS || rank < 0 || rank >= size)
		return ncclInvalidArgument;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", at.pid, at.fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	size_t bytes = HEADER + AREA * (size_t)size;
	void *p = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (fd >= 0)
		close(fd);
	if (p == MAP_FAILED)
		return ncclSystemError;
	ncclComm *c = new ncclComm{};
	c->header = (Header *)p;
	c->area = (char *)p + HEADER;
	c->size = size;
	c->rank = rank;
	c->order_kept = config->launchOrderImplicit == 1;
	called(c, sim_random(MOST_POLLS) + 1);
	int none = 0;
	if (!c->header->size.compare_exchange_strong(none, size) && none != size)
		sim_die("ncclCommInitRank: rank %d says that there are %d ranks, another one says %d", rank, size, none);
	sign_in(&c->header->rank[rank]);
	none = AWAY;
	if (!c->header->rank[rank].life.compare_exchange_strong(none, HERE))
		sim_die("ncclCommInitRank: rank %d is there twice", rank);
	*out = c;
	if (config->blocking)
		for (ncclResult_t r; (r = look(c)) != ncclSuccess; usleep(NAP_US))
			if (r != ncclInProgress)
				return r;
	return config->blocking ? ncclSuccess : ncclInProgress;
}

/* CUDASIM_NCCL_REPORT: a line for each communicator. */
void report(const ncclComm *c)
{
	const char *path = getenv("CUDASIM_NCCL_REPORT");
	FILE *f = path ? fopen(path, "a") : NULL;
	if (!f)
		return;
	fprintf(f, "rank %d of %d: %llu operations, %d registrations\n", c->rank, c->size, c->next, c->registered);
	fclose(f);
}

void detach(ncclComm *c, Life life)
{
	report(c);
	c->header->rank[c->rank].life = life;
	munmap(c->header, HEADER + AREA * (size_t)c->size);
	delete c;
}

Op op_of(Kind kind, const void *send, void *recv, size_t count, ncclDataType_t type, int op, int root)
{
	return {{kind, type, op, root, count, -1}, send, recv};
}

} // namespace

ncclResult_t ncclGetVersion(int *version)
{
	*version = (int)sim_setting("CUDASIM_NCCL_VERSION", NCCL_VERSION_CODE);
	return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	Place p = new_place();
	memset(id, 0, sizeof(*id));
	memcpy(id, &p, sizeof(p));
	return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	Place p;
	memcpy(&p, &id, sizeof(p));
	return attach(comm, p, n, rank, config);
}

/* Blocks until all ranks of the parent have called it. */
ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
	Inside inside(c, "ncclCommSplit");
	Rank *mine = &c->header->rank[c->rank];
	int turn = ++c->splits, first = -1, size = 0, rank = 0;
	mine->color = color;
	mine->key = key;
	mine->splits = turn;
	for (int r = 0; r < c->size; r++)
		for (; c->header->rank[r].splits < turn; usleep(NAP_US))
			if (look(c) > ncclSuccess && c->error != ncclSuccess)
				return c->error;
	for (int r = 0; r < c->size; r++) {
		const Rank &p = c->header->rank[r];
		if (p.color != color)
			continue;
		size++;
		rank += p.key < key || (p.key == key && r < c->rank);
		first = first < 0 || p.key < c->header->rank[first].key ? r : first;
	}
	if (first == c->rank) {
		mine->child = new_place();
		mine->split_made = turn;
	}
	for (; c->header->rank[first].split_made < turn; usleep(NAP_US))
		if (look(c) > ncclSuccess && c->error != ncclSuccess)
			return c->error;
	ncclResult_t r = attach(out, c->header->rank[first].child, size, rank, config);
	/* Nobody splits again before all have read. */
	mine->read = mine->read + 1;
	mine->posted = mine->posted + 1;
	c->next++;
	for (int p = 0; p < c->size; p++)
		for (; c->header->rank[p].read < c->next; usleep(NAP_US))
			if (look(c) > ncclSuccess && c->error != ncclSuccess)
				return c->error;
	return r;
}

ncclResult_t ncclMemAlloc(void **p, size_t bytes)
{
	if (cudaMalloc(p, bytes) != cudaSuccess)
		return ncclUnhandledCudaError;
	lent[(const char *)*p] = bytes;
	return ncclSuccess;
}

ncclResult_t ncclMemFree(void *p)
{
	for (auto &l : listed)
		if (l.at == p)
			sim_die("ncclMemFree: %zu bytes are still registered", l.bytes);
	if (p && !lent.erase((const char *)p))
		sim_die("ncclMemFree of memory that ncclMemAlloc did not give");
	return cudaFree(p) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(const ncclComm_t c, void *p, size_t bytes, void **handle)
{
	Inside inside(c, "ncclCommRegister");
	auto found = lent.find((const char *)p);
	if (found == lent.end() || bytes > found->second)
		sim_die("ncclCommRegister: %zu bytes that ncclMemAlloc did not give", bytes);
	if (offset_of(c, p, bytes) >= 0)
		sim_die("ncclCommRegister: %zu bytes are registered twice", bytes);
	listed.push_back({c, (const char *)p, bytes});
	*handle = &listed.back();
	c->registered++;
	return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t c, void *handle)
{
	Inside inside(c, "ncclCommDeregister");
	for (auto l = listed.begin(); l != listed.end(); ++l)
		if (&*l == handle && l->comm == c) {
			listed.erase(l);
			return ncclSuccess;
		}
	return fail(c, ncclInvalidArgument, "no such registration");
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
	Inside inside(c, "ncclCommFinalize");
	must_be_empty(c, "ncclCommFinalize");
	return called(c, sim_random(MOST_POLLS));
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
	if (c->aborted)
		sim_die("ncclCommDestroy: the communicator was aborted, which has freed it");
	must_be_empty(c, "ncclCommDestroy");
	detach(c, LEFT);
	return ncclSuccess;
}

/* What runs ends, which takes a while.  The memory stays, since nodes of the device may still look at it. */
ncclResult_t ncclCommAbort(ncclComm_t c)
{
	if (c->aborted.exchange(true))
		sim_die("ncclCommAbort: the communicator was aborted, which has freed it");
	if (c->inside)
		sim_die("ncclCommAbort: another thread is in a call of the communicator, which is freed under it");
	c->header->rank[c->rank].life = ABORTED;
	usleep(ABORT_US);
	return ncclSuccess;
}

/* It ends a call that is done, and takes no care of other threads. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error)
{
	Inside inside(c, "ncclCommGetAsyncError");
	if (c->polls && c->caller != std::this_thread::get_id())
		sim_die("ncclCommGetAsyncError: another thread has a call of this communicator that is not done");
	*error = look(c);
	return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t r)
{
	static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
		"invalid argument", "invalid usage", "remote process exited or there was a network error", "in progress"};
	return texts[r];
}

const char *ncclGetLastError(ncclComm_t c)
{
	if (c && c->aborted)
		sim_die("ncclGetLastError: the communicator was aborted, which has freed it");
	return c ? c->why.c_str() : "";
}

ncclResult_t ncclGroupStart(void)
{
	depth++;
	return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
	if (depth <= 0)
		return ncclInvalidUsage;
	if (--depth)
		return ncclSuccess;
	if (group.empty())
		return ncclSuccess;
	ncclComm *c = group[0].comm;
	Inside inside(c, "ncclGroupEnd");
	end_group();
	return launched(c);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
	cudaStream_t stream)
{
	return post(comm, op_of(GATHER, send, recv, count, type, 0, 0), stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
	ncclComm_t comm, cudaStream_t stream)
{
	return post(comm, op_of(REDUCE_SCATTER, send, recv, count, type, op, 0), stream);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
	ncclComm_t comm, cudaStream_t stream)
{
	return post(comm, op_of(ALL_REDUCE, send, recv, count, type, op, 0), stream);
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
	ncclComm_t comm, cudaStream_t stream)
{
	return post(comm, op_of(REDUCE, send, recv, count, type, op, root), stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
	ncclComm_t comm, cudaStream_t stream)
{
	return post(comm, op_of(BROADCAST, send, recv, count, type, 0, root), stream);
}
