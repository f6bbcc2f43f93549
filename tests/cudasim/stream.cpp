/* tests/cudasim/stream.cpp: streams, events, graphs, and the scheduler that runs what they hold.
 *
 * The one idea: see sim.h.  The scheduler gives each stream a rank by chance, runs the ready node of the first, and
 * draws new ranks now and then: so streams run far ahead of each other, or in lockstep, as a device's may; or it goes
 * by their priorities, and then by what was issued first.  Only what
 * was waited for is finished when a wait returns.  A second thread runs what is left after a while in which nobody
 * waited, since a device would, too: other processes may depend on it. */
#include "tests/cudasim/sim.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unistd.h>

enum { LONG_QUEUE = 1 << 14, NAP_US = 50, IDLE_US = 5000 };
enum Order { EAGER, LAZY, PRIORITY, RANDOM };

namespace {

struct Node;
typedef std::shared_ptr<Node> NodePtr;
struct Node {
	std::string name;
	SimWork work;
	bool exclusive = false, begun = false, done = false, in_progress = false;
	const void *stream = NULL;
	int priority = 0;              /* less runs first */
	unsigned long long number = 0; /* in the order in which nodes were issued */
	int waits = 0;                 /* nodes before it that are not done */
	std::vector<NodePtr> before, after;
};

} // namespace

struct CUgraphNode_st {
	std::string name;
	SimWork work;
	bool exclusive;
	const void *stream;
	int priority;
	std::vector<int> before;
	bool followed;
};

struct CUgraph_st {
	std::vector<CUgraphNode_st> nodes;
	std::set<cudaStream_t> streams; /* that take part in the capture */
	cudaStream_t origin;
};

struct CUgraphExec_st {
	CUgraph_st graph;
	NodePtr last; /* of the launch before */
};

struct CUstream_st {
	NodePtr last;
	bool blocking;                 /* with the legacy stream */
	CUgraph_st *capture;
	std::vector<int> tail;         /* capture: what the next node comes after */
	int priority;
};

struct CUevent_st {
	NodePtr node;
	bool recorded;
	CUgraph_st *capture;           /* recorded in one */
	std::vector<int> tail;
	bool timed;
	long long number;              /* of the record, as time */
};

