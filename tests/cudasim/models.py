"""CUDA programs against CPU programs: the same model, data, seed and number of ranks, the GPU emulated.

  models    the parity models (tests/parity/models.py), cut to two layers and few channels, one rank, f32 and bf16
  sharding  a tiny GPT with dropout, whose ranks ignore other numbers of labels: strategy x ranks x prefetch x
            precision x accumulation x back end (NCCL emulated; shared memory staged by the host) x CUDA graph

After STEPS steps of AdamW, as relative differences of norms:
  loss      of all steps as one vector: 1e-5, with 16-bit parameters 2e-2
  weights   all as one vector, and running statistics: the same bounds.  Elements without a gradient (a key's bias)
            are left out: Adam moves them by its rate whatever rounding says
  moments   Adam's mean of gradients, the worst tensor, relative to no less than a hundredth of what is usual: a wrong
            gradient of a small tensor shows here and nowhere else; 1e-4, 16 bits 1e-1
Behind batch norms are kinks, where one rounding turns a gradient on or off (tests/parity/parity.py), and steps go
apart: networks with them have a tiny rate.  MobileNetV2 at random is ill-conditioned: one forward pass of PyTorch in
f32 is 1e-6 off f64, its gradient's norm is 1e3; it has bounds of its own.
Numbers of collectives and bytes received are equal.  Streams run in an order by chance, another one in each run.

usage: models.py SHARDC WORKDIR [--parts models,sharding] [--cases a,b] [--worlds 1,2] [--full] [--jobs 2] [--json FILE]
  without --full: a pairwise cover of the sharding settings; --full: their product
"""
import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import torch
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "parity"), str(HERE.parent / "ranks")]
import matrix  # noqa: E402
import models as parity  # noqa: E402
from matrix import Failed, command  # noqa: E402

STEPS, LR, SMALL_LR = 3, 1e-3, 1e-6
# of losses, weights, moments
F32, HALVES = (1e-5, 1e-5, 1e-4), (2e-2, 2e-2, 1e-1)
# Behind kinks in 16 bits: where two programs round a ReLU's input to different sides of 0, one has a gradient there and
# the other has none.  Moments of ResNet-18 differed by 0.002 to 0.08 with weights and samples of eleven seeds: the bound
# is three times that.
KINK_HALVES = (2e-2, 2e-2, 2.5e-1)
# MobileNetV2's moments in bf16 have next to nothing in common (2.5 at worst with three seeds): the bound, three times
# that, holds their size alone; what is wrong with gradients shows in f32.
ILL_F32, ILL_HALVES = (5e-5, 5e-5, 2e-1), (2e-2, 2e-2, 8)

TEXT = dict(vocab_size=101)
WIDE = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)


def text(build):
    return parity.Case(build, 2, (16,), 101, tokens=True)


def images(build, size, batch=2, norm=True):
    return parity.Case(build, batch, (3, size, size), 10, batch_norm=norm, image=True)


CASES = {
    "gpt2": text(parity.gpt2(n_layer=2, n_embd=64, n_head=4, n_positions=16, **TEXT)),
    "bert": text(parity.bert(max_position_embeddings=16, **WIDE, **TEXT)),
    "llama": text(parity.llama(num_key_value_heads=2, max_position_embeddings=16, **WIDE, **TEXT)),
    "vit": images(parity.vit(image_size=16, patch_size=4, num_labels=10, **WIDE), 16, norm=False),
    "resnet18": images(parity.resnet("basic", [2, 2], [8, 16], 10, embedding_size=8), 32, batch=4),
    "mobilenetv2": images(parity.mobilenet(10, 64, depth_multiplier=0.25, first_layer_is_expansion=True), 64, batch=4),
}

PRECISION = {
    "f32": [],
    "bf16": ["--param-dtype=bf16"],
    "bf16-reduce": ["--param-dtype=bf16", "--reduce-dtype=bf16"],
    "f16": ["--param-dtype=f16", "--reduce-dtype=f16", "--loss-scale=dynamic:init=1024"],
}
ACCUM = {"one": ([], []), "last": (["--accum=many", "--sync=last"], ["--accum", 3]),
         "every": (["--accum=many", "--sync=every"], ["--accum", 2])}
BATCH, MICRO = 2, 3  # MICRO: the most micro-batches of a step


# ---- programs ----

