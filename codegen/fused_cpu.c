/* codegen/fused_cpu.c: writes fused kernels as loops of fused.c.
 *
 * Outer dims and blocks of the innermost one are divided among threads.  omp simd tells the compiler that
 * iterations are independent, since pointers are not restrict. */
#include "codegen/fused.h"

#include <string.h>

const char fused_cpu_head[] =
	"#include <math.h>\n"
	"#include \"kernels/ew.h\"\n\n"
	"enum { GRAIN = 16384, BLOCK = 4096 }; /* elements: worth a second thread; of one piece of work */\n"
	"#define MIN(a, b) ((a) < (b) ? (a) : (b))\n\n";

/* Element offset of a row at the outer indices: "(i0 * n1 + i1) * n2", "" = 0; pitch: its name, NULL = rows follow each
 * other. */
static const char *row_offset(Emit *e, const FusedSpace *s, unsigned varies, const char *pitch)
{
	const char *sum = "";
	for (int d = 0; d < s->rank - 1; d++) {
		if (!(varies >> d & 1))
			continue;
		const char *more = strchr(sum, ' ') ? "(%s) * n%d + i%d" : "%s * n%d + i%d";
		sum = *sum ? arena_printf(e->a, more, sum, d, d) : arena_printf(e->a, "i%d", d);
	}
	if (!pitch && varies >> (s->rank - 1) & 1)
		pitch = arena_printf(e->a, "n%d", s->rank - 1);
	if (*sum && pitch)
		sum = arena_printf(e->a, strchr(sum, ' ') ? "(%s) * %s" : "%s * %s", sum, pitch);
	return sum;
}

/* Writes the pointers to rows, and reads operands that do not vary along the innermost dim. */
static void put_rows(Emit *e, Buf *b, const Op *op, const FusedSpace *s, const char *in)
{
	const char *full = row_offset(e, s, (1u << s->rank) - 1, NULL);
	for (int i = 0; i < op->n_out && *full; i++) {
		const char *pitch = s->y_pitch[i] ? arena_printf(e->a, "q%d", i) : NULL;
		buf_printf(b, "%s%s *y%dr = y%d + %s;\n", in, fused_ctype(op->out[i]), i, i,
			row_offset(e, s, (1u << s->rank) - 1, pitch));
	}
	for (int i = 0; i < op->n_in; i++) {
		const char *pitch = s->pitch[i] ? arena_printf(e->a, "p%d", i) : NULL;
		const char *at = row_offset(e, s, s->varies[i], pitch), *type = fused_ctype(op_in(op, i));
		if (!fused_moves(s, i))
			fused_read(e, b, op_in(op, i), i, in, arena_printf(e->a, "x%d[%s]", i, *at ? at : "0"));
		else if (*full)
			buf_printf(b, "%sconst %s *x%dr = x%d%s%s;\n", in, type, i, i, *at ? " + " : "", at);
	}
}

static const char *tabs(int n)
{
	static const char text[] = "\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t";
	return text + sizeof(text) - 1 - (size_t)MIN(n, (int)sizeof(text) - 1);
}

static void put_loops(Emit *e, Buf *b, const Op *op, const FusedSpace *s)
{
	int last = s->rank - 1;
	buf_printf(b, "#pragma omp parallel for schedule(static)");
	if (last)
		buf_printf(b, " collapse(%d)", s->rank);
	buf_printf(b, " if (n0");
	for (int d = 1; d < s->rank; d++)
		buf_printf(b, " * n%d", d);
	buf_printf(b, " > GRAIN)\n");
	for (int d = 0; d < last; d++)
		buf_printf(b, "%sfor (int64_t i%d = 0; i%d < n%d; i%d++)\n", tabs(d + 1), d, d, d, d);
	const char *in = tabs(last + 2), *deep = tabs(last + 3), *row = last ? "r" : "";
	buf_printf(b, "%sfor (int64_t b = 0; b < n%d; b += BLOCK) {\n", tabs(last + 1), last);
	put_rows(e, b, op, s, in);
	buf_printf(b, "%sconst int64_t end = MIN(b + BLOCK, n%d);\n", in, last);
	buf_printf(b, "#pragma omp simd\n%sfor (int64_t i = b; i < end; i++) {\n", in);
	for (int i = 0; i < op->n_in; i++)
		if (fused_moves(s, i))
			fused_read(e, b, op_in(op, i), i, deep, arena_printf(e->a, "x%d%s[i]", i, row));
	fused_body(e, b, op, last ? "r[i]" : "[i]", deep);
	buf_printf(b, "%s}\n%s}\n", in, tabs(last + 1));
}

void fused_cpu(Emit *e, Buf *b, const Op *op, const FusedSpace *s, const char *name)
{
	buf_printf(b, "void %s", name);
	fused_signature(b, op, s);
	buf_printf(b, "\n{\n");
	put_loops(e, b, op, s);
	buf_printf(b, "}\n\n");
}
