/* tests/unit/play.h: runs of a few ranks, each a forked process that joins a hub over the loopback, and how each
 * ended. */
#ifndef SHARDC_TEST_PLAY_H
#define SHARDC_TEST_PLAY_H

#include "runtime/plane/private.h"

enum { MOST_RANKS = 8 };

/* What a rank does once it has joined; its exit status. */
typedef int Part(Control *c, const World *w, Diag *d);

/* A run of ranks, and what became of it. */
typedef struct Play {
	int size, skip;          /* skip: a rank that is never started, -1 none */
	Part *part;
	char address[64], path[64];
	const char *listened;    /* instead of address: what rank 0's control_listen said */
	int listen_fd, local_fd;
	bool network;            /* the launcher does not say that all ranks are on this host */
	const char *secret;      /* of the ranks that are started next; NULL: none */
	pid_t pid[MOST_RANKS];
	int how[MOST_RANKS];     /* as waitpid says */
	char said[8192];
	int64_t ms;
	bool in_time;
} Play;

void play_begin(Play *p, int size, Part *part);
/* Starts a rank as process number slot. */
void play_start(Play *p, int slot, int rank, int size);
/* Waits for all ranks; what is left after the limit is killed, and the test fails. */
void play_finish(Play *p);
void play_all(Play *p, int size, Part *part); /* all three */
int play_exit(const Play *p, int i);          /* its exit status; of a signal, -number */
void play_said(const Play *p, const char *text);
void play_said_once(const Play *p, const char *text);
void play_exits(const Play *p, const int *want);

/* ---- for parts ---- */

RtOptions play_options(Arena *a, Diag *d, char *flag); /* flag: NULL or one that the rank is started with */
FILE *play_open_said(const Play *p);                   /* where a process says what the test reads */
/* Step 7: rank 1 has ended #1 and waits in #2; the others are in #2, too. */
void play_reach_second(Control *c);

#endif
