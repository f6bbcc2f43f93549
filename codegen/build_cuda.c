/* codegen/build_cuda.c: the commands that build a CUDA program: nvcc, what it links, the Makefile.
 *
 * cuBLAS and cuDNN are those of the toolkit, or those beside shardc: BUILD/cuda or PREFIX/lib/shardc/cuda, laid out
 * as in the packages nvidia-cublas and nvidia-cudnn-cu13.  The program looks for them where they were when it was
 * linked, then where the dynamic linker looks.  jansson and libdeflate are linked statically if there are archives,
 * since machines with GPUs seldom have these libraries.
 *
 * A program is built for an arch that a runtime was built for, BUILD/lib/NAME/libshardrt.a; there is no other list of
 * arches.  Its text is written, and planned, for any arch that is named as a GPU is; what is missing is said when it
 * is written and when its Makefile is run. */
#include "codegen/build.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* As for step.c and fused.c: functions keep their names. */
static const char *const step_flags[] = {"-std=c++20", "-Xcompiler=-fno-inline"};
static const char *const fused_flags[] = {"-std=c++20", "-O3"};
static const char *const cuda_libs[] = {"-l:libcublasLt.so.13", "-l:libcudnn.so.9"};
static const char *const carried_libs[] = {"jansson", "deflate"};
static const char *const host_libs[] = {"-lgomp", "-lpthread", "-ldl", "-lm"};

void build_cuda_open(Build *b)
{
	static const char *const blas[] = {"cuda/nvidia/cu13/lib", "../lib/shardc/cuda/nvidia/cu13/lib"};
	static const char *const dnn[] = {"cuda/nvidia/cudnn/lib", "../lib/shardc/cuda/nvidia/cudnn/lib"};
	b->cc = b->o->options.nvcc ? b->o->options.nvcc : "nvcc";
	b->flag = "--nvcc";
	b->language = "CUDA";
	b->blas = build_search(b, blas, COUNT_OF(blas), "libcublasLt.so.13");
	b->dnn = build_search(b, dnn, COUNT_OF(dnn), "libcudnn.so.9");
	build_find_runtime(b, b->arch);
}

/* ---- what there is ---- */

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Where the runtime for the arch is, or would be built. */
static const char *runtime_folder(Build *b)
{
	return arena_printf(b->a, "%s/%s", b->lib ? b->lib : arena_printf(b->a, "%s/lib", program_dir(b->a)), b->arch);
}

/* The arches of GPUs for which there are runtimes: "sm_80, sm_90a". */
static const char *available(Build *b)
{
	static const char *const folder[] = {"lib", "../lib/shardc/lib"};
	VEC(const char *) names = {0};
	const char *list = "";
	for (int i = 0; i < COUNT_OF(folder); i++) {
		const char *at = build_search(b, &folder[i], 1, ".");
		DIR *d = at ? opendir(at) : NULL;
		for (struct dirent *f; d && (f = readdir(d));)
			if (*f->d_name != '.' && !build_is_cpu(f->d_name) && build_find_runtime(b, arena_strdup(b->a, f->d_name)))
				vec_push(b->a, &names, b->runtime);
		if (d)
			closedir(d);
	}
	b->lib = NULL;
	b->runtime = b->arch;
	if (names.n)
		qsort(names.at, (size_t)names.n, sizeof(*names.at), by_name);
	for (int i = 0; i < names.n; i++)
		if (!i || strcmp(names.at[i], names.at[i - 1]))
			list = arena_printf(b->a, "%s%s%s", list, *list ? ", " : "", names.at[i]);
	return *list ? list : "none (make cuda builds them)";
}

/* "sm_90a": sm_, digits, and perhaps a letter. */
static bool is_gpu(const char *arch)
{
	const char *digits = strncmp(arch, "sm_", 3) ? "" : arch + 3;
	size_t n = strspn(digits, "0123456789");
	return n >= 2 && (!digits[n] || (strchr("af", digits[n]) && !digits[n + 1]));
}

static const char *how_to_build(Build *b)
{
	return is_gpu(b->arch) ? arena_printf(b->a, " (make cuda CUDA_ARCHES=%s builds it)", b->arch) : "";
}

bool build_cuda_found(Build *b)
{
	bool found = b->lib && !build_is_cpu(b->arch);
	if (!found)
		diag_error(b->d, "--arch", "there is no CUDA runtime for \"%s\"; available: %s%s", b->arch, available(b),
			how_to_build(b));
	return found;
}

