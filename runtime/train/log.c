/* runtime/train/log.c: what a run reports: JSON lines in --log, a progress line on a terminal, or a few plain lines
 * where there is none.
 *
 * A line that was cut, as by a full disk or a killed run, is ended before the next one begins, so that only this line
 * is lost.
 *
 * JSON has no NaN, so a number that is not finite is null; every line has every key. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/train/train.h"

/* The number of plain lines of a run that has no terminal. */
enum { PLAIN_LINES = 10 };
static const double terminal_ms = 50; /* ms, at least, between two writes of the terminal's line */

/* Every line of a log begins with this. */
#define LINE_BEGINS "{\"step\": "

/* The reason why a log may not replace or continue a file, which may only be an older log or empty; NULL: it may, or
 * there is no file.  *cut: its last line has no end. */
static const char *why_no_log(const char *path, bool *cut)
{
	struct stat st;
	char begin[sizeof(LINE_BEGINS) - 1], last = '\n';
	if (stat(path, &st) || !S_ISREG(st.st_mode) || !st.st_size)
		return NULL;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool same = fd >= 0 && pread(fd, begin, sizeof(begin), 0) == sizeof(begin) &&
		!memcmp(begin, LINE_BEGINS, sizeof(begin));
	*cut = same && pread(fd, &last, 1, st.st_size - 1) == 1 && last != '\n';
	const char *why = same ? NULL : fd < 0 ? strerror(errno) : "it does not begin with " LINE_BEGINS;
	if (fd >= 0)
		close(fd);
	return why;
}

/* A pipe, such as that of a shell's >(..), is only opened if a process reads it; opening never waits. */
bool log_open(Log *log, const char *path, bool append, int64_t n_steps, const char *about, Diag *d)
{
	*log = (Log){.fd = -1, .path = path, .about = about, .n_steps = n_steps, .every = MAX(n_steps / PLAIN_LINES, 1),
		.terminal = isatty(fileno(stderr))};
	if (!path)
		return true;
	bool cut = false;
	const char *why = why_no_log(path, &cut);
	if (why) {
		diag_error(d, path, "is there and is no log (%s): it is not replaced; give --log another path, or remove it",
			why);
		return false;
	}
	static const char room[2048];
	log->cut = cut && append;
	log->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | (append ? O_APPEND : O_TRUNC), 0666);
	if (log->fd >= 0) {
		fcntl(log->fd, F_SETFL, append ? O_APPEND : 0);
		buf_put(&log->line, room, sizeof(room));
	} else if (errno == ENXIO)
		diag_error(d, path, "this is a pipe that nobody reads, or a socket: start its reader first, or name a file");
	else
		diag_error(d, path, "%s", strerror(errno));
	return log->fd >= 0;
}

static void put(Buf *b, const char *key, double v)
{
	if (isfinite(v))
		buf_printf(b, ", \"%s\": %.9g", key, v);
	else
		buf_printf(b, ", \"%s\": null", key);
}

/* The line has room for a step from the start, so that steps do not allocate. */
static Buf *begin_line(Log *log, int64_t step)
{
	log->line.n = 0;
	buf_printf(&log->line, "%s" LINE_BEGINS "%lld", log->cut ? "\n" : "", (long long)step);
	return &log->line;
}

/* Ends the line and writes it.  The first error is kept for log_close. */
static void end_line(Log *log)
{
	const Buf *b = &log->line;
	size_t done = 0;
	buf_printf(&log->line, "}\n");
	for (ssize_t n = 1; done < b->n && n > 0; done += (size_t)MAX(n, 0))
		do
			n = write(log->fd, b->at + done, b->n - done);
		while (n < 0 && errno == EINTR);
	if (done < b->n && !log->error)
		log->error = errno ? errno : EIO;
	if (done)
		log->cut = b->at[done - 1] != '\n';
}

