/* main.c: options -> frontend -> pipeline -> codegen.  Exit status: 0 success, 1 the input is wrong (nothing was
 * written), 2 wrong usage, 3 a run failed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "advice.h"
#include "base/file.h"
#include "calibrate/calibrate.h"
#include "ckpt/ckpt.h"
#include "codegen/codegen.h"
#include "frontend/frontend.h"
#include "hints.h"
#include "options.h"
#include "passes/passes.h"
#include "passes/remat/remat.h"
#include "predict/predict.h"
#include "predict/search.h"
#include "recompute.h"
#include "report/report.h"
#include "run.h"

#define VERSION "0.1"

enum { EXIT_INPUT = 1, EXIT_USAGE = 2, EXIT_RUN = 3 };

static bool equals(const char *a, const char *b)
{
	return a && !strcmp(a, b);
}

static bool is_ir_file(const char *path)
{
	size_t n = strlen(path);
	return n > 3 && !strcmp(path + n - 3, ".ir");
}

static bool is_plan(const Options *o)
{
	return o->command == COMMAND_PLAN;
}

static bool calibrates(const Options *o)
{
	return o->command == COMMAND_CALIBRATE;
}

/* Whether IR is printed instead of a program being compiled. */
static bool prints_ir(const Options *o)
{
	EmitKind e = o->what.emit;
	return o->what.passes || o->what.stop_after || e == EMIT_IR || e == EMIT_DOT || e == EMIT_JSON;
}

/* ---- options of the stages ---- */

static FrontendOptions frontend_options(const Options *o)
{
	return (FrontendOptions){
		.graph = o->graph, .inputs = o->what.inputs_dir, .infer = options_infer(o),
		.init_elsewhere = o->graph.init && strcmp(o->graph.init, "onnx"),
		.shapes_only = prints_ir(o) || is_plan(o),
	};
}

/* The variant of the micro-batch that is shown. */
static Variant shown_variant(const Options *o)
{
	return o->given.micro_batch ? o->what.micro_batch : options_many(o) ? VARIANT_LAST : VARIANT_ONLY;
}

static Sync sync_of(const Options *o)
{
	return o->given.sync ? o->graph.sync : SYNC_LAST;
}

/* Refuses other dtypes than f32 for what a hook gets. */
static bool check_sent(const Options *o, Diag *d)
{
	bool wide = o->precision.reduce_dtype == DT_F32 && !o->precision.keep_low_precision_grads;
	if (!wide)
		diag_error(d, "--comm-hook", "a hook gets gradients in f32 and decides what is sent: leave out "
			"--reduce-dtype and --keep-low-precision-grads");
	return wide;
}

/* bf16 and f16 mean --reduce-dtype.  Other hooks are compiled once here, so that nothing is written for a wrong
 * one. */
static bool take_hook(Options *o, Hook *hook, Arena *a, Diag *d)
{
	const char *text = o->graph.comm_hook, *asked = dtype_info[o->precision.reduce_dtype].text;
	DType half = equals(text, "bf16") ? DT_BF16 : equals(text, "f16") ? DT_F16 : DT_F32;
	*hook = (Hook){0};
	if (!text)
		return true;
	if (half != DT_F32 && o->given.reduce_dtype && o->precision.reduce_dtype != half) {
		diag_error(d, "--comm-hook", "%s sends gradients as %s, and --reduce-dtype=%s as %s: give one of them",
			text, text, asked, asked);
		return false;
	}
	if (half != DT_F32) {
		o->precision.reduce_dtype = half;
		o->graph.comm_hook = NULL; /* it names a dtype, not a hook */
		return true;
	}
	if (options_cuda(o)) {
		diag_error(d, "--comm-hook", "a C function cannot reduce what lies in a GPU: refused with --target=cuda, but "
			"for bf16 and f16");
		return false;
	}
	if (!check_sent(o, d))
		return false;
	CodegenTarget t = {.options = o->target, .verbose = o->inspection.verbose};
	return hook_parse(text, hook, a, d) && (prints_ir(o) || codegen_check_hook(hook, &t, d));
}

/* What the program is built for, and with which tools. */
static CodegenTarget target_options(const Options *o)
{
	return (CodegenTarget){.options = o->target, .text = o->canonical_target, .library = o->what.emit == EMIT_LIB,
		.tf32 = o->precision.matmul_precision == MATMUL_TF32, .verbose = o->inspection.verbose};
}

/* ---- stages ---- */

/* smaller: how many sizes of --bind below the largest. */
static bool load(Variants *v, Options *o, int smaller, Arena *a, Diag *d)
{
	if (!is_ir_file(o->input)) {
		FrontendOptions f = frontend_options(o);
		f.say_roles = !f.infer;
		f.smaller = smaller;
		o->graph.bn.frozen.n = 0; /* the frontend freezes them; pass loss does it for a text */
		v->of[VARIANT_ONLY] = onnx_load(o->input, &f, d);
		return v->of[VARIANT_ONLY];
	}
	char *text = diag_read_file(d, o->input, a);
	bool ok = text && ir_parse_program(o->input, text, v, d);
	for (int k = 0; k < VARIANT_COUNT && ok; k++)
		ok = !v->of[k] || ir_verify(v->of[k], NULL, d);
	return ok;
}

/* Joins the options with the train block of a text on which passes run.  Its optimizer is there as ops and states, and
 * its target decided some of its ops; the passes behind it read --offload and --matmul-precision, which are those of
 * the block unless they are given. */
static bool join_block(const Variants *v, Options *o, Diag *d)
{
	Train *t = v->of[VARIANT_ONLY]->train;
	const char *asked = o->graph.optimizer;
	if (!t)
		return true;
	if (asked && strcmp(asked, t->optimizer))
		diag_warn(d, "--optimizer", "the train block of \"%s\" says optimizer=\"%s\": \"%s\" is not used", o->input,
			t->optimizer, asked);
	if (o->given.offload)
		t->offload = o->memory.offload;
	o->memory.offload = t->offload;
	if (o->given.matmul_precision)
		t->tf32 = o->precision.matmul_precision == MATMUL_TF32;
	o->precision.matmul_precision = t->tf32 ? MATMUL_TF32 : MATMUL_HIGHEST;
	if (t->cuda == options_cuda(o))
		return true;
	diag_error(d, o->input, "its train block is for --target=%s: give that, or compile the model again",
		t->cuda ? "cuda" : "cpu");
	return false;
}

