/* runtime/train/session.c: a run from its flags to its end.  What belongs to a process (signals, the log, data files,
 * the loop) is left to the caller.
 *
 * With several ranks, what ends a run (bad data, numbers that are not finite) follows from the step's sums, so all
 * callers learn it after the same step.
 *
 * All state of a run is in the mapped arenas and in Progress, so a step can be repeated, left out or resumed by setting
 * these. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "runtime/train/train.h"

/* ---- before the first step ---- */

static LossScale first_scale(const RtModel *model)
{
	if (model->loss_scale.dynamic && !model->grad_norm)
		ice("a dynamic loss scale without a norm of gradients");
	return (LossScale){.scale = model->loss_scale.init > 0 ? model->loss_scale.init : 1};
}

static StepAsked take_asked(const Rt *rt)
{
	int stop = rt->p->control ? control_stop_signal(rt->p->control) : 0;
	SaveState save = save_state(rt->p->snapshot);
	return (StepAsked){.stop = MAX(stop, atomic_load(&report_stop_signal)), .reload = hyper_take_signal(),
		.save = atomic_exchange(&report_save_signal, 0), .written = save == SAVE_WRITTEN,
		.save_failed = save == SAVE_FAILED};
}

void session_new(Session *s, const RtModel *model, Diag *d)
{
	*s = (Session){.d = d, .folder.fd = -1};
	s->model = *model;
	s->rt = (Rt){.model = &s->model, .p = &s->p};
	s->p = (struct RtPrivate){.diag = d, .arena = arena_new(), .model = &s->model, .options = &s->o, .accum = 1,
		.places = &s->places, .asked = take_asked,
		.progress.loss_scale = first_scale(model)};
	s->train.batch = model->batch;
}

void session_free(Session *s)
{
	data_close(&s->train);
	data_close(&s->eval);
	arena_free(s->p.arena);
	s->p.arena = NULL;
}

static bool check_flags(const Session *s)
{
	const RtOptions *o = &s->o;
	const RtModel *m = s->rt.model;
	const struct { bool wrong; const char *text; } rules[] = {
		{o->save_every && !o->save, "--save-every needs --save DIR"},
		{o->text[OPT_save_every] && !o->save_every,
			"--save-every needs at least 1; leave it out to save at the end alone"},
		{o->text[OPT_eval_every] && !o->eval_every,
			"--eval-every needs at least 1; leave it out to evaluate after the last step alone"},
		{o->eval_every && !o->eval_data.n && !o->eval_tokens,
			"--eval-every needs --eval-data NAME=FILE.npy or --eval-tokens FILE"},
		{o->text[OPT_bucket] && !o->lengths.n && !o->eval_lengths.n,
			"--bucket needs --lengths, by which it orders samples"},
		{o->text[OPT_bucket] && !o->bucket, "--bucket needs at least 1"},
		{o->lengths.n && !o->data.n, "--lengths needs --data NAME=FILE.npy, whose samples have these lengths"},
		{o->eval_lengths.n && !o->eval_data.n, "--eval-lengths needs --eval-data NAME=FILE.npy"},
		{o->text[OPT_trace_steps] && !o->trace, "--trace-steps needs --trace FILE.json"},
		{o->text[OPT_keep] && !o->save, "--keep needs --save DIR"},
		{o->text[OPT_keep] && o->keep < 1, "--keep needs at least 1"},
		{o->resume && !strcmp(o->resume, "auto") && !o->save,
			"--resume=auto needs --save DIR, where it looks"},
		{o->text[OPT_threads] && o->threads < 1, "--threads needs at least 1"},
		{o->threads > THREADS_MAX, "--threads should be at most 4096"},
		{o->threads_exact && m->need_cuda,
			"--threads-exact is refused: a GPU computes, and its bits do not depend on --threads"},
		{o->offload_dir && layout_offloads(&m->layout) && m->need_cuda,
			"--offload-dir is refused: programs for GPUs offload to memory of the host, not to a file"},
		{o->offload_dir && !layout_offloads(&m->layout),
			"--offload-dir is refused: this program keeps everything in memory (compile with --offload=params)"},
		{o->cuda_graph == 1 && !m->need_cuda, "--cuda-graph=1 is refused: this program was compiled for the CPU"},
		{o->tune && !m->need_cuda, "--tune is refused: this program was compiled for the CPU"},
		{o->time_ops && !m->need_cuda,
			"--time-ops is refused: this program was compiled for the CPU, where --trace takes the time of each op"},
		{o->time_ops && session_world(s) > 1, "--time-ops is refused with several ranks: it times the kernels of one"},
		{o->time_ops && m->n_checks,
			"--time-ops is refused: this program was compiled with --check-nan, whose checks are the host's"},
		{o->text[OPT_time_budget] && !o->time_ops, "--time-budget needs --time-ops FILE.jsonl"},
		{o->text[OPT_time_budget] && o->time_budget <= 0, "--time-budget needs more than 0 seconds"},
		{o->text[OPT_comm_threads] && m->need_cuda,
			"--comm-threads is refused: on a GPU collectives have streams of the device"},
	};
	bool ok = true;
	for (int i = 0; i < COUNT_OF(rules); i++)
		if (rules[i].wrong) {
			diag_error(s->d, o->program, "%s", rules[i].text);
			ok = false;
		}
	return ok;
}

