/* ckpt/commands_convert.c: shardc ckpt reshard, convert, split and merge, which are four forms of one conversion. */
#include <inttypes.h>
#include <string.h>

#include "ckpt/convert.h"

/* Does the conversion of all four commands; returns the exit status. */
static int convert(const Checkpoint *c, ConvertTo to, const char *out, Arena *a, Diag *d)
{
	Convert v;
	int status = CKPT_INPUT;
	const char *shown = str_escape(a, ESCAPE_TERMINAL, out);
	if (convert_plan(&v, c, to, a, d) && checkpoint_verify(c, 0, 1, true, d))
		status = convert_write(&v, out) ? CKPT_OK : CKPT_RUN;
	if (status == CKPT_OK && to.kind == CHECKPOINT_FULL)
		printf("%s: kind full, from %s\n", shown, str_escape(a, ESCAPE_TERMINAL, c->dir));
	else if (status == CKPT_OK)
		printf("%s: kind %s, %" PRId64 " rank(s), from %s\n", shown, checkpoint_kinds[to.kind], v.to.world,
			str_escape(a, ESCAPE_TERMINAL, c->dir));
	convert_free(&v);
	return status;
}

/* Opens one folder, or the folders of all hosts that a save wrote to.  Each is a checkpoint, or a folder of checkpoints
 * whose latest is taken. */
static Checkpoint *open_all(Arena *a, const CkptArgs *args, Diag *d)
{
	const char **dirs = NEW_N(a, const char *, args->n);
	if (args->n == 1)
		return ckpt_open(a, args->at[0], d);
	for (int i = 0; i < args->n; i++) {
		dirs[i] = ckpt_folder(a, args->at[i], d);
		if (!dirs[i])
			return NULL;
	}
	return checkpoint_open_parts(a, dirs, args->n, d);
}

/* Opens the checkpoint and checks that the output can be made; all problems are reported. */
static Checkpoint *open_both(Arena *a, const CkptArgs *args, const char *out, int64_t world, Diag *d)
{
	const char *in = args->at[0];
	Checkpoint *c = open_all(a, args, d);
	bool ok = output_is_free(out, true, d) && c;
	if (world > CHECKPOINT_MAX_RANKS) {
		diag_error(d, "--world", "%" PRId64 " ranks are more than %d", world, CHECKPOINT_MAX_RANKS);
		ok = false;
	}
	if (c && !c->state) {
		diag_error(d, in, "is one file: a checkpoint's folder was expected");
		ok = false;
	}
	if (c && !ok)
		checkpoint_close(c);
	return ok ? c : NULL;
}

/* How the four commands differ: which options they take and need, and the kind that they make. */
typedef struct Form { bool world, world_wanted, kind_wanted, same_kind, several; CheckpointKind kind; } Form;
typedef struct Wanted { const char *out, *kind; ConvertTo to; } Wanted;

static int finish(const CkptArgs *args, const Wanted *w, bool same_kind, Arena *a, Diag *d)
{
	ConvertTo to = w->to;
	int status = CKPT_INPUT;
	Checkpoint *c = open_both(a, args, w->out, to.world, d);
	if (!c)
		return CKPT_INPUT;
	if (same_kind)
		to.kind = c->kind;
	if (same_kind && c->kind == CHECKPOINT_FULL)
		diag_error(d, args->at[0], "is of kind full, which has no ranks and loads at any number of them; kind sharded "
			"is made by shardc ckpt split");
	else
		status = convert(c, to, w->out, a, d);
	checkpoint_close(c);
	return status;
}

static int run(const CkptCall *call, const Form *form)
{
	Diag *d = call->d;
	Arena *a = arena_new();
	Wanted w = {.to.kind = form->kind};
	CkptArgs args;
	CkptOption options[4] = {{"-o", CKPT_TEXT, &w.out, "PATH", "the folder to make", true}};
	int n = 1;
	if (form->kind_wanted)
		options[n++] = (CkptOption){"--kind", CKPT_CHOICE, &w.kind, "full|sharded|local", "of what is made", true};
	if (form->world) {
		options[n++] = (CkptOption){"--world", CKPT_COUNT, &w.to.world, "N", form->world_wanted ?
			"ranks that it is cut for" : "ranks that it is cut for (default: as it was)", form->world_wanted};
		options[n++] = (CkptOption){"--shard-size", CKPT_COUNT, &w.to.shard_size, "S",
			"ranks of a group of hybrid_shard (default: as it was)", false};
	}
	if (ckpt_parse(call, options, n, 1, form->several ? 0 : 1, a, &args)) {
		for (int k = 0; k < CHECKPOINT_KINDS && w.kind; k++)
			if (!strcmp(w.kind, checkpoint_kinds[k]))
				w.to.kind = (CheckpointKind)k;
		if (form->kind_wanted && w.to.kind == CHECKPOINT_FULL && (w.to.world || w.to.shard_size)) {
			diag_error(d, "--world", "kind full has no ranks: leave out --world and --shard-size");
			args.status = CKPT_USAGE;
		} else {
			args.status = finish(&args, &w, form->same_kind, a, d);
		}
	}
	arena_free(a);
	return args.status;
}

int ckpt_reshard(const CkptCall *call)
{
	return run(call, &(Form){.world = true, .world_wanted = true, .same_kind = true});
}

int ckpt_convert(const CkptCall *call)
{
	return run(call, &(Form){.world = true, .kind_wanted = true, .several = true});
}

int ckpt_split(const CkptCall *call)
{
	return run(call, &(Form){.world = true, .world_wanted = true, .kind = CHECKPOINT_SHARDED});
}

int ckpt_merge(const CkptCall *call)
{
	return run(call, &(Form){.kind = CHECKPOINT_FULL, .several = true});
}
