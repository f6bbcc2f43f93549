/* checks.c: options against each other and the files that they name, before a model is read, and against a text. */
#include "checks.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "build.h"

/* What the program is built for, and with which tools. */
CodegenTarget target_options(const Options *o)
{
	return (CodegenTarget){.options = o->target, .text = o->canonical_target, .library = o->what.emit == EMIT_LIB,
		.tf32 = o->precision.matmul_precision == MATMUL_TF32, .verbose = o->inspection.verbose};
}

/* Refuses other dtypes than f32 for what a hook gets. */
bool check_sent(const Options *o, Diag *d)
{
	bool wide = o->precision.reduce_dtype == DT_F32 && !o->precision.keep_low_precision_grads;
	if (!wide)
		diag_error(d, "--comm-hook", "a hook gets gradients in f32 and decides what is sent: leave out "
			"--reduce-dtype and --keep-low-precision-grads");
	return wide;
}

/* bf16 and f16 as --comm-hook name no hook: they mean --reduce-dtype, and become it. */
bool check_half_hook(Options *o, Diag *d)
{
	const char *text = o->graph.comm_hook, *asked = dtype_info[o->precision.reduce_dtype].text;
	DType half = !text ? DT_F32 : !strcmp(text, "bf16") ? DT_BF16 : !strcmp(text, "f16") ? DT_F16 : DT_F32;
	if (half == DT_F32)
		return true;
	if (o->given.reduce_dtype && o->precision.reduce_dtype != half) {
		diag_error(d, "--comm-hook", "%s sends gradients as %s, and --reduce-dtype=%s as %s: give one of them",
			text, text, asked, asked);
		return false;
	}
	o->precision.reduce_dtype = half;
	o->graph.comm_hook = NULL;
	return true;
}

/* A program may replace an older program, but no other file that somebody may miss. */
bool check_output(const char *path, Diag *d)
{
	struct stat st;
	if (stat(path, &st))
		return true;
	if (!S_ISREG(st.st_mode))
		diag_error(d, path, "is there and is no regular file: a program does not take its place");
	else if (st.st_size && !(st.st_mode & (S_IXUSR | S_IXGRP | S_IXOTH)))
		diag_error(d, path, "is there and is no program (it is not executable): it is not replaced; give another path, "
			"or remove it");
	else
		return true;
	return false;
}

/* Checks that a file to be written is none that this command reads. */
bool check_apart(const Options *o, const char *option, const char *path, Diag *d)
{
	const struct { const char *path, *what; } read[] = {{o->input, "the model"}, {o->what.machine, "the machine file"},
		{o->what.report_log, "the log of --report-log"}, {o->what.report_trace, "the trace of --report-trace"}};
	struct stat in, out;
	for (int i = 0; i < COUNT_OF(read); i++)
		if (path && read[i].path && !stat(read[i].path, &in) && !stat(path, &out) && in.st_dev == out.st_dev
			&& in.st_ino == out.st_ino) {
			diag_error(d, option, "\"%s\" is %s itself: it is not replaced; give another path", path, read[i].what);
			return false;
		}
	return true;
}

enum { OLDEST = 80, FIRST_F8 = 89 }; /* of the GPUs: for which there are kernels; that multiply 8-bit floats */

/* Refuses options that belong to the other target, and GPUs that lack what they ask for. */
bool check_target(const Options *o, Diag *d)
{
	int before = d->errors;
	if (!options_cuda(o) && o->target.arch && !strncmp(o->target.arch, "sm_", 3))
		diag_error(d, "--arch", "\"%s\" is for GPUs: it wants --target=cuda", o->target.arch);
	if (!options_cuda(o) && o->target.nvcc)
		diag_error(d, "--nvcc", "\"%s\" compiles CUDA: it wants --target=cuda", o->target.nvcc);
	if (!options_cuda(o) && o->precision.matmul_precision == MATMUL_TF32)
		diag_error(d, "--matmul-precision", "tf32 is a number format of GPUs: it wants --target=cuda");
	if (!options_cuda(o) && o->given.attention)
		diag_error(d, "--attention", "which kernels compute it is a choice of GPUs: it wants --target=cuda");
	if (options_cuda(o) && options_sm(o) < OLDEST)
		diag_error(d, "--arch", "\"%s\" is an older GPU than kernels are written for: they want sm_80 or later",
			o->target.arch);
	else if (options_cuda(o) && o->precision.matmul_dtype == MATMUL_FP8 && options_sm(o) < FIRST_F8)
		diag_error(d, "--matmul-dtype", "--arch=%s has no products of 8-bit floats: fp8 wants sm_90a or later "
			"(sm_89 has them, too); leave it out, and products are computed in --param-dtype", o->target.arch);
	const CommInfo *comm = &comm_info[o->sharding.comm];
	if (!options_cuda(o) && comm->cuda)
		diag_error(d, "--comm", "%s moves memory of GPUs: it wants --target=cuda", comm->text);
	if (options_cuda(o) && o->what.emit == EMIT_LIB)
		diag_error(d, "--emit", "lib is refused with --target=cuda: a library's arrays are the host's");
	return d->errors == before;
}

