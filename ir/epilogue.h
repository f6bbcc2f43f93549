/* ir/epilogue.h: what products compute beside themselves (op matmul_epilogue). */
#ifndef SHARDC_EPILOGUE_H
#define SHARDC_EPILOGUE_H

#include "ir/ir.h"

typedef enum Epilogue {
#define EPILOGUE(id, ...) EPILOGUE_##id,
#include "base/epilogues.def"
	EPILOGUES,
	EPILOGUE_UNKNOWN = EPILOGUES
} Epilogue;

typedef struct EpilogueInfo { const char *id, *text; int results; bool wide; } EpilogueInfo;
extern const EpilogueInfo epilogue_info[EPILOGUES]; /* the rows of base/epilogues.def */

/* What the attribute of a matmul_epilogue names; EPILOGUE_UNKNOWN: none of them. */
Epilogue op_epilogue(const Op *op);
/* The operand whose columns are summed, 0 or 1; -1: none is. */
int epilogue_summed(Epilogue e);

#endif
