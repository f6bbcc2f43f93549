/* tests/unit/test_verify.c: the verifier accepts a correct module and names what is wrong in broken ones.
 *
 * Each case breaks the same correct module in one way, as a buggy pass or a hostile text would. */
#include "ir/ir.h"
#include "tests/unit/parsed.h"
#include "tests/unit/unit.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char train[] =
	"module \"t\" level=TRAIN {\n"
	"input \"x\" : f32[2,3]\n output \"o\" : f32[2,3]\n param \"w\" : f32[3] {trainable=1}\n"
	"buffer \"n\" : f32[]\n"
	"forward {\n"
	"%x : f32[2,3] = input \"x\"\n %w : f32[3] = param \"w\"\n"
	"%y : f32[2,3] = mul %x, %w\n"
	"%z : f32[2,3] = fused %x, %y do {\n $2 : f32 = add $0, $1\n $3 : f32 = relu $2\n yield $3\n}\n"
	"%s : f32[] = reduce_sum %z {axes=[0,1], keepdims=0}\n"
	"output \"o\" %z\n write \"n\" %s\n}\n"
	"backward {\n %g : f32[3] = reduce_sum %y {axes=[0], keepdims=0}\n}\n"
	"update {\n update \"w\" %g\n}\n"
	"eval {\n %ex : f32[2,3] = input \"x\"\n %ey : f32[2,3] = neg %ex\n output \"o\" %ey\n}\n}\n";

static const char plan[] =
	"module \"t\" level=PLAN {\n"
	"unit @u {strategy=\"full_shard\", flats=[f32 trainable 67], params=[\"w\" @0, \"b\" @64]}\n"
	"output \"o\" : f32[3]\n param \"w\" : f32[3] {trainable=1}\n param \"b\" : f32[3] {trainable=1}\n"
	"forward {\n"
	"%start : event = record\n"
	"%a : async flat @u = all_gather @u %start {seq=1, stream=\"gather\"}\n"
	"%f : flat @u = wait %a\n"
	"%w : f32[3] = view \"w\" %f\n"
	"%v : f32[3] = reshape %w {shape=[3]}\n"
	"%y : f32[3] = neg %v\n"
	"reshard @u %f\n"
	"output \"o\" %y\n}\n"
	"backward {\n zero_gaps @u\n"
	"%c : flat @u = collect @u %y, _\n"
	"%done : event = record\n"
	"%r : async shard @u = reduce_scatter @u %c, %done {op=\"mean\", seq=2, stream=\"reduce\"}\n"
	"%q : shard @u = wait %r\n}\n"
	"update {\n %t : f64[] = all_reduce_scalars {seq=3, stream=\"sync\"}\n step_scalars\n"
	" update_shard @u %q {optimizer=\"adamw\"}\n}\n}\n";

static Op *op_of_kind(const Module *m, OpKind kind)
{
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			if (op->kind == kind)
				return op;
	return NULL;
}

/* ---- the ways to break a module ---- */

typedef void Breaker(Module *m);

