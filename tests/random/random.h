/* tests/random/random.h: random graphs, and what happens to them on their way through the passes. */
#ifndef SHARDC_TEST_RANDOM_H
#define SHARDC_TEST_RANDOM_H

#include "passes/passes.h"

/* Numbers of one graph; everything follows from its seed. */
typedef struct Rng { uint64_t state; } Rng;
uint64_t rng_next(Rng *r);
int64_t rng_in(Rng *r, int64_t lo, int64_t hi);       /* lo..hi, both included */
static inline bool rng_one_of(Rng *r, int n) { return rng_in(r, 1, n) == 1; }
double rng_unit(Rng *r);                              /* [-1, 1) */

enum { RANDOM_MAX_NUMEL = 300 };

/* What was generated and how often it was tried; lives in memory that processes share. */
typedef struct Counts {
	int64_t ops[OP_COUNT];     /* of IR ops in modules that went through */
	int64_t nodes[256];        /* of ONNX nodes, by row of onnx_nodes.def */
	int64_t passed, refused;
	int64_t compared;          /* passes */
} Counts;

/* A module at MODEL whose output "loss" is a scalar.  NULL after an error message to d. */
Module *random_ir(Rng *r, Diag *d);
Module *random_onnx(Rng *r, Counts *c, FILE *nodes, Diag *d); /* nodes: one line for each of the model's, or NULL */
extern const char *const onnx_node_text[];
extern const int onnx_node_count;

/* Adds the output "loss": a sum of most that nobody reads, each element weighed by another number. */
void random_loss(Module *m, Rng *r);
/* The options that graph `seed` is compiled with. */
Options random_options(uint64_t seed);

/* What became of a module. */
typedef enum Outcome { OUTCOME_OK, OUTCOME_REFUSED, OUTCOME_DIFFERS, OUTCOME_CRASHED, OUTCOME_HANGS } Outcome;
typedef struct Verdict {
	Outcome outcome;
	char pass[32], rule[200], what[100], op[100];
	int compared;
} Verdict;
/* The whole pipeline under --check-passes; messages go to log. */
Verdict random_run(Module *m, const Options *o, FILE *log);

/* Ends this process, from now on, after five seconds of processor time. */
void random_limit(void);
/* Whether the process with this status came to its end: no signal, no exit with an error. */
bool random_ended(int status);
/* shrink.c: the smallest text found whose outcome and pass are the same as those of `text`; each try is a process. */
char *random_shrink(const char *text, const Options *o, Verdict *v, Arena *a);
/* In a process of its own, under random_limit. */
Verdict random_try_text(const char *text, const Options *o, FILE *log);

#endif
