/* ckpt/states.h: names of an optimizer's states: PARAM.STATE, or state.K.STATE where PyTorch numbers parameters. */
#ifndef SHARDC_CKPT_STATES_H
#define SHARDC_CKPT_STATES_H

#include "ckpt/ckpt.h"

typedef enum StateForm { STATE_NONE, STATE_NAMED, STATE_NUMBERED } StateForm; /* NONE: not the name of a state */
typedef struct StateName {
	StateForm form;
	int64_t index;     /* for STATE_NUMBERED */
	const char *param; /* for STATE_NAMED */
	const char *state;
} StateName;
StateName state_name(const char *name, Arena *a);
/* Whether PyTorch keeps a count of updates beside a state of this name, in a tensor "step" for each parameter. */
bool state_is_counted(const char *state);
/* How many updates a parameter had according to state.json; -1: it does not say. */
int64_t state_updates(const json_t *root, const char *param);

/* The key of metadata in files with numbered states: the parameters' names in order, one per line. */
#define STATE_PARAMS "params"

#endif
