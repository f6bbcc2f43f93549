/* passes/schedule/edit.c: moves the collectives of a PLAN to where an edited schedule file says.
 *
 * Refuses, with file and line: lines that are not of a schedule; lines that were dropped, added, doubled or
 * renamed; numbers that are not the order of issue; points that do not exist; and whatever the verifier finds wrong
 * afterwards.
 *
 * An edit does not change the order of computing.  The ops of the schedule lie in gaps between counted ops, and an
 * edit moves them from gap to gap; ops that were not moved keep their order, so an unedited file changes nothing. */
#include "passes/schedule/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct Edit {
	Module *m;
	Arena *a;
	Diag *d;
	const char *path;
	int line;              /* of the file that is being read */
	int part_line[2];      /* the last line of train, eval; 0 = none */
	Schedule *part[2];     /* train, eval */
	int64_t number;        /* of the previous line */
	const ScheduleEntry *before; /* issued by the previous line; NULL at a part's start */
	int n_gathers;
} Edit;

static void refuse(Edit *e, int line, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void refuse(Edit *e, int line, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	const char *what = arena_vprintf(e->a, fmt, ap);
	va_end(ap);
	diag_error(e->d, line ? arena_printf(e->a, "%s:%d", e->path, line) : e->path, "%s", what);
}

/* ---- one line ---- */

enum { COL_NUMBER, COL_OP, COL_UNIT, COL_STREAM, COL_SLOT, COL_BYTES, COL_POINT };
enum { COLUMNS = COL_POINT + AT_COUNT };
static const char *const point_name[AT_COUNT] = {"issue", "wait", "release"};

/* Cuts text into words; "#" outside quotes begins a comment.  Returns the number of words. */
static int cut(char *text, char *word[COLUMNS + 1])
{
	int n = 0;
	for (char *s = text; *s;) {
		while (*s == ' ' || *s == '\t' || *s == '\r')
			*s++ = 0;
		if (!*s || *s == '#') {
			*s = 0;
			break;
		}
		if (n <= COLUMNS)
			word[n++] = s;
		for (bool quoted = false; *s && (quoted || !strchr(" \t\r#", *s)); s++) {
			if (*s == '\\' && quoted && s[1])
				s++;
			else if (*s == '"')
				quoted = !quoted;
		}
		if (*s == '#') {
			*s = 0;
			break;
		}
	}
	return n;
}

static bool parse_int(const char *s, int64_t *out)
{
	char *end;
	errno = 0;
	long long n = *s >= '0' && *s <= '9' ? strtoll(s, &end, 10) : (end = "x", 0);
	*out = n;
	return !*end && !errno;
}

static bool parse_point(Edit *e, const Schedule *part, const char *text, const char *what, SchedulePoint *out)
{
	const char *plus = strchr(text, '+');
	bool eval = part == e->part[1];
	for (int s = eval ? SEC_EVAL : SEC_FORWARD; plus && s <= (eval ? SEC_EVAL : SEC_UPDATE); s++) {
		size_t n = (size_t)(plus - text);
		if (strlen(section_text[s]) != n || strncmp(text, section_text[s], n))
			continue;
		int64_t most = part->n_counted[s];
		out->section = (SectionKind)s;
		if (!strcmp(plus + 1, "end"))
			out->n = most;
		else if (!parse_int(plus + 1, &out->n))
			break;
		if (out->n <= most)
			return true;
		refuse(e, e->line, "%s point %s: %s has %lld ops that are counted, so its points are %s+0 to "
			"%s+end", what, text, section_text[s], (long long)most, section_text[s], section_text[s]);
		return false;
	}
	refuse(e, e->line, "%s point \"%s\" is none; expected %s+N or %s+end", what, text, eval ? "eval"
		: "forward+N, backward+N, update", eval ? "eval" : "SECTION");
	return false;
}

/* The next collective with this op and unit that no line has named yet. */
static ScheduleEntry *find_entry(Edit *e, Schedule *part, const char *op, const char *unit)
{
	int n = 0;
	for (int i = 0; i < part->n; i++) {
		const Op *issue = part->at[i].issue;
		if (strcmp(op_info[issue->kind].text, op) || strcmp(schedule_unit(e->a, issue), unit))
			continue;
		if (!part->at[i].line)
			return &part->at[i];
		n++;
	}
	if (n)
		refuse(e, e->line, "%s of %s stands in %d lines, the plan has %d", op, unit, n + 1, n);
	else
		refuse(e, e->line, "the plan has no %s of %s: operations and units cannot be changed here", op,
			unit);
	return NULL;
}

static bool is_after(const SchedulePoint *a, const SchedulePoint *b)
{
	return a->section != b->section ? a->section > b->section : a->n > b->n;
}

static void parse_points(Edit *e, const Schedule *part, ScheduleEntry *to, char *const *word)
{
	const Op *const has[AT_COUNT] = {to->issue, to->wait, to->release};
	for (int k = 0; k < AT_COUNT; k++) {
		const char *text = word[COL_POINT + k];
		to->to[k] = to->point[k];
		if (has[k])
			parse_point(e, part, text, point_name[k], &to->to[k]);
		else if (strcmp(text, "-"))
			refuse(e, e->line, "%s has no %s point: expected -, found %s", op_info[to->issue->kind].text,
				point_name[k], text);
	}
	if (e->before && is_after(&e->before->to[AT_ISSUE], &to->to[AT_ISSUE]))
		refuse(e, e->line, "number %lld is issued at %s, before number %lld: numbers are the order of "
			"issue", (long long)to->number, word[COL_POINT], (long long)e->before->number);
}

static void parse_slot(Edit *e, ScheduleEntry *to, const char *text)
{
	bool gather = to->issue->kind == OP_ALL_GATHER;
	to->slot = -1;
	if (!strcmp(text, "-"))
		return;
	if (!gather)
		refuse(e, e->line, "%s has no slot: expected -, found %s", op_info[to->issue->kind].text, text);
	else if (!parse_int(text, &to->slot) || to->slot >= e->n_gathers)
		refuse(e, e->line, "\"%s\" is no slot; expected 0 to %d, or - for a region of its own", text,
			e->n_gathers - 1);
}

static void parse_columns(Edit *e, Schedule *part, char *const *word)
{
	int64_t number, bytes;
	if (!parse_int(word[COL_NUMBER], &number) || number != e->number + 1)
		refuse(e, e->line, "expected number %lld, found \"%s\": lines are numbered from 1 without gaps",
			(long long)e->number + 1, word[COL_NUMBER]);
	e->number = number;
	if (!parse_int(word[COL_BYTES], &bytes))
		refuse(e, e->line, "\"%s\" is no number of bytes", word[COL_BYTES]);
	ScheduleEntry *to = find_entry(e, part, word[COL_OP], word[COL_UNIT]);
	if (!to)
		return;
	to->line = e->line;
	to->number = e->number;
	const char *stream = attr_get_str(to->issue->attrs, "stream", "-");
	if (strcmp(word[COL_STREAM], stream))
		refuse(e, e->line, "%s runs on stream %s, not \"%s\"", word[COL_OP], stream, word[COL_STREAM]);
	parse_slot(e, to, word[COL_SLOT]);
	parse_points(e, part, to, word);
	e->before = to;
}

static void parse_line(Edit *e, char *text, int *part)
{
	char *word[COLUMNS + 1];
	int n = cut(text, word);
	if (!n)
		return;
	if (n == 1 && (!strcmp(word[0], "[train]") || !strcmp(word[0], "[eval]"))) {
		*part = word[0][1] == 'e';
		if (e->part_line[*part])
			refuse(e, e->line, "a second part %s", word[0]);
		e->number = 0;
		e->before = NULL;
	} else if (*part < 0) {
		refuse(e, e->line, "\"%s\" stands before the first part; expected [train] or [eval]", word[0]);
	} else if (n != COLUMNS) {
		refuse(e, e->line, "expected %d columns (number, op, unit, stream, slot, bytes, issue, wait, "
			"release), found %s%d", COLUMNS, n > COLUMNS ? "more than " : "", MIN(n, COLUMNS));
	} else {
		parse_columns(e, e->part[*part], word);
	}
	if (*part >= 0)
		e->part_line[*part] = e->line;
}

/* ---- the file ---- */

static char *read_text(Edit *e)
{
	char *text = diag_read_file(e->d, e->path, e->a);
	if (!text || str_is_utf8(text))
		return text;
	refuse(e, 0, "is not text");
	return NULL;
}

static bool read_edit(Edit *e)
{
	int part = -1, errors = e->d->errors;
	char *text = read_text(e);
	while (text && *text) {
		char *end = text + strcspn(text, "\n"), *next = *end ? end + 1 : end;
		*end = 0;
		e->line++;
		parse_line(e, text, &part);
		text = next;
	}
	for (int p = 0; text && p < 2; p++)
		for (int i = 0; i < e->part[p]->n; i++)
			if (!e->part[p]->at[i].line)
				refuse(e, e->part_line[p] ? e->part_line[p] : e->line, "%s of %s is missing from [%s]: "
					"every collective of the plan keeps its line",
					op_info[e->part[p]->at[i].issue->kind].text, schedule_unit(e->a,
					e->part[p]->at[i].issue), p ? "eval" : "train");
	return text && e->d->errors == errors;
}

/* ---- moving ---- */

/* An op that is not counted, and the gap that it shall lie in.  Within a gap, ops that are moved there to be waited
 * for or released go first (class 0), ops that stay keep their order (1), and ops that are moved there to be issued
 * go last (2). */
typedef struct Node {
	Op *op;
	SchedulePoint at;
	int class;
	int64_t key;
	int64_t number;        /* the number of an issue, else 0 */
	bool done;
} Node;

typedef struct Gaps {
	Node *node;            /* op->order: its index; -1 = counted */
	int n;
	Node **sorted;
	Op **counted;          /* of the current section */
} Gaps;

static bool same_point(const SchedulePoint *a, const SchedulePoint *b)
{
	return a->section == b->section && a->n == b->n;
}

static void move_node(Gaps *g, const Op *op, const SchedulePoint *to, int class, int64_t key)
{
	Node *n = &g->node[op->order];
	n->at = *to;
	n->class = class;
	n->key = key;
}

/* Moves views that would otherwise stand in front of the wait along with it. */
static void move_views(Gaps *g, const Op *op, const SchedulePoint *to, int64_t key)
{
	for (int i = 0; i < op->n_out; i++)
		for (const Use *u = op->out[i]->uses; u; u = u->next)
			if (op_info[u->op->kind].flags & VIEW && !is_after(&g->node[u->op->order].at, to)) {
				move_node(g, u->op, to, 0, key);
				move_views(g, u->op, to, key);
			}
}

/* Decides what moves where; returns whether anything moves. */
static bool plan_moves(Gaps *g, const Schedule *part)
{
	bool any = false;
	for (int i = 0; i < part->n; i++) {
		const ScheduleEntry *e = &part->at[i];
		const Op *const op[AT_COUNT] = {e->issue, e->wait, e->release};
		g->node[e->issue->order].number = e->number;
		any = any || e->number != i + 1;
		for (int k = 0; k < AT_COUNT; k++) {
			if (!op[k] || same_point(&e->point[k], &e->to[k]))
				continue;
			any = true;
			move_node(g, op[k], &e->to[k], k == AT_ISSUE ? 2 : 0, e->number * 4 + k);
			if (k == AT_WAIT && is_after(&e->to[k], &e->point[k]))
				move_views(g, op[k], &e->to[k], e->number * 4 + k);
		}
	}
	return any;
}

static int compare_nodes(const void *a, const void *b)
{
	const Node *x = *(Node *const *)a, *y = *(Node *const *)b;
	if (x->at.section != y->at.section)
		return x->at.section < y->at.section ? -1 : 1;
	if (x->at.n != y->at.n)
		return x->at.n < y->at.n ? -1 : 1;
	if (x->class != y->class)
		return x->class - y->class;
	if (x->class != 1 && x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return x < y ? -1 : x > y;
}

/* Whether x may come next in its gap: what it reads stands before it, and issues are in the order of their numbers. */
static bool is_ready(const Gaps *g, Node *const *gap, int n, const Node *x)
{
	for (int i = 0; i < x->op->n_in; i++) {
		const Value *v = op_in(x->op, i);
		const Node *from = v && v->op->order >= 0 ? &g->node[v->op->order] : NULL;
		if (from && !from->done && from->op->kind != OP_RECORD && same_point(&from->at, &x->at))
			return false;
	}
	for (int i = 0; x->number && i < n; i++)
		if (!gap[i]->done && gap[i]->number && gap[i]->number < x->number)
			return false;
	return true;
}

/* A gap whose ops fit in no order is left as it is; the verifier reports it. */
static void put_gap(Module *m, const Gaps *g, Node **gap, int n, SectionKind s)
{
	for (int left = n, from = 0; left; left--) {
		while (gap[from]->done)
			from++;
		int k = from;
		while (k < n && (gap[k]->done || !is_ready(g, gap, n, gap[k])))
			k++;
		Node *x = gap[k < n ? k : from];
		x->done = true;
		ir_move_to_end(m, x->op, s);
	}
}

static void put_section(Module *m, const Gaps *g, SectionKind s, int64_t n_counted, int *at)
{
	for (int64_t k = 0; k <= n_counted; k++) {
		int end = *at;
		while (end < g->n && g->sorted[end]->at.section == s && g->sorted[end]->at.n == k)
			end++;
		put_gap(m, g, g->sorted + *at, end - *at, s);
		*at = end;
		if (k < n_counted)
			ir_move_to_end(m, g->counted[k], s);
	}
}

static void list_nodes(Module *m, Gaps *g, SectionKind first, SectionKind last, Arena *a)
{
	int n = 0;
	for (SectionKind s = first; s <= last; s++)
		IR_FOR_OPS(m, s, op)
			n++;
	g->node = NEW_N(a, Node, n + 1);
	g->sorted = NEW_N(a, Node *, n + 1);
	g->counted = NEW_N(a, Op *, n + 1);
	for (SectionKind s = first; s <= last; s++)
		IR_FOR_OPS(m, s, op) {
			if (!schedule_counts(op)) {
				g->node[g->n] = (Node){.op = op, .at = {s, op->order}, .class = 1};
				g->sorted[g->n] = &g->node[g->n];
				op->order = g->n++;
			} else {
				op->order = -1;
			}
		}
}

static void move_part(Edit *e, bool eval)
{
	SectionKind first = eval ? SEC_EVAL : SEC_FORWARD, last = eval ? SEC_EVAL : SEC_UPDATE;
	const Schedule *part = e->part[eval];
	Gaps g = {0};
	int at = 0;
	list_nodes(e->m, &g, first, last, e->a);
	if (!plan_moves(&g, part))
		return;
	qsort(g.sorted, (size_t)g.n, sizeof(*g.sorted), compare_nodes);
	for (SectionKind s = first; s <= last; s++) {
		int64_t n = 0;
		IR_FOR_OPS(e->m, s, op)
			if (op->order < 0)
				g.counted[n++] = op;
		put_section(e->m, &g, s, n, &at);
	}
}

static Attr *without(Module *m, const Attr *list, const char *name)
{
	Attr *head = NULL, **tail = &head;
	for (; list; list = list->next) {
		if (!strcmp(list->name, name))
			continue;
		*tail = NEW(m->arena, Attr);
		**tail = *list;
		(*tail)->next = NULL;
		tail = &(*tail)->next;
	}
	return head;
}

static void set_slots(Edit *e, const Schedule *part)
{
	for (int i = 0; i < part->n; i++) {
		Op *op = part->at[i].issue;
		if (op->kind == OP_ALL_GATHER)
			op->attrs = part->at[i].slot < 0 ? without(e->m, op->attrs, "slot")
				: attr_int(e->m, op->attrs, "slot", part->at[i].slot);
	}
}

/* ---- the proof ---- */

/* The line of the collective, or of another collective of its unit; 0 = none. */
static int line_of(const Edit *e, const Op *op)
{
	int line = 0;
	for (int p = 0; op && p < 2; p++)
		for (int i = 0; i < e->part[p]->n; i++) {
			const Op *issue = e->part[p]->at[i].issue;
			if (issue == op)
				return e->part[p]->at[i].line;
			bool same_program = (issue->section == SEC_EVAL) == (op->section == SEC_EVAL);
			if (op->unit && issue->unit == op->unit && same_program)
				line = e->part[p]->at[i].line;
		}
	return line;
}

static bool check_edit(Edit *e)
{
	PlanViolation found[16];
	int n = ir_verify_plan(e->m, e->a, found, COUNT_OF(found));
	for (int i = 0; i < n; i++)
		refuse(e, line_of(e, found[i].op), "%s (rule %s)", found[i].text, found[i].rule);
	return !n;
}

/* The line of the collective that sums the step's scalars. */
static const ScheduleEntry *scalars_of(const Schedule *part)
{
	int i = 0;
	while (i < part->n && part->at[i].issue->kind != OP_ALL_REDUCE_SCALARS)
		i++;
	return i < part->n ? &part->at[i] : NULL;
}

/* With updates in backward the step's scalars stand where the first update wants them. */
static bool check_scalars(Edit *e)
{
	const ScheduleEntry *was = scalars_of(e->part[0]), *now = scalars_of(schedule_list(e->m, false, e->a));
	bool ok = !was || !now || same_point(&was->to[AT_ISSUE], &was->point[AT_ISSUE])
		|| same_point(&was->to[AT_ISSUE], &now->point[AT_ISSUE]);
	if (!ok)
		refuse(e, was->line, "with --update=backward all_reduce_scalars stands in front of the first update: it cannot "
			"be moved by itself");
	return ok;
}

bool schedule_apply(Module *m, const char *path, Diag *d)
{
	Edit e = {.m = m, .a = arena_new(), .d = d, .path = path};
	bool ok;
	e.part[0] = schedule_list(m, false, e.a);
	e.part[1] = schedule_list(m, true, e.a);
	for (int p = 0; p < 2; p++)
		for (int i = 0; i < e.part[p]->n; i++)
			e.n_gathers += e.part[p]->at[i].issue->kind == OP_ALL_GATHER;
	ok = read_edit(&e);
	if (ok) {
		move_part(&e, false);
		move_part(&e, true);
		set_slots(&e, e.part[0]);
		set_slots(&e, e.part[1]);
		if (ir_updates_early(m)) {
			schedule_updates(m);
			ok = check_scalars(&e);
		}
		schedule_grad_slots(m);
		schedule_events(m);
		ok = check_edit(&e) && ok;
	}
	arena_free(e.a);
	return ok;
}
