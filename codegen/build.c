/* codegen/build.c: builds a binary from the emitted program with the user's C compiler, or with nvcc
 * (build_cuda.c).
 *
 * Compilers are started by fork and exec, never through a shell.  step.c, which is long and simple, and fused.c,
 * which is short and must be vectorised, are compiled side by side with different flags.  The output appears by one
 * rename when everything succeeded; a failed build leaves an older output as it was.
 *
 * The runtime is found relative to the running executable: in BUILD/lib/ARCH and the tree that contains BUILD, or
 * in PREFIX/lib/shardc/{lib/ARCH,include} of an installation. */
#include "codegen/build.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Functions are not inlined: profilers and backtraces show their names, which tell the unit and the section. */
static const char *const step_flags[] = {"-std=gnu11", "-fno-inline"};
/* Without these two, comparisons and math functions keep loops from being vectorised. */
static const char *const fused_flags[] = {
	"-std=gnu11", "-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math",
};
static const char *const link_flags[] = {"-ldnnl", "-ljansson", "-ldeflate", "-fopenmp", "-lpthread", "-ldl", "-lm"};
static const char *const hook_flags[] = {"-std=gnu11", "-O3", "-fopenmp", "-Wall", "-Wextra"};
/* Other code sees only those functions of a library that model.h declares. */
static const char *const library_flags[] = {"-fPIC", "-fvisibility=hidden"};
static const char *const library_link_flags[] = {
	"-shared", "-Xlinker", "-soname=libmodel.so", "-Xlinker", "--undefined=model_create",
};

/* ---- where things are ---- */

static bool exists(Build *b, const char *dir, const char *file)
{
	return dir && !access(arena_printf(b->a, "%s/%s", dir, file), R_OK);
}

const char *build_search(Build *b, const char *const *suffix, int n, const char *file)
{
	for (int i = 0; i < n; i++) {
		const char *at = arena_printf(b->a, "%s/%s", program_dir(b->a), suffix[i]);
		char *real = exists(b, at, file) ? realpath(at, NULL) : NULL;
		if (!real)
			continue;
		at = arena_strdup(b->a, real);
		free(real);
		return at;
	}
	return NULL;
}

bool build_find_runtime(Build *b, const char *runtime)
{
	static const char *const lib[] = {"lib", "../lib/shardc/lib"};
	b->lib = build_search(b, lib, COUNT_OF(lib), arena_printf(b->a, "%s/libshardrt.a", runtime));
	b->runtime = runtime;
	return b->lib;
}

static Build build_new(Arena *a, const CodegenTarget *o, Diag *d)
{
	static const char *const include[] = {"..", "../..", "../lib/shardc/include", "include"};
	Build b = {.a = a, .o = o, .d = d, .cc = o->options.cc ? o->options.cc : "cc", .flag = "--cc", .language = "C",
		.arch = o->options.arch ? o->options.arch : "native"};
	b.include = build_search(&b, include, COUNT_OF(include), "runtime/shardrt.h");
	if (codegen_cuda(o))
		build_cuda_open(&b);
	else
		build_find_runtime(&b, b.arch);
	return b;
}

/* The CPUs for which make all builds runtimes, and the features for which their kernels are compiled beyond those of
 * every processor of the kind; the best of a kind first.  native is for the machine that builds it. */
static const struct { const char *arch, *macros[8]; } runtimes[] = {
	{"native", {NULL}},
	{"x86-64-v4", {"__AVX512F__", "__AVX512BW__", "__AVX512CD__", "__AVX512DQ__", "__AVX512VL__", "__AVX2__"}},
	{"x86-64-v3", {"__AVX2__", "__BMI__", "__BMI2__", "__F16C__", "__FMA__", "__LZCNT__", "__MOVBE__"}},
	{"armv8.2-a", {"__ARM_FEATURE_ATOMICS", "__ARM_FEATURE_CRC32", "__ARM_FEATURE_QRDMX"}},
};

bool build_is_cpu(const char *arch)
{
	for (int i = 0; i < COUNT_OF(runtimes); i++)
		if (!strcmp(runtimes[i].arch, arch))
			return true;
	return false;
}

/* The CPUs for which there are runtimes here: "native, x86-64-v4". */
static const char *available(Build *b)
{
	const char *list = "";
	for (int i = 0; i < COUNT_OF(runtimes); i++)
		if (build_find_runtime(b, runtimes[i].arch))
			list = arena_printf(b->a, "%s%s%s", list, *list ? ", " : "", runtimes[i].arch);
	b->lib = NULL;
	return *list ? list : "none";
}

/* ---- commands ---- */