namespace {

std::recursive_mutex lock;
std::vector<NodePtr> ready;
int n_waiting; /* nodes that are not done */
CUstream_st legacy = {NULL, true, NULL, {}, 0};
std::set<cudaStream_t> streams;
std::set<CUgraph_st *> captures;
unsigned long long random_state;
unsigned long long n_done, n_issued;
std::map<const void *, unsigned> ranks;
bool runs; /* a node is running, on the thread that holds the lock */
bool stopped; /* the process exits */

/* Device memory is open while nodes run. */
struct Open {
	Open() { sim_memory_begin(); }
	~Open() { sim_memory_end(); }
};

Order order()
{
	static int known = -1;
	const char *text = getenv("CUDASIM_ORDER");
	if (known < 0)
		known = !text || !strcmp(text, "random") ? RANDOM : !strcmp(text, "eager") ? EAGER :
			!strcmp(text, "lazy") ? LAZY : !strcmp(text, "priority") ? PRIORITY : -1;
	if (known < 0)
		sim_die("CUDASIM_ORDER=%s is none of eager, lazy, priority, random", text);
	return (Order)known;
}

/* ---- the scheduler ---- */

void finish(const NodePtr &n)
{
	n->done = true;
	n->work = NULL;
	n->before.clear();
	for (auto &next : n->after)
		if (!--next->waits)
			ready.push_back(next);
	n->after.clear();
	n_waiting--;
	n_done++;
}

bool exclusive_begun()
{
	for (auto &n : ready)
		if (n->exclusive && n->begun)
			return true;
	return false;
}

/* Runs one node; false: it waits for other processes. */
bool run(NodePtr n)
{
	if (n->exclusive && !n->begun && exclusive_begun())
		return false;
	n->begun = true;
	Open open;
	runs = true;
	bool ended = !n->work || n->work();
	runs = false;
	if (!ended)
		return false;
	ready.erase(std::find(ready.begin(), ready.end(), n));
	finish(n);
	return true;
}

unsigned rank_of(const void *stream)
{
	auto it = ranks.find(stream);
	return it != ranks.end() ? it->second : ranks[stream] = sim_random(1 << 30);
}

void mark(const NodePtr &n, std::set<Node *> *marked)
{
	std::vector<Node *> stack = {n.get()};
	while (!stack.empty()) {
		Node *x = stack.back();
		stack.pop_back();
		if (x->done || !marked->insert(x).second)
			continue;
		for (auto &b : x->before)
			stack.push_back(b.get());
	}
}

/* The order in which to try what is ready. */
std::vector<NodePtr> candidates(const NodePtr &wanted)
{
	std::vector<NodePtr> list = ready;
	if (order() == EAGER)
		return list;
	if (order() == LAZY && wanted) {
		std::set<Node *> marked;
		mark(wanted, &marked);
		std::erase_if(list, [&](const NodePtr &n) { return !marked.count(n.get()); });
		return list;
	}
	if (order() == PRIORITY) {
		std::sort(list.begin(), list.end(), [](const NodePtr &a, const NodePtr &b) {
			return a->priority != b->priority ? a->priority < b->priority : a->number < b->number;
		});
		return list;
	}
	if (!sim_random(8))
		ranks.clear();
	for (size_t i = list.size(); i > 1; i--)
		std::swap(list[i - 1], list[sim_random((unsigned)i)]);
	std::stable_sort(list.begin(), list.end(), [](const NodePtr &a, const NodePtr &b) {
		return rank_of(a->stream) < rank_of(b->stream);
	});
	return list;
}

/* Runs one node of those that are ready; false: all of them wait for other processes, or there is none. */
bool progress(const NodePtr &wanted)
{
	if (ready.size() == 1)
		return run(ready[0]);
	for (auto &n : candidates(wanted))
		if (run(n))
			return true;
	return false;
}

/* Runs nodes until n (NULL: all) is done, or false: all wait for other processes. */
bool run_until(const NodePtr &n)
{
	Open open;
	while (n ? !n->done : n_waiting > 0)
		if (!progress(n))
			return false;
	return true;
}

/* Holds the lock but while it naps. */
void wait_for(NodePtr n, std::unique_lock<std::recursive_mutex> &hold)
{
	if (runs)
		sim_die("a kernel or a host function waits for the device");
	while (n && !n->done) {
		if (ready.empty())
			sim_die("\"%s\" is waited for and nothing is ready to run: the emulation is wrong", n->name.c_str());
		if (run_until(n))
			continue;
		hold.unlock();
		usleep(NAP_US);
		hold.lock();
	}
}

/* Nobody waits, but a device would go on. */
void background()
{
	for (unsigned long long seen = 0;;) {
		usleep(IDLE_US);
		std::unique_lock<std::recursive_mutex> hold(lock, std::try_to_lock);
		if (!hold)
			continue;
		if (stopped)
			return;
		if (n_done == seen && n_waiting)
			progress(NULL);
		seen = n_done;
	}
}

void stop()
{
	std::lock_guard<std::recursive_mutex> hold(lock);
	stopped = true;
}

void add(const NodePtr &n, const std::vector<NodePtr> &before)
{
	static bool began;
	if (!began) {
		began = true;
		atexit(stop);
		std::thread(background).detach();
	}
	for (auto &b : before)
		if (b && !b->done) {
			b->after.push_back(n);
			n->before.push_back(b);
			n->waits++;
		}
	n->number = n_issued++;
	n_waiting++;
	if (!n->waits)
		ready.push_back(n);
}

/* After a node was issued: a device may have begun at once. */
void after_issue()
{
	if (order() == EAGER) {
		run_until(NULL);
		return;
	}
	int some = order() == RANDOM && !sim_random(8) ? (int)sim_random(8) : 0;
	if (!some && n_waiting <= LONG_QUEUE)
		return;
	Open open;
	while (n_waiting > LONG_QUEUE || some-- > 0)
		if (!progress(NULL))
			break;
}

CUstream_st *stream_of(cudaStream_t stream, const char *call)
{
	if (!stream)
		return &legacy;
	if (!streams.count(stream))
		sim_die("%s on a stream that does not exist", call);
	return stream;
}

/* What a new node of the stream comes after: its last; the legacy stream and blocking ones wait for each other. */
std::vector<NodePtr> before(CUstream_st *s)
{
	std::vector<NodePtr> list = {s->last};
	if (s == &legacy) {
		for (auto other : streams)
			if (other->blocking)
				list.push_back(other->last);
	} else if (s->blocking) {
		list.push_back(legacy.last);
	}
	return list;
}

int capture_node(CUstream_st *s, const std::string &name, SimWork work, bool exclusive)
{
	for (int b : s->tail)
		s->capture->nodes[(size_t)b].followed = true;
	s->capture->nodes.push_back({name, std::move(work), exclusive, s, s->priority, s->tail, false});
	s->tail = {(int)s->capture->nodes.size() - 1};
	return s->tail[0];
}

void check_no_capture(CUstream_st *s, const char *call)
{
	if (s->capture)
		sim_die("%s of a stream that is being captured", call);
	if (s == &legacy && !captures.empty())
		sim_die("%s of the legacy stream during a capture", call);
}

NodePtr join(CUstream_st *s, const std::string &name, const std::vector<NodePtr> &list)
{
	auto n = std::make_shared<Node>();
	n->name = name;
	n->stream = s;
	add(n, list);
	s->last = n;
	return n;
}

} // namespace

