"""A micro-batches of B samples on W ranks equal one batch of A*W*B on one (docs/training.md, Accumulation).

Five steps of SGD with momentum: both modes of --sync, every strategy, A = 1, 2, 3, labels ignored (-100) in other
numbers in every micro-batch.
  gpt    against one rank of this compiler with the whole batch; dropout is on
  tied   against PyTorch in f64; tied, frozen and unused parameters; also --loss-norm=rank, the mean of the means
Loss and weights within 1e-5 (norm-relative per tensor; where the true gradient is zero, as in matrix.py).  The memory
that is mapped is what `shardc plan` says of so many micro-batches, to the byte; every third run is done twice and
must give the same bits.

usage: accumulate.py SHARDC WORKDIR [--full] [--jobs 2] [--log FILE]
  without --full: a pairwise cover of model x strategy x mode x wrap x prefetch x ranks x micro-batches
"""
import argparse
import concurrent.futures
import copy
import itertools
import json
import pathlib
import sys
import threading
import warnings

import numpy as np
import torch
from torch.nn import functional as F

import matrix
from matrix import B, OWNED, PREFETCH, STRATEGIES, T, VOCAB, WRAPS, Failed, command, compare

BOUND, MOMENTUM = 1e-5, 0.9
SYNCS, ACCUMS, WORLDS = ["last", "every"], [1, 2, 3], [1, 2, 4]
KINDS = {"gpt": ("gpt", "global"), "tied": ("tied", "global"), "tied-rank": ("tied", "rank")}
matrix.LR = 0.05
for options in matrix.COMPILE.values():
    options.append("--optimizer=sgd:momentum")


def make_data(root, n):
    """Samples of all steps; every second one has a valid label, so that no micro-batch is empty."""
    g = np.random.default_rng(23)
    total = n * matrix.STEPS
    x, labels = g.integers(0, VOCAB, (total, T)), g.integers(0, VOCAB, (total, T))
    keep = g.integers(0, T + 1, total)
    keep[::B] = np.maximum(keep[::B], 1)
    labels[np.arange(T)[None] >= keep[:, None]] = -100
    path = root / f"data-{n}"
    path.mkdir(parents=True, exist_ok=True)
    np.save(path / "x.npy", x)
    np.save(path / "labels.npy", labels.astype(np.int64))
    return x, labels, ["--data", f"x={path}/x.npy", "--data", f"labels={path}/labels.npy"]


def torch_run(module, x, labels, n, norm):
    """Steps of n samples in f64: losses and weights.  norm "rank": the mean over micro-batches of B of their means."""
    m = copy.deepcopy(module).double().train()
    for name, p in m.named_parameters():
        p.requires_grad_(not (name.startswith("wpe") or name.startswith("h.1.ln")))
    params = [p for p in m.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=matrix.LR, momentum=MOMENTUM)
    losses = []
    for s in range(matrix.STEPS):
        xs, ls = (torch.tensor(v[s * n:(s + 1) * n]) for v in (x, labels))
        logits = m(xs)[0]
        pieces = [slice(i, i + B) for i in range(0, n, B)] if norm == "rank" else [slice(0, n)]
        loss = sum(F.cross_entropy(logits[p].flatten(0, 1), ls[p].flatten()) for p in pieces) / len(pieces)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {k: p.detach() for k, p in m.named_parameters() if not k.startswith("spare")}


