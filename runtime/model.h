/* model.h: the interface by which your own program trains one compiled model (shardc MODEL.onnx --emit=lib -o DIR).
 *
 * Needs libmodel.so and the C library; C99 or C++.  In short (docs/library.md has a complete example):
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
 * Errors.  A function that returns int returns MODEL_OK or one of the codes below; after an error, model_error says
 * what was wrong.  The library does not print, exit, catch signals or start processes; but it aborts on an internal
 * error (a bug of shardc) and when even small allocations fail.  After an error the model is as it was before the call,
 * unless the function's comment says otherwise.
 *
 * Ownership.  What you pass in is read during the call and not kept.  What you get belongs to the model and is valid as
 * long as the function's comment says.
 *
 * Threads.  A process may have many models.  Calls may come from any thread: a library serves one call at a time, and
 * the others wait.  Only model_error must be called from the thread whose error it asks for, or after that call has
 * returned.
 *
 * Ranks.  With several ranks, each is a process that a launcher, such as torchrun, started with RANK, WORLD_SIZE,
 * MASTER_ADDR and MASTER_PORT; all are on one host.  Functions that say "all ranks" wait for the others: every rank
 * calls them in the same order.  When a rank is lost, or hangs longer than --timeout, the processes of the others end
 * with status 3, as those of the binary do.  With several ranks, a kernel or a hook that fails also ends its process,
 * with status 3 and a message on stderr. */
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
	MODEL_INPUT = 1,   /* wrong data: an array, a label out of range, weights or a checkpoint */
	MODEL_USAGE = 2,   /* a wrong option, name or order of calls */
	MODEL_FAILED = 3   /* a number is not finite, a disk is full, memory ran out, a rank failed */
};

typedef struct Model Model;

/* ---- life ---- */

/* Makes a model: maps all its memory, and reads the initial weights or a checkpoint. options: flags of the training
 * binary, "--name=value", NULL-terminated; NULL: none.  Flags for things that the caller does itself are refused:
 * --data, --tokens, --eval-data, --eval-tokens, --eval-every, --shuffle, --save-every, --log, --trace, --time-ops,
 * --ranks, --infer, --print-plan, --check-replicas. --save=DIR is the folder that model_save writes to if it is given
 * none, and that --resume=auto looks in. *out is set in any case: after an error only model_error and model_destroy
 * may be called with it. All ranks. */
MODEL_API int model_create(const char *const *options, Model **out);
/* Frees everything; NULL is allowed.  Afterwards neither m nor any pointer that came from it may be used.  All ranks,
 * unless creating it failed. */
MODEL_API void model_destroy(Model *m);
/* The message of the last function called with m: after an error the reason, else notes, or "".  Valid until the next
 * call with m. */
MODEL_API const char *model_error(const Model *m);

/* ---- what the model is ---- */

/* These return 0 for a model that could not be created. */
MODEL_API int64_t model_rank(const Model *m);   /* of this process */
MODEL_API int64_t model_world(const Model *m);  /* ranks */
MODEL_API int64_t model_rows(const Model *m);   /* samples that model_step takes on this rank */
MODEL_API int64_t model_steps(const Model *m);  /* steps done, including those before the checkpoint that was resumed */
MODEL_API int64_t model_bytes(const Model *m);  /* bytes planned and mapped; steps allocate no more */

typedef struct ModelTensor {
	const char *name;     /* the framework's, as exported */
	const char *kind;     /* "input", "param", "buffer", "state", "data" */
	const char *dtype;    /* "f32", "i64", "bool", ... (f16, bf16: two bytes) */
	const char *unit;     /* of a parameter: the unit that it is sharded with, else "" */
	int rank;             /* dimensions */
	int64_t shape[8];     /* row-major; of an input with a sample axis, shape[0] is the rows of one micro-batch */
	int trainable;        /* of a parameter: it is updated */
	int samples;          /* of an input: its first axis counts samples */
} ModelTensor;
/* Fills *out with the i-th tensor, from 0, and returns 1; returns 0 past the last one.  The pointers in it are valid as
 * long as the model. */
MODEL_API int model_get_tensor(const Model *m, int i, ModelTensor *out);

/* ---- steps ---- */

