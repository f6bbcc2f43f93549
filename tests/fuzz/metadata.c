/* tests/fuzz/metadata.c: any bytes as the metadata "shardc" of a small model that is sound otherwise: a module whose
 * parameters and buffers are those of the model, or a message.  What each initializer is taken for is printed too.
 *
 * The first byte says how the model is read.  The model has what roles are told by: a tied weight, a batch norm with
 * running statistics, a dropout, a bias that nothing names and a tensor that the graph does not use. */
#include "tests/fuzz/fuzz.h"
#include "tests/unit/onnx_model.h"

enum { INFER = 1, STRICT = 2, SAY = 4, LISTED = 8, JSON = 16, TWICE = 32 };

static void gemm(OnnxText *m, const char *name, const char *in, const char *out)
{
	Buf n = node_text(name, "Gemm", in, out);
	attr_i(&n, "transB", 1);
	model_node(m, n);
}

static void add_metadata(OnnxText *m, const uint8_t *bytes, size_t n)
{
	Buf entry = {0};
	pb_str(&entry, 1, "shardc");
	pb_bytes(&entry, 2, bytes, n);
	pb_msg(&m->metadata, 14, &entry);
}

static Buf model(const uint8_t *json, size_t n, bool twice)
{
	static const float ramp[] = {1, 2, 3, 4, 5, 6, 7}, one[] = {1};
	OnnxText *m = model_new();
	m->producer = "pytorch";
	model_input(m, "x", 1, "4,3");
	model_floats(m, "fc.weight", "3,3", 7, ramp);
	model_floats(m, "fc.bias", "3", 7, ramp);
	model_floats(m, "bn.weight", "3", 1, one);
	model_floats(m, "bn.bias", "3", 7, ramp);
	model_floats(m, "bn.running_mean", "3", 7, ramp);
	model_floats(m, "bn.running_var", "3", 1, one);
	model_floats(m, "shift", "3", 2, ramp);
	model_floats(m, "unused", "2", 2, ramp);
	gemm(m, "/fc/Gemm", "x,fc.weight,fc.bias", "h");
	Buf bn = node_text("/bn/BatchNormalization", "BatchNormalization",
		"h,bn.weight,bn.bias,bn.running_mean,bn.running_var", "n");
	node_metadata(&bn, "pkg.torch.onnx.name_scopes", "['', 'bn']");
	model_node(m, bn);
	model_op(m, "/drop/Dropout", "Dropout", "n", "d");
	gemm(m, "/head/Gemm", "d,fc.weight", "z");
	model_op(m, "/Add", "Add", "z,shift", "y");
	model_output(m, "y");
	for (int i = 0; i <= twice; i++)
		add_metadata(m, json, n);
	return model_bytes(m);
}

/* Each initializer that the graph uses is one symbol, which is what it is named for at most once. */
static void check(Module *m, Diag *d)
{
	if (!ir_verify(m, NULL, d))
		abort();
	for (int i = 0; i < m->n_symbols; i++)
		for (int k = 0; k < m->symbols[i]->n_aliases; k++)
			if (!strcmp(m->symbols[i]->alias[k], m->symbols[i]->name))
				abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	static const char names[] = "fc.weight\nbn.weight\nshift\n";
	int how = n ? bytes[0] : 0;
	Buf text = model(bytes + (n > 0), n - (n > 0), how & TWICE), printed = {0};
	FuzzFile f = fuzz_file(text.at, text.n), list = fuzz_file(names, sizeof(names) - 1);
	FuzzLog *log = fuzz_log();
	FrontendOptions o = {.infer = how & INFER, .say_roles = how & SAY,
		.graph.strict_params = how & STRICT, .graph.trainable = how & LISTED ? list.path : NULL};
	Module *m = onnx_load(f.path, &o, &log->d);
	if (!m != (log->d.errors > 0))
		abort();
	if (m)
		check(m, &log->d);
	ir_module_free(m);
	ParamsPrint to = {open_memstream(&printed.at, &printed.n), how & JSON};
	onnx_params(f.path, &o, &to, &log->d);
	fclose(to.out);
	free(printed.at);
	fuzz_log_free(log);
	buf_free(&text);
	close(f.fd);
	close(list.fd);
	return 0;
}