static void write_step(Log *log, const StepRecord *r)
{
	Buf *f = begin_line(log, r->step);
	put(f, "epoch", r->epoch);
	put(f, "loss", r->result.loss);
	put(f, "grad_norm", r->result.grad_norm);
	put(f, "lr", r->lr);
	put(f, "step_ms", r->ms);
	put(f, "samples_per_s", r->samples_per_s);
	put(f, "tokens_per_s", r->tokens_per_s);
	put(f, "save_ms", r->save_ms);
	put(f, "comm_ms", r->comm.ms);
	put(f, "exposed_comm_ms", r->comm.exposed_ms);
	const struct { const char *key; int64_t n; } counts[] = {{"collectives", r->comm.n}, {"comm_bytes", r->comm.bytes},
		{"gather_bytes", r->comm.gathered}, {"reduce_bytes", r->comm.reduced}, {"broadcast_bytes", r->comm.broadcast},
		{"peak_bytes", r->peak_bytes}};
	for (int i = 0; i < COUNT_OF(counts); i++)
		buf_printf(f, ", \"%s\": %lld", counts[i].key, (long long)counts[i].n);
	put(f, "loss_scale", r->loss_scale);
	if (r->size)
		buf_printf(f, ", \"size\": \"%s\"", r->size);
	buf_printf(f, "%s", log->about);
	end_line(log);
}

static void format_time(char *out, size_t n, double seconds)
{
	long s = (long)MIN(MAX(seconds, 0), 359999);
	if (s >= 3600)
		snprintf(out, n, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
	else
		snprintf(out, n, "%ld:%02ld", s / 60, s % 60);
}

void log_clear_line(Log *log)
{
	if (log->dirty)
		fputs("\r\033[K", stderr);
	log->dirty = false;
}

void log_step(Log *log, const StepRecord *r)
{
	if (log->fd >= 0)
		write_step(log, r);
	log->total_ms += r->ms;
	bool first = ++log->seen == 1, last = r->step == log->n_steps;
	bool due = log->terminal ? log->total_ms - log->shown_ms >= terminal_ms : r->step % log->every == 0;
	if (!first && !last && !due)
		return;
	log->shown_ms = log->total_ms;
	char left[32];
	format_time(left, sizeof(left), (double)(log->n_steps - r->step) * log->total_ms / (double)log->seen / 1e3);
	log_clear_line(log);
	bool tokens = r->tokens_per_s > 0;
	double rate = tokens ? r->tokens_per_s : r->samples_per_s;
	fprintf(stderr, "step %lld/%lld  loss %.4f  lr %.3g  %.1f ms  %.*f %s/s  %s left", (long long)r->step,
		(long long)log->n_steps, r->result.loss, r->lr, r->ms, rate < 100 ? 1 : 0, rate,
		tokens ? "tokens" : "samples", left);
	log->dirty = log->terminal;
	if (!log->terminal)
		fputc('\n', stderr);
}

void log_eval(Log *log, int64_t step, const StepResult *r, int64_t n_samples)
{
	if (log->fd >= 0) {
		Buf *f = begin_line(log, step);
		put(f, "eval_loss", r->loss);
		if (r->has_accuracy)
			put(f, "eval_accuracy", r->accuracy);
		end_line(log);
	}
	log_clear_line(log);
	printf("eval after step %lld: loss %.4f", (long long)step, r->loss);
	if (r->has_accuracy)
		printf("  accuracy %.4f", r->accuracy);
	printf("  (%lld sample%s)\n", (long long)n_samples, n_samples == 1 ? "" : "s");
	fflush(stdout);
}

void log_hyper(Log *log, int64_t step, const char *json)
{
	if (log->fd < 0)
		return;
	buf_printf(begin_line(log, step), ", \"event\": \"hyper%s\"%s%s", json ? "" : "_refused",
		json ? ", \"hyper\": " : "", json ? json : "");
	end_line(log);
}

bool log_close(Log *log, Diag *d)
{
	log_clear_line(log);
	if (log->fd < 0)
		return true;
	if (close(log->fd) && !log->error)
		log->error = errno;
	log->fd = -1;
	buf_free(&log->line);
	if (log->error)
		diag_error(d, log->path, "the log could not be written whole: %s", strerror(log->error));
	return !log->error;
}
