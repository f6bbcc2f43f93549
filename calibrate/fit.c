/* calibrate/fit.c: the numbers of a machine file from its measured rows, and the file.
 *
 * The numbers are the best that any row reaches: they bound what no row is like.  Rows that are like an op decide its
 * time (predict/seconds.c). */
#include <errno.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/file.h"
#include "base/unfinished.h"
#include "calibrate/private.h"

typedef struct Number { double value; const char *source; } Number;
typedef struct Fit { const Measured *all; Arena *a; const char *name; Number of[MACHINE_NUMBERS]; } Fit;

enum { LARGE = 32 << 20, SMALL = 8 << 20 }; /* bytes of loops that stream memory, and that do not */

/* How good a row is by one measure; 0: it says nothing of it. */
typedef double Measure(const MeasuredKernel *k);

static double flops(const MeasuredKernel *k, DType t)
{
	return k->work.dtype == t ? k->row.flops / k->row.seconds : 0;
}

static double of_f32(const MeasuredKernel *k) { return flops(k, DT_F32); }
static double of_bf16(const MeasuredKernel *k) { return flops(k, DT_BF16); }
static double of_products(const MeasuredKernel *k) { return k->work.class == COST_MATMUL ? of_f32(k) : 0; }
static double of_conv(const MeasuredKernel *k) { return k->work.class == COST_CONV ? of_f32(k) : 0; }

static double of_attention(const MeasuredKernel *k)
{
	return k->work.class == COST_ATTENTION && !k->work.backward ? of_f32(k) : 0;
}

static double of_attention_grad(const MeasuredKernel *k)
{
	return k->work.class == COST_ATTENTION && k->work.backward ? of_f32(k) : 0;
}

static double of_memory(const MeasuredKernel *k)
{
	bool streams = k->work.class == COST_LOOP || k->work.class == COST_MOVE || k->work.class == COST_UPDATE;
	return streams && k->row.bytes >= LARGE ? k->row.bytes / k->row.seconds : 0;
}

static double of_special(const MeasuredKernel *k)
{
	return k->work.class == COST_LOOP && k->row.bytes <= SMALL ? k->row.special / k->row.seconds : 0;
}

static double of_latency(const MeasuredKernel *k)
{
	return k->work.class == COST_LOOP ? 1 / k->row.seconds : 0;
}

/* The best row among those of at most a rank for each core.  Where other programs take turns on a core, threads of one
 * rank wait for each other, and its rows are below those of separate ranks.  What ranks compute counts together, but
 * not what they move: they share the memory, and may not move at the same time. */
static Number best(const Fit *f, Measure *measure)
{
	Number found = {0, ""};
	for (int i = 0; i < f->all->kernels.n; i++) {
		const MeasuredKernel *k = &f->all->kernels.at[i];
		MachineLayout l = k->row.layout;
		double x = measure(k) * (measure == of_memory || measure == of_latency ? 1 : l.ranks);
		if (l.ranks * l.threads <= f->all->cores && x > found.value)
			found = (Number){x, arena_printf(f->a, "measured by shardc calibrate on %d rank%s of %d thread%s: %s",
				l.ranks, l.ranks == 1 ? "" : "s", l.threads, l.threads == 1 ? "" : "s", k->row.op)};
	}
	return found;
}

static void set(Fit *f, MachineNumber n, double value, const char *source)
{
	f->of[n] = (Number){value, source};
}

static void fit_products(Fit *f, bool bf16)
{
	static const struct { MachineNumber n; Measure *of; } rows[] = {{MACHINE_EFF_MATMUL, of_products},
		{MACHINE_EFF_CONV, of_conv}, {MACHINE_EFF_ATTENTION, of_attention},
		{MACHINE_EFF_ATTENTION_GRAD, of_attention_grad}};
	Number f32 = best(f, of_f32), half = best(f, of_bf16);
	f->of[MACHINE_FLOPS_F32] = f32;
	f->of[MACHINE_FLOPS_BF16] = half;
	set(f, MACHINE_FLOPS_F16, half.value, bf16 ? "taken to be that of bf16, which is measured"
		: "taken to be that of bf16: this processor computes products of both in f32");
	for (int i = 0; i < COUNT_OF(rows); i++) {
		Number x = best(f, rows[i].of);
		f->of[rows[i].n] = (Number){MIN(x.value / f32.value, 1), x.source};
	}
}