int session_launch(Session *s)
{
	if (!launch_find(&s->launch, &s->o, device_comms, s->p.arena, s->d))
		return EXIT_USAGE;
	s->p.world = s->launch.world;
	bool flags = check_flags(s);
	return start_check_world(&s->rt, s->d) && flags ? EXIT_DONE : EXIT_USAGE;
}

bool session_join(Session *s)
{
	struct RtPrivate *p = &s->p;
	if (s->launch.role != LAUNCH_RANK)
		return true;
	p->control = control_join(&s->launch, &s->o, p->arena, s->d);
	if (!p->control)
		return false;
	if (s->launch.carrier && !hosts_find(p->control, &s->launch.world, p->arena)) {
		control_leave(p->control, EXIT_RUN);
		p->control = NULL;
		return false;
	}
	p->world = s->launch.world;
	atomic_store(&control_progress(p->control)->program, PROGRAM_OUTSIDE);
	control_set_names(p->control, streams_name, &s->rt);
	return true;
}

/* Called when rank 0 has read the file of --hyper: shares it with all ranks. */
static bool share_hyper(Session *s)
{
	struct RtPrivate *p = &s->p;
	if (!p->optim.info)
		return true;
	bool ok = hyper_share(&s->rt, session_is_first(s) ? p->hyper : NULL);
	optim_apply(&p->optim, s->rt.model, &s->o, p->hyper);
	return ok;
}

int session_meet(Session *s, SessionPrepare *prepare, void *context)
{
	Rt *rt = &s->rt;
	k_bad_input = rt_bad_input;
	device_set_threads(s->o.threads);
	k_threads_exact = s->o.threads_exact;
	agree_hold_messages(rt, s->d);
	int code = device_check(rt, s->d) ? prepare(context) : EXIT_INPUT;
	code = agree_code(rt, code, s->d);
	if (!code)
		code = start_compare(rt, &s->train, &s->eval, s->d);
	if (!code && s->o.hyper && !share_hyper(s))
		code = EXIT_RUN;
	if (!code && !device_map(rt, s->d))
		code = EXIT_RUN;
	agree_print_messages(rt, s->d);
	return code;
}

int session_prepare(Session *s)
{
	struct RtPrivate *p = &s->p;
	const RtModel *m = s->rt.model;
	LayoutRank who = device_rank(&s->rt);
	if (!optim_init(&p->optim, m, &who, p->arena, s->o.program, s->d) ||
		!resume_begin(&s->rt, &s->o, &s->resume, &p->progress, s->d))
		return EXIT_INPUT;
	int code = session_accum(s);
	if (code)
		return code;
	s->first_step = s->last_saved = s->resume ? p->progress.step : 0;
	return EXIT_DONE;
}