/* Whether a text at PLAN was read, which is a program already: no pass runs unless --passes names some. */
static bool is_planned(const Variants *v, const Options *o)
{
	return is_ir_file(o->input) && v->of[VARIANT_ONLY]->level == LEVEL_PLAN && !o->what.passes;
}

/* A hook is code that the program runs, and a text may come from anybody, so the user must name the same hook. */
static bool check_named_hook(const Hook *named, const Hook *given, const Options *o, Diag *d)
{
	if (!named->file || prints_ir(o) || (given->file && !strcmp(given->file, named->file)
			&& !strcmp(given->function, named->function)))
		return true;
	diag_error(d, o->input, "the text names the hook \"%s:%s\", code that the program would run: if you trust it, say "
		"so by --comm-hook=%s:%s", named->file, named->function, named->file, named->function);
	return false;
}

/* Checks a planned text from which a program is made: the memory of its plan, and the hook that it names. */
static bool accept(const Variants *v, const Options *o, Diag *d)
{
	const Hook *hook = &ir_train(v->of[VARIANT_ONLY])->hook;
	CodegenTarget t = target_options(o);
	if (options_many(o))
		diag_warn(d, "--accum", "a text at PLAN says itself how many micro-batches a step may have: it is not used");
	if (prints_ir(o))
		return true;
	if (o->what.emit == EMIT_LIB && v->of[VARIANT_FIRST]) {
		diag_error(d, o->input, "a step of several micro-batches is for programs: a library's step takes the samples "
			"of one (compile without --accum=many)");
		return false;
	}
	return pipeline_accept(v, o, d) && (!hook->file || codegen_check_hook(hook, &t, d));
}

static void print_module(const Module *m, const Options *o)
{
	if (o->what.emit == EMIT_DOT)
		ir_print_dot(stdout, m);
	else if (o->what.emit == EMIT_JSON)
		ir_print_json(stdout, m);
	else
		ir_print(stdout, m);
}

/* Checks what is asked of the micro-batch variants of a text. */
static bool check_variants(const Variants *v, const Options *o, Diag *d)
{
	int before = d->errors;
	if (is_ir_file(o->input) && o->given.micro_batch && !v->of[shown_variant(o)])
		diag_error(d, "--micro-batch", "\"%s\" has no module of variant=%s", o->input, variant_text[shown_variant(o)]);
	if (v->of[VARIANT_FIRST] && !is_planned(v, o))
		diag_error(d, "--passes", "\"%s\" has the modules of all micro-batches, and passes run on one: give them a "
			"text of that one", o->input);
	return d->errors == before;
}

/* Prints the variant that is shown; for a text that contains all variants, prints all of them: as
 * JSON they are one array, since a file is one document. */
static bool print_ir(const Variants *v, const Module *shown, const Options *o, Diag *d)
{
	bool all = is_ir_file(o->input) && v->of[VARIANT_FIRST] && !o->given.micro_batch;
	bool array = all && o->what.emit == EMIT_JSON;
	for (int k = 0; k < VARIANT_COUNT && all; k++) {
		fputs(!array ? "" : k ? "," : "[", stdout);
		print_module(v->of[k], o);
	}
	fputs(array ? "]\n" : "", stdout);
	if (!all)
		print_module(shown, o);
	return file_flush_stdout(d);
}

/* What is shown of the plan of m; all of it lives in the arena. */
static CodegenPlan describe_plan(Module *m, const Sizes *s, const Options *o, Arena *a)
{
	const Variants *v = &s->of[s->n - 1];
	MemoryPeak *peak = NEW(a, MemoryPeak);
	LayoutModel *layout = NEW(a, LayoutModel);
	LayoutRank who;
	*peak = memory_peak(m, a);
	*layout = s->n > 1 ? memory_sizes(s, 1, a) : memory_layout(m, a);
	memory_describe(layout, &who, m, o);
	return (CodegenPlan){.layout = layout, .who = who, .comm = comm_info[o->sharding.comm].text, .brief = !is_plan(o),
		.peak_bytes = peak->bytes, .peak_op = peak->op, .largest = peak->largest,
		.largest_bytes = peak->largest_bytes, .n_largest = peak->n, .variants = v->of[VARIANT_FIRST] ? v : NULL,
		.sizes = s->n > 1 ? s : NULL};
}

/* Prints the plan, after compiling without its collectives, and what it predicts for a machine.  False after
 * messages. */
static bool print_plan(Module *m, const Sizes *s, const Options *o, const Machine *machine, const Search *search,
	const Restart *start, Arena *a, Diag *d)
{
	const CodegenPlan plan = describe_plan(m, s, o, a);
	if (machine && (!predict_accepts(m, plan.layout, d) || !predict_asks(o, start, d)))
		return false;
	(o->what.format == FORMAT_JSON ? codegen_plan_json : codegen_plan_text)(stdout, m, &plan);
	if (search)
		(o->what.format == FORMAT_JSON ? search_json : search_text)(stdout, search);
	return !machine || predict_show(stdout, s, start, machine, o, d);
}

/* Writes the page of --report; false after messages. */
static bool write_report(const Report *r, const Sizes *s, const Options *o, const Machine *machine,
	const Restart *start, Arena *a, Diag *d)
{
	const Variants *v = &s->of[s->n - 1];
	const CodegenPlan plan = describe_plan(v->of[VARIANT_ONLY], s, o, a);
	const ReportOf of = {.program = s, .v = v, .plan = &plan, .machine = machine, .start = start};
	return !o->what.report || report_write(r, &of, o, d);
}

