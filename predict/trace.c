/* predict/trace.c: timelines as traces for chrome://tracing and Perfetto. */
#include <inttypes.h>
#include <string.h>

#include "base/unfinished.h"
#include "predict/timeline.h"

static const char *stream_name(int stream)
{
	return stream == TIMELINE_COMPUTE ? "compute" : stream_info[stream - 1].text;
}

static void put_slice(FILE *f, const Timeline *t, const Slice *s, Arena *a)
{
	const Op *op = s->op, *moved = s->waits && op->kind == OP_WAIT ? op_in(op, 0)->op : op;
	const char *text = op_info[moved->kind].text;
	const char *unit = moved->unit ? str_escape(a, ESCAPE_JSON, moved->unit->name) : "";
	const char *name = s->class == COST_COLLECTIVE ? arena_printf(a, "%s%s%s%s", s->waits ? "wait " : "", text,
		*unit ? " @" : "", unit) : op->n_out ? arena_printf(a, "%s %%%s", text, op->out[0]->name) : text;
	fprintf(f, ",\n{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%" PRId64 ",\"tid\":%d,", name,
		s->waits ? "wait" : text, t->who.rank, s->stream);
	fprintf(f, "\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"op\":%d,\"section\":\"%s\",\"program\":\"step\",", s->begin * 1e6,
		(s->end - s->begin) * 1e6, s->number, section_text[op->section]);
	fprintf(f, "\"unit\":\"%s\",\"node\":\"%s\",\"step\":0", unit, str_escape(a, ESCAPE_JSON, op->loc->node));
	if (s->seq)
		fprintf(f, ",\"seq\":%d", s->seq);
	if (s->stream != TIMELINE_COMPUTE)
		fprintf(f, ",\"bytes\":%" PRId64, s->bytes);
	fputs("}}", f);
}

void timeline_put(FILE *f, const Timeline *t)
{
	Arena *a = arena_new();
	fprintf(f, "{\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"kind\":\"predicted\",\"model\":\"%s\",\"world\":%" PRId64
		",\"rank\":%" PRId64 ",\"threads\":%d,\"machine\":\"%s\",\"steps\":1},\n\"traceEvents\":[\n"
		"{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%" PRId64 ",\"args\":{\"name\":\"rank %" PRId64
		", predicted\"}}",
		str_escape(a, ESCAPE_JSON, t->m->name), t->who.world, t->who.rank, t->layout.threads,
		str_escape(a, ESCAPE_JSON, t->machine->name), t->who.rank, t->who.rank);
	for (int i = 0; i < TIMELINE_STREAMS; i++)
		fprintf(f, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%" PRId64 ",\"tid\":%d,"
			"\"args\":{\"name\":\"%s\"}}", t->who.rank, i, stream_name(i));
	for (int i = 0; i < t->n_slices; i++)
		put_slice(f, t, &t->slice[i], a);
	fputs("\n]}\n", f);
	arena_free(a);
}

bool timeline_write(const Timeline *t, const char *path, Diag *d)
{
	int mark = unfinished_begin();
	const char *temp = unfinished_file(path);
	FILE *f = fopen(temp, "w");
	if (f)
		timeline_put(f, t);
	bool written = f && !ferror(f);
	written = (!f || !fclose(f)) && written && unfinished_move(temp, path);
	if (!written)
		diag_unwritten(d, path);
	unfinished_end(mark, written);
	return written;
}
