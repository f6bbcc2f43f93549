/* runtime/exec/slices.c: which elements of a tensor lie on a rank, and in which dtype.
 *
 * Files hold the dtypes of the model.  In memory a parameter may have fewer bits, or be rounded to them, beside a
 * master in f32 (base/layout.h); elements are converted when they are put into a slice or taken from it, with
 * stochastic rounding where the next step reads parameters rounded in this way (chance.c).
 *
 * A rank holds one range of every flat, and a tensor is another range of the same flat; weights, checkpoints and
 * resumes move the overlap of the two. */
#include <string.h>

#include "runtime/exec/private.h"

double number_get(const char *p, DType t)
{
	union { float f; double d; uint16_t h; } v;
	memcpy(&v, p, (size_t)dtype_info[t].bytes);
	switch (t) {
	case DT_F32: return v.f;
	case DT_F64: return v.d;
	case DT_F16: return f16_to_float(v.h);
	case DT_BF16: return bf16_to_float(v.h);
	default: ice("initial weights of type %s cannot be converted", dtype_info[t].text);
	}
}

void number_put(char *p, DType t, double x)
{
	union { float f; double d; uint16_t h; uint8_t u8; int8_t i8; int16_t i16; uint32_t u32; int32_t i32;
		uint64_t u64; int64_t i64; } v;
	switch (t) {
	case DT_F32: v.f = (float)x; break;
	case DT_F64: v.d = x; break;
	case DT_F16: v.h = f16_from_float((float)x); break;
	case DT_BF16: v.h = bf16_from_float((float)x); break;
	case DT_I64: v.i64 = (int64_t)x; break;
	case DT_I32: v.i32 = (int32_t)x; break;
	case DT_I16: v.i16 = (int16_t)x; break;
	case DT_I8: v.i8 = (int8_t)x; break;
	case DT_U64: v.u64 = (uint64_t)x; break;
	case DT_U32: v.u32 = (uint32_t)x; break;
	case DT_U16: v.h = (uint16_t)x; break;
	case DT_U8: v.u8 = (uint8_t)x; break;
	case DT_BOOL: v.u8 = x != 0; break;
	case DT_E4M3: case DT_E5M2: case DT_COUNT: ice("no dtype of a tensor in a file");
	}
	memcpy(p, &v, (size_t)dtype_info[t].bytes);
}

/* The elements of a tensor, which is [offset, offset + numel) of its flat, that lie in the range `held` of the flat. */
static LayoutRange overlap(LayoutRange held, const RtTensor *t)
{
	int64_t begin = MAX(held.begin, t->offset), end = MIN(held.begin + held.n, t->offset + tensor_numel(t));
	return end > begin ? (LayoutRange){begin - t->offset, end - begin} : (LayoutRange){0, 0};
}

/* A unit of which every rank has a copy rests whole, even where one rank owns its states. */
static LayoutRange at_rest(const LayoutUnit *u, int flat, const LayoutRank *who)
{
	LayoutSplit split = layout_split(u->strategy, who);
	int64_t n = layout_shard_numel(u->flat[flat].numel, split.ranks);
	return (LayoutRange){split.index * n, n};
}

LayoutRange slice_of_rank(const RtModel *m, const RtTensor *t, bool of_state, const LayoutRank *who)
{
	if (t->kind != RT_PARAM)
		return (LayoutRange){0, tensor_numel(t)};
	if (of_state)
		return overlap(layout_range(&m->layout.unit[t->unit], t->flat, who), t);
	return overlap(at_rest(&m->layout.unit[t->unit], t->flat, who), t);
}

/* held_at: where element held.begin of the flat lies. */
static Slice slice(LayoutRange held, const RtTensor *t, void *held_at, DType dtype)
{
	LayoutRange part = overlap(held, t);
	if (!part.n)
		return (Slice){.dtype = dtype, .rounded = dtype};
	int64_t skip = t->offset + part.begin - held.begin;
	return (Slice){.first = part.begin, .n = part.n, .at = (char *)held_at + skip * dtype_info[dtype].bytes,
		.dtype = dtype, .rounded = dtype};
}

Slice slice_at_rest(const Rt *rt, const RtTensor *t)
{
	if (t->kind != RT_PARAM)
		return (Slice){.n = tensor_numel(t), .at = device_tensor(rt, t), .dtype = t->dtype, .rounded = t->dtype};
	LayoutRank who = device_rank(rt);
	const LayoutUnit *u = &rt->model->layout.unit[t->unit];
	const LayoutFlat *flat = &u->flat[t->flat];
	Slice s = slice(at_rest(u, t->flat, &who), t, rt->shard[t->unit][t->flat], flat->dtype);
	s.rounded = flat->master ? flat->bcast : flat->dtype;
	if (flat->master && rt->model->by_chance) {
		s.chance_of = rt;
		s.chance_id = chance_id(t);
	}
	return s;
}

