/* tests/unit/onnx_model.h: small ONNX models written byte by byte, and loaded. */
#ifndef SHARDC_TEST_ONNX_MODEL_H
#define SHARDC_TEST_ONNX_MODEL_H

#include "frontend/frontend.h"

/* A model under construction; fields are serialised messages. */
typedef struct OnnxText {
	Buf graph, functions, metadata;
	int ir_version, opset;
	const char *producer;
	const char *domain;  /* one more domain, of which version 1 is imported; NULL: none */
} OnnxText;

/* ---- the wire format ---- */
void pb_int(Buf *b, int field, int64_t v);
void pb_str(Buf *b, int field, const char *s);
void pb_bytes(Buf *b, int field, const void *p, size_t n);
void pb_msg(Buf *b, int field, Buf *msg); /* frees msg */

/* ---- parts; lists are separated by commas ---- */
OnnxText *model_new(void);
Buf node_text(const char *name, const char *op, const char *in, const char *out); /* a NodeProto to add to */
void attr_i(Buf *node, const char *name, int64_t v);
void attr_f(Buf *node, const char *name, float v);
void attr_s(Buf *node, const char *name, const char *v);
void attr_is(Buf *node, const char *name, int n, const int64_t *v);
void attr_ref(Buf *node, const char *name, const char *of);
void attr_graph(Buf *node, const char *name, Buf *graph); /* frees graph */
void node_metadata(Buf *node, const char *key, const char *value);
/* dynamo's trace of it: call is an op of aten with its arguments, "mul.Tensor(%x, %p_w)". */
void node_fx(Buf *node, const char *result, const char *call);
void node_scope(Buf *node, const char *scope);            /* "layer1.fc": of the module that it comes from */
void model_node(OnnxText *m, Buf node);                   /* frees node */
void model_op(OnnxText *m, const char *name, const char *op, const char *in, const char *out);
void model_input(OnnxText *m, const char *name, int dtype, const char *dims); /* "2,N,3" */
void model_output(OnnxText *m, const char *name);
/* An f32 initializer; values cycle through v. */
void model_floats(OnnxText *m, const char *name, const char *dims, int n, const float *v);
void model_ints(OnnxText *m, const char *name, int n, const int64_t *v); /* one dim */
void model_external(OnnxText *m, const char *name, const char *dims, const char *location, const char *offset,
	const char *length);
void model_info(OnnxText *m, const char *name, const char *key, const char *value); /* metadata of a value */
void model_metadata(OnnxText *m, const char *key, const char *value); /* of the model itself */
void model_signature(OnnxText *m, const char *lines);       /* of dynamo: parameters and buffers by their arguments */
void function_node(Buf *function, Buf node);              /* frees node */
void model_function(OnnxText *m, Buf function);           /* frees function */
Buf model_bytes(OnnxText *m);                             /* frees m */
/* y = op(x, tensor) with an input x of these dims and an initializer of elements 1, 2, .. 11, 1, .. */
OnnxText *model_of_op(const char *node, const char *op, const char *x, const char *tensor, const char *dims);

/* ---- loading ---- */

typedef struct Loaded {
	Module *m;   /* NULL after errors */
	char *log;   /* what was reported */
	int errors;
} Loaded;
/* Writes the bytes to a file and loads it. */
Loaded load_bytes(const void *p, size_t n, const FrontendOptions *o);
Loaded load_model(OnnxText *m, const FrontendOptions *o); /* frees m */
void loaded_free(Loaded *l);
const char *model_folder(void);                           /* where load_bytes writes; made once */
const Op *find_op(const Module *m, OpKind kind);          /* the first in forward, or NULL */
int count_ops(const Module *m, OpKind kind);

#endif
