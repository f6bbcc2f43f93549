/* tests/oracle/main.c: judges mutants of schedules twice, by the verifier and by the oracle.
 *
 * oracle [-n MUTANTS] [-e EDITS] [-s SEED] [-v] [-p MUTANT] [CASE...]
 *   -n  mutants per schedule; -e  edited schedule files of each; -s  seed; CASE  only cases whose name has this
 *   -v  prints each mutant with both verdicts; -p  prints the IR of one mutant
 *
 * Fails when the verifier accepts what the oracle refutes or rejects what the oracle finds right; when either
 * rejects a schedule as it came from the compiler, or one with an event more for every collective; when any
 * event can be removed from a schedule unnoticed by either; when an edited schedule file is accepted whose
 * program the oracle refutes; and when the file that nobody edited gives another program. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/oracle/cases.h"
#include "tests/oracle/mutate.h"
#include "tests/oracle/oracle.h"

typedef struct Counts {
	int mutants, refuted, structure, rejected; /* structure: refuted as no program, whatever the schedule */
	int unsound, strict;                       /* refuted, yet accepted; the reverse */
	int events, events_missed, originals_bad;
	int edits, edits_accepted;
} Counts;

typedef struct Run {
	int n_mutants, n_edits, print;
	Counts *by_change;
	uint64_t seed;
	bool verbose;
	char *const *only;
	int n_only;
} Run;

static Module *parse(const char *text)
{
	Diag d = {.out = stderr};
	Module *m = ir_parse("schedule", text, &d);
	if (!m)
		ice("a schedule that was printed cannot be read");
	return m;
}

/* The verdicts: NULL = right. */
typedef struct Verdicts { const char *oracle; char *verifier; } Verdicts;

static Verdicts judge(Module *m, const Variants *others, Arena *a)
{
	size_t n = 0;
	Verdicts v = {.oracle = oracle_run(m, others->of, a)};
	Diag d = {.max_errors = 3, .out = open_memstream(&v.verifier, &n)};
	bool ok = ir_verify(m, NULL, &d);
	fclose(d.out);
	if (ok) {
		free(v.verifier);
		v.verifier = NULL;
	}
	return v;
}

static void show(const char *head, const char *said, const Verdicts *v)
{
	printf("%s %s\n    oracle:   %s\n    verifier: %s%s", head, said, v->oracle ? v->oracle : "right",
		v->verifier ? v->verifier : "right", v->verifier ? "" : "\n");
}

/* ---- what must be right, what must be noticed ---- */

static bool judge_original(const char *text, const Variants *others, bool all_events, Counts *c)
{
	Arena *a = arena_new();
	Module *m = parse(text);
	if (all_events)
		add_all_events(m);
	Verdicts v = judge(m, others, a);
	bool right = !v.oracle && !v.verifier;
	if (!right) {
		show("BAD", all_events ? "the schedule with all events" : "the schedule as it is", &v);
		c->originals_bad++;
	}
	free(v.verifier);
	ir_module_free(m);
	arena_free(a);
	return right;
}

static void judge_events(const char *text, const Variants *others, Counts *c)
{
	for (int k = 0, n = 1; k < n; k++) {
		Arena *a = arena_new();
		Module *m = parse(text);
		n = count_events(m);
		const char *said = drop_event(m, k);
		if (said) {
			Verdicts v = judge(m, others, a);
			c->events++;
			c->events_missed += !v.oracle || !v.verifier;
			if (!v.oracle || !v.verifier)
				show("MISSED without its event:", said, &v);
			free(v.verifier);
		}
		ir_module_free(m);
		arena_free(a);
	}
}

/* ---- edited files ---- */

static char *schedule_text(const Case *one, Module *m)
{
	char *text = NULL;
	size_t n = 0;
	Options o = case_options(one);
	FILE *f = open_memstream(&text, &n);
	schedule_write(f, m, &o);
	fclose(f);
	return text;
}

static void judge_edit(const Case *one, const char *text, const char *path, int number, const Run *run, Counts *c)
{
	Arena *a = arena_new();
	char *log = NULL;
	size_t n = 0;
	Diag d = {.out = open_memstream(&log, &n)};
	FILE *f = fopen(path, "w");
	if (!f)
		ice("cannot write %s", path);
	edit_schedule(f, text, run->seed + (uint64_t)number * 104729);
	fclose(f);
	Variants all;
	Module *m = case_build(one, path, &all, &d);
	fclose(d.out);
	Verdicts v = {.oracle = m ? oracle_run(m, all.of, a) : NULL, .verifier = m ? NULL : log};
	c->edits++;
	c->edits_accepted += m != NULL;
	c->unsound += v.oracle != NULL;
	if (v.oracle || run->verbose)
		show(v.oracle ? "UNSOUND edit" : "edit", arena_printf(a, "%d", number), &v);
	pipeline_free(&all);
	free(log);
	arena_free(a);
}

/* A file that nobody edited gives the program that it was written from. */
static void judge_unedited(const Case *one, const Module *m, const char *text, const char *path, Counts *c)
{
	Diag d = {.out = stderr};
	FILE *f = fopen(path, "w");
	if (!f || fputs(text, f) < 0 || fclose(f))
		ice("cannot write %s", path);
	Variants all;
	Module *again = case_build(one, path, &all, &d);
	const char *before = ir_text(m, m->arena), *after = again ? ir_text(again, m->arena) : NULL;
	if (!after || strcmp(before, after)) {
		printf("BAD the unedited schedule file %s\n", after ? "gives another program" : "is refused");
		c->originals_bad++;
	}
	pipeline_free(&all);
}

