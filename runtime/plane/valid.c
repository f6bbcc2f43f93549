/* runtime/plane/valid.c: checks on messages: every number from another process is checked before it is used.
 *
 * A message is either valid as a whole, or its sender is not trusted any more. */
#include <string.h>

#include "runtime/plane/private.h"

bool valid_record(const RankRecord *r)
{
	bool ok = r->step >= 0 && r->program >= 0 && r->program < PROGRAMS;
	for (int i = 0; i < RT_STREAMS; i++)
		ok = ok && r->done[i] >= 0 && r->inside[i] >= 0 && r->inside[i] < SEQ_LIMIT && r->ended[i] >= 0 &&
			r->ended[i] < SEQ_LIMIT;
	return ok;
}

bool valid_rows(const TableRow *rows, int n)
{
	for (int i = 0; i < n; i++) {
		const TableRow *r = &rows[i];
		bool state = r->state >= RANK_AWAY && r->state <= RANK_LOST && r->silent >= 0;
		bool asked = r->asked == 0 || r->asked == MSG_GATHER || r->asked == MSG_COMPARE;
		if (!state || !asked || !valid_record(&r->at))
			return false;
	}
	return true;
}

static bool is_plain(char c)
{
	return c >= ' ' && c <= '~';
}

bool valid_peer(const Peer *p, int rank)
{
	size_t n = strnlen(p->name, sizeof(p->name));
	for (size_t i = 0; i < n; i++)
		if (!is_plain(p->name[i]))
			return false;
	return n < sizeof(p->name) && p->rank == rank && p->pid > 0;
}

bool valid_names(const Message *m)
{
	int lists = 0;
	bool empty = true;
	for (size_t i = 0; i < m->bytes; i++) {
		lists += !m->at[i] && empty;
		empty = !m->at[i];
	}
	return m->bytes > 0 && m->bytes <= NAMES_LIMIT && empty && lists == PROGRAMS;
}

void say_text(Buf *b, const char *text, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		bool c1 = i > 0 && text[i - 1] == '\xc2' && (unsigned char)text[i] < 0xa0;
		bool control = (unsigned char)text[i] < ' ' || text[i] == 0x7f;
		buf_put(b, control || c1 ? "?" : text + i, 1);
	}
}
