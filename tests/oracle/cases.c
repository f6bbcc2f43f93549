/* tests/oracle/cases.c: three small models and the schedules that are made of them.
 *
 * gpt: embeddings, three blocks of attention and MLP, an untied head.  cnn: convolutions with batch norms in
 * residual blocks.  tied: the embedding is the head too, some parameters are frozen, one is read by an output
 * that the loss does not see.  One idea: models are written as ONNX in memory, so no Python is wanted. */
#include "tests/oracle/cases.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/onnx_model.h"

static const float ramp[] = {-0.5f, 0.25f, -0.125f, 0.5f, -0.25f, 0.375f, 0.125f};

static int put(char *at, size_t size, const char *fmt, ...) PRINTF_LIKE(3, 4);
static int put(char *at, size_t size, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(at, size, fmt, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= size)
		ice("\"%s\" is too long", fmt);
	return n;
}

/* ---- parts of models; scope "h.0.attn" gives node /h.0/attn/Op and parameters h.0.attn.weight ---- */

static void param(OnnxText *m, const char *scope, const char *name, const char *dims)
{
	char full[64];
	put(full, sizeof(full), "%s.%s", scope, name);
	model_floats(m, full, dims, COUNT_OF(ramp), ramp);
}

/* in and out: value names; operands of `params` are parameters of the scope, separated by commas. */
static Buf node(const char *scope, const char *op, const char *in, const char *params, const char *out)
{
	char name[96], operands[256];
	int n = put(name, sizeof(name), "/%s/%s", scope, op);
	for (int i = 0; i < n; i++)
		name[i] = name[i] == '.' && !(name[i + 1] >= '0' && name[i + 1] <= '9') ? '/' : name[i];
	n = put(operands, sizeof(operands), "%s", in);
	for (const char *p = params; *p; p += strcspn(p, ",") + (p[strcspn(p, ",")] == ','))
		n += put(operands + n, sizeof(operands) - (size_t)n, ",%s.%.*s", scope, (int)strcspn(p, ","), p);
	return node_text(name, op, operands, out);
}

static const char *value(char *at, const char *prefix, const char *name)
{
	put(at, 64, "%s_%s", prefix, name);
	return at;
}

/* y = x w + b */
static void linear(OnnxText *m, const char *scope, const char *x, const char *dims, const char *n_out, const char *y)
{
	char product[64];
	param(m, scope, "weight", dims);
	param(m, scope, "bias", n_out);
	model_node(m, node(scope, "MatMul", x, "weight", value(product, scope, "product")));
	model_node(m, node(scope, "Add", product, "bias", y));
}

static void norm(OnnxText *m, const char *scope, const char *x, const char *dim, const char *y)
{
	param(m, scope, "weight", dim);
	param(m, scope, "bias", dim);
	Buf n = node(scope, "LayerNormalization", x, "weight,bias", y);
	attr_i(&n, "axis", -1);
	model_node(m, n);
}

static void embedding(OnnxText *m, const char *scope, const char *dims, const char *ids, const char *y)
{
	char name[64], operands[128];
	param(m, scope, "weight", dims);
	put(name, sizeof(name), "/%s/Gather", scope);
	put(operands, sizeof(operands), "%s.weight,%s", scope, ids);
	model_op(m, name, "Gather", operands, y);
}

static void attention(OnnxText *m, const char *b, const char *x, const char *y)
{
	static const int64_t turn[] = {0, 2, 1};
	char s[64], q[64], k[64], v[64], t[64], scores[64], probs[64], o[64], in[160];
	put(s, sizeof(s), "%s.attn.q", b);
	linear(m, s, x, "16,16", "16", value(q, b, "q"));
	put(s, sizeof(s), "%s.attn.k", b);
	linear(m, s, x, "16,16", "16", value(k, b, "k"));
	put(s, sizeof(s), "%s.attn.v", b);
	linear(m, s, x, "16,16", "16", value(v, b, "v"));
	put(s, sizeof(s), "%s.attn", b);
	Buf n = node(s, "Transpose", k, "", value(t, b, "t"));
	attr_is(&n, "perm", 3, turn);
	model_node(m, n);
	put(in, sizeof(in), "%s,%s", q, t);
	model_node(m, node(s, "MatMul", in, "", value(scores, b, "scores")));
	model_node(m, node(s, "Softmax", scores, "", value(probs, b, "probs")));
	put(in, sizeof(in), "%s,%s", probs, v);
	model_node(m, node(s, "MatMul", in, "", value(o, b, "o")));
	put(s, sizeof(s), "%s.attn.proj", b);
	linear(m, s, o, "16,16", "16", y);
}

