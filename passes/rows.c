/* passes/rows.c: how many rows a block has, of logits (--loss-chunk) and of a block's inner values (--tile-rows). */
#include "passes/passes.h"

#include <string.h>

bool rows_asked(const char *option, const char *text, int64_t *asked, Diag *d)
{
	*asked = 0;
	if (!text || !strcmp(text, "auto"))
		return true;
	*asked = -1;
	if (!strcmp(text, "off"))
		return true;
	if (!str_to_size(text, false, asked) || *asked < 1) {
		diag_error(d, option, "\"%s\" is none of auto, off and a number of rows from 1 on", text);
		return false;
	}
	return true;
}

int64_t rows_of_block(int64_t rows, int64_t row_bytes, int64_t bytes, int64_t least)
{
	int64_t most = MAX(least, bytes / row_bytes), n = (rows + most - 1) / most;
	return n > 1 ? MIN(round_up((rows + n - 1) / n, 16), rows) : 0;
}
