/* runtime/log.c: what a run tells: JSON lines in --log, a progress line on a terminal, a few plain lines
 * where there is none.
 *
 * The one idea: JSON has no NaN, so a number that is not finite is null; every key stands in every line. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/internal.h"

/* Plain lines of a run, when nobody watches a terminal. */
enum { PLAIN_LINES = 10 };
static const double terminal_ms = 50; /* between two writes of the terminal's line */

/* A new log takes the place of an older one, whose lines begin with a brace, and of nothing else. */
static bool is_log(const char *path)
{
	struct stat st;
	FILE *f = !stat(path, &st) && S_ISREG(st.st_mode) ? fopen(path, "r") : NULL;
	int first = f ? getc(f) : EOF;
	if (f)
		fclose(f);
	return first == EOF || first == '{';
}

/* A pipe is written to where somebody reads it, as that of a shell's >(..), and never waited for. */
bool log_open(Log *log, const char *path, bool append, int64_t n_steps, Diag *d)
{
	*log = (Log){.path = path, .n_steps = n_steps, .every = MAX(n_steps / PLAIN_LINES, 1),
		.terminal = isatty(fileno(stderr))};
	if (!path)
		return true;
	if (!is_log(path)) {
		diag_error(d, path, "is there and is no log (it does not begin with {): it is not replaced; give --log another "
			"path, or remove it");
		return false;
	}
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | (append ? O_APPEND : O_TRUNC), 0666);
	if (fd >= 0)
		fcntl(fd, F_SETFL, append ? O_APPEND : 0);
	log->file = fd >= 0 ? fdopen(fd, append ? "a" : "w") : NULL;
	if (!log->file && errno == ENXIO)
		diag_error(d, path, "this is a pipe that nobody reads, or a socket: start its reader first, or name a file");
	else if (!log->file)
		diag_error(d, path, "%s", strerror(errno));
	return log->file;
}

static void put(FILE *f, const char *key, double v)
{
	if (isfinite(v))
		fprintf(f, ", \"%s\": %.9g", key, v);
	else
		fprintf(f, ", \"%s\": null", key);
}

/* The first error is the one that is told. */
static void write_out(Log *log)
{
	errno = 0;
	if ((fflush(log->file) || ferror(log->file)) && !log->error)
		log->error = errno ? errno : EIO;
}

static void write_step(FILE *f, const StepRecord *r)
{
	fprintf(f, "{\"step\": %lld", (long long)r->step);
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
		fprintf(f, ", \"%s\": %lld", counts[i].key, (long long)counts[i].n);
	put(f, "loss_scale", r->loss_scale);
	fputs("}\n", f);
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
	if (log->file) {
		write_step(log->file, r);
		write_out(log);
	}
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
	if (log->file) {
		fprintf(log->file, "{\"step\": %lld", (long long)step);
		put(log->file, "eval_loss", r->loss);
		if (r->has_accuracy)
			put(log->file, "eval_accuracy", r->accuracy);
		fputs("}\n", log->file);
		write_out(log);
	}
	log_clear_line(log);
	printf("eval after step %lld: loss %.4f", (long long)step, r->loss);
	if (r->has_accuracy)
		printf("  accuracy %.4f", r->accuracy);
	printf("  (%lld samples)\n", (long long)n_samples);
	fflush(stdout);
}

void log_hyper(Log *log, int64_t step, const char *json)
{
	if (!log->file)
		return;
	fprintf(log->file, "{\"step\": %lld, \"event\": \"hyper%s\"%s%s}\n", (long long)step, json ? "" : "_refused",
		json ? ", \"hyper\": " : "", json ? json : "");
	write_out(log);
}

bool log_close(Log *log, Diag *d)
{
	log_clear_line(log);
	if (!log->file)
		return true;
	if (fclose(log->file) && !log->error)
		log->error = errno;
	log->file = NULL;
	if (log->error)
		diag_error(d, log->path, "the log could not be written whole: %s", strerror(log->error));
	return !log->error;
}
