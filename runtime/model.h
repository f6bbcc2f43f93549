/* model.h: training one compiled model from a program of your own (shardc MODEL.onnx --emit=lib -o DIR).
 *
 * Needs libmodel.so and the C library; C99 or C++.  In short (docs/library.md has the whole):
 *
 *   Model *m;
 *   const char *options[] = {"--lr=1e-3", "--threads=2", NULL};
 *   if (model_create(options, &m) != MODEL_OK)
 *           fputs(model_error(m), stderr);
 *   while (...)
 *           model_step(m, inputs, 2, &result);
 *   model_save(m, "checkpoints");
 *   model_destroy(m);
 *
 * Errors.  A function that returns int returns MODEL_OK or one of the codes below; model_error then says what was
 * wrong.  Nothing here prints, exits, catches signals or starts processes; an internal error (a bug of shardc) and
 * memory that runs out while a few bytes are wanted abort.  After an error the model is as it was before the call,
 * unless the function's comment says otherwise.
 *
 * Ownership.  What you pass in is read during the call and not kept.  What you get belongs to the model, and lasts as
 * long as the function's comment says.
 *
 * Threads.  A process may have many models.  Calls may come from any thread: a library serves one at a time, the
 * others wait.  Only model_error has to come from the thread, or after the call, whose error it asks for.
 *
 * Ranks.  Of several ranks each is a process that a launcher started with RANK, WORLD_SIZE, MASTER_ADDR and
 * MASTER_PORT (torchrun does), on one host.  Functions that say "all ranks" wait for the others: every rank calls
 * them in the same order.  A rank that is lost, or hangs longer than --timeout, ends the processes of the others, with
 * status 3, as those of the binary. */
#ifndef SHARDC_MODEL_H
#define SHARDC_MODEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#define MODEL_API __attribute__((visibility("default")))
#else
#define MODEL_API
#endif

enum {
	MODEL_OK = 0,
	MODEL_INPUT = 1,   /* wrong data: an array, a label out of range, weights, a checkpoint */
	MODEL_USAGE = 2,   /* a wrong option, name or order of calls */
	MODEL_FAILED = 3   /* a number is not finite, a disk is full, memory ran out, a rank failed */
};

typedef struct Model Model;

/* ---- life ---- */

/* Makes a model: maps all its memory, reads the initial weights or a checkpoint.  options: flags of the training
 * binary, "--name=value", NULL-terminated; NULL: none.  What the caller does itself is refused: --data, --tokens,
 * --eval-data, --eval-tokens, --eval-every, --shuffle, --save-every, --log, --ranks, --infer, --print-plan,
 * --check-replicas.
 * --save=DIR is where model_save writes if it is told no folder, and where --resume=auto looks.
 * *out is set in any case: after an error it can only tell it and be destroyed.  All ranks. */
MODEL_API int model_create(const char *const *options, Model **out);
/* Frees all; NULL is allowed.  No function takes m afterwards, and no pointer that came from it may be used.
 * All ranks, unless creating it failed. */
MODEL_API void model_destroy(Model *m);
/* What the last function called with m had to say: after an error why, else notes, or "".  Lasts until the next
 * call with m. */
MODEL_API const char *model_error(const Model *m);

/* ---- what it is ---- */

/* 0 for a model that could not be created. */
MODEL_API int64_t model_rank(const Model *m);   /* of this process */
MODEL_API int64_t model_world(const Model *m);  /* ranks */
MODEL_API int64_t model_rows(const Model *m);   /* samples that model_step takes on this rank */
MODEL_API int64_t model_steps(const Model *m);  /* steps done, those before a checkpoint included */
MODEL_API int64_t model_bytes(const Model *m);  /* planned and mapped: steps allocate nothing */

typedef struct ModelTensor {
	const char *name;     /* the framework's, as exported */
	const char *kind;     /* "input", "param", "buffer", "state", "data" */
	const char *dtype;    /* "f32", "i64", "bool", ... (f16, bf16: two bytes) */
	const char *unit;     /* of a parameter: the unit it is sharded with, else "" */
	int rank;             /* dimensions */
	int64_t shape[8];     /* row-major; of an input with a sample axis: the rows of one micro-batch first */
	int trainable;        /* of a parameter */
	int samples;          /* of an input: its first axis counts samples */
} ModelTensor;
/* The i-th tensor, from 0; 0 behind the last one.  Pointers in it last as long as the model. */
MODEL_API int model_get_tensor(const Model *m, int i, ModelTensor *out);