bool build_cuda_known(Build *b)
{
	bool known = is_gpu(b->arch) || (b->lib && !build_is_cpu(b->arch));
	if (!known)
		diag_error(b->d, "--arch", "\"%s\" is no GPU; expected a name as sm_80, sm_90a or sm_120a", b->arch);
	return known;
}

bool build_cuda_written(Build *b)
{
	if (!build_cuda_known(b))
		return false;
	if (!b->lib)
		diag_warn(b->d, "--arch", "there is no CUDA runtime for \"%s\" here (available: %s): the text is written, and "
			"its Makefile needs one%s", b->arch, available(b), how_to_build(b));
	return true;
}

static bool runs(Build *b, const char *program)
{
	char *path = arena_strdup(b->a, getenv("PATH") ? getenv("PATH") : ""), *save = NULL;
	if (strchr(program, '/'))
		return !access(program, X_OK);
	for (char *dir = strtok_r(path, ":", &save); dir; dir = strtok_r(NULL, ":", &save))
		if (!access(arena_printf(b->a, "%s/%s", dir, program), X_OK))
			return true;
	return false;
}

bool build_cuda_compiler(Build *b)
{
	Args args = build_command(b);
	bool found = args.n && runs(b, args.at[0]);
	if (!found && strchr(b->cc, ' ') && !access(b->cc, X_OK))
		diag_error(b->d, "--nvcc", "\"%s\": a space ends the compiler's name, and arguments follow: give it a link "
			"that has none in its path", b->cc);
	else if (!found)
		diag_error(b->d, "--nvcc", "the CUDA compiler \"%s\" is not here: install the CUDA Toolkit, say where nvcc is "
			"(--nvcc=PATH), or write the program only (--emit=c)", b->cc);
	return found;
}

/* ---- commands ---- */

/* Adds the host's compiler that nvcc starts: --cc. */
static void push_host(Build *b, Args *args)
{
	if (b->o->options.cc)
		build_push(b, args, (const char *[]){"-ccbin", b->o->options.cc}, 2);
}

/* Code for exactly one GPU (sm_90a) needs no PTX beside it, from which a driver compiles for later ones.  `make`: for a
 * Makefile that sets ARCH. */
static const char *code_flag(const Build *b, bool make)
{
	const char *number = strncmp(b->arch, "sm_", 3) ? "" : b->arch + 3;
	if (!*number || number[strlen(number) - 1] != 'a')
		return arena_printf(b->a, "-arch=%s", make ? "$(ARCH)" : b->arch);
	return make ? "-gencode=arch=$(ARCH:sm_%=compute_%),code=$(ARCH)"
		: arena_printf(b->a, "-gencode=arch=compute_%s,code=%s", number, b->arch);
}

Args build_cuda_compile(Build *b, bool fused, const char *source, const char *object)
{
	Args args = build_command(b);
	push_host(b, &args);
	if (fused)
		build_push(b, &args, fused_flags, COUNT_OF(fused_flags));
	else
		build_push(b, &args, step_flags, COUNT_OF(step_flags));
	if (!fused)
		vec_push(b->a, &args, arena_printf(b->a, "-O%d", build_level(b->o)));
	vec_push(b->a, &args, code_flag(b, false));
	vec_push(b->a, &args, arena_printf(b->a, "-I%s", b->include));
	build_push(b, &args, (const char *[]){"-c", "-o", object, source}, 4);
	return args;
}

/* How a library is linked: the host's linker knows whether it has a static archive. */
static const char *archive(Build *b, const char *name)
{
	Args args = {0};
	pid_t pid = -1;
	const char *file = arena_printf(b->a, "-print-file-name=lib%s.a", name);
	build_push(b, &args, (const char *[]){b->o->options.cc ? b->o->options.cc : "cc", file}, 2);
	const char *path = build_output(b, &args, &pid);
	while (pid > 0 && waitpid(pid, NULL, 0) < 0)
		;
	return arena_printf(b->a, path && *path == '/' ? "-l:lib%s.a" : "-l%s", name);
}

Args build_cuda_link(Build *b, const char *const *object, int n, const char *output)
{
	Args args = build_command(b);
	const char *folder = arena_printf(b->a, "%s/%s", b->lib, b->runtime);
	const char *places[] = {folder, b->blas, b->dnn};
	push_host(b, &args);
	vec_push(b->a, &args, code_flag(b, false));
	build_push(b, &args, (const char *[]){"-o", output}, 2);
	build_push(b, &args, object, n);
	vec_push(b->a, &args, arena_printf(b->a, "%s/libshardrt.a", folder));
	for (int i = 0; i < COUNT_OF(places); i++)
		if (places[i])
			build_push(b, &args, (const char *[]){arena_printf(b->a, "-L%s", places[i]), "-Xlinker", "-rpath",
				"-Xlinker", places[i]}, 5);
	build_push(b, &args, cuda_libs, COUNT_OF(cuda_libs));
	for (int i = 0; i < COUNT_OF(carried_libs); i++)
		vec_push(b->a, &args, archive(b, carried_libs[i]));
	build_push(b, &args, host_libs, COUNT_OF(host_libs));
	return args;
}

