/* frontend/onnx_metadata.h: what shardc.export knew of the module and wrote into the model (docs/export.md). */
#ifndef SHARDC_ONNX_METADATA_H
#define SHARDC_ONNX_METADATA_H

#include "frontend/onnx_file.h"

typedef enum { META_PARAMETER, META_BUFFER, META_CONSTANT } MetaKind;

typedef struct MetaTensor {
	const char *name;         /* the framework's first name of it */
	const char *initializer;  /* that holds it; NULL: the graph does not use it */
	MetaKind kind;
	int rank;
	int64_t dim[IR_MAX_RANK];
	const char *dtype;        /* "float32" */
	bool trained;             /* requires_grad */
	bool persistent;          /* of a buffer: state_dict has it */
	VEC(const char *) alias;  /* its further names, as it is tied */
} MetaTensor;

/* A module whose behaviour depends on its mode, or whose mode is not the root's. */
typedef struct MetaModule { bool training; } MetaModule;

typedef struct ExportMetadata {
	bool training;            /* the root module's mode */
	VEC(MetaTensor *) tensors;
	Map *by_initializer;      /* -> MetaTensor */
	Map *modules;             /* name -> MetaModule */
} ExportMetadata;

/* Reads and checks all of it against the graph's initializers; everything lives in a.  NULL: the model has none, or it
 * is wrong, and every fault was reported with the tensor's or module's name. */
ExportMetadata *metadata_read(const OnnxModel *onnx, Arena *a, Diag *d);

#endif
