/* codegen/step.c: a planned module as step.c and fused.c.
 *
 * Requires PLAN: the order of ops is the order of calls, places are addresses.  step.c is straight-line,
 * one call per line, with the op and where it came from beside it.  One function per unit and section, of
 * at most CHUNK_CALLS calls: compilers need superlinear time for long functions. */
#include "codegen/emit.h"

#include "base/file.h"
#include "codegen/fused.h"
#include "codegen/lower.h"
#include "passes/passes.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_CALLS = 500, CHUNK_MIN = 8 };

static const char *const section_name[] = {"forward", "backward", "update", "eval"};

/* ---- comments ---- */

static const char *op_comment(Emit *e, const Op *op)
{
	Buf b = {0};
	for (int i = 0; i < op->n_out; i++)
		buf_printf(&b, i ? ", %s" : "%s", type_str(e->a, &op->out[i]->type));
	buf_printf(&b, op->n_out ? " = %s" : "%s", op_info[op->kind].text);
	if (op->sym)
		buf_printf(&b, " \"%s\"", op->sym->name);
	if (op->unit)
		buf_printf(&b, " %s", ir_unit_str(e->a, op->unit));
	for (int i = 0; i < op->n_in; i++)
		buf_printf(&b, "%s%s%s", i ? ", " : " ", op_in(op, i) ? "%" : "_",
			op_in(op, i) ? op_in(op, i)->name : "");
	const Loc *l = op->loc;
	if (*l->scope || *l->node)
		buf_printf(&b, "  %s%s%s", l->scope, *l->scope && *l->node ? ":" : "", l->node);
	if (*l->role)
		buf_printf(&b, " (%s)", l->role);
	const char *s = str_escape(e->a, ESCAPE_C_COMMENT, b.at);
	buf_free(&b);
	return s;
}

/* ---- functions ---- */

/* Units of several owners are one here: "h.0" for "h.0:1". */
static const char *wrap_name(Arena *a, const Unit *u)
{
	const char *end = u->owner < 0 ? NULL : strrchr(u->name, ':');
	return end ? arena_strndup(a, u->name, (size_t)(end - u->name)) : u->name;
}

/* The unit whose name is the scope or a part of it at dots: "h.0" for "transformer.h.0.attn". */
static const Unit *find_unit(const Emit *e, const char *scope)
{
	const Module *m = e->m;
	for (int u = 0; *scope && u < m->n_units; u++) {
		const char *name = wrap_name(e->a, m->units[u]), *at = strstr(scope, name);
		size_t n = strlen(name);
		if (at && (at == scope || at[-1] == '.') && (!at[n] || at[n] == '.'))
			return m->units[u];
	}
	return NULL;
}

/* The first unit of those with this one's wrap. */
static const Unit *first_of_wrap(const Emit *e, const Unit *unit)
{
	const char *name = wrap_name(e->a, unit);
	for (int u = 0; unit->owner >= 0 && u < e->m->n_units; u++)
		if (!strcmp(wrap_name(e->a, e->m->units[u]), name))
			return e->m->units[u];
	return unit;
}

/* Scopes are interned: one search for each, and for each unit. */
static const Unit *unit_of(const Emit *e, const Op *op)
{
	const char *scope = op->loc->scope;
	if (op->unit && !ptrmap_get(e->units, op->unit))
		ptrmap_put(e->units, op->unit, (void *)first_of_wrap(e, op->unit));
	if (op->unit)
		return ptrmap_get(e->units, op->unit);
	void *known = ptrmap_get(e->units, scope);
	if (!known) {
		const Unit *unit = find_unit(e, scope);
		known = unit ? (void *)unit : (void *)scope;
		ptrmap_put(e->units, scope, known);
	}
	return known == scope ? NULL : known;
}

static const char *function_name(Emit *e, SectionKind s, const Unit *unit)
{
	const char *stem = unit ? arena_printf(e->a, "%s%s_%s", e->prefix, section_name[s],
		str_escape(e->a, ESCAPE_C_IDENT, wrap_name(e->a, unit)))
		: arena_printf(e->a, "%s%s_ops", e->prefix, section_name[s]);
	const char *name = stem;
	for (int n = 2; map_has(e->functions, name); n++)
		name = arena_printf(e->a, "%s_%d", stem, n);
	map_put(e->functions, name, NULL);
	return name;
}

/* Puts the function's range of a profile around its lines: "forward h.0". */
static void frame_body(Emit *e, SectionKind s, const Unit *unit)
{
	const char *label = unit ? arena_printf(e->a, "%s %s", section_name[s], wrap_name(e->a, unit)) : section_name[s];
	Buf b = {0};
	buf_printf(&b, "\trt_enter(rt, \"%s\");\n%s\trt_leave(rt);\n", str_escape(e->a, ESCAPE_C_STRING, label),
		e->body.at);
	buf_free(&e->body);
	e->body = b;
}

