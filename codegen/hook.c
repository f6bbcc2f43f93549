/* codegen/hook.c: whether the function of --comm-hook is right.
 *
 * Refuses files that do not compile, functions that are not there or of another type, before anything is written.  The
 * C compiler is asked: first of the file alone, then of the file behind a declaration of the function.
 *
 * The one idea: an alias of a function is an error of the compiler where the function is not defined. */
#include "codegen/emit.h"

bool codegen_check_hook(const Hook *h, const CodegenTarget *t, Diag *d)
{
	Arena *a = arena_new();
	const char *file = h->file, *name = h->function;
	bool ok = build_try(t, NULL, file, "it is no C that this compiler takes", d);
	const char *text = arena_printf(a, "#include \"runtime/hook.h\"\n"
		"HookReduce %s;\nHookInit %s_init;\nHookExit %s_exit;\n#include \"%s\"\n"
		"extern HookReduce shardc_check __attribute__((alias(\"%s\")));\n",
		name, name, name, file, name);
	ok = ok && build_try(t, text, file, arena_printf(a, "there is no function \"%s\" of type HookReduce in it "
		"(runtime/hook.h), or %s_init or %s_exit is of another type than that asks for", name, name, name), d);
	arena_free(a);
	return ok;
}
