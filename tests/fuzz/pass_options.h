/* tests/fuzz/pass_options.h: options of passes, chosen by an input's hash: strategies, wrap policies, dtypes, remat. */
#ifndef SHARDC_FUZZ_PASS_OPTIONS_H
#define SHARDC_FUZZ_PASS_OPTIONS_H

#include "passes/passes.h"
#include "tests/fuzz/fuzz.h"

static inline PassOptions fuzz_options(uint32_t h)
{
	static const char *const strategies[] = {"full_shard", "shard_grad_op", "hybrid_shard", "no_shard", "oss",
		"sharded_ddp"};
	static const char *const wraps[] = {"each", "block", "size:100", "none", "exec-order:400", "scope:a"};
	static const char *const losses[] = {NULL, "mse", "cross_entropy", "l1", "bce_with_logits", "output:loss"};
	static const char *const optimizers[] = {NULL, "sgd", "sgd:momentum,nesterov", "adam", "adagrad", "lion"};
	static const DType dtypes[] = {DT_F32, DT_F32, DT_BF16, DT_F16};
	PassOptions o = {.world = 1, .threads = 1, .workspace = 1 << 20, .dropout = true, .n_wrap = 1};
	o.strategy = strategies[fuzz_choose(&h, COUNT_OF(strategies))];
	o.wrap = &wraps[fuzz_choose(&h, COUNT_OF(wraps))];
	o.loss = losses[fuzz_choose(&h, COUNT_OF(losses))];
	o.optimizer = optimizers[fuzz_choose(&h, COUNT_OF(optimizers))];
	o.param_dtype = dtypes[fuzz_choose(&h, COUNT_OF(dtypes))];
	o.reduce_dtype = dtypes[fuzz_choose(&h, COUNT_OF(dtypes))];
	o.buffer_dtype = DT_F32;
	o.remat = fuzz_choose(&h, 2) ? "block" : "none";
	o.clip = fuzz_choose(&h, 3) ? "off" : "2,value";
	o.reshard_root = fuzz_choose(&h, 2);
	o.grad_norm = fuzz_choose(&h, 2);
	o.world = 1 + fuzz_choose(&h, 3);
	return o;
}

#endif
