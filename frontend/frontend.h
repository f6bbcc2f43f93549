/* frontend/frontend.h: an exported ONNX model becomes a Module at level MODEL. */
#ifndef SHARDC_FRONTEND_H
#define SHARDC_FRONTEND_H

#include "base/options.h"
#include "ir/ir.h"

/* How a model is read; zero is the default of every field. */
typedef struct FrontendOptions {
	GraphOptions graph;         /* the user's; --freeze is only reported here, pass autodiff does the freezing */
	const char *inputs;         /* folder of input_K.pb or .npy: small inputs in it may be used at compile time,
	                               where a shape depends on them; NULL = none */
	bool shapes_only;           /* the result does not need weights, so files of external data are not opened */
	bool init_elsewhere;        /* parameters and batch norm statistics get their contents elsewhere; only their shapes
	                               are read */
	bool say_roles;             /* report what each initializer was taken for */
	int smaller;                /* of the sizes of --bind DIM=N,M,..: how many below the last, which is the largest */
	bool infer;                 /* forward only: nodes mean what ONNX says, and no input has a sample axis */
} FrontendOptions;

/* Reads the model at path.  The module's forward section holds inputs, parameters, buffers and data as symbols, and one
 * `output` op per graph output.  Weights stay in their files (Symbol.src).  All problems that are found are reported to
 * d; the result is NULL when there are any.  The caller owns the module, which keeps no pointer to o or to the open
 * model. */
Module *onnx_load(const char *path, const FrontendOptions *o, Diag *d);

/* An input as the model's file declares it. */
typedef struct DeclaredInput {
	const char *name;
	int rank;                       /* -1: the file does not say */
	int64_t dim[IR_MAX_RANK];       /* -1: free */
	const char *param[IR_MAX_RANK]; /* the name of a free dim; "": it has none */
} DeclaredInput;
typedef VEC(DeclaredInput) DeclaredInputVec;

/* Appends the inputs of the model at path that no initializer gives, in their order; strings are copied into the
 * arena.  False after an error. */
bool onnx_declared(const char *path, Arena *a, DeclaredInputVec *out, Diag *d);

/* Where `shardc params` prints what each initializer is taken for, as text or as JSON. */
typedef struct ParamsPrint { FILE *out; bool json; } ParamsPrint;

/* Reads the model and prints what each initializer is taken for; false after errors. */
bool onnx_params(const char *path, const FrontendOptions *o, const ParamsPrint *to, Diag *d);

/* A tensor in memory; its elements are stored as its dtype says. */
typedef struct HostTensor {
	Type type;
	const void *data;
} HostTensor;

/* Reads a serialised TensorProto (a .pb file of the ONNX backend tests).  The data is copied into the arena. */
bool onnx_tensor_load(const char *path, Arena *a, HostTensor *out, Diag *d);

typedef VEC(HostTensor) HostTensorVec;
/* Reads a serialised SequenceProto or OptionalProto: the tensors that it holds. */
bool onnx_list_load(const char *path, Arena *a, HostTensorVec *out, Diag *d);

/* Reads what a folder of the ONNX backend tests has for an input: DIR/input_K.pb of the K-th input of the graph, or one
 * element of the list in it.  An element of a list, "x.0" of "x", is an input symbol of its own. */
const char *onnx_input_path(const Module *m, const Symbol *s, const char *dir, Arena *a);
bool onnx_input_load(const Module *m, const Symbol *s, const char *dir, Arena *a, HostTensor *out, Diag *d);

/* Reads the contents of a symbol as its Source says and converts them to the symbol's type: they are copied, permuted
 * or filled with one value.  False after an error. */
bool source_load(const Module *m, const Symbol *s, Arena *a, HostTensor *out, Diag *d);

/* Element i of a host tensor, as f64 or as int64. */
double host_get_float(const HostTensor *t, int64_t i);
int64_t host_get_int(const HostTensor *t, int64_t i);

#endif
