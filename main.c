/* main.c: options -> frontend -> pipeline -> codegen.  Exit status: 0 success, 1 the input is wrong (nothing
 * was written), 2 wrong usage, 3 a run failed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/ckpt.h"
#include "codegen/codegen.h"
#include "frontend/frontend.h"
#include "options.h"
#include "passes/passes.h"
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

static bool is_cuda(const Options *o)
{
	return equals(o->target, "cuda");
}

/* Instead of compiling. */
static bool prints_ir(const Options *o)
{
	return o->passes || o->stop_after || equals(o->emit, "ir") || equals(o->emit, "dot") || equals(o->emit, "json");
}

/* ---- options of the stages ---- */

static FrontendOptions frontend_options(const Options *o)
{
	static const char *const unties[] = {[UNTIE_AUTO] = "auto", [UNTIE_ALL] = "all", [UNTIE_NONE] = "none"};
	FrontendOptions f = {
		.binds = o->bind.at, .n_binds = o->bind.n, .shapes = o->input_shape.at, .n_shapes = o->input_shape.n,
		.consts = o->constants.at, .n_consts = o->constants.n, .bn_biased = o->bn_biased,
		.bn = equals(o->bn, "frozen") ? NORM_FROZEN : equals(o->bn, "train") ? NORM_TRAIN : NORM_AUTO,
		.bn_frozen = o->bn_frozen.at, .n_bn_frozen = o->bn_frozen.n,
		.dropout = equals(o->dropout, "on") ? DROPOUT_ON : equals(o->dropout, "off") ? DROPOUT_OFF : DROPOUT_AUTO,
		.inputs = o->inputs_dir, .infer = equals(o->command, "run"),
		.trainable = o->trainable, .strict_params = o->strict_params, .freeze = o->freeze.at,
		.n_freeze = o->freeze.n,
		.init_elsewhere = o->init && strcmp(o->init, "onnx"),
		.shapes_only = prints_ir(o) || equals(o->command, "plan"),
	};
	for (int i = 0; o->untie && i < COUNT_OF(unties); i++)
		if (equals(o->untie, unties[i]))
			f.untie = (UntieMode)i;
	return f;
}

/* Of an option that options.def has checked; f32 where it is not given. */
static DType dtype_of(const char *text)
{
	DType t = DT_F32;
	if (text)
		dtype_from_text(text, &t);
	return t;
}

static LayoutOffload offload_option(const Options *o)
{
	return equals(o->offload, "params") ? LAYOUT_OFFLOAD_PARAMS : equals(o->offload, "optim") ? LAYOUT_OFFLOAD_OPTIM
		: LAYOUT_OFFLOAD_NONE;
}

/* --accum=many */
static bool is_many(const Options *o)
{
	return equals(o->accum, "many");
}

static Sync sync_of(const Options *o)
{
	return equals(o->sync, "every") ? SYNC_EVERY : SYNC_LAST;
}

/* Of the micro-batches of a step, the one that is shown. */
static Variant shown_variant(const Options *o)
{
	int v = VARIANT_LAST;
	for (int i = 0; o->micro_batch && i < VARIANT_COUNT; i++)
		if (equals(o->micro_batch, variant_text[i]))
			v = i;
	return is_many(o) ? (Variant)v : VARIANT_ONLY;
}

