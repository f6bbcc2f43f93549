/* predict/machine.c: reads and checks machine files. */
#include "predict/machine.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/near.h"

typedef enum On { ON_ANY, ON_CPU, ON_CUDA } On;
typedef struct NumberInfo {
	const char *key;
	On on;
	bool whole;
	double least, most, unsaid;
	const char *unit, *doc;
} NumberInfo;
static const NumberInfo info[MACHINE_NUMBERS] = {
#define MACHINE(id, key, on, whole, least, most, unsaid, unit, doc) \
	{key, ON_##on, whole, least, most, unsaid, unit, doc},
#include "predict/machine.def"
};

int64_t machine_world(const Machine *m)
{
	return (int64_t)(m->of[MACHINE_HOSTS] * m->of[MACHINE_RANKS]);
}

const char *machine_key(MachineLayout l, bool tf32, const char *op, Arena *a)
{
	return arena_printf(a, "%dx%d %s%s", l.ranks, l.threads, tf32 ? "tf32 " : "", op);
}

/* ---- reading ---- */

enum { RANKS_MOST = 10000, THREADS_MOST = 100000 }; /* of a host, of a rank */
static const double seconds_least = 1e-12, seconds_most = 1e6, work_most = 1e24;

typedef struct Reader {
	Machine *m;
	Map *from; /* member -> the file that it is taken from, if not the machine's own */
	VEC(const char *) chain; /* names of files, each like the next */
	Arena *a;
	Diag *d;
} Reader;

static const char *at_member(const Reader *r, const char *at, const char *key)
{
	return arena_printf(r->a, "%s%s%s", at, strstr(at, ": $.") ? "." : ": $.", str_escape(r->a, ESCAPE_JSON, key));
}

/* A member of the machine, in the file that has it. */
static const char *at_number(const Reader *r, const char *key)
{
	const char *other = map_get(r->from, key);
	return at_member(r, other ? other : r->m->file, key);
}

/* The number of "KEY": [value, "source"], within the row's range; false after a message. */
static bool read_number(Reader *r, const json_t *v, MachineNumber n)
{
	const NumberInfo *row = &info[n];
	const char *at = at_number(r, row->key);
	const json_t *value = json_array_get(v, 0), *source = json_array_get(v, 1);
	if (!json_is_array(v) || json_array_size(v) != 2 || !json_is_number(value) || !json_is_string(source)) {
		diag_error(r->d, at, "expected [number, \"source\"]: %s, %s", row->unit, row->doc);
		return false;
	}
	double x = json_number_value(value);
	if (!(x >= row->least && x <= row->most)) {
		diag_error(r->d, at, "%.6g is not between %g and %g (%s, %s)", x, row->least, row->most, row->unit, row->doc);
		return false;
	}
	if (row->whole && x != floor(x)) {
		diag_error(r->d, at, "%.6g is no whole number (%s, %s)", x, row->unit, row->doc);
		return false;
	}
	if (!*json_string_value(source)) {
		diag_error(r->d, at, "the source is empty; say where %.6g comes from", x);
		return false;
	}
	r->m->of[n] = x;
	r->m->source[n] = arena_strdup(r->a, json_string_value(source));
	return true;
}

static const char *read_text(Reader *r, const char *at, const json_t *v, const char *what)
{
	const char *text = json_string_value(v);
	if (!text || !*text)
		diag_error(r->d, at, "expected %s", what);
	return text && *text ? arena_strdup(r->a, text) : NULL;
}

/* A number of a measured row, which has no source of its own. */
static bool read_plain(Reader *r, const char *at, const json_t *row, const char *key, double least, double most,
	double *out)
{
	const json_t *v = json_object_get(row, key);
	*out = json_is_number(v) ? json_number_value(v) : NAN;
	if (*out >= least && *out <= most)
		return true;
	diag_error(r->d, at_member(r, at, key), "%s number from %g to %g", v ? "expected a" : "is missing: a", least, most);
	return false;
}

/* Whether the row is an object of these members alone. */
static bool check_members(Reader *r, const char *at, json_t *row, int n, const char *const *known)
{
	const char *key;
	json_t *v;
	bool ok = json_is_object(row);
	if (!ok)
		diag_error(r->d, at, "expected an object");
	json_object_foreach(row, key, v) {
		int i = 0;
		while (i < n && strcmp(known[i], key))
			i++;
		if (i == n)
			diag_error(r->d, at_member(r, at, key), "unknown member");
		ok = ok && i < n;
	}
	return ok;
}

static bool read_layout(Reader *r, const char *at, const json_t *v, MachineLayout *out)
{
	const char *text = v && json_is_string(v) ? json_string_value(v) : "";
	char *x = NULL, *end = NULL;
	long ranks = isdigit((unsigned char)*text) ? strtol(text, &x, 10) : 0;
	long threads = x && *x == 'x' && isdigit((unsigned char)x[1]) ? strtol(x + 1, &end, 10) : 0;
	*out = (MachineLayout){(int)MIN(ranks, RANKS_MOST), (int)MIN(threads, THREADS_MOST)};
	if (end && !*end && ranks == out->ranks && threads == out->threads && ranks > 0 && threads > 0)
		return true;
	diag_error(r->d, at, "expected \"RxT\": R ranks of T threads each on a host, as \"2x1\", at most \"%dx%d\"",
		RANKS_MOST, THREADS_MOST);
	return false;
}

/* Whether the row says that its products round to TF32. */
static bool read_tf32(Reader *r, const char *at, const json_t *row, bool *out)
{
	const json_t *v = json_object_get(row, "tf32");
	*out = json_is_true(v);
	if (v && !json_is_boolean(v))
		diag_error(r->d, at_member(r, at, "tf32"), "expected true or false");
	else if (*out && !r->m->cuda)
		diag_error(r->d, at_member(r, at, "tf32"), "products of CPUs do not round to TF32; leave it out");
	return !v || (json_is_boolean(v) && (r->m->cuda || !*out));
}

static bool read_kernel(Reader *r, const char *at, json_t *row, MachineKernel *k)
{
	static const char *const known[] = {"op", "layout", "tf32", "seconds", "flops", "bytes", "special"};
	bool ok = check_members(r, at, row, COUNT_OF(known), known);
	if (!json_is_object(row))
		return false;
	k->op = read_text(r, at_member(r, at, "op"), json_object_get(row, "op"), "an op's signature");
	k->kind = k->op ? arena_printf(r->a, "%.*s", (int)strcspn(k->op, " "), k->op) : NULL;
	ok = read_layout(r, at_member(r, at, "layout"), json_object_get(row, "layout"), &k->layout) && ok;
	ok = read_tf32(r, at, row, &k->tf32) && ok;
	ok = read_plain(r, at, row, "seconds", seconds_least, seconds_most, &k->seconds) && ok;
	ok = read_plain(r, at, row, "flops", 0, work_most, &k->flops) && ok;
	ok = read_plain(r, at, row, "bytes", 0, work_most, &k->bytes) && ok;
	return read_plain(r, at, row, "special", 0, work_most, &k->special) && k->op && ok;
}

static bool read_whole(Reader *r, const char *at, const json_t *row, const char *key, double least, double most,
	int *out)
{
	double x = 0;
	bool ok = read_plain(r, at, row, key, least, most, &x);
	*out = ok ? (int)x : 0;
	if (ok && x != floor(x))
		diag_error(r->d, at_member(r, at, key), "%.6g is no whole number", x);
	return ok && x == floor(x);
}

/* How the ranks of a row talked: one of several ranks, which the machine's device has. */
static bool read_comm(Reader *r, const char *at, const json_t *v, Communicator *out)
{
	bool cuda = r->m->cuda;
	*out = v ? comm_named(json_string_value(v)) : machine_comm(cuda);
	bool ok = *out != COMM_UNSAID && *out != COMM_SELF && (cuda || !comm_info[*out].cuda);
	if (!ok)
		diag_error(r->d, at_member(r, at, "comm"), "expected how ranks talked: \"shm\"%s",
			cuda ? ", \"mpi\" or \"nccl\"" : " or \"mpi\"");
	return ok;
}

static bool read_collective(Reader *r, const char *at, json_t *row, MachineCollective *c)
{
	static const char *const known[] = {"kind", "comm", "ranks", "bytes", "seconds"};
	bool ok = check_members(r, at, row, COUNT_OF(known), known);
	if (!json_is_object(row))
		return false;
	const char *kind = json_string_value(json_object_get(row, "kind"));
	int k = 0;
	while (kind && k < RT_COLLECTIVE_KINDS && strcmp(collective_info[k].text, kind))
		k++;
	c->kind = (RtCollectiveKind)k;
	if (!kind || k == RT_COLLECTIVE_KINDS)
		diag_error(r->d, at_member(r, at, "kind"), "expected the name of a collective, as \"all_gather\"");
	ok = kind && k < RT_COLLECTIVE_KINDS && ok;
	ok = read_comm(r, at, json_object_get(row, "comm"), &c->comm) && ok;
	ok = read_whole(r, at, row, "ranks", 2, RANKS_MOST, &c->ranks) && ok;
	ok = read_plain(r, at, row, "bytes", 0, work_most, &c->bytes) && ok;
	return read_plain(r, at, row, "seconds", seconds_least, seconds_most, &c->seconds) && ok;
}

static void read_kernels(Reader *r, json_t *list)
{
	const char *at = at_member(r, r->m->file, "kernels");
	size_t n = json_array_size(list);
	if (!json_is_array(list))
		diag_error(r->d, at, "expected an array of measured kernels");
	r->m->kernel = NEW_N(r->a, MachineKernel, n);
	for (size_t i = 0; i < n; i++) {
		MachineKernel *k = &r->m->kernel[r->m->n_kernels];
		const char *here = arena_printf(r->a, "%s[%zu]", at, i);
		if (!read_kernel(r, here, json_array_get(list, i), k))
			continue;
		const char *key = machine_key(k->layout, k->tf32, k->op, r->a);
		if (map_get(r->m->by_op, key))
			diag_error(r->d, here, "this op is in an earlier row with the same layout and precision");
		map_put(r->m->by_op, key, k);
		r->m->n_kernels++;
	}
}

static void read_collectives(Reader *r, json_t *list)
{
	const char *at = at_member(r, r->m->file, "collectives");
	size_t n = json_array_size(list);
	if (!json_is_array(list))
		diag_error(r->d, at, "expected an array of measured collectives");
	r->m->collective = NEW_N(r->a, MachineCollective, n);
	Map *seen = map_new(r->a);
	for (size_t i = 0; i < n; i++) {
		MachineCollective *c = &r->m->collective[r->m->n_collectives];
		const char *here = arena_printf(r->a, "%s[%zu]", at, i);
		if (!read_collective(r, here, json_array_get(list, i), c))
			continue;
		const char *key = arena_printf(r->a, "%d %d %d %.17g", (int)c->kind, (int)c->comm, c->ranks, c->bytes);
		if (map_get(seen, key))
			diag_error(r->d, here, "this collective is in an earlier row with the same communicator, ranks and bytes");
		map_put(seen, key, c);
		r->m->n_collectives++;
	}
}

static bool read_step(Reader *r, const char *at, json_t *row, MachineStep *s)
{
	static const char *const known[] = {"program", "layout", "collectives", "ops", "rest"};
	bool ok = check_members(r, at, row, COUNT_OF(known), known);
	if (!json_is_object(row))
		return false;
	s->program = read_text(r, at_member(r, at, "program"), json_object_get(row, "program"), "what tells the program "
		"from others");
	ok = read_layout(r, at_member(r, at, "layout"), json_object_get(row, "layout"), &s->layout) && ok;
	ok = read_whole(r, at, row, "collectives", 0, 1e6, &s->collectives) && ok;
	ok = read_plain(r, at, row, "ops", seconds_least, seconds_most, &s->ops) && ok;
	return read_plain(r, at, row, "rest", seconds_least, seconds_most, &s->rest) && s->program && ok;
}

static void read_steps(Reader *r, json_t *list)
{
	const char *at = at_member(r, r->m->file, "steps");
	size_t n = json_array_size(list);
	if (!json_is_array(list))
		diag_error(r->d, at, "expected an array of measured steps");
	else if (r->m->cuda)
		diag_error(r->d, at, "is of CPUs: ranks of GPUs are taken to be equally fast");
	r->m->step = NEW_N(r->a, MachineStep, n);
	Map *seen = map_new(r->a);
	for (size_t i = 0; i < n; i++) {
		MachineStep *s = &r->m->step[r->m->n_steps];
		const char *here = arena_printf(r->a, "%s[%zu]", at, i);
		if (!read_step(r, here, json_array_get(list, i), s))
			continue;
		const char *key = machine_key(s->layout, false, s->program, r->a);
		if (map_get(seen, key))
			diag_error(r->d, here, "this program is in an earlier row with the same layout");
		map_put(seen, key, s);
		r->m->n_steps++;
	}
}

/* Members that are lists of measured rows, which files that are like another do not take from it. */
static const struct { const char *key; void (*read)(Reader *r, json_t *list); } lists[] = {
	{"kernels", read_kernels}, {"collectives", read_collectives}, {"steps", read_steps},
};

/* The number of the list with this key; COUNT_OF(lists): there is none. */
static int list_named(const char *key)
{
	int i = 0;
	while (i < COUNT_OF(lists) && strcmp(lists[i].key, key))
		i++;
	return i;
}

/* False after a message: which numbers a machine must have depends on it. */
static bool read_device(Reader *r, const json_t *v)
{
	const char *text = json_string_value(v);
	r->m->cuda = text && !strcmp(text, "cuda");
	bool known = text && (r->m->cuda || !strcmp(text, "cpu"));
	if (!known)
		diag_error(r->d, at_member(r, r->m->file, "device"), "expected \"cpu\" or \"cuda\"");
	return known;
}

static void unknown_key(const Reader *r, const char *key)
{
	const char *names[MACHINE_NUMBERS + 3 + COUNT_OF(lists)] = {"name", "device", "like"};
	for (int i = 0; i < COUNT_OF(lists); i++)
		names[3 + i] = lists[i].key;
	for (int i = 0; i < MACHINE_NUMBERS; i++)
		names[3 + COUNT_OF(lists) + i] = info[i].key;
	const char *near = near_word(key, names, COUNT_OF(names));
	diag_error(r->d, at_number(r, key), near ? "unknown member; did you mean \"%s\"?"
		: "unknown member%s; docs/prediction.md lists all", near ? near : "");
}

static void read_members(Reader *r, json_t *root)
{
	const char *key;
	json_t *v;
	json_object_foreach(root, key, v) {
		int n = 0, list = list_named(key);
		while (n < MACHINE_NUMBERS && strcmp(info[n].key, key))
			n++;
		if (n < MACHINE_NUMBERS)
			read_number(r, v, (MachineNumber)n);
		else if (list < COUNT_OF(lists))
			lists[list].read(r, v);
		else if (strcmp(key, "name") && strcmp(key, "device") && strcmp(key, "like"))
			unknown_key(r, key);
	}
}

/* Numbers that some machines alone must have. */
static void need_where(Reader *r, const json_t *root, bool where, const char *text, MachineNumber first,
	MachineNumber last)
{
	for (MachineNumber n = first; n <= last && where; n++)
		if (!json_object_get(root, info[n].key))
			diag_error(r->d, at_member(r, r->m->file, info[n].key), "is missing: %s, [number, \"source\"], %s, %s",
				text, info[n].unit, info[n].doc);
}

/* Numbers that the file must have, and those that machines of its kind do not have. */
static void check_numbers(Reader *r, const json_t *root)
{
	for (int n = 0; n < MACHINE_NUMBERS; n++) {
		const NumberInfo *row = &info[n];
		bool other = row->on == (r->m->cuda ? ON_CPU : ON_CUDA), given = json_object_get(root, row->key);
		const char *at = at_number(r, row->key);
		if (other && given)
			diag_error(r->d, at, "machines whose device is \"%s\" have no such number", r->m->cuda ? "cuda" : "cpu");
		if (!other && !given && isnan(row->unsaid))
			diag_error(r->d, at, "is missing: [number, \"source\"], %s, %s", row->unit, row->doc);
		if (!given)
			r->m->of[n] = row->unsaid;
	}
	bool linked = !r->m->cuda || r->m->of[MACHINE_RANKS] > 1; /* a single GPU has no other on its host */
	need_where(r, root, linked, "with several ranks on a host", MACHINE_LINK, MACHINE_LINK_LATENCY);
	need_where(r, root, r->m->of[MACHINE_HOSTS] > 1, "with several hosts", MACHINE_NETWORK, MACHINE_NETWORK_LATENCY);
}

/* ---- files like others ---- */

enum { LIKE_MOST = 8 }; /* files, one like the next */

/* Whether the file may be the next of those that are like each other; false after a message that names them all. */
static bool may_be_next(const Reader *r, const char *at, const char *name)
{
	const char *all = "";
	bool again = false;
	for (int i = 0; i < r->chain.n; i++) {
		again = again || !strcmp(r->chain.at[i], name);
		all = arena_printf(r->a, "%s%s%s is like ", all, r->chain.at[i], i ? ", which" : "");
	}
	if (again)
		diag_error(r->d, at, "%s%s: one of these must have all numbers itself", all, name);
	else if (r->chain.n == LIKE_MOST)
		diag_error(r->d, at, "%s%s: more than %d files; write the numbers of the last ones into one", all, name,
			LIKE_MOST);
	return !again && r->chain.n < LIKE_MOST;
}

/* Gives `root` the numbers that it leaves out and the file of "like" has, which stands in the folder of `path`.  Its
 * measured rows and its name are not taken.  False after a message. */
static bool inherit(Reader *r, json_t *root, const char *path)
{
	const json_t *like = json_object_get(root, "like");
	const char *slash = strrchr(path, '/'), *folder = arena_strndup(r->a, path, slash ? (size_t)(slash + 1 - path) : 0);
	if (!like)
		return true;
	vec_push(r->a, &r->chain, path + strlen(folder));
	const char *at = at_member(r, path, "like"), *name = json_string_value(like);
	if (!name || !*name || strchr(name, '/')) {
		diag_error(r->d, at, "expected the name of another machine file in the same folder");
		return false;
	}
	if (!may_be_next(r, at, name))
		return false;
	const char *other = arena_printf(r->a, "%s%s", folder, name);
	if (access(other, R_OK)) {
		diag_error(r->d, at, "\"%s\" is not in the folder of this file: %s; put it there, or write its numbers here",
			name, strerror(errno));
		return false;
	}
	json_t *base = json_read(other, r->a, r->d);
	bool ok = json_is_object(base) && inherit(r, base, other);
	if (base && !json_is_object(base))
		diag_error(r->d, other, "expected a JSON object");
	const json_t *here = json_object_get(root, "device"), *there = json_object_get(base, "device");
	if (ok && json_is_string(here) && json_is_string(there) && !json_equal(here, there)) {
		diag_error(r->d, at, "\"%s\" is of device \"%s\", and this file of \"%s\": its numbers do not hold here", name,
			json_string_value(there), json_string_value(here));
		ok = false;
	}
	const char *key;
	json_t *v;
	json_object_foreach(base, key, v) {
		if (!ok || !strcmp(key, "name") || list_named(key) < COUNT_OF(lists))
			continue;
		bool own = json_object_get(root, key);
		if (!own)
			json_object_set(root, key, v);
		if (own || !map_get(r->from, key)) /* else `other` has taken it itself */
			map_put(r->from, arena_strdup(r->a, key), own ? NULL : (void *)other);
	}
	json_decref(base);
	return ok;
}

Machine *machine_read(const char *path, Arena *a, Diag *d)
{
	int before = d->errors;
	json_t *root = json_read(path, a, d);
	if (!root)
		return NULL;
	Machine *m = NEW(a, Machine);
	Reader r = {.m = m, .from = map_new(a), .a = a, .d = d};
	m->file = arena_strdup(a, path);
	m->by_op = map_new(a);
	if (!json_is_object(root)) {
		diag_error(d, path, "expected a JSON object");
	} else if (inherit(&r, root, path)) {
		m->name = read_text(&r, at_member(&r, m->file, "name"), json_object_get(root, "name"), "the machine's name");
		bool known = read_device(&r, json_object_get(root, "device"));
		read_members(&r, root);
		if (known)
			check_numbers(&r, root);
	}
	json_decref(root);
	return d->errors == before ? m : NULL;
}
