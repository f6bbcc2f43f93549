/* tests/unit/toy_run.h: the program of toy.h run as one process, in a folder of the suite's own. */
#ifndef SHARDC_TESTS_TOY_RUN_H
#define SHARDC_TESTS_TOY_RUN_H

#include <string.h>
#include <sys/resource.h>

#include "tests/unit/toy_reference.h"
#include "tests/unit/unit.h"

extern char toy_said[1 << 16]; /* what the last run printed, or the file read last */
extern ToyData toy_data;       /* x.npy and labels.npy: not a multiple of the batch */

/* Into a new folder with the inputs, and back out of it, for CU_add_suite. */
int toy_enter(void);
int toy_leave(void);

/* Flags are separated by blanks; files may not grow beyond file_limit, 0: as they like. */
pid_t toy_start(const RtModel *m, const char *flags, rlim_t file_limit);
int toy_finish(pid_t pid);     /* its exit code; of a signal, 1000 + number */
int toy_run(const RtModel *m, const char *flags);

/* The program ends with this code and says that. */
#define EXPECT(model, flags, code, say) do { \
	int code_ = toy_run(model, flags); \
	if (code_ != (code) || !strstr(toy_said, say)) \
		fprintf(stderr, "\n[%s]\n  exit %d, wanted %d and \"%s\"; it said:\n%s", flags, code_, code, say, toy_said); \
	CU_ASSERT_EQUAL(code_, code); \
	CU_ASSERT_PTR_NOT_NULL(strstr(toy_said, say)); \
} while (0)

#define DATA "--data x=x.npy --data labels=labels.npy "

void toy_read_text(const char *path);
void toy_remove(const char *what); /* names separated by blanks */
bool toy_same_files(const char *a, const char *b);

#endif
