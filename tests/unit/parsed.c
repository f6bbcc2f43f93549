/* tests/unit/parsed.c: parses modules that tests write as text, and looks up their parts. */
#include "tests/unit/parsed.h"

#include <string.h>

#include "tests/unit/unit.h"

Module *parsed(const char *text)
{
	Diag d = {.out = stderr};
	Module *m = ir_parse("test.ir", text, &d);
	if (!m)
		UNIT_END("the module does not parse");
	return m;
}

Value *value_named(const Module *m, const char *name)
{
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			for (int i = 0; i < op->n_out; i++)
				if (!strcmp(op->out[i]->name, name))
					return op->out[i];
	UNIT_END(name);
	return NULL;
}
