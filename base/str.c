/* base/str.c: string buffers, maps with string or pointer keys, hashing, the escaper.
 *
 * Maps are open-addressing tables in an arena that only grow.  A string map keeps the order of insertion, so that
 * whatever is derived from a walk over it is deterministic. */
#include "base/base.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Buf ---- */

static void buf_reserve(Buf *b, size_t more)
{
	if (b->n + more + 1 <= b->cap)
		return;
	b->cap = MAX(b->cap * 2, b->n + more + 64);
	b->at = realloc(b->at, b->cap);
	if (!b->at)
		ice("out of memory: a string of %zu bytes", b->cap);
}

void buf_put(Buf *b, const char *s, size_t n)
{
	buf_reserve(b, n);
	if (n)
		memcpy(b->at + b->n, s, n);
	b->n += n;
	b->at[b->n] = '\0';
}

void buf_printf(Buf *b, const char *fmt, ...)
{
	va_list ap, again;
	va_start(ap, fmt);
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	if (n < 0)
		ice("bad format \"%s\"", fmt);
	buf_reserve(b, (size_t)n);
	vsnprintf(b->at + b->n, (size_t)n + 1, fmt, again);
	va_end(again);
	b->n += (size_t)n;
}

void buf_free(Buf *b)
{
	free(b->at);
	*b = (Buf){0};
}

/* ---- hashing ---- */

/* Multiply-xorshift over 8-byte words; good enough for hash tables and for telling files apart. */
uint64_t hash_bytes(const void *p, size_t n, uint64_t seed)
{
	const unsigned char *s = p;
	uint64_t h = seed ^ (n * 0x9e3779b97f4a7c15u);
	while (n) {
		uint64_t word = 0;
		size_t take = MIN(n, (size_t)8);
		memcpy(&word, s, take);
		h = (h ^ word) * 0xff51afd7ed558ccdu;
		h ^= h >> 32;
		s += take;
		n -= take;
	}
	h = (h ^ (h >> 29)) * 0xc4ceb9fe1a85ec53u;
	return h ^ (h >> 32);
}

/* ---- Map ---- */

typedef struct MapEntry { const char *key; void *value; uint64_t hash; } MapEntry;

/* `mark` holds bits of the key's hash, so that an entry is read only if it is probably the key's: entries of a large
 * map lie far apart in memory. */
typedef struct MapSlot { uint32_t mark; int32_t entry; } MapSlot; /* entry: index + 1, 0 = free */

struct Map {
	Arena *arena;
	VEC(MapEntry) entries; /* in order of insertion */
	MapSlot *slot;
	int n_slots;           /* a power of two */
};

Map *map_new(Arena *a)
{
	Map *m = NEW(a, Map);
	m->arena = a;
	return m;
}

/* The slot of the key, or the free one where it belongs; key NULL: the free one, for a key that the map lacks. */
static MapSlot *map_slot(const Map *m, const char *key, uint64_t hash)
{
	unsigned mask = (unsigned)m->n_slots - 1;
	for (unsigned i = (unsigned)hash & mask;; i = (i + 1) & mask) {
		MapSlot *slot = &m->slot[i];
		if (!slot->entry)
			return slot;
		if (key && slot->mark == (uint32_t)(hash >> 32) && !strcmp(m->entries.at[slot->entry - 1].key, key))
			return slot;
	}
}

static void map_grow(Map *m)
{
	m->n_slots = m->n_slots ? m->n_slots * 2 : 16;
	m->slot = NEW_N(m->arena, MapSlot, m->n_slots);
	for (int i = 0; i < m->entries.n; i++) {
		uint64_t hash = m->entries.at[i].hash;
		*map_slot(m, NULL, hash) = (MapSlot){(uint32_t)(hash >> 32), i + 1};
	}
}

static MapEntry *map_find(const Map *m, const char *key)
{
	if (!m->n_slots)
		return NULL;
	int32_t entry = map_slot(m, key, hash_bytes(key, strlen(key), 0))->entry;
	return entry ? &m->entries.at[entry - 1] : NULL;
}