static PassOptions pass_options(const Options *o)
{
	int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
	return (PassOptions){
		.loss = o->loss, .loss_norm = o->loss_norm, .loss_reduce = o->loss_reduce,
		.optimizer = o->optimizer, .init = o->init,
		.freeze = o->freeze.at, .n_freeze = o->freeze.n,
		.bn = o->bn, .bn_sync = o->bn_sync,
		.bn_frozen = o->bn_frozen.at, .n_bn_frozen = is_ir_file(o->input) ? o->bn_frozen.n : 0,
		.dropout = !equals(o->dropout, "off"), .infer = equals(o->command, "run"),
		.grad_norm = !equals(o->grad_norm, "off"), .clip = o->clip,
		.param_group = o->param_group.at, .n_param_group = o->param_group.n,
		.param_dtype = dtype_of(o->param_dtype), .reduce_dtype = dtype_of(o->reduce_dtype),
		.buffer_dtype = dtype_of(o->buffer_dtype), .keep_low_precision_grads = o->keep_low_precision_grads,
		.stochastic_rounding = o->stochastic_rounding,
		.bcast_dtype = o->bcast_dtype, .loss_scale = o->loss_scale,
		.accum = is_many(o), .no_decay_1d = o->no_decay_1d, .check_nan = o->check_nan, .comm_hook = o->comm_hook,
		.text = o->canonical_program,
		.wrap = o->wrap.at, .n_wrap = o->wrap.n, .strategy = o->strategy,
		.ignore = o->ignore.at, .n_ignore = o->ignore.n,
		.unit_strategy = o->unit_strategy.at, .n_unit_strategy = o->unit_strategy.n, .reshard_root = o->reshard_root,
		.forward_prefetch = o->forward_prefetch, .backward_prefetch = o->backward_prefetch,
		.limit_all_gathers = o->limit_all_gathers, .schedule_in = o->schedule_in,
		.world = o->world ? o->world : 1, .shard_size = o->shard_size, .hosts = o->hosts, .remat = o->remat,
		.offload = offload_option(o), .snapshot = equals(o->command, "plan") && equals(o->save, "on"),
		.memory_limit = o->memory_limit,
		.workspace = o->workspace ? o->workspace : (int64_t)64 << 20,
		.cuda = is_cuda(o), .tf32 = equals(o->matmul_precision, "tf32"),
		.threads = (int)(o->threads ? o->threads : MAX(cores, 1)),
	};
}

/* bf16 and f16 are --reduce-dtype; else the hook is compiled once, so that nothing is written for a bad one. */
static bool take_hook(Options *o, Hook *hook, Arena *a, Diag *d)
{
	bool halves = equals(o->comm_hook, "bf16") || equals(o->comm_hook, "f16");
	*hook = (Hook){0};
	if (!o->comm_hook)
		return true;
	if (halves && o->reduce_dtype && !equals(o->reduce_dtype, o->comm_hook)) {
		diag_error(d, "--comm-hook", "%s sends gradients as %s, and --reduce-dtype=%s as %s: give one of them",
			o->comm_hook, o->comm_hook, o->reduce_dtype, o->reduce_dtype);
		return false;
	}
	if (halves) {
		o->reduce_dtype = o->comm_hook;
		return true;
	}
	if (is_cuda(o)) {
		diag_error(d, "--comm-hook", "a C function cannot reduce what lies in a GPU: refused with --target=cuda, but "
			"for bf16 and f16");
		return false;
	}
	if ((o->reduce_dtype && !equals(o->reduce_dtype, "f32")) || o->keep_low_precision_grads) {
		diag_error(d, "--comm-hook", "a hook gets gradients in f32 and decides what is sent: leave out "
			"--reduce-dtype and --keep-low-precision-grads");
		return false;
	}
	CodegenTarget t = {.cc = o->cc, .arch = o->arch, .verbose = o->verbose};
	return hook_parse(o->comm_hook, hook, a, d) && (prints_ir(o) || codegen_check_hook(hook, &t, d));
}

/* What the program is built for, and by what. */
static CodegenTarget target_options(const Options *o)
{
	return (CodegenTarget){.text = o->canonical_target, .library = equals(o->emit, "lib"), .cuda = is_cuda(o),
		.tf32 = equals(o->matmul_precision, "tf32"), .cc = o->cc,
		.nvcc = o->nvcc, .arch = o->arch, .optimize = o->optimize, .verbose = o->verbose};
}

/* ---- stages ---- */

static bool load(Variants *v, const Options *o, Arena *a, Diag *d)
{
	if (!is_ir_file(o->input)) {
		FrontendOptions f = frontend_options(o);
		f.say_roles = !f.infer;
		v->of[VARIANT_ONLY] = onnx_load(o->input, &f, d);
		return v->of[VARIANT_ONLY];
	}
	char *text = diag_read_file(d, o->input, a);
	bool ok = text && ir_parse_program(o->input, text, v, d);
	for (int k = 0; k < VARIANT_COUNT && ok; k++)
		ok = !v->of[k] || ir_verify(v->of[k], NULL, d);
	return ok;
}

