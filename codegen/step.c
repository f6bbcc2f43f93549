/* codegen/step.c: writes a planned module as step.c and fused.c.
 *
 * Requires PLAN: the order of ops becomes the order of calls, and places become addresses.  The comment of each
 * call shows its op and the op's origin.  A function contains what one module of the model does in a section;
 * blocks that do the same share a function, which takes a row with what differs (pieces.c, body.c). */
#include "codegen/emit.h"

#include "base/file.h"
#include "codegen/pieces.h"
#include "codegen/fused.h"
#include "codegen/lower.h"
#include "passes/passes.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const section_name[] = {"forward", "backward", "update", "eval"};

/* ---- comments ---- */

const char *emit_comment(Emit *e, const Op *op)
{
	Buf b = {0};
	for (int i = 0; i < op->n_out; i++)
		buf_printf(&b, "%s%%%s : %s", i ? ", " : "", op->out[i]->name, type_str(e->a, &op->out[i]->type));
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
		buf_printf(&b, "  %s%s%s", scopes_short(e->scopes, l->scope), *l->scope && *l->node ? ":" : "", l->node);
	if (*l->role)
		buf_printf(&b, " (%s)", l->role);
	const char *s = str_escape(e->a, ESCAPE_C_COMMENT, b.at);
	buf_free(&b);
	return s;
}

/* ---- functions ---- */

/* "layers_blocks" of layers.0.blocks.1: the name of a function of several modules has no numbers. */
static const char *without_numbers(Emit *e, const char *module)
{
	Buf b = {0};
	for (const char *at = module; *at; at += strspn(at, ".")) {
		size_t n = strcspn(at, ".");
		if (strspn(at, "0123456789") < n)
			buf_printf(&b, "%s%.*s", b.n ? "." : "", (int)n, at);
		at += n;
	}
	const char *name = arena_strndup(e->a, b.at ? b.at : "", b.n);
	buf_free(&b);
	return name;
}

static const char *stem_of(Emit *e, const Scopes *s, const Block *b, const char *section)
{
	const char *module = scopes_short(s, b->row[0]->module);
	if (b->n_rows > 1)
		module = without_numbers(e, module);
	const char *name = *module ? str_escape(e->a, ESCAPE_C_IDENT, module) : "ops";
	return arena_printf(e->a, "%s%s_%s", e->prefix, section, name);
}

/* Writes the table for a function of several rows; micro-batches with equal rows share it. */
static const char *write_rows(Emit *e, const char *function, const char *stem, const Buf *rows)
{
	const char *key = arena_printf(e->a, "%s %s", function, rows->at), *name = map_get(e->bodies, key);
	if (name)
		return name;
	name = emit_unused(e, arena_printf(e->a, "%s_rows", stem));
	map_put(e->bodies, key, (void *)name);
	buf_printf(&e->step, "static const struct %s_row %s[] = {\n%s};\n\n", function, name, rows->at);
	return name;
}

/* Writes the function of a block once; blocks with the same text share it. */
static void write_block(Emit *e, const Scopes *s, Block *b, const char *section)
{
	Buf body = {0}, fields = {0}, rows = {0};
	if (b->name)
		return;
	body_write(e, s, b, section, &body, &fields, &rows);
	const char *stem = stem_of(e, s, b, section);
	const char *key = arena_printf(e->a, "%s%s", fields.at ? fields.at : "", body.at);
	b->name = map_get(e->bodies, key);
	bool known = b->name;
	if (!known) {
		b->name = emit_unused(e, stem);
		map_put(e->bodies, key, (void *)b->name);
	}
	if (rows.n && !known)
		buf_printf(&e->step, "struct %s_row {\n%s};\n\n", b->name, fields.at);
	if (!known)
		buf_printf(&e->step, "static void %s(Rt *rt%s)\n{\n%s}\n\n", b->name,
			rows.n ? arena_printf(e->a, ", const struct %s_row *b", b->name) : "", body.at);
	if (rows.n)
		b->rows = write_rows(e, b->name, stem, &rows);
	buf_free(&body);
	buf_free(&fields);
	buf_free(&rows);
}

