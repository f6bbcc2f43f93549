/* frontend/frontend.h: an exported ONNX model becomes a Module at level MODEL. */
#ifndef SHARDC_FRONTEND_H
#define SHARDC_FRONTEND_H

#include "base/options.h"
#include "ir/ir.h"

/* How a model is read; zero is the default of every field. */
typedef struct FrontendOptions {
	GraphOptions graph;         /* the user's; of --freeze only a report is made: pass autodiff freezes */
	const char *inputs;         /* folder of input_K.pb or .npy: small inputs in it may be used at compile time,
	                               where a shape depends on them; NULL = none */
	bool shapes_only;           /* nothing is made that needs weights: external data that holds them stays closed */
	bool init_elsewhere;        /* the data of parameters and batch norm statistics are not wanted, only shapes */
	bool say_roles;             /* report what initializers were taken for */
	bool infer;                 /* forward only: nodes mean what ONNX says, no input has a sample axis */
} FrontendOptions;

/* Reads the model at path.  The module's forward section holds inputs, parameters, buffers and data as
 * symbols, and one `output` op per graph output.  Weights stay in their files (Symbol.src).  Reports all
 * problems that it finds and returns NULL when there are any.  The module outlives nothing else. */
Module *onnx_load(const char *path, const FrontendOptions *o, Diag *d);

/* Where `shardc params` prints what each initializer is taken for. */
typedef struct ParamsPrint { FILE *out; bool json; } ParamsPrint;

/* Reads the model and prints that; false after errors. */
bool onnx_params(const char *path, const FrontendOptions *o, const ParamsPrint *to, Diag *d);

/* A tensor in memory, elements as in its dtype. */
typedef struct HostTensor {
	Type type;
	const void *data;
} HostTensor;

/* Reads a serialised TensorProto (the ONNX backend tests' *.pb).  Data is copied into the arena. */
bool onnx_tensor_load(const char *path, Arena *a, HostTensor *out, Diag *d);

/* The contents of a symbol as its Source says, in the symbol's type: copied, permuted or filled. */
bool source_load(const Module *m, const Symbol *s, Arena *a, HostTensor *out, Diag *d);

/* element of a host tensor as f64 or int64 */
double host_get_float(const HostTensor *t, int64_t i);
int64_t host_get_int(const HostTensor *t, int64_t i);

#endif
