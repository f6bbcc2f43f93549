/* runtime/train/lib.c: implements model.h: a session (session.c) behind functions that report errors and do not end the
 * process.
 *
 * Refuses options that only make sense in the binary, calls out of order, and models that an earlier error left
 * unusable.  Messages of a call are kept for model_error.
 *
 * Every function is a body that run_call runs: under the library's lock, with its messages collected, with the number
 * of threads of --threads, and with a longjmp for kernels that cannot continue. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/train/train.h"

struct Model {
	Session s;
	Diag d;
	char *text;             /* messages of the last call */
	size_t n_text;
	bool ready;             /* it has been created */
	bool damaged;           /* a kernel or model_load was aborted half-way */
	FullParams *full;       /* between model_full_begin and model_full_end */
	bool *given;            /* [tensor]: inputs without a sample axis that have values */
	DataSet rows;           /* the arrays of the current call */
	const char *kind;       /* name of the current call, for data_blame */
	char number[OPT_COUNT][64]; /* texts of options that model_set_number set */
	RtOptions options;      /* options that the caller has given so far, without those of a checkpoint */
};

/* ---- calls ---- */

typedef int CallBody(Model *m, const void *arguments);
enum { NEEDS_NOTHING = 0, NEEDS_READY = 1, NEEDS_WHOLE = 2, NEEDS_CLOSED = 4, NEEDS_OPEN = 8,
	NEEDS_ALL = NEEDS_READY | NEEDS_WHOLE | NEEDS_CLOSED };

static struct { pthread_mutex_t lock; Model *m; pthread_t thread; jmp_buf back; } calling =
	{.lock = PTHREAD_MUTEX_INITIALIZER};

/* Called when a primitive cannot be made or run, or a hook has failed.  With several ranks the process ends, because
 * other ranks would wait for this one for ever; so it does on a thread of a stream (--comm-threads=1), which cannot
 * return to the caller. */
PRINTF_LIKE(1, 2) static void kernel_failed(const char *fmt, ...)
{
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (session_world(&calling.m->s) > 1 || !pthread_equal(calling.thread, pthread_self())) {
		fprintf(stderr, "%serror: %s\n", calling.m->d.prefix ? calling.m->d.prefix : "", text);
		end_process(EXIT_RUN);
	}
	diag_error(&calling.m->d, "kernels", "%s; the model can only be loaded again or destroyed", text);
	longjmp(calling.back, 1);
}

static const char *out_of_order(const Model *m, int needs)
{
	if (needs & NEEDS_READY && !m->ready)
		return "this model could not be created; it can only be destroyed";
	if (needs & NEEDS_WHOLE && m->damaged)
		return "an earlier call failed in the middle of changing this model; load a checkpoint or destroy it";
	if (needs & NEEDS_CLOSED && m->full)
		return "full parameters are open: call model_full_end first";
	if (needs & NEEDS_OPEN && !m->full)
		return "full parameters are not open: call model_full_begin first";
	return NULL;
}

static int guarded(Model *m, CallBody *body, const void *arguments)
{
	if (!setjmp(calling.back))
		return body(m, arguments);
	m->damaged = true;
	streams_abandon(&m->s.rt);
	return MODEL_FAILED;
}

static int run_call(Model *m, CallBody *body, const void *arguments, int needs)
{
	pthread_mutex_lock(&calling.lock);
	calling.m = m;
	calling.thread = pthread_self();
	k_fail = kernel_failed;
	k_bad_input = rt_bad_input;
	free(m->text);
	m->text = NULL;
	m->d.errors = m->d.warnings = 0;
	m->d.out = open_memstream(&m->text, &m->n_text);
	const char *wrong = out_of_order(m, needs);
	int threads = device_threads(), code = MODEL_USAGE;
	if (m->ready)
		device_set_threads(m->s.o.threads);
	if (wrong)
		diag_error(&m->d, "model", "%s", wrong);
	else
		code = guarded(m, body, arguments);
	device_set_threads(threads);
	if (m->d.out) {
		fflush(m->d.out);
		if (code && !m->n_text)
			diag_error(&m->d, "model", "%s", session_world(&m->s) > 1 ?
				"another rank has failed, or ranks do not agree: the messages of rank 0, and of that rank, say how" :
				"failed without a message");
		fclose(m->d.out);
	}
	m->d.out = NULL;
	calling.m = NULL;
	pthread_mutex_unlock(&calling.lock);
	return code;
}