/* Calls the function for the pieces from `at` on that are its consecutive rows; returns how many. */
static int call_block(const Pieces *pieces, int at, Buf *calls)
{
	const Piece *p = &pieces->at[at];
	int n = 1;
	if (p->block->n_rows == 1) {
		buf_printf(calls, "\t%s(rt);\n", p->block->name);
		return 1;
	}
	while (p->row + n < p->block->n_rows && at + n < pieces->n && p[n].block == p->block && p[n].row == p->row + n)
		n++;
	if (n == 1)
		buf_printf(calls, "\t%s(rt, &%s[%d]);\n", p->block->name, p->block->rows, p->row);
	else
		buf_printf(calls, "\tfor (int i = %d; i < %d; i++)\n\t\t%s(rt, &%s[i]);\n", p->row, p->row + n,
			p->block->name, p->block->rows);
	return n;
}

/* Whether the piece is written into the section's own function: the only piece, or a single line between functions. */
static bool stands_alone(const Pieces *pieces, int i)
{
	return pieces->at[i].block->n_rows == 1 && (pieces->n == 1 || pieces->at[i].n == 1);
}

static void put_alone(Emit *e, const Scopes *s, const Block *b, const char *section, bool only, Buf *calls)
{
	Buf body = {0}, none = {0};
	body_write(e, s, b, section, &body, &none, &none);
	buf_printf(calls, only ? "%s" : "\t{\n%s\t}\n", body.at);
	buf_free(&body);
}

/* number: of the section's first op in its program; returns that of the next section's. */
static int lower_section(Emit *e, SectionKind s, int number)
{
	e->calls.n = 0;
	IR_FOR_OPS(e->m, s, op) {
		e->op = op;
		e->parts.n = 0;
		const char *comment = e->pending = emit_comment(e, op);
		int first = e->calls.n;
		lower_op(e, op);
		ops_mark(e, op, number++, first);
		checks_after(e, op, comment);
		e->pending = NULL;
	}
	return number;
}

static int write_section(Emit *e, Scopes *scopes, SectionKind s, int number)
{
	Buf calls = {0};
	number = lower_section(e, s, number);
	Pieces pieces = pieces_find(e, scopes);
	for (int i = 0; i < pieces.n;) {
		if (stands_alone(&pieces, i)) {
			put_alone(e, scopes, pieces.at[i].block, section_name[s], pieces.n == 1, &calls);
			i++;
			continue;
		}
		write_block(e, scopes, pieces.at[i].block, section_name[s]);
		i += call_block(&pieces, i, &calls);
	}
	buf_printf(&e->step, "static void %s%s(Rt *rt)\n{\n%s}\n\n", e->prefix, section_name[s],
		calls.at ? calls.at : "\t(void)rt;\n");
	buf_free(&calls);
	return number;
}

static void write_setup(Emit *e)
{
	buf_printf(&e->step, "/* Makes the primitives that the functions above run. */\n"
		"static void setup(Rt *rt)\n{\n%s}\n\n",
		e->setup.at ? e->setup.at : "\t(void)rt;\n");
}

/* ---- files ---- */

/* Stands between the includes and the functions.  Addresses convert to any type that a call asks for; lists live as
 * long as the call. */
static const char step_places[] =
	"/* Addresses of values: each function says how many bytes from the start of an arena, or of a unit's flat. */\n"
	"#define ACT(value) AT(rt->act + A_##value)\n"
	"#define IN(value) AT(rt->input + I_##value)\n"
	"#define STATE(value) AT(rt->state + S_##value)\n"
	"#define PARAM(unit, flat, value) AT((char *)rt->param[unit][flat] + P_##value)\n"
	"#define GRAD(unit, flat, value) AT((char *)rt->grad[unit][flat] + G_##value)\n"
	"#define WORK AT(rt->work)\n"
	"/* An op begins here, the next one of ops.h: --trace and --time-ops take its time. */\n"
	"#define OP (rt->trace ? rt_op(rt) : (void)0),\n"
	"#undef P_tmpdir /* of stdio.h: a parameter may be called so */\n\n"
	"typedef uint16_t f16; /* raw bits */\ntypedef uint16_t bf16;\n\n";

static const char step_head_cpu[] =
	"#include <math.h>\n"
	"#include \"runtime/shardrt.h\"\n\n"
	"#define LIST(type, ...) ((type const[]){__VA_ARGS__})\n"
	"#define AT(p) ((void *)(p))\n";

