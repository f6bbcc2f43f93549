/* runtime/plane/stall.c: describes in words where ranks are, and fills in the Peer of this process.
 *
 * A report repeats the last heartbeat of each rank, so it does not depend on ranks that no longer answer. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "runtime/plane/private.h"

static void say_collective(Buf *b, int seq, int program, const Names *names)
{
	const char *name = names->name ? names->name(names->context, program, seq) : NULL;
	buf_printf(b, "#%d%s%s", seq, name ? " " : "", name ? name : "");
}

static void say_program(Buf *b, const RankRecord *r)
{
	static const char *const what[PROGRAMS] = {"step", "the evaluation after step", "loading or saving, after step",
		"the first micro-batch of step", "a middle micro-batch of step", "the last micro-batch of step"};
	buf_printf(b, "%s %" PRId64, what[r->program], r->step);
}

static int list_collectives(Buf *b, const int32_t *seq, int program, const Names *names)
{
	int n = 0;
	for (int i = 0; i < RT_STREAMS; i++) {
		if (!seq[i])
			continue;
		buf_printf(b, "%s", n++ ? ", " : "");
		say_collective(b, seq[i], program, names);
	}
	return n;
}

void say_place(Buf *b, const TableRow *row, const Names *names)
{
	const RankRecord *r = &row->at;
	Buf list = {0};
	if (row->asked) {
		buf_printf(b, "waits for the other ranks, before the first step");
	} else if (list_collectives(&list, r->inside, r->program, names)) {
		buf_printf(b, "at %s of ", list.at);
		say_program(b, r);
	} else if (r->program == 2 || !r->step) {
		buf_printf(b, "outside of steps (loading or saving)");
		if (r->step)
			buf_printf(b, ", step %" PRId64, r->step);
	} else {
		buf_printf(b, "computing in ");
		say_program(b, r);
		if (list_collectives(&list, r->ended, r->program, names))
			buf_printf(b, ", last ended: %s", list.at);
	}
	buf_free(&list);
}

/* The state of a peer's process, if this one can see it: 'T' stopped, 'Z' dead, 0 unknown. */
static char process_state(const Peer *p)
{
	Peer self;
	peer_self(&self, 0);
	char path[64], line[512];
	snprintf(path, sizeof(path), "/proc/%d/stat", p->pid);
	FILE *f = self.pids == p->pids && self.host == p->host && p->pid > 0 ? fopen(path, "r") : NULL;
	if (!f)
		return 0;
	size_t n = fread(line, 1, sizeof(line) - 1, f);
	fclose(f);
	line[n] = 0;
	const char *end = strrchr(line, ')');
	return end && end[1] == ' ' ? end[2] : 0;
}

static void say_silent(Buf *b, const TableRow *row, const Peer *peer, const Names *names)
{
	char state = process_state(peer);
	buf_printf(b, "no sign of life for %.1f s", (double)row->silent / TICKS_PER_SECOND);
	if (state == 'T' || state == 't')
		buf_printf(b, " (process %d is stopped)", peer->pid);
	buf_printf(b, "; then ");
	say_place(b, row, names);
}

void say_ranks(Buf *b, const TableRow *rows, const Peer *peers, int n, const Names *names)
{
	for (int i = 0; i < n; i++) {
		const TableRow *row = &rows[i];
		buf_printf(b, "\n  rank %d: ", i);
		if (row->state == RANK_AWAY)
			buf_printf(b, "has not joined");
		else if (row->state == RANK_LEFT)
			buf_printf(b, "has ended");
		else if (row->state == RANK_HERE && row->silent >= SILENT_TICKS)
			say_silent(b, row, &peers[i], names);
		else {
			buf_printf(b, "%s", row->state == RANK_LOST ? "lost; then " : "");
			say_place(b, row, names);
		}
	}
}

void clear_terminal_line(void)
{
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
}

/* ---- who am I ---- */

static uint64_t hash_file(const char *path, uint64_t h)
{
	char text[256];
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(text, 1, sizeof(text), f) : 0;
	if (f)
		fclose(f);
	return hash_bytes(text, n, h);
}

/* NCCL_HOSTID stands for the machine's name here as it does in NCCL, so that both agree on who shares a host. */
void peer_self(Peer *p, int rank)
{
	*p = (Peer){.pid = (int32_t)getpid(), .rank = rank};
	char link[128];
	const char *id = getenv("NCCL_HOSTID");
	gethostname(p->name, sizeof(p->name) - 1);
	for (char *c = p->name; *c; c++)
		*c = *c > ' ' && *c <= '~' ? *c : '?';
	const char *host = id && *id ? id : p->name;
	p->host = hash_file("/proc/sys/kernel/random/boot_id", hash_bytes(host, strlen(host), 1));
	ssize_t n = readlink("/proc/self/ns/pid", link, sizeof(link));
	p->pids = hash_bytes(link, n > 0 ? (size_t)n : 0, p->host);
}

uint64_t protocol_magic(void)
{
	static const char text[] = "shardc control plane 3";
	size_t sizes[] = {sizeof(Challenge), sizeof(Hello), sizeof(TableRow), sizeof(Peer), MSG_END};
	return hash_bytes(sizes, sizeof(sizes), hash_bytes(text, sizeof(text), 0));
}