class Programs:
    """Compiles and runs; a program, and what a CPU program said, are made once."""

    def __init__(self, shardc, root):
        self.shardc, self.root = pathlib.Path(shardc).resolve(), root
        self.nvcc = self.shardc.parent / "cudasim" / "nvcc"
        self.number, self.lock, self.once = itertools.count(), threading.Lock(), {}

    def remembered(self, key, make):
        """make()'s result, or its error, once for all threads."""
        with self.lock:
            known = self.once.get(key)
            mine = known is None
            if mine:
                known = self.once[key] = concurrent.futures.Future()
        if mine:
            try:
                known.set_result(make())
            except Exception as e:  # belongs to all who wait
                known.set_exception(e)
        return known.result()

    def build(self, target, model, options):
        def make():
            binary = self.root / f"program{next(self.number)}"
            to = ["--arch=cudasim", f"--nvcc={self.nvcc}"] if target == "cuda" else []
            command([self.shardc, model, "-O0", "--loss=cross_entropy", "-o", binary, f"--target={target}", *to,
                     *options])
            return binary
        return self.remembered((target, model, *options), make)

    def run(self, binary, flags, env):
        """Losses, collectives and bytes of the steps; the checkpoint's tensors and its optimizer's."""
        out = self.root / f"run{next(self.number)}"
        log = out.with_suffix(".jsonl")
        parts = [str(p) for p in (binary, *flags, "--steps", STEPS, "--threads", 1, "--seed", 3,
                                  "--timeout", 60, "--save", out, "--log", log)]
        done = subprocess.run(parts, capture_output=True, text=True, timeout=300, env={**os.environ, **env})
        try:
            if done.returncode:
                words = " ".join(f"{k}={v}" for k, v in env.items())
                raise Failed(f"{words} {' '.join(parts)}\nexit {done.returncode}\n{done.stderr[-1500:]}")
            rows = [r for r in map(json.loads, open(log)) if "loss" in r]
            return (torch.tensor([r["loss"] for r in rows]).double(),
                    [(r["collectives"], r["comm_bytes"]) for r in rows],
                    load_file(out / "latest" / "model.safetensors"), load_file(out / "latest" / "optim.safetensors"))
        finally:
            shutil.rmtree(out, ignore_errors=True)


# ---- comparison ----

def moments(optim):
    return {n.removesuffix(".exp_avg"): t.double() for n, t in optim.items() if n.endswith(".exp_avg")}


def relative(differences, values):
    norm = sum(float(v.norm()) ** 2 for v in values) ** 0.5
    return sum(float(d.norm()) ** 2 for d in differences) ** 0.5 / max(norm, 1e-30)


def compare(ours, cpu):
    """Relative differences of losses, weights and moments, and the name of the tensor with the worst moments."""
    if len(cpu[0]) != STEPS or len(ours[0]) != STEPS:
        raise Failed(f"{len(ours[0])} losses on CUDA, {len(cpu[0])} on the CPU, wanted {STEPS}")
    if ours[1] != cpu[1]:
        raise Failed(f"collectives and bytes {ours[1]}, of the CPU program {cpu[1]}")
    if ours[2].keys() != cpu[2].keys() or ours[3].keys() != cpu[3].keys():
        alone = sorted(ours[2].keys() ^ cpu[2].keys() | ours[3].keys() ^ cpu[3].keys())
        raise Failed(f"one checkpoint alone has {alone[:4]}")
    m, m_cpu = moments(ours[3]), moments(cpu[3])
    usual = (sum(float(t.norm()) ** 2 for t in m_cpu.values()) / sum(t.numel() for t in m_cpu.values())) ** 0.5
    worst, where = 0, ""
    for name, want in m_cpu.items():
        least = 0.01 * usual * want.numel() ** 0.5
        error = float((m[name] - want).norm()) / max(float(want.norm()), least)
        worst, where = max((worst, where), (error if error == error else float("inf"), name))
    kept = {n: m_cpu[n].abs() > 1e-3 * usual if n in m_cpu else torch.ones_like(t, dtype=torch.bool)
            for n, t in cpu[2].items() if t.is_floating_point()}
    ours_w, cpu_w = ([side[2][n].double()[k] for n, k in kept.items()] for side in (ours, cpu))
    weights = relative([a - b for a, b in zip(ours_w, cpu_w)], cpu_w)
    return relative([ours[0] - cpu[0]], [cpu[0]]), weights, worst, where


def judged(ours, cpu, bounds):
    """The line of a run; raises beyond the bounds."""
    *errors, where = compare(ours, cpu)
    line = f"loss {errors[0]:.1e} weights {errors[1]:.1e} moments {errors[2]:.1e}"
    if not all(e <= b for e, b in zip(errors, bounds)):
        raise Failed(f"{line} in {where}")
    return line, dict(zip(("loss", "weights", "moments"), errors))


# ---- the two parts ----

def save(root, name, x, labels):
    np.save(root / f"{name}-x.npy", x)
    np.save(root / f"{name}-labels.npy", labels)
    return ["--data", f"x={root}/{name}-x.npy", "--data", f"labels={root}/{name}-labels.npy"]


def export_case(root, name):
    case = CASES[name]
    torch.manual_seed(5)
    parity.export(case, case.build().train(), root / f"{name}.onnx", "torchscript")
    x, labels = parity.make_data(case, case.batch * STEPS, 7)
    return save(root, name, x.numpy(), labels.numpy())


def export_gpt(root, world):
    torch.manual_seed(5)
    x = torch.zeros(BATCH, matrix.T, dtype=torch.int64)
    torch.onnx.export(matrix.Gpt(d=32, layers=2), (x,), str(root / "gpt.onnx"), dynamo=False, opset_version=17,
                      training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, input_names=["x"],
                      output_names=["logits"], dynamic_axes={k: {0: "batch"} for k in ("x", "logits")})
    g = np.random.default_rng(17)
    n = BATCH * world * MICRO * STEPS
    x, labels = g.integers(0, matrix.VOCAB, (n, matrix.T)), g.integers(0, matrix.VOCAB, (n, matrix.T))
    labels[np.arange(matrix.T)[None] >= g.integers(0, matrix.T + 1, n)[:, None]] = -100
    return save(root, "gpt", x, labels)


