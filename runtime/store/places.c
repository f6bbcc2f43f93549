/* runtime/store/places.c: finds out whether all ranks see rank 0's folder of --save, or hosts have folders of their
 * own.
 *
 * One path can name one folder on a file system that all hosts share, or a different folder on each host.  This is
 * tried before the first step: a rank puts a file with a random name into its folder, and the others look for it.  Rank
 * 0 does so first; only ranks that do not see its file then try their own.
 *
 * Of the ranks that see one folder the lowest leads: it makes the checkpoint's folder and completes it. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/file.h"
#include "runtime/store/private.h"

/* The file of a rank, named by a unique number.  error: errno of making it; -1: none was to be made. */
typedef struct Token { uint64_t number; int32_t error; int32_t of; } Token;

static const char *token_path(const char *dir, const Token *t, Arena *a)
{
	return arena_printf(a, "%s/.shardc-%016" PRIx64, dir, t->number);
}

bool places_is_token(const char *name)
{
	static const char begin[] = ".shardc-";
	const char *number = name + strlen(begin);
	return !strncmp(name, begin, strlen(begin)) && strspn(number, "0123456789abcdef") == 16 && !number[16];
}

static void make_token(const char *dir, Token *t, Arena *a)
{
	static const char some[64]; /* written, because on a full disk an empty file can still be made */
	int fd = -1;
	if (getrandom(&t->number, sizeof(t->number), 0) == sizeof(t->number))
		fd = open(token_path(dir, t, a), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
	bool made = fd >= 0;
	t->error = file_close(fd, made && file_put(fd, some, sizeof(some), 0)) ? 0 : errno;
	if (made && t->error)
		unlink(token_path(dir, t, a));
}

bool places_try(const char *dir, Arena *a)
{
	Token t = {0};
	make_token(dir, &t, a);
	if (!t.error)
		unlink(token_path(dir, &t, a));
	errno = t.error;
	return !t.error;
}

static bool sees(const char *dir, const Token *t, Arena *a)
{
	return !t->error && !access(token_path(dir, t, a), F_OK);
}

/* What this rank and all ranks have found out about the folder `dir`. of: the lowest rank whose file a rank sees; -1:
 * not found yet. */
typedef struct Looking { const char *dir; int ranks; Token mine, *all; Arena *a; } Looking;

/* The lowest rank with a token whose file this rank sees; -1: there is none. */
static int lowest_seen(const Looking *l)
{
	for (int r = 0; r < l->ranks; r++)
		if (sees(l->dir, &l->all[r], l->a))
			return r;
	return -1;
}

/* Exchanges the tokens of the ranks that make one; if a rank's `of` is not set, it becomes the lowest rank whose file
 * it sees. */
static void look(Looking *l, Comm *comm, bool makes)
{
	Token tried = {.error = -1}, *mine = &l->mine;
	if (makes)
		make_token(l->dir, &tried, l->a);
	comm_all(comm, &tried, sizeof(tried), l->all);
	if (mine->of < 0)
		mine->of = lowest_seen(l);
	comm_barrier(comm);
	if (!tried.error)
		unlink(token_path(l->dir, &tried, l->a));
	mine->number = makes ? tried.number : mine->number;
	mine->error = makes ? tried.error : mine->error;
	comm_all(comm, mine, sizeof(*mine), l->all);
}

/* After look: sets which rank leads each; returns how many lead. */
static int count_places(SavePlaces *p, const Looking *l)
{
	int n = 0;
	for (int r = 0; r < l->ranks; r++) {
		p->lead[r] = l->all[r].of;
		n += l->all[r].of == r;
	}
	return n;
}

static bool any_without(const Looking *l)
{
	for (int r = 0; r < l->ranks; r++)
		if (l->all[r].of < 0)
			return true;
	return false;
}

/* Makes the folders of ranks that have none yet; a rank that cannot reports it. */
static bool make_folders(const Rt *rt, const Looking *l, bool makes, Diag *d)
{
	Held held;
	Diag *later = agree_begin(&held, d);
	bool ok = !makes || save_make_dir(l->a, l->dir);
	if (!ok)
		diag_error(later, l->dir, "host %s does not see rank 0's folder, and cannot make one: %s", agree_host(),
			strerror(errno));
	return agree_end(rt, &held, ok, d);
}

/* Fails if a rank could not make its file, because then nothing follows from the others not seeing it. */
static bool check_made(const Rt *rt, const Looking *l, Diag *d)
{
	Held held;
	bool ok = l->mine.error <= 0;
	Diag *later = agree_begin(&held, d);
	if (!ok)
		diag_error(later, l->dir, "a file cannot be made in this folder on host %s: %s", agree_host(),
			strerror(l->mine.error));
	return agree_end(rt, &held, ok, d);
}

/* Called by rank 0. */
static void note_places(const SavePlaces *p, const char *dir, int ranks, Diag *d)
{
	int away = 0, first = -1;
	for (int r = 0; r < ranks; r++)
		if (p->lead[r] != 0) {
			first = first < 0 ? r : first;
			away++;
		}
	if (p->gathers)
		diag_note(d, dir, "%d of %d ranks (rank %d is the first) do not see this folder: rank 0 gathers what they hold "
			"and writes it here", away, ranks, first);
	else
		diag_note(d, dir, "%d of %d ranks (rank %d is the first) do not see this folder: ranks save into %d folders, "
			"each into its host's; shardc ckpt merge DIR.. -o OUT puts them "
			"together", away, ranks, first, p->n);
}

bool places_find(SavePlaces *p, const Rt *rt, Arena *a, Diag *d)
{
	const World *w = &rt->p->world;
	*p = (SavePlaces){.n = 1};
	if (w->size < 2)
		return true;
	Looking l = {rt->p->options->save, w->size, {.of = -1, .error = -1}, NEW_N(a, Token, w->size), a};
	look(&l, rt->p->comm, w->rank == 0);
	p->run = l.all[0].number;
	if (!check_made(rt, &l, d))
		return false;
	if (!any_without(&l))
		return true;
	p->lead = NEW_N(a, int, w->size);
	p->gathers = rt->p->options->save_kind == CHECKPOINT_FULL;
	if (!p->gathers) {
		bool makes = l.mine.of < 0;
		if (!make_folders(rt, &l, makes, d))
			return false;
		look(&l, rt->p->comm, makes);
	}
	p->n = count_places(p, &l);
	if (!p->gathers && !check_made(rt, &l, d))
		return false;
	if (w->rank == 0)
		note_places(p, l.dir, w->size, d);
	return true;
}

bool places_are_several(const SavePlaces *p)
{
	return p && p->n > 1;
}

bool places_gather(const SavePlaces *p)
{
	return p && p->gathers;
}

bool places_leads(const SavePlaces *p, const World *w)
{
	return p && p->lead && !p->gathers ? p->lead[w->rank] == w->rank : w->rank == 0;
}