void check_products(Module *m, const Options *o, Diag *d)
{
	for (int s = 0; m && s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			if (op->kind == OP_MATMUL_F8 && options_cuda(o) && options_sm(o) < FIRST_F8) {
				diag_error(d, loc_where(m, op->loc), "--arch=%s has no products of 8-bit floats, which this text has: "
					"they want sm_90a or later (sm_89 has them, too)", o->target.arch);
				return;
			}
}

/* Reports a missing compiler or runtime, or an arch that is none, before time is spent and anything is written. */
bool check_compiler(const Options *o, Diag *d)
{
	CodegenTarget c = target_options(o);
	bool builds = !prints_ir(o) && !is_plan(o) && o->what.emit != EMIT_C;
	return builds ? codegen_check_target(&c, d) : codegen_check_arch(&c, d);
}

/* Checks the number of ranks for which a plan is requested. */
bool check_ranks(const Options *o, Diag *d)
{
	int64_t world = MAX(o->sharding.world, 1), hosts = MAX(o->sharding.hosts, 1);
	const CommInfo *comm = &comm_info[o->sharding.comm];
	int before = d->errors;
	if (world % hosts)
		diag_error(d, "--hosts", "%lld hosts do not divide --world=%lld into equal numbers of ranks", (long long)hosts,
			(long long)world);
	if (o->sharding.comm && hosts > 1 && comm->reach < REACH_HOSTS)
		diag_error(d, "--comm", "%s does not leave a host; several hosts (--hosts=%lld) talk by %s", comm->text,
			(long long)hosts, comm_of_hosts()->text);
	else if (o->sharding.comm && world > 1 && comm->reach < REACH_HOST)
		diag_error(d, "--comm", "%s is for one rank; several (--world=%lld) talk by %s", comm->text, (long long)world,
			comm_info[comm_fitting(world, hosts, options_cuda(o))].text);
	return d->errors == before;
}

/* Reports options of several micro-batches when a step has only one. */
bool check_accum(const Options *o, Diag *d)
{
	int before = d->errors;
	if (!options_many(o) && o->given.sync)
		diag_error(d, "--sync", "there is one micro-batch a step: --sync=%s wants --accum=many",
			sync_text[o->graph.sync]);
	if (!options_many(o) && o->given.micro_batch && !options_reads_text(o))
		diag_error(d, "--micro-batch", "there is one micro-batch a step: --micro-batch=%s wants --accum=many",
			variant_text[o->what.micro_batch]);
	if (options_many(o) && options_infer(o))
		diag_error(d, "--accum", "many is for training, shardc run has no gradients");
	if (options_many(o) && sync_of(o) == SYNC_EVERY && o->precision.keep_low_precision_grads)
		diag_error(d, "--keep-low-precision-grads", "micro-batches are summed in what is kept (--sync=every), and sums "
			"are f32");
	if (options_many(o) && o->what.emit == EMIT_LIB)
		diag_error(d, "--accum", "many is for programs: a library's step takes the samples of one micro-batch");
	if (options_many(o) && o->what.passes)
		diag_error(d, "--accum", "many runs the whole pipeline; to run passes on one micro-batch's text, say which it "
			"is in its first line: variant=first sync=last (docs/ir.md)");
	return d->errors == before;
}

/* Refuses a hook where the reduced gradient must be added up: a hook only writes it. */
bool check_hook(const Options *o, const Hook *hook, Diag *d)
{
	if (!hook->file || !options_many(o) || sync_of(o) != SYNC_EVERY)
		return true;
	diag_error(d, "--comm-hook", "\"%s\" reduces a gradient once a step: it wants --sync=last, not every",
		o->graph.comm_hook);
	return false;
}