/* C++ does not convert void * implicitly. */
static const char step_head_cuda[] =
	"#include <initializer_list>\n"
	"#include <math.h>\n"
	"#include \"runtime/shardrt.h\"\n\n"
	"struct Address { /* of device memory, as what a call asks for */\n"
	"\tchar *at;\n"
	"\ttemplate <class T> __attribute__((always_inline)) operator T *() const { return reinterpret_cast<T *>(at); }\n"
	"};\n"
	"#define LIST(type, ...) (std::initializer_list<type>{__VA_ARGS__}.begin())\n"
	"#define AT(p) (Address{(p)})\n"
	"#define HOST(value) AT(rt->host + H_##value) /* of values that lie in memory of the host */\n";

/* The files of a program; a name is NULL if the target does not have the file. */
enum { FUSED, MAKEFILE, OPS, STEP, HEADER, PKG_CONFIG, FILES };
static const char *const file_names[2][FILES] = {
	{"fused.c", "Makefile", "ops.h", "step.c", "model.h", "model.pc"}, {"fused.cu", "Makefile", "ops.h", "step.cu"},
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

/* Whether a path is free, or holds a file that may be replaced: an empty one, or one that says near its beginning
 * that shardc made it.  A file that cannot be read counts as somebody else's. */
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
		const char *at = arena_printf(e->a, "%s/%s", dir, file_names[codegen_cuda(e->target)][i]);
		if (is_ours(at))
			continue;
		diag_error(e->d, at, "is there and was not made by shardc: it is not replaced; give another folder, or "
			"remove it");
		ok = false;
	}
	return ok;
}

/* Writes all files beside dir and then moves them there, so that a full disk leaves the old files as they were. */
static bool put_files(Emit *e, const char *dir, const Buf *texts)
{
	const char *const *name = file_names[codegen_cuda(e->target)];
	const char *temp = arena_printf(e->a, "%s.new", dir), *at = temp;
	int n = e->target->library ? FILES : STEP + 1;
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
	Buf texts[FILES] = {0}, *fused = &texts[FUSED], *make = &texts[MAKEFILE], *step = &texts[STEP], code = {0};
	const char *name = str_escape(e->a, ESCAPE_C_COMMENT, e->m->name);
	buf_printf(step, "/* One training step of %s, made by shardc.  Not for editing. */\n%s%s", name,
		codegen_cuda(e->target) ? step_head_cuda : step_head_cpu, step_places);
	if (e->protos.n)
		buf_printf(&code, "/* %s */\n%s\n", file_names[codegen_cuda(e->target)][FUSED], e->protos.at);
	if (e->statics.n)
		buf_printf(&code, "%s\n", e->statics.at);
	if (map_count(e->nodes))
		buf_printf(&code, "/* Nodes that check what they read. */\nstatic const char *const nodes[] = {");
	for (int i = 0; i < map_count(e->nodes); i++)
		buf_printf(&code, "%s%s", i ? ", " : "", emit_c_string(e, map_key(e->nodes, i)));
	buf_printf(&code, map_count(e->nodes) ? "};\n\n" : "");
	body_constants(&e->constants, "/* Where inputs, states, and parameters and gradients of a unit lie: bytes. */\n"
		"static const int64_t ", &code);
	buf_put(&code, e->step.at, e->step.n);
	wrap_text(step, code.at, WRAP_COLUMNS);
	buf_free(&code);
	ops_write(e, &texts[OPS]);
	buf_printf(fused, "/* Elementwise loops of %s, made by shardc.  Not for editing. */\n%s%s", name,
		codegen_cuda(e->target) ? fused_cuda_head : fused_cpu_head,
		e->fused.at ? e->fused.at : "typedef int nothing_is_fused;\n");
	bool ok = build_makefile(e->target, &e->train->hook, make, e->d)
		&& (!e->target->library || build_header(e, &texts[HEADER]));
	if (e->target->library)
		build_pkg_config(&texts[PKG_CONFIG]);
	ok = ok && put_files(e, dir, texts);
	for (int i = 0; i < COUNT_OF(texts); i++)
		buf_free(&texts[i]);
	return ok;
}

/* Numbers the events of one program, for which collectives wait and which rt_record sets, and its copies to and from
 * memory of the host. */
