/* predict/seconds.c: how long a machine takes for work. */
#include <math.h>
#include <string.h>

#include "predict/cost.h"

/* ---- roofline ---- */

static double peak(const Machine *m, const Work *w, bool tf32)
{
	switch (w->dtype) {
	case DT_BF16: return m->of[MACHINE_FLOPS_BF16];
	case DT_F16: return m->of[MACHINE_FLOPS_F16];
	case DT_E4M3: return !m->cuda ? m->of[MACHINE_FLOPS_BF16] /* in which CPUs compute them */
		: m->of[MACHINE_FLOPS_F8] >= 0 ? m->of[MACHINE_FLOPS_F8] : 2 * m->of[MACHINE_FLOPS_BF16];
	case DT_F64: return m->of[MACHINE_FLOPS_F32] / 2;
	default: return m->of[m->cuda && tf32 ? MACHINE_FLOPS_TF32 : MACHINE_FLOPS_F32];
	}
}

static double efficiency(const Machine *m, const Work *w)
{
	bool library = w->library && !w->backward && m->of[MACHINE_EFF_ATTENTION_LIBRARY] > 0;
	MachineNumber n = w->class == COST_CONV ? MACHINE_EFF_CONV : w->class != COST_ATTENTION ? MACHINE_EFF_MATMUL
		: library ? MACHINE_EFF_ATTENTION_LIBRARY : w->backward ? MACHINE_EFF_ATTENTION_GRAD : MACHINE_EFF_ATTENTION;
	return m->of[n];
}

/* The share of a GPU's processors that have a tile, over the waves in which they take them. */
static double filled(const Machine *m, const Work *w)
{
	double p = m->of[MACHINE_PROCESSORS];
	return m->cuda && w->tiles > 0 && !w->part ? w->tiles / (p * ceil(w->tiles / p)) : 1;
}

/* The share of a host that one rank has while it runs, where machine files state what all its cores or one GPU do. */
static double share(const Machine *m, MachineLayout l)
{
	double cores = m->of[MACHINE_RANKS];
	return m->cuda ? 1 : MIN((double)l.threads, cores / machine_running(m, l)) / cores;
}

double cost_at_peak(const Machine *m, const Work *w, MachineLayout l, bool tf32)
{
	return w->flops > 0 ? w->flops / (peak(m, w, tf32) * share(m, l)) : 0;
}

/* A wave of tiles of a product takes its products and what a tile needs to begin and to end. */
static double tiles_of_product(const Machine *m, const Work *w, double products)
{
	double waves = w->tiles / m->of[MACHINE_PROCESSORS];
	return products + (w->part ? waves : ceil(waves)) * m->of[MACHINE_TILE];
}

/* Tiles of attention wait for their exponentials.  A tile of queries begins, masks and ends in about the time of so
 * many keys, and twice as many backward (FlashAttention-2 on H100 by length, in the figures of the FlashAttention-3
 * paper). */
enum { KEYS_LOST = 128 };
static double tiles_of_attention(const Work *w, double products, double special)
{
	double lost = KEYS_LOST * (w->backward ? 2 : 1);
	return (products + special) * (w->keys > 0 ? 1 + lost / w->keys : 1);
}

static double roofline(const Machine *m, const Work *w, MachineLayout l, bool tf32)
{
	double part = share(m, l), bus = m->cuda ? 1 : 1.0 / machine_running(m, l);
	double products = cost_at_peak(m, w, l, tf32) / (efficiency(m, w) * filled(m, w));
	double bytes = w->bytes / (m->of[MACHINE_BANDWIDTH] * bus);
	double special = w->special / (m->of[MACHINE_SPECIAL] * part);
	if (m->cuda && w->class == COST_MATMUL)
		products = tiles_of_product(m, w, products);
	if (m->cuda && w->class == COST_ATTENTION)
		products = tiles_of_attention(w, products, special);
	return MAX(MAX(products, bytes), special) + w->calls * m->of[MACHINE_KERNEL];
}

/* ---- measured kernels ---- */