Slice slice_state(const Rt *rt, const RtTensor *t, int k)
{
	LayoutRank who = device_rank(rt);
	LayoutRange held = layout_range(&rt->model->layout.unit[t->unit], t->flat, &who);
	return slice(held, t, rt->p->optim.state[k][t->unit][t->flat], DT_F32);
}

Slice slice_master(const Rt *rt, const RtTensor *t)
{
	LayoutRank who = device_rank(rt);
	if (t->kind != RT_PARAM || !t->trainable || !rt->model->layout.unit[t->unit].flat[t->flat].master)
		return (Slice){.dtype = DT_F32, .rounded = DT_F32};
	LayoutRange held = layout_range(&rt->model->layout.unit[t->unit], t->flat, &who);
	return slice(held, t, rt->p->optim.master[t->unit][t->flat], DT_F32);
}

static char *at_of(const Slice *s, int64_t element)
{
	return s->at + (element - s->first) * dtype_info[s->dtype].bytes;
}

void slice_convert(char *out, DType to, DType rounded, const char *in, DType from, int64_t n)
{
	int64_t out_size = dtype_info[to].bytes, in_size = dtype_info[from].bytes;
	if (to == from && rounded == to) {
		k_copy_wide(out, in, n * out_size);
		return;
	}
	for (int64_t i = 0; i < n; i++) {
		double x = number_get(in + i * in_size, from);
		number_put(out + i * out_size, to, rounded == to ? x : dtype_round(rounded, x));
	}
}

enum { PIECE = 1024 };

/* As slice_write, for at most PIECE elements. */
static void write_by_chance(const Slice *s, int64_t element, int64_t n, const char *in, int64_t stride, DType from)
{
	float wide[PIECE];
	uint16_t rounded[PIECE];
	for (int64_t i = 0; i < n; i++)
		wide[i] = (float)number_get(in + i * stride * dtype_info[from].bytes, from);
	k_cast_by_chance(rounded, (KDType)s->rounded, wide, n, chance_key(s->chance_of, s->chance_id), element,
		chance_step(s->chance_of));
	slice_convert(at_of(s, element), s->dtype, s->dtype, (const char *)rounded, s->rounded, n);
}

void slice_write(const Slice *s, int64_t element, int64_t n, const char *in, int64_t stride, DType from)
{
	int64_t most = s->chance_of ? PIECE : stride == 1 ? n : 1;
	for (int64_t at = 0, part; at < n; at += part) {
		const char *source = in + at * stride * dtype_info[from].bytes;
		part = MIN(most, n - at);
		if (s->chance_of)
			write_by_chance(s, element + at, part, source, stride, from);
		else
			slice_convert(at_of(s, element + at), s->dtype, s->rounded, source, from, part);
	}
}

void slice_put(const Slice *s, int64_t first, int64_t n, const char *in, DType from)
{
	int64_t begin = MAX(first, s->first), end = MIN(first + n, s->first + s->n);
	if (begin < end)
		slice_write(s, begin, end - begin, in + (begin - first) * dtype_info[from].bytes, 1, from);
}

bool slice_next(const Rt *rt, const Slice *s, Slice *piece, DeviceUse use)
{
	int64_t size = dtype_info[s->dtype].bytes;
	if (piece->n)
		device_close(rt, at_of(s, piece->first), piece->at, piece->n * size, use);
	piece->first += piece->n;
	piece->n = MIN(DEVICE_PIECE / size, s->first + s->n - piece->first);
	if (piece->n > 0)
		piece->at = device_open(rt, at_of(s, piece->first), piece->n * size, use);
	return piece->n > 0;
}

void slice_store(const Rt *rt, const Slice *s, int64_t first, int64_t n, const char *in, DType from)
{
	int64_t begin = MAX(first, s->first), end = MIN(first + n, s->first + s->n);
	if (begin >= end)
		return;
	Slice part = *s;
	part.first = begin;
	part.n = end - begin;
	part.at = at_of(s, begin);
	for (Slice piece = slice_begin(&part); slice_next(rt, &part, &piece, DEVICE_WRITE);)
		slice_put(&piece, first, n, in, from);
}