const char *model_error(const Model *m)
{
	return m->text ? m->text : "";
}

/* Whether all ranks are ok; of those that are not, the messages of the first are kept. */
static bool all_well(Model *m, Held *held, bool ok)
{
	return agree_end(&m->s.rt, held, ok, &m->d);
}

/* ---- life ---- */

static bool check_options(const RtOptions *o, Diag *d)
{
	static const struct { OptionId id; const char *why; } own[] = {
		{OPT_data, "model_step takes arrays"}, {OPT_tokens, "model_step takes arrays"},
		{OPT_eval_data, "model_evaluate takes arrays"}, {OPT_eval_tokens, "model_evaluate takes arrays"},
		{OPT_lengths, "the arrays of a step have their length"}, {OPT_bucket, "the caller chooses samples"},
		{OPT_eval_lengths, "the arrays of an evaluation have their length"},
		{OPT_eval_every, "call model_evaluate when you want one"}, {OPT_shuffle, "the caller chooses samples"},
		{OPT_save_every, "call model_save when you want one"}, {OPT_log, "model_step returns what a log has"},
		{OPT_trace, "the time between calls is the caller's; trace the binary, which runs the same program"},
		{OPT_trace_steps, "it is of --trace"},
		{OPT_time_ops, "it runs no steps; the binary has the same kernels"}, {OPT_time_budget, "it is of --time-ops"},
		{OPT_print_plan, "model_bytes tells the sum"}, {OPT_infer, "this library trains"},
		{OPT_check_replicas, "the binary compares when it ends"},
		{OPT_version, "it is an option of the binary"}, {OPT_help, "it is an option of the binary"},
	};
	bool ok = true;
	for (int i = 0; i < COUNT_OF(own); i++)
		if (o->text[own[i].id]) {
			diag_error(d, o->program, "--%s is refused in a library: %s", option_info[own[i].id].flag, own[i].why);
			ok = false;
		}
	if (o->text[OPT_ranks] && o->ranks > 1) {
		diag_error(d, o->program, "--ranks=%" PRId64 " is refused in a library, which starts no processes: start "
			"the ranks with a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT", o->ranks);
		ok = false;
	}
	return ok;
}

static bool read_options(Model *m, const char *const *options)
{
	Arena *a = m->s.p.arena;
	int n = 0;
	while (options && options[n])
		n++;
	char **argv = NEW_N(a, char *, n + 2);
	argv[0] = arena_strdup(a, "model");
	for (int i = 0; i < n; i++)
		argv[i + 1] = arena_strdup(a, options[i]);
	return options_parse(&m->s.o, a, n + 1, argv, &m->d) && check_options(&m->s.o, &m->d);
}

static int prepare(void *context)
{
	Session *s = context;
	int code = session_prepare(s);
	if (!code && !s->o.text[OPT_steps] && s->o.lr_schedule != SCHEDULE_CONSTANT) {
		diag_error(s->d, s->o.program, "--lr-schedule=%s needs --steps, where it ends", s->o.text[OPT_lr_schedule]);
		code = EXIT_USAGE;
	}
	return code ? code : session_configure(s);
}

static int launch(Model *m)
{
	Session *s = &m->s;
	int code = session_launch(s);
	if (!code && s->launch.carrier && s->launch.role == LAUNCH_RANK) {
		diag_error(&m->d, s->o.program, "ranks of a library are not started by %s: use a launcher that sets RANK, "
			"WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or --comm=shm beside those variables",
			comm_info[s->launch.carrier].starter);
		code = MODEL_USAGE;
	}
	s->launch.messages = stderr; /* the watchdog runs on after this call */
	return code;
}

