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

#include "base/narrow.h"
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

static bool write_file(const char *to, DType dtype, int rank, const int64_t *dim, const void *data, Diag *d)
{
	if (npy_write(to, dtype, rank, dim, data))
		return true;
	diag_error(d, to, "%s", strerror(errno));
	return false;
}

/* Whether a file for an input of a narrow type has its shape, and its numbers where it has the wide dtype. */
static bool fits(const Symbol *s, const Narrow *t, const Npy *file, Diag *d)
{
	const NpyHeader *h = &file->header;
	char has[160], wants[160];
	Type type = type_tensor(h->narrow ? t->wide : h->dtype, h->rank, h->dim);
	if (!type_equal(&type, &s->type)) {
		diag_error(d, file->path, "shape %s, input \"%s\" wants %s, or its type %s",
			npy_shape_text(has, sizeof(has), h->dtype, h->rank, h->dim), s->name,
			npy_shape_text(wants, sizeof(wants), t->wide, s->type.rank, s->type.dim), t->text);
		return false;
	}
	int64_t bad = h->narrow ? -1 : narrow_find_other(t, file->data, h->numel);
	if (bad >= 0)
		diag_error(d, file->path, "element %lld is no number of input \"%s\", whose type is %s", (long long)bad,
			s->name, t->text);
	return bad < 0;
}

/* Makes a file of NumPy's available, one of narrow elements in their wide dtype, which the program reads. */
static bool stage_npy(const Symbol *s, const char *npy, const char *to, Arena *a, Diag *d)
{
	const Narrow *t = s->narrow ? narrow_from_text(s->narrow) : NULL;
	Npy file;
	if (!t)
		return link_file(npy, to, d);
	if (!npy_open_any(&file, npy, d))
		return false;
	const NpyHeader *h = &file.header;
	void *wide = arena_alloc(a, (size_t)(dtype_info[t->wide].bytes * h->numel) + 1);
	bool ok = fits(s, t, &file, d);
	if (ok && h->narrow)
		narrow_widen(t, wide, file.data, h->numel);
	ok = ok && (h->narrow ? write_file(to, t->wide, h->rank, h->dim, wide, d) : link_file(npy, to, d));
	npy_close(&file);
	return ok;
}

/* Makes the file of the K-th input available as dir/input_K.npy. */
static bool stage_input(const Module *m, const Symbol *s, int k, const char *inputs, const char *dir, Arena *a, Diag *d)
{
	const char *to = arena_printf(a, "%s/input_%d.npy", dir, k);
	const char *pb = onnx_input_path(m, s, inputs, a), *npy = npy_input(a, inputs, s->name, k);
	if (npy)
		return stage_npy(s, npy, to, a, d);
	if (access(pb, R_OK)) {
		diag_error(d, inputs, "holds neither %s nor input_%d.npy nor %s",
			npy_path(a, inputs, s->name) + strlen(inputs) + 1, k, pb + strlen(inputs) + 1);
		return false;
	}
	HostTensor t;
	if (!onnx_input_load(m, s, inputs, a, &t, d))
		return false;
	return write_file(to, t.type.dtype, t.type.rank, t.type.dim, t.data, d);
}

/* The folder in which the program reads its inputs: the given one, so that messages name the user's files, or dir
 * if some inputs must be converted.  NULL after a message. */
static const char *stage_inputs(const Module *m, const char *inputs, const char *dir, Arena *a, Diag *d)
{
	bool ok = true, converts = false;
	int k = 0;
	for (int i = 0; i < m->n_symbols; i++)
		if (m->symbols[i]->kind == SYM_INPUT)
			converts = !npy_input(a, inputs, m->symbols[i]->name, k++) || m->symbols[i]->narrow || converts;
	k = 0;
	for (int i = 0; converts && i < m->n_symbols; i++)
		if (m->symbols[i]->kind == SYM_INPUT)
			ok = stage_input(m, m->symbols[i], k++, inputs, dir, a, d) && ok;
	return !ok ? NULL : converts ? dir : inputs;
}

/* Writes an output, which the program has left in the wide dtype, in its narrow type. */
static bool narrow_output(const Symbol *s, const char *outputs, Arena *a, Diag *d)
{
	const Narrow *t = s->narrow ? narrow_from_text(s->narrow) : NULL;
	const char *path = npy_path(a, outputs, s->name);
	Npy file;
	if (!t)
		return true;
	if (!npy_open(&file, path, d))
		return false;
	NpyHeader h = file.header;
	uint8_t *bytes = arena_alloc(a, (size_t)h.numel + 1);
	narrow_narrow(t, bytes, file.data, h.numel);
	npy_close(&file);
	if (npy_write_narrow(path, h.rank, h.dim, bytes))
		return true;
	diag_error(d, path, "%s", strerror(errno));
	return false;
}

static bool narrow_outputs(const Module *m, const char *outputs, Arena *a, Diag *d)
{
	bool ok = true;
	for (int i = 0; i < m->n_symbols; i++)
		if (m->symbols[i]->kind == SYM_OUTPUT)
			ok = narrow_output(m->symbols[i], outputs, a, d) && ok;
	return ok;
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
		if (!status && !narrow_outputs(m, outputs, a, d))
			status = EXIT_RUN;
	}
	char *cleanup[] = {"rm", "-rf", dir, NULL};
	run_program(cleanup, d);
	arena_free(a);
	return status;
}
