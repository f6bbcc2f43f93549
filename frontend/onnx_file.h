/* frontend/onnx_file.h: an ONNX file mapped and walked; inside frontend/ only. */
#ifndef SHARDC_ONNX_FILE_H
#define SHARDC_ONNX_FILE_H

#include "frontend/frontend.h"
#include "frontend/onnx.pb-c.h"

/* Bytes in a mapped file. */
typedef struct Span {
	const uint8_t *at;
	size_t n;
} Span;

typedef struct FileMap {
	const char *path;
	Span bytes;
} FileMap;

/* A TensorProto in place.  Exactly one of the data members is used; all lie in the mapped file. */
typedef struct OnnxTensor {
	const char *name;
	int data_type;           /* TensorProto.DataType */
	int rank;
	int64_t dim[IR_MAX_RANK];
	Span raw;                /* raw_data, or float_data and double_data when packed in one piece */
	bool has_raw, typed;     /* typed: *_data fields, read by walking proto again */
	Span proto;              /* the whole message */
	bool external;
	const char *location;
	int64_t offset, length;  /* length -1: to the file's end or as the type says */
	const char *problem;     /* why the tensor cannot be used at all; NULL when it can */
	const FileMap *file;     /* that holds the message */
} OnnxTensor;

typedef VEC(OnnxTensor) OnnxTensorVec;
typedef VEC(Onnx__NodeProto *) OnnxNodeVec;
typedef VEC(Onnx__ValueInfoProto *) OnnxInfoVec;

typedef struct OnnxGraph {
	OnnxNodeVec nodes;
	OnnxTensorVec tensors;   /* initializers */
	OnnxInfoVec inputs, outputs, infos;
	Span signature;          /* text of torch.export: every parameter and buffer of the module, used or not */
} OnnxGraph;

typedef struct OnnxOpset { const char *domain; int64_t version; } OnnxOpset;

typedef struct OnnxModel {
	Arena *arena;
	const char *path, *dir;  /* dir: of path, for external data; "" = the current one */
	FileMap *file;
	VEC(FileMap *) external; /* opened so far */
	Map *beneath;            /* locations known to lie in dir; NULL: none is */
	int64_t ir_version;
	const char *producer;
	Span metadata;           /* what shardc.export wrote, JSON (onnx_metadata.h); empty: it did not */
	int n_metadata;
	VEC(OnnxOpset) opsets;
	VEC(Onnx__FunctionProto *) functions;
	OnnxGraph graph;
	Map *renamed;            /* results that nodes have under another name now (onnx_shadow.c) -> that name */
	ProtobufCAllocator allocator;
} OnnxModel;

/* Maps a file; an empty one has n = 0.  NULL after an error.  Unmapped by file_unmap. */
FileMap *file_map(Arena *a, const char *path, const char *where, Diag *d);
void file_unmap(FileMap *f);

OnnxModel *onnx_model_open(const char *path, Arena *a, Diag *d);
void onnx_model_close(OnnxModel *m);
/* Walks a GraphProto, for subgraphs in attributes too. */
bool onnx_graph_walk(OnnxModel *m, Span bytes, OnnxGraph *out, Diag *d);

/* ---- onnx_tensor.c ---- */

bool onnx_tensor_parse(Arena *a, const FileMap *f, Span proto, OnnxTensor *out);
/* Where the tensor's bytes are, in order as a little-endian array.  Opens external data and checks it. */
bool onnx_tensor_bytes(OnnxModel *m, const OnnxTensor *t, Span *bytes, const FileMap **file, Diag *d);
/* Where external data says that the tensor's bytes are; the file is not opened, so it may be absent or short. */
bool onnx_tensor_external(OnnxModel *m, const OnnxTensor *t, const char **path, int64_t *bytes, Diag *d);
/* Elements decoded; n = their count.  False after an error. */
bool onnx_tensor_ints(OnnxModel *m, const OnnxTensor *t, Arena *a, int64_t **out, Diag *d);
bool onnx_tensor_floats(OnnxModel *m, const OnnxTensor *t, Arena *a, double **out, Diag *d);
bool onnx_tensor_type(const OnnxTensor *t, Type *out); /* false: a dtype that the IR lacks */
const char *onnx_dtype_name(int data_type);            /* "FLOAT8E4M3FN" */
/* Elements of dims, -1 when negative or above 2^62. */
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
bool wire_next(Wire *w);                        /* false at the end, or bad */
bool wire_varint(Span *rest, uint64_t *out);
const char *wire_str(Arena *a, Span s);
static inline float wire_float(uint64_t bits)
{
	union { uint32_t u; float f; } v = {.u = (uint32_t)bits};
	return v.f;
}

#endif