unsigned sim_random(unsigned n)
{
	if (!random_state) {
		random_state = (unsigned long long)sim_setting("CUDASIM_SEED", 1) * 0x9E3779B97F4A7C15u + 1;
		random_state += (unsigned long long)sim_device() * 0xBF58476D1CE4E5B9u;
	}
	if (n < 2)
		return 0;
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)((random_state >> 33) * n >> 31);
}

SimLock::SimLock()
{
	lock.lock();
	sim_memory_begin();
}

SimLock::~SimLock()
{
	sim_memory_end();
	lock.unlock();
}

bool sim_progress(void)
{
	std::lock_guard<std::recursive_mutex> hold(lock);
	return !runs && progress(NULL);
}

void sim_not_capturing(const char *call)
{
	std::lock_guard<std::recursive_mutex> hold(lock);
	if (!captures.empty())
		sim_die("%s while a stream is being captured", call);
}

void sim_finish_all(void)
{
	std::unique_lock<std::recursive_mutex> hold(lock);
	while (!run_until(NULL)) {
		hold.unlock();
		usleep(NAP_US);
		hold.lock();
	}
}

void sim_issue(cudaStream_t stream, const std::string &name, SimWork work, bool exclusive)
{
	std::lock_guard<std::recursive_mutex> hold(lock);
	CUstream_st *s = stream_of(stream, name.c_str());
	if (runs)
		sim_die("%s is issued by a kernel or a host function", name.c_str());
	if (s->capture) {
		capture_node(s, name, std::move(work), exclusive);
		return;
	}
	check_no_capture(s, name.c_str());
	auto n = std::make_shared<Node>();
	n->name = name;
	n->work = std::move(work);
	n->exclusive = exclusive;
	n->stream = s;
	n->priority = s->priority;
	add(n, before(s));
	s->last = n;
	after_issue();
}

/* ---- kernels that are counted ---- */

static std::map<std::string, long long> launches; /* under lock */

static void report_launches()
{
	FILE *f = fopen(getenv("CUDASIM_LAUNCHES"), "a");
	for (auto &l : launches)
		if (f)
			fprintf(f, "%lld %s\n", l.second, l.first.c_str());
	if (f)
		fclose(f);
}

static void count_launch(cudaStream_t stream, const std::string &name)
{
	std::lock_guard<std::recursive_mutex> hold(lock);
	if (stream_of(stream, name.c_str())->capture)
		return;
	if (launches.empty())
		atexit(report_launches);
	launches[name]++;
}

void sim_issue_kernel(cudaStream_t stream, const std::string &name, SimWork work)
{
	if (getenv("CUDASIM_LAUNCHES"))
		count_launch(stream, name);
	if (sim_setting("CUDASIM_IDLE", 0))
		work = [] { return true; };
	sim_issue(stream, name, std::move(work));
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
	sim_enter("cudaStreamCreateWithPriority");
	std::lock_guard<std::recursive_mutex> hold(lock);
	*stream = new CUstream_st{NULL, !(flags & cudaStreamNonBlocking), NULL, {}, priority};
	streams.insert(*stream);
	return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
	return cudaStreamCreateWithPriority(stream, flags, 0);
}

/* What the stream holds runs all the same. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	sim_enter("cudaStreamDestroy");
	std::lock_guard<std::recursive_mutex> hold(lock);
	check_no_capture(stream_of(stream, "cudaStreamDestroy"), "cudaStreamDestroy");
	streams.erase(stream);
	delete stream;
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	sim_enter("cudaStreamSynchronize");
	std::unique_lock<std::recursive_mutex> hold(lock);
	CUstream_st *s = stream_of(stream, "cudaStreamSynchronize");
	check_no_capture(s, "cudaStreamSynchronize");
	if (s == &legacy)
		join(s, "cudaStreamSynchronize", before(s));
	wait_for(s->last, hold);
	return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
	sim_enter("cudaDeviceSynchronize");
	sim_not_capturing("cudaDeviceSynchronize");
	sim_finish_all();
	return cudaSuccess;
}

static cudaError_t query(const NodePtr &n)
{
	Open open;
	for (unsigned some = 1 + sim_random(4); n && !n->done && some; some--)
		progress(n);
	return !n || n->done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	sim_enter("cudaStreamQuery");
	std::lock_guard<std::recursive_mutex> hold(lock);
	CUstream_st *s = stream_of(stream, "cudaStreamQuery");
	check_no_capture(s, "cudaStreamQuery");
	return query(s->last);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t f, void *data)
{
	sim_enter("cudaLaunchHostFunc");
	sim_issue(stream, "cudaLaunchHostFunc", [=] { f(data); return true; });
	return cudaSuccess;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
	sim_enter("cudaEventCreateWithFlags");
	*event = new CUevent_st{NULL, false, NULL, {}, !(flags & cudaEventDisableTiming), 0};
	return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	sim_enter("cudaEventDestroy");
	delete event;
	return cudaSuccess;
}

static long long events_recorded; /* which stands for time */