class Accumulate:
    def __init__(self, args):
        self.root = pathlib.Path(args.workdir)
        matrix.shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        self.programs = matrix.Programs(args.shardc, self.root)
        self.modules, self.references, self.lock, self.count = {}, {}, threading.Lock(), itertools.count()
        for name in ("gpt", "tied"):
            torch.manual_seed(5)
            module = self.modules[name] = matrix.MODELS[name]().train()
            outputs = ["logits", "spare"] if name == "tied" else ["logits"]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(module, (torch.zeros(B, T, dtype=torch.int64),), str(self.root / f"{name}.onnx"),
                                  dynamo=False, opset_version=17, training=torch.onnx.TrainingMode.TRAINING,
                                  do_constant_folding=False, input_names=["x"], output_names=outputs,
                                  dynamic_axes={k: {0: "batch"} for k in ["x", *outputs]})
        self.data = {n: make_data(self.root, n) for n in {B * w * a for w in WORLDS for a in ACCUMS}}

    def reference(self, kind, n):
        with self.lock:
            if (kind, n) in self.references:
                return self.references[kind, n]
        model, norm = KINDS[kind]
        x, labels, data = self.data[n]
        if model == "tied":
            ref = torch_run(self.modules[model], x, labels, n, norm)
        else:
            ref = self.programs.run(self.programs.build(model, [f"--bind=batch={n}", "--wrap=none"])[1], 1, data)
        with self.lock:
            self.references[kind, n] = ref
        return ref

    def planned(self, model, options, c, group):
        more = [f"--shard-size={group}"] if group else []
        text = command([self.programs.shardc, "plan", self.root / f"{model}.onnx", *matrix.COMPILE[model], *options, *more,
                        f"--world={c['world']}", "--format=json"])
        plan = json.loads(text)
        return plan["micro_batches"][str(min(c["accum"], 3))]

    def case(self, c):
        name = " ".join(str(v) for v in c.values())
        groups = matrix.groups(c["strategy"], c["world"])
        lines = []
        for group in groups:
            try:
                lines.append((True, f"{name}{f' S={group}' if group else ''}: {self.one(c, group)}"))
            except Exception as e:  # a broken test must not pass
                lines.append((False, f"{name}{f' S={group}' if group else ''}: FAILED {type(e).__name__} {e}"))
        return lines

    def one(self, c, group):
        model, norm = KINDS[c["kind"]]
        options = [f"--bind=batch={B}", f"--strategy={c['strategy']}", *WRAPS[c["wrap"]], *PREFETCH[c["prefetch"]],
                   "--accum=many", f"--sync={c['sync']}", f"--loss-norm={norm}"]
        if c["strategy"] in OWNED:
            options.append(f"--world={c['world']}")
        n = B * c["world"] * c["accum"]
        binary, data = self.programs.build(model, options)[1], [*self.data[n][2], "--accum", c["accum"]]
        ours = self.programs.run(binary, c["world"], data, group)
        reference = self.reference(c["kind"], n)
        loss, worst, worst_name = compare("cnn", ours, reference)  # whose bounds are 1e-5
        mapped = {peak for _, _, peak in ours[2]}
        planned = self.planned(model, [o for o in options if "world" not in o], c, group)
        if planned["rank"] == 0 and mapped != {planned["total"]}:
            raise Failed(f"maps {mapped} bytes, the plan says {planned}")
        if next(self.count) % 3:
            return f"loss {loss:.1e} weights {worst:.1e} {worst_name}"
        other = self.programs.run(binary, c["world"], data, group)
        if other[0] != ours[0] or any(not torch.equal(other[1][k], ours[1][k]) for k in ours[1]):
            raise Failed("a second run gives other bits")
        return f"loss {loss:.1e} weights {worst:.1e} {worst_name}, twice the same bits"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("workdir")
    p.add_argument("--full", action="store_true")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--log")
    args = p.parse_args()
    factors = {"kind": list(KINDS), "strategy": STRATEGIES, "sync": SYNCS, "wrap": ["none", "block", "each"],
               "prefetch": ["none", "default", "post"], "world": WORLDS, "accum": ACCUMS}
    cases = ([dict(zip(factors, row)) for row in itertools.product(*factors.values())] if args.full
             else matrix.pairwise(factors))
    log = open(args.log, "w") if args.log else None
    run, passed, failed = Accumulate(args), 0, 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for lines in pool.map(run.case, cases):
            for ok, line in lines:
                passed, failed = passed + ok, failed + (not ok)
                print(line, file=log, flush=True) if log else None
                if not ok:
                    print(line, flush=True)
    print(f"accumulate: {len(cases)} combinations, {passed} runs passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
