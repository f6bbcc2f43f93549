/* main.c: options -> frontend -> pipeline -> codegen.  Exit status: 0 success, 1 the input is wrong (nothing was
 * written), 2 wrong usage, 3 a run failed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "advice.h"
#include "base/file.h"
#include "build.h"
#include "calibrate/calibrate.h"
#include "checks.h"
#include "choose.h"
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
enum { REPEAT_MAX = 1000 };

static bool equals(const char *a, const char *b)
{
	return a && !strcmp(a, b);
}

/* Hooks of files are compiled once here, so that nothing is written for a wrong one. */
static bool take_hook(Options *o, Hook *hook, Arena *a, Diag *d)
{
	*hook = (Hook){0};
	if (!check_half_hook(o, d))
		return false;
	const char *text = o->graph.comm_hook;
	if (!text)
		return true;
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

/* ---- stages ---- */

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

/* Checks the micro-batch variants of a text, and what is asked of them. */
static bool check_variants(const Variants *v, const Options *o, Diag *d)
{
	int before = d->errors;
	if (options_reads_text(o) && o->given.micro_batch && !v->of[shown_variant(o)])
		diag_error(d, "--micro-batch", "\"%s\" has no module of variant=%s", o->input, variant_text[shown_variant(o)]);
	for (int k = 0; k < VARIANT_COUNT && options_reads_text(o); k++)
		check_products(v->of[k], o, d);
	if (v->of[VARIANT_FIRST] && !build_is_planned(v, o))
		diag_error(d, "--passes", "\"%s\" has the modules of all micro-batches, and passes run on one: give them a "
			"text of that one", o->input);
	return d->errors == before;
}

/* Prints the variant that is shown; for a text that contains all variants, prints all of them: as
 * JSON they are one array, since a file is one document. */
static bool print_ir(const Variants *v, const Module *shown, const Options *o, Diag *d)
{
	bool all = options_reads_text(o) && v->of[VARIANT_FIRST] && !o->given.micro_batch;
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

/* Prints the plan, after compiling without its collectives, and what it predicts for a machine; *answers is what --ask
 * found, or NULL.  False after messages. */
static bool print_plan(Module *m, const AskOf *of, const Options *o, const Search *search, const Answers **answers,
	Arena *a, Diag *d)
{
	const Sizes *s = of->program;
	const Machine *machine = of->machine;
	const CodegenPlan plan = describe_plan(m, s, o, a);
	*answers = NULL;
	if (machine && (!predict_accepts(m, plan.layout, machine, d) || !predict_divides(o, m->batch, d)
			|| !predict_asks(o, of->start, d)))
		return false;
	if (machine && o->what.ask)
		*answers = answers_find(of, o, a);
	(o->what.format == FORMAT_JSON ? codegen_plan_json : codegen_plan_text)(stdout, m, &plan);
	if (search)
		(o->what.format == FORMAT_JSON ? search_json : search_text)(stdout, search);
	return !machine || predict_show(stdout, &(PredictOf){s, machine, *answers}, o, d);
}

/* Writes the page of --report; false after messages. */
static bool write_report(const Report *r, const Sizes *s, const Options *o, const Machine *machine,
	const Answers *answers, Arena *a, Diag *d)
{
	const Variants *v = &s->of[s->n - 1];
	const CodegenPlan plan = describe_plan(v->of[VARIANT_ONLY], s, o, a);
	const ReportOf of = {.program = s, .v = v, .plan = &plan, .machine = machine, .answers = answers};
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

/* Writes what the plan chose to the files that were asked for; false after messages. */
static bool write_choices(Module *m, bool planned, const Options *o, Diag *d)
{
	const InspectionOptions *to = &o->inspection;
	return (!to->remat_out || choose_write_remat(o, d)) && (!to->schedule_out || write_schedule(m, o, d))
		&& (!to->policy_out || write_policy(m, planned, o, d));
}

/* Notes that 16-bit products are slow on a processor without instructions for them.  Every GPU that is an --arch
 * has them. */
static void note_products(const Options *o, const CodegenTarget *c, Diag *d)
{
	DType t = o->precision.param_dtype;
	if (o->precision.matmul_dtype == MATMUL_FP8 && !codegen_cuda(c))
		diag_note(d, "--matmul-dtype", "no CPU multiplies 8-bit floats: operands are rounded to them and multiplied in "
			"%s, so numbers are those of a GPU and steps are slower than without fp8", dtype_info[t].text);
	if (t != DT_F32 && !codegen_cuda(c) && !codegen_multiplies(c, t, d) && !d->errors)
		diag_note(d, "--param-dtype", "--arch=%s does not multiply %s: products are computed in f32, which moves half "
			"the bytes and is no faster", o->target.arch ? o->target.arch : "native", dtype_info[t].text);
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
static const char training_passes[] = "loss|autodiff|optimizer|expand|remat|units|shard|schedule|prefetch|"
	"offload";

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
		{"frontend", !options_reads_text(o), "where IR is read, which has it"},
		{"plan command", plan, instead},
		{"prediction for GPUs", plan && o->what.machine && options_cuda(o), instead},
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
		{"architecture", (!plan && !ir) || options_cuda(o), instead}, /* passes ask which GPU it is */
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
	return str_is_choice("command|calibrate|compiler|architecture", name);
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
			|| !check_apart(o, "--report", o->what.report, d) || !check_apart(o, "--trace", o->what.trace, d) || !reads)
		return EXIT_INPUT;
	bool target = check_target(o, d) && check_compiler(o, d), is_text = options_reads_text(o); /* even a PLAN */
	if (!check_accum(o, d) || !choose_check(o, search, d) || !ranks || !target || !predicts
			|| (!is_text && !join_policy(o, a, d)) || !take_hook(o, &hook, a, d) || !check_hook(o, &hook, d))
		return EXIT_INPUT;
	PipelineView view = {.stop_after = o->what.stop_after, .dump_dir = show->dump_ir,
		.print_after = show->print_after, .print_changed = show->print_changed,
		.check = show->check_passes ? &found : NULL, .out = stdout};
	bool ir = prints_ir(o);
	Restart start = {.arena = a};
	view.restart = is_plan(o) || build_may_reduce_each(o, &view) ? &start : NULL;
	if (!ir && !o->what.output && !is_plan(o) && !options_infer(o)) {
		diag_error(d, "shardc", "say where the program goes: -o PATH, or --emit=ir (see shardc --help)");
		return EXIT_USAGE;
	}
	int n_sizes = build_count_sizes(o, d);
	if (!n_sizes)
		return EXIT_INPUT;
	Sizes all = {.n = 1};
	Variants *first = &all.of[0];
	ChooseAgain context = {.asked = *o}; /* no machine: --remat=auto chooses what it does for a program */
	PlanAgain again = choose_again(&context);
	bool loaded = build_load(first, o, 0, a, d), planned = loaded && build_is_planned(first, o);
	static const Hook none;
	const Hook *named = loaded && options_reads_text(o) ? &ir_train(first->of[VARIANT_ONLY])->hook : &none;
	options_warn_unread(o, stage_runs, &(StageContext){o, planned, named->file, search, a}, a, d);
	bool ok = loaded && check_named_hook(named, &hook, o, d) && check_variants(first, o, d)
		&& (planned ? accept(first, o, d)
			: (!is_text || (join_policy(o, a, d) && (!hook.file || check_sent(o, d)))) && build_join_block(first, o, d)
				&& choose_remat(o, &context.asked, &view, a, d) && build_program(first, o, &view, d))
		&& build_sizes(&all, n_sizes, o, a, d)
		&& report_accepts(report, &all, o, d);
	int status = compile_status(ok, &found);
	if (!status && view.check)
		diag_note(d, "--check-passes", "%d passes compared, none changes what the program computes", found.checked);
	Variants v = all.of[all.n - 1];
	Module *m = v.of[shown_variant(o)] ? v.of[shown_variant(o)] : v.of[VARIANT_ONLY];
	if (!status && o->sharding.schedule_in && m->level != LEVEL_PLAN)
		diag_warn(d, "--schedule-in", "there is no schedule before pass prefetch: \"%s\" is not used",
			o->sharding.schedule_in);
	bool runs = options_infer(o), plans = is_plan(o), measures = calibrates(o);
	if (!status && !write_choices(m, planned, o, d))
		status = EXIT_INPUT;
	if (!status && ir)
		status = print_ir(&v, m, o, d) ? EXIT_SUCCESS : EXIT_RUN;
	else if (!status && measures)
		status = calibrate_model(&all, o, d);
	else if (!status && !plans)
		status = runs ? run(m, o, d) : emit(&all, o, d);
	const Answers *answers = NULL;
	if (!status && !ir && !runs && !measures)
		status = print_plan(m, &(AskOf){&all, &start, machine, &again}, o, plans ? search : NULL, &answers, a, d)
			&& write_report(report, &all, o, machine, answers, a, d) ? EXIT_SUCCESS : EXIT_INPUT;
	if (!status && !ir && !runs && !measures)
		print_hints(&all, o, &start);
	choose_again_end(&context);
	pipeline_forget(&start);
	build_free_sizes(&all);
	return status;
}

static int compile(Options *o, const Search *search, Arena *a, Diag *d)
{
	Report report = {0};
	int status = compile_with(&report, o, search, a, d);
	report_end(&report);
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
	if (options_reads_text(o)) {
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
	if (options_reads_text(o)) {
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
	if (o->what.emit != EMIT_BINARY)
		diag_error(d, "--emit", "shardc calibrate writes a machine file, no program");
	if (o->what.passes || o->what.stop_after)
		diag_error(d, o->what.passes ? "--passes" : "--stop-after", "shardc calibrate measures whole programs");
	if (o->what.repeat > REPEAT_MAX)
		diag_error(d, "--repeat", "at most %d steps of each run are measured, and %lld are asked for", REPEAT_MAX,
			(long long)o->what.repeat);
	if (options_sizes(o))
		diag_error(d, "--bind", "shardc calibrate measures a program of one size: give that which is predicted");
	return d->errors == before;
}

/* Without a model no pass reads an option. */
static int calibrate_machine(const Options *o, Arena *a, Diag *d)
{
	options_warn_unread(o, measures_alone, NULL, a, d);
	if (o->given.matmul_precision)
		diag_warn(d, "--matmul-precision", "is not used by shardc calibrate without a model, which measures all "
			"precisions");
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
	if (!search_wanted(&o))
		return compile(&o, NULL, a, d);
	Options settled = {0};
	const Search *found = choose_units(argc, argv, &o, &settled, a, d);
	return found ? compile(&settled, found, a, d) : EXIT_INPUT;
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
