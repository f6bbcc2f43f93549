/* tests/e2e/chain_models.c: models of n nodes, operands, results or parts of a name.
 *
 * Each kind grows in one direction, so that the time for one of the n tells whether the compiler's is in proportion. */
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/chain_models.h"

enum { FLOAT = 1, INT64 = 7 };
static const float ramp[] = {-0.5f, 0.25f, -0.125f, 0.5f, -0.25f, 0.375f, 0.125f};

void model_mean(OnnxText *m, const char *last)
{
	Buf mean = node_text("/mean", "ReduceMean", last, "y");
	attr_i(&mean, "keepdims", 0);
	model_node(m, mean);
	model_output(m, "y");
}

/* ---- chains ---- */

/* n nodes of which each reads the one before. */
static OnnxText *elementwise_chain(int n)
{
	static const char *const op[] = {"Tanh", "Neg", "Sigmoid", "Abs", "Relu"};
	static const float ones[] = {1};
	OnnxText *m = model_new();
	char in[32] = "v", out[32], name[32];
	model_input(m, "x", FLOAT, "8,16");
	model_floats(m, "scale.weight", "16", 1, ones);
	model_op(m, "/scale/Mul", "Mul", "x,scale.weight", "v");
	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "/act/%d", i);
		snprintf(out, sizeof(out), "v%d", i);
		model_op(m, name, op[i % COUNT_OF(op)], in, out);
		memcpy(in, out, sizeof(in));
	}
	model_mean(m, in);
	return m;
}

/* Linear layers with an activation and a residual sum, four nodes each. */
static OnnxText *layer_chain(int n)
{
	OnnxText *m = model_new();
	char x[32] = "x", weight[64], bias[64], name[64], in[128], out[32];
	model_input(m, "x", FLOAT, "8,16");
	for (int i = 0; i < n / 4; i++) {
		snprintf(weight, sizeof(weight), "l.%d.weight", i);
		snprintf(bias, sizeof(bias), "l.%d.bias", i);
		model_floats(m, weight, "16,16", 7, ramp);
		model_floats(m, bias, "16", 7, ramp);
		static const char *const op[] = {"MatMul", "Add", "Tanh", "Add"};
		for (int k = 0; k < COUNT_OF(op); k++) {
			snprintf(name, sizeof(name), "/l.%d/%s_%d", i, op[k], k);
			const char *first = k == 0 ? x : out, *second = k == 0 ? weight : k == 1 ? bias : k == 3 ? x : "";
			snprintf(in, sizeof(in), "%s%s%s", first, *second ? "," : "", second);
			snprintf(out, sizeof(out), "v%d_%d", i, k);
			model_op(m, name, op[k], in, out);
		}
		memcpy(x, out, sizeof(x));
	}
	model_mean(m, x);
	return m;
}

/* ---- one large node ---- */

/* A module n levels deep, whose name TorchScript writes into its node's. */
static OnnxText *deep_module(int n)
{
	OnnxText *m = model_new();
	Buf name = {0};
	for (int i = 0; i < n; i++)
		buf_printf(&name, "/%c", "ab"[i % 2]);
	buf_printf(&name, "/MatMul");
	model_input(m, "x", FLOAT, "8,16");
	model_floats(m, "w.weight", "16,16", 7, ramp);
	model_op(m, name.at, "MatMul", "x,w.weight", "h");
	model_mean(m, "h");
	buf_free(&name);
	return m;
}

/* "p0,p1,.." */
static Buf numbered(const char *p, int n)
{
	Buf b = {0};
	for (int i = 0; i < n; i++)
		buf_printf(&b, "%s%s%d", i ? "," : "", p, i);
	return b;
}

/* x is split into n parts, which n nodes change and one puts together. */
static OnnxText *wide_split(int n)
{
	OnnxText *m = model_new();
	char dims[32], name[32], in[32], out[32];
	Buf parts = numbered("part", n), changed = numbered("changed", n);
	snprintf(dims, sizeof(dims), "8,%d", 2 * n);
	model_input(m, "x", FLOAT, dims);
	model_floats(m, "scale.weight", "1", 1, ramp);
	model_op(m, "/Mul", "Mul", "x,scale.weight", "v");
	Buf split = node_text("/Split", "Split", "v", parts.at);
	attr_i(&split, "axis", 1);
	attr_i(&split, "num_outputs", n);
	model_node(m, split);
	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "/Tanh_%d", i);
		snprintf(in, sizeof(in), "part%d", i);
		snprintf(out, sizeof(out), "changed%d", i);
		model_op(m, name, "Tanh", in, out);
	}
	Buf concat = node_text("/Concat", "Concat", changed.at, "all");
	attr_i(&concat, "axis", 1);
	model_node(m, concat);
	model_mean(m, "all");
	buf_free(&parts);
	buf_free(&changed);
	return m;
}

/* ---- names ---- */

/* n layers, whose weights have names of TorchScript's: the modules that nodes' names tell give each its own. */
static OnnxText *unnamed_weights(int n, int modules, int weights)
{
	OnnxText *m = model_new();
	char x[32] = "x", weight[64], name[64], in[128], out[32];
	model_input(m, "x", FLOAT, "8,16");
	for (int i = 0; i < n; i++) {
		snprintf(weight, sizeof(weight), "onnx::MatMul_%d", 100 + 3 * (i % weights));
		snprintf(name, sizeof(name), "/l%d/MatMul_%d", i % modules, i);
		snprintf(in, sizeof(in), "%s,%s", x, weight);
		snprintf(out, sizeof(out), "v%d", i);
		if (i < weights)
			model_floats(m, weight, "16,16", 7, ramp);
		model_op(m, name, "MatMul", in, out);
		memcpy(x, out, sizeof(x));
	}
	model_mean(m, x);
	return m;
}

