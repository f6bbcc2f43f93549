/* tests/random/shrink.c: what becomes of a module, in this process or in one of its own; and smaller modules to which
 * the same happens: results are replaced, one op after the other, by operands of their type or by new symbols. */
#include "tests/random/random.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 5 };

void random_limit(void)
{
	struct itimerval t = {.it_value.tv_sec = SECONDS};
	setitimer(ITIMER_PROF, &t, NULL);
}

bool random_ended(int status)
{
	return WIFEXITED(status) && !WEXITSTATUS(status);
}

static void copy_text(char *to, size_t n, const char *from)
{
	snprintf(to, n, "%s", from ? from : "");
}

Verdict random_run(Module *m, const Options *o, FILE *log)
{
	Diag d = {.out = log};
	CheckReport report = {0};
	PipelineView view = {.check = &report};
	Verdict v = {0};
	bool ok = pipeline_run(m, o, &view, NULL, &d);
	v.outcome = ok ? OUTCOME_OK : report.differs ? OUTCOME_DIFFERS : OUTCOME_REFUSED;
	v.compared = report.checked;
	copy_text(v.pass, sizeof(v.pass), report.pass);
	copy_text(v.rule, sizeof(v.rule), report.rule);
	copy_text(v.what, sizeof(v.what), report.what);
	copy_text(v.op, sizeof(v.op), report.op);
	return v;
}

Verdict random_try_text(const char *text, const Options *o, FILE *log)
{
	Verdict *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	fflush(NULL);
	pid_t pid = fork();
	if (!pid) {
		random_limit();
		FILE *out = log ? log : fopen("/dev/null", "w");
		Diag d = {.out = out};
		if (!log)
			dup2(fileno(out), STDERR_FILENO);
		Module *m = ir_parse("random.ir", text, &d);
		*shared = (Verdict){.outcome = OUTCOME_REFUSED};
		if (m)
			*shared = random_run(m, o, out);
		fflush(out);
		_exit(0);
	}
	int status = 0;
	waitpid(pid, &status, 0);
	Verdict v = *shared;
	if (!random_ended(status))
		v = (Verdict){.outcome = WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF ? OUTCOME_HANGS : OUTCOME_CRASHED};
	munmap(shared, sizeof(*shared));
	return v;
}

/* ---- smaller texts ---- */

static Op *op_at(Module *m, int n)
{
	IR_FOR_OPS(m, SEC_FORWARD, op)
		if (!n--)
			return op;
	return NULL;
}

static void drop_unused(Module *m)
{
	int n = 0;
	ir_sweep(m, SEC_FORWARD);
	for (int i = 0; i < m->n_symbols; i++) {
		bool used = false;
		IR_FOR_OPS(m, SEC_FORWARD, op) {
			used = used || op->sym == m->symbols[i];
			for (const Attr *a = op->attrs; a; a = a->next)
				used = used || (a->kind == ATTR_STR && !strcmp(a->s, m->symbols[i]->name));
		}
		if (used) {
			m->symbols[i]->index = n;
			m->symbols[n++] = m->symbols[i];
		}
	}
	m->n_symbols = n;
}

/* Way k of making the module smaller at its op: a result becomes operand k, or (the last way) a symbol.  false: there
 * is no such way. */
static bool cut(Module *m, Op *op, int k)
{
	Builder b = {.m = m, .section = SEC_FORWARD, .before = op, .loc = op->loc};
	if (op->kind == OP_OUTPUT) {
		if (k || !strcmp(op->sym->name, "loss"))
			return false;
		ir_remove(m, op);
		return true;
	}
	if (!op->n_out || op_info[op->kind].flags & SRC || k > op->n_in)
		return false;
	if (k < op->n_in) {
		Value *v = op_in(op, k);
		if (!v || !type_equal(&v->type, &op->out[0]->type))
			return cut(m, op, k + 1);
		ir_replace_uses(op->out[0], v);
		return true;
	}
	for (int i = 0; i < op->n_out; i++) {
		if (!op->out[i]->n_uses)
			continue;
		bool trains = dtype_is_float(op->out[i]->type.dtype);
		char name[32];
		snprintf(name, sizeof(name), "cut%d", m->n_values);
		Symbol *s = ir_add_symbol(m, trains ? SYM_PARAM : SYM_INPUT, name, op->out[i]->type);
		s->trainable = trains;
		ir_replace_uses(op->out[i], ir_read(&b, s));
	}
	return true;
}

static bool is_same(const Verdict *a, const Verdict *b)
{
	return a->outcome == b->outcome && !strcmp(a->pass, b->pass);
}

/* One try; the smaller text when the same still happens to it. */
static char *try_cut(const char *text, const Options *o, const Verdict *v, int at, int way, bool *exists, Arena *a)
{
	Diag d = {.out = stderr};
	Module *m = ir_parse("random.ir", text, &d);
	Op *op = m ? op_at(m, at) : NULL;
	char *now = NULL;
	*exists = op && cut(m, op, way);
	if (*exists) {
		drop_unused(m);
		now = ir_text(m, a);
		Verdict got = strlen(now) < strlen(text) ? random_try_text(now, o, NULL) : (Verdict){0};
		if (!is_same(&got, v))
			now = NULL;
	}
	ir_module_free(m);
	return now;
}

/* 0 where the text does not parse: there is nothing to cut. */
static int count_ops_of(const char *text)
{
	Diag d = {.out = stderr};
	Module *m = ir_parse("random.ir", text, &d);
	int n = 0;
	for (const Op *op = m ? m->first[SEC_FORWARD] : NULL; op; op = op->next)
		n++;
	ir_module_free(m);
	return n;
}

char *random_shrink(const char *text, const Options *o, Verdict *v, Arena *a)
{
	char *best = arena_strdup(a, text);
	int tries = v->outcome == OUTCOME_HANGS ? 12 : 400;
	bool smaller = true;
	while (smaller) {
		smaller = false;
		for (int at = count_ops_of(best) - 1; at >= 0; at--) {
			bool exists = true;
			for (int way = 0; exists && tries-- > 0; way++) {
				char *now = try_cut(best, o, v, at, way, &exists, a);
				if (now) {
					best = now;
					smaller = true;
					break;
				}
			}
		}
	}
	return best;
}
