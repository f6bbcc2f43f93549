/* passes/shard/wrap.h: the steps of units.c: options -> groups of parameters -> units.
 *
 * A Group is a unit that has no flats yet.  wrap.c forms the groups from a tree of modules (module_tree.c) or from
 * a policy file (policy_file.c); owners.c splits them among the owners of oss and sharded_ddp. */
#ifndef SHARDC_WRAP_H
#define SHARDC_WRAP_H

#include "base/pattern.h"
#include "passes/passes.h"

typedef VEC(Symbol *) Params;

enum { STRATEGY_UNSET = -1, FIRST_USE_NEVER = INT32_MAX };

typedef struct Group {
	const char *name;
	Params params;
	int strategy;        /* a Strategy, or STRATEGY_UNSET: the program's strategy */
	int owner;           /* -1 = none */
	const struct PolicyUnit *said; /* what the policy file says of it; NULL = nothing */
} Group;
typedef VEC(Group) Groups;

/* ---- module_tree.c ---- */

typedef struct TreeNode {
	const char *name;    /* "h.0.attn"; "" = the model */
	struct TreeNode *parent;
	VEC(struct TreeNode *) child; /* in the order of first use */
	Params own;          /* its own parameters, and tied ones that its children share */
	bool has_own;        /* some of them are not tied */
	bool block;          /* a repeated block */
	bool unit;           /* wrap.c: the policies chose it; the root always is one */
	bool beside;         /* wrap.c: it holds no block and lies in none */
	bool large;          /* wrap.c: a unit because it is large beside the blocks */
	int first, last;     /* first and last use of a parameter in it */
	int group;           /* wrap.c: its index among the groups */
} TreeNode;

/* What is known from the readers of a parameter in forward (or eval). */
typedef struct Home {
	TreeNode *node;      /* the module that holds it; for a tied one the lowest common module */
	const char *module, *other; /* tied: two modules that use it, else NULL */
	int first, last;     /* positions of its first and last use; FIRST_USE_NEVER, 0 */
} Home;

typedef struct ModuleTree {
	TreeNode *root;
	VEC(TreeNode *) nodes; /* every parent before its children, the root first */
	PtrMap *home;        /* Symbol -> Home; for the parameters that are not left out */
} ModuleTree;

/* Builds the tree.  Parameters in left_out (Symbol -> anything) belong to no module.  blocks may be NULL. */
ModuleTree *module_tree(Module *m, const PtrMap *left_out, const Blocks *blocks, Arena *a);
/* The first few names, for hints: "a", "b", ... */
const char *module_names(const ModuleTree *t, Arena *a);
/* For an expression that matches no module: "; did you mean lm_head?", or "". */
const char *module_near(const ModuleTree *t, const char *pattern, Arena *a);

/* ---- policy_file.c ---- */

typedef VEC(const char *) Regexes;

/* policy.def says what the members mean. */
typedef struct PolicyUnit {
	const char *at;      /* "policy.json: $.units[2]" */
	const char *name;    /* NULL: every module that matches is a unit of its own */
	const char *scope;   /* or NULL */
	Regexes params;
	int strategy;        /* or STRATEGY_UNSET */
	int reshard_after_forward, forward_prefetch, backward_prefetch; /* -1: the file does not say it */
	int param_dtype, reduce_dtype; /* a DType; -1: the file does not say it */
	int offload;         /* a LayoutOffload; -1: the file does not say it */
} PolicyUnit;
typedef struct PolicyFile {
	const char *path;    /* "--wrap": the option has its text */
	int strategy;        /* or STRATEGY_UNSET; this and what follows up to ignore are options, too (policy_options) */
	int forward_prefetch, limit_all_gathers; /* -1: the file does not say it */
	const char *backward_prefetch; /* or NULL */
	int param_dtype, reduce_dtype; /* a DType; -1: the file does not say it */
	int offload;         /* a LayoutOffload; -1: the file does not say it */
	Regexes ignore;
	bool order;          /* units are in the order of the file */
	VEC(PolicyUnit) units;
} PolicyFile;
/* path: of the file, or its text, which begins with a brace. */
bool policy_read(const char *path, PolicyFile *out, Arena *a, Diag *d);
/* Appends the file's groups, and the one of what is left over, which may be empty: where the file has it, if units lie
 * in the order of the file, else last. */
bool policy_groups(const PolicyFile *f, Module *m, const ModuleTree *t, Groups *out, Arena *a, Diag *d);

/* ---- wrap.c ---- */

typedef enum WrapKind {
#define WRAP(id, ...) WRAP_##id,
#include "passes/shard/wrap.def"
	WRAP_COUNT
} WrapKind;
typedef struct WrapPolicy {
	WrapKind kind;
	const char *text;    /* as the user gave it */
	const char *argument;
	int64_t n;           /* the number of COUNT, BYTES and PARTS */
	bool inverse;        /* PARTS: 1/n */
	bool implied;        /* true: the default, which the user did not ask for */
} WrapPolicy;
typedef struct Wrap {
	VEC(WrapPolicy) policies; /* never empty */
	PolicyFile file;     /* for WRAP_FILE; else empty */
} Wrap;
/* Reads each --wrap and the policy file; reports all errors. */
bool wrap_parse(const Options *o, Wrap *out, Arena *a, Diag *d);
/* Makes the groups of all parameters that are not left out, in the order of first use, inner before outer, the
 * remainder ("root") last; no group is empty. */
bool wrap_groups(Module *m, const Wrap *w, const PtrMap *left_out, Groups *out, Arena *a, Diag *d);
/* The Strategy that text names, or STRATEGY_UNSET after an error. */
int wrap_strategy(const char *text, const char *where, Arena *a, Diag *d);
/* Reports that no module matches, or that a matching module shares its parameters with another one and therefore
 * does not own them. */
void wrap_refuse_scope(const char *where, const char *pattern, const regex_t *re, const ModuleTree *t, Arena *a,
	Diag *d);
/* Names the first few of the parameters that are keys of `among` (NULL: of all parameters), for hints. */
const char *parameter_names(const Module *m, const PtrMap *among, Arena *a);
const char *parameter_near(const Module *m, const char *pattern, Arena *a); /* as module_near */

/* ---- units.c ---- */

/* Adds the parameters that --ignore and $.ignore match to `ignored` (Symbol -> itself). */
bool params_ignored(Module *m, const Options *o, const PolicyFile *f, PtrMap *ignored, Arena *a, Diag *d);

/* ---- owners.c ---- */

/* Splits the groups of oss or sharded_ddp among `world` owners. */
void owners_split(const Module *m, Groups *groups, Strategy strategy, int world, Arena *a);

#endif