/* Prints what ends a plan; a compilation has none.  The modules are freed. */
static void print_hints(Sizes *s, const Options *o, const Restart *start)
{
	Variants *v = &s->of[s->n - 1];
	CodegenHint hint[HINTS_MAX];
	int n = is_plan(o) ? hints_find(start, o, v, hint) : 0;
	(o->what.format == FORMAT_JSON ? codegen_hints_json : codegen_hints_text)(stdout, hint, n);
}

static bool write_schedule(Module *m, const Options *o, Diag *d)
{
	if (m->level != LEVEL_PLAN) {
		diag_error(d, "--schedule-out", "there is no schedule before pass prefetch");
		return false;
	}
	FILE *f = fopen(o->inspection.schedule_out, "w");
	if (f)
		schedule_write(f, m, o);
	if (!file_flush_close(f))
		diag_unwritten(d, o->inspection.schedule_out);
	return !d->errors;
}

static bool write_policy(const Module *m, bool planned, const Options *o, Diag *d)
{
	const char *option = "--policy-out", *path = o->inspection.policy_out;
	if (m->level < LEVEL_SHARD)
		diag_error(d, option, "there are no units before pass units");
	else if (planned)
		diag_error(d, option, "a text at PLAN does not say by which options its units were made: give the model");
	if (d->errors || !policy_writable(m, option, d))
		return false;
	FILE *f = fopen(path, "w");
	if (f)
		policy_write(f, m, o);
	if (!file_flush_close(f))
		diag_unwritten(d, path);
	return !d->errors;
}

/* Notes that 16-bit products are slow on a processor without instructions for them.  Every GPU that is an --arch
 * has them. */
static void note_products(const Options *o, const CodegenTarget *c, Diag *d)
{
	DType t = o->precision.param_dtype;
	if (t != DT_F32 && !codegen_cuda(c) && !codegen_multiplies(c, t, d) && !d->errors)
		diag_note(d, "--param-dtype", "--arch=%s does not multiply %s: products are computed in f32, which moves half "
			"the bytes and is no faster", o->target.arch ? o->target.arch : "native", dtype_info[t].text);
}

/* A program may replace an older program, but no other file that somebody may miss. */
static bool check_output(const char *path, Diag *d)
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
static bool check_apart(const Options *o, const char *option, const char *path, Diag *d)
{
	const struct { const char *path, *what; } read[] = {{o->input, "the model"}, {o->what.machine, "the machine file"}};
	struct stat in, out;
	for (int i = 0; i < COUNT_OF(read); i++)
		if (path && read[i].path && !stat(read[i].path, &in) && !stat(path, &out) && in.st_dev == out.st_dev
			&& in.st_ino == out.st_ino) {
			diag_error(d, option, "\"%s\" is %s itself: it is not replaced; give another path", path, read[i].what);
			return false;
		}
	return true;
}

/* If the C compiler refuses the program, that is not the input's fault, and the exit status says so. */
static int emit(const Sizes *s, const Options *o, Diag *d)
{
	Module *m = s->of[s->n - 1].of[VARIANT_ONLY];
	CodegenTarget c = target_options(o);
	note_products(o, &c, d);
	bool stop = o->what.emit == EMIT_C;
	const char *dir = stop || c.library ? o->what.output : arena_printf(m->arena, "%s.c.d", o->what.output);
	const char *output = c.library ? arena_printf(m->arena, "%s/libmodel.so", dir) : o->what.output;
	if (!stop && !c.library && !check_output(o->what.output, d))
		return EXIT_INPUT;
	bool is_new = access(dir, F_OK);
	if (!codegen_write(s, &c, dir, d))
		return EXIT_INPUT;
	if (stop || codegen_compile(dir, m, &c, output, d))
		return EXIT_SUCCESS;
	if (is_new)
		codegen_remove(dir);
	return EXIT_RUN;
}

static int run(Module *m, const Options *o, Diag *d)
{
	CodegenTarget c = target_options(o);
	c.text = o->canonical;
	if (o->what.output && !check_output(o->what.output, d))
		return EXIT_INPUT;
	return run_model(m, o->what.output, o->what.inputs_dir, o->what.outputs_dir, &c, d);
}

/* A reader of options that is not a pass.  why: the end of the warning when it does not run. */
typedef struct Stage { const char *name; bool runs; const char *why; } Stage;

/* The passes that shardc run does not need. */
static const char training_passes[] = "loss|autodiff|optimizer|expand|remat|units|shard|schedule|prefetch";

/* The reason why the pass does not run, NULL if it runs. */
static const char *pass_skipped(const Options *o, bool planned, const char *name, Arena *a)
{
	if (planned)
		return "where a text at PLAN is read, which has it";
	if (options_infer(o) && str_is_choice(training_passes, name))
		return "by shardc run";
	if (o->what.passes && !pass_is_among(o->what.passes, name))
		return arena_printf(a, "where pass %s is not run (--passes)", name);
	const char *last = o->what.passes ? NULL : o->what.stop_after;
	if (last && pass_index(last) >= 0 && pass_index(name) > pass_index(last))
		return arena_printf(a, "by passes up to %s", last);
	return NULL;
}

/* Whether a policy file is read: by passes that ask for the dtypes of its units, and by the one that makes them. */
static bool reads_policy(const Options *o, bool planned, Arena *a)
{
	return !options_infer(o) && !(pass_skipped(o, planned, "precision", a) && pass_skipped(o, planned, "optimizer", a)
		&& pass_skipped(o, planned, "units", a));
}

/* planned: a text at PLAN was read; hooked: the text names a hook; searched: --wrap=auto has chosen the units. */
typedef struct StageContext { const Options *o; bool planned, hooked, searched; Arena *a; } StageContext;