static void number_events(Emit *e, SectionKind from, SectionKind to)
{
	intptr_t events = 0, copies = 0;
	for (int s = (int)from; s <= (int)to; s++)
		IR_FOR_OPS(e->m, s, op)
			if (op->kind == OP_RECORD)
				ptrmap_put(e->events, op, (void *)++events);
			else if (op->kind == OP_OFFLOAD || op->kind == OP_RELOAD)
				ptrmap_put(e->events, op, (void *)++copies);
	e->n_copies = MAX(e->n_copies, (int)copies);
}

/* Maps where parameters lie in their flats to their names. */
static Map *places_of(Emit *e)
{
	Map *places = map_new(e->a);
	for (int u = 0; u < e->m->n_units; u++)
		for (int i = 0; i < e->m->units[u]->n_params; i++) {
			const Symbol *p = e->m->units[u]->params[i];
			map_put(places, arena_printf(e->a, "%d %d %" PRId64, u, p->flat, p->offset), (void *)p->name);
		}
	return places;
}

/* Writes the functions of one module.  Each module has its own scopes and units. */
static void write_module(Emit *e, const Module *m, const char *prefix)
{
	if (m->level != LEVEL_PLAN)
		ice("codegen wants a module at PLAN");
	e->m = m;
	e->prefix = prefix;
	e->places = places_of(e);
	Scopes *scopes = scopes_new(m, e->a);
	e->scopes = scopes;
	for (int s = 0; s < SEC_COUNT; s++)
		map_put(e->functions, arena_printf(e->a, "%s%s", prefix, section_name[s]), NULL);
	number_events(e, SEC_FORWARD, SEC_UPDATE);
	number_events(e, SEC_EVAL, SEC_EVAL);
	int number = 0;
	for (int s = SEC_FORWARD; s <= SEC_UPDATE; s++)
		number = write_section(e, scopes, (SectionKind)s, number);
	ops_end(e, arena_printf(e->a, "%sstep", prefix));
	if (m->first[SEC_EVAL])
		write_section(e, scopes, SEC_EVAL, 0);
	ops_end(e, arena_printf(e->a, "%seval", prefix));
}

/* Writes the modules of one size; their functions' names begin with `prefix`. */
static void write_variants(Emit *e, const Variants *v, const char *prefix)
{
	write_module(e, v->of[VARIANT_ONLY], prefix);
	for (int k = VARIANT_FIRST; v->of[VARIANT_FIRST] && k < VARIANT_COUNT; k++)
		write_module(e, v->of[k], arena_printf(e->a, "%s%s_", prefix, variant_text[k]));
}

const char *emit_size(Emit *e, int k)
{
	return k == e->sizes->n - 1 ? "" : arena_printf(e->a, "%s_", str_escape(e->a, ESCAPE_C_IDENT, e->sizes->name[k]));
}

bool codegen_write(const Sizes *program, const CodegenTarget *t, const char *dir, Diag *d)
{
	Arena *a = arena_new();
	const Variants *largest = &program->of[program->n - 1];
	const Module *m = largest->of[VARIANT_ONLY];
	Emit e = {.m = m, .target = t, .train = ir_train(m), .d = d, .a = a, .sizes = program,
		.several = largest->of[VARIANT_FIRST] ? largest : NULL, .prims = map_new(a), .shared = map_new(a),
		.kernels = map_new(a), .functions = map_new(a), .bodies = map_new(a), .constants = places_new(a),
		.paths = map_new(a), .checks = ptrmap_new(a), .nodes = map_new(a), .events = ptrmap_new(a),
		.op_lists = map_new(a), .op_kernels = map_new(a)};
	int before = d->errors;
	map_put(e.functions, "eval_collectives", NULL); /* a table; a module "collectives" would have that name, too */
	for (int k = program->n - 1; k >= 0; k--)
		write_variants(&e, &program->of[k], emit_size(&e, k));
	e.m = m;
	write_setup(&e);
	bool ok = codegen_cuda(t) || build_need_cpu(&e, &e.step);
	tables_write(&e, &e.step);
	ok = ok && d->errors == before && write_files(&e, dir);
	Buf *bufs[] = {&e.step, &e.statics, &e.setup, &e.fused, &e.protos, &e.ops, &e.op_rows,
		&e.kernel_rows};
	for (int i = 0; i < COUNT_OF(bufs); i++)
		buf_free(bufs[i]);
	arena_free(a);
	return ok;
}