static int create(Model *m, const void *arguments)
{
	Session *s = &m->s;
	if (!read_options(m, arguments))
		return MODEL_USAGE;
	int code = launch(m);
	if (code)
		return code;
	if (!session_join(s))
		return MODEL_FAILED;
	m->options = s->o;
	m->given = NEW_N(s->p.arena, bool, s->rt.model->n_tensors + 1);
	m->rows = (DataSet){.columns = NEW_N(s->p.arena, DataColumn, s->rt.model->n_tensors + 1),
		.batch = s->rt.model->batch};
	code = session_meet(s, prepare, s);
	if (!code && !session_load(s, m->given))
		code = MODEL_INPUT;
	if (!code && !session_start(s))
		code = MODEL_FAILED;
	m->ready = !code;
	if (code)
		session_leave(s, code);
	return code;
}

int model_create(const char *const *options, Model **out)
{
	Model *m = *out = calloc(1, sizeof(*m));
	if (!m)
		ice("out of memory");
	session_new(&m->s, rt_library_model(), &m->d);
	int code = run_call(m, create, options, NEEDS_NOTHING);
	if (code && m->damaged)
		session_leave(&m->s, code); /* a kernel primitive could not be made */
	return code;
}

static int destroy(Model *m, const void *arguments)
{
	(void)arguments;
	if (m->full)
		full_end(&m->s.rt, m->full, false, &m->d);
	if (m->ready) {
		streams_program(&m->s.rt, PROGRAM_OUTSIDE);
		session_leave(&m->s, EXIT_DONE);
	}
	session_free(&m->s);
	return MODEL_OK;
}

void model_destroy(Model *m)
{
	if (!m)
		return;
	run_call(m, destroy, NULL, NEEDS_NOTHING);
	free(m->text);
	free(m);
}

/* ---- what the model is ---- */

int64_t model_rank(const Model *m) { return m->ready ? m->s.p.world.rank : 0; }
int64_t model_world(const Model *m) { return m->ready ? session_world(&m->s) : 0; }
int64_t model_rows(const Model *m) { return m->ready ? m->s.train.batch : 0; }
int64_t model_steps(const Model *m) { return m->ready ? m->s.p.progress.step : 0; }
int64_t model_bytes(const Model *m) { return m->ready ? m->s.p.memory.total : 0; }

int model_get_tensor(const Model *m, int i, ModelTensor *out)
{
	static const char *const kinds[] = {[RT_INPUT] = "input", [RT_PARAM] = "param", [RT_BUFFER] = "buffer",
		[RT_DATA] = "data", [RT_STATE] = "state"};
	const RtModel *model = m->s.rt.model;
	if (i < 0 || i >= model->n_tensors)
		return 0;
	const RtTensor *t = &model->tensors[i];
	*out = (ModelTensor){.name = t->name, .kind = kinds[t->kind], .dtype = dtype_info[t->dtype].text,
		.unit = t->kind == RT_PARAM ? model->unit_names[t->unit] : "", .rank = t->rank,
		.trainable = t->trainable, .samples = t->batched};
	memcpy(out->shape, t->dim, sizeof(out->shape));
	return 1;
}

/* ---- steps ---- */

typedef struct Feed { const ModelArray *inputs; int n; ModelResult *out; } Feed;

/* All ranks run at the size that the largest arrays among them need. */
static bool take_size(Model *m)
{
	Session *s = &m->s;
	double needed[SIZES_MAX] = {0};
	int size = m->rows.sizes.of_all;
	if (!s->rt.model->n_sizes)
		return true;
	needed[size] = 1;
	if (s->p.comm)
		comm_sum(s->p.comm, needed, COUNT_OF(needed));
	for (int k = size; k < SIZES_MAX; k++)
		size = needed[k] > 0 ? k : size;
	session_size(s, size);
	m->rows.sizes.of_all = m->rows.sizes.now = size;
	return true;
}

/* Takes the arrays of a call; all ranks run the program, or none. */
static bool take_arrays(Model *m, const Feed *f, int64_t rows)
{
	Held held;
	Diag *d = agree_begin(&held, &m->d);
	return all_well(m, &held, arrays_open(&m->rows, m->s.rt.model, f->inputs, f->n, rows, m->given, d)) && take_size(m);
}

static void load_rows(void *context, char *input, int64_t sample0)
{
	(void)sample0;
	Model *m = context;
	data_load(&m->rows, input, 0);
}

static void blame_rows(Model *m, const char *when)
{
	BadInput bad;
	if (report_take_bad_input(&bad))
		data_blame(&m->rows, 0, when, &bad, m->s.o.program, &m->d);
	else
		diag_error(&m->d, m->s.o.program, "another rank met bad input in %s", when);
}