void build_push(Build *b, Args *args, const char *const *flags, int n)
{
	for (int i = 0; i < n; i++)
		vec_push(b->a, args, flags[i]);
}

/* --cc and --nvcc may hold arguments: "ccache gcc". */
Args build_command(Build *b)
{
	Args args = {0};
	char *words = arena_strdup(b->a, b->cc), *save = NULL;
	for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save))
		vec_push(b->a, &args, w);
	return args;
}

/* Adds the arguments with which every compilation of a program's file ends. */
static void push_target(Build *b, Args *args, const char *source, const char *object)
{
	if (b->o->library)
		build_push(b, args, library_flags, COUNT_OF(library_flags));
	vec_push(b->a, args, arena_printf(b->a, "-march=%s", b->arch));
	vec_push(b->a, args, arena_printf(b->a, "-I%s", b->include));
	build_push(b, args, (const char *[]){"-c", "-o", object, source}, 4);
}

static Args compile_command(Build *b, bool fused, const char *source, const char *object)
{
	Args args = build_command(b);
	if (fused)
		build_push(b, &args, fused_flags, COUNT_OF(fused_flags));
	else
		build_push(b, &args, step_flags, COUNT_OF(step_flags));
	if (!fused)
		vec_push(b->a, &args, arena_printf(b->a, "-O%d", build_level(b->o)));
	push_target(b, &args, source, object);
	return args;
}

/* The command that compiles --comm-hook's file. */
static Args hook_command(Build *b, const char *source, const char *object)
{
	Args args = build_command(b);
	build_push(b, &args, hook_flags, COUNT_OF(hook_flags));
	push_target(b, &args, source, object);
	return args;
}

static Args link_command(Build *b, const char *const *object, int n, const char *output)
{
	Args args = build_command(b);
	const char *lib = arena_printf(b->a, "%s/%s/libshardrt.a", b->lib, b->runtime);
	if (b->o->library)
		build_push(b, &args, library_link_flags, COUNT_OF(library_link_flags));
	build_push(b, &args, (const char *[]){"-o", output}, 2);
	build_push(b, &args, object, n);
	vec_push(b->a, &args, lib);
	build_push(b, &args, link_flags, COUNT_OF(link_flags));
	/* the program looks for the runtime's shared objects here; -Wl would split a path at its commas */
	const char *folder = arena_printf(b->a, "%s/%s", b->lib, b->runtime);
	build_push(b, &args, (const char *[]){"-Xlinker", "-rpath", "-Xlinker", folder}, 4);
	return args;
}

/* ---- processes ---- */

static const char *command_text(Build *b, const Args *args)
{
	Buf text = {0};
	for (int i = 0; i < args->n; i++)
		buf_printf(&text, "%s%s", i ? " " : "", str_escape(b->a, ESCAPE_SHELL, args->at[i]));
	const char *s = arena_strndup(b->a, text.at ? text.at : "", text.n);
	buf_free(&text);
	return s;
}

/* Starts a command; -1 after a message. */
static pid_t start(Build *b, Args *args)
{
	if (b->o->verbose)
		fprintf(b->d->out, "%s\n", str_escape(b->a, ESCAPE_TERMINAL, command_text(b, args)));
	fflush(NULL);
	vec_push(b->a, args, NULL);
	pid_t pid = fork();
	if (pid == 0) {
		execvp(args->at[0], (char *const *)args->at);
		fprintf(stderr, "%s: %s\n", args->at[0], strerror(errno));
		_exit(127);
	}
	if (pid < 0)
		diag_error(b->d, args->at[0], "cannot be started: %s", strerror(errno));
	return pid;
}

/* complaint: the message for when the compiler ran and failed; its own messages were printed before. */
static bool finish(Build *b, pid_t pid, const char *what, const char *complaint)
{
	int status = 0;
	if (pid < 0)
		return false;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return false;
	if (WIFEXITED(status) && !WEXITSTATUS(status))
		return true;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
		diag_error(b->d, b->flag, "the %s compiler \"%s\" cannot be started", b->language, b->cc);
	else if (WIFSIGNALED(status))
		diag_error(b->d, what, "the %s compiler \"%s\" was ended by signal %d (%s): is there memory enough?",
			b->language, b->cc, WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		diag_error(b->d, what, "the %s compiler \"%s\" failed: %s", b->language, b->cc, complaint);
	return false;
}

char *build_output(Build *b, Args *args, pid_t *child)
{
	Buf text = {0};
	int end[2];
	vec_push(b->a, args, NULL);
	if (pipe(end)) {
		diag_error(b->d, b->cc, "cannot be started: %s", strerror(errno));
		return NULL;
	}
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(end[1], STDOUT_FILENO);
		close(end[0]);
		close(end[1]);
		execvp(args->at[0], (char *const *)args->at);
		_exit(127);
	}
	close(end[1]);
	char chunk[4096];
	for (ssize_t n; (n = read(end[0], chunk, sizeof(chunk))) > 0 || (n < 0 && errno == EINTR);)
		if (n > 0)
			buf_put(&text, chunk, (size_t)n);
	close(end[0]);
	char *copy = arena_strndup(b->a, text.at ? text.at : "", text.n);
	buf_free(&text);
	*child = pid;
	return copy;
}