/* Ends the function at work, if it has any line; returns its name. */
static void flush(Emit *e, SectionKind s, const Unit *unit, Buf *calls)
{
	if (!e->body.n)
		return;
	if (e->o->cuda)
		frame_body(e, s, unit);
	const char *name = map_get(e->bodies, e->body.at);
	if (!name) {
		name = function_name(e, s, unit);
		map_put(e->bodies, arena_strndup(e->a, e->body.at, e->body.n), (void *)name);
		buf_printf(&e->step, "static void %s(Rt *rt)\n{\n%s}\n\n", name, e->body.at);
	}
	buf_printf(calls, "\t%s(rt);\n", name);
	buf_free(&e->body);
	e->body = (Buf){0};
	e->n_lines = 0;
}

static void write_section(Emit *e, SectionKind s)
{
	const Unit *unit = NULL;
	Buf calls = {0};
	IR_FOR_OPS(e->m, s, op) {
		const Unit *now = unit_of(e, op);
		if (e->n_lines >= CHUNK_CALLS || (now != unit && e->n_lines >= CHUNK_MIN))
			flush(e, s, unit, &calls);
		if (!e->n_lines || (!unit && e->n_lines < CHUNK_MIN))
			unit = now;
		e->op = op;
		const char *comment = e->pending = op_comment(e, op);
		lower_op(e, op);
		checks_after(e, op, comment);
		e->pending = NULL;
	}
	flush(e, s, unit, &calls);
	buf_printf(&e->step, "static void %s%s(Rt *rt)\n{\n%s}\n\n", e->prefix, section_name[s],
		calls.at ? calls.at : "\t(void)rt;\n");
	buf_free(&calls);
}

static void write_setup(Emit *e)
{
	buf_printf(&e->step, "/* Makes the primitives that the functions above run. */\n"
		"static void setup(Rt *rt)\n{\n%s}\n\n",
		e->setup.at ? e->setup.at : "\t(void)rt;\n");
}

/* ---- files ---- */

/* Between the includes and the functions.  Addresses are of any type that a call asks for, lists last as long as it. */
static const char step_places[] =
	"/* Addresses: bytes from the start of an arena, or of a flat: (unit, flat, bytes). */\n"
	"#define ACT(offset) AT(rt->act + (offset))\n"
	"#define IN(offset) AT(rt->input + (offset))\n"
	"#define STATE(offset) AT(rt->state + (offset))\n"
	"#define PARAM(unit, flat, offset) AT((char *)rt->param[unit][flat] + (offset))\n"
	"#define GRAD(unit, flat, offset) AT((char *)rt->grad[unit][flat] + (offset))\n"
	"#define WORK AT(rt->work)\n\n"
	"typedef uint16_t f16; /* raw bits */\ntypedef uint16_t bf16;\n\n";

static const char step_head_cpu[] =
	"#include <math.h>\n"
	"#include \"runtime/shardrt.h\"\n\n"
	"#define LIST(type, ...) ((type const[]){__VA_ARGS__})\n"
	"#define AT(p) ((void *)(p))\n";

/* C++ converts no void * by itself. */
static const char step_head_cuda[] =
	"#include <initializer_list>\n"
	"#include <math.h>\n"
	"#include \"runtime/shardrt.h\"\n\n"
	"struct Address { /* of device memory, as what a call asks for */\n"
	"\tchar *at;\n"
	"\ttemplate <class T> __attribute__((always_inline)) operator T *() const { return reinterpret_cast<T *>(at); }\n"
	"};\n"
	"#define LIST(type, ...) (std::initializer_list<type>{__VA_ARGS__}.begin())\n"
	"#define AT(p) (Address{(p)})\n";

/* The names that a target's files have, or NULL: not of this one. */
enum { FUSED, MAKEFILE, STEP, HEADER, PKG_CONFIG, FILES };
static const char *const file_names[2][FILES] = {
	{"fused.c", "Makefile", "step.c", "model.h", "model.pc"}, {"fused.cu", "Makefile", "step.cu"},
};

static bool write_file(const char *path, const Buf *text)
{
	FILE *f = fopen(path, "w");
	if (f)
		fwrite(text->at ? text->at : "", 1, text->n, f);
	return file_flush_close(f);
}

void codegen_remove(const char *dir)
{
	Arena *a = arena_new();
	for (int i = 0; i < 2 * FILES; i++)
		if (file_names[i / FILES][i % FILES])
			remove(arena_printf(a, "%s/%s", dir, file_names[i / FILES][i % FILES]));
	rmdir(dir);
	arena_free(a);
}

/* Whether a path is free, or holds a file that may be replaced: an empty one, or one that says near its head that it
 * was made by shardc.  What cannot be read is somebody else's. */
static bool is_ours(const char *path)
{
	char head[4096];
	struct stat st;
	const char *why;
	int fd = file_open(path, &st, &why);
	if (fd < 0)
		return errno == ENOENT;
	ssize_t n = pread(fd, head, sizeof(head) - 1, 0);
	close(fd);
	head[MAX(n, 0)] = '\0';
	return !n || (n > 0 && (strstr(head, "by shardc") || !strncmp(head, "# Builds the training ", 22)));
}

