/* passes/schedule/slots.c: gives memory to contents that come and go, so that those which live at the same time lie
 * apart.  A slot is as large as its largest content, whatever the number of ranks, so it costs least if the contents
 * of a slot are of about one size. */
#include "passes/schedule/slots.h"

#include <stdlib.h>

int slots_by_time(SlotLife *life, int n, int ring, Arena *a)
{
	int64_t *left = NEW_N(a, int64_t, n + ring + 1);
	int n_slots = ring;
	for (int k = 0; k < ring; k++)
		left[k] = INT64_MIN;
	for (int i = 0; i < n; i++) {
		int best = n_slots;
		for (int k = 0; k < n_slots; k++)
			if (left[k] <= life[i].begin && (best == n_slots || (ring && left[k] < left[best])))
				best = k;
		n_slots = MAX(n_slots, best + 1);
		left[best] = life[i].end;
		life[i].slot = best;
	}
	return n_slots;
}

/* ---- by size ---- */

typedef VEC(SlotLife *) Lives; /* of one slot, in the order of time */

static int compare_sizes(const void *x, const void *y)
{
	const SlotLife *a = *(SlotLife *const *)x, *b = *(SlotLife *const *)y;
	if (a->bytes != b->bytes)
		return a->bytes < b->bytes ? 1 : -1;
	return a < b ? -1 : a > b;
}

/* The index before which the life can be put; -1: the slot is not free. */
static int free_place(const Lives *slot, const SlotLife *life)
{
	int low = 0, high = slot->n;
	while (low < high) {
		int middle = (low + high) / 2;
		if (slot->at[middle]->begin < life->begin)
			low = middle + 1;
		else
			high = middle;
	}
	bool before = !low || slot->at[low - 1]->end <= life->begin;
	bool behind = low == slot->n || life->end <= slot->at[low]->begin;
	return before && behind ? low : -1;
}

static void put(Lives *slot, int at, SlotLife *life, Arena *a)
{
	vec_push(a, slot, life);
	for (int i = slot->n - 1; i > at; i--)
		slot->at[i] = slot->at[i - 1];
	slot->at[at] = life;
}

static void renumber(SlotLife *life, int n, int n_slots, Arena *a)
{
	int *number = NEW_N(a, int, n_slots + 1), next = 0;
	for (int i = 0; i < n; i++) {
		if (!number[life[i].slot])
			number[life[i].slot] = ++next;
		life[i].slot = number[life[i].slot] - 1;
	}
}

int slots_by_size(SlotLife *life, int n, Arena *a)
{
	SlotLife **sorted = NEW_N(a, SlotLife *, n);
	VEC(Lives) slots = {0};
	for (int i = 0; i < n; i++)
		sorted[i] = &life[i];
	if (n)
		qsort(sorted, (size_t)n, sizeof(SlotLife *), compare_sizes);
	for (int i = 0; i < n; i++) {
		int k = 0, at = -1;
		while (k < slots.n && (at = free_place(&slots.at[k], sorted[i])) < 0)
			k++;
		if (k == slots.n) {
			vec_push(a, &slots, ((Lives){0}));
			at = 0;
		}
		put(&slots.at[k], at, sorted[i], a);
		sorted[i]->slot = k;
	}
	renumber(life, n, slots.n, a);
	return slots.n;
}

int64_t slots_bytes(const SlotLife *life, int n, int n_slots, Arena *a)
{
	int64_t *most = NEW_N(a, int64_t, n_slots), sum = 0;
	for (int i = 0; i < n; i++)
		most[life[i].slot] = MAX(most[life[i].slot], life[i].bytes);
	for (int k = 0; k < n_slots; k++)
		sum += most[k];
	return sum;
}

void slots_assign(SlotLife *life, int n, Arena *a)
{
	SlotLife *size = NEW_N(a, SlotLife, n);
	for (int i = 0; i < n; i++)
		size[i] = life[i];
	int64_t by_time = slots_bytes(life, n, slots_by_time(life, n, 0, a), a);
	bool less = slots_bytes(size, n, slots_by_size(size, n, a), a) < by_time;
	for (int i = 0; i < n && less; i++)
		life[i].slot = size[i].slot;
}