/* Runs the compiler's preprocessor on an empty file; returns its output, NULL after a message. */
static char *predefined(Build *b)
{
	pid_t pid;
	Args args = build_command(b);
	build_push(b, &args, (const char *[]){arena_printf(b->a, "-march=%s", b->arch), "-dM", "-E", "-x", "c",
		"/dev/null"}, 6);
	char *text = build_output(b, &args, &pid);
	bool ok = text && finish(b, pid, arena_printf(b->a, "--arch=%s", b->arch), "it does not know these instructions");
	return ok ? text : NULL;
}

static bool is_defined(Build *b, const char *macros, const char *macro)
{
	return strstr(macros, arena_printf(b->a, "#define %s ", macro));
}

/* ---- the runtime for --arch ---- */

/* For an arch without its own runtime, chooses the best runtime that uses only features which the arch has. */
static bool choose_runtime(Build *b)
{
	char *macros = b->lib ? NULL : predefined(b);
	bool found = b->lib;
	if (!b->lib && !macros)
		return false;
	for (int i = 0; !found && i < COUNT_OF(runtimes); i++) {
		bool fits = runtimes[i].macros[0];
		for (int k = 0; k < COUNT_OF(runtimes[i].macros) && runtimes[i].macros[k]; k++)
			fits = fits && is_defined(b, macros, runtimes[i].macros[k]);
		found = fits && build_find_runtime(b, runtimes[i].arch);
	}
	if (!found)
		diag_error(b->d, "--arch", "there is no runtime for \"%s\", nor for less than it has; available: %s", b->arch,
			available(b));
	return found;
}

static bool check_found(Build *b)
{
	if (!b->include)
		diag_error(b->d, "shardc", "runtime/shardrt.h is not beside this program; install shardc as a whole "
			"(make install) or run it from its build folder");
	return b->include && (codegen_cuda(b->o) ? build_cuda_found(b) : choose_runtime(b));
}

bool codegen_check_target(const CodegenTarget *o, Diag *d)
{
	Arena *a = arena_new();
	Build b = build_new(a, o, d);
	bool ok = !codegen_cuda(o) || (check_found(&b) && build_cuda_compiler(&b));
	arena_free(a);
	return ok;
}

bool codegen_check_arch(const CodegenTarget *o, Diag *d)
{
	Arena *a = arena_new();
	Build b = build_new(a, o, d);
	bool ok = !codegen_cuda(o) || build_cuda_known(&b);
	arena_free(a);
	return ok;
}

bool codegen_multiplies(const CodegenTarget *o, DType t, Diag *d)
{
	static const char *const units[2][2] = {{"__AMX_BF16__", "__AVX512BF16__"}, {"__AMX_FP16__", "__AVX512FP16__"}};
	Arena *a = arena_new();
	Build b = build_new(a, o, d);
	char *macros = predefined(&b);
	bool found = false;
	for (int i = 0; macros && i < 2; i++)
		found = found || is_defined(&b, macros, units[t == DT_F16][i]);
	arena_free(a);
	return found;
}

/* A path as an argument of a compiler: -train and @train would be read as options. */
static const char *as_operand(Arena *a, const char *path)
{
	return *path == '/' || !strncmp(path, "./", 2) ? path : arena_printf(a, "./%s", path);
}