static bool check_theirs(Emit *e, const char *dir, int n)
{
	bool ok = true;
	for (int i = 0; i < n; i++) {
		const char *at = arena_printf(e->a, "%s/%s", dir, file_names[e->o->cuda][i]);
		if (is_ours(at))
			continue;
		diag_error(e->d, at, "is there and was not made by shardc: it is not replaced; give another folder, or "
			"remove it");
		ok = false;
	}
	return ok;
}

/* All are written beside dir, then moved there, so that a full disk leaves what was there before. */
static bool put_files(Emit *e, const char *dir, const Buf *texts)
{
	const char *temp = arena_printf(e->a, "%s.new", dir), *at = temp, *const *name = file_names[e->o->cuda];
	int n = e->o->library ? FILES : STEP + 1;
	if (!check_theirs(e, dir, n))
		return false;
	bool ok = !mkdir(temp, 0777) || errno == EEXIST;
	for (int i = 0; ok && i < n; i++) {
		at = arena_printf(e->a, "%s/%s", temp, name[i]);
		ok = write_file(at, &texts[i]);
	}
	if (ok) {
		at = dir;
		ok = !mkdir(dir, 0777) || errno == EEXIST;
	}
	for (int i = 0; ok && i < n; i++) {
		at = arena_printf(e->a, "%s/%s", dir, name[i]);
		ok = !rename(arena_printf(e->a, "%s/%s", temp, name[i]), at);
	}
	if (!ok)
		diag_unwritten(e->d, at);
	codegen_remove(temp);
	return ok;
}

static bool write_files(Emit *e, const char *dir)
{
	Buf texts[FILES] = {0}, *fused = &texts[FUSED], *make = &texts[MAKEFILE], *step = &texts[STEP];
	const char *name = str_escape(e->a, ESCAPE_C_COMMENT, e->m->name);
	buf_printf(step, "/* One training step of %s, made by shardc.  Not for editing. */\n%s%s", name,
		e->o->cuda ? step_head_cuda : step_head_cpu, step_places);
	if (e->protos.n)
		buf_printf(step, "/* %s */\n%s\n", file_names[e->o->cuda][FUSED], e->protos.at);
	if (e->statics.n)
		buf_printf(step, "%s\n", e->statics.at);
	buf_put(step, e->step.at, e->step.n);
	buf_printf(fused, "/* Elementwise loops of %s, made by shardc.  Not for editing. */\n%s%s", name,
		e->o->cuda ? fused_cuda_head : fused_cpu_head, e->fused.at ? e->fused.at : "typedef int nothing_is_fused;\n");
	bool ok = build_makefile(e->o, make, e->d) && (!e->o->library || build_header(e, &texts[HEADER]));
	if (e->o->library)
		build_pkg_config(&texts[PKG_CONFIG]);
	ok = ok && put_files(e, dir, texts);
	for (int i = 0; i < COUNT_OF(texts); i++)
		buf_free(&texts[i]);
	return ok;
}

/* Of one program: what collectives wait for, and rt_record says that it is there. */
static void number_events(Emit *e, SectionKind from, SectionKind to)
{
	intptr_t n = 0;
	for (int s = (int)from; s <= (int)to; s++)
		IR_FOR_OPS(e->m, s, op)
			if (op->kind == OP_RECORD)
				ptrmap_put(e->events, op, (void *)++n);
}

/* The functions of a module; scopes and units are each module's own. */
static void write_module(Emit *e, const Module *m, const char *prefix)
{
	if (m->level != LEVEL_PLAN)
		ice("codegen wants a module at PLAN");
	e->m = m;
	e->prefix = prefix;
	e->units = ptrmap_new(e->a);
	for (int s = 0; s < SEC_COUNT; s++)
		map_put(e->functions, arena_printf(e->a, "%s%s", prefix, section_name[s]), NULL);
	number_events(e, SEC_FORWARD, SEC_UPDATE);
	number_events(e, SEC_EVAL, SEC_EVAL);
	for (int s = 0; s < SEC_COUNT; s++)
		if (m->first[s] || s != SEC_EVAL)
			write_section(e, (SectionKind)s);
}

bool codegen_write(const Module *m, const CodegenOptions *o, const char *dir, Diag *d)
{
	Arena *a = arena_new();
	Emit e = {.m = m, .o = o, .d = d, .a = a, .prims = map_new(a), .shared = map_new(a),
		.kernels = map_new(a), .functions = map_new(a), .bodies = map_new(a), .paths = map_new(a),
		.checks = ptrmap_new(a), .events = ptrmap_new(a)};
	int before = d->errors;
	write_module(&e, m, "");
	for (int k = VARIANT_FIRST; o->variants && k < VARIANT_COUNT; k++)
		write_module(&e, o->variants->of[k], arena_printf(a, "%s_", variant_text[k]));
	e.m = m;
	write_setup(&e);
	bool ok = o->cuda || build_need_cpu(&e, &e.step);
	tables_write(&e, &e.step);
	ok = ok && d->errors == before && write_files(&e, dir);
	Buf *bufs[] = {&e.body, &e.step, &e.statics, &e.setup, &e.fused, &e.protos};
	for (int i = 0; i < COUNT_OF(bufs); i++)
		buf_free(bufs[i]);
	arena_free(a);
	return ok;
}
