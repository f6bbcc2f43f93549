/* frontend/onnx_file.h: an ONNX file that is mapped and walked; for use inside frontend/ only. */
#ifndef SHARDC_ONNX_FILE_H
#define SHARDC_ONNX_FILE_H

#include "frontend/frontend.h"
#include "frontend/onnx.pb-c.h"

/* A range of bytes in a mapped file. */
typedef struct Span {
	const uint8_t *at;
	size_t n;
} Span;

typedef struct FileMap {
	const char *path;
	Span bytes;
} FileMap;

/* A TensorProto, read in place; all pointers point into the mapped file.  The data is in one of raw, the typed *_data
 * fields, or the external file. */
typedef struct OnnxTensor {
	const char *name;
	int data_type;           /* TensorProto.DataType */
	int rank;
	int64_t dim[IR_MAX_RANK];
	Span raw;                /* raw_data, or float_data and double_data when packed in one piece */
	bool has_raw, typed;     /* typed: the data is in *_data fields; to read them, proto is walked again */
	Span proto;              /* the whole message */
	bool external;
	const char *location;
	int64_t offset, length;  /* length -1: up to the end of the file, or as many bytes as the type needs */
	const char *problem;     /* why the tensor cannot be used at all; NULL when it can */
	const FileMap *file;     /* the mapped file that holds the message */
} OnnxTensor;

typedef VEC(OnnxTensor) OnnxTensorVec;
typedef VEC(Onnx__NodeProto *) OnnxNodeVec;
typedef VEC(Onnx__ValueInfoProto *) OnnxInfoVec;

typedef struct OnnxGraph {
	OnnxNodeVec nodes;
	OnnxTensorVec tensors;   /* initializers */
	OnnxInfoVec inputs, outputs, infos;
	Span signature;          /* the signature that torch.export wrote: every parameter and buffer of the module, used or
	                            not */
} OnnxGraph;

typedef struct OnnxOpset { const char *domain; int64_t version; } OnnxOpset;

typedef struct OnnxModel {
	Arena *arena;
	const char *path, *dir;  /* dir: the folder of path, where external data is looked up; "" = the current one */
	FileMap *file;
	VEC(FileMap *) external; /* external files opened so far */
	Map *beneath;            /* locations already found to lie in dir; NULL: none yet */
	int64_t ir_version;
	const char *producer;
	Span metadata;           /* JSON that shardc.export wrote (onnx_metadata.h); empty when it did not */
	int n_metadata;
	VEC(OnnxOpset) opsets;
	VEC(Onnx__FunctionProto *) functions;
	OnnxGraph graph;
	Map *renamed;            /* initializer name -> new name of the result that had the same name (onnx_shadow.c) */
	PtrMap *subgraphs;       /* the bytes of a graph in an attribute -> what was read there */
	ProtobufCAllocator allocator;
} OnnxModel;

/* Maps a file for reading; an empty file has n = 0.  NULL after an error, which names `where`.  file_unmap frees it. */
FileMap *file_map(Arena *a, const char *path, const char *where, Diag *d);
void file_unmap(FileMap *f);

OnnxModel *onnx_model_open(const char *path, Arena *a, Diag *d);
void onnx_model_close(OnnxModel *m);
/* The subgraph that an attribute holds.  It is walked once and lives as long as the model; NULL after an error, which
 * is reported the first time. */
const OnnxGraph *onnx_subgraph(OnnxModel *m, const Onnx__AttributeProto *a, Diag *d);

/* ---- onnx_tensor.c ---- */

bool onnx_tensor_parse(Arena *a, const FileMap *f, Span proto, OnnxTensor *out);
/* Finds the tensor's bytes, as a little-endian array in row-major order.  External data is opened and checked. */
bool onnx_tensor_bytes(OnnxModel *m, const OnnxTensor *t, Span *bytes, const FileMap **file, Diag *d);
/* Where external data says that the tensor's bytes lie: path, and their count.  The file is not opened, so it may be
 * missing or too short. */
bool onnx_tensor_external(OnnxModel *m, const OnnxTensor *t, const char **path, int64_t *bytes, Diag *d);
/* Decodes the elements into the arena as int64 and returns their count in *n.  False after an error. */
bool onnx_tensor_ints(OnnxModel *m, const OnnxTensor *t, Arena *a, int64_t **out, Diag *d);
bool onnx_tensor_floats(OnnxModel *m, const OnnxTensor *t, Arena *a, double **out, Diag *d);
bool onnx_tensor_type(const OnnxTensor *t, Type *out); /* false: the IR does not have this dtype */
const char *onnx_dtype_name(int data_type);            /* "FLOAT8E4M3FN" */
/* The number of elements of a tensor with these dims; -1 if one is negative or the number exceeds 2^62. */
int64_t onnx_dims_numel(int rank, const int64_t *dim);

/* ---- the wire format ---- */

typedef struct Wire {
	Span rest;
	bool bad;       /* truncated or malformed */
	int field, type;
	uint64_t value; /* of varint and fixed fields */
	Span bytes;     /* of length-delimited fields */
} Wire;
static inline Wire wire_of(Span bytes) { return (Wire){.rest = bytes}; }
bool wire_next(Wire *w);                        /* false at the end and for malformed bytes (bad is set then) */
bool wire_varint(Span *rest, uint64_t *out);
const char *wire_str(Arena *a, Span s);
static inline float wire_float(uint64_t bits)
{
	union { uint32_t u; float f; } v = {.u = (uint32_t)bits};
	return v.f;
}

#endif
