/* runtime/report.c: bad input that kernels met, and the signal that asks a run to stop.
 *
 * The one idea: kernels report from any thread and know no Rt, so the first message of the process is kept. */
#include <stdatomic.h>
#include <string.h>

#include "runtime/internal.h"

static atomic_int bad_input_state; /* 0 none, 1 being written, 2 there */
static char bad_input_text[400];

void rt_bad_input(const char *fmt, ...)
{
	int none = 0;
	if (!atomic_compare_exchange_strong(&bad_input_state, &none, 1))
		return;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(bad_input_text, sizeof(bad_input_text), fmt, ap);
	va_end(ap);
	atomic_store(&bad_input_state, 2);
}

volatile sig_atomic_t report_stop_signal;

bool report_has_bad_input(void)
{
	return atomic_load(&bad_input_state) != 0;
}

bool report_take_bad_input(char *out, size_t n)
{
	if (atomic_load(&bad_input_state) != 2)
		return false;
	snprintf(out, n, "%s", bad_input_text);
	atomic_store(&bad_input_state, 0);
	return true;
}