/* An array of the caller, row-major and dense. */
typedef struct ModelArray {
	const char *name;     /* the name of an input */
	const char *dtype;    /* "f32", ...: exactly the input's */
	int rank;
	const int64_t *shape; /* rank numbers */
	const void *data;     /* aligned for its type */
} ModelArray;

typedef struct ModelResult {
	double loss;          /* mean over the valid elements of all ranks */
	double grad_norm;     /* norm of the gradient averaged over all ranks, before clipping; NaN where it is not
	                       * computed */
	double lr;            /* learning rate of this step, with the schedule applied */
	double accuracy;      /* set by model_evaluate; NaN where the loss has none */
	int64_t step;         /* steps done */
	int skipped;          /* 1: the update was left out, because no element was valid or a number was not finite */
} ModelResult;

/* One training step: forward, backward, update. inputs: every input once, in any order; those given by --const may be
 * left out.  The first axis of inputs with samples has model_rows elements, this rank's samples.  In a model of several
 * sizes (docs/shapes.md) axes whose length depends on the size may have any up to that of the largest.  MODEL_INPUT: an
 * array does not fit (nothing was run), or a kernel met data out of range on some rank; then no parameter and no state
 * changed, but buffers (statistics of batch norms) may have, and the step does not count.  MODEL_FAILED: loss or norm
 * is not finite and --on-nan=stop; the update was left out, and the step does not count. out may be NULL.  All
 * ranks. */
MODEL_API int model_step(Model *m, const ModelArray *inputs, int n, ModelResult *out);
/* The loss of held-out samples, each counted once: inputs as for model_step, but with any number of samples.  All ranks
 * pass the same samples and take batches of them in turn.  Sets loss, accuracy and step; does not change the model.
 * All ranks. */
MODEL_API int model_evaluate(Model *m, const ModelArray *inputs, int n, ModelResult *out);

/* ---- hyper-parameters ---- */

/* "lr" (before the learning-rate schedule), "min-lr", "warmup", "steps" (both of that schedule), "weight-decay",
 * "momentum", "beta1", "beta2", "eps", "clip-norm", "clip-value".  MODEL_USAGE: the name is unknown, or this program
 * does not use that number. */
MODEL_API int model_get_number(Model *m, const char *name, double *out);
/* Takes effect from the next step on; checkpoints keep the value.  All ranks, with the same value. */
MODEL_API int model_set_number(Model *m, const char *name, double value);

/* ---- full parameters ---- */

enum {
	MODEL_WRITEBACK = 1,  /* model_full_end puts back what was changed */
	MODEL_RANK0 = 2       /* only rank 0 gets the copies, which cannot be written back */
};
/* Makes copies of all parameters and buffers, whole and in the type that they are trained in, whichever strategy shards
 * them.  Until model_full_end only model_full, model_get_tensor and model_error are allowed.  The copies need the
 * memory of the whole model, which model_bytes does not count.  All ranks. */
MODEL_API int model_full_begin(Model *m, int flags);
/* The elements of a parameter or buffer (model_get_tensor tells its type and shape), aligned to 64 bytes and valid
 * until model_full_end; NULL: there is no tensor of this name, or this rank has no copy. */
MODEL_API void *model_full(Model *m, const char *name);
/* With MODEL_WRITEBACK each rank puts back the elements that it holds.  Where every rank holds a whole parameter, all
 * must have written the same elements, else the result is MODEL_INPUT and nothing is put back; buffers may differ
 * between ranks.  Without the flag, changes are dropped.  Optimizer states stay as they are.  All ranks. */
MODEL_API int model_full_end(Model *m);

/* ---- checkpoints ---- */

/* Writes dir/step-NNNNNNNN and moves dir/latest, as --save of the binary does; the binary can resume from it. dir NULL:
 * the folder of --save.  After MODEL_FAILED earlier checkpoints are as they were.  All ranks. */
MODEL_API int model_save(Model *m, const char *dir);
/* Continues from the checkpoint dir, or from dir/latest: takes parameters, buffers, states, the step, and the
 * hyper-parameters that no option gave and model_set_number did not set.  If an error occurs while tensors are being
 * read, the model afterwards accepts only model_load and model_destroy.  All ranks. */
MODEL_API int model_load(Model *m, const char *dir);

#ifdef __cplusplus
}
#endif
#endif