static double distance(double x, double y)
{
	return fabs(log((x + 1) / (y + 1)));
}

static bool ends_in(const char *text, const char *end)
{
	size_t all = strlen(text), n = strlen(end);
	return all >= n && !strcmp(text + all - n, end);
}

/* Whether the row is of this optimizer; "": of an op that is no update. */
static bool is_of(const MachineKernel *k, const char *optimizer) { return ends_in(k->op, optimizer); }

/* How unlike the work of a row is; 0: equal. */
static double unlike(const MachineKernel *k, const Work *w, const char *optimizer)
{
	const double other = 4; /* updates of another optimizer say something of the machine, but little of this one */
	const double cached = 1; /* what one of two ops has in caches, and the other not */
	return distance(k->flops, w->flops) + distance(k->bytes, w->bytes) + distance(k->special, w->special)
		+ (is_of(k, optimizer) ? 0 : other) + (ends_in(k->op, COST_AGAIN) == w->again ? 0 : cached);
}

static Work work_of(const MachineKernel *k, const Work *like)
{
	Work w = *like;
	w.flops = k->flops;
	w.bytes = k->bytes;
	w.special = k->special;
	return w;
}

/* How many times as long as the roofline says the nearest rows take, each weighted by its likeness; 0: no row is of
 * this kind and dtype. */
static double nearest(const Machine *m, const Op *op, const Work *w, MachineLayout l, bool tf32)
{
	const Value *first = op_in(op, 0);
	const char *optimizer = attr_get_str(op->attrs, "optimizer", ""), *kind = op_info[op->kind].text;
	const char *dtype = !first ? "" : first->type.kind == TYPE_TENSOR ? dtype_info[first->type.dtype].text : "f32";
	double sum = 0, weights = 0;
	bool rounded = m->cuda && cost_rounds(w, tf32);
	for (int i = 0; i < m->n_kernels; i++) {
		const MachineKernel *k = &m->kernel[i];
		const char *operand = k->op + strlen(k->kind);
		if (strcmp(k->kind, kind) || k->layout.ranks != l.ranks || k->layout.threads != l.threads || k->tf32 != rounded
			|| strncmp(operand + (*operand == ' '), dtype, strlen(dtype)))
			continue;
		Work row = work_of(k, w);
		double expected = roofline(m, &row, l, tf32);
		if (expected < 1e-15)
			continue; /* as good as no work: its time says nothing of a rate */
		double far = unlike(k, w, optimizer), weight = 1 / (1e-6 + far * far * far * far);
		sum += weight * log(k->seconds / expected);
		weights += weight;
	}
	return weights > 0 ? exp(sum / weights) : 0;
}

/* The row of this work, if it is `again` or if not; NULL: there is none. */
static const MachineKernel *row_of(const Machine *m, const Op *op, const Work *w, bool again, MachineLayout l,
	bool tf32)
{
	if (!m->n_kernels)
		return NULL;
	Arena *a = arena_new();
	Work x = *w;
	x.again = again;
	const MachineKernel *k = map_get(m->by_op, machine_key(l, m->cuda && cost_rounds(w, tf32), cost_row(op, &x, a), a));
	arena_free(a);
	return k;
}

static CostTime alone(const Machine *m, const Op *op, const Work *w, MachineLayout l, bool tf32)
{
	const MachineKernel *own = row_of(m, op, w, w->again, l, tf32);
	const MachineKernel *k = own ? own : row_of(m, op, w, !w->again, l, tf32);
	if (k)
		return (CostTime){k->seconds, own ? COST_MEASURED : COST_NEAR};
	double times = nearest(m, op, w, l, tf32);
	return times > 0 ? (CostTime){times * roofline(m, w, l, tf32), COST_NEAR}
		: (CostTime){roofline(m, w, l, tf32), COST_ROOFLINE};
}

CostTime cost_seconds(const Machine *m, const Op *op, const Work *w, MachineLayout layout, bool tf32)
{
	if (w->class == COST_NONE)
		return (CostTime){0, COST_MEASURED};
	CostTime t = alone(m, op, w, layout, tf32);
	double bus = w->host > 0 ? w->host / m->of[MACHINE_HOST] : 0;
	return bus > t.seconds ? (CostTime){bus, COST_ROOFLINE} : t;
}

