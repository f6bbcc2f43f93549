/* runtime/train/infer.c: runs only forward, on one rank, from arrays to arrays, for `shardc run`.
 *
 * Every input is read whole from INDIR/NAME.npy, or INDIR/input_K.npy for the K-th; its shape must be exactly the
 * compiled one.  Outputs keep their element type; files are written only after the whole run has succeeded. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/train/train.h"

/* Puts samples where a step takes them from, and other inputs into their arena. */
static bool load_input(const Rt *rt, const RtTensor *t, int k, char *input, Diag *d)
{
	Arena *a = rt->p->arena;
	const char *folder = rt->p->options->infer.in, *path = npy_input(a, folder, t->name, k);
	char has[160], wants[160];
	Npy npy;
	if (!path) {
		diag_error(d, npy_path(a, folder, t->name), "input \"%s\" is neither here nor in input_%d.npy", t->name, k);
		return false;
	}
	if (!npy_open(&npy, path, d))
		return false;
	const NpyHeader *h = &npy.header;
	bool same = h->dtype == t->dtype && h->rank == t->rank;
	for (int i = 0; same && i < t->rank; i++)
		same = h->dim[i] == t->dim[i];
	if (same && t->batched)
		memcpy(input + t->offset, npy.data, (size_t)h->bytes);
	else if (same)
		device_put(rt, device_tensor(rt, t), npy.data, h->bytes);
	else
		diag_error(d, path, "shape %s, input \"%s\" wants %s",
			npy_shape_text(has, sizeof(has), h->dtype, h->rank, h->dim), t->name,
			npy_shape_text(wants, sizeof(wants), t->dtype, t->rank, t->dim));
	npy_close(&npy);
	return same;
}

static bool load_inputs(Rt *rt, Diag *d)
{
	char *input = step_input(rt);
	bool ok = true;
	int k = 0;
	for (int i = 0; i < rt->model->n_tensors; i++)
		if (rt->model->tensors[i].kind == RT_INPUT)
			ok &= load_input(rt, &rt->model->tensors[i], k++, input, d);
	return ok;
}

static bool write_outputs(const Rt *rt, Diag *d)
{
	const char *folder = rt->p->options->infer.out;
	if (mkdir(folder, 0777) && errno != EEXIST) {
		diag_error(d, folder, "%s", strerror(errno));
		return false;
	}
	for (int i = 0; i < rt->model->n_outputs; i++) {
		const RtOutput *o = &rt->model->outputs[i];
		const char *data =
			o->input >= 0 ? device_tensor(rt, &rt->model->tensors[o->input]) : rt->act + o->offset;
		const char *path = npy_path(rt->p->arena, folder, o->name);
		int64_t bytes = dtype_info[o->dtype].bytes;
		for (int k = 0; k < o->rank; k++)
			bytes *= o->dim[k];
		char *host = device_open(rt, data, bytes, DEVICE_READ);
		bool written = npy_write(path, o->dtype, o->rank, o->dim, host);
		device_close(rt, data, host, bytes, DEVICE_READ);
		if (!written) {
			diag_error(d, path, "%s", strerror(errno));
			return false;
		}
	}
	return true;
}

int infer_run(Rt *rt, Diag *d)
{
	BadInput bad;
	if (!rt->model->eval || !rt->model->n_outputs) {
		diag_error(d, rt->p->options->program,
			"this program was compiled for training: `shardc run` makes one for --infer");
		return 2;
	}
	step_open(rt);
	step_begin(rt, &(StepScalars){0});
	if (!load_inputs(rt, d) || !weights_load(rt, false, d))
		return 1;
	if (!streams_start(rt, false, d))
		return 1;
	if (!device_setup(rt, d))
		return 1;
	streams_program(rt, PROGRAM_EVAL);
	step_run(rt, PROGRAM_EVAL, 0);
	step_sums(rt);
	streams_program(rt, PROGRAM_OUTSIDE);
	if (report_take_bad_input(&bad)) {
		diag_error(d, rt->p->options->infer.in, "bad input: %s", bad.text);
		return 1;
	}
	return write_outputs(rt, d) ? 0 : 3;
}