/* The key's entry, which is made if it is missing.  The pointer is valid only until another entry is made. */
static MapEntry *map_entry(Map *m, const char *key, bool *made)
{
	size_t length = strlen(key);
	uint64_t hash = hash_bytes(key, length, 0);
	if ((m->entries.n + 1) * 2 > m->n_slots)
		map_grow(m);
	MapSlot *slot = map_slot(m, key, hash);
	*made = !slot->entry;
	if (*made) {
		MapEntry entry = {arena_strndup(m->arena, key, length), NULL, hash};
		vec_push(m->arena, &m->entries, entry);
		*slot = (MapSlot){(uint32_t)(hash >> 32), m->entries.n};
	}
	return &m->entries.at[slot->entry - 1];
}

void map_put(Map *m, const char *key, void *value)
{
	bool made;
	map_entry(m, key, &made)->value = value;
}

bool map_add(Map *m, const char *key)
{
	bool made;
	map_entry(m, key, &made);
	return made;
}

Map *map_copy(const Map *from, Arena *a)
{
	Map *to = map_new(a);
	int n = from->entries.n, n_slots = from->n_slots;
	if (!n)
		return to;
	to->entries.at = NEW_N(a, MapEntry, n);
	to->entries.n = to->entries.cap = n;
	to->slot = NEW_N(a, MapSlot, n_slots);
	to->n_slots = n_slots;
	memcpy(to->entries.at, from->entries.at, sizeof(MapEntry) * (size_t)n);
	memcpy(to->slot, from->slot, sizeof(MapSlot) * (size_t)n_slots);
	return to;
}

const char *map_add_numbered(Map *m, const char *name)
{
	bool made;
	const MapEntry *first = map_entry(m, name, &made);
	if (made)
		return first->key;
	int at = (int)(first - m->entries.at);
	intptr_t n = (intptr_t)first->value;
	Buf text = {0};
	const MapEntry *e;
	do {
		text.n = 0;
		buf_printf(&text, "%s.%d", name, (int)++n);
		e = map_entry(m, text.at, &made);
	} while (!made);
	buf_free(&text);
	m->entries.at[at].value = (void *)n;
	return e->key;
}

void *map_get(const Map *m, const char *key)
{
	const MapEntry *e = map_find(m, key);
	return e ? e->value : NULL;
}

bool map_has(const Map *m, const char *key)
{
	return map_find(m, key) != NULL;
}

int map_count(const Map *m)
{
	return m->entries.n;
}

const char *map_key(const Map *m, int i)
{
	return m->entries.at[i].key;
}

const char *map_intern(Map *m, const char *s)
{
	bool made;
	return map_entry(m, s, &made)->key;
}

