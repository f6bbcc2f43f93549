/* codegen/wrap.c: keeps lines of step.c within WRAP_COLUMNS columns.
 *
 * A comment is cut, code is broken behind a comma, and a string between any two of its characters.  Only a single
 * name can make a line longer. */
#include "codegen/pieces.h"

#include <string.h>

enum { TAB = 4 };

static int columns_of(const char *s, size_t n)
{
	int columns = 0;
	for (size_t i = 0; i < n; i++)
		columns += s[i] == '\t' ? TAB : 1;
	return columns;
}

static int width(const char *s)
{
	return columns_of(s, strlen(s));
}

/* ---- statements ---- */

/* Cuts between characters of UTF-8. */
static void put_comment(Buf *out, const char *comment, int room)
{
	size_t n = strlen(comment);
	if ((int)n <= room) {
		buf_printf(out, "/* %s */\n", comment);
		return;
	}
	for (n = (size_t)room - 3; n && ((unsigned char)comment[n] & 0xc0) == 0x80;)
		n--;
	buf_printf(out, "/* %.*s... */\n", (int)n, comment);
}

void wrap_statement(Buf *out, const char *indent, const char *code, const char *comment)
{
	enum { FRAME = 6, MUCH = 80 }; /* columns: of a comment's frame; of a part of a comment that is worth keeping */
	int room = WRAP_COLUMNS - FRAME - width(indent) - width(code) - 1;
	if (!comment) {
		buf_printf(out, "%s%s\n", indent, code);
	} else if (width(comment) <= room || room >= MUCH) {
		buf_printf(out, "%s%s ", indent, code);
		put_comment(out, comment, room);
	} else {
		buf_printf(out, "%s", indent);
		put_comment(out, comment, WRAP_COLUMNS - width(indent) - FRAME);
		buf_printf(out, "%s%s\n", indent, code);
	}
}

/* ---- lines ---- */

typedef struct Line {
	const char *at;   /* the rest of the line */
	size_t n;
	size_t indent;    /* number of tabs at its beginning */
	bool in_string;   /* at begins inside a string */
} Line;

/* The number of bytes of the C character at s: "\012" and "\"" are one character. */
static size_t character(const char *s, bool in_string)
{
	size_t n = 1;
	if (*s != '\\' || !in_string)
		return n;
	while (n < 4 && s[n] >= '0' && s[n] <= '7')
		n++;
	return MAX(n, 2);
}

/* Where a line may be broken: behind commas and before a comment, preferably outside as many parentheses as
 * possible. */
typedef struct Breaks { size_t comma[WRAP_COLUMNS], inside; } Breaks; /* by depth, from the middle; 0 = none */

static Breaks find_breaks(const Line *l, int room)
{
	Breaks found = {0};
	bool in_string = l->in_string;
	int depth = WRAP_COLUMNS / 2, columns = 0;
	for (size_t i = 0, n; i < l->n && columns <= room; i += n) {
		char c = l->at[i];
		in_string ^= c == '"';
		n = character(l->at + i, in_string);
		columns += columns_of(l->at + i, n);
		if (in_string) {
			if (c != '"' && columns < room)
				found.inside = i + n;
			continue;
		}
		depth += (c == '(' || c == '{') - (c == ')' || c == '}');
		depth = MAX(0, MIN(depth, WRAP_COLUMNS - 1));
		if (c == ' ' && l->at[i + 1] == '/' && l->at[i + 2] == '*') {
			found.comma[depth] = i + 1;
			break;
		}
		if (c == ' ' && i && l->at[i - 1] == ',')
			found.comma[depth] = i + 1;
	}
	return found;
}

/* Where to break: outside parentheses unless much of the line would stay empty, else inside a string; 0: nowhere. */
static size_t break_at(const Line *l, int room, bool *splits, bool *outside)
{
	Breaks found = find_breaks(l, room);
	size_t last = 0;
	*splits = *outside = false;
	for (int d = 0; d < WRAP_COLUMNS; d++) {
		*outside = d == WRAP_COLUMNS / 2;
		if (found.comma[d] * 2 > (size_t)room)
			return found.comma[d];
		last = MAX(last, found.comma[d]);
	}
	*splits = !last && found.inside;
	return last ? last : found.inside;
}

static void put_indent(Buf *out, size_t tabs)
{
	while (tabs--)
		buf_put(out, "\t", 1);
}

static void wrap_line(Buf *out, const char *line, size_t n, int columns)
{
	size_t tabs = strspn(line, "\t");
	bool whole = columns_of(line, n) <= columns || line[tabs] == '#' || !strncmp(line + tabs, "/*", 2);
	Line l = {line + tabs, n - tabs, tabs, false};
	put_indent(out, tabs);
	bool row = !strncmp(l.at, "{", 1) || !strncmp(l.at, "\"", 1) || (*l.at >= 'A' && *l.at <= 'Z');
	while (!whole) {
		bool splits, outside;
		int room = columns - TAB * (int)tabs - l.in_string; /* the quote that is repeated */
		size_t at = (int)l.n <= room ? 0 : break_at(&l, room, &splits, &outside);
		if (!at)
			break;
		buf_put(out, l.at, l.at[at - 1] == ' ' && !splits ? at - 1 : at);
		buf_printf(out, splits ? "\"\n" : "\n");
		tabs = l.indent + !(row && outside); /* rows of a table are aligned */
		put_indent(out, tabs);
		if (splits)
			buf_put(out, "\"", 1);
		l.at += at;
		l.n -= at;
		l.in_string = splits;
	}
	buf_put(out, l.at, l.n);
	buf_put(out, "\n", 1);
}

void wrap_text(Buf *out, const char *text, int columns)
{
	for (size_t n; *text; text += n + (text[n] == '\n')) {
		n = strcspn(text, "\n");
		wrap_line(out, text, n, columns);
	}
}
