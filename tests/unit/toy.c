/* tests/unit/toy.c: softmax regression as a program (toy.h). */
#include "tests/unit/toy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

RtTensor toy_tensors[TOY_TENSORS] = {
	[TOY_X] = {.kind = RT_INPUT, .name = "x", .dtype = DT_F32, .rank = 2, .dim = {TOY_B, TOY_D}, .unit = -1,
		.batched = true},
	[TOY_LABELS] = {.kind = RT_INPUT, .name = "labels", .dtype = DT_I64, .rank = 1, .dim = {TOY_B}, .unit = -1,
		.offset = 64, .batched = true},
	[TOY_W] = {.kind = RT_PARAM, .name = "fc.weight", .dtype = DT_F32, .rank = 2, .dim = {TOY_C, TOY_D},
		.trainable = true, .file = "weights.bin", .file_offset = 8, .file_bytes = 96, .file_dtype = DT_F64,
		.file_rank = 2, .file_dim = {TOY_D, TOY_C}, .perm = {1, 0}},
	[TOY_BIAS] = {.kind = RT_PARAM, .name = "fc.bias", .dtype = DT_F32, .rank = 1, .dim = {TOY_C}, .offset = 64,
		.fill = 0.25, .trainable = true, .no_decay = true},
	[TOY_SCALE] = {.kind = RT_PARAM, .name = "scale", .dtype = DT_F32, .rank = 1, .dim = {TOY_D}, .unit = 1, .fill = 2},
	[TOY_SEEN] = {.kind = RT_BUFFER, .name = "seen", .dtype = DT_F32, .rank = 0, .unit = -1},
	[TOY_SHIFT] = {.kind = RT_DATA, .name = "shift", .dtype = DT_F32, .rank = 1, .dim = {TOY_D}, .unit = -1,
		.offset = 64, .fill = 0.5},
};

static const char *const toy_unit_names[] = {"root", "frozen"};
const LayoutUnit toy_units[2] = {
	{STRATEGY_FULL_SHARD, -1, 1, {LAYOUT_FLAT(DT_F32, true, 64 + TOY_C)}, 0, true, false, LAYOUT_OFFLOAD_NONE, 0},
	{STRATEGY_FULL_SHARD, -1, 1, {LAYOUT_FLAT(DT_F32, false, TOY_D)}, -1, true, false, LAYOUT_OFFLOAD_NONE, 0},
};
const RtCollective toy_step[4] = {
	{RT_ALL_GATHER, RT_STREAM_GATHER, 0, -1, 0, false, 0, false},
	{RT_ALL_GATHER, RT_STREAM_GATHER, 1, -1, 0, false, 0, false},
	{RT_REDUCE_SCATTER, RT_STREAM_REDUCE, 0, -1, 0, false, 0, false},
	{RT_ALL_REDUCE_SCALARS, RT_STREAM_SYNC, -1, -1, 0, false, 0, false},
};
static const RtCollective toy_evaluation[] = {
	{RT_ALL_GATHER, RT_STREAM_GATHER, 0, -1, 0, false, 0, false},
	{RT_ALL_GATHER, RT_STREAM_GATHER, 1, -1, 0, false, 0, false},
};

/* What is readable of a unit's flat, whatever its dtype. */
static void toy_read(const Rt *rt, int unit, float *out, int n)
{
	DType t = rt->model->layout.unit[unit].flat[0].param;
	for (int i = 0; i < n; i++)
		out[i] = (float)number_get((const char *)rt->param[unit][0] + i * dtype_info[t].bytes, t);
}

static void toy_forward(Rt *rt)
{
	const float *x = (const float *)(rt->input + 0), *shift = (float *)(rt->state + 64);
	float w[64 + TOY_C], *b = w + 64, scale[TOY_D];
	toy_read(rt, 0, w, 64 + TOY_C);
	toy_read(rt, 1, scale, TOY_D);
	const int64_t *labels = (const int64_t *)(rt->input + 64);
	float *in = (float *)(rt->act + TOY_IN), *logits = (float *)(rt->act + TOY_LOGITS);
	float *sum = (float *)(rt->act + TOY_SUM), *weight = (float *)(rt->act + TOY_WEIGHT);
	double loss = 0, valid = 0;
	for (int i = 0; i < TOY_B; i++) {
		double z = 0;
		for (int d = 0; d < TOY_D; d++)
			in[i * TOY_D + d] = x[i * TOY_D + d] * scale[d] + shift[d];
		for (int c = 0; c < TOY_C; c++) {
			float y = b[c];
			for (int d = 0; d < TOY_D; d++)
				y += w[c * TOY_D + d] * in[i * TOY_D + d];
			logits[i * TOY_C + c] = y;
			z += exp((double)y);
		}
		if (labels[i] == TOY_IGNORE)
			continue;
		if (labels[i] < 0 || labels[i] >= TOY_C) {
			k_bad_input("label %lld in row %d is outside [0,%d)", (long long)labels[i], i, TOY_C);
			continue;
		}
		loss += log(z) - (double)logits[i * TOY_C + labels[i]];
		valid++;
	}
	*sum = (float)loss;
	*weight = (float)valid;
	rt_report_loss(rt, sum, weight, false);
	rt_report_accuracy(rt, logits, K_F32, labels, TOY_B, TOY_C, TOY_IGNORE);
}