static bool stage_runs(const void *context, const char *name, const char **why)
{
	const StageContext *c = context;
	const Options *o = c->o;
	bool run = options_infer(o), plan = is_plan(o), ir = prints_ir(o), measures = calibrates(o);
	const char *instead = ir ? "when IR is printed" : plan ? "by shardc plan" : run ? "by shardc run"
		: measures ? "by shardc calibrate" : "when a program is compiled";
	if (o->command == COMMAND_PARAMS) {
		*why = "by shardc params";
		return str_is_choice("command|frontend|params|autodiff", name); /* autodiff: shows what it freezes */
	}
	if (o->command == COMMAND_INIT) {
		*why = "by shardc init";
		return str_is_choice("command|frontend|canon|patterns|a pass", name);
	}
	const char *no_peak = c->planned ? NULL : pass_skipped(o, false, "memory", c->a);
	const Stage stages[] = {
		{"command", true, NULL},
		{"frontend", !is_ir_file(o->input), "where IR is read, which has it"},
		{"plan command", plan, instead},
		{"run", run, instead},
		{"calibrate", measures, instead},
		{"sizes", options_sizes(o), "with one size of --bind"},
		{"params", false, instead},
		{"emit", ir || (!plan && !run && !measures), instead},
		{"plan", !run && !ir && !measures, instead},
		{"search", c->searched, "without --wrap=auto"},
		{"peak", !run && !measures && !no_peak, no_peak ? no_peak : instead},
		{"program", !run && !plan && !ir && !measures, instead},
		{"compiler", !plan && !ir, instead},
		{"hook of a text", c->hooked && !ir, instead},
		{"units or a policy file", !pass_skipped(o, c->planned, "units", c->a)
			|| (policy_path(o) && reads_policy(o, c->planned, c->a)), pass_skipped(o, c->planned, "units", c->a)},
		{"a pass", !c->planned, "where a text at PLAN is read: no pass runs"},
		{"text at PLAN", c->planned, instead},
		{"program of a text", c->planned && !ir, instead},
	};
	for (int i = 0; i < COUNT_OF(stages); i++) {
		*why = stages[i].why;
		if (equals(name, stages[i].name))
			return stages[i].runs;
	}
	if (pass_index(name) < 0)
		ice("an option is read by \"%s\", which is neither a stage nor a pass", name);
	*why = pass_skipped(o, c->planned, name, c->a);
	return !*why;
}

/* Takes the options that a policy file says (--wrap=file:), if it is read. */
static bool join_policy(Options *o, Arena *a, Diag *d)
{
	PolicyOptions said = {0};
	bool ok = !reads_policy(o, false, a) || policy_options(o, &said, a, d);
	for (int i = 0; i < said.n; i++)
		ok = options_join(o, said.at[i].option, said.at[i].text, said.at[i].at, a, d) && ok;
	return ok;
}

/* Stages of shardc calibrate without a model. */
static bool measures_alone(const void *context, const char *name, const char **why)
{
	(void)context;
	*why = "by shardc calibrate without a model";
	return str_is_choice("command|calibrate|compiler", name);
}

/* Refuses options that belong to the other target. */
static bool check_target(const Options *o, Diag *d)
{
	int before = d->errors;
	if (!options_cuda(o) && o->target.arch && !strncmp(o->target.arch, "sm_", 3))
		diag_error(d, "--arch", "\"%s\" is for GPUs: it wants --target=cuda", o->target.arch);
	if (!options_cuda(o) && o->target.nvcc)
		diag_error(d, "--nvcc", "\"%s\" compiles CUDA: it wants --target=cuda", o->target.nvcc);
	if (!options_cuda(o) && o->precision.matmul_precision == MATMUL_TF32)
		diag_error(d, "--matmul-precision", "tf32 is a number format of GPUs: it wants --target=cuda");
	const CommInfo *comm = &comm_info[o->sharding.comm];
	if (!options_cuda(o) && comm->cuda)
		diag_error(d, "--comm", "%s moves memory of GPUs: it wants --target=cuda", comm->text);
	if (options_cuda(o) && o->what.emit == EMIT_LIB)
		diag_error(d, "--emit", "lib is refused with --target=cuda: a library's arrays are the host's");
	return d->errors == before;
}

/* Reports a missing compiler or runtime before time is spent and anything is written. */
static bool check_compiler(const Options *o, Diag *d)
{
	CodegenTarget c = target_options(o);
	bool builds = !prints_ir(o) && !is_plan(o) && o->what.emit != EMIT_C;
	return !builds || codegen_check_target(&c, d);
}