/* y = x + mlp(norm(x)), and with attention in front of it. */
static void block(OnnxText *m, int i, bool attends, const char *x, const char *y)
{
	char b[16], s[64], n1[64], at[64], mid[64], n2[64], up[64], act[64], down[64], in[160];
	put(b, sizeof(b), "h.%d", i);
	put(mid, sizeof(mid), "%s", x);
	if (attends) {
		put(s, sizeof(s), "%s.ln_1", b);
		norm(m, s, x, "16", value(n1, b, "n1"));
		attention(m, b, n1, value(at, b, "at"));
		put(in, sizeof(in), "%s,%s", x, at);
		model_node(m, node(b, "Add", in, "", value(mid, b, "mid")));
	}
	put(s, sizeof(s), "%s.ln_2", b);
	norm(m, s, mid, "16", value(n2, b, "n2"));
	put(s, sizeof(s), "%s.mlp.up", b);
	linear(m, s, n2, "16,32", "32", value(up, b, "up"));
	put(s, sizeof(s), "%s.mlp", b);
	model_node(m, node(s, "Relu", up, "", value(act, b, "act")));
	put(s, sizeof(s), "%s.mlp.down", b);
	linear(m, s, act, "32,16", "16", value(down, b, "down"));
	put(in, sizeof(in), "%s,%s", mid, down);
	model_node(m, node(b, "Add", in, "", y));
}

/* ---- the models ---- */

static OnnxText *gpt(void)
{
	static const int64_t positions[] = {0, 1, 2, 3, 4, 5, 6, 7};
	OnnxText *m = model_new();
	model_input(m, "ids", 7, "4,8");
	model_ints(m, "positions", 8, positions);
	embedding(m, "wte", "32,16", "ids", "tokens");
	embedding(m, "wpe", "8,16", "positions", "places");
	model_op(m, "/Add", "Add", "tokens,places", "x0");
	block(m, 0, true, "x0", "x1");
	block(m, 1, true, "x1", "x2");
	block(m, 2, true, "x2", "x3");
	norm(m, "ln_f", "x3", "16", "last");
	param(m, "head", "weight", "16,32");
	model_op(m, "/head/MatMul", "MatMul", "last,head.weight", "logits");
	model_output(m, "logits");
	return m;
}

static OnnxText *tied(void)
{
	static const int64_t turn[] = {1, 0};
	OnnxText *m = model_new();
	model_input(m, "ids", 7, "4,8");
	embedding(m, "wte", "32,16", "ids", "x0");
	block(m, 0, false, "x0", "x1");
	block(m, 1, false, "x1", "x2");
	block(m, 2, false, "x2", "x3");
	Buf n = node_text("/head/Transpose", "Transpose", "wte.weight", "table");
	attr_is(&n, "perm", 2, turn);
	model_node(m, n);
	model_op(m, "/head/MatMul", "MatMul", "x3,table", "logits");
	param(m, "extra", "weight", "16");
	model_op(m, "/extra/Mul", "Mul", "x2,extra.weight", "seen");
	model_output(m, "logits");
	model_output(m, "seen");
	return m;
}

static void conv(OnnxText *m, const char *scope, const char *x, const char *dims, const char *y)
{
	static const int64_t pads[] = {1, 1, 1, 1};
	char s[64], c[64], channels[8];
	put(channels, sizeof(channels), "%.*s", (int)strcspn(dims, ","), dims);
	put(s, sizeof(s), "%s.conv", scope);
	param(m, s, "weight", dims);
	Buf n = node(s, "Conv", x, "weight", value(c, s, "y"));
	attr_is(&n, "pads", 4, pads);
	model_node(m, n);
	put(s, sizeof(s), "%s.bn", scope);
	static const char *const parts[] = {"weight", "bias", "running_mean", "running_var"};
	for (int i = 0; i < COUNT_OF(parts); i++)
		param(m, s, parts[i], channels);
	model_node(m, node(s, "BatchNormalization", c, "weight,bias,running_mean,running_var", y));
}

static OnnxText *cnn(void)
{
	OnnxText *m = model_new();
	char s[32], x[32] = "a0", y[32], z[64], in[128];
	model_input(m, "x", 1, "4,3,6,6");
	conv(m, "stem", "x", "8,3,3,3", "c0");
	model_op(m, "/stem/Relu", "Relu", "c0", "a0");
	for (int i = 0; i < 3; i++) {
		put(s, sizeof(s), "layer.%d.first", i);
		conv(m, s, x, "8,8,3,3", value(z, s, "z"));
		model_node(m, node(s, "Relu", z, "", value(in, s, "relu")));
		put(s, sizeof(s), "layer.%d.second", i);
		conv(m, s, in, "8,8,3,3", value(z, s, "z"));
		put(s, sizeof(s), "layer.%d", i);
		put(in, sizeof(in), "%s,%s", z, x);
		model_node(m, node(s, "Add", in, "", value(z, s, "sum")));
		put(y, sizeof(y), "a%d", i + 1);
		model_node(m, node(s, "Relu", z, "", y));
		put(x, sizeof(x), "%s", y);
	}
	model_op(m, "/pool/GlobalAveragePool", "GlobalAveragePool", x, "pooled");
	model_op(m, "/Flatten", "Flatten", "pooled", "features");
	linear(m, "fc", "features", "8,5", "5", "logits");
	model_output(m, "logits");
	return m;
}

