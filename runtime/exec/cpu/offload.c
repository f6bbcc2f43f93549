/* runtime/exec/cpu/offload.c: --offload: keeps a part of a program's memory in a file.
 *
 * Of each unit optimizer states and masters (LayoutUnit.offload), or also parameters at rest and the gradients that the
 * update reads, lie in one file of this rank, mapped with MAP_SHARED, so the system writes pages back and drops them
 * when memory is short.  The file has no name, so it is gone when its last process ends.  Its disk space is allocated
 * at the start, so that the disk cannot fill up later.  Refuses folders whose files are in memory.
 *
 * Kernels read and write the map like memory; advice to the system only affects speed.  What the next unit needs is
 * read ahead; where memory turns out to be short, what an update has changed is written at once, so that pages are
 * clean when the system needs to drop some. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "runtime/exec/private.h"

static const char *folder(const Rt *rt)
{
	const char *given = rt->p->options->offload_dir, *usual = getenv("TMPDIR");
	return given ? given : usual && *usual ? usual : "/tmp";
}

/* ---- the file ---- */

/* Whether the file system is in memory: tmpfs, ramfs, hugetlbfs. */
static bool is_memory(const struct statfs *fs)
{
	static const uint32_t types[] = {0x01021994, 0x858458f6, 0x958458f6};
	for (int i = 0; i < COUNT_OF(types); i++)
		if ((uint32_t)fs->f_type == types[i])
			return true;
	return false;
}

static int unnamed_file(const Rt *rt, const char *dir)
{
	int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
		return fd;
	char *path = arena_printf(rt->p->arena, "%s/shardc.XXXXXX", dir);
	fd = mkostemp(path, O_CLOEXEC);
	if (fd >= 0)
		unlink(path);
	return fd;
}

static bool refuse(const Rt *rt, const char *dir, const char *why, Diag *d)
{
	diag_error(d, dir, "%" PRId64 " bytes of --offload cannot lie in this folder: %s; another one is given by "
		"--offload-dir DIR", rt->p->memory.file_bytes, why);
	return false;
}

bool offload_make(Rt *rt, Diag *d)
{
	DeviceMemory *mem = &rt->p->memory;
	const char *dir = folder(rt);
	struct statfs fs;
	mem->file = -1;
	if (!mem->file_bytes)
		return true;
	if (statfs(dir, &fs))
		return refuse(rt, dir, strerror(errno), d);
	if (is_memory(&fs))
		return refuse(rt, dir, "its files are memory", d);
	mem->file = unnamed_file(rt, dir);
	int error = mem->file < 0 ? errno : posix_fallocate(mem->file, 0, mem->file_bytes);
	return error ? refuse(rt, dir, strerror(error), d) : true;
}

void offload_close(Rt *rt)
{
	if (rt->p->memory.file_bytes && rt->p->memory.file >= 0)
		close(rt->p->memory.file);
	rt->p->memory.file = -1;
}

/* ---- advice ---- */

typedef struct Extent { char *at; int64_t bytes; ArenaKind arena; } Extent;
enum { EXTENTS = 5 };

/* Where a flat's parameters at rest lie in the file; for an update, also its gradient, states and master. */
static int extents(const Rt *rt, int unit, int f, bool update, Extent out[EXTENTS])
{
	const LayoutUnit *u = &rt->model->layout.unit[unit];
	const Optimizer *opt = &rt->p->optim;
	LayoutRank who = device_rank(rt);
	int64_t at_rest = layout_shard_numel(u->flat[f].numel, layout_split(u->strategy, &who).ranks);
	int64_t mine = u->flat[f].trainable && update ? layout_range(u, f, &who).n : 0;
	DType grad = layout_update_dtype(u, f, &who);
	int n = 0;
	if (layout_params_away(u))
		out[n++] = (Extent){rt->shard[unit][f], at_rest * dtype_info[u->flat[f].dtype].bytes, ARENA_AWAY_PARAMS};
	if (layout_grads_away(u, false) && mine)
		out[n++] = (Extent){rt->grad_shard[unit][f], mine * dtype_info[grad].bytes, ARENA_AWAY_GRADS};
	for (int k = 0; k < opt->n_states && layout_states_away(u) && mine; k++)
		out[n++] = (Extent){opt->state[k][unit][f], mine * (int64_t)sizeof(float), ARENA_AWAY_STATES};
	if (u->flat[f].master && layout_states_away(u) && mine)
		out[n++] = (Extent){opt->master[unit][f], mine * (int64_t)sizeof(float), ARENA_AWAY_STATES};
	return n;
}

/* A sample of pages, MEBIBYTE apart: how many there are, and how many have left memory. */
typedef struct Probe { int64_t n, gone; } Probe;
enum { MEBIBYTE = 1 << 20 };

static void *page_of(const char *at)
{
	return (void *)((uintptr_t)at & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1));
}

static void probe(const Extent *e, Probe *p)
{
	unsigned char here;
	for (int64_t i = 0; i < e->bytes; i += MEBIBYTE) {
		p->n++;
		p->gone += !mincore(page_of(e->at + i), 1, &here) && !(here & 1);
	}
}

static void read_ahead(const Extent *e)
{
	char *begin = page_of(e->at);
	madvise(begin, (size_t)(e->at + e->bytes - begin), MADV_WILLNEED);
}

static void write_behind(const DeviceMemory *mem, const Extent *e)
{
	int64_t at = mem->file_at[e->arena] + (e->at - mem->base[e->arena]);
	sync_file_range(mem->file, at, e->bytes, SYNC_FILE_RANGE_WRITE);
}

/* The extents of one unit that are in the file; returns how many there are. */
static int in_file(const Rt *rt, int unit, bool update, Extent *out)
{
	const LayoutModel *l = &rt->model->layout;
	int n = 0;
	for (int f = 0; rt->p->memory.file_bytes && unit < l->n_units && f < l->unit[unit].n_flats; f++)
		n += extents(rt, unit, f, update, out + n);
	return n;
}

static Probe want(const Rt *rt, int unit, bool update)
{
	Extent e[EXTENTS * LAYOUT_MAX_FLATS];
	Probe p = {0};
	int n = in_file(rt, unit, update, e);
	for (int i = 0; i < n; i++) {
		probe(&e[i], &p);
		read_ahead(&e[i]);
	}
	return p;
}

void offload_before_gather(const Rt *rt, int unit)
{
	want(rt, unit, false);
}

/* If pages have left memory since they were used, memory is short. */
void offload_before_update(Rt *rt, int unit)
{
	if (unit == 0)
		want(rt, unit, true);
	Probe next = want(rt, unit + 1, true);
	if (next.n)
		rt->p->memory.file_behind = next.gone * 8 > next.n;
}

void offload_after_update(const Rt *rt, int unit)
{
	Extent e[EXTENTS * LAYOUT_MAX_FLATS];
	int n = rt->p->memory.file_behind ? in_file(rt, unit, true, e) : 0;
	for (int i = 0; i < n; i++)
		write_behind(&rt->p->memory, &e[i]);
}