void toy_train_forward(Rt *rt)
{
	*(float *)rt->state += 1;
	rt_all_gather(rt, 1);
	rt_all_gather(rt, 2);
	rt_wait(rt, 1);
	rt_wait(rt, 2);
	toy_forward(rt);
}

static void toy_eval(Rt *rt)
{
	rt_all_gather(rt, 1);
	rt_all_gather(rt, 2);
	rt_wait(rt, 1);
	rt_wait(rt, 2);
	toy_forward(rt);
	rt_reshard(rt, 0);
	rt_reshard(rt, 1);
}

/* Scaled by the loss scale, in the dtype of the flat gradient. */
void toy_gradients(Rt *rt)
{
	const int64_t *labels = (const int64_t *)(rt->input + 64);
	const float *logits = (const float *)(rt->act + TOY_LOGITS), *in = (const float *)(rt->act + TOY_IN);
	float g[64 + TOY_C] = {0}, *dw = g, *db = g + 64;
	DType t = rt->model->layout.unit[0].flat[0].grad;
	for (int i = 0; i < TOY_B; i++) {
		double z = 0;
		for (int c = 0; c < TOY_C; c++)
			z += exp((double)logits[i * TOY_C + c]);
		for (int c = 0; c < TOY_C && labels[i] >= 0; c++) {
			float dy = (float)((exp((double)logits[i * TOY_C + c]) / z - (c == labels[i])) / TOY_B);
			dy *= rt->scalars->loss_scale;
			db[c] += dy;
			for (int d = 0; d < TOY_D; d++)
				dw[c * TOY_D + d] += dy * in[i * TOY_D + d];
		}
	}
	rt_zero_gaps(rt, 0);
	for (int k = 0; k < 64 + TOY_C; k++)
		if (k < TOY_C * TOY_D || k >= 64)
			number_put((char *)rt->grad[0][0] + k * dtype_info[t].bytes, t, (double)g[k]);
}

void toy_reduce(Rt *rt)
{
	rt_reshard(rt, 0);
	rt_reshard(rt, 1);
	rt_reduce_scatter(rt, 3);
	rt_wait(rt, 3);
}

static void toy_backward(Rt *rt)
{
	toy_gradients(rt);
	toy_reduce(rt);
}

void toy_update(Rt *rt)
{
	static const int units[] = {0};
	rt_sumsq(rt, units, 1);
	rt_all_reduce_scalars(rt, 4);
	rt_step_scalars(rt);
	rt_update_shard(rt, 0);
}

void toy_setup(Rt *rt)
{
	(void)rt;
}

static const RtOutput toy_outputs[] = {
	{.name = "out/logits", .dtype = DT_F32, .rank = 2, .dim = {TOY_B, TOY_C}, .offset = TOY_LOGITS, .input = -1},
	{.name = "x", .dtype = DT_F32, .rank = 2, .dim = {TOY_B, TOY_D}, .input = TOY_X},
};

RtFile toy_files[1] = {{.path = "weights.bin"}};

RtModel toy_model(const char *optimizer)
{
	return (RtModel){.name = "toy", .options = "--optimizer=...", .versions = "test", .tensors = toy_tensors,
		.n_tensors = TOY_TENSORS, .unit_names = toy_unit_names, .files = toy_files, .n_files = 1,
		.layout = {.unit = toy_units, .n_units = 2, .n_grad_slots = 1, .act_bytes = TOY_ACT, .input_bytes = 128,
			.state_bytes = 128, .average_bytes = 64},
		.step = toy_step, .n_step = COUNT_OF(toy_step), .evaluation = toy_evaluation,
		.n_evaluation = COUNT_OF(toy_evaluation), .batch = TOY_B, .optimizer = optimizer,
		.loss = {.global = true, .n = TOY_B, .accuracy = true}, .grad_norm = true, .clip = true, .setup = toy_setup,
		.forward = toy_train_forward, .backward = toy_backward, .update = toy_update, .eval = toy_eval,
		.outputs = toy_outputs, .n_outputs = 2};
}

void toy_main(const RtModel *m, char *flags, const char *output)
{
	char *argv[64] = {(char[]){"./toy"}};
	int argc = 1;
	for (char *s = strtok(flags, " "); s; s = strtok(NULL, " "))
		argv[argc++] = s;
	if (!freopen(output, "w", stdout) || dup2(fileno(stdout), fileno(stderr)) < 0)
		_exit(99);
	device_set_threads(1); /* OpenMP's threads did not come along through fork */
	setenv("OMP_WAIT_POLICY", "passive", 1); /* or rt_main would start this test program again */
	int code = rt_main(argc, argv, m);
	fflush(stdout);
	_exit(code);
}