/* ---- the schedules ---- */

const Case cases[] = {
#define CASE(m, s, ...) {.model = #m, .strategy = #s, __VA_ARGS__},
#include "tests/oracle/cases.def"
};
const int n_cases = COUNT_OF(cases);

const char *case_name(const Case *c, Arena *a)
{
	static const char *const syncs[] = {[BN_SYNC_SYNC] = "sync", [BN_SYNC_BROADCAST] = "broadcast"};
	const char *const part[][2] = {{" --wrap=", c->wrap}, {" --forward-prefetch=", c->forward},
		{" --backward-prefetch=", c->backward}, {" --limit-all-gathers=", c->limit},
		{" --limit-reduces=", c->reduces},
		{" --unit-strategy=", c->unit_strategy}, {" --ignore=", c->ignore},
		{" --reshard-root", c->reshard_root ? "" : NULL}, {" --remat=", c->remat},
		{" --update=", c->early ? "backward" : NULL},
		{" --bn-sync=", syncs[c->bn_sync]}, {" --param-dtype=", c->param ? dtype_info[c->param].text : NULL},
		{" --reduce-dtype=", c->reduce ? dtype_info[c->reduce].text : NULL},
		{" --bcast-dtype=", c->bcast ? dtype_info[c->bcast].text : NULL},
		{" --sync=", c->sync ? sync_text[c->sync] : NULL}, {" ", c->sync ? variant_text[c->variant] : NULL}};
	const char *name = arena_printf(a, "%s %s", c->model, c->strategy);
	for (int i = 0; i < COUNT_OF(part); i++)
		if (part[i][1])
			name = arena_printf(a, "%s%s%s", name, part[i][0], part[i][1]);
	return name;
}

static Module *load(const Case *c, Diag *d)
{
	OnnxText *m = !strcmp(c->model, "gpt") ? gpt() : !strcmp(c->model, "cnn") ? cnn() : tied();
	Loaded l = load_model(m, NULL);
	if (!l.m)
		diag_error(d, c->model, "%s", l.log);
	free(l.log);
	return l.m;
}

static OptionList one(const char *text)
{
	return (OptionList){{text}, text != NULL};
}

Options case_options(const Case *c)
{
	bool is_tied = !strcmp(c->model, "tied");
	Options o = {
		.graph = {.loss = is_tied ? "cross_entropy:logits=logits" : "cross_entropy", .clip = c->early ? NULL : "2",
			.update = c->early ? UPDATE_IN_BACKWARD : UPDATE_AT_END,
			.freeze = {{"h\\.0\\.mlp\\.up|h\\.1\\.ln_2\\.bias"}, is_tied}, .bn_sync = c->bn_sync,
			.accum = c->sync == SYNC_NONE ? ACCUM_ONE : ACCUM_MANY},
		.sharding = {.wrap = one(c->wrap), .forward_prefetch = c->forward,
			.backward_prefetch = c->backward, .limit_all_gathers = c->limit, .limit_reduces = c->reduces,
			.unit_strategy = one(c->unit_strategy),
			.ignore = one(c->ignore), .reshard_root = c->reshard_root, .world = 3},
		.precision = {.param_dtype = c->param, .reduce_dtype = c->reduce, .bcast_dtype = c->bcast},
		.memory = {.remat = c->remat, .workspace = (int64_t)1 << 20},
	};
	strategy_from_text(c->strategy, &o.sharding.strategy);
	o.given.bcast_dtype = c->bcast != DT_F32;
	return o;
}

static Module *build(const Case *c, const char *stop_after, const char *schedule, Variants *v, Diag *d)
{
	Options o = case_options(c);
	PipelineView view = {.out = d->out, .stop_after = stop_after};
	Module *m = load(c, d);
	o.sharding.schedule_in = schedule;
	*v = (Variants){.of[VARIANT_ONLY] = m};
	bool built = m && (c->sync ? pipeline_fork(m, &o, &view, c->sync, c->variant, v, d)
		: pipeline_run(m, &o, &view, NULL, d));
	if (built)
		return v->of[c->variant];
	pipeline_free(v);
	*v = (Variants){0};
	return NULL;
}

Module *case_build(const Case *c, const char *schedule, Variants *v, Diag *d)
{
	return build(c, NULL, schedule, v, d);
}

const char *case_text(const Case *c, const char *pass, Arena *a, Diag *d)
{
	Variants v;
	const Module *m = build(c, pass, NULL, &v, d);
	const char *text = m ? ir_text(m, a) : NULL;
	pipeline_free(&v);
	return text;
}