/* ---- the Makefile beside step.cu ---- */

static void put_flags(Buf *out, const char *const *flags, int n)
{
	for (int i = 0; i < n; i++)
		buf_printf(out, " %s", flags[i]);
}

static void put_folder(Build *b, Buf *out, const char *name, const char *folder)
{
	if (folder)
		buf_printf(out, "%s = %s\n", name, str_escape(b->a, ESCAPE_MAKE, folder));
}

/* What must be there before anything is compiled, and what is said when it is not.  It stands in a recipe, since paths
 * are quoted for the shell. */
static void put_needs(Buf *out)
{
	static const struct { const char *test, *file, *folder, *help; } needs[] = {
		{"command -v", "$(firstword $(NVCC))", "PATH", "install the CUDA Toolkit, or make NVCC=PATH"},
		{"test -f $(INCLUDE)/", "runtime/shardrt.h", "$(INCLUDE)", "it is in the tree of shardc, or in "
			"PREFIX/lib/shardc/include: make INCLUDE=FOLDER"},
		{"test -f $(LIB)/", "libshardrt.a", "$(LIB)", "make cuda CUDA_ARCHES=$(ARCH) in the tree of shardc "
			"builds it; then make LIB=FOLDER"},
	};
	buf_printf(out, "needs:\n");
	for (int i = 0; i < COUNT_OF(needs); i++)
		buf_printf(out, "\t@%s%s%s >/dev/null || { printf 'there is no %%s in %%s: %%s\\n' %s %s '%s' >&2; exit 1; }\n",
			needs[i].test, i ? "" : " ", needs[i].file, needs[i].file, needs[i].folder, needs[i].help);
}

void build_cuda_makefile(Build *b, Buf *out)
{
	const char *places[] = {"LIB", b->blas ? "CUBLAS" : NULL, b->dnn ? "CUDNN" : NULL};
	const char *cc = b->o->options.cc;
	const char *host = cc ? arena_printf(b->a, " -ccbin %s", build_make_word(b, cc)) : "";
	buf_printf(out, "# Builds the training program from step.cu and fused.cu; made by shardc.\n"
		"NVCC = %s%s\nARCH = %s\nINCLUDE = %s\n",
		build_make_command(b), host, str_escape(b->a, ESCAPE_MAKE, b->arch),
		str_escape(b->a, ESCAPE_MAKE, b->include ? b->include : "."));
	put_folder(b, out, "LIB", runtime_folder(b));
	put_folder(b, out, "CUBLAS", b->blas);
	put_folder(b, out, "CUDNN", b->dnn);
	buf_printf(out, "\ntrain: step.o fused.o | needs\n\t$(NVCC) %s -o $@ step.o fused.o $(LIB)/libshardrt.a",
		code_flag(b, true));
	for (int i = 0; i < COUNT_OF(places); i++)
		if (places[i])
			buf_printf(out, " -L$(%s) -Xlinker -rpath -Xlinker $(%s)", places[i], places[i]);
	put_flags(out, cuda_libs, COUNT_OF(cuda_libs));
	for (int i = 0; i < COUNT_OF(carried_libs); i++)
		buf_printf(out, " %s", archive(b, carried_libs[i]));
	put_flags(out, host_libs, COUNT_OF(host_libs));
	buf_printf(out, "\nstep.o: step.cu ops.h | needs\n\t$(NVCC)");
	put_flags(out, step_flags, COUNT_OF(step_flags));
	buf_printf(out, " -O%d %s -I$(INCLUDE) -c -o $@ step.cu\nfused.o: fused.cu | needs\n\t$(NVCC)",
		build_level(b->o), code_flag(b, true));
	put_flags(out, fused_flags, COUNT_OF(fused_flags));
	buf_printf(out, " %s -I$(INCLUDE) -c -o $@ fused.cu\n", code_flag(b, true));
	put_needs(out);
	buf_printf(out, "clean:\n\trm -f train step.o fused.o\n.PHONY: clean needs\n");
}
