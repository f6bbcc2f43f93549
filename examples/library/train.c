/* examples/library/train.c: a training loop written in C around a compiled model, the one of examples/text.
 *
 *   shardc examples/text/text.onnx --emit=lib -o build/textlib --loss=cross_entropy --bind batch=8
 *   make -C examples/library MODEL=$PWD/build/textlib
 *   examples/library/train examples/text/tokens_train.npy 20 --lr=1e-3
 *
 * Prints the loss of each step, equal to the last digit to those of the binary with --tokens.  For several ranks, start
 * it with a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <model.h>

typedef struct Tokens { unsigned char *at; int64_t n; int bytes; } Tokens;

/* A one-dimensional .npy file of 8- or 16-bit numbers: a text header, then the numbers. */
static int read_tokens(const char *path, Tokens *t)
{
	char head[1024] = "";
	FILE *f = fopen(path, "rb");
	if (!f || fread(head, 1, 10, f) != 10 || memcmp(head, "\x93NUMPY\x01", 7))
		return 0;
	size_t text = (unsigned char)head[8] + 256 * (size_t)(unsigned char)head[9];
	if (text >= sizeof(head) || fread(head, 1, text, f) != text)
		return 0;
	head[text] = 0;
	t->bytes = strstr(head, "|u1") ? 1 : strstr(head, "<u2") ? 2 : 0;
	fseek(f, 0, SEEK_END);
	size_t bytes = (size_t)ftell(f) - 10 - text;
	t->n = t->bytes ? (int64_t)bytes / t->bytes : 0;
	t->at = malloc(bytes);
	fseek(f, (long)(10 + text), SEEK_SET);
	int ok = t->n && t->at && fread(t->at, 1, bytes, f) == bytes;
	fclose(f);
	return ok;
}

static int64_t token(const Tokens *t, int64_t i)
{
	return t->bytes == 1 ? t->at[i] : t->at[2 * i] + 256 * t->at[2 * i + 1];
}

static int fail(Model *m, const char *what, int code)
{
	fprintf(stderr, "%s failed (%d):\n%s", what, code, model_error(m));
	model_destroy(m);
	return code;
}

/* Sample i is tokens [iT, iT + T); its labels are the next ones. */
static void fill(const Tokens *t, int64_t sample, int64_t length, int64_t *x, int64_t *labels)
{
	for (int64_t k = 0; k < length; k++) {
		x[k] = token(t, sample * length + k);
		labels[k] = token(t, sample * length + k + 1);
	}
}

/* The input that is not the labels; t gets its description.  NULL when there is none. */
static const char *find_input(const Model *m, ModelTensor *t)
{
	for (int i = 0; model_get_tensor(m, i, t); i++)
		if (!strcmp(t->kind, "input") && strcmp(t->name, "labels"))
			return t->name;
	return NULL;
}

static int train(Model *m, const Tokens *tokens, int64_t steps)
{
	ModelTensor t;
	const char *name = find_input(m, &t);
	int64_t rows = model_rows(m), world = model_world(m), length = t.shape[1], shape[] = {rows, length};
	int64_t samples = (tokens->n - 1) / length, *x = calloc((size_t)(2 * rows * length), sizeof(*x));
	int64_t *labels = x + rows * length;
	const ModelArray inputs[] = {{name, "i64", 2, shape, x}, {"labels", "i64", 2, shape, labels}};
	int code = MODEL_OK;
	ModelResult r;
	for (int64_t s = 0; s < steps && !code; s++) {
		int64_t first = (s * world + model_rank(m)) * rows;
		for (int64_t b = 0; b < rows; b++)
			fill(tokens, (first + b) % samples, length, x + b * length, labels + b * length);
		code = model_step(m, inputs, 2, &r);
		if (!code && model_rank(m) == 0)
			printf("%lld %.9g\n", (long long)r.step, r.loss);
	}
	free(x);
	return code;
}

int main(int argc, char **argv)
{
	Tokens tokens;
	Model *m;
	if (argc < 3 || !read_tokens(argv[1], &tokens)) {
		fprintf(stderr, "usage: train TOKENS.npy STEPS [--flag=value ...]: TOKENS.npy holds 8- or 16-bit numbers\n");
		return MODEL_USAGE;
	}
	int code = model_create((const char *const *)argv + 3, &m);
	if (code)
		return fail(m, "creating the model", code);
	code = train(m, &tokens, atoll(argv[2]));
	if (code)
		return fail(m, "a step", code);
	model_destroy(m);
	free(tokens.at);
	return 0;
}