int session_accum(Session *s)
{
	const RtModel *m = s->rt.model;
	int64_t n = s->o.text[OPT_accum] ? s->o.accum : 1;
	if (n < 1) {
		diag_error(s->d, s->o.program, "--accum needs at least 1");
		return EXIT_USAGE;
	}
	if (n > 1 && !m->programs) {
		diag_error(s->d, s->o.program, "--accum %" PRId64 ": this program takes one micro-batch a step; compile it "
			"with --accum=many", n);
		return EXIT_USAGE;
	}
	s->p.accum = n;
	if (n > 1)
		s->model.layout = m->layouts[n > 2];
	return EXIT_DONE;
}

/* Where a hyper-parameter was given, for messages: a key of the file of --hyper or of the checkpoint; else a flag. */
static const char *given_as(const Session *s, const double *hyper, OptionId flag)
{
	const char *key = hyper_key(hyper, flag);
	if (!key)
		return arena_printf(s->p.arena, "--%s", option_info[flag].flag);
	return arena_printf(s->p.arena, "\"%s\" of %s", key, s->o.hyper ? s->o.hyper : s->resume);
}

/* Checks that the learning-rate schedule is plausible, with these hyper-parameters overriding the flags. */
static bool check_schedule(const Session *s, const double *hyper, Diag *d)
{
	LrSchedule lr = optim_schedule(&s->p.optim, &s->o, hyper);
	bool late = lr.steps > 0 && lr.warmup > lr.steps;
	bool rises = lr.kind != SCHEDULE_CONSTANT && lr.min_lr > lr.lr;
	const char *top = given_as(s, hyper, OPT_lr);
	if (late)
		diag_error(d, s->o.program, "%s %" PRId64 " is longer than the run, --steps %" PRId64 ": the learning "
			"rate would never reach %s", given_as(s, hyper, OPT_warmup), lr.warmup, lr.steps, top);
	if (rises)
		diag_error(d, s->o.program, "%s %g is above %s %g, from which %s goes down to it",
			given_as(s, hyper, OPT_min_lr), lr.min_lr, top, lr.lr, given_as(s, hyper, OPT_lr_schedule));
	return !late && !rises;
}

/* Notes that a learning-rate schedule which ends later than the checkpoint's differs from it at every step. */
static void say_other_schedule(const Session *s)
{
	const LrSchedule *lr = &s->p.optim.lr;
	LrSchedule was = *lr;
	int64_t step = s->p.progress.step;
	was.steps = s->p.progress.steps_then;
	if (!s->resume || !was.steps || was.steps == lr->steps || !session_is_first(s))
		return;
	double now = schedule_lr(lr, step), then = schedule_lr(&was, step);
	if (now > then * 1.001)
		diag_warn(s->d, s->o.program, "--steps was %" PRId64 " and is %" PRId64 ": %s is another schedule now, and the "
			"learning rate of step %" PRId64 " rises from %g to %g; --lr-schedule=constant --lr=%g goes on without it",
			was.steps, lr->steps, lr->kind == SCHEDULE_COSINE ? "cosine" : "linear", step + 1, then, now,
			then > 0 ? then : lr->lr);
}

int session_configure(Session *s)
{
	struct RtPrivate *p = &s->p;
	if (!optim_configure(&p->optim, s->rt.model, &s->o, s->d))
		return EXIT_USAGE;
	if (s->o.hyper && session_is_first(s))
		p->hyper = hyper_read(&s->rt, s->o.hyper, s->d);
	if (s->o.hyper && session_is_first(s) && !p->hyper)
		return EXIT_INPUT;
	optim_apply(&p->optim, s->rt.model, &s->o, p->hyper);
	if (session_is_first(s) && !check_schedule(s, p->hyper, s->d)) /* the other ranks have not read the file of
	                                                                * --hyper */
		return EXIT_USAGE;
	say_other_schedule(s);
	return EXIT_DONE;
}