static void break_nothing(Module *m) { (void)m; }
static void break_order(Module *m) { ir_move_before(m, value_named(m, "z")->op, value_named(m, "y")->op); }
static void break_sections(Module *m) { ir_set_in(value_named(m, "ey")->op, 0, value_named(m, "x")); }
static void break_backward_in_forward(Module *m) { ir_move_to_end(m, value_named(m, "y")->op, SEC_UPDATE); }
static void break_type(Module *m) { value_named(m, "y")->type.dim[1] = 1; }
static void break_dtype(Module *m) { value_named(m, "y")->type.dtype = DT_F64; }
static void break_count(Module *m) { value_named(m, "y")->n_uses++; }
static void break_use(Module *m) { value_named(m, "y")->uses = value_named(m, "y")->uses->next; }
static void break_stale(Module *m) /* a slot of no op stands between two that are */
{
	static Use stale;
	Use *u = value_named(m, "y")->uses;
	stale = *u->next;
	stale.prev = u;
	stale.next = u->next;
	u->next = u->next->prev = &stale;
}
static void break_slot(Module *m) { value_named(m, "z")->op->in[0].value = value_named(m, "y"); }
static void break_id(Module *m) { value_named(m, "y")->id = value_named(m, "x")->id; }
static void break_name(Module *m) { value_named(m, "y")->name = value_named(m, "x")->name; }
static void break_list(Module *m) { value_named(m, "y")->op->prev = NULL; }
static void break_section_of_op(Module *m) { value_named(m, "y")->op->section = SEC_EVAL; }
static void break_loc(Module *m) { value_named(m, "y")->op->loc = NULL; }
static void break_level(Module *m) { m->level = LEVEL_MODEL; }
static void break_attr(Module *m)
{
	Op *op = value_named(m, "s")->op;
	op->attrs = attr_int(m, op->attrs, "axis", 1);
}
static void break_attr_kind(Module *m)
{
	Op *op = value_named(m, "s")->op;
	op->attrs = attr_float(m, op->attrs, "keepdims", 0);
}
static void break_owner(Module *m) { value_named(m, "y")->op = value_named(m, "x")->op; }
static void break_symbol(Module *m)
{
	Symbol *copy = NEW(m->arena, Symbol);
	*copy = *value_named(m, "w")->op->sym;
	value_named(m, "w")->op->sym = copy;
}
static void break_output_twice(Module *m)
{
	Builder b = {.m = m, .section = SEC_FORWARD, .sym = ir_find_symbol(m, "o")};
	ir_emit1(&b, OP_OUTPUT, value_named(m, "y"));
}
static void break_body_leak(Module *m)
{
	Op *fused = op_of_kind(m, OP_FUSED);
	ir_set_in(fused->body_first, 0, value_named(m, "s"));
}
static void break_body_op(Module *m) { op_of_kind(m, OP_FUSED)->body_first->kind = OP_CONCAT; }
static void break_body_end(Module *m)
{
	Op *fused = op_of_kind(m, OP_FUSED);
	ir_set_n_in(m, fused->body_last, 0, NULL);
}
static void break_body_dtype(Module *m) { op_of_kind(m, OP_FUSED)->args[0]->type.dtype = DT_F64; }

static void break_release(Module *m)
{
	ir_move_before(m, op_of_kind(m, OP_RESHARD), value_named(m, "y")->op);
}
static void break_no_release(Module *m) { ir_remove(m, op_of_kind(m, OP_RESHARD)); }
static void break_no_wait(Module *m)
{
	Builder b = {.m = m, .section = SEC_EVAL, .unit = m->units[0]};
	Op *op = ir_emit_op(&b, OP_ALL_GATHER, 0, NULL,
		attr_str(m, attr_int(m, NULL, "seq", 1), "stream", "gather"), NULL);
	(void)op;
}
static void break_wait_twice(Module *m)
{
	Builder b = {.m = m, .section = SEC_UPDATE};
	ir_emit1(&b, OP_WAIT, value_named(m, "r"));
}
static void break_gaps(Module *m) { ir_remove(m, op_of_kind(m, OP_ZERO_GAPS)); }
static void break_seq(Module *m)
{
	Op *op = value_named(m, "r")->op;
	op->attrs = attr_int(m, op->attrs, "seq", 1);
}
static void break_view(Module *m) { ir_set_in(value_named(m, "w")->op, 0, value_named(m, "c")); }
static void break_offset(Module *m) { ir_find_symbol(m, "b")->offset = 65; }
static void break_overlap(Module *m) { ir_find_symbol(m, "b")->offset = 0; }
static void break_end(Module *m) { m->units[0]->flat[0].numel = 66; }
static void break_frozen(Module *m) { ir_find_symbol(m, "b")->trainable = false; }
static void break_unit(Module *m) { ir_find_symbol(m, "b")->unit = NULL; }

