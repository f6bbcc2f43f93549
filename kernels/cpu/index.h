/* kernels/cpu/index.h: scatters into numbers of type T; index.c includes it once per dtype. */
INLINE void CONCAT(put, SUFFIX)(T *at, T v, KScatter mode)
{
	switch (mode) {
	case K_SCATTER_NONE: *at = v; break;
	case K_SCATTER_ADD: *at = (T)(*at + v); break;
	case K_SCATTER_MUL: *at = (T)(*at * v); break;
	case K_SCATTER_MAX: *at = v > *at || is_nan(v) ? v : *at; break;
	case K_SCATTER_MIN: *at = v < *at || is_nan(v) ? v : *at; break;
	}
}

void CONCAT(k_scatter_elements, SUFFIX)(T *y, const T *x, const void *ids, const T *updates, int rank,
	const int64_t *dim, const int64_t *xdim, int axis, KScatter mode, int id_size)
{
	int64_t ys[K_MAX_RANK], at[K_MAX_RANK] = {0}, n = numel(rank, dim);
	strides_of(rank, xdim, ys);
	if (y != x)
		k_copy(y, x, numel(rank, xdim) * (int64_t)sizeof(T));
	for (int64_t i = 0, o = 0; i < n; i++) {
		int64_t id = load_index(ids, i, id_size, xdim[axis]);
		CONCAT(put, SUFFIX)(y + o + (id - at[axis]) * ys[axis], updates[i], mode);
		o = advance(rank, dim, ys, at, o);
	}
}

void CONCAT(k_scatter_nd, SUFFIX)(T *y, const T *x, const void *ids, const T *updates, int64_t n, int depth,
	const int64_t *xdim, int64_t inner, KScatter mode, int id_size)
{
	if (y != x)
		k_copy(y, x, numel(depth, xdim) * inner * (int64_t)sizeof(T));
	for (int64_t i = 0; i < n; i++) {
		int64_t at = 0;
		for (int d = 0; d < depth; d++)
			at = at * xdim[d] + load_index(ids, i * depth + d, id_size, xdim[d]);
		for (int64_t j = 0; j < inner; j++)
			CONCAT(put, SUFFIX)(y + at * inner + j, updates[i * inner + j], mode);
	}
}
#undef T
#undef SUFFIX
