/* passes/loss.h: what loss.c and loss_eval.c know of each other. */
#ifndef SHARDC_LOSS_H
#define SHARDC_LOSS_H

#include "passes/passes.h"

/* Copies the forward to the eval section, without writes, and without outputs unless they are wanted.
 * Returns forward value -> its copy. */
PtrMap *loss_clone_eval(Module *m, Arena *scratch, bool outputs);
/* Dropout passes everything. */
void loss_drop_dropout(Module *m, SectionKind s);
/* Batch norms use their running statistics and leave them alone. */
void loss_fix_statistics(Module *m, SectionKind s);

#endif
