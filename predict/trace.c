/* predict/trace.c: timelines as traces for chrome://tracing and Perfetto. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/unfinished.h"
#include "predict/timeline.h"

static const char start[] = "{\"displayTimeUnit\"";

static const char *stream_name(int stream)
{
	switch (stream) {
	case TIMELINE_COMPUTE: return "compute";
	case TIMELINE_OUT: return "copies out";
	case TIMELINE_IN: return "copies in";
	default: return stream_info[stream - 1].text;
	}
}

/* What a kernel is and does, so that what it was measured to take elsewhere becomes a rate.  dtype: of its products. */
static void put_work(FILE *f, const Op *op, const LayoutRank *who, Arena *a)
{
	Work w = cost_of(op, who);
	fprintf(f, ",\"kernel\":\"%s\",\"class\":\"%s\",\"flops\":%.0f,\"moved\":%.0f,\"special\":%.0f",
		str_escape(a, ESCAPE_JSON, cost_signature(op, &w, a)), cost_class_text[w.class], w.flops, w.bytes, w.special);
	if (w.flops > 0)
		fprintf(f, ",\"dtype\":\"%s\"", dtype_info[w.dtype].text);
}

/* begin: when the program does, in seconds. */
static void put_slice(FILE *f, const TimelinePart *part, const Slice *s, double begin, const char *size, Arena *a)
{
	const Op *op = s->op;
	const Unit *of = op_unit(op);
	const char *unit = of ? str_escape(a, ESCAPE_JSON, of->name) : "";
	const char *name = str_escape(a, ESCAPE_JSON, op_title(op, a));
	const char *does = s->waits ? "wait" : s->issues ? "issue" : NULL;
	fprintf(f, ",\n{\"ph\":\"X\",\"name\":\"%s%s%s\",\"cat\":\"%s\",\"pid\":%" PRId64 ",\"tid\":%d,",
		does ? does : "", does ? " " : "", name, does ? does : op_info[op->kind].text, part->t->who.rank, s->stream);
	fprintf(f, "\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"op\":%d,\"section\":\"%s\",\"program\":\"%s\",",
		(begin + s->begin) * 1e6, (s->end - s->begin) * 1e6, s->number, section_text[op->section], part->name);
	fprintf(f, "\"unit\":\"%s\",\"node\":\"%s\",\"step\":0", unit, str_escape(a, ESCAPE_JSON, op->loc->node));
	if (size)
		fprintf(f, ",\"size\":\"%s\"", str_escape(a, ESCAPE_JSON, size));
	if (s->seq)
		fprintf(f, ",\"seq\":%d", s->seq);
	if (s->stream != TIMELINE_COMPUTE)
		fprintf(f, ",\"bytes\":%" PRId64, s->bytes);
	else if (!does)
		put_work(f, op, &part->t->who, a);
	fputs("}}", f);
}

void timeline_put(FILE *f, const TimelinePart *part, int n, const Sizes *program)
{
	Arena *a = arena_new();
	const Timeline *t = part[0].t;
	double begin = 0;
	fprintf(f, "%s:\"ms\",\n\"otherData\":{\"kind\":\"predicted\",\"model\":\"%s\",\"program\":\"%016" PRIx64
		"\",\"world\":%" PRId64 ",\"rank\":%" PRId64 ",\"threads\":%d,\"machine\":\"%s\",\"steps\":1},\n"
		"\"traceEvents\":[\n"
		"{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%" PRId64 ",\"args\":{\"name\":\"rank %" PRId64
		", predicted\"}}",
		start, str_escape(a, ESCAPE_JSON, t->m->name), ir_program_hash(program), t->who.world, t->who.rank,
		t->layout.threads, str_escape(a, ESCAPE_JSON, t->machine->name), t->who.rank, t->who.rank);
	for (int i = 0; i < (t->copying > 0 ? TIMELINE_STREAMS : TIMELINE_HOST); i++)
		if (i != TIMELINE_HOST)
			fprintf(f, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%" PRId64 ",\"tid\":%d,"
				"\"args\":{\"name\":\"%s\"}}", t->who.rank, i, stream_name(i));
	for (int k = 0; k < n; begin += part[k++].t->seconds)
		for (int i = 0; i < part[k].t->n_slices; i++)
			put_slice(f, &part[k], &part[k].t->slice[i], begin, program->name[program->n - 1], a);
	fputs("\n]}\n", f);
	arena_free(a);
}

/* Whether files can be made in the folder of path. */
static bool folder_takes(const char *path)
{
	Arena *a = arena_new();
	const char *slash = strrchr(path, '/');
	const char *folder = slash ? arena_strndup(a, path, (size_t)(slash - path) + 1) : ".";
	bool ok = !access(folder, W_OK | X_OK);
	arena_free(a);
	return ok;
}

bool timeline_may_replace(const char *path, Diag *d)
{
	struct stat st;
	char found[sizeof(start)] = "";
	int before = d->errors;
	bool there = !lstat(path, &st);
	FILE *f = there && S_ISREG(st.st_mode) && st.st_size ? fopen(path, "r") : NULL;
	if (!*path || path[strlen(path) - 1] == '/')
		diag_error(d, "--trace", "\"%s\" names no file", path);
	else if ((!there && errno != ENOENT) || !folder_takes(path))
		diag_unwritten(d, path);
	else if (there && !S_ISREG(st.st_mode))
		diag_error(d, path, "is there and is no regular file: a trace does not take its place");
	else if (there && st.st_size
		&& (!f || fread(found, 1, sizeof(start) - 1, f) < sizeof(start) - 1 || strcmp(found, start)))
		diag_error(d, path, "is there and is no trace: it is not replaced; give another path, or remove it");
	if (f)
		fclose(f);
	return d->errors == before;
}

typedef struct Written { const Timeline *t; const Sizes *program; } Written;

static void put_written(FILE *f, const void *context)
{
	const Written *w = context;
	timeline_put(f, &(TimelinePart){w->t, "step"}, 1, w->program);
}

bool timeline_write(const Timeline *t, const Sizes *program, const char *path, Diag *d)
{
	return timeline_may_replace(path, d) && unfinished_write(path, put_written, &(Written){t, program}, d);
}
