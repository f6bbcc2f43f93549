/* passes/loss/loss.h: what the files of this folder share, and what canon and optimizer use of them. */
#ifndef SHARDC_LOSS_H
#define SHARDC_LOSS_H

#include "base/pattern.h"
#include "passes/passes.h"

/* Whether the loss that --loss names shifts the labels by itself (shift=1). */
bool loss_shifts(Module *m, const Options *o, Diag *d);
/* Copies the forward to the eval section, without its writes, and with its outputs only if `outputs`.  Returns the
 * map from forward values to their copies. */
PtrMap *loss_clone_eval(Module *m, Arena *scratch, bool outputs);
/* Removes dropout, as evaluation does. */
void loss_drop_dropout(Module *m, SectionKind s);
/* Makes batch norms use their running statistics without updating them: those whose module (or node, where there is
 * no module) matches `only`; all when `only` is NULL.  Returns how many. */
int loss_fix_statistics(Module *m, SectionKind s, const regex_t *only);

/* ---- pads.c ---- */

/* For a program of several sizes: sets Symbol.pads of inputs.  counted: the loss counts every element of input
 * "target".  False after messages. */
bool loss_pads(Module *m, const Options *o, bool counted, Diag *d);

/* ---- axis.c ---- */

/* Whether a linear layer made the last axis of logits, which means that this axis counts the classes. */
bool loss_classes_are_last(const Module *m, const Value *logits);

/* ---- reduce.c ---- */

/* For modules with batches of one sample: notes in attributes of each output what the graph shows of its samples: as a
 * number, whether it is a sum, a mean or a ratio over them, and in which node they meet or are told apart by their
 * places.  of: m itself, or the same model with larger batches, whose graph shows more.  Must run before any rewrite
 * rule, since rules remove dims of 1, and reductions over them and divisions by 1.  Outputs that have notes keep
 * them. */
void loss_note_samples(Module *m, const Module *of);
/* Whether the losses that an output gives on ranks and micro-batches are added rather than averaged.  Warns where a
 * mean is only assumed, and where --loss-reduce contradicts the graph. */
bool loss_adds(const Module *m, const Options *o, const Op *output, Diag *d);
/* Whether num / den is a mean over what den counts: both are sums over samples, and den is a sum of numbers that do
 * not depend on parameters.  output: the quotient; its note counts where rules have changed the module. */
bool loss_is_ratio(const Module *m, const Op *output, const Value *num, const Value *den);
/* Notes that the loss compares samples of a batch with each other, or depends on their positions in it.  output: of
 * which it is the loss; with batches of one sample, its notes count. */
void loss_say_mixing(const Module *m, const Op *output, const Value *loss, Diag *d);
/* Sets attribute `whole` of eval's report to the node because of which a partial last batch must not be padded. */
void loss_mark_whole(Module *m, Diag *d);

#endif
