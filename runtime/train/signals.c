/* runtime/train/signals.c: signals that make requests of a run: SIGINT and SIGTERM to stop, SIGUSR1 to save, SIGHUP to
 * read --hyper again.
 *
 * All threads of the process block them, and one thread waits for them.  No handler may run on a thread that computes:
 * oneDNN's matrix products keep data below the stack pointer, beyond the red zone of 128 bytes that the system
 * preserves, so the frame of a handler would overwrite it (oneDNN 2.6, AVX-512: about every second signal corrupted the
 * heap).
 *
 * A signal is thus a message to a thread and never interrupts a computation. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/train/train.h"

static sigset_t waited_for;
static atomic_bool stops_are_asked, second_ends;
_Atomic int report_stop_signal, report_save_signal;

void signals_block(const RtOptions *o)
{
	sigemptyset(&waited_for);
	sigaddset(&waited_for, SIGINT);
	sigaddset(&waited_for, SIGTERM);
	if (o->save) /* without --save it keeps its default action */
		sigaddset(&waited_for, SIGUSR1);
	if (o->hyper)
		sigaddset(&waited_for, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &waited_for, NULL);
}

/* Ends the process by the signal's default action. */
static void die_of(int number)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, number);
	signal(number, SIG_DFL);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	raise(number);
}

static void *take_signals(void *context)
{
	bool seen[NSIG] = {false};
	(void)context;
	for (int number; !sigwait(&waited_for, &number);) {
		if (number == SIGUSR1) {
			report_save_signal = 1;
		} else if (number == SIGHUP) {
			hyper_signal = 1;
		} else {
			if (!atomic_load(&stops_are_asked) || (seen[number] && atomic_load(&second_ends)))
				die_of(number);
			seen[number] = true;
			report_stop_signal = number;
		}
	}
	return NULL;
}

bool signals_start(const RtOptions *o, Diag *d)
{
	pthread_t thread;
	int error = pthread_create(&thread, NULL, take_signals, NULL);
	if (error)
		diag_error(d, o->program, "the thread that takes signals could not be started: %s", strerror(error));
	else
		pthread_detach(thread);
	return !error;
}

void signals_catch_stops(bool second)
{
	atomic_store(&second_ends, second);
	atomic_store(&stops_are_asked, true);
}