/* A text at PLAN is a program already: no pass runs, unless --passes names some. */
static bool is_planned(const Variants *v, const Options *o)
{
	return is_ir_file(o->input) && v->of[VARIANT_ONLY]->level == LEVEL_PLAN && !o->passes;
}

/* What a program is made of: the memory of its plan, and the hook that it names. */
static bool accept(const Variants *v, const Options *o, Diag *d)
{
	const Hook *hook = &ir_train(v->of[VARIANT_ONLY])->hook;
	CodegenTarget t = target_options(o);
	if (is_many(o))
		diag_warn(d, "--accum", "a text at PLAN says itself how many micro-batches a step may have: it is not used");
	if (prints_ir(o))
		return true;
	return pipeline_accept(v, o->input, is_cuda(o), d) && (!hook->file || codegen_check_hook(hook, &t, d));
}

static void print_module(const Module *m, const Options *o)
{
	if (equals(o->emit, "dot"))
		ir_print_dot(stdout, m);
	else if (equals(o->emit, "json"))
		ir_print_json(stdout, m);
	else
		ir_print(stdout, m);
}

/* The micro-batch that is shown; of a text that has all of them, all. */
static bool print_ir(const Variants *v, const Module *shown, const Options *o, Diag *d)
{
	bool all = is_ir_file(o->input) && v->of[VARIANT_FIRST] && !o->micro_batch;
	for (int k = 0; k < VARIANT_COUNT && all; k++)
		print_module(v->of[k], o);
	if (!all)
		print_module(shown, o);
	return file_flush_stdout(d);
}

/* What compiling prints leaves the collectives out. */
static void print_plan(Module *m, const Variants *v, const Options *o, const PassOptions *p, Arena *a)
{
	MemoryPeak peak = memory_peak(m, a);
	LayoutRank who = memory_rank(p);
	LayoutModel layout = memory_layout(m, a);
	memory_complete(&layout, m, p);
	layout.cuda.staged = p->world > 1 && (equals(o->comm, "shm") || equals(o->comm, "mpi"));
	who.rank = layout_rank_most(&layout, &who);
	CodegenPlan plan = {.layout = &layout, .who = who, .comm = o->comm, .brief = !equals(o->command, "plan"),
		.peak_bytes = peak.bytes, .peak_op = peak.op, .largest = peak.largest, .largest_bytes = peak.largest_bytes,
		.n_largest = peak.n, .variants = v->of[VARIANT_FIRST] ? v : NULL};
	(equals(o->format, "json") ? codegen_plan_json : codegen_plan_text)(stdout, m, &plan);
}

static bool write_schedule(Module *m, const Options *o, const PassOptions *p, Diag *d)
{
	if (m->level != LEVEL_PLAN) {
		diag_error(d, "--schedule-out", "there is no schedule before pass prefetch");
		return false;
	}
	FILE *f = fopen(o->schedule_out, "w");
	if (f)
		schedule_write(f, m, p);
	if (!file_flush_close(f))
		diag_unwritten(d, o->schedule_out);
	return !d->errors;
}

/* 16-bit products on a processor without units for them; every GPU that is an --arch has them. */
static void note_products(const Options *o, const CodegenTarget *c, Diag *d)
{
	DType t = dtype_of(o->param_dtype);
	if (t != DT_F32 && !c->cuda && !codegen_multiplies(c, t, d) && !d->errors)
		diag_note(d, "--param-dtype", "--arch=%s does not multiply %s: products are computed in f32, which moves half "
			"the bytes and is no faster", o->arch ? o->arch : "native", dtype_info[t].text);
}

/* A program takes the place of an older one, and of nothing that somebody may miss. */
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

/* Whether what is to be written is a file that this command reads. */
static bool check_apart(const Options *o, const char *option, const char *path, Diag *d)
{
	struct stat in, out;
	bool same = path && !stat(o->input, &in) && !stat(path, &out) && in.st_dev == out.st_dev && in.st_ino == out.st_ino;
	if (same)
		diag_error(d, option, "\"%s\" is the model itself: it is not replaced; give another path", path);
	return !same;
}

