/* tests/fuzz/pass_options.h: options of passes, chosen by an input's hash: strategies, wrap policies, dtypes, remat. */
#ifndef SHARDC_FUZZ_PASS_OPTIONS_H
#define SHARDC_FUZZ_PASS_OPTIONS_H

#include "passes/passes.h"
#include "tests/fuzz/fuzz.h"

static inline Options fuzz_options(uint32_t h)
{
	static const char *const wraps[] = {"each", "block", "size:100", "blocks:2",
		"blocks:1/2", "none", "exec-order:400", "scope:a"};
	static const char *const losses[] = {NULL, "mse", "cross_entropy", "l1", "bce_with_logits", "output:loss"};
	static const char *const optimizers[] = {NULL, "sgd", "sgd:momentum,nesterov", "adam", "adagrad", "lion"};
	static const char *const remats[] = {"none", "block", "{\"recompute\": [{\"op\": \"matmul\"}]}",
		"{\"recompute\": [{\"node\": \".\"}], \"keep\": [{\"op\": \"gelu\"}]}"};
	static const DType dtypes[] = {DT_F32, DT_F32, DT_BF16, DT_F16};
	Options o = {.memory.workspace = 1 << 20};
	o.sharding.strategy = (Strategy)fuzz_choose(&h, STRATEGY_COUNT);
	o.sharding.wrap = (OptionList){{wraps[fuzz_choose(&h, COUNT_OF(wraps))]}, 1};
	o.graph.loss = losses[fuzz_choose(&h, COUNT_OF(losses))];
	o.graph.optimizer = optimizers[fuzz_choose(&h, COUNT_OF(optimizers))];
	o.precision.param_dtype = dtypes[fuzz_choose(&h, COUNT_OF(dtypes))];
	o.precision.reduce_dtype = dtypes[fuzz_choose(&h, COUNT_OF(dtypes))];
	o.memory.remat = remats[fuzz_choose(&h, COUNT_OF(remats))];
	o.graph.clip = fuzz_choose(&h, 3) ? "off" : "2,value";
	o.sharding.reshard_root = fuzz_choose(&h, 2);
	o.graph.grad_norm = fuzz_choose(&h, 2) ? GRAD_NORM_ON : GRAD_NORM_OFF;
	o.sharding.world = 1 + fuzz_choose(&h, 3);
	return o;
}

#endif
