/* base/diag.c: messages to the user, and internal errors.
 *
 * All messages have the form "WHERE: error: TEXT".  Errors are counted even when no more are printed, so that a phase
 * can report everything it found and then fail once.  A message is written in one piece, because several processes may
 * share the terminal.  It is one line, or continues in lines that begin with two blanks.  Hidden characters of names
 * are shown escaped: no name of a file or tensor can move the cursor, look like another name, or imitate a message. */
#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

/* Writes the text with each of its lines escaped; only line breaks before two blanks are kept. */
static void put_shown(Buf *out, char *text)
{
	for (char *next = text; next; text = next) {
		Arena *a = arena_new();
		next = strstr(text, "\n  ");
		if (next)
			*next++ = '\0';
		buf_printf(out, "%s\n", str_escape(a, ESCAPE_TERMINAL, text));
		arena_free(a);
	}
}

static void print_message(Diag *d, const char *where, const char *kind, const char *fmt, va_list ap)
{
	va_list again;
	if (d->silent)
		return;
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, again);
	va_end(again);
	Buf b = {0};
	buf_printf(&b, "%s%s: %s: %*s", d->prefix ? d->prefix : "", where, kind, n + 1, "");
	vsnprintf(b.at + b.n - n - 1, (size_t)n + 1, fmt, ap);
	b.at[b.n - 1] = '\0';
	Buf lines = {0};
	put_shown(&lines, b.at);
	fwrite(lines.at, 1, lines.n, d->out ? d->out : stderr);
	buf_free(&lines);
	buf_free(&b);
}

void diag_error(Diag *d, const char *where, const char *fmt, ...)
{
	int limit = d->max_errors ? d->max_errors : 50;
	if (++d->errors > limit) {
		if (d->errors == limit + 1 && !d->silent)
			fprintf(d->out ? d->out : stderr, "%s: note: more errors follow; the first %d are shown\n",
				where, limit);
		return;
	}
	va_list ap;
	va_start(ap, fmt);
	print_message(d, where, "error", fmt, ap);
	va_end(ap);
}

void diag_unwritten(Diag *d, const char *path)
{
	int error = errno;
	d->full |= error == ENOSPC || error == EDQUOT || error == EIO || error == EFBIG;
	diag_error(d, path, "cannot write: %s", strerror(error));
}

void diag_warn(Diag *d, const char *where, const char *fmt, ...)
{
	va_list ap;
	if (d->quiet)
		return;
	d->warnings++;
	va_start(ap, fmt);
	print_message(d, where, "warning", fmt, ap);
	va_end(ap);
}

void diag_note(Diag *d, const char *where, const char *fmt, ...)
{
	va_list ap;
	if (d->quiet && !d->errors)
		return;
	va_start(ap, fmt);
	print_message(d, where, "note", fmt, ap);
	va_end(ap);
}

void diag_info(Diag *d, const char *where, const char *fmt, ...)
{
	if (!d->verbose || d->quiet)
		return;
	va_list ap;
	va_start(ap, fmt);
	print_message(d, where, "info", fmt, ap);
	va_end(ap);
}

_Noreturn void ice_at(const char *file, int line, const char *fmt, ...)
{
	va_list ap;
	fprintf(stderr, "internal error: %s:%d: ", file, line);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	abort();
}

char *diag_read_file(Diag *d, const char *path, Arena *a)
{
	struct stat st;
	const char *why = NULL;
	Buf b = {0};
	char chunk[1 << 16];
	int fd = file_open(path, &st, &why);
	ssize_t n = fd < 0 ? -1 : 1;
	while (fd >= 0 && ((n = read(fd, chunk, sizeof(chunk))) > 0 || (n < 0 && errno == EINTR)))
		buf_put(&b, chunk, (size_t)MAX(n, 0));
	bool failed = n < 0;
	if (failed)
		diag_error(d, path, "cannot read: %s", why ? why : strerror(errno));
	if (fd >= 0)
		close(fd);
	char *text = failed ? NULL : arena_strndup(a, b.at ? b.at : "", b.n);
	if (text && strlen(text) != b.n) {
		diag_error(d, path, "is not text: it holds a NUL byte");
		text = NULL;
	}
	buf_free(&b);
	return text;
}
