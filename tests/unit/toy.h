/* tests/unit/toy.h: a program as the compiler would emit it, small enough to be written and checked by
 * hand: softmax regression with a frozen scale, a constant shift and a step counter as buffer.
 *
 *   logits = (x * scale + shift) W^T + b;  loss = mean cross-entropy over labels other than -100 */
#ifndef SHARDC_TESTS_TOY_H
#define SHARDC_TESTS_TOY_H

#include "runtime/train/train.h"

enum { TOY_B = 4, TOY_D = 4, TOY_C = 3, TOY_IGNORE = -100 };
enum { TOY_X, TOY_LABELS, TOY_W, TOY_BIAS, TOY_SCALE, TOY_SEEN, TOY_SHIFT, TOY_TENSORS };
/* bytes in the activation arena */
enum { TOY_LOGITS = 0, TOY_IN = 64, TOY_SUM = 128, TOY_WEIGHT = 192, TOY_ACT = 256 };

extern RtTensor toy_tensors[TOY_TENSORS];
extern RtFile toy_files[1];          /* weights.bin: toy_write_weights says how long it is */
extern const LayoutUnit toy_units[2];
extern const RtCollective toy_step[4];

RtModel toy_model(const char *optimizer);
/* In a child: runs it with these flags, which it cuts up, and ends with its exit code.  output: what it prints to. */
_Noreturn void toy_main(const RtModel *m, char *flags, const char *output);
void toy_setup(Rt *rt);
void toy_train_forward(Rt *rt);
void toy_gradients(Rt *rt);          /* backward without the reduction */
void toy_reduce(Rt *rt);
void toy_update(Rt *rt);

#endif
