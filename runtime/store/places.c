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

static const char *token_path(const Rt *rt, const Token *t, Arena *a)
{
	return arena_printf(a, "%s/.shardc-%016" PRIx64, rt->p->options->save, t->number);
}

bool places_is_token(const char *name)
{
	static const char begin[] = ".shardc-";
	const char *number = name + strlen(begin);
	return !strncmp(name, begin, strlen(begin)) && strspn(number, "0123456789abcdef") == 16 && !number[16];
}

static void make_token(const Rt *rt, Token *t, Arena *a)
{
	static const char some[64]; /* written, because on a full disk an empty file can still be made */
	int fd = -1;
	if (getrandom(&t->number, sizeof(t->number), 0) == sizeof(t->number))
		fd = open(token_path(rt, t, a), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
	bool made = fd >= 0;
	t->error = file_close(fd, made && file_put(fd, some, sizeof(some), 0)) ? 0 : errno;
	if (made && t->error)
		unlink(token_path(rt, t, a));
}

bool places_try(const Rt *rt, Arena *a)
{
	Token t = {0};
	make_token(rt, &t, a);
	if (!t.error)
		unlink(token_path(rt, &t, a));
	errno = t.error;
	return !t.error;
}

static bool sees(const Rt *rt, const Token *t, Arena *a)
{
	return !t->error && !access(token_path(rt, t, a), F_OK);
}

/* The lowest rank with a token whose file this rank sees; -1: there is none. */
static int lowest_seen(const Rt *rt, const Token *all, Arena *a)
{
	for (int r = 0; r < rt->p->world.size; r++)
		if (sees(rt, &all[r], a))
			return r;
	return -1;
}

/* Exchanges the tokens of the ranks that make one; if a rank's `of` is not set, it becomes the lowest rank whose file
 * it sees. */
static void look(const Rt *rt, bool makes, Token *mine, Token *all, Arena *a)
{
	Token tried = {.error = -1};
	if (makes)
		make_token(rt, &tried, a);
	comm_all(rt->p->comm, &tried, sizeof(tried), all);
	if (mine->of < 0)
		mine->of = lowest_seen(rt, all, a);
	comm_barrier(rt->p->comm);
	if (!tried.error)
		unlink(token_path(rt, &tried, a));
	mine->number = makes ? tried.number : mine->number;
	mine->error = makes ? tried.error : mine->error;
	comm_all(rt->p->comm, mine, sizeof(*mine), all);
}

/* After look: sets which rank leads each; returns how many lead. */
static int count_places(SavePlaces *p, const Token *all, int ranks)
{
	int n = 0;
	for (int r = 0; r < ranks; r++) {
		p->lead[r] = all[r].of;
		n += all[r].of == r;
	}
	return n;
}

static bool any_without(const Token *all, int ranks)
{
	for (int r = 0; r < ranks; r++)
		if (all[r].of < 0)
			return true;
	return false;
}

/* Makes the folders of ranks that have none yet; a rank that cannot reports it. */
static bool make_folders(const Rt *rt, bool makes, Arena *a, Diag *d)
{
	Held held;
	const char *dir = rt->p->options->save;
	Diag *later = agree_begin(&held, d);
	bool ok = !makes || save_make_dir(a, dir);
	if (!ok)
		diag_error(later, dir, "host %s does not see rank 0's folder, and cannot make one: %s", agree_host(),
			strerror(errno));
	return agree_end(rt, &held, ok, d);
}

/* Fails if a rank could not make its file, because then nothing follows from the others not seeing it. */
static bool check_made(const Rt *rt, const Token *mine, Diag *d)
{
	Held held;
	bool ok = mine->error <= 0;
	Diag *later = agree_begin(&held, d);
	if (!ok)
		diag_error(later, rt->p->options->save, "a file cannot be made in this folder on host %s: %s", agree_host(),
			strerror(mine->error));
	return agree_end(rt, &held, ok, d);
}

static void note_places(const Rt *rt, const SavePlaces *p, Diag *d)
{
	const char *dir = rt->p->options->save;
	int away = 0, first = -1;
	for (int r = 0; r < rt->p->world.size; r++)
		if (p->lead[r] != 0) {
			first = first < 0 ? r : first;
			away++;
		}
	if (rt->p->world.rank == 0 && p->gathers)
		diag_note(d, dir, "%d of %d ranks (rank %d is the first) do not see this folder: rank 0 gathers what they hold "
			"and writes it here", away, rt->p->world.size, first);
	else if (rt->p->world.rank == 0)
		diag_note(d, dir, "%d of %d ranks (rank %d is the first) do not see this folder: ranks save into %d folders, "
			"each into its host's; shardc ckpt merge DIR.. -o OUT puts them "
			"together", away, rt->p->world.size, first, p->n);
}

bool places_find(SavePlaces *p, const Rt *rt, Arena *a, Diag *d)
{
	const World *w = &rt->p->world;
	*p = (SavePlaces){.n = 1};
	if (w->size < 2)
		return true;
	Token mine = {.of = -1, .error = -1}, *all = NEW_N(a, Token, w->size);
	look(rt, w->rank == 0, &mine, all, a);
	p->run = all[0].number;
	if (!check_made(rt, &mine, d))
		return false;
	if (!any_without(all, w->size))
		return true;
	p->lead = NEW_N(a, int, w->size);
	p->gathers = rt->p->options->save_kind == CHECKPOINT_FULL;
	if (!p->gathers) {
		bool makes = mine.of < 0;
		if (!make_folders(rt, makes, a, d))
			return false;
		look(rt, makes, &mine, all, a);
	}
	p->n = count_places(p, all, w->size);
	if (!p->gathers && !check_made(rt, &mine, d))
		return false;
	note_places(rt, p, d);
	return true;
}

const SavePlaces *places_of(const Rt *rt)
{
	static const SavePlaces one;
	return rt->p->places ? rt->p->places : &one;
}

bool places_leads(const Rt *rt)
{
	const SavePlaces *p = places_of(rt);
	int rank = rt->p->world.rank;
	return p->lead && !p->gathers ? p->lead[rank] == rank : rank == 0;
}