static int step(Model *m, const void *arguments)
{
	const Feed *f = arguments;
	Session *s = &m->s;
	if (!take_arrays(m, f, s->train.batch))
		return MODEL_INPUT;
	arrays_put_consts(s->rt.model, s->rt.input, f->inputs, f->n, m->given);
	session_step(s, load_rows, m);
	session_result(s);
	int code = session_outcome(s);
	check_say(&s->rt, &m->d);
	if (code == MODEL_INPUT)
		blame_rows(m, arena_printf(s->p.arena, "step %" PRId64, s->p.progress.step + 1));
	else if (code)
		session_say_not_finite(s);
	else
		session_advance(s);
	streams_program(&s->rt, PROGRAM_OUTSIDE);
	if (f->out)
		*f->out = (ModelResult){.loss = s->p.result.loss, .grad_norm = s->p.result.grad_norm, .lr = s->p.scalars.lr,
			.accuracy = NAN, .step = s->p.progress.step, .skipped = s->p.scalars.skip};
	return code;
}

int model_step(Model *m, const ModelArray *inputs, int n, ModelResult *out)
{
	Feed f = {inputs, n, out};
	return run_call(m, step, &f, NEEDS_ALL);
}

/* Whether all ranks have the same number of samples. */
static bool same_rows(Model *m)
{
	Held held;
	Diag *d = agree_begin(&held, &m->d);
	const World *w = &m->s.p.world;
	double sum[2] = {w->rank == 0 ? (double)m->rows.n_samples : 0, (double)m->rows.n_samples};
	bool ok = true;
	if (m->s.p.comm) {
		comm_sum(m->s.p.comm, sum, 2);
		ok = sum[0] == (double)m->rows.n_samples;
	}
	if (!ok)
		diag_error(d, "model_evaluate", "%" PRId64 " samples, rank 0 has %.0f: all ranks take the same ones",
			m->rows.n_samples, sum[0]);
	return all_well(m, &held, ok);
}

static int evaluate(Model *m, const void *arguments)
{
	const Feed *f = arguments;
	Session *s = &m->s;
	StepResult r;
	int64_t n, batch = s->rt.model->batch;
	if (!s->rt.model->eval) {
		diag_error(&m->d, s->o.program, "this model was compiled without an evaluation");
		return MODEL_USAGE;
	}
	if (!take_arrays(m, f, -1) || !same_rows(m))
		return MODEL_INPUT;
	if (s->rt.model->loss.whole && m->rows.n_samples % batch) {
		diag_error(&m->d, s->o.program, "%" PRId64 " samples: multiples of %" PRId64 " can be evaluated, since %s",
			m->rows.n_samples, batch, s->rt.model->loss.whole);
		return MODEL_INPUT;
	}
	arrays_put_consts(s->rt.model, s->rt.input, f->inputs, f->n, m->given);
	average_begin(&s->rt);
	bool ok = eval_run(&s->rt, &m->rows, &r, &n, &m->d);
	average_end(&s->rt);
	if (ok && f->out)
		*f->out = (ModelResult){.loss = r.loss, .grad_norm = NAN, .lr = NAN,
			.accuracy = r.has_accuracy ? r.accuracy : NAN, .step = s->p.progress.step};
	return ok ? MODEL_OK : MODEL_INPUT;
}

int model_evaluate(Model *m, const ModelArray *inputs, int n, ModelResult *out)
{
	Feed f = {inputs, n, out};
	return run_call(m, evaluate, &f, NEEDS_ALL);
}

/* ---- hyper-parameters ---- */

/* The option to which each number belongs. */
static const struct Number { const char *name; OptionId id; } numbers[] = {
	{"lr", OPT_lr}, {"min-lr", OPT_min_lr}, {"warmup", OPT_warmup}, {"steps", OPT_steps},
	{"weight-decay", OPT_weight_decay}, {"momentum", OPT_momentum}, {"beta1", OPT_betas}, {"beta2", OPT_betas},
	{"eps", OPT_eps}, {"clip-norm", OPT_clip_norm}, {"clip-value", OPT_clip_value},
};
typedef struct Setting { const char *name; double value; double *out; } Setting;

