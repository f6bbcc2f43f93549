/* calibrate/fit.c: the numbers of a machine file from its measured rows, and the file.
 *
 * The numbers are the best that any row reaches: they bound what no row is like.  Rows that are like an op decide its
 * time (predict/seconds.c). */
#include "base/file.h"
#include "base/unfinished.h"
#include "calibrate/private.h"

typedef struct Number { double value; const char *source; } Number;
typedef struct Fit {
	const Measured *all;
	Arena *a;
	const char *name;
	double large;        /* bytes of kernels that stream memory */
	Number of[MACHINE_NUMBERS];
} Fit;

/* Bytes: what is LARGE is in no cache; loops that are SMALL are in caches of CPUs. */
enum { LARGE_CPU = 32 << 20, LARGE_GPU = 256 << 20, SMALL = 8 << 20 };

/* How good a row is by one measure; 0: it says nothing of it. */
typedef double Measure(const Fit *f, const MeasuredKernel *k);

static double flops(const MeasuredKernel *k, DType t)
{
	return k->work.dtype == t && !k->row.tf32 ? k->row.flops / k->row.seconds : 0;
}

static double of_f32(const Fit *f, const MeasuredKernel *k) { return (void)f, flops(k, DT_F32); }
static double of_bf16(const Fit *f, const MeasuredKernel *k) { return (void)f, flops(k, DT_BF16); }

static double of_tf32(const Fit *f, const MeasuredKernel *k)
{
	(void)f;
	return k->row.tf32 ? k->row.flops / k->row.seconds : 0;
}

/* Efficiencies are of products of f32 on CPUs, of bf16 on GPUs. */
static double of_products(const Fit *f, const MeasuredKernel *k, CostClass class, bool backward)
{
	bool is = k->work.class == class && (class != COST_ATTENTION || k->work.backward == backward);
	return is ? flops(k, f->all->host->cuda ? DT_BF16 : DT_F32) : 0;
}

static double of_matmul(const Fit *f, const MeasuredKernel *k) { return of_products(f, k, COST_MATMUL, false); }
static double of_conv(const Fit *f, const MeasuredKernel *k) { return of_products(f, k, COST_CONV, false); }
static double of_attention(const Fit *f, const MeasuredKernel *k) { return of_products(f, k, COST_ATTENTION, false); }

static double of_library(const Fit *f, const MeasuredKernel *k)
{
	return k->work.library ? of_attention(f, k) : 0;
}

static double of_attention_grad(const Fit *f, const MeasuredKernel *k)
{
	return of_products(f, k, COST_ATTENTION, true);
}

static double streamed(const MeasuredKernel *k)
{
	CostClass class = k->work.class;
	return class == COST_LOOP || class == COST_MOVE || class == COST_UPDATE ? k->row.bytes : 0;
}

static double of_memory(const Fit *f, const MeasuredKernel *k)
{
	return streamed(k) >= f->large ? streamed(k) / k->row.seconds : 0;
}

static double of_special(const Fit *f, const MeasuredKernel *k)
{
	bool cached = f->all->host->cuda || k->row.bytes <= SMALL;
	return k->work.class == COST_LOOP && cached ? k->row.special / k->row.seconds : 0;
}

static double of_latency(const Fit *f, const MeasuredKernel *k)
{
	(void)f;
	return k->work.class == COST_LOOP ? 1 / k->row.seconds : 0;
}

/* The best row among those of at most a rank for each core or GPU.  Where other programs take turns on a core, threads
 * of one rank wait for each other, and its rows are below those of separate ranks.  What ranks compute counts together,
 * but not what they move: they share the memory, and may not move at the same time. */
static Number best(const Fit *f, Measure *measure)
{
	Number found = {0, ""};
	for (int i = 0; i < f->all->kernels.n; i++) {
		const MeasuredKernel *k = &f->all->kernels.at[i];
		MachineLayout l = k->row.layout;
		double x = measure(f, k) * (measure == of_memory || measure == of_latency ? 1 : l.ranks);
		const char *on = f->all->host->cuda ? "one GPU" : arena_printf(f->a, "%d rank%s of %d thread%s", l.ranks,
			l.ranks == 1 ? "" : "s", l.threads, l.threads == 1 ? "" : "s");
		if (l.ranks * l.threads <= f->all->host->ranks && x > found.value)
			found = (Number){x, arena_printf(f->a, "measured by shardc calibrate on %s: %s", on, k->row.op)};
	}
	return found;
}

static void set(Fit *f, MachineNumber n, double value, const char *source)
{
	f->of[n] = (Number){value, source};
}

