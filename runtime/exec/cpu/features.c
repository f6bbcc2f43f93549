/* runtime/exec/cpu/features.c: tells whether this processor has the instructions that the program was compiled for.
 *
 * It asks cpuid directly, and xgetbv for the registers that the operating system saves, because __builtin_cpu_supports
 * knows fewer names with some compilers and takes only literals.  A name that is not in the table counts as missing,
 * because a program that needs an unknown feature might crash.
 *
 * base/cpu.def has a row per feature.  This file is compiled for any x86-64, so that it runs where the answer is no. */
#include <cpuid.h>
#include <string.h>

#include "runtime/exec/private.h"

enum { EAX, EBX, ECX, EDX };
/* Register state that the system must save, as bits of XCR0. */
enum { X_NONE = 0, X_AVX = 0x6, X_512 = 0xe6, X_AMX = 0x60000 };

typedef struct Feature { const char *name; uint32_t leaf, subleaf; int reg, bit; uint32_t state; } Feature;

static const Feature features[] = {
#define CPU(name, macro, leaf, subleaf, reg, bit, state) {name, leaf, subleaf, reg, bit, state},
#include "base/cpu.def"
};

static uint64_t saved_state(void)
{
	uint32_t r[4];
	if (!__get_cpuid(1, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) || !(r[ECX] >> 27 & 1))
		return 0;
	uint32_t low, high;
	__asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (uint64_t)high << 32 | low;
}

bool cpu_supports(const char *name)
{
	for (int i = 0; i < COUNT_OF(features); i++) {
		const Feature *f = &features[i];
		uint32_t r[4];
		if (!strcmp(f->name, name))
			return __get_cpuid_count(f->leaf, f->subleaf, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) &&
				(r[f->reg] >> f->bit & 1) && (saved_state() & f->state) == f->state;
	}
	return false;
}

bool device_check(Rt *rt, Diag *d)
{
	const char *const *need = rt->model->need_cpu;
	char missing[256] = "";
	size_t used = 0;
	for (int i = 0; need && need[i]; i++)
		if (!cpu_supports(need[i]) && used < sizeof(missing))
			used += (size_t)snprintf(missing + used, sizeof(missing) - used, "%s%s",
				used ? ", " : "", need[i]);
	if (used)
		diag_error(d, rt->p->options->program,
			"this program was compiled for instructions that this processor lacks: %s; "
			"compile it with --arch=x86-64-v3, or with --arch=native on this machine", missing);
	return !used;
}