/* Checks the number of ranks for which a plan is requested. */
static bool check_ranks(const Options *o, Diag *d)
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
static bool check_accum(const Options *o, Diag *d)
{
	int before = d->errors;
	if (!options_many(o) && o->given.sync)
		diag_error(d, "--sync", "there is one micro-batch a step: --sync=%s wants --accum=many",
			sync_text[o->graph.sync]);
	if (!options_many(o) && o->given.micro_batch && !is_ir_file(o->input))
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
static bool check_hook(const Options *o, const Hook *hook, Diag *d)
{
	if (!hook->file || !options_many(o) || sync_of(o) != SYNC_EVERY)
		return true;
	diag_error(d, "--comm-hook", "\"%s\" reduces a gradient once a step: it wants --sync=last, not every",
		o->graph.comm_hook);
	return false;
}

/* Whether micro-batches may be reduced one by one for the sake of --memory-limit: the user did not say when, and
 * nothing that was shown of the other plan would be wrong. */
static bool may_reduce_each(const Options *o, const PipelineView *view)
{
	bool shows = view->stop_after || view->dump_dir || view->print_after || view->print_changed || view->check;
	return options_many(o) && o->memory.memory_limit && !o->given.sync && !shows && !o->sharding.schedule_in
		&& !o->graph.comm_hook && !o->precision.keep_low_precision_grads;
}

/* Plans steps that keep whole gradients over micro-batches and, where these are above --memory-limit, steps that keep
 * the reduced parts. */
static bool build_within_limit(Variants *v, const Options *o, const PipelineView *view, Diag *d)
{
	Options unlimited = *o;
	unlimited.memory.memory_limit = 0;
	if (!pipeline_fork(v->of[VARIANT_ONLY], &unlimited, view, SYNC_LAST, shown_variant(o), v, d))
		return false;
	int64_t last = pipeline_memory(v, o).total;
	if (last <= o->memory.memory_limit)
		return true;
	pipeline_free(v);
	d->quiet = true; /* notes and warnings were said before */
	bool ok = pipeline_again(view->restart, o, SYNC_EVERY, v, d);
	d->quiet = false;
	if (ok)
		diag_note(d, "--sync", "every is taken, in which each micro-batch is reduced: with last, which keeps whole "
			"gradients between them, the plan needs %lld bytes and --memory-limit is %lld", (long long)last,
			(long long)o->memory.memory_limit);
	return ok;
}

/* ---- --remat=auto ---- */

/* Checks what is asked of the search, before a model is read. */
static bool check_remat(const Options *o, const Search *chosen, Diag *d)
{
	int before = d->errors;
	bool searches = remat_mode(o->memory.remat) == REMAT_AUTO;
	if (o->inspection.remat_out && !searches && !chosen)
		diag_error(d, "--remat-out", "\"%s\" is for what --remat=auto chooses: give that too", o->inspection.remat_out);
	if (searches && (o->what.passes || o->what.stop_after))
		diag_error(d, "--remat", "auto plans the whole program: leave out %s, or give the file that --remat-out wrote",
			o->what.passes ? "--passes" : "--stop-after");
	return d->errors == before;
}

/* Puts a policy in the place of --remat=auto.  asked: the options as they were when the model was read. */
static bool choose_remat(Options *o, Options *asked, const PipelineView *view, const Machine *machine, Arena *a,
	Diag *d)
{
	Variants copy = {{NULL}};
	bool quiet = d->quiet;
	if (remat_mode(o->memory.remat) != REMAT_AUTO || options_infer(o))
		return true;
	if (!o->memory.memory_limit) {
		diag_note(d, "--remat", "auto recomputes what --memory-limit asks for, and none is given: nothing is "
			"recomputed");
		o->memory.remat = "none";
		return true;
	}
	d->quiet = true; /* notes were said when it was read before */
	bool ok = load(&copy, asked, 0, a, d);
	d->quiet = quiet;
	if (ok)
		o->memory.remat = recompute_choose(copy.of[VARIANT_ONLY], o, options_many(o) ? sync_of(o) : SYNC_NONE,
			may_reduce_each(o, view), machine, a, d);
	return ok && o->memory.remat;
}

static bool write_remat(const Options *o, Diag *d)
{
	const char *path = o->inspection.remat_out;
	if (remat_mode(o->memory.remat) != REMAT_POLICY) {
		diag_warn(d, "--remat-out", "nothing is recomputed: \"%s\" is not written", path);
		return true;
	}
	FILE *f = fopen(path, "w");
	if (f)
		fputs(o->memory.remat, f);
	if (!file_flush_close(f))
		diag_unwritten(d, path);
	return !d->errors;
}

/* Builds the modules of a step: `only` alone, or all variants. */
static bool build(Variants *v, const Options *o, const PipelineView *view, Diag *d)
{
	if (may_reduce_each(o, view))
		return build_within_limit(v, o, view, d);
	if (options_many(o))
		return pipeline_fork(v->of[VARIANT_ONLY], o, view, sync_of(o), shown_variant(o), v, d);
	return pipeline_run(v->of[VARIANT_ONLY], o, view, o->what.passes, d);
}

/* ---- several sizes ---- */

/* "seq=128" or, where several dimensions have sizes, "src=128 tgt=64". */
static const char *size_name(const Options *o, int k, Arena *a)
{
	const char *name = "";
	int64_t size[SIZES_MAX];
	for (int i = 0; i < o->graph.bind.n; i++) {
		const char *bind = o->graph.bind.at[i];
		if (sizes_several(bind) && sizes_of(bind, size))
			name = arena_printf(a, "%s%s%.*s=%lld", name, *name ? " " : "", (int)strcspn(bind, "="), bind,
				(long long)size[k]);
	}
	return name;
}

/* Checks one list of sizes; *n: how many the lists before it have, 1 = there was none. */
static bool check_list(const char *bind, int *n, Diag *d)
{
	int64_t size[SIZES_MAX];
	int has = sizes_of(bind, size), before = d->errors;
	if (!has)
		diag_error(d, "--bind", "\"%s\" is no DIM=N,N,.. of at most %d sizes", bind, SIZES_MAX);
	for (int k = 0; k < has && d->errors == before; k++)
		if (size[k] < 1)
			diag_error(d, "--bind", "\"%s\": a size is at least 1", bind);
		else if (k && size[k] == size[k - 1])
			diag_error(d, "--bind", "\"%s\": %lld is there twice", bind, (long long)size[k]);
		else if (k && size[k] < size[k - 1])
			diag_error(d, "--bind", "\"%s\": sizes stand in rising order, %lld is below %lld", bind, (long long)size[k],
				(long long)size[k - 1]);
	if (d->errors == before && *n > 1 && has != *n)
		diag_error(d, "--bind", "\"%s\" has %d sizes, the dimension before it %d: the k-th sizes of all of them belong "
			"together, so give as many", bind, has, *n);
	*n = has;
	return d->errors == before;
}

/* The number of sizes; 0 after a message. */
static int count_sizes(const Options *o, Diag *d)
{
	int n = 1, before = d->errors;
	for (int i = 0; i < o->graph.bind.n; i++)
		if (sizes_several(o->graph.bind.at[i]) && !check_list(o->graph.bind.at[i], &n, d))
			return 0;
	if (n > 1 && prints_ir(o))
		diag_error(d, "--bind", "IR is that of one size: give this dimension one number, as %s", "--bind seq=128");
	else if (n > 1 && options_infer(o))
		diag_error(d, "--bind", "shardc run takes one size, that of its inputs");
	else if (n > 1 && (o->sharding.schedule_in || o->inspection.schedule_out))
		diag_error(d, o->sharding.schedule_in ? "--schedule-in" : "--schedule-out", "a schedule is that of one size, "
			"and --bind gives %d", n);
	return d->errors == before ? n : 0;
}

/* Plans the smaller sizes as the largest was, and puts all plans into one memory. */
static bool build_sizes(Sizes *s, int n, Options *o, Arena *a, Diag *d)
{
	PipelineView silent = {0};
	bool quiet = d->quiet, ok = true;
	Module *large = s->of[0].of[VARIANT_ONLY];
	Sync sync = s->of[0].of[VARIANT_FIRST] ? s->of[0].of[VARIANT_FIRST]->sync : SYNC_NONE;
	if (n == 1)
		return true;
	s->of[n - 1] = s->of[0];
	s->of[0] = (Variants){{NULL}};
	s->n = n;
	for (int k = 0; k < n; k++)
		s->name[k] = size_name(o, k, large->arena);
	d->quiet = true; /* notes about the largest size hold for all */
	for (int k = 0; k < n - 1 && ok; k++) {
		Variants *v = &s->of[k];
		ok = load(v, o, n - 1 - k, a, d) && (sync == SYNC_NONE ? pipeline_run(v->of[VARIANT_ONLY], o, &silent, NULL, d)
			: pipeline_fork(v->of[VARIANT_ONLY], o, &silent, sync, shown_variant(o), v, d));
		d->quiet = quiet;
		if (!ok)
			diag_note(d, "--bind", "found at %s, one of %d sizes", s->name[k], n);
		d->quiet = true;
	}
	d->quiet = quiet;
	return ok && sizes_join(s, o, d);
}

static void free_sizes(Sizes *s)
{
	for (int k = 0; k < s->n; k++)
		pipeline_free(&s->of[k]);
}

/* The exit status when there is no module: the input is wrong, or --check-passes found a wrong pass. */
static int compile_status(bool ok, const CheckReport *report)
{
	return ok ? EXIT_SUCCESS : report->differs ? EXIT_RUN : EXIT_INPUT;
}

static int calibrate_model(const Sizes *s, const Options *o, Diag *d)
{
	CodegenTarget t = target_options(o);
	return calibrate(s, o, &t, d);
}

/* search: NULL, or what chose some of the options; report: empty, the caller must report_end(). */
static int compile_with(Report *report, Options *o, const Search *search, Arena *a, Diag *d)
{
	const InspectionOptions *show = &o->inspection;
	CheckReport found = {0};
	Hook hook;
	Machine *machine = NULL;
	bool predicts = !is_plan(o) || predict_begin(o, &machine, a, d), ranks = check_ranks(o, d);
	bool reads = prints_ir(o) || options_infer(o) || report_begin(report, o, a, d);
	if (!check_apart(o, "-o", o->what.output, d) || !check_apart(o, "--schedule-out", show->schedule_out, d)
			|| !check_apart(o, "--policy-out", show->policy_out, d)
			|| !check_apart(o, "--remat-out", show->remat_out, d)
			|| !check_apart(o, "--report", o->what.report, d) || !reads)
		return EXIT_INPUT;
	bool target = check_target(o, d) && check_compiler(o, d), is_text = is_ir_file(o->input); /* a text may be a PLAN */
	if (!check_accum(o, d) || !check_remat(o, search, d) || !ranks || !target || !predicts
			|| (!is_text && !join_policy(o, a, d)) || !take_hook(o, &hook, a, d) || !check_hook(o, &hook, d))
		return EXIT_INPUT;
	PipelineView view = {.stop_after = o->what.stop_after, .dump_dir = show->dump_ir,
		.print_after = show->print_after, .print_changed = show->print_changed,
		.check = show->check_passes ? &found : NULL, .out = stdout};
	bool ir = prints_ir(o);
	Restart start = {.arena = a};
	view.restart = is_plan(o) || may_reduce_each(o, &view) ? &start : NULL;
	if (!ir && !o->what.output && !is_plan(o) && !options_infer(o)) {
		diag_error(d, "shardc", "say where the program goes: -o PATH, or --emit=ir (see shardc --help)");
		return EXIT_USAGE;
	}
	int n_sizes = count_sizes(o, d);
	if (!n_sizes)
		return EXIT_INPUT;
	Sizes all = {.n = 1};
	Variants *first = &all.of[0];
	Options asked = *o;
	bool loaded = load(first, o, 0, a, d), planned = loaded && is_planned(first, o);
	static const Hook none;
	const Hook *named = loaded && is_ir_file(o->input) ? &ir_train(first->of[VARIANT_ONLY])->hook : &none;
	options_warn_unread(o, stage_runs, &(StageContext){o, planned, named->file, search, a}, a, d);
	bool ok = loaded && check_named_hook(named, &hook, o, d) && check_variants(first, o, d)
		&& (planned ? accept(first, o, d)
			: (!is_text || (join_policy(o, a, d) && (!hook.file || check_sent(o, d)))) && join_block(first, o, d)
				&& choose_remat(o, &asked, &view, machine, a, d) && build(first, o, &view, d))
		&& build_sizes(&all, n_sizes, o, a, d)
		&& report_accepts(report, all.of[all.n - 1].of[VARIANT_ONLY], o, d);
	int status = compile_status(ok, &found);
	if (!status && view.check)
		diag_note(d, "--check-passes", "%d passes compared, none changes what the program computes", found.checked);
	Variants v = all.of[all.n - 1];
	Module *m = v.of[shown_variant(o)] ? v.of[shown_variant(o)] : v.of[VARIANT_ONLY];
	if (!status && o->sharding.schedule_in && m->level != LEVEL_PLAN)
		diag_warn(d, "--schedule-in", "there is no schedule before pass prefetch: \"%s\" is not used",
			o->sharding.schedule_in);
	bool runs = options_infer(o), plans = is_plan(o), measures = calibrates(o);
	if (!status && show->remat_out && !write_remat(o, d))
		status = EXIT_INPUT;
	if (!status && show->schedule_out && !write_schedule(m, o, d))
		status = EXIT_INPUT;
	if (!status && show->policy_out && !write_policy(m, planned, o, d))
		status = EXIT_INPUT;
	if (!status && ir)
		status = print_ir(&v, m, o, d) ? EXIT_SUCCESS : EXIT_RUN;
	else if (!status && measures)
		status = calibrate_model(&all, o, d);
	else if (!status && !plans)
		status = runs ? run(m, o, d) : emit(&all, o, d);
	if (!status && !ir && !runs && !measures)
		status = print_plan(m, &all, o, machine, plans ? search : NULL, &start, a, d)
			&& write_report(report, &all, o, machine, &start, a, d) ? EXIT_SUCCESS : EXIT_INPUT;
	if (!status && !ir && !runs && !measures)
		print_hints(&all, o, &start);
	free_sizes(&all);
	return status;
}

static int compile(Options *o, const Search *search, Arena *a, Diag *d)
{
	Report report = {0};
	int status = compile_with(&report, o, search, a, d);
	report_end(&report);
	return status;
}

/* ---- --wrap=auto ---- */

/* Reports what --wrap=auto cannot be given with. */
static bool check_search(const Options *o, Diag *d)
{
	int before = d->errors;
	const char *where = "--wrap";
	if (o->command != COMMAND_COMPILE && o->command != COMMAND_PLAN)
		diag_error(d, where, "auto chooses the units of a program or of a plan");
	if (!o->what.machine)
		diag_error(d, where, "auto wants --machine=FILE, for which it looks for the fastest plan: one of machines/ or "
			"your own (docs/prediction.md)");
	if (o->sharding.wrap.n > 1)
		diag_error(d, where, "auto stands alone, and there are %d policies", o->sharding.wrap.n);
	if (o->sharding.schedule_in)
		diag_error(d, where, "auto chooses the order of collectives, and --schedule-in=%s has one",
			o->sharding.schedule_in);
	if (o->what.passes)
		diag_error(d, where, "auto runs all passes, and --passes some");
	return d->errors == before;
}

typedef struct Recomputing { Options asked; const Machine *machine; } Recomputing; /* asked: by the user */

/* As --remat=auto chooses, in silence. */
static const char *recompute(const Options *o, void *context, Arena *a)
{
	Recomputing *r = context;
	Variants copy = {{NULL}};
	Diag silent = {.out = fopen("/dev/null", "w"), .quiet = true};
	Options asked = r->asked;
	const char *policy = NULL;
	if (silent.out && load(&copy, &asked, 0, a, &silent))
		policy = recompute_choose(copy.of[VARIANT_ONLY], o, options_many(o) ? sync_of(o) : SYNC_NONE, false, r->machine,
			a, &silent);
	if (silent.out)
		fclose(silent.out);
	return policy;
}

/* Finds the options that --wrap=auto stands for; NULL after messages. */
static Search *search(const Options *given, Arena *a, Diag *d)
{
	Options o = *given;
	Machine *machine = NULL;
	Restart start = {.arena = a};
	PipelineView silent = {.restart = &start};
	Variants v = {0};
	o.memory.memory_limit = 0;
	o.sharding.wrap.n = 0;
	if (remat_mode(o.memory.remat) == REMAT_AUTO) {
		o.memory.remat = NULL;
		o.given.remat = false;
	}
	Recomputing again = {.asked = o};
	if (!check_search(given, d) || !predict_begin(&o, &machine, a, d) || !check_ranks(&o, d) || !check_accum(&o, d)
			|| !load(&v, &o, 0, a, d))
		return NULL;
	Search *found = NULL;
	again.machine = machine;
	if (is_planned(&v, &o))
		diag_error(d, "--wrap", "auto plans, and %s is planned already: give the model", o.input);
	else if (join_block(&v, &o, d) && build(&v, &o, &silent, d)) {
		o.memory.memory_limit = given->memory.memory_limit;
		found = search_run(&(SearchFrom){&start, &o, sync_of(&o), machine, recompute, &again}, a, d);
	}
	pipeline_free(&v);
	return found;
}

/* Whether an argument is one of those for which the search puts others; two words count as one. */
static bool is_settled(int argc, char **argv, int *i)
{
	static const char *const options[] = {"--wrap", "--remat"};
	for (int k = 0; k < COUNT_OF(options); k++) {
		size_t n = strlen(options[k]);
		if (equals(argv[*i], options[k]) && *i + 1 < argc && equals(argv[*i + 1], "auto"))
			return ++*i;
		if (!strncmp(argv[*i], options[k], n) && equals(argv[*i] + n, "=auto"))
			return true;
	}
	return false;
}

/* Compiles as if the user had given what --wrap=auto stands for. */
static int compile_searched(int argc, char **argv, Options *o, Arena *a, Diag *d)
{
	VEC(char *) args = {0};
	Options settled = {0};
	bool usage = false, quiet = d->quiet;
	d->quiet = true; /* notes and warnings are said when the plan that was found is made */
	Search *found = search(o, a, d);
	d->quiet = quiet;
	if (!found)
		return EXIT_INPUT;
	for (int i = 0; i < argc; i++)
		if (!is_settled(argc, argv, &i))
			vec_push(a, &args, argv[i]);
	const char *chosen = "";
	for (const char *const *x = search_options(found); *x; x++) {
		vec_push(a, &args, arena_strdup(a, *x));
		chosen = arena_printf(a, "%s %s", chosen, str_escape(a, ESCAPE_SHELL, *x));
	}
	if (!options_parse(args.n, args.at, &settled, a, d, &usage))
		return usage ? EXIT_USAGE : EXIT_INPUT;
	d->verbose = settled.inspection.verbose;
	diag_note(d, "--wrap", "auto is%s (shardc plan shows what else was tried)", chosen);
	return compile(&settled, found, a, d);
}

/* ---- tables ---- */

static int list_ops(void)
{
	for (int k = 0; k < OP_COUNT; k++) {
		const OpInfo *i = &op_info[k];
		printf("%-20s %s..%-5s  {%s}  %s\n", i->text, level_text[i->level], level_text[i->last], i->attrs, i->doc);
	}
	return EXIT_SUCCESS;
}

static int list_passes(void)
{
	for (int i = 0; i < pass_count; i++)
		printf("%-10s %s -> %s  %s\n", pass_info[i].name, level_text[pass_info[i].from], level_text[pass_info[i].to],
			pass_info[i].ensures);
	return EXIT_SUCCESS;
}

/* ---- commands ---- */

/* For shardc ckpt: reads a model as it was read when its program was compiled. */
static bool read_options(const char *text, const char *where, bool recorded, CkptModelOptions *out, Arena *a, Diag *d)
{
	Options *o = NEW(a, Options);
	bool ok = options_read(text, where, recorded, o, a, d);
	*out = (CkptModelOptions){frontend_options(o), o->canonical};
	out->frontend.graph.strict_params = false;
	if (o->graph.trainable && access(o->graph.trainable, R_OK))
		out->frontend.graph.trainable = NULL; /* names do not depend on what is trained */
	return ok;
}

static int params(const Options *o, Arena *a, Diag *d)
{
	FrontendOptions f = frontend_options(o);
	ParamsPrint to = {stdout, o->what.format == FORMAT_JSON};
	f.shapes_only = false;
	if (is_ir_file(o->input)) {
		diag_error(d, o->input, "shardc params reads an ONNX model");
		return EXIT_INPUT;
	}
	options_warn_unread(o, stage_runs, &(StageContext){o, false, false, false, a}, a, d);
	if (!onnx_params(o->input, &f, &to, d))
		return EXIT_INPUT;
	return file_flush_stdout(d) ? EXIT_SUCCESS : EXIT_RUN;
}

static int init(Options *o, Arena *a, Diag *d)
{
	PipelineView view = {.stop_after = "patterns", .out = stdout};
	FrontendOptions f = frontend_options(o);
	f.shapes_only = f.say_roles = true;
	if (is_ir_file(o->input)) {
		diag_error(d, o->input, "shardc init reads an ONNX model");
		return EXIT_INPUT;
	}
	options_warn_unread(o, stage_runs, &(StageContext){o, false, false, false, a}, a, d);
	if (!advice_bind(o, a, d))
		return EXIT_INPUT;
	f.graph = o->graph;
	Module *m = onnx_load(o->input, &f, d);
	bool ok = m && pipeline_run(m, o, &view, NULL, d);
	if (ok)
		advice_print(stdout, m, o, a);
	if (m)
		ir_module_free(m);
	return !ok ? EXIT_INPUT : file_flush_stdout(d) ? EXIT_SUCCESS : EXIT_RUN;
}

/* What calibrate is asked for before a model is read. */
static bool check_calibrate(const Options *o, Diag *d)
{
	int before = d->errors;
	if (!o->what.output)
		diag_error(d, "shardc calibrate", "say where the machine file goes: -o FILE.json");
	if (options_cuda(o))
		diag_error(d, "--target", "cuda: shardc calibrate measures processors of this host, not GPUs; machines/ has "
			"files of GPUs from published figures");
	if (o->what.emit != EMIT_BINARY)
		diag_error(d, "--emit", "shardc calibrate writes a machine file, no program");
	if (o->what.passes || o->what.stop_after)
		diag_error(d, o->what.passes ? "--passes" : "--stop-after", "shardc calibrate measures whole programs");
	if (options_sizes(o))
		diag_error(d, "--bind", "shardc calibrate measures a program of one size: give that which is predicted");
	return d->errors == before;
}

/* Without a model no pass reads an option. */
static int calibrate_machine(const Options *o, Arena *a, Diag *d)
{
	options_warn_unread(o, measures_alone, NULL, a, d);
	return calibrate_model(NULL, o, d);
}

static int command(int argc, char **argv, Arena *a, Diag *d)
{
	Options o = {0};
	bool usage = false;
	if (argc > 1 && equals(argv[1], "ckpt"))
		return ckpt_main(&(CkptCall){argc - 1, argv + 1, read_options, d});
	if (argc > 1 && equals(argv[1], "trace"))
		return trace_main(argc - 1, argv + 1, d);
	bool ok = options_parse(argc, argv, &o, a, d, &usage);
	d->verbose = o.inspection.verbose;
	if (!ok)
		return usage ? EXIT_USAGE : EXIT_INPUT;
	if (o.inspection.help || argc == 1) {
		options_help(argc == 1 ? stderr : stdout);
		return argc == 1 ? EXIT_USAGE : EXIT_SUCCESS;
	}
	if (o.inspection.version)
		return printf("shardc %s\n", VERSION) < 0;
	if (o.inspection.list_ops)
		return list_ops();
	if (o.inspection.list_passes)
		return list_passes();
	if (!o.input && !calibrates(&o)) {
		diag_error(d, "shardc", "which model? (see shardc --help)");
		return EXIT_USAGE;
	}
	if (options_infer(&o) && (!o.what.inputs_dir || !o.what.outputs_dir)) {
		diag_error(d, "shardc run", "wants --inputs DIR and --outputs DIR");
		return EXIT_USAGE;
	}
	if (o.command == COMMAND_INIT)
		return init(&o, a, d);
	if (calibrates(&o) && !check_calibrate(&o, d))
		return o.what.output ? EXIT_INPUT : EXIT_USAGE;
	if (calibrates(&o) && !o.input)
		return calibrate_machine(&o, a, d);
	if (o.command == COMMAND_PARAMS)
		return params(&o, a, d);
	return search_wanted(&o) ? compile_searched(argc, argv, &o, a, d) : compile(&o, NULL, a, d);
}

int main(int argc, char **argv)
{
	Arena *a = arena_new();
	Diag d = {.out = stderr};
	int status = command(argc, argv, a, &d);
	if (!ferror(stdout) || !d.full)
		file_flush_stdout(&d);
	if (d.full && status != EXIT_USAGE)
		status = EXIT_RUN;
	arena_free(a);
	return status;
}