static const struct Number *find_number(Model *m, const char *name)
{
	for (int i = 0; name && i < COUNT_OF(numbers); i++)
		if (!strcmp(numbers[i].name, name))
			return &numbers[i];
	Buf b = {0};
	for (int i = 0; i < COUNT_OF(numbers); i++)
		buf_printf(&b, "%s%s", i ? ", " : "", numbers[i].name);
	diag_error(&m->d, name ? name : "(no name)", "there is no hyper-parameter of this name; there are %s", b.at);
	buf_free(&b);
	return NULL;
}

static double number_of(const Model *m, const struct Number *n)
{
	const Optimizer *opt = &m->s.p.optim;
	switch (n->id) {
	case OPT_lr: return opt->lr.lr;
	case OPT_min_lr: return opt->lr.min_lr;
	case OPT_warmup: return (double)opt->lr.warmup;
	case OPT_steps: return (double)opt->lr.steps;
	case OPT_weight_decay: return opt->group[0].weight_decay;
	case OPT_momentum: return opt->group[0].beta1;
	case OPT_betas: return strcmp(n->name, "beta1") ? opt->group[0].beta2 : opt->group[0].beta1;
	case OPT_eps: return opt->group[0].eps;
	case OPT_clip_value: return opt->clip_value;
	default: return opt->clip_norm;
	}
}

static int get_number(Model *m, const void *arguments)
{
	const Setting *s = arguments;
	const struct Number *n = find_number(m, s->name);
	if (n)
		*s->out = number_of(m, n);
	return n ? MODEL_OK : MODEL_USAGE;
}

static void put_text(const Model *m, const Setting *s, const struct Number *n, char *out, size_t size)
{
	const Optimizer *opt = &m->s.p.optim;
	bool first = !strcmp(s->name, "beta1");
	if (n->id == OPT_betas)
		snprintf(out, size, "%.9g,%.9g", first ? s->value : opt->group[0].beta1,
			first ? opt->group[0].beta2 : s->value);
	else
		snprintf(out, size, "%.17g", s->value);
}

static bool same_setting(Model *m, const Setting *s)
{
	double mine[2] = {s->value, s->name ? (double)(hash_bytes(s->name, strlen(s->name), 1) >> 12) : 0};
	double first[2] = {mine[0], mine[1]};
	Held held;
	Diag *d = agree_begin(&held, &m->d);
	if (m->s.p.comm) {
		for (int i = 0; i < 2; i++)
			first[i] = m->s.p.world.rank == 0 ? mine[i] : 0;
		comm_sum(m->s.p.comm, first, 2);
	}
	bool same = !memcmp(first, mine, sizeof(mine));
	if (!same)
		diag_error(d, "model_set_number", "\"%s\" = %g here, rank 0 sets another name or value (%g)",
			s->name ? s->name : "", s->value, first[0]);
	return all_well(m, &held, same);
}

/* The option's reader and the optimizer refuse what they would refuse for the flag.  A value that --hyper, now or in
 * the checkpoint's run, set for it is dropped. */
static int set_number(Model *m, const void *arguments)
{
	const Setting *s = arguments;
	Session *session = &m->s;
	RtOptions *o = &session->o;
	if (!same_setting(m, s))
		return MODEL_USAGE;
	const struct Number *n = find_number(m, s->name);
	if (!n)
		return MODEL_USAGE;
	RtOptions before = *o;
	char text[64];
	memcpy(text, m->number[n->id], sizeof(text));
	put_text(m, s, n, m->number[n->id], sizeof(m->number[n->id]));
	if (options_set(o, n->id, m->number[n->id], s->name, &m->d) &&
		optim_configure(&session->p.optim, session->rt.model, o, &m->d)) {
		if (session->p.hyper)
			hyper_forget(session->p.hyper, n->id);
		optim_apply(&session->p.optim, session->rt.model, o, session->p.hyper);
		options_set(&m->options, n->id, m->number[n->id], s->name, &m->d);
		return MODEL_OK;
	}
	*o = before;
	memcpy(m->number[n->id], text, sizeof(text));
	return MODEL_USAGE;
}

int model_get_number(Model *m, const char *name, double *out)
{
	Setting s = {name, 0, out};
	return run_call(m, get_number, &s, NEEDS_READY);
}