double cost_again(const Machine *m, const Op *op, const Work *w, MachineLayout layout, bool tf32)
{
	const MachineKernel *k = row_of(m, op, w, true, layout, tf32);
	return k ? k->seconds : INFINITY;
}

/* ---- collectives ---- */

/* Between the two measured sizes around it, in proportion; below the least as that, above the largest by its bytes a
 * second.  0: there is no row of its kind, ranks and communicator. */
static double interpolated(const Machine *m, const CostMessage *c, Communicator comm)
{
	const MachineCollective *below = NULL, *above = NULL;
	double bytes = (double)c->bytes;
	for (int i = 0; i < m->n_collectives; i++) {
		const MachineCollective *x = &m->collective[i];
		if (x->kind != c->kind || x->ranks != c->members || x->comm != comm)
			continue;
		if (x->bytes <= bytes && (!below || x->bytes > below->bytes))
			below = x;
		if (x->bytes >= bytes && (!above || x->bytes < above->bytes))
			above = x;
	}
	if (!below)
		return above ? above->seconds : 0;
	if (!above)
		return below->bytes > 0 ? below->seconds * bytes / below->bytes : below->seconds;
	double part = above->bytes > below->bytes ? (bytes - below->bytes) / (above->bytes - below->bytes) : 0;
	return below->seconds + part * (above->seconds - below->seconds);
}

/* As measured inside a host: over its communicator or, where that has no row, as the host's ranks talk by themselves,
 * since those that mpirun starts share the host's memory, too. */
static double measured(const Machine *m, const CostMessage *c)
{
	Communicator unsaid = machine_comm(m->cuda), comm = c->comm == COMM_UNSAID ? unsaid : c->comm;
	double seconds = c->hosts <= 1 ? interpolated(m, c, comm) : 0;
	return seconds > 0 || comm == unsaid || c->hosts > 1 ? seconds : interpolated(m, c, unsaid);
}

/* Between two rows a byte takes no less than in one of them, below the least and above the largest as in that. */
static double least_of_rows(const Machine *m, const CostMessage *c, Communicator comm)
{
	double least = INFINITY;
	for (int i = 0; i < m->n_collectives; i++) {
		const MachineCollective *x = &m->collective[i];
		if (x->kind == c->kind && x->ranks == c->members && x->comm == comm && x->bytes > 0)
			least = MIN(least, x->seconds / x->bytes);
	}
	return (double)c->bytes * least;
}

double cost_transfer_least(const Machine *m, const CostMessage *c)
{
	Communicator unsaid = machine_comm(m->cuda);
	if (!c->bytes || measured(m, c) <= 0)
		return INFINITY;
	double own = least_of_rows(m, c, c->comm == COMM_UNSAID ? unsaid : c->comm);
	return isinf(own) ? least_of_rows(m, c, unsaid) : own;
}

/* Inside a host, links carry all that a rank receives.  Across hosts, each byte enters a host once, through the network
 * of all members on it, and reaches them over links at the same time (rings that cross the network once per host). */
double cost_transfer(const Machine *m, const CostMessage *c)
{
	double seconds = measured(m, c);
	if (seconds > 0 || c->members <= 1)
		return seconds;
	double links = (double)c->bytes / m->of[MACHINE_LINK], hosts = (double)c->hosts;
	double on_host = MAX((double)c->members / hosts, 1);
	double network = hosts > 1 ? (double)c->bytes * (hosts - 1) / hosts / (m->of[MACHINE_NETWORK] * on_host) : 0;
	if (on_host <= 1)
		network = (double)c->bytes / m->of[MACHINE_NETWORK];
	double latency = m->of[MACHINE_LINK_LATENCY] + (hosts > 1 ? m->of[MACHINE_NETWORK_LATENCY] * ceil(log2(hosts)) : 0);
	return MAX(links, network) + latency;
}
