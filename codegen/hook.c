/* codegen/hook.c: checks that the function of --comm-hook exists and has the right type.
 *
 * Refuses files that do not compile, and functions that are missing or of another type, before anything is written.
 * It asks the C compiler: first with the file alone, then with a declaration of the function in front of the file.
 *
 * To see whether the function is defined, it declares an alias of it, which is a compile error if it is not. */
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