static void fit_products(Fit *f, bool bf16)
{
	static const struct { MachineNumber n; Measure *of; } rows[] = {{MACHINE_EFF_MATMUL, of_matmul},
		{MACHINE_EFF_CONV, of_conv}, {MACHINE_EFF_ATTENTION, of_attention},
		{MACHINE_EFF_ATTENTION_GRAD, of_attention_grad}};
	bool cuda = f->all->host->cuda;
	Number f32 = best(f, of_f32), half = best(f, of_bf16);
	f->of[MACHINE_FLOPS_F32] = f32;
	f->of[MACHINE_FLOPS_BF16] = half;
	if (cuda)
		f->of[MACHINE_FLOPS_TF32] = best(f, of_tf32);
	set(f, MACHINE_FLOPS_F16, half.value, bf16 ? "taken to be that of bf16, which is measured"
		: "taken to be that of bf16: this processor computes products of both in f32");
	for (int i = 0; i < COUNT_OF(rows); i++) {
		Number x = best(f, rows[i].of);
		f->of[rows[i].n] = (Number){MIN(x.value / (cuda ? half : f32).value, 1), x.source};
	}
	Number library = best(f, of_library);
	if (library.value > 0)
		f->of[MACHINE_EFF_ATTENTION_LIBRARY] = (Number){MIN(library.value / half.value, 1), library.source};
}

/* Of as many ranks as there are cores or GPUs, or of two, which talk as this host's do by themselves. */
static void fit_links(Fit *f)
{
	const Host *h = f->all->host;
	Number bandwidth = {0, ""}, latency = {1, ""};
	for (int i = 0; i < f->all->collectives.n; i++) {
		const MachineCollective *c = &f->all->collectives.at[i];
		if (c->ranks != MAX(h->ranks, 2) || c->comm != machine_comm(h->cuda))
			continue;
		const char *source = arena_printf(f->a, "measured by shardc calibrate: %s of %.0f bytes among %d ranks",
			collective_info[c->kind].text, c->bytes, c->ranks);
		if (c->bytes / c->seconds > bandwidth.value)
			bandwidth = (Number){c->bytes / c->seconds, source};
		if (c->seconds < latency.value)
			latency = (Number){c->seconds, source};
	}
	if (h->cuda && h->ranks == 1)
		return; /* it has no other to receive of */
	f->of[MACHINE_LINK] = bandwidth;
	f->of[MACHINE_LINK_LATENCY] = latency;
}

/* Why no op was measured beside a collective. */
static const char *why_alone(const Fit *f)
{
	const Host *h = f->all->host;
	if (h->cuda && h->ranks == 1)
		return "not measured, taken to be 1: one GPU has no collectives";
	if (!h->cuda && h->ranks / 2 < 2)
		return arena_printf(f->a, "not measured, taken to be 1: two ranks leave no core of %d for their collectives",
			h->ranks);
	return "not measured, taken to be 1: no op of the programs that were measured ran beside a collective";
}

/* What ran beside collectives took `beside` seconds there, of which `longer` would not have been needed alone. */
static void fit_contention(Fit *f)
{
	const Measured *all = f->all;
	double most = 100, alone = all->beside - all->longer;
	double times = alone > all->beside / most ? all->beside / alone : most;
	const char *whose = all->host->cuda ? "all GPUs" : "ranks that leave a core to each";
	if (all->n_beside)
		set(f, MACHINE_CONTENTION, MAX(times, 1), arena_printf(f->a, "measured by shardc calibrate: %d ops that ran "
			"beside collectives of %s", all->n_beside, whose));
	else
		set(f, MACHINE_CONTENTION, 1, why_alone(f));
	if (all->host->cuda)
		set(f, MACHINE_CONTENTION_COPY, 1, "not measured, taken to be 1: programs that are measured gather by kernels");
}

static void fit_host(Fit *f)
{
	const Host *h = f->all->host;
	set(f, MACHINE_HOSTS, 1, "this machine");
	set(f, MACHINE_RANKS, h->ranks, h->cuda ? "GPUs that shardc calibrate may use"
		: "processors that shardc calibrate may use");
	set(f, MACHINE_MEMORY, h->memory, h->cuda ? "a GPU's, as its driver says"
		: "this machine's memory, divided by its processors");
	if (h->cuda) {
		set(f, MACHINE_PROCESSORS, h->processors, "a GPU's, as its driver says");
		set(f, MACHINE_CAPABILITY, h->capability, "as its driver says");
	}
}

