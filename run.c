/* run.c: `shardc run`: compiles a module forward-only, converts inputs to .npy where needed, and runs the binary.
 *
 * All temporary files are in one folder, which is removed whatever happens. */
#include "run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/npy.h"
#include "frontend/frontend.h"

enum { EXIT_INPUT = 1, EXIT_RUN = 3 };

/* Runs a program and waits for it; returns its exit status, or 3 if a signal ended it or it could not be started. */
static int run_program(char *const *argv, Diag *d)
{
	int status = 0;
	pid_t child = fork();
	if (child == 0) {
		execvp(argv[0], argv);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0) {
		diag_error(d, argv[0], "cannot run: %s", strerror(errno));
		return EXIT_RUN;
	}
	if (WIFSIGNALED(status))
		diag_error(d, argv[0], "was ended by signal %d", WTERMSIG(status));
	return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_RUN;
}

static bool link_file(const char *from, const char *to, Diag *d)
{
	char *real = realpath(from, NULL);
	bool ok = real && (!symlink(real, to) || errno == EEXIST);
	if (!ok)
		diag_error(d, from, "%s", strerror(errno));
	free(real);
	return ok;
}

/* Makes the file of the K-th input available as dir/input_K.npy. */
static bool stage_input(const Symbol *s, int k, const char *inputs, const char *dir, Arena *a, Diag *d)
{
	const char *to = arena_printf(a, "%s/input_%d.npy", dir, k);
	const char *pb = arena_printf(a, "%s/input_%d.pb", inputs, k), *npy = npy_input(a, inputs, s->name, k);
	if (npy)
		return link_file(npy, to, d);
	if (access(pb, R_OK)) {
		diag_error(d, inputs, "holds neither %s nor input_%d.npy nor input_%d.pb",
			npy_path(a, inputs, s->name) + strlen(inputs) + 1, k, k);
		return false;
	}
	HostTensor t;
	if (!onnx_tensor_load(pb, a, &t, d))
		return false;
	if (!dtype_info[t.type.dtype].npy) {
		diag_error(d, pb, "%s has no .npy form", dtype_info[t.type.dtype].text);
		return false;
	}
	if (!npy_write(to, t.type.dtype, t.type.rank, t.type.dim, t.data)) {
		diag_error(d, to, "%s", strerror(errno));
		return false;
	}
	return true;
}

/* The folder in which the program reads its inputs: the given one, so that messages name the user's files, or dir
 * if some inputs must be converted.  NULL after a message. */
static const char *stage_inputs(const Module *m, const char *inputs, const char *dir, Arena *a, Diag *d)
{
	bool ok = true, converts = false;
	int k = 0;
	for (int i = 0; i < m->n_symbols; i++)
		if (m->symbols[i]->kind == SYM_INPUT)
			converts = !npy_input(a, inputs, m->symbols[i]->name, k++) || converts;
	k = 0;
	for (int i = 0; converts && i < m->n_symbols; i++)
		if (m->symbols[i]->kind == SYM_INPUT)
			ok = stage_input(m->symbols[i], k++, inputs, dir, a, d) && ok;
	return !ok ? NULL : converts ? dir : inputs;
}

/* Checks the folders before anything is compiled. */
static bool check_folders(const char *inputs, const char *outputs, Diag *d)
{
	struct stat in, out;
	int before = d->errors;
	bool made = !stat(outputs, &out);
	if (stat(inputs, &in))
		diag_error(d, inputs, "%s: --inputs is a folder of arrays", strerror(errno));
	else if (!S_ISDIR(in.st_mode))
		diag_error(d, inputs, "is no folder: --inputs is a folder of arrays, NAME.npy of each input");
	if (made && !S_ISDIR(out.st_mode))
		diag_error(d, outputs, "is no folder: --outputs is a folder, in which NAME.npy of each output is written");
	return d->errors == before;
}

int run_model(Module *m, const char *keep, const char *inputs, const char *outputs, const CodegenTarget *o, Diag *d)
{
	char dir[] = "/tmp/shardc-run-XXXXXX";
	Arena *a = arena_new();
	int status = EXIT_INPUT;
	if (!check_folders(inputs, outputs, d)) {
		arena_free(a);
		return EXIT_INPUT;
	}
	if (!mkdtemp(dir)) {
		diag_error(d, "/tmp", "cannot make a folder: %s", strerror(errno));
		arena_free(a);
		return EXIT_RUN;
	}
	const char *program = keep ? keep : arena_printf(a, "%s/program", dir);
	const char *source = arena_printf(a, "%s/c", dir);
	const char *from = stage_inputs(m, inputs, dir, a, d);
	if (from && codegen_write(&(Sizes){1, {{{m}}}, {NULL}}, o, source, d)) {
		status = EXIT_RUN; /* from here on a failure is not the input's fault */
		const char *path = strchr(program, '/') ? program : arena_printf(a, "./%s", program);
		char *argv[] = {arena_strdup(a, path), "--infer", arena_strdup(a, from), arena_strdup(a, outputs), NULL};
		if (codegen_compile(source, m, o, program, d))
			status = run_program(argv, d);
	}
	char *cleanup[] = {"rm", "-rf", dir, NULL};
	run_program(cleanup, d);
	arena_free(a);
	return status;
}