/* A program that the C compiler refuses is not the input's fault. */
static int emit(Variants *v, const Options *o, Diag *d)
{
	Module *m = v->of[VARIANT_ONLY];
	CodegenTarget c = target_options(o);
	note_products(o, &c, d);
	bool stop = equals(o->emit, "c");
	const char *dir = stop || c.library ? o->output : arena_printf(m->arena, "%s.c.d", o->output);
	const char *output = c.library ? arena_printf(m->arena, "%s/libmodel.so", dir) : o->output;
	if (!stop && !c.library && !check_output(o->output, d))
		return EXIT_INPUT;
	bool is_new = access(dir, F_OK);
	if (!codegen_write(v, &c, dir, d))
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
	if (o->output && !check_output(o->output, d))
		return EXIT_INPUT;
	return run_model(m, o->output, o->inputs_dir, o->outputs_dir, &c, d);
}

/* Who reads options and is no pass; why: what is said where it does not run. */
typedef struct Stage { const char *name; bool runs; const char *why; } Stage;

/* Of the passes, those that shardc run has no use for. */
static const char training_passes[] = "loss|autodiff|optimizer|expand|remat|units|shard|schedule|prefetch";

/* The reason, NULL where the pass runs. */
static const char *pass_skipped(const Options *o, bool planned, const char *name, Arena *a)
{
	if (planned)
		return "where a text at PLAN is read, which has it";
	if (equals(o->command, "run") && str_is_choice(training_passes, name))
		return "by shardc run";
	if (o->passes && !pass_is_among(o->passes, name))
		return arena_printf(a, "where pass %s is not run (--passes)", name);
	if (!o->passes && o->stop_after && pass_index(o->stop_after) >= 0 && pass_index(name) > pass_index(o->stop_after))
		return arena_printf(a, "by passes up to %s", o->stop_after);
	return NULL;
}

typedef struct StageContext { const Options *o; bool planned; Arena *a; } StageContext;