/* Of as many ranks as there are cores, or of two. */
static void fit_links(Fit *f)
{
	Number bandwidth = {0, ""}, latency = {1, ""};
	for (int i = 0; i < f->all->collectives.n; i++) {
		const MachineCollective *c = &f->all->collectives.at[i];
		if (c->ranks != MAX(f->all->cores, 2))
			continue;
		const char *source = arena_printf(f->a, "measured by shardc calibrate: %s of %.0f bytes among %d ranks",
			collective_info[c->kind].text, c->bytes, c->ranks);
		if (c->bytes / c->seconds > bandwidth.value)
			bandwidth = (Number){c->bytes / c->seconds, source};
		if (c->seconds < latency.value)
			latency = (Number){c->seconds, source};
	}
	f->of[MACHINE_LINK] = bandwidth;
	f->of[MACHINE_LINK_LATENCY] = latency;
}

static void fit(Fit *f, bool bf16)
{
	int cores = f->all->cores;
	double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
	set(f, MACHINE_HOSTS, 1, "this machine");
	set(f, MACHINE_RANKS, cores, "processors that shardc calibrate may use");
	set(f, MACHINE_MEMORY, memory / cores, "this machine's memory, divided by its processors");
	f->of[MACHINE_BANDWIDTH] = best(f, of_memory);
	f->of[MACHINE_SPECIAL] = best(f, of_special);
	Number rate = best(f, of_latency);
	set(f, MACHINE_KERNEL, 1 / rate.value, rate.source);
	fit_products(f, bf16);
	fit_links(f);
}

static const char *name_of_host(const Fit *f)
{
	struct utsname host;
	return arena_printf(f->a, "%s, %d cores", uname(&host) ? "this machine" : host.nodename, f->all->cores);
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
		fprintf(out, "%s\n    {\"op\": \"%s\", \"layout\": \"%dx%d\", \"seconds\": %.4g, ", i ? "," : "",
			quoted(f, k->op), k->layout.ranks, k->layout.threads, k->seconds);
		fprintf(out, "\"flops\": %.10g, \"bytes\": %.10g, \"special\": %.10g}", k->flops, k->bytes, k->special);
	}
	fprintf(out, "\n  ],\n  \"collectives\": [");
	for (int i = 0; i < all->collectives.n; i++) {
		const MachineCollective *c = &all->collectives.at[i];
		fprintf(out, "%s\n    {\"kind\": \"%s\", \"ranks\": %d, \"bytes\": %.10g, \"seconds\": %.4g}", i ? "," : "",
			collective_info[c->kind].text, c->ranks, c->bytes, c->seconds);
	}
	fprintf(out, "\n  ]\n}\n");
}

static void put_file(FILE *out, const void *context)
{
	const Fit *f = context;
	fprintf(out, "{\n  \"name\": \"%s\",\n  \"device\": \"cpu\",\n", quoted(f, f->name));
	for (int n = 0; n < MACHINE_NUMBERS; n++)
		if (f->of[n].source)
			fprintf(out, "  \"%s\": [%.6g, \"%s\"],\n", key[n], f->of[n].value, quoted(f, f->of[n].source));
	put_rows(f, out);
}

bool measured_write(const Measured *all, const Machine *old, const char *path, bool bf16, Diag *d)
{
	Fit f = {.all = all, .a = arena_new()};
	if (old)
		for (MachineNumber n = 0; n < MACHINE_NUMBERS; n++)
			f.of[n] = (Number){old->of[n], old->source[n]};
	else
		fit(&f, bf16);
	f.name = old ? old->name : name_of_host(&f);
	bool ok = unfinished_write(path, put_file, &f, d);
	arena_free(f.a);
	return ok;
}