static void judge_edits(const Case *one, Module *m, const Run *run, Counts *c)
{
	char path[] = "/tmp/oracle_schedule_" "XX" "XX" "XX";
	int file = mkstemp(path);
	char *text = schedule_text(one, m);
	if (file < 0)
		ice("cannot make %s", path);
	close(file);
	judge_unedited(one, m, text, path, c);
	for (int i = 0; i < run->n_edits; i++)
		judge_edit(one, text, path, i, run, c);
	unlink(path);
	free(text);
}

/* ---- mutants ---- */

static void count(const Verdicts *v, Counts *c)
{
	c->mutants++;
	c->refuted += v->oracle != NULL;
	c->structure += v->oracle && !strncmp(v->oracle, "structure", 9);
	c->rejected += v->verifier != NULL;
	c->unsound += v->oracle && !v->verifier;
	c->strict += !v->oracle && v->verifier;
}

static void judge_mutant(const char *text, const Variants *others, int number, Run *run, Counts *c)
{
	Arena *a = arena_new();
	Mutation x = {.random = run->seed + (uint64_t)number * 7919};
	for (bool done = false; !done;) {
		x.m = parse(text);
		done = mutate(&x);
		if (!done)
			ir_module_free(x.m);
	}
	Verdicts v = judge(x.m, others, a);
	bool agree = !v.oracle == !v.verifier;
	char head[64];
	snprintf(head, sizeof(head), "%s %d:", agree ? "mutant" : v.oracle ? "UNSOUND" : "STRICT", number);
	if (!agree || run->verbose)
		show(head, x.said, &v);
	if (run->print == number)
		ir_print(stdout, x.m);
	count(&v, c);
	count(&v, &run->by_change[x.change]);
	free(v.verifier);
	ir_module_free(x.m);
	arena_free(a);
}

static void add(Counts *to, const Counts *c)
{
	to->mutants += c->mutants;
	to->refuted += c->refuted;
	to->structure += c->structure;
	to->rejected += c->rejected;
	to->unsound += c->unsound;
	to->strict += c->strict;
	to->events += c->events;
	to->events_missed += c->events_missed;
	to->originals_bad += c->originals_bad;
	to->edits += c->edits;
	to->edits_accepted += c->edits_accepted;
}

static bool is_wanted(const char *name, const Run *run)
{
	for (int i = 0; i < run->n_only; i++)
		if (strstr(name, run->only[i]))
			return true;
	return !run->n_only;
}

static void row(const char *name, const Counts *c)
{
	printf("%-102s %7d %7d %9d %8d %7d %6d %6d %6d %5d %8d\n", name, c->mutants, c->refuted, c->structure,
		c->rejected, c->unsound, c->strict, c->events, c->events_missed, c->edits, c->edits_accepted);
}

static void judge_case(const Case *one, const char *name, Run *run, Counts *c)
{
	Diag d = {.out = stderr};
	Variants all;
	Module *m = case_build(one, NULL, &all, &d);
	if (!m) {
		c->originals_bad++;
		return;
	}
	const char *text = ir_text(m, m->arena);
	judge_edits(one, m, run, c);
	if (run->print < 0)
		printf("%s", text);
	fflush(stdout);
	bool right = judge_original(text, &all, false, c);
	right = judge_original(text, &all, true, c) && right;
	if (right) {
		judge_events(text, &all, c);
		for (int i = 0; i < run->n_mutants; i++)
			judge_mutant(text, &all, i, run, c);
	}
	row(name, c);
	pipeline_free(&all);
}

static int judge_cases(Run *run)
{
	Counts total = {0};
	int n = 0;
	Arena *a = arena_new();
	run->by_change = NEW_N(a, Counts, n_changes);
	printf("%-102s mutants refuted structure rejected unsound strict events missed edits accepted\n", "schedule");
	for (int i = 0; i < n_cases; i++) {
		Counts c = {0};
		const char *name = case_name(&cases[i], a);
		if (!is_wanted(name, run))
			continue;
		judge_case(&cases[i], name, run, &c);
		add(&total, &c);
		n++;
	}
	for (int i = 0; i < n_changes; i++)
		row(arena_printf(a, "  mutants with %s", change_name(i)), &run->by_change[i]);
	row(arena_printf(a, "total of %d schedules", n), &total);
	arena_free(a);
	bool failed = total.unsound || total.strict || total.events_missed || total.originals_bad || !total.mutants;
	printf("%s\n", failed ? "FAILED" : "verifier and oracle agree on all of them");
	return failed;
}

int main(int argc, char **argv)
{
	Run run = {.n_mutants = 200, .n_edits = 10, .seed = 1, .print = INT32_MAX};
	int i = 1;
	for (; i < argc && argv[i][0] == '-'; i++) {
		if (!strcmp(argv[i], "-v"))
			run.verbose = true;
		else if (!strcmp(argv[i], "-n") && i + 1 < argc)
			run.n_mutants = atoi(argv[++i]);
		else if (!strcmp(argv[i], "-e") && i + 1 < argc)
			run.n_edits = atoi(argv[++i]);
		else if (!strcmp(argv[i], "-s") && i + 1 < argc)
			run.seed = strtoull(argv[++i], NULL, 10);
		else if (!strcmp(argv[i], "-p") && i + 1 < argc)
			run.print = atoi(argv[++i]);
		else
			return fprintf(stderr, "usage: oracle [-n MUTANTS] [-e EDITS] [-s SEED] [-v] [-p MUTANT] [CASE...]\n"), 2;
	}
	run.only = argv + i;
	run.n_only = argc - i;
	return judge_cases(&run);
}
