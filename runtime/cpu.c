/* runtime/cpu.c: does this processor have the instructions the program was compiled for?
 *
 * Asks cpuid itself, and xgetbv for what the operating system saves, because the compiler's builtin knows
 * fewer names with some compilers and takes literals only.  A name that is not in the table counts as
 * missing: a program that asks for something unknown must not run on hope.
 *
 * The one idea: one row per feature; this file is compiled for any x86-64, so that it can say no. */
#include <cpuid.h>
#include <string.h>

#include "runtime/internal.h"

enum { EAX, EBX, ECX, EDX };
/* Register state that the system must save, as bits of XCR0. */
enum { X_NONE = 0, X_AVX = 0x6, X_512 = 0xe6, X_AMX = 0x60000 };

typedef struct Feature { const char *name; uint32_t leaf, subleaf; int reg, bit; uint32_t state; } Feature;

static const Feature features[] = {
	{"sse3", 1, 0, ECX, 0, X_NONE},           {"ssse3", 1, 0, ECX, 9, X_NONE},
	{"cx16", 1, 0, ECX, 13, X_NONE},          {"sse4.1", 1, 0, ECX, 19, X_NONE},
	{"sse4.2", 1, 0, ECX, 20, X_NONE},        {"movbe", 1, 0, ECX, 22, X_NONE},
	{"popcnt", 1, 0, ECX, 23, X_NONE},        {"fma", 1, 0, ECX, 12, X_AVX},
	{"avx", 1, 0, ECX, 28, X_AVX},            {"f16c", 1, 0, ECX, 29, X_AVX},
	{"bmi", 7, 0, EBX, 3, X_NONE},            {"avx2", 7, 0, EBX, 5, X_AVX},
	{"bmi2", 7, 0, EBX, 8, X_NONE},           {"avx512f", 7, 0, EBX, 16, X_512},
	{"avx512dq", 7, 0, EBX, 17, X_512},       {"avx512ifma", 7, 0, EBX, 21, X_512},
	{"avx512cd", 7, 0, EBX, 28, X_512},       {"avx512bw", 7, 0, EBX, 30, X_512},
	{"avx512vl", 7, 0, EBX, 31, X_512},       {"avx512vbmi", 7, 0, ECX, 1, X_512},
	{"avx512vbmi2", 7, 0, ECX, 6, X_512},     {"avx512vnni", 7, 0, ECX, 11, X_512},
	{"avx512bitalg", 7, 0, ECX, 12, X_512},   {"avx512vpopcntdq", 7, 0, ECX, 14, X_512},
	{"amx-bf16", 7, 0, EDX, 22, X_AMX},       {"avx512fp16", 7, 0, EDX, 23, X_512},
	{"amx-tile", 7, 0, EDX, 24, X_AMX},       {"amx-int8", 7, 0, EDX, 25, X_AMX},
	{"avxvnni", 7, 1, EAX, 4, X_AVX},         {"avx512bf16", 7, 1, EAX, 5, X_512},
	{"lzcnt", 0x80000001, 0, ECX, 5, X_NONE},
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

bool cpu_check(const char *const *need, const char *program, Diag *d)
{
	char missing[256] = "";
	size_t used = 0;
	for (int i = 0; need && need[i]; i++)
		if (!cpu_supports(need[i]) && used < sizeof(missing))
			used += (size_t)snprintf(missing + used, sizeof(missing) - used, "%s%s",
				used ? ", " : "", need[i]);
	if (used)
		diag_error(d, program, "this program was compiled for instructions that this processor lacks: %s; "
			"compile it with --arch=x86-64-v3, or with --arch=native on this machine", missing);
	return !used;
}
