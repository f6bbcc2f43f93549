/* runtime/exec/cpu/features.c: tells whether this processor has the instructions that the program was compiled for.
 *
 * On x86-64 it asks cpuid directly, and xgetbv for the registers that the operating system saves, because
 * __builtin_cpu_supports knows fewer names with some compilers and takes only literals; on AArch64 it asks the kernel.
 * A name that is not in the table counts as missing, because a program that needs an unknown feature might crash.
 *
 * base/cpu.def has a row per feature.  This file is compiled for any processor of its kind, so that it runs where the
 * answer is no. */
#include <string.h>

#include "runtime/exec/private.h"

#if defined(__x86_64__)
#include <cpuid.h>

#define PORTABLE "x86-64-v3"
enum { EAX, EBX, ECX, EDX };
/* Register state that the system must save, as bits of XCR0. */
enum { X_NONE = 0, X_AVX = 0x6, X_512 = 0xe6, X_AMX = 0x60000 };

typedef struct Feature { const char *name; uint32_t leaf, subleaf; int reg, bit; uint32_t state; } Feature;

static const Feature features[] = {
#define X86(name, macro, leaf, subleaf, reg, bit, state) {name, leaf, subleaf, reg, bit, state},
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

static bool has(const Feature *f)
{
	uint32_t r[4];
	return __get_cpuid_count(f->leaf, f->subleaf, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) && (r[f->reg] >> f->bit & 1) &&
		(saved_state() & f->state) == f->state;
}

#elif defined(__aarch64__)
#include <sys/auxv.h>

#define PORTABLE "armv8.2-a"
typedef struct Feature { const char *name; int word, bit; } Feature;

static const Feature features[] = {
#define ARM(name, macro, word, bit) {name, word, bit},
#include "base/cpu.def"
};

static bool has(const Feature *f)
{
	return getauxval(f->word == 1 ? AT_HWCAP : AT_HWCAP2) >> f->bit & 1;
}

#else
#error "programs run on x86-64 and AArch64"
#endif

bool cpu_supports(const char *name)
{
	for (int i = 0; i < COUNT_OF(features); i++)
		if (!strcmp(features[i].name, name))
			return has(&features[i]);
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
			"compile it with --arch=" PORTABLE ", or with --arch=native on this machine", missing);
	return !used;
}