static bool stage_runs(const void *context, const char *name, const char **why)
{
	const StageContext *c = context;
	const Options *o = c->o;
	bool run = equals(o->command, "run"), plan = equals(o->command, "plan"), ir = prints_ir(o);
	const char *instead = ir ? "when IR is printed" : plan ? "by shardc plan" : run ? "by shardc run"
		: "when a program is compiled";
	if (equals(o->command, "params")) {
		*why = "by shardc params";
		return str_is_choice("command|frontend|params|autodiff", name); /* autodiff: what it freezes is shown */
	}
	const char *no_peak = pass_skipped(o, c->planned, "memory", c->a);
	const Stage stages[] = {
		{"command", true, NULL},
		{"frontend", !is_ir_file(o->input), "where IR is read, which has it"},
		{"plan command", plan, instead},
		{"run", run, instead},
		{"params", false, instead},
		{"emit", ir || (!plan && !run), instead},
		{"plan", !run && !ir, instead},
		{"peak", !run && !no_peak, no_peak ? no_peak : instead},
		{"program", !run && !plan && !ir, instead},
		{"compiler", !plan && !ir, instead},
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

/* Options that belong to the other target. */
static bool check_target(const Options *o, Diag *d)
{
	int before = d->errors;
	if (!is_cuda(o) && o->arch && !strncmp(o->arch, "sm_", 3))
		diag_error(d, "--arch", "\"%s\" is for GPUs: it wants --target=cuda", o->arch);
	if (!is_cuda(o) && o->nvcc)
		diag_error(d, "--nvcc", "\"%s\" compiles CUDA: it wants --target=cuda", o->nvcc);
	if (!is_cuda(o) && equals(o->matmul_precision, "tf32"))
		diag_error(d, "--matmul-precision", "tf32 is a number format of GPUs: it wants --target=cuda");
	if (!is_cuda(o) && equals(o->comm, "nccl"))
		diag_error(d, "--comm", "nccl moves memory of GPUs: it wants --target=cuda");
	if (is_cuda(o) && equals(o->emit, "lib"))
		diag_error(d, "--emit", "lib is refused with --target=cuda: a library's arrays are the host's");
	return d->errors == before;
}

/* A missing compiler or runtime, before time is spent and anything is written. */
static bool check_compiler(const Options *o, Diag *d)
{
	CodegenTarget c = target_options(o);
	bool builds = !prints_ir(o) && !equals(o->command, "plan") && !equals(o->emit, "c");
	return !builds || codegen_check_target(&c, d);
}

/* The ranks that a plan is asked for. */
static bool check_ranks(const Options *o, Diag *d)
{
	int64_t world = MAX(o->world, 1), hosts = MAX(o->hosts, 1);
	int before = d->errors;
	if (world % hosts)
		diag_error(d, "--hosts", "%lld hosts do not divide --world=%lld into equal numbers of ranks", (long long)hosts,
			(long long)world);
	if (hosts > 1 && equals(o->comm, "shm"))
		diag_error(d, "--comm", "shm is memory of one host; several hosts (--hosts=%lld) talk by mpi",
			(long long)hosts);
	return d->errors == before;
}

/* Options of several micro-batches a step where there is one. */
static bool check_accum(const Options *o, Diag *d)
{
	int before = d->errors;
	if (!is_many(o) && o->sync)
		diag_error(d, "--sync", "there is one micro-batch a step: --sync=%s wants --accum=many", o->sync);
	if (!is_many(o) && o->micro_batch)
		diag_error(d, "--micro-batch", "there is one micro-batch a step: --micro-batch=%s wants --accum=many",
			o->micro_batch);
	if (is_many(o) && equals(o->command, "run"))
		diag_error(d, "--accum", "many is for training, shardc run has no gradients");
	if (is_many(o) && sync_of(o) == SYNC_EVERY && o->keep_low_precision_grads)
		diag_error(d, "--keep-low-precision-grads", "micro-batches are summed in what is kept (--sync=every), and sums "
			"are f32");
	if (is_many(o) && equals(o->emit, "lib"))
		diag_error(d, "--accum", "many is for programs: a library's step takes the samples of one micro-batch");
	if (is_many(o) && o->passes)
		diag_error(d, "--accum", "many runs the whole pipeline; to run passes on one micro-batch's text, say which it "
			"is in its first line: variant=first sync=last (docs/ir.md)");
	return d->errors == before;
}

/* A hook writes what is kept, it does not add to it. */
static bool check_hook(const Options *o, const Hook *hook, Diag *d)
{
	if (!hook->file || !is_many(o) || sync_of(o) != SYNC_EVERY)
		return true;
	diag_error(d, "--comm-hook", "\"%s\" reduces a gradient once a step: it wants --sync=last, not every",
		o->comm_hook);
	return false;
}

/* The modules of a step: `only` alone, or all variants. */
static bool build(Variants *v, const Options *o, const PassOptions *p, const PipelineView *view, Diag *d)
{
	if (is_many(o))
		return pipeline_fork(v->of[VARIANT_ONLY], p, view, sync_of(o), shown_variant(o), v, d);
	return pipeline_run(v->of[VARIANT_ONLY], p, view, o->passes, d);
}

/* Why there is no module: the input, or what --check-passes found in a pass. */
static int compile_status(bool ok, const CheckReport *report)
{
	return ok ? EXIT_SUCCESS : report->differs ? EXIT_RUN : EXIT_INPUT;
}

static int compile(Options *o, Arena *a, Diag *d)
{
	CheckReport report = {0};
	Hook hook;
	bool ranks = check_ranks(o, d);
	if (!check_apart(o, "-o", o->output, d) || !check_apart(o, "--schedule-out", o->schedule_out, d))
		return EXIT_INPUT;
	bool target = check_target(o, d) && check_compiler(o, d);
	if (!check_accum(o, d) || !ranks || !target || !take_hook(o, &hook, a, d) || !check_hook(o, &hook, d))
		return EXIT_INPUT;
	PassOptions p = pass_options(o);
	p.check = o->check_passes ? &report : NULL;
	PipelineView view = {.stop_after = o->stop_after, .dump_dir = o->dump_ir, .print_after = o->print_after,
		.print_changed = o->print_changed, .out = stdout};
	bool ir = prints_ir(o);
	if (!ir && !o->output && !equals(o->command, "plan") && !equals(o->command, "run")) {
		diag_error(d, "shardc", "say where the program goes: -o PATH, or --emit=ir (see shardc --help)");
		return EXIT_USAGE;
	}
	Variants v = {0};
	bool loaded = load(&v, o, a, d), planned = loaded && is_planned(&v, o);
	options_warn_unread(o, stage_runs, &(StageContext){o, planned, a}, a, d);
	int status = compile_status(loaded && (planned ? accept(&v, o, d) : build(&v, o, &p, &view, d)), &report);
	if (!status && p.check)
		diag_note(d, "--check-passes", "%d passes compared, none changes what the program computes", report.checked);
	Module *m = v.of[shown_variant(o)] ? v.of[shown_variant(o)] : v.of[VARIANT_ONLY];
	if (!status && o->schedule_in && m->level != LEVEL_PLAN)
		diag_warn(d, "--schedule-in", "there is no schedule before pass prefetch: \"%s\" is not used", o->schedule_in);
	bool runs = equals(o->command, "run"), plans = equals(o->command, "plan");
	if (!status && o->schedule_out && !write_schedule(m, o, &p, d))
		status = EXIT_INPUT;
	if (!status && ir)
		status = print_ir(&v, m, o, d) ? EXIT_SUCCESS : EXIT_RUN;
	else if (!status && !plans)
		status = runs ? run(m, o, d) : emit(&v, o, d);
	if (!status && !ir && !runs)
		print_plan(m, &v, o, &p, a);
	pipeline_free(&v);
	return status;
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

/* For shardc ckpt: a model is read as it was when its program was compiled. */
static bool read_options(const char *text, const char *where, bool recorded, CkptModelOptions *out, Arena *a, Diag *d)
{
	Options *o = NEW(a, Options);
	bool ok = options_read(text, where, recorded, o, a, d);
	*out = (CkptModelOptions){frontend_options(o), o->canonical};
	out->frontend.strict_params = false;
	if (o->trainable && access(o->trainable, R_OK))
		out->frontend.trainable = NULL; /* what is trained is no matter of names */
	return ok;
}

static int params(const Options *o, Arena *a, Diag *d)
{
	FrontendOptions f = frontend_options(o);
	ParamsPrint to = {stdout, equals(o->format, "json")};
	f.shapes_only = false;
	if (is_ir_file(o->input)) {
		diag_error(d, o->input, "shardc params reads an ONNX model");
		return EXIT_INPUT;
	}
	options_warn_unread(o, stage_runs, &(StageContext){o, false, a}, a, d);
	if (!onnx_params(o->input, &f, &to, d))
		return EXIT_INPUT;
	return file_flush_stdout(d) ? EXIT_SUCCESS : EXIT_RUN;
}

static int command(int argc, char **argv, Arena *a, Diag *d)
{
	Options o = {0};
	bool usage = false;
	if (argc > 1 && equals(argv[1], "ckpt"))
		return ckpt_main(&(CkptCall){argc - 1, argv + 1, read_options, d});
	bool ok = options_parse(argc, argv, &o, a, d, &usage);
	d->verbose = o.verbose;
	if (!ok)
		return usage ? EXIT_USAGE : EXIT_INPUT;
	if (o.help || argc == 1) {
		options_help(argc == 1 ? stderr : stdout);
		return argc == 1 ? EXIT_USAGE : EXIT_SUCCESS;
	}
	if (o.version)
		return printf("shardc %s\n", VERSION) < 0;
	if (o.list_ops)
		return list_ops();
	if (o.list_passes)
		return list_passes();
	if (!o.input) {
		diag_error(d, "shardc", "which model? (see shardc --help)");
		return EXIT_USAGE;
	}
	if (equals(o.command, "run") && (!o.inputs_dir || !o.outputs_dir)) {
		diag_error(d, "shardc run", "wants --inputs DIR and --outputs DIR");
		return EXIT_USAGE;
	}
	return equals(o.command, "params") ? params(&o, a, d) : compile(&o, a, d);
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