/* ---- steps ---- */

/* An array of yours, row-major and dense. */
typedef struct ModelArray {
	const char *name;     /* of an input */
	const char *dtype;    /* "f32", ...: exactly the input's */
	int rank;
	const int64_t *shape; /* rank numbers */
	const void *data;     /* aligned for its type */
} ModelArray;

typedef struct ModelResult {
	double loss;          /* mean over the valid elements of all ranks */
	double grad_norm;     /* of all ranks' averaged gradient, before clipping; NaN where it is not computed */
	double lr;            /* of this step, the schedule applied */
	double accuracy;      /* of model_evaluate, NaN where the loss has none */
	int64_t step;         /* steps done */
	int skipped;          /* 1: the update was left out: no valid element, or a number that is not finite */
} ModelResult;

/* One training step: forward, backward, update.  inputs: every input once, in any order; but those given by --const
 * may be left out.  The first axis of those with samples is model_rows, this rank's samples.
 * MODEL_INPUT: an array does not fit (nothing was run), or a kernel met data out of range on some rank: no parameter
 * and no state changed, buffers (batch norm's statistics) may have; the step does not count.
 * MODEL_FAILED: loss or norm is not finite and --on-nan=stop: the update was left out, the step does not count.
 * out may be NULL.  All ranks. */
MODEL_API int model_step(Model *m, const ModelArray *inputs, int n, ModelResult *out);
/* The loss of held-out samples, each counted once: inputs as for model_step, but with any number of samples, the same
 * on all ranks, which take batches in turn.  Sets loss, accuracy and step.  Changes nothing.  All ranks. */
MODEL_API int model_evaluate(Model *m, const ModelArray *inputs, int n, ModelResult *out);

/* ---- hyper-parameters ---- */

/* "lr" (before the schedule), "min-lr", "warmup", "steps" (both of the schedule), "weight-decay", "momentum",
 * "beta1", "beta2", "eps", "clip-norm", "clip-value".  MODEL_USAGE: unknown, or of no use to this program. */
MODEL_API int model_get_number(Model *m, const char *name, double *out);
/* From the next step on; checkpoints keep it.  All ranks, with the same value. */
MODEL_API int model_set_number(Model *m, const char *name, double value);

/* ---- full parameters ---- */

enum {
	MODEL_WRITEBACK = 1,  /* model_full_end puts back what was changed */
	MODEL_RANK0 = 2       /* only rank 0 gets them; cannot be written back */
};
/* Copies of all parameters and buffers, whole and in the type that they are trained in, whatever strategy shards
 * them.  Until model_full_end only model_full, model_get_tensor and model_error are allowed.  Their memory, that of
 * the whole model, is not in model_bytes.  All ranks. */
MODEL_API int model_full_begin(Model *m, int flags);
/* The elements of a parameter or buffer (model_get_tensor tells its type and shape), aligned to 64 bytes, until
 * model_full_end; NULL: there is no such name, or not on this rank. */
MODEL_API void *model_full(Model *m, const char *name);
/* With MODEL_WRITEBACK a rank puts back the elements that it holds; of parameters that rest whole on every rank the
 * ranks must have written the same, else MODEL_INPUT and nothing is put back.  Buffers are the rank's own.  Without the
 * flag changes are dropped.  Optimizer states stay as they are.  All ranks. */
MODEL_API int model_full_end(Model *m);

/* ---- checkpoints ---- */

/* Writes dir/step-NNNNNNNN and moves dir/latest, as the binary's --save; the binary resumes from it.  dir NULL: that
 * of --save.  After MODEL_FAILED earlier checkpoints are as they were.  All ranks. */
MODEL_API int model_save(Model *m, const char *dir);
/* Continues from a checkpoint, or from dir/latest: parameters, buffers, states, the step, and hyper-parameters that no
 * option gave and model_set_number did not set.  After an error while tensors were being read the model refuses all
 * but model_load and model_destroy.  All ranks. */
MODEL_API int model_load(Model *m, const char *dir);

#ifdef __cplusplus
}
#endif
#endif