static void fit(Fit *f, bool bf16)
{
	const Measured *all = f->all;
	for (int i = 0; i < all->kernels.n; i++)
		f->large = MAX(f->large, streamed(&all->kernels.at[i]) / 2);
	f->large = MIN(f->large, all->host->cuda ? LARGE_GPU : LARGE_CPU);
	fit_host(f);
	f->of[MACHINE_BANDWIDTH] = best(f, of_memory);
	f->of[MACHINE_SPECIAL] = best(f, of_special);
	Number rate = best(f, of_latency);
	set(f, MACHINE_KERNEL, 1 / rate.value, all->host->cuda && *rate.source
		? arena_printf(f->a, "%s, call by call, not in a CUDA graph", rate.source) : rate.source);
	fit_products(f, bf16);
	fit_links(f);
	fit_contention(f);
}

/* ---- the file ---- */

static const char *const key[MACHINE_NUMBERS] = {
#define MACHINE(id, text, ...) [MACHINE_##id] = text,
#include "predict/machine.def"
};

static const char *quoted(const Fit *f, const char *text)
{
	return str_escape(f->a, ESCAPE_JSON, text);
}

static void put_rows(const Fit *f, FILE *out)
{
	const Measured *all = f->all;
	fprintf(out, "  \"kernels\": [");
	for (int i = 0; i < all->kernels.n; i++) {
		const MachineKernel *k = &all->kernels.at[i].row;
		fprintf(out, "%s\n    {\"op\": \"%s\", \"layout\": \"%dx%d\", %s\"seconds\": %.4g, ", i ? "," : "",
			quoted(f, k->op), k->layout.ranks, k->layout.threads, k->tf32 ? "\"tf32\": true, " : "", k->seconds);
		fprintf(out, "\"flops\": %.10g, \"bytes\": %.10g, \"special\": %.10g}", k->flops, k->bytes, k->special);
	}
	fprintf(out, "\n  ],\n  \"collectives\": [");
	for (int i = 0; i < all->collectives.n; i++) {
		const MachineCollective *c = &all->collectives.at[i];
		const char *comm = c->comm == machine_comm(all->host->cuda) ? "" : arena_printf(f->a, "\"comm\": \"%s\", ",
			comm_info[c->comm].text);
		fprintf(out, "%s\n    {\"kind\": \"%s\", %s\"ranks\": %d, \"bytes\": %.10g, \"seconds\": %.4g}", i ? "," : "",
			collective_info[c->kind].text, comm, c->ranks, c->bytes, c->seconds);
	}
	fprintf(out, "\n  ]");
	for (int i = 0; i < all->steps.n; i++) {
		const MachineStep *s = &all->steps.at[i];
		fprintf(out, "%s\n    {\"program\": \"%s\", \"layout\": \"%dx%d\", \"collectives\": %d, \"ops\": %.6g, "
			"\"rest\": %.6g}", i ? "," : ",\n  \"steps\": [", quoted(f, s->program), s->layout.ranks,
			s->layout.threads, s->collectives, s->ops, s->rest);
	}
	fprintf(out, "%s\n}\n", all->steps.n ? "\n  ]" : "");
}

static void put_file(FILE *out, const void *context)
{
	const Fit *f = context;
	fprintf(out, "{\n  \"name\": \"%s\",\n  \"device\": \"%s\",\n", quoted(f, f->name),
		f->all->host->cuda ? "cuda" : "cpu");
	for (int n = 0; n < MACHINE_NUMBERS; n++)
		if (f->of[n].source)
			fprintf(out, "  \"%s\": [%.6g, \"%s\"],\n", key[n], f->of[n].value, quoted(f, f->of[n].source));
	put_rows(f, out);
}

/* Whether each number is one that a file may have; false after a message. */
static bool is_complete(const Fit *f, Diag *d)
{
	int before = d->errors;
	for (int n = 0; n < MACHINE_NUMBERS; n++)
		if (f->of[n].source && !*f->of[n].source)
			diag_error(d, "shardc calibrate", "no program that was measured says what %s is: nothing that it follows "
				"from took a time that could be measured; calibrate again", key[n]);
	return d->errors == before;
}

bool measured_write(const Measured *all, const Machine *old, const char *path, bool bf16, Diag *d)
{
	Fit f = {.all = all, .a = arena_new(), .name = old ? old->name : all->host->name};
	if (old)
		for (MachineNumber n = 0; n < MACHINE_NUMBERS; n++)
			f.of[n] = (Number){old->of[n], old->source[n]};
	else
		fit(&f, bf16);
	bool ok = is_complete(&f, d) && unfinished_write(path, put_file, &f, d);
	arena_free(f.a);
	return ok;
}
