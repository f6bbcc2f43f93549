/* codegen/build.h: what building for a CPU and for a GPU share.  Private to codegen/. */
#ifndef SHARDC_BUILD_H
#define SHARDC_BUILD_H

#include "codegen/emit.h"

#include <sys/types.h>

typedef VEC(const char *) Args;

typedef struct Build {
	Arena *a;
	const CodegenTarget *o;
	Diag *d;
	const char *cc;       /* the compiler that is started: --cc, or --nvcc */
	const char *flag, *language; /* "--cc", "C": how messages name the compiler */
	const char *arch;
	const char *include;  /* folder of runtime/shardrt.h */
	const char *lib;      /* folder of RUNTIME/libshardrt.a */
	const char *runtime;  /* the arch's own runtime, or the best one that the arch can run */
	const char *blas, *dnn; /* CUDA: folders of its libraries, NULL: the toolkit's */
} Build;

/* The -O level of step.c and of step.cu's host code. */
static inline int build_level(const CodegenTarget *o)
{
	return o->options.optimize == OPTIMIZE_UNSAID ? 1 : (int)(o->options.optimize - OPTIMIZE_0);
}

/* ---- build.c ---- */

/* The first of the folders, relative to the executable's, that contains `file`; NULL: none does. */
const char *build_search(Build *b, const char *const *suffix, int n, const char *file);
bool build_is_cpu(const char *arch); /* whether make all builds a runtime of that name, for CPUs */
bool build_find_runtime(Build *b, const char *runtime); /* sets lib and runtime */
Args build_command(Build *b);                           /* the compiler; the caller adds arguments */
void build_push(Build *b, Args *args, const char *const *flags, int n);
const char *build_make_command(Build *b);               /* the compiler as a Makefile's variable */
/* A word of --cc or --nvcc in a Makefile.  A file is named by its absolute path: make may run in another folder. */
const char *build_make_word(Build *b, const char *word);
/* Starts a program and returns what it prints; the caller still waits for the child.  NULL after a message. */
char *build_output(Build *b, Args *args, pid_t *child);

/* ---- build_cuda.c ---- */

void build_cuda_open(Build *b);
bool build_cuda_found(Build *b);    /* finds the runtime for the arch; false after a message */
bool build_cuda_known(Build *b);    /* whether the arch is a GPU's, or has a runtime; false after a message */
bool build_cuda_written(Build *b);  /* the same, and warns where there is no runtime for it */
bool build_cuda_compiler(Build *b); /* checks that nvcc can be run; false after a message */
Args build_cuda_compile(Build *b, bool fused, const char *source, const char *object);
Args build_cuda_link(Build *b, const char *const *object, int n, const char *output);
void build_cuda_makefile(Build *b, Buf *out);

#endif
