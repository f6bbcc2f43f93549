/* tests/e2e/checkpoint_files.h: a checkpoint of kind full of a model that nobody trained. */
#ifndef SHARDC_CHECKPOINT_FILES_H
#define SHARDC_CHECKPOINT_FILES_H

/* dir: made here.  Of `ranks` ranks, adamw at step 7; one unit for each strategy, two parameters in one flat, one in
 * another; no strategies: a layout without units.  megabytes: of one more unit and its states.  Exit status. */
int put_checkpoint(const char *dir, int megabytes, int ranks, char **strategies, int n);

#endif
