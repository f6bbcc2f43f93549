/* tests/unit/toy_reference.h: the inputs of the program of toy.h, and its results computed in a loop in f64. */
#ifndef SHARDC_TESTS_TOY_REFERENCE_H
#define SHARDC_TESTS_TOY_REFERENCE_H

#include "tests/unit/toy.h"

/* Trained elements: those of the weight, then the bias. */
enum { TOY_BIAS_AT = TOY_C * TOY_D, TOY_P = TOY_BIAS_AT + TOY_C, TOY_SAMPLES = 22 };

typedef struct ToyData { int n; float x[TOY_SAMPLES][TOY_D]; int64_t labels[TOY_SAMPLES]; } ToyData;
void toy_draw(ToyData *d, int n);                 /* the same numbers every time */
void toy_write_data(const ToyData *d);            /* x.npy, labels.npy */
void toy_write_weights(void);                     /* weights.bin, which toy_model reads */

double toy_first(int k);                          /* trained element k before the first step */
/* Of the gradient's samples: the mean loss of those with a label, how many those are, how many are told right. */
typedef struct ToyReference { double p[TOY_P], loss, norm, right; int valid; } ToyReference;
void toy_reference(ToyReference *r);              /* before the first step */
/* The gradient at r->p of the mean loss of the n samples from `first` on, and its norm. */
void toy_gradient(ToyReference *r, const ToyData *data, int64_t first, int n, double *g);

void toy_read_tensor(const char *file, const char *name, double *out); /* f32, of a checkpoint */
void toy_read_trained(const char *dir, double *p);                     /* of the newest checkpoint of a folder */

#endif