void sim_take_time(void)
{
	SimLock hold;
	events_recorded++;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	sim_enter("cudaEventRecord");
	std::lock_guard<std::recursive_mutex> hold(lock);
	CUstream_st *s = stream_of(stream, "cudaEventRecord");
	event->recorded = true;
	event->capture = s->capture;
	event->number = ++events_recorded;
	if (s->capture) {
		event->tail = s->tail;
		return cudaSuccess;
	}
	check_no_capture(s, "cudaEventRecord");
	event->node = s->blocking ? join(s, "cudaEventRecord", before(s)) : s->last;
	return cudaSuccess;
}

static void wait_captured(CUstream_st *s, cudaEvent_t event)
{
	if (!captures.count(event->capture))
		sim_die("cudaStreamWaitEvent for an event that was recorded in a capture that has ended");
	if (!s->capture) {
		s->capture = event->capture;
		s->tail.clear();
		event->capture->streams.insert(s);
	} else if (s->capture != event->capture) {
		sim_die("cudaStreamWaitEvent would merge two captures");
	}
	for (int b : event->tail)
		if (std::find(s->tail.begin(), s->tail.end(), b) == s->tail.end())
			s->tail.push_back(b);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
	sim_enter("cudaStreamWaitEvent");
	std::lock_guard<std::recursive_mutex> hold(lock);
	CUstream_st *s = stream_of(stream, "cudaStreamWaitEvent");
	if (!event->recorded)
		sim_die("cudaStreamWaitEvent for an event that was never recorded");
	if (event->capture) {
		wait_captured(s, event);
		return cudaSuccess;
	}
	if (s->capture)
		sim_die("cudaStreamWaitEvent in a capture, for an event that was recorded before it");
	check_no_capture(s, "cudaStreamWaitEvent");
	if (event->node && !event->node->done) {
		std::vector<NodePtr> list = before(s);
		list.push_back(event->node);
		join(s, "cudaStreamWaitEvent", list);
	}
	return cudaSuccess;
}

static void check_event(cudaEvent_t event, const char *call)
{
	if (!event->recorded)
		sim_die("%s of an event that was never recorded", call);
	if (event->capture)
		sim_die("%s of an event that was recorded in a capture", call);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	sim_enter("cudaEventSynchronize");
	std::unique_lock<std::recursive_mutex> hold(lock);
	check_event(event, "cudaEventSynchronize");
	wait_for(event->node, hold);
	return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
	sim_enter("cudaEventQuery");
	std::lock_guard<std::recursive_mutex> hold(lock);
	check_event(event, "cudaEventQuery");
	return query(event->node);
}

