/* passes/loss/loss.h: what the files of this folder know of each other, and canon of them. */
#ifndef SHARDC_LOSS_H
#define SHARDC_LOSS_H

#include "base/pattern.h"
#include "passes/passes.h"

/* Copies the forward to the eval section, without writes, and without outputs unless they are wanted.
 * Returns forward value -> its copy. */
PtrMap *loss_clone_eval(Module *m, Arena *scratch, bool outputs);
/* Dropout passes everything. */
void loss_drop_dropout(Module *m, SectionKind s);
/* Batch norms use their running statistics and leave them alone: those whose module matches, or node where there is
 * no module; `only` NULL: all.  Returns how many. */
int loss_fix_statistics(Module *m, SectionKind s, const regex_t *only);

/* ---- axis.c ---- */

/* Whether the last axis of logits is what a linear layer made, which is where it puts classes. */
bool loss_classes_are_last(const Module *m, const Value *logits);

/* ---- (reduce.c) ---- */

/* Of batches of one sample: notes on each output of one number whether it is a sum, a mean or a ratio over samples, as
 * attribute `over`.  Rules take reductions over dims of 1 and divisions by 1 away, so this goes before any. */
void loss_note_reductions(Module *m);
/* Whether losses of ranks and micro-batches that an output gives are added, else averaged; says what was assumed, and
 * what of --loss-reduce goes against the graph. */
bool loss_adds(const Module *m, const Options *o, const Op *output, Diag *d);
/* Whether num / den is a mean over what den counts: both are sums over samples, den of numbers that are not trained.
 * output: their quotient, where rules may have changed the module. */
bool loss_is_ratio(const Module *m, const Op *output, const Value *num, const Value *den);
/* Says it when the loss compares samples of a batch with each other, or depends on their places. */
void loss_say_mixing(const Module *m, const Value *loss, Diag *d);
/* Attribute `whole` of eval's report: the node because of which a last batch must not be filled up. */
void loss_mark_whole(Module *m, Diag *d);

#endif
