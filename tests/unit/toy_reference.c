/* tests/unit/toy_reference.c: inputs of the program of toy.h, and the same program in f64. */
#include "tests/unit/toy_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/filehash.h"
#include "tests/unit/unit.h"

/* ---- files ---- */

void toy_draw(ToyData *d, int n)
{
	d->n = n;
	srand(7);
	for (int i = 0; i < n; i++) {
		d->labels[i] = i * 7 % TOY_C;
		for (int k = 0; k < TOY_D; k++)
			d->x[i][k] = (float)(rand() % 1000) / 500 - 1;
	}
}

void toy_write_data(const ToyData *d)
{
	npy_write("x.npy", DT_F32, 2, (int64_t[]){d->n, TOY_D}, d->x);
	npy_write("labels.npy", DT_I64, 1, (int64_t[]){d->n}, d->labels);
}

double toy_first(int k)
{
	return k < TOY_BIAS_AT ? (k / TOY_D - 1) * 0.125 + k % TOY_D * 0.0625 : 0.25;
}

/* The weight alone, transposed, behind eight bytes of something else. */
void toy_write_weights(void)
{
	double file[1 + TOY_BIAS_AT] = {-1};
	for (int k = 0; k < TOY_BIAS_AT; k++)
		file[1 + k % TOY_D * TOY_C + k / TOY_D] = toy_first(k);
	FILE *f = fopen("weights.bin", "wb");
	if (!f || fwrite(file, sizeof(file), 1, f) != 1 || fclose(f))
		ice("cannot write weights.bin");
	toy_files[0].bytes = sizeof(file);
	toy_files[0].hash = filehash_sampled(file, sizeof(file));
}

void toy_read_tensor(const char *file, const char *name, double *out)
{
	Arena *a = arena_new();
	Diag d = {.out = stderr};
	SafeFile *f = safetensors_open(a, file, &d);
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	const SafeTensor *t = safetensors_find(f, name);
	CU_ASSERT_PTR_NOT_NULL_FATAL(t);
	for (int64_t i = 0; i < t->bytes / 4; i++) {
		float v;
		memcpy(&v, (const char *)t->data + 4 * i, 4);
		out[i] = v;
	}
	safetensors_close(f);
	arena_free(a);
}

void toy_read_trained(const char *dir, double *p)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/latest/model.safetensors", dir);
	toy_read_tensor(path, "fc.weight", p);
	toy_read_tensor(path, "fc.bias", p + TOY_BIAS_AT);
}

/* ---- the program ---- */

void toy_reference(ToyReference *r)
{
	for (int k = 0; k < TOY_P; k++)
		r->p[k] = toy_first(k);
}

void toy_gradient(ToyReference *r, const ToyData *data, int64_t first, int n, double *g)
{
	r->loss = r->norm = r->right = 0;
	r->valid = 0;
	memset(g, 0, TOY_P * sizeof(*g));
	for (int b = 0; b < n; b++) {
		int64_t i = (first + b) % data->n, label = data->labels[i];
		double y[TOY_C], z = 0;
		int best = 0;
		for (int c = 0; c < TOY_C; c++) {
			y[c] = r->p[TOY_BIAS_AT + c];
			for (int d = 0; d < TOY_D; d++)
				y[c] += r->p[c * TOY_D + d] * ((double)data->x[i][d] * 2.0 + 0.5);
			z += exp(y[c]);
			best = y[c] > y[best] ? c : best;
		}
		if (label < 0)
			continue;
		r->valid++;
		r->right += best == label;
		r->loss += log(z) - y[label];
		for (int c = 0; c < TOY_C; c++) {
			double dy = exp(y[c]) / z - (c == label);
			g[TOY_BIAS_AT + c] += dy;
			for (int d = 0; d < TOY_D; d++)
				g[c * TOY_D + d] += dy * ((double)data->x[i][d] * 2.0 + 0.5);
		}
	}
	r->loss /= r->valid;
	for (int k = 0; k < TOY_P; k++) {
		g[k] /= r->valid;
		r->norm += g[k] * g[k];
	}
	r->norm = sqrt(r->norm);
}