int model_set_number(Model *m, const char *name, double value)
{
	Setting s = {name, value, NULL};
	return run_call(m, set_number, &s, NEEDS_ALL);
}

/* ---- full parameters ---- */

static int full_open(Model *m, const void *arguments)
{
	int flags = *(const int *)arguments;
	bool writeback = flags & MODEL_WRITEBACK, rank0 = flags & MODEL_RANK0;
	if (flags & ~(MODEL_WRITEBACK | MODEL_RANK0) || (writeback && rank0)) {
		diag_error(&m->d, "model_full_begin", writeback && rank0 ? "MODEL_RANK0 and MODEL_WRITEBACK: what rank 0 alone "
			"has cannot be put back into the shards of the others" : "there is no such flag");
		return MODEL_USAGE;
	}
	m->full = full_begin(&m->s.rt, writeback, rank0, &m->d);
	return m->full ? MODEL_OK : MODEL_FAILED;
}

int model_full_begin(Model *m, int flags)
{
	return run_call(m, full_open, &flags, NEEDS_ALL);
}

void *model_full(Model *m, const char *name)
{
	const RtModel *model = m->s.rt.model;
	for (int i = 0; m->full && name && i < model->n_tensors; i++)
		if (full_at(m->full, i) && !strcmp(model->tensors[i].name, name))
			return full_at(m->full, i);
	return NULL;
}

static int full_close(Model *m, const void *arguments)
{
	(void)arguments;
	bool ok = full_end(&m->s.rt, m->full, true, &m->d);
	m->full = NULL;
	return ok ? MODEL_OK : MODEL_INPUT;
}

int model_full_end(Model *m)
{
	return run_call(m, full_close, NULL, NEEDS_READY | NEEDS_OPEN);
}

/* ---- checkpoints ---- */

static int save(Model *m, const void *arguments)
{
	Session *s = &m->s;
	const char *folder = s->o.save, *to = arguments ? arguments : folder;
	if (!to) {
		diag_error(&m->d, "model_save", "say where to: a folder here, or --save=DIR when the model is created");
		return MODEL_USAGE;
	}
	s->o.save = to;
	s->last_saved = -1;
	bool ok = session_save(s);
	s->o.save = folder;
	return ok ? MODEL_OK : MODEL_FAILED;
}

int model_save(Model *m, const char *dir)
{
	return run_call(m, save, dir, NEEDS_ALL);
}

/* Reads counters and flags of the checkpoint at `dir`; true if they are valid on all ranks. */
static bool load_state(Model *m, const char *dir, const char **found)
{
	Session *s = &m->s;
	RtOptions before = s->o;
	Progress progress = s->p.progress;
	double *hyper = s->p.hyper;
	Held held;
	Diag *d = agree_begin(&held, &m->d);
	s->o = m->options;
	s->o.resume = arena_strdup(s->p.arena, dir);
	if (!s->o.hyper)
		s->p.hyper = NULL; /* it may come from an earlier checkpoint */
	bool ok = resume_begin(&s->rt, &s->o, found, &s->p.progress, d) && !session_accum(s) &&
		optim_configure(&s->p.optim, s->rt.model, &s->o, d);
	ok = all_well(m, &held, ok);
	if (!ok) {
		s->o = before;
		s->p.progress = progress;
		s->p.hyper = hyper;
	}
	optim_apply(&s->p.optim, s->rt.model, &s->o, s->p.hyper);
	return ok;
}

static int load(Model *m, const void *arguments)
{
	Session *s = &m->s;
	const char *dir = arguments, *found = NULL;
	if (!dir || !*dir || !strcmp(dir, "auto")) {
		diag_error(&m->d, "model_load", "a folder is wanted");
		return MODEL_USAGE;
	}
	if (!load_state(m, dir, &found))
		return MODEL_INPUT;
	Arena *a = arena_new();
	m->damaged = !resume_load(&s->checkpoint, found, a, &m->d);
	arena_free(a);
	return m->damaged ? MODEL_INPUT : MODEL_OK;
}

int model_load(Model *m, const char *dir)
{
	return run_call(m, load, dir, NEEDS_READY | NEEDS_CLOSED);
}
