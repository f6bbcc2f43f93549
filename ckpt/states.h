/* ckpt/states.h: names of an optimizer's states: PARAM.STATE, or as PyTorch numbers parameters, state.K.STATE. */
#ifndef SHARDC_CKPT_STATES_H
#define SHARDC_CKPT_STATES_H

#include "ckpt/ckpt.h"

typedef enum StateForm { STATE_NONE, STATE_NAMED, STATE_NUMBERED } StateForm; /* NONE: it is no state's name */
typedef struct StateName {
	StateForm form;
	int64_t index;     /* of a numbered one */
	const char *param; /* of a named one */
	const char *state;
} StateName;
StateName state_name(const char *name, Arena *a);
/* Whether PyTorch counts updates beside a state of this name, in a tensor "step" of each parameter. */
bool state_is_counted(const char *state);
/* How many updates a parameter had, by state.json; -1: it does not say. */
int64_t state_updates(const json_t *root, const char *param);

/* Metadata of files with numbered states: parameters' names in their order, one a line. */
#define STATE_PARAMS "params"

#endif