static bool open_snapshot(Session *s)
{
	Held held;
	Diag *d = agree_begin(&held, s->d);
	bool ok = snapshot_open(&s->checkpoint, d);
	return agree_end(&s->rt, &held, ok, s->d);
}

/* All ranks load, each its part; a failure of one stops all. */
bool session_load(Session *s, bool *given)
{
	Rt *rt = &s->rt;
	Held held;
	save_init(&s->checkpoint, rt, s->p.arena);
	if (!open_snapshot(s))
		return false;
	if (!weights_load(rt, s->resume && resume_is_strict(&s->o), s->d) ||
		(s->resume && !resume_load(&s->checkpoint, s->resume, s->p.arena, s->d)))
		return false;
	Diag *d = agree_begin(&held, s->d);
	bool all = !given;
	given = given ? given : NEW_N(s->p.arena, bool, rt->model->n_tensors + 1);
	bool ok = data_load_consts(rt, &s->o.consts, given, d) && (!all || data_check_consts(rt->model, given, d));
	return agree_end(rt, &held, ok, s->d);
}

bool session_start(Session *s)
{
	Rt *rt = &s->rt;
	Held held;
	Diag *d = agree_begin(&held, s->d);
	bool threads = start_comm_threads(rt); /* which communicates with the other ranks */
	bool ok = streams_start(rt, threads, d);
	if (!agree_end(rt, &held, ok, s->d))
		return false;
	streams_program(rt, PROGRAM_OUTSIDE);
	device_tables(rt);
	if (!device_setup(rt, s->d))
		return false;
	step_open(rt);
	return true;
}

void session_leave(Session *s, int code)
{
	struct RtPrivate *p = &s->p;
	snapshot_close(&s->checkpoint);
	folder_close(&s->folder);
	/* Messages are printed on all ranks before the first one leaves, because that ends the others. */
	if (p->comm)
		comm_barrier(p->comm);
	step_close(&s->rt);
	streams_stop(&s->rt);
	for (int i = 0; s->rt.prim && i < s->rt.model->n_prims; i++)
		k_prim_free(s->rt.prim[i]);
	s->rt.prim = NULL;
	device_unmap(&s->rt);
	if (p->control)
		control_leave(p->control, code);
	p->control = NULL;
}

/* ---- steps ---- */

/* The number of steps that are done or under way. */
static int64_t steps_begun(const Session *s)
{
	return s->p.progress.step + s->ahead;
}

static void run_micro_batch(Session *s, int64_t a, SessionLoad *load, void *context)
{
	Rt *rt = &s->rt;
	int k = a == 0 ? RT_FIRST : a < s->p.accum - 1 ? RT_MIDDLE : RT_LAST;
	Program program = s->p.accum == 1 ? PROGRAM_STEP : (Program)(PROGRAM_FIRST + k);
	int64_t samples = s->p.progress.samples + s->ahead * session_samples(s);
	int64_t sample0 = samples + (a * session_world(s) + s->p.world.rank) * s->train.batch;
	streams_program(rt, program);
	trace_host(rt, TRACE_DATA);
	load(context, step_input(rt), sample0);
	trace_host(rt, TRACE_LOOP);
	step_run(rt, program, sample0);
}

void session_size(Session *s, int size)
{
	program_size(&s->rt, size);
	s->train.sizes.now = size;
}

void session_step(Session *s, SessionLoad *load, void *context)
{
	Rt *rt = &s->rt;
	const Progress *p = &s->p.progress;
	int64_t begun = steps_begun(s);
	StepScalars scalars = {.lr = (float)schedule_lr(&s->p.optim.lr, begun),
		.step = p->updates + 1, .clip_coef = 1, .loss_scale = (float)p->loss_scale.scale, .seed = (uint64_t)s->o.seed,
		.rng_step = (uint64_t)begun};
	trace_step(rt, begun + 1);
	streams_cost(rt); /* drops the cost of an evaluation or a save, which is not this step's */
	step_begin(rt, &scalars);
	for (int64_t a = 0; a < s->p.accum; a++)
		run_micro_batch(s, a, load, context);
	step_end(rt);
	s->costs[begun % COUNT_OF(s->costs)] = streams_cost(rt);
	s->sizes[begun % COUNT_OF(s->sizes)] = s->p.size;
	s->ahead++;
}