/* Time is counted in records. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
	sim_enter("cudaEventElapsedTime");
	check_event(begin, "cudaEventElapsedTime");
	check_event(end, "cudaEventElapsedTime");
	if (!begin->timed || !end->timed)
		return sim_error(cudaErrorInvalidResourceHandle);
	*ms = (float)(end->number - begin->number);
	return (begin->node && !begin->node->done) || (end->node && !end->node->done) ? cudaErrorNotReady : cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode)
{
	sim_enter("cudaStreamBeginCapture");
	std::lock_guard<std::recursive_mutex> hold(lock);
	CUstream_st *s = stream_of(stream, "cudaStreamBeginCapture");
	if (s == &legacy)
		sim_die("cudaStreamBeginCapture of the legacy stream");
	check_no_capture(s, "cudaStreamBeginCapture");
	s->capture = new CUgraph_st{{}, {s}, s};
	s->tail.clear();
	captures.insert(s->capture);
	return cudaSuccess;
}

/* Whatever was captured must lead to the end of the stream where the capture began. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	sim_enter("cudaStreamEndCapture");
	std::lock_guard<std::recursive_mutex> hold(lock);
	CUstream_st *s = stream_of(stream, "cudaStreamEndCapture");
	CUgraph_st *g = s->capture;
	if (!g || g->origin != s)
		sim_die("cudaStreamEndCapture of a stream where no capture began");
	for (int b : s->tail)
		g->nodes[(size_t)b].followed = true;
	for (auto &n : g->nodes)
		if (!n.followed)
			sim_die("cudaStreamEndCapture: \"%s\" was captured on another stream, which the first one never joined",
				n.name.c_str());
	for (auto other : g->streams) {
		other->capture = NULL;
		other->tail.clear();
	}
	captures.erase(g);
	*graph = g;
	return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
	std::lock_guard<std::recursive_mutex> hold(lock);
	*status = stream_of(stream, "cudaStreamIsCapturing")->capture ? cudaStreamCaptureStatusActive :
		cudaStreamCaptureStatusNone;
	return cudaSuccess;
}

cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags)
{
	sim_enter("cudaGraphCreate");
	if (flags)
		return sim_error(cudaErrorInvalidValue);
	*graph = new CUgraph_st{{}, {}, NULL};
	return cudaSuccess;
}

/* Copies the child's nodes, and puts one behind them that stands for all.  Nodes move when others are added, so the
 * handle is that node's number, from 1, which only this function takes. */
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *before,
	size_t n, cudaGraph_t child)
{
	sim_enter("cudaGraphAddChildGraphNode");
	int first = (int)graph->nodes.size();
	std::vector<int> roots, ends;
	for (size_t i = 0; i < n; i++) {
		uintptr_t number = (uintptr_t)before[i];
		if (!number || number > (uintptr_t)first)
			sim_die("cudaGraphAddChildGraphNode behind a node that is not of this graph");
		roots.push_back((int)number - 1);
	}
	for (size_t i = 0; i < child->nodes.size(); i++) {
		CUgraphNode_st copy = child->nodes[i];
		for (int &b : copy.before)
			b += first;
		if (copy.before.empty())
			copy.before = roots;
		graph->nodes.push_back(copy);
		ends.push_back(first + (int)i);
	}
	ends.insert(ends.end(), roots.begin(), roots.end());
	int priority = child->nodes.empty() ? 0 : child->nodes[0].priority;
	graph->nodes.push_back({"cudaGraphAddChildGraphNode", SimWork(), false, NULL, priority, ends, false});
	*node = (cudaGraphNode_t)(uintptr_t)graph->nodes.size();
	return cudaSuccess;
}

/* A device takes all nodes for equal without the flag.  No program wants that of streams that differ. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
	sim_enter("cudaGraphInstantiate");
	for (auto &g : graph->nodes)
		if (g.priority != graph->nodes[0].priority && !(flags & cudaGraphInstantiateFlagUseNodePriority))
			sim_die("cudaGraphInstantiate loses the priorities of the captured streams: it needs "
				"cudaGraphInstantiateFlagUseNodePriority");
	*exec = new CUgraphExec_st{*graph, NULL};
	return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
	sim_enter("cudaGraphUpload");
	return cudaSuccess;
}

/* Issues copies of the graph's nodes, behind the stream's last node and the graph's previous launch. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
	sim_enter("cudaGraphLaunch");
	std::lock_guard<std::recursive_mutex> hold(lock);
	CUstream_st *s = stream_of(stream, "cudaGraphLaunch");
	check_no_capture(s, "cudaGraphLaunch");
	std::vector<NodePtr> roots = before(s), made;
	roots.push_back(exec->last);
	for (auto &g : exec->graph.nodes) {
		auto n = std::make_shared<Node>();
		n->name = g.name;
		n->work = g.work;
		n->exclusive = g.exclusive;
		n->stream = g.stream;
		n->priority = g.priority;
		std::vector<NodePtr> list;
		for (int b : g.before)
			list.push_back(made[(size_t)b]);
		add(n, g.before.empty() ? roots : list);
		made.push_back(n);
	}
	made.insert(made.end(), roots.begin(), roots.end());
	exec->last = join(s, "cudaGraphLaunch", made);
	after_issue();
	return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
	sim_enter("cudaGraphGetNodes");
	size_t all = graph->nodes.size();
	for (size_t i = 0; nodes && i < all && i < *n; i++)
		nodes[i] = &graph->nodes[i];
	*n = all;
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	sim_enter("cudaGraphDestroy");
	delete graph;
	return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	sim_enter("cudaGraphExecDestroy");
	delete exec;
	return cudaSuccess;
}