class Case:
    """One comparison: options of both programs, flags of both runs, flags of the CUDA run alone."""

    def __init__(self, what, model, options, data, flags, cuda_flags, bounds, devices):
        self.what, self.model, self.options, self.data, self.flags = what, model, options, data, flags
        self.cuda_flags, self.bounds, self.devices = cuda_flags, bounds, devices

    def run(self, programs, number):
        flags = [*self.data, *self.flags]
        binary = programs.build("cpu", self.model, self.options)
        cpu = programs.remembered((binary, *flags), lambda: programs.run(binary, flags, {}))
        binary = programs.build("cuda", self.model, self.options)
        env = {"CUDASIM_DEVICES": str(self.devices), "CUDASIM_ORDER": "random", "CUDASIM_SEED": str(number),
               "CUDASIM_POISON": "1"}
        return judged(programs.run(binary, [*flags, *self.cuda_flags], env), cpu, self.bounds)


def model_cases(root, names):
    for name in names:
        data = export_case(root, name)
        both = ((ILL_F32, ILL_HALVES) if name == "mobilenetv2" else (F32, KINK_HALVES) if CASES[name].batch_norm
                else (F32, HALVES))
        for precision, bounds in zip(("f32", "bf16"), both):
            yield Case(f"{name} {precision}", root / f"{name}.onnx", PRECISION[precision], data,
                       ["--lr", SMALL_LR if CASES[name].batch_norm else LR], [], bounds, 1)


def sharding_cases(root, worlds, full):
    factors = {"strategy": matrix.STRATEGIES, "world": worlds, "prefetch": list(matrix.PREFETCH),
               "precision": list(PRECISION), "accum": list(ACCUM), "comm": ["nccl", "shm"], "graph": [1, 0]}
    rows = ([dict(zip(factors, row)) for row in itertools.product(*factors.values())] if full
            else matrix.pairwise(factors))
    data, seen = export_gpt(root, max(worlds)), set()
    for c in rows:
        compiled, run = ACCUM[c["accum"]]
        options = [f"--bind=batch={BATCH}", f"--strategy={c['strategy']}", *matrix.PREFETCH[c["prefetch"]],
                   *PRECISION[c["precision"]], *compiled]
        if c["strategy"] in matrix.OWNED:
            options.append(f"--world={c['world']}")
        flags = ["--lr", LR, *run, *(["--ranks", c["world"]] if c["world"] > 1 else [])]
        if c["strategy"] == "hybrid_shard" and c["world"] == 4:
            flags += ["--shard-size", 2]
        many = ["--comm", c["comm"]] if c["world"] > 1 else []
        what = " ".join([c["strategy"], f"W={c['world']}", c["prefetch"], c["precision"], f"accum-{c['accum']}",
                         *many[1:], f"graph={c['graph']}"])
        if what not in seen:  # one rank has one back end
            seen.add(what)
            yield Case(what, root / "gpt.onnx", options, data, flags, [*many, "--cuda-graph", c["graph"]],
                       F32 if c["precision"] == "f32" else HALVES, c["world"] if c["comm"] == "nccl" else 1)


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("workdir", type=pathlib.Path)
    p.add_argument("--parts", default="models,sharding")
    p.add_argument("--cases", default=",".join(CASES))
    p.add_argument("--worlds", default="1,2,4")
    p.add_argument("--full", action="store_true")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--json")
    return p.parse_args()


def main():
    args = parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    root = args.workdir.resolve()
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    programs, begin, count = Programs(args.shardc, root), time.time(), {True: 0, False: 0}
    log = open(args.json, "w") if args.json else None
    parts, worlds = args.parts.split(","), [int(w) for w in args.worlds.split(",")]
    cases = [*(model_cases(root, args.cases.split(",")) if "models" in parts else []),
             *(sharding_cases(root, worlds, args.full) if "sharding" in parts else [])]

    def one(number_and_case):
        number, case = number_and_case
        start = time.time()
        try:
            line, row = case.run(programs, number)
            ok = True
        except (Failed, subprocess.TimeoutExpired, ValueError, OSError) as e:
            ok, line, row = False, f"FAILED {e}", {"error": str(e)}
        return ok, f"{case.what}: {line}", {"run": case.what, "ok": ok, **row, "s": round(time.time() - start, 2)}

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for ok, line, row in pool.map(one, enumerate(cases)):
            count[ok] += 1
            print(line, flush=True)
            print(json.dumps(row), file=log, flush=True) if log else None
    print(f"cudasim models: {count[True]} runs passed, {count[False]} failed, {time.time() - begin:.0f} s")
    sys.exit(count[False] > 0 or not count[True])


if __name__ == "__main__":
    main()
