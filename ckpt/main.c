/* ckpt/main.c: shardc ckpt COMMAND: finds the command, or lists them. */
#include <string.h>

#include "base/near.h"
#include "ckpt/ckpt.h"

static const CkptCommand commands[] = {
#define COMMAND(name, arguments, help) {#name, arguments, help, ckpt_##name},
#include "ckpt/commands.def"
};

static void help(FILE *f)
{
	fputs("usage: shardc ckpt COMMAND ..      checkpoints, offline (shardc ckpt COMMAND --help)\n\n", f);
	for (int i = 0; i < COUNT_OF(commands); i++) {
		int n = fprintf(f, "  %s %s", commands[i].name, commands[i].arguments);
		fprintf(f, "%s%*s%s\n", n < 34 ? "" : "\n", n < 34 ? 34 - n : 34, "", commands[i].help);
	}
	fputs("\nDIR is a checkpoint, or a folder of them: then its `latest`.  What is written appears whole or not at\n"
	      "all; an output that exists is refused unless it is empty.\n"
	      "Exit status: 0 success, 1 the input is wrong (nothing was written) or differs, 2 wrong usage, 3 the\n"
	      "output could not be written.\n", f);
}

const CkptCommand *ckpt_command(const char *name)
{
	for (int i = 0; i < COUNT_OF(commands); i++)
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	return NULL;
}

int ckpt_main(const CkptCall *call)
{
	const char *name = call->argc > 1 ? call->argv[1] : NULL;
	if (!name || str_is_choice("--help|-h|help", name)) {
		help(name ? stdout : stderr);
		return name ? CKPT_OK : CKPT_USAGE;
	}
	const CkptCommand *c = ckpt_command(name);
	if (c)
		return c->run(&(CkptCall){call->argc - 1, call->argv + 1, call->read_options, call->d});
	Arena *a = arena_new();
	const char *known[COUNT_OF(commands)];
	for (int i = 0; i < COUNT_OF(commands); i++)
		known[i] = commands[i].name;
	diag_error(call->d, "shardc ckpt", "there is no command \"%s\"%s (see shardc ckpt --help)", name,
		near_hint(a, "ckpt", name, known, COUNT_OF(known)));
	arena_free(a);
	return CKPT_USAGE;
}