static int by_bytes(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

Sorted map_sorted(const Map *m, Arena *a)
{
	Sorted s = {NEW_N(a, const char *, m->entries.n), m->entries.n};
	for (int i = 0; i < s.n; i++)
		s.at[i] = m->entries.at[i].key;
	qsort(s.at, (size_t)s.n, sizeof(*s.at), by_bytes);
	return s;
}

bool sorted_has_inside(const Sorted *s, const char *name, size_t n)
{
	int from = 0, to = s->n;
	while (from < to) {
		int mid = from + (to - from) / 2;
		int order = strncmp(s->at[mid], name, n);
		if (!order)
			order = (unsigned char)s->at[mid][n] - '.';
		if (!order)
			return true;
		if (order < 0)
			from = mid + 1;
		else
			to = mid;
	}
	return false;
}

/* ---- PtrMap ---- */

typedef struct PtrSlot { const void *key; void *value; } PtrSlot; /* key NULL = free */

struct PtrMap {
	Arena *arena;
	PtrSlot *slot;
	int n, n_slots;
};

PtrMap *ptrmap_new(Arena *a)
{
	PtrMap *m = NEW(a, PtrMap);
	m->arena = a;
	return m;
}

static PtrSlot *ptrmap_slot(const PtrMap *m, const void *key)
{
	unsigned mask = (unsigned)m->n_slots - 1;
	unsigned i = (unsigned)(((uintptr_t)key >> 4) * 0x9e3779b97f4a7c15u >> 32) & mask;
	while (m->slot[i].key && m->slot[i].key != key)
		i = (i + 1) & mask;
	return &m->slot[i];
}

static void ptrmap_grow(PtrMap *m)
{
	PtrMap old = *m;
	m->n_slots = m->n_slots ? m->n_slots * 2 : 16;
	m->slot = NEW_N(m->arena, PtrSlot, m->n_slots);
	for (int i = 0; i < old.n_slots; i++)
		if (old.slot[i].key)
			*ptrmap_slot(m, old.slot[i].key) = old.slot[i];
}

void ptrmap_put(PtrMap *m, const void *key, void *value)
{
	if ((m->n + 1) * 2 > m->n_slots)
		ptrmap_grow(m);
	PtrSlot *slot = ptrmap_slot(m, key);
	m->n += !slot->key;
	*slot = (PtrSlot){key, value};
}

void *ptrmap_get(const PtrMap *m, const void *key)
{
	return m->n_slots && key ? ptrmap_slot(m, key)->value : NULL;
}

/* ---- UTF-8 ---- */

/* The number of bytes of the character at s; 0 if it is not UTF-8.  Overlong forms, surrogates and codes above 10FFFF
 * are not. */
static int utf8_length(const char *s)
{
	static const struct { unsigned char first, last, low, high; int n; } forms[] = {
		{0x01, 0x7f, 0, 0, 1}, {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
		{0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
		{0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
	};
	const unsigned char *c = (const unsigned char *)s;
	for (int i = 0; i < COUNT_OF(forms); i++) {
		if (c[0] < forms[i].first || c[0] > forms[i].last)
			continue;
		int n = 1;
		while (n < forms[i].n && c[n] >= (n == 1 ? forms[i].low : 0x80) && c[n] <= (n == 1 ? forms[i].high : 0xbf))
			n++;
		return n == forms[i].n ? n : 0;
	}
	return 0;
}

bool str_is_utf8(const char *s)
{
	for (int n; *s; s += n)
		if (!(n = utf8_length(s)))
			return false;
	return true;
}

/* The code of a character of n bytes. */
static uint32_t utf8_code(const char *s, int n)
{
	uint32_t code = (unsigned char)*s & (n == 1 ? 0x7f : 0x7f >> n);
	for (int i = 1; i < n; i++)
		code = code << 6 | ((unsigned char)s[i] & 0x3f);
	return code;
}

/* Whether the character moves the cursor, changes the direction of text, or is invisible: such a character could make
 * one name look like another. */
static bool is_hidden(uint32_t code)
{
	static const struct { uint32_t first, last; } hidden[] = {
		{0x00, 0x1f}, {0x7f, 0x9f}, {0xad, 0xad}, {0x34f, 0x34f}, {0x61c, 0x61c}, {0x115f, 0x1160}, {0x17b4, 0x17b5},
		{0x180b, 0x180f}, {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f}, {0x3164, 0x3164}, {0xfe00, 0xfe0f},
		{0xfeff, 0xfeff}, {0xffa0, 0xffa0}, {0xfff0, 0xfffb}, {0xe0000, 0xe0fff},
	};
	for (int i = 0; i < COUNT_OF(hidden); i++)
		if (code >= hidden[i].first && code <= hidden[i].last)
			return true;
	return false;
}

int str_hidden(const char *s, uint32_t *code)
{
	int n = utf8_length(s);
	*code = n ? utf8_code(s, n) : (unsigned char)*s;
	return !n ? -1 : is_hidden(*code) ? n : 0;
}

/* ---- the escaper ---- */

/* Puts a character of several bytes if it may be shown; returns its number of bytes, or 0. */
static int put_wide(Buf *b, const char *s)
{
	uint32_t code;
	int n = utf8_length(s);
	if (n < 2 || str_hidden(s, &code))
		return 0;
	buf_put(b, s, (size_t)n);
	return n;
}

static void escape_c_comment(Buf *b, const char *s)
{
	/* The result holds no end of a comment, no trigraph, no line end or backslash before one, and nothing invisible. */
	uint32_t code;
	for (int n; *s; s++) {
		unsigned char c = (unsigned char)*s;
		if ((n = put_wide(b, s)) != 0)
			s += n - 1;
		else if ((n = str_hidden(s, &code)) != 0)
			for (s--, n = abs(n); n > 0; n--)
				buf_printf(b, "%%%02x", (unsigned char)*++s);
		else if (c == '\\' || c == '?')
			buf_printf(b, "%%%02x", c);
		else if ((c == '/' && b->n && b->at[b->n - 1] == '*') || (c == '*' && b->n && b->at[b->n - 1] == '/'))
			buf_printf(b, " %c", c);
		else
			buf_put(b, s, 1);
	}
}

static void escape_c_string(Buf *b, const char *s)
{
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;
		if (c < 0x20 || c >= 0x7f || c == '"' || c == '\\' || c == '?')
			buf_printf(b, "\\%03o", c);
		else
			buf_put(b, s, 1);
	}
}

static void escape_c_ident(Buf *b, const char *s)
{
	if (!*s || isdigit((unsigned char)*s))
		buf_put(b, "_", 1);
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;
		if (c < 0x80 && isalnum(c))
			buf_put(b, s, 1);
		else
			buf_put(b, "_", 1);
	}
}

/* Puts a character as JSON writes it; returns its number of bytes.  A byte that is not UTF-8 is replaced by `other`. */
static int put_quoted(Buf *b, const char *s, const char *other)
{
	uint32_t code;
	int hidden = str_hidden(s, &code), n = hidden < 0 ? 1 : utf8_length(s);
	if (hidden < 0)
		buf_put(b, other, other == s ? 1 : strlen(other));
	else if (code == '"' || code == '\\')
		buf_printf(b, "\\%c", (char)code);
	else if (code == '\n' || code == '\t')
		buf_put(b, code == '\n' ? "\\n" : "\\t", 2);
	else if (hidden && code > 0xffff)
		buf_printf(b, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10), 0xdc00 + (code & 0x3ff));
	else if (hidden)
		buf_printf(b, "\\u%04x", code);
	else
		buf_put(b, s, (size_t)n);
	return n;
}

/* Strings of the IR are JSON's, but keep bytes that are not UTF-8. */
static void escape_ir(Buf *b, const char *s)
{
	while (*s)
		s += put_quoted(b, s, s);
}

static void escape_json(Buf *b, const char *s)
{
	while (*s)
		s += put_quoted(b, s, "\\ufffd");
}

/* All visible characters stay, also quotes and backslashes, because the text may already have been escaped for another
 * use. */
static void escape_terminal(Buf *b, const char *s)
{
	uint32_t code;
	for (int n; *s; s += n ? abs(n) : 1) {
		if ((n = put_wide(b, s)) != 0)
			continue;
		n = str_hidden(s, &code);
		if (!n)
			buf_put(b, s, 1);
		else if (code == '\n' || code == '\t')
			buf_put(b, code == '\n' ? "\\n" : "\\t", 2);
		else if (n < 0 || code < 0x80)
			buf_printf(b, "\\x%02x", code);
		else
			buf_printf(b, code > 0xffff ? "\\U%08x" : "\\u%04x", code);
	}
}

/* Puts a hidden character, except a line end, as its code behind `mark`; returns its number of bytes, or 0 if it is not
 * hidden. */
static int put_hidden(Buf *b, const char *s, const char *mark)
{
	uint32_t code;
	int n = *s == '\n' ? 0 : abs(str_hidden(s, &code));
	if (n)
		buf_printf(b, "%su%04x", mark, code);
	return n;
}

static void escape_html(Buf *b, const char *s)
{
	for (int n; *s; s++) {
		if ((n = put_wide(b, s)) != 0 || (n = put_hidden(b, s, "\\")) != 0) {
			s += n - 1;
			continue;
		}
		const char *entity = *s == '<' ? "&lt;" : *s == '>' ? "&gt;" : *s == '&' ? "&amp;"
			: *s == '"' ? "&quot;" : *s == '\'' ? "&#39;" : NULL;
		if (entity)
			buf_put(b, entity, strlen(entity));
		else
			buf_put(b, s, 1);
	}
}

static void escape_dot(Buf *b, const char *s)
{
	for (int n; *s; s++) {
		if ((n = put_wide(b, s)) != 0 || (n = put_hidden(b, s, "\\\\")) != 0) {
			s += n - 1;
			continue;
		}
		if (strchr("\"\\{}<>|", *s))
			buf_put(b, "\\", 1);
		if (*s == '\n')
			buf_put(b, "\\n", 2);
		else
			buf_put(b, s, 1);
	}
}

/* One word of sh, quoted only if it holds characters that are special there. */
static void escape_shell(Buf *b, const char *s)
{
	bool plain = *s;
	for (const char *c = s; *c; c++)
		plain = plain && (isalnum((unsigned char)*c) || strchr("_-+=./,:", *c));
	buf_printf(b, plain ? "" : "'");
	for (; *s; s++) {
		if (*s == '\'')
			buf_put(b, "'\\''", 4);
		else
			buf_put(b, s, 1);
	}
	buf_printf(b, plain ? "" : "'");
}

/* A word of sh as the value of a make variable, for use in recipes.  make cannot spell a line break; callers refuse
 * it. */
static void escape_make(Buf *b, const char *s)
{
	Buf word = {0};
	int slashes = 0;
	escape_shell(&word, s);
	for (size_t i = 0; i < word.n; i++) {
		char c = word.at[i];
		for (; c == '#' && slashes >= 0; slashes--)
			buf_put(b, "\\", 1);
		slashes = c == '\\' ? slashes + 1 : 0;
		buf_put(b, c == '$' ? "$$" : &c, c == '$' ? 2 : 1);
	}
	buf_free(&word);
}

typedef void EscapeFn(Buf *b, const char *s);
static EscapeFn *const escape_rule[] = {
	[ESCAPE_C_COMMENT] = escape_c_comment, [ESCAPE_C_STRING] = escape_c_string,
	[ESCAPE_C_IDENT] = escape_c_ident, [ESCAPE_JSON] = escape_json, [ESCAPE_DOT] = escape_dot,
	[ESCAPE_HTML] = escape_html, [ESCAPE_MAKE] = escape_make, [ESCAPE_SHELL] = escape_shell,
	[ESCAPE_IR] = escape_ir, [ESCAPE_TERMINAL] = escape_terminal,
};

char *str_escape(Arena *a, EscapeKind kind, const char *s)
{
	Buf b = {0};
	escape_rule[kind](&b, s);
	char *out = arena_strndup(a, b.at ? b.at : "", b.n);
	buf_free(&b);
	return out;
}

bool str_is_choice(const char *choices, const char *value)
{
	size_t n = strlen(value);
	for (const char *c = choices; *c; c += strcspn(c, "|"), c += *c == '|')
		if (strcspn(c, "|") == n && !strncmp(c, value, n))
			return true;
	return false;
}

bool str_is_c_name(const char *s)
{
	if (!isalpha((unsigned char)*s) && *s != '_')
		return false;
	while (isalnum((unsigned char)*s) || *s == '_')
		s++;
	return !*s;
}

const char *str_count(Arena *a, int64_t n, const char *what)
{
	return arena_printf(a, "%" PRId64 " %s%s", n, what, n == 1 ? "" : "s");
}
