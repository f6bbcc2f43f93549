/* ir/recurrence.h: the attributes of recurrence and recurrence_grad as numbers, and the places of their operands. */
#ifndef SHARDC_RECURRENCE_H
#define SHARDC_RECURRENCE_H

#include "ir/ir.h"

typedef enum Cell { CELL_RNN, CELL_GRU, CELL_LSTM, CELL_COUNT } Cell;

typedef enum Activation {
#define ACTIVATION(id, ...) ACT_##id,
#include "base/activations.def"
	ACT_COUNT
} Activation;

typedef struct ActivationInfo { const char *id, *text, *onnx; double alpha, beta; } ActivationInfo;
extern const ActivationInfo activation_info[ACT_COUNT]; /* the rows of base/activations.def */

typedef struct CellInfo {
	const char *text;
	int gates, acts;           /* how many it has */
	const char *defaults;      /* ONNX's activations, as attribute acts */
} CellInfo;
extern const CellInfo cell_info[CELL_COUNT];

/* Operands; results of both ops that all cells have. */
enum { REC_X, REC_R, REC_H0, REC_C0, REC_LENGTHS, REC_BIAS, REC_P, REC_OPERANDS };
enum { REC_Y, REC_H, REC_GATES, REC_C, REC_ALL_C };
enum { RECG_R, RECG_Y, RECG_GATES, RECG_DY, RECG_DH, RECG_DC, RECG_ALL_C, RECG_H0, RECG_C0, RECG_LENGTHS, RECG_P,
	RECG_OPERANDS };
enum { RECG_DX, RECG_BEFORE, RECG_DH0, RECG_DC0, RECG_DP, RECG_PRODUCT = RECG_DC0 };

typedef struct Recurrence {
	Cell cell;
	bool reverse, after, couple;
	double clip;               /* INFINITY: none */
	int n_acts;
	Activation act[3];
	double alpha[3], beta[3];
	int64_t t, b, h, kept;     /* kept: columns of the gates that backward wants */
} Recurrence;

/* Reads attributes and sizes of either op; false with a sentence in err (which may be NULL). */
bool recurrence_read(const Op *op, Recurrence *r, Buf *err);

#endif