static OnnxText *weights_of_modules(int n) { return unnamed_weights(n, n, n); }
static OnnxText *weights_of_one(int n) { return unnamed_weights(n, 1, n); }
static OnnxText *shared_weight(int n) { return unnamed_weights(n, n, 1); }

/* n embedding tables and n heads, each of which might be the transpose of any table. */
static OnnxText *tables_and_heads(int n)
{
	OnnxText *m = model_new();
	char sum[32] = "", table[64], head[64], name[64], in[128], out[32];
	model_input(m, "x", INT64, "8");
	for (int i = 0; i < n; i++) {
		snprintf(table, sizeof(table), "e.%d.weight", i);
		snprintf(head, sizeof(head), "onnx::MatMul_%d", 100 + i);
		model_floats(m, table, "8,4", 7, ramp);
		model_floats(m, head, "4,8", 5, ramp);
		snprintf(in, sizeof(in), "%s,x", table);
		snprintf(out, sizeof(out), "e%d", i);
		snprintf(name, sizeof(name), "/e.%d/Gather", i);
		model_op(m, name, "Gather", in, out);
		snprintf(in, sizeof(in), "e%d,%s", i, head);
		snprintf(out, sizeof(out), "h%d", i);
		snprintf(name, sizeof(name), "/head.%d/MatMul", i);
		model_op(m, name, "MatMul", in, out);
		if (*sum) {
			snprintf(in, sizeof(in), "%s,%s", sum, out);
			snprintf(out, sizeof(out), "s%d", i);
			snprintf(name, sizeof(name), "/Add_%d", i);
			model_op(m, name, "Add", in, out);
		}
		memcpy(sum, out, sizeof(sum));
	}
	model_mean(m, sum);
	return m;
}

/* ---- blocks ---- */

static void block_op(OnnxText *m, int block, const char *scope, const char *op, const char *in, const char *out)
{
	char name[96], operands[160], result[64];
	snprintf(name, sizeof(name), "/h.%d/%s/%s", block, scope, op);
	snprintf(operands, sizeof(operands), "%s", in);
	snprintf(result, sizeof(result), "%s", out);
	model_op(m, name, op, operands, result);
}

static void block_linear(OnnxText *m, int block, const char *scope, const char *dims, const char *in, const char *out)
{
	char weight[64], operands[160];
	snprintf(weight, sizeof(weight), "h.%d.%s.weight", block, scope);
	snprintf(operands, sizeof(operands), "%s,%s", in, weight);
	model_floats(m, weight, dims, 7, ramp);
	block_op(m, block, scope, "MatMul", operands, out);
}

/* n blocks of a gated MLP, each of several modules of unlike sizes, between a layer and a head larger than a block. */
static OnnxText *block_chain(int n)
{
	OnnxText *m = model_new();
	char x[32] = "x0", in[64], out[32];
	model_input(m, "x", FLOAT, "8,512");
	model_floats(m, "in.weight", "512,64", 7, ramp);
	model_op(m, "/in/MatMul", "MatMul", "x,in.weight", x);
	for (int i = 0; i < n; i++) {
		char up[32], gate[32], open[32], mix[32], wide[32], down[32];
		snprintf(up, sizeof(up), "up%d", i), snprintf(gate, sizeof(gate), "gate%d", i);
		snprintf(open, sizeof(open), "open%d", i), snprintf(mix, sizeof(mix), "mix%d", i);
		snprintf(wide, sizeof(wide), "wide%d", i), snprintf(down, sizeof(down), "down%d", i);
		block_linear(m, i, "mix", "64,64", x, mix);
		block_linear(m, i, "gate", "64,128", mix, gate);
		block_op(m, i, "act", "Sigmoid", gate, open);
		block_linear(m, i, "up", "64,128", mix, up);
		snprintf(in, sizeof(in), "%s,%s", open, up);
		block_op(m, i, "mlp", "Mul", in, wide);
		block_linear(m, i, "down", "128,64", wide, down);
		snprintf(in, sizeof(in), "%s,%s", down, x);
		snprintf(out, sizeof(out), "x%d", i + 1);
		block_op(m, i, "sum", "Add", in, out);
		memcpy(x, out, sizeof(x));
	}
	model_floats(m, "norm.weight", "64", 7, ramp);
	snprintf(in, sizeof(in), "%s,norm.weight", x);
	model_op(m, "/norm/Mul", "Mul", in, "normed");
	model_floats(m, "head.weight", "64,512", 7, ramp);
	model_op(m, "/head/MatMul", "MatMul", "normed,head.weight", "logits");
	model_mean(m, "logits");
	return m;
}

/* ---- the table ---- */

typedef struct Kind { const char *name; OnnxText *(*make)(int n); } Kind;
static const Kind kinds[] = {
	{"elementwise", elementwise_chain}, {"layers", layer_chain}, {"path", deep_module}, {"split", wide_split},
	{"weights", weights_of_modules}, {"module", weights_of_one}, {"shared", shared_weight},
	{"tables", tables_and_heads}, {"blocks", block_chain},
};

int put_chain(const char *kind, int n)
{
	for (int i = 0; i < COUNT_OF(kinds); i++) {
		if (strcmp(kinds[i].name, kind))
			continue;
		Buf b = model_bytes(kinds[i].make(n));
		bool ok = fwrite(b.at, 1, b.n, stdout) == b.n;
		buf_free(&b);
		return !ok;
	}
	fprintf(stderr, "models: there is no chain \"%s\"\n", kind);
	return 2;
}