void session_result(Session *s)
{
	s->comm = s->costs[s->p.progress.step % COUNT_OF(s->costs)];
	s->size = s->sizes[s->p.progress.step % COUNT_OF(s->sizes)];
	s->ahead--;
	step_result(&s->rt);
}

int session_outcome(const Session *s)
{
	if (s->p.sums.bad_input > 0)
		return EXIT_INPUT;
	return s->p.result.finite || s->p.result.overflow || s->o.on_nan == ON_NAN_SKIP ? EXIT_DONE : EXIT_RUN;
}

void session_say_not_finite(const Session *s)
{
	const StepResult *r = &s->p.result;
	diag_error(s->d, s->o.program,
		"step %" PRId64 ": %s is not finite (loss %g, gradient norm %g); that update was left out%s; "
		"--on-nan=skip goes on after such a step", s->p.progress.step + 1,
		!isfinite(r->loss) ? "the loss" : s->rt.model->grad_norm && !isfinite(r->grad_norm) ? "the gradient norm" :
			"a value on the way", r->loss, r->grad_norm,
		s->o.save ? ", nothing was saved since" : "");
}

bool session_reload(Session *s)
{
	struct RtPrivate *p = &s->p;
	Diag d = {.out = s->d->out, .prefix = s->d->prefix}; /* an error here does not end the run */
	double *mine = NULL;
	streams_program(&s->rt, PROGRAM_OUTSIDE);
	if (session_is_first(s))
		mine = hyper_read(&s->rt, s->o.hyper, &d);
	if (mine && !check_schedule(s, mine, &d))
		mine = NULL;
	if (!hyper_share(&s->rt, mine))
		return false;
	optim_apply(&p->optim, s->rt.model, &s->o, p->hyper);
	device_tables(&s->rt);
	return true;
}

void session_advance(Session *s)
{
	Progress *p = &s->p.progress;
	p->step++;
	p->samples += session_samples(s);
}

static bool open_folder(Session *s, Diag *d)
{
	return folder_open(&s->folder, &s->o, s->rt.model, s->first_step, s->p.parts_are_newer, d);
}

int session_folder(Session *s)
{
	Held held;
	if (!s->o.save)
		return EXIT_DONE;
	Diag *d = agree_begin(&held, s->d);
	bool ok = !session_is_first(s) || open_folder(s, d);
	if (!agree_end(&s->rt, &held, ok, s->d) || !places_find(&s->places, &s->rt, s->p.arena, s->d))
		return EXIT_INPUT;
	d = agree_begin(&held, s->d);
	ok = session_is_first(s) || !places_leads(&s->places, &s->p.world) || open_folder(s, d);
	return agree_end(&s->rt, &held, ok, s->d) ? EXIT_DONE : EXIT_INPUT;
}

bool session_save(Session *s)
{
	int64_t step = s->p.progress.step;
	if (!s->o.save || s->last_saved == step)
		return true;
	streams_program(&s->rt, PROGRAM_OUTSIDE);
	if (!snapshot_end(&s->checkpoint, s->d))
		return false;
	if (!(s->checkpoint.snapshot ? snapshot_begin(&s->checkpoint, &s->p.progress, s->d)
		: save_run(&s->checkpoint, &s->p.progress, s->d)))
		return false;
	s->last_saved = step;
	s->saved = true;
	return true;
}

bool session_save_end(Session *s)
{
	streams_program(&s->rt, PROGRAM_OUTSIDE);
	return snapshot_end(&s->checkpoint, s->d);
}

bool session_save_goes_on(Session *s)
{
	const StepAsked *said = &s->p.sums.asked;
	if (said->written == (double)session_world(s))
		snapshot_all_written(&s->checkpoint);
	return said->save_failed == 0;
}