bool codegen_compile(const char *dir, const Module *m, const CodegenTarget *o, const char *output, Diag *d)
{
	Arena *a = arena_new();
	const char *hook = ir_train(m)->hook.file;
	Build b = build_new(a, o, d);
	const char *name[] = {"step", "fused", "hook"}, *source[3], *object[3];
	const char *temp = as_operand(a, arena_printf(a, "%s.new", output));
	pid_t pid[3];
	int n = hook ? 3 : 2;
	bool ok = check_found(&b), started = ok;
	dir = as_operand(a, dir);
	for (int i = 0; started && i < n; i++) {
		source[i] = i == 2 ? hook : arena_printf(a, "%s/%s.%s", dir, name[i], codegen_cuda(o) ? "cu" : "c");
		object[i] = arena_printf(a, "%s/%s.o", dir, name[i]);
		Args args = i == 2 ? hook_command(&b, source[i], object[i]) :
			(codegen_cuda(o) ? build_cuda_compile : compile_command)(&b, i == 1, source[i], object[i]);
		pid[i] = start(&b, &args);
	}
	bool compiled = started;
	for (int i = 0; started && i < n; i++)
		compiled = finish(&b, pid[i], source[i], "shardc is at fault, not the model; or the disk is full")
			&& compiled;
	if (compiled) {
		Args args = (codegen_cuda(o) ? build_cuda_link : link_command)(&b, object, n, temp);
		ok = finish(&b, start(&b, &args), temp, "a library is missing, or the disk is full");
		if (ok && rename(temp, output)) {
			diag_error(d, output, "cannot write: %s", strerror(errno));
			ok = false;
		}
		if (!ok)
			remove(temp);
	}
	for (int i = 0; started && i < n; i++)
		remove(object[i]);
	arena_free(a);
	return ok && compiled;
}

/* ---- hooks ---- */

/* A new name in /tmp for a short-lived file; "" after a message. */
static const char *temporary(Build *b, const char *suffix)
{
	char *path = arena_printf(b->a, "/tmp/shardc-hook-XXXXXX%s", suffix);
	int fd = mkstemps(path, (int)strlen(suffix));
	if (fd < 0)
		diag_error(b->d, "/tmp", "cannot write: %s", strerror(errno));
	else
		close(fd);
	return fd < 0 ? "" : path;
}

bool build_try(const CodegenTarget *o, const char *text, const char *file, const char *complaint, Diag *d)
{
	Arena *a = arena_new();
	Build b = build_new(a, o, d);
	const char *source = text ? temporary(&b, ".c") : file;
	FILE *f = text && *source ? fopen(source, "w") : NULL;
	bool ok = *source && check_found(&b) && (!text || f);
	if (f)
		ok = fputs(text, f) >= 0 && !fclose(f) && ok;
	if (ok) {
		Args args = hook_command(&b, source, "/dev/null");
		ok = finish(&b, start(&b, &args), file, complaint);
	}
	if (text && *source)
		remove(source);
	arena_free(a);
	return ok;
}

/* ---- the Makefile beside step.c ---- */

static void put_flags(Buf *out, const char *const *flags, int n)
{
	for (int i = 0; i < n; i++)
		buf_printf(out, " %s", flags[i]);
}

/* $(CC) FLAGS -march=$(ARCH) -I$(INCLUDE) -c -o NAME.o NAME.c */
static void put_object(Buf *out, const CodegenTarget *o, const char *name, const char *const *flags, int n)
{
	buf_printf(out, "%s.o: %s.c%s\n\t$(CC)", name, name, strcmp(name, "step") ? "" : " ops.h");
	put_flags(out, flags, n);
	if (!strcmp(name, "step"))
		buf_printf(out, " -O%d", build_level(o));
	if (o->library)
		put_flags(out, library_flags, COUNT_OF(library_flags));
	buf_printf(out, " -march=$(ARCH) -I$(INCLUDE) -c -o $@ %s.c\n", name);
}

const char *build_make_word(Build *b, const char *word)
{
	bool is_relative = *word != '/' && *word != '-' && strchr(word, '/') && !access(word, F_OK);
	char *here = is_relative ? realpath(".", NULL) : NULL;
	const char *path = here ? arena_printf(b->a, "%s/%s", here, word) : word;
	free(here);
	return str_escape(b->a, ESCAPE_MAKE, path);
}

const char *build_make_command(Build *b)
{
	Args word = build_command(b);
	const char *text = "";
	for (int i = 0; i < word.n; i++)
		text = arena_printf(b->a, "%s%s%s", text, i ? " " : "", build_make_word(b, word.at[i]));
	return text;
}

/* Refuses paths with a line break, which a Makefile cannot express. */
static bool check_lines(Build *b)
{
	const char *const words[] = {b->include, b->lib, b->cc, b->arch, b->o->options.cc, b->blas, b->dnn};
	bool whole = true;
	for (int i = 0; i < COUNT_OF(words) && whole; i++) {
		whole = !words[i] || !strchr(words[i], '\n');
		if (!whole)
			diag_error(b->d, words[i], "a Makefile cannot name this: it has a line break in it; move or rename it");
	}
	return whole;
}

