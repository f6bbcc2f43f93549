/* frontend/onnx_metadata.h: what shardc.export knew of the PyTorch module and wrote into the model (docs/export.md). */
#ifndef SHARDC_ONNX_METADATA_H
#define SHARDC_ONNX_METADATA_H

#include "frontend/onnx_file.h"

typedef enum { META_PARAMETER, META_BUFFER, META_CONSTANT } MetaKind;

typedef struct MetaTensor {
	const char *name;         /* the first name that the framework has for it */
	const char *initializer;  /* the initializer that holds it; NULL: the graph does not use it */
	MetaKind kind;
	int rank;
	int64_t dim[IR_MAX_RANK];
	const char *dtype;        /* "float32" */
	bool trained;             /* requires_grad */
	bool persistent;          /* for a buffer: it is in the state_dict */
	VEC(const char *) alias;  /* further names of a tied tensor */
} MetaTensor;

/* A module whose behaviour depends on its mode (training or eval), or whose mode differs from the root module's. */
typedef struct MetaModule { bool training; } MetaModule;

typedef struct ExportMetadata {
	bool training;            /* the root module's mode */
	VEC(MetaTensor *) tensors;
	Map *by_initializer;      /* initializer name -> MetaTensor */
	Map *modules;             /* name -> MetaModule */
} ExportMetadata;

/* Reads all metadata and checks them against the graph's initializers; the result lives in a.  NULL: the model has no
 * metadata, or they are wrong; then each fault was reported with the name of its tensor or module. */
ExportMetadata *metadata_read(const OnnxModel *onnx, Arena *a, Diag *d);

#endif