typedef struct Broken { const char *text; Breaker *by; const char *message; } Broken;
static const Broken broken[] = {
	{train, break_order, "operand 2 is not defined before it is read"},
	{train, break_sections, "not defined before it is read, or in another program"},
	{train, break_backward_in_forward, "operand 2 is not defined before it is read"},
	{train, break_type, "result 1 is declared f32[2,1] but is f32[2,3]"},
	{train, break_dtype, "result 1 is declared f64[2,3] but is f32[2,3]"},
	{train, break_count, "2 operands that name it, 2 in its list of uses, 3 counted"},
	{train, break_use, "is not in its value's list of uses"},
	{train, break_stale, "2 operands that name it, 3 in its list of uses, 2 counted"},
	{train, break_slot, "operand 1 is not in its value's list of uses"},
	{train, break_id, "is defined twice"},
	{train, break_name, "the name %x is taken twice"},
	{train, break_list, "is linked wrongly"},
	{train, break_section_of_op, "is linked wrongly"},
	{train, break_loc, "has no location"},
	{train, break_level, "may stand at levels TRAIN to"},
	{train, break_attr, "reduce_sum has 1 attribute(s) that it does not know"},
	{train, break_attr_kind, "attribute keepdims of reduce_sum has the wrong kind"},
	{train, break_owner, "is not its own"},
	{train, break_symbol, "a symbol that is not the module's"},
	{train, break_output_twice, "a second output of the same"},
	{train, break_body_leak, "operand 1 is not defined before it is read"},
	{train, break_body_op, "concat may not stand in a fused body"},
	{train, break_body_end, "does not end with a yield of all results"},
	{train, break_body_dtype, "$0 does not have the dtype of its operand"},
	{plan, break_release, "neg reads unit u after its reshard (rule read-after-reshard)"},
	{plan, break_no_release, "unit u is gathered and never resharded (rule reshard-missing)"},
	{plan, break_no_wait, "is never waited for"},
	{plan, break_wait_twice, "reduce_scatter of unit u is waited for twice (rule wait-once)"},
	{plan, break_gaps, "the gaps of the gradient of unit u are not zeroed"},
	{plan, break_seq, "this one has number 1 after 1 (rule number)"},
	{plan, break_view, "operand 1 is not defined before it is read"},
	{plan, break_offset, "not aligned to 64"},
	{plan, break_overlap, "over its neighbour"},
	{plan, break_end, "beyond the flat's 66 elements"},
	{plan, break_frozen, "of another dtype or trainability"},
	{plan, break_unit, "is not its parameter"},
};

/* ---- tests ---- */

/* What the verifier says of the module after `by`; NULL when it accepts. */
static char *verdict(const char *text, Breaker *by)
{
	char *said = NULL;
	size_t n = 0;
	Module *m = parsed(text);
	FILE *f = open_memstream(&said, &n);
	Diag d = {.out = f};
	by(m);
	bool ok = ir_verify(m, NULL, &d);
	CU_ASSERT_EQUAL(ok, d.errors == 0);
	fclose(f);
	ir_module_free(m);
	if (!ok)
		return said;
	free(said);
	return NULL;
}

static void test_right(void)
{
	CU_ASSERT_PTR_NULL(verdict(train, break_nothing));
	CU_ASSERT_PTR_NULL(verdict(plan, break_nothing));
}

static void test_broken(void)
{
	for (int i = 0; i < COUNT_OF(broken); i++) {
		char *said = verdict(broken[i].text, broken[i].by);
		bool found = said && strstr(said, broken[i].message);
		UNIT_CHECK(found, broken[i].message);
		if (!found)
			printf("    said: %s\n", said ? said : "nothing");
		free(said);
	}
}

/* After a pass a violation is that pass's bug: the process aborts and names it. */
static void test_blames_the_pass(void)
{
	int fd[2];
	char said[1000] = {0};
	CU_ASSERT_EQUAL_FATAL(pipe(fd), 0);
	fflush(NULL);
	pid_t child = fork();
	if (child == 0) {
		Diag d = {.out = stderr};
		dup2(fd[1], STDERR_FILENO);
		signal(SIGABRT, SIG_DFL);
		Module *m = parsed(train);
		break_type(m);
		ir_verify(m, "fuse", &d);
		_exit(0);
	}
	close(fd[1]);
	size_t n = 0;
	for (ssize_t got; n < sizeof(said) - 1 && (got = read(fd[0], said + n, sizeof(said) - 1 - n)) > 0;)
		n += (size_t)got;
	int status = 0;
	waitpid(child, &status, 0);
	close(fd[0]);
	CU_ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	CU_ASSERT_PTR_NOT_NULL(strstr(said, "after pass fuse: result 1 is declared f32[2,1] but is f32[2,3]"));
}

void suite_verify(void)
{
	CU_pSuite s = CU_add_suite("verify", NULL, NULL);
	CU_add_test(s, "right modules are accepted", test_right);
	CU_add_test(s, "every violation is named", test_broken);
	CU_add_test(s, "after a pass it is the pass's bug", test_blames_the_pass);
}