bool build_makefile(const CodegenTarget *o, const Hook *hook, Buf *out, Diag *d)
{
	Arena *a = arena_new();
	Build b = build_new(a, o, d);
	bool ok = (codegen_cuda(o) ? build_cuda_written(&b) : check_found(&b)) && check_lines(&b);
	if (codegen_cuda(o)) {
		build_cuda_makefile(&b, out);
		arena_free(a);
		return ok;
	}
	const char *target = o->library ? "libmodel.so" : "train";
	buf_printf(out, "# Builds the training %s from step.c and fused.c; made by shardc.\nCC = %s\nARCH = %s\n",
		o->library ? "library" : "program", build_make_command(&b), str_escape(a, ESCAPE_MAKE, b.arch));
	buf_printf(out, "INCLUDE = %s\nLIB = %s\n\n", str_escape(a, ESCAPE_MAKE, b.include ? b.include : "."),
		str_escape(a, ESCAPE_MAKE, arena_printf(a, "%s/%s", b.lib ? b.lib : ".", b.runtime)));
	const char *objects = hook->file ? "step.o fused.o hook.o" : "step.o fused.o";
	if (hook->file)
		buf_printf(out, "HOOK = %s\n\n", str_escape(a, ESCAPE_MAKE, hook->file));
	buf_printf(out, "%s: %s\n\t$(CC)", target, objects);
	if (o->library)
		put_flags(out, library_link_flags, COUNT_OF(library_link_flags));
	buf_printf(out, " -o $@ %s $(LIB)/libshardrt.a", objects);
	put_flags(out, link_flags, COUNT_OF(link_flags));
	buf_printf(out, " -Xlinker -rpath -Xlinker $(LIB)\n");
	put_object(out, o, "step", step_flags, COUNT_OF(step_flags));
	put_object(out, o, "fused", fused_flags, COUNT_OF(fused_flags));
	if (hook->file) {
		buf_printf(out, "# Made anew each time: what a recipe quotes is no name of a prerequisite.\n.PHONY: hook.o\n"
			"hook.o:\n\t$(CC)");
		put_flags(out, hook_flags, COUNT_OF(hook_flags));
		if (o->library)
			put_flags(out, library_flags, COUNT_OF(library_flags));
		buf_printf(out, " -march=$(ARCH) -I$(INCLUDE) -c -o $@ $(HOOK)\n");
	}
	buf_printf(out, "clean:\n\trm -f %s %s\n.PHONY: clean\n", target, objects);
	arena_free(a);
	return ok;
}

/* ---- what stands beside a library ---- */

static void put_inputs(Emit *e, Buf *out)
{
	for (int i = 0; i < e->m->n_symbols; i++) {
		const Symbol *s = e->m->symbols[i];
		if (s->kind == SYM_INPUT)
			buf_printf(out, " *   \"%s\" %s%s\n", str_escape(e->a, ESCAPE_C_COMMENT, s->name), type_str(e->a, &s->type),
				s->batched ? "" : ", without a sample axis");
	}
}

bool build_header(Emit *e, Buf *out)
{
	Build b = build_new(e->a, e->target, e->d);
	bool found = check_found(&b);
	char *text = found ? diag_read_file(e->d, arena_printf(e->a, "%s/runtime/model.h", b.include), e->a) : NULL;
	buf_printf(out, "/* Model %s, made by shardc.  Inputs, of one micro-batch:\n",
		str_escape(e->a, ESCAPE_C_COMMENT, e->m->name));
	put_inputs(e, out);
	buf_printf(out, " */\n%s", text ? text : "");
	return text;
}

void build_pkg_config(Buf *out)
{
	buf_printf(out, "prefix=${pcfiledir}\n\nName: model\nDescription: a model that trains, compiled by shardc\n"
		"Version: 1\nCflags: -I${prefix}\nLibs: -L${prefix} -lmodel\n");
}

/* ---- what the processor must have ---- */

static const struct { const char *name, *macro, *machine; } features[] = {
#define X86(name, macro, leaf, subleaf, reg, bit, state) {name, macro, "__x86_64__"},
#define ARM(name, macro, word, bit) {name, macro, "__aarch64__"},
#include "base/cpu.def"
};

bool build_need_cpu(Emit *e, Buf *out)
{
	Build b = build_new(e->a, e->target, e->d);
	const char *macros = predefined(&b);
	if (!macros)
		return false;
	buf_printf(out, "/* What -march=%s lets compilers use. */\nstatic const char *const need_cpu[] = {",
		str_escape(e->a, ESCAPE_C_COMMENT, b.arch));
	for (int i = 0; i < COUNT_OF(features); i++)
		if (is_defined(&b, macros, features[i].macro) && is_defined(&b, macros, features[i].machine))
			buf_printf(out, "\"%s\", ", features[i].name);
	buf_printf(out, "NULL};\n\n");
	return true;
}
