/* passes/attend.c: on GPUs, marks the attentions that cuDNN computes (--attention).
 *
 * It marks what the library's kernels for attention serve: 16 bits, heads of a multiple of 8 elements up to 128, a
 * scale above 0, a band in which every row sees a key, rows that begin at multiples of 16 bytes.  Our own kernels
 * compute the rest: documents, soft caps and dropout.
 *
 * A mask is a bias for the library, beside all keys or causal attention; gradients want whole tiles of rows and keys
 * then.  What a mask adds does not matter: where its numbers hide every key of a row, the program finds that out and
 * computes those heads by our own kernels.  Nor does it matter whether the mask trains: its gradient is made of the
 * output and the log-sum-exps, by other ops.  Whether the library is faster there has not been measured, so `auto`
 * leaves masks to our own.
 *
 * `auto` marks forward alone.  The library's gradient that has the same bits in every run writes the gradients of the
 * scores and reads them: two bytes of memory and four of traffic for each pair of row and key, which is 1.5 GiB and
 * 3 GiB for 64 samples of 12 heads and 1024 tokens.  Ours keeps them in registers. */
#include "passes/passes.h"

#include "kernels/cuda/work.h"

/* WITHOUT_GRADIENTS: from such GPUs on cuDNN has none whose bits are the same each time. */
enum { MULTIPLE = 8, LONGEST = 128, WITHOUT_GRADIENTS = 100 };

/* The heads of operand `at` and on, q, k and v. */
typedef struct Heads { int64_t t, s, d, dv; } Heads;

static Heads heads_of(const Op *op, int at)
{
	const Type *q = &op_in(op, at)->type, *k = &op_in(op, at + 1)->type, *v = &op_in(op, at + 2)->type;
	int t = attr_get_int(op->attrs, "layout", 0) ? 1 : 2;
	return (Heads){q->dim[t], k->dim[t], q->dim[3], v->dim[3]};
}

static bool every_row_sees(const Op *op, Heads n)
{
	const Attr *left = attr_find(op->attrs, "left"), *right = attr_find(op->attrs, "right");
	bool first = !right || right->i >= 0, last = !left || left->i >= n.t - 1 || (left->i >= 0 && n.t <= n.s);
	return n.t > 1 && n.s > 1 && first && last;
}

/* The library takes a mask, if the op has one, beside a band without limits, or causal; a limit that hides nothing is
 * none. */
static bool band_takes_mask(const Op *op, int at, Heads n)
{
	const Attr *left = attr_find(op->attrs, "left"), *right = attr_find(op->attrs, "right");
	return !op_in(op, at + 3) || ((!left || left->i >= n.t - 1) && (!right || right->i == 0 || right->i >= n.s - 1));
}

static bool tiles_are_whole(const Op *op, int at, Heads n)
{
	return !op_in(op, at + 3) || op->kind == OP_ATTENTION || (n.t % K_DNN_TILE == 0 && n.s % K_DNN_TILE == 0);
}

static bool rows_are_aligned(const Op *op, int at)
{
	for (int i = at; i < at + 3; i++)
		if (value_pitch(op_in(op, i)) % MULTIPLE)
			return false;
	for (int i = 0; op->kind == OP_ATTENTION_GRAD && i < 3; i++)
		if (value_pitch(op->out[i]) % MULTIPLE)
			return false;
	return true;
}

/* What of the op the library does not serve; NULL: it serves it. */
static const char *unserved(const Op *op)
{
	int at = op->kind == OP_ATTENTION_GRAD;
	Heads n = heads_of(op, at);
	DType type = op_in(op, at)->type.dtype;
	return type != DT_BF16 && type != DT_F16 ? "it is not of 16 bits"
		: n.d % MULTIPLE || n.dv % MULTIPLE || n.d > LONGEST || n.dv > LONGEST
		? "heads are longer than 128 elements, or no multiple of 8"
		: op_in(op, at + 4) ? "it has documents"
		: attr_get_float(op->attrs, "softcap", 0) != 0 ? "it has a soft cap"
		: !(attr_get_float(op->attrs, "scale", 1) > 0) ? "its scale is not above 0"
		: op_draws(op) ? "it has dropout"
		: type_numel(&op_in(op, at)->type) <= 0 ? "it is empty"
		: !every_row_sees(op, n) ? "it is of one row or one key, or there are rows that see none"
		: !band_takes_mask(op, at, n) ? "its mask stands beside a window"
		: !tiles_are_whole(op, at, n) ? "a gradient behind a mask wants rows and keys in multiples of 128"
		: !rows_are_aligned(op, at) ? "its rows do not begin at multiples of 16 bytes" : NULL;
}

const char *attend_own(const Op *op)
{
	bool grad = op->kind == OP_ATTENTION_GRAD;
	const char *why = unserved(op);
	if (attr_get_int(op->attrs, "library", 0))
		return NULL;
	return why ? why : op_in(op, grad + 3) ? "cuDNN takes masks with --attention=cudnn alone"
		: grad ? "cuDNN computes gradients with --attention=cudnn alone, and not from sm_100 on"
		: "--attention=own, or pass attend was not run";
}

bool pass_attend(Module *m, const Options *o, Diag *d)
{
	const char *mark = "library";
	int forward = 0, backward = 0, all = 0, served = 0, masked = 0;
	if (!options_cuda(o))
		return true;
	for (int s = SEC_FORWARD; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op) {
			bool grad = op->kind == OP_ATTENTION_GRAD;
			if (op->kind != OP_ATTENTION && !grad)
				continue;
			all++;
			op->attrs = attr_without(m, op->attrs, 1, &mark);
			if (unserved(op))
				continue;
			served++;
			bool asked = grad || op_in(op, grad + 3);
			masked += op_in(op, grad + 3) != NULL;
			if (o->target.attention == ATTENTION_OWN || (asked && o->target.attention != ATTENTION_CUDNN)
					|| (grad && options_sm(o) >= WITHOUT_GRADIENTS))
				continue;
			op->attrs = attr_int(m, op->attrs, mark, 1);
			forward += !grad;
			backward += grad;
		}
	if (o->given.attention && !served)
		diag_warn(d, "--attention", "is not used: the model has no attention that cuDNN would serve");
	if (all)
		diag_info(d, "attend", "of %d attentions and gradients cuDNN computes %d and %d, where it takes them%s", all,
			forward, backward, masked && o->target.attention == ATTENTION_AUTO
			? "; it would take masks, too (--attention=cudnn)" : "");
	return true;
}
