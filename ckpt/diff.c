/* ckpt/diff.c: shardc ckpt diff A B: reports tensors that only one of them has, tensors of different shapes, and by how
 * much the others differ.
 *
 * Elements are equal when their bytes are equal.  So a NaN equals itself, and equal elements do not enter the norms,
 * even if they are not finite. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt.h"

typedef struct Diff {
	const Checkpoint *a, *b;
	const char *name_a, *name_b;
	double tolerance;
	char *bytes_a, *bytes_b; /* of CKPT_PIECE elements each */
	int64_t tensors, differ;
	Arena *arena;
} Diff;

/* squares: |a - b|^2; of: |b|^2.  Both may exceed the range of an f64. */
typedef struct Difference { int64_t elements; long double squares, of; } Difference;

static void add(Difference *out, const Diff *d, DType t, int64_t n)
{
	int64_t size = dtype_info[t].bytes;
	for (int64_t i = 0; i < n; i++) {
		const char *pa = d->bytes_a + i * size, *pb = d->bytes_b + i * size;
		long double x = ckpt_number(pa, t), y = ckpt_number(pb, t);
		out->of += y * y;
		if (!memcmp(pa, pb, (size_t)size))
			continue;
		out->elements++;
		out->squares += (x - y) * (x - y);
	}
}

static Difference compare(const Diff *d, const CheckpointTensor *a, const CheckpointTensor *b)
{
	Difference out = {0};
	for (int64_t first = 0, n; first < a->numel; first += n) {
		n = MIN(CKPT_PIECE, a->numel - first);
		ckpt_bytes(a, first, n, d->bytes_a);
		ckpt_bytes(b, first, n, d->bytes_b);
		ckpt_release(a, first, n);
		ckpt_release(b, first, n);
		add(&out, d, a->dtype, n);
	}
	return out;
}

/* The name with control characters escaped. */
static const char *on_terminal(const Diff *d, const CheckpointTensor *t)
{
	return str_escape(d->arena, ESCAPE_IR, t->name);
}

static void print_type(const Diff *d, const CheckpointTensor *t, const char *in)
{
	printf("%s [", dtype_info[t->dtype].text);
	for (int i = 0; i < t->rank; i++)
		printf("%s%" PRId64, i ? "," : "", t->dim[i]);
	printf("] in %s", str_escape(d->arena, ESCAPE_TERMINAL, in));
}

static bool same_type(const CheckpointTensor *a, const CheckpointTensor *b)
{
	return a->dtype == b->dtype && a->rank == b->rank && !memcmp(a->dim, b->dim, (size_t)a->rank * sizeof(*a->dim));
}

/* Compares bytes: elements can differ although their difference is 0, as -0 and 0 do. */
static void diff_tensor(Diff *d, const CheckpointTensor *a, const CheckpointTensor *b)
{
	if (!same_type(a, b)) {
		d->differ++;
		printf("%s: ", on_terminal(d, a));
		print_type(d, a, d->name_a);
		printf(", ");
		print_type(d, b, d->name_b);
		printf("\n");
		return;
	}
	Difference x = compare(d, a, b);
	if (!x.elements)
		return;
	double relative = x.squares == 0 ? 0 : (double)(sqrtl(x.squares) / sqrtl(x.of));
	bool within = d->tolerance >= 0 && relative <= d->tolerance;
	d->differ += !within;
	printf("%s: %" PRId64 " of %" PRId64 " elements differ, relative %.3g%s\n", on_terminal(d, a), x.elements, a->numel,
		relative, within ? ", within the tolerance" : "");
}

static void only_in(Diff *d, const CheckpointTensor *t, const char *name)
{
	d->differ++;
	printf("%s: ", on_terminal(d, t));
	print_type(d, t, name);
	printf(" only\n");
}

static void diff_section(Diff *d, CheckpointSection s)
{
	const CheckpointList *a = &d->a->section[s], *b = &d->b->section[s];
	for (int i = 0; i < a->n; i++) {
		const CheckpointTensor *other = checkpoint_find(d->b, s, a->at[i].name);
		d->tensors++;
		if (other)
			diff_tensor(d, &a->at[i], other);
		else
			only_in(d, &a->at[i], d->name_a);
	}
	for (int i = 0; i < b->n; i++)
		if (!checkpoint_find(d->a, s, b->at[i].name)) {
			d->tensors++;
			only_in(d, &b->at[i], d->name_b);
		}
}

/* ---- state.json ---- */

static void print_value(json_t *v)
{
	enum { MOST = 60 };
	char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
	printf("%.*s%s", MOST, text ? text : "nothing", text && strlen(text) > MOST ? ".." : "");
	free(text);
}

static void diff_json(const Diff *d, const char *path, json_t *x, json_t *y)
{
	Arena *a = d->arena;
	const char *key;
	json_t *v;
	if (json_equal(x, y))
		return;
	if (!json_is_object(x) || !json_is_object(y)) {
		printf("state.json: %s: ", str_escape(a, ESCAPE_IR, path));
		print_value(x);
		printf(" in %s, ", str_escape(a, ESCAPE_TERMINAL, d->name_a));
		print_value(y);
		printf(" in %s\n", str_escape(a, ESCAPE_TERMINAL, d->name_b));
		return;
	}
	json_object_foreach(x, key, v)
		diff_json(d, arena_printf(a, "%s.%s", path, key), v, json_object_get(y, key));
	json_object_foreach(y, key, v)
		if (!json_object_get(x, key))
			diff_json(d, arena_printf(a, "%s.%s", path, key), NULL, v);
}

/* ---- the command ---- */

static int diff(Diff *d, Diag *diag)
{
	enum { WIDEST = 8 };
	if (!d->a->state != !d->b->state) {
		diag_error(diag, "shardc ckpt diff", "one is a file, the other a folder: two of the same were expected");
		return CKPT_INPUT;
	}
	bool whole = checkpoint_verify(d->a, 0, 1, true, diag);
	if (!checkpoint_verify(d->b, 0, 1, true, diag) || !whole)
		return CKPT_INPUT;
	d->bytes_a = arena_alloc(d->arena, CKPT_PIECE * WIDEST);
	d->bytes_b = arena_alloc(d->arena, CKPT_PIECE * WIDEST);
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++)
		diff_section(d, (CheckpointSection)s);
	if (d->a->state)
		diff_json(d, "$", d->a->state, d->b->state);
	printf("%" PRId64 " of %" PRId64 " tensors differ\n", d->differ, d->tensors);
	return d->differ ? CKPT_INPUT : CKPT_OK;
}

int ckpt_diff(const CkptCall *call)
{
	Diag *d = call->d;
	Arena *a = arena_new();
	Diff x = {.tolerance = -1, .arena = a};
	CkptArgs args;
	const CkptOption options[] = {{"--tolerance", CKPT_NUMBER, &x.tolerance, "X",
		"tensors are alike where norm(a - b) / norm(b) is at most this (default: where all bytes are)", false}};
	if (ckpt_parse(call, options, COUNT_OF(options), 2, 2, a, &args)) {
		x.name_a = args.at[0];
		x.name_b = args.at[1];
		Checkpoint *first = ckpt_open(a, x.name_a, d), *second = ckpt_open(a, x.name_b, d);
		x.a = first;
		x.b = second;
		args.status = first && second ? diff(&x, d) : CKPT_INPUT;
		if (first)
			checkpoint_close(first);
		if (second)
			checkpoint_close(second);
	}
	arena_free(a);
	return args.status;
}
