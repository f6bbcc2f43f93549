/* runtime/exec/cuda/tune.c: the program's setup, and --tune FILE: which algorithms products take, measured once and
 * kept in a file.
 *
 * Rank 0 takes what the file says, measures what it lacks while its products are created, and writes the file; the
 * other ranks then take the same choices.  So all ranks, and all later runs, compute the same bits. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/unfinished.h"
#include "kernels/cuda/cuda.h"
#include "runtime/exec/cuda/cuda.h"

static void put_text(FILE *f, const void *text)
{
	fputs(text, f);
}

/* Waits until no other program writes the file, which is made if there is none, and locks it; -1 after a message.  A
 * write puts another file in the place of the one that was locked: who has waited for that one opens the new one. */
static int lock_file(const char *path, Diag *d)
{
	for (;;) {
		struct stat locked, there;
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666), failed = 0;
		/* A file that may only be read can be locked, too, but not on NFS. */
		if (fd < 0 && errno == EACCES && (fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
			errno = EACCES; /* of a file that is not there, too: it is the folder's */
		if (fd < 0) {
			diag_unwritten(d, path);
			return -1;
		}
		while ((failed = flock(fd, LOCK_EX)) && errno == EINTR) {}
		if (failed)
			diag_note(d, path, "cannot be locked (%s): results of other programs that write it now may be lost",
				strerror(errno));
		bool same = !fstat(fd, &locked) && !stat(path, &there) && locked.st_ino == there.st_ino &&
			locked.st_dev == there.st_dev;
		if (failed || same)
			return fd;
		close(fd);
	}
}

/* What the file says, with ends of lines as on Unix; NULL after a message. */
static char *read_file(Rt *rt, const char *path, Diag *d)
{
	enum { MOST = 4 << 20 }; /* bytes: every rank is told all of it */
	char *text = diag_read_file(d, path, rt->p->arena), *to = text;
	for (const char *from = text; from && *from; from++)
		if (from[0] != '\r' || from[1] != '\n')
			*to++ = *from;
	if (to)
		*to = '\0';
	if (!text || to - text <= MOST)
		return text;
	diag_error(d, path, "%zu bytes; a file of --tune has at most %d", strlen(text), MOST);
	return NULL;
}

/* As read_file.  A file that is not there is made, so that a folder that cannot be written is known before anything is
 * measured. */
static char *read_known(Rt *rt, const char *path, Diag *d)
{
	if (access(path, F_OK) && errno == ENOENT) {
		int fd = lock_file(path, d);
		if (fd < 0)
			return NULL;
		close(fd);
	}
	return read_file(rt, path, d);
}

static void say_other(const char *path, const char *text, Diag *d)
{
	diag_error(d, path, "this was measured on another GPU or with another cuBLAS, \"%.*s\"; remove it, and this "
		"run measures anew", (int)strcspn(text, "\n"), text);
}

/* Writes what this run has measured beside what other programs have written since the file was `known`.  What they
 * have written stays, and later runs take it, so that those compute the same bits; this run keeps what it has measured
 * itself, as its products are made.  A link stays one: other programs lock and read the file that it names. */
static bool save(Rt *rt, const char *path, const char *own, const char *known, Diag *d)
{
	int fd = lock_file(path, d);
	char *now = fd >= 0 ? read_file(rt, path, d) : NULL, *text = now ? k_tune_merge(own, known, now) : NULL;
	if (now && !text)
		say_other(path, now, d);
	char *file = text ? realpath(path, NULL) : NULL;
	bool ok = text && (!strcmp(text, now) || unfinished_write(file ? file : path, put_text, text, d));
	free(file);
	free(text);
	if (fd >= 0)
		close(fd);
	return ok;
}

/* A product is about to be measured: the watchdog sees that rank 0 gets on, for which the others wait. */
static void get_on(void *context)
{
	const Rt *rt = context;
	if (rt->p->control)
		atomic_fetch_add(&control_progress(rt->p->control)->done[RT_STREAM_SYNC], 1);
}

/* Sets up what rank 0 computes with; returns the lines of its products, NULL after a message. */
static char *tune_first(Rt *rt, const char *path, Diag *d)
{
	KTuned counts;
	char *known = read_known(rt, path, d);
	if (!known)
		return NULL;
	if (!k_tune_begin(known, get_on, rt)) {
		say_other(path, known, d);
		return NULL;
	}
	rt->model->setup(rt);
	char *text = k_tune_end(&counts);
	if (counts.not_understood)
		diag_note(d, path, "lines that are not understood, and count for nothing: %d; whoever measures products leaves "
			"them out", counts.not_understood);
	if (counts.unmeasured)
		diag_note(d, path, "%d products take what cuBLAS proposes first: there is no memory to measure them beside the "
			"plan's; the file keeps that, too", counts.unmeasured);
	if (counts.measured)
		diag_note(d, path, "%d products were measured, %d were known", counts.measured, counts.known);
	if (counts.measured + counts.unmeasured > 0 && !save(rt, path, text, known, d)) {
		free(text);
		return NULL;
	}
	return text;
}

/* Gives every rank rank 0's text, which the arena then owns; NULL when a rank is gone. */
static const char *share(const Rt *rt, const char *text)
{
	enum { PIECE = 16 << 10 };
	struct RtPrivate *p = rt->p;
	int64_t n = text ? (int64_t)strlen(text) + 1 : 0, *all_n = NEW_N(p->arena, int64_t, p->world.size);
	if (!control_all_gather(p->control, &n, sizeof(n), all_n))
		return NULL;
	char *got = arena_alloc(p->arena, (size_t)all_n[0]), *all = arena_alloc(p->arena, (size_t)(PIECE * p->world.size));
	for (int64_t at = 0; at < all_n[0]; at += PIECE) {
		char mine[PIECE] = "";
		int64_t some = MIN((int64_t)PIECE, all_n[0] - at);
		if (text)
			memcpy(mine, text + at, (size_t)some);
		if (!control_all_gather(p->control, mine, some, all))
			return NULL;
		memcpy(got + at, all, (size_t)some);
	}
	return got;
}

static void tune_other(Rt *rt, const char *text, Diag *d)
{
	KTuned counts = {0};
	bool same = k_tune_begin(text, NULL, NULL);
	if (!same)
		diag_warn(d, rt->p->options->tune, "rank %d has another GPU or cuBLAS than rank 0: its products are not tuned",
			rt->p->world.rank);
	rt->model->setup(rt);
	if (same)
		free(k_tune_end(&counts));
	if (counts.unmeasured)
		diag_warn(d, rt->p->options->tune, "%d products of rank %d are others than rank 0's, and are not tuned",
			counts.unmeasured, rt->p->world.rank);
}

/* Says which kernels compute what is left to cuDNN: with --print-plan, and where it does not take it.  impl: what their
 * names have. */
static void say_library(const Rt *rt, const char *impl, const char *what, Diag *d)
{
	int all = 0, refused = 0;
	for (int i = 0; rt->p->world.rank == 0 && i < rt->model->n_prims; i++) {
		const char *is = k_prim_impl(rt->prim[i]);
		if (!strstr(is, impl))
			continue;
		all++;
		refused += !strncmp(is, "own:", 4);
		if (rt->p->options->print_plan && all == 1)
			printf("\nkernels of %s\n\n", what);
		if (rt->p->options->print_plan)
			printf("  %s\n", is);
	}
	if (refused)
		diag_note(d, rt->p->options->program, "cuDNN %zu does not take %d of the %d %s and their gradients that were "
			"left to it: our own kernels compute them", k_dnn_version(), refused, all, what);
}

/* Says of how many products with an epilogue the library has no algorithm. */
static void say_epilogues(const Rt *rt, Diag *d)
{
	int all = 0, apart = 0;
	for (int i = 0; rt->p->world.rank == 0 && i < rt->model->n_prims; i++) {
		const char *impl = k_prim_impl(rt->prim[i]);
		bool is_apart = !strncmp(impl, "apart:", 6);
		all += is_apart || strstr(impl, ", epilogue");
		apart += is_apart;
	}
	if (apart)
		diag_note(d, rt->p->options->program, "cuBLAS has no algorithm for %d of %d products with GELU or sums for "
			"biases: kernels behind them compute these, which takes longer", apart, all);
}

static bool set_up(Rt *rt, Diag *d)
{
	const char *path = rt->p->options->tune;
	const World *w = &rt->p->world;
	Held held;
	if (!path) {
		rt->model->setup(rt);
		return true;
	}
	Diag *mine = agree_begin(&held, d);
	char *text = w->rank == 0 ? tune_first(rt, path, mine) : NULL;
	bool ok = agree_end(rt, &held, w->rank > 0 || text, d);
	const char *all = ok && w->size > 1 ? share(rt, text) : text;
	if (ok && all && w->rank > 0)
		tune_other(rt, all, d);
	free(text);
	return ok && all;
}

bool device_setup(Rt *rt, Diag *d)
{
	bool ok = set_up(rt, d);
	if (ok) {
		say_library(rt, ":attention", "attentions", d);
		say_library(rt, ":conv", "convolutions", d);
		say_epilogues(rt, d);
	}
	return ok;
}
