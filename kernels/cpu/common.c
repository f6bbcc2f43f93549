/* kernels/cpu/common.c: what reports failures until the runtime sets its own functions.  CUDA programs link it, too. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/kernels.h"

static void __attribute__((format(printf, 1, 2))) print_and_abort(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fputs("error: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
	abort();
}

bool k_threads_exact;
const char *k_node;

void k_at(const char *node)
{
	k_node = node;
}

void (*k_bad_input)(const char *fmt, ...) = print_and_abort;
void (*k_fail)(const char *fmt, ...) = print_and_abort;
