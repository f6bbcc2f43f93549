"""--bn-sync: statistics of batch norms over all ranks, and rank 0's buffers on all (S3, S12 and S33 of
docs/compatibility.md).

  sync       W ranks of batch B with --bn-sync=sync against PyTorch in f64 in one process with the batch W*B,
             which is what SyncBatchNorm computes where all ranks have equally many samples, and against our one
             rank with W*B: losses, weights and running statistics of three SGD steps; equal on all ranks to the bit
  single     the same where each rank has one element of a channel, so that no rank alone has an unbiased variance
  broadcast  against PyTorch in f64 where each rank begins each forward with rank 0's buffers and uses the
             statistics of its own batch: each rank's own buffers, and that model.safetensors has rank 0's; of three
             micro-batches before the first under --sync=last, before each under --sync=every
  one rank   off, sync and broadcast give the same bits
  the plan   collectives, bytes received and memory of a step, as rank 0 logs them

usage: buffers.py SHARDC WORKDIR [--strategies a,b] [--worlds 2,4]
"""
import argparse
import copy
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

import matrix
from matrix import B, LR, Failed

STEPS, BOUND = 3, 1e-5


def make_data(root, world):
    g = np.random.default_rng(23 + world)
    x = g.standard_normal((B * world * STEPS, 3, 12, 12)).astype(np.float32)
    labels = g.integers(0, 7, len(x))
    path = root / f"data-buffers-{world}"
    path.mkdir()
    np.save(path / "x.npy", x)
    np.save(path / "labels.npy", labels.astype(np.int64))
    return x, labels, ["--data", f"x={path}/x.npy", "--data", f"labels={path}/labels.npy"]


def torch_steps(module, x, labels, world, sync, accum=1, every=False, batch=B):
    """Losses, weights, and the buffers of every rank.  every: rank 0's buffers before each micro-batch."""
    m = copy.deepcopy(module).double().train()
    x, labels, losses = torch.tensor(x).double(), torch.tensor(labels), []
    per_rank, parts = world * batch if sync else batch, 1 if sync else world
    own = [{k: v.clone() for k, v in m.named_buffers()} for _ in range(parts)]
    for step in range(len(x) // (world * batch * accum)):
        m.zero_grad()
        total = 0
        for a in range(accum):
            if a == 0 or every:
                own = [own[0]] * parts
            for r in range(parts):
                for k, v in m.named_buffers():
                    v.copy_(own[r][k])
                at = (step * accum + a) * world * batch + r * per_rank
                part = slice(at, at + per_rank)
                loss = F.cross_entropy(m(x[part]), labels[part], reduction="sum") / (world * batch * accum)
                loss.backward()
                total += loss.item()
                own[r] = {k: v.clone() for k, v in m.named_buffers()}
        with torch.no_grad():
            for p in m.parameters():
                p -= LR * p.grad
        losses.append(total)
    return losses, {k: v.detach() for k, v in m.named_parameters()}, own


def error(ours, want):
    return float((ours.double() - want).norm() / max(float(want.norm()), 1e-30))


def far(ours, want, what):
    """The largest norm-relative error; raises beyond the bound.  A bias in front of a batch norm has no gradient."""
    worst = 0
    for name, w in want.items():
        if not w.is_floating_point() or matrix.ZERO.search(name):
            continue
        e = error(ours[name], w)
        worst = max(worst, e)
        if e > BOUND:
            raise Failed(f"{what}: {name} is off by {e:.2e}")
    return worst


def losses_far(ours, want, what):
    e = max(abs(a - b) / abs(b) for a, b in zip(ours, want, strict=True))
    if e > BOUND:
        raise Failed(f"{what}: loss is off by {e:.2e}")
    return e


class Case:
    def __init__(self, args):
        args.workdir = str(pathlib.Path(args.workdir))
        self.m = matrix.Matrix(args)
        self.programs, self.module = self.m.programs, self.m.modules["cnn"]
        self.data = {w: make_data(self.m.root, w) for w in (1, 2, 3, 4)}

    def options(self, strategy, world, sync, *more):
        o = [f"--bind=batch={B}", f"--strategy={strategy}", f"--bn-sync={sync}", *more]
        return o + [f"--world={world}"] * (strategy in matrix.OWNED)

    def run(self, strategy, world, sync, *more, flags=()):
        """As Programs.run, and the buffers of every rank."""
        options = self.options(strategy, world, sync, *more)
        _, binary = self.programs.build("cnn", options)
        out = self.m.root / f"out-{next(self.programs.number)}"
        groups = ["--shard-size", 2] if strategy == "hybrid_shard" and world % 2 == 0 else []
        matrix.command([binary, *self.data[world][2], "--lr", LR, "--threads", 1, "--save", out, "--log",
                        f"{out}.jsonl", "--timeout", 60, "--ranks", world, *groups, *flags])
        rows = [matrix.json.loads(line) for line in open(f"{out}.jsonl")]
        rows = [r for r in rows if "loss" in r]
        own = out / "latest" / "buffers-rank.safetensors"
        weights = load_file(out / "latest" / "model.safetensors")
        ranks = load_file(own) if world > 1 else {}
        shutil.rmtree(out)
        if world > 1 and not flags:
            rank, planned = self.programs.planned("cnn", [o for o in options if "world" not in o], world,
                                                  groups[1] if groups else None)
            mapped = {(r["collectives"], r["comm_bytes"], r["peak_bytes"]) for r in rows}
            if rank == 0 and mapped != {planned}:
                raise Failed(f"collectives, bytes received, memory: {mapped}, the plan says {planned}")
        own = [{k.split("/", 1)[1]: v for k, v in ranks.items() if k.startswith(f"rank{r}/")} for r in range(world)]
        return [r["loss"] for r in rows], weights, own

    def sync(self, strategy, world, *more):
        x, labels, data = self.data[world]
        losses, weights, own = self.run(strategy, world, "sync", *more)
        want_losses, want, buffers = torch_steps(self.module, x, labels, world, True)
        what = f"sync {strategy} W={world}"
        e = losses_far(losses, want_losses, what)
        worst = max(far(weights, want, what), far(weights, buffers[0], what))
        _, binary = self.programs.build("cnn", [f"--bind=batch={B * world}", "--wrap=none"])
        one = self.programs.run(binary, 1, data)
        e_one = losses_far(losses, one[0], what + " against one rank")
        worst_one = far(weights, {k: v.double() for k, v in one[1].items()}, what + " against one rank")
        for r in range(world):
            for k, v in own[r].items():
                if not torch.equal(v, weights[k]):
                    raise Failed(f"{what}: {k} of rank {r} is not what all have")
        return f"loss {e:.1e} weights {worst:.1e}; against one rank {e_one:.1e} {worst_one:.1e}"

    def single(self, strategy, world):
        torch.manual_seed(7)
        module = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 7))
        model, root = self.m.root / "single.onnx", self.m.root / f"single-{world}"
        matrix.export(module, torch.zeros(2, 5), model, ["logits"])
        root.mkdir()
        g = np.random.default_rng(29)
        x, labels = g.standard_normal((world * STEPS, 5)).astype(np.float32), g.integers(0, 7, world * STEPS)
        np.save(root / "x.npy", x)
        np.save(root / "labels.npy", labels)
        matrix.command([self.programs.shardc, model, "-o", root / "train", "--loss=cross_entropy", "--optimizer=sgd",
                        "--bind=batch=1", "--bn-sync=sync", f"--strategy={strategy}"])
        matrix.command([root / "train", "--data", f"x={root}/x.npy", "--data", f"labels={root}/labels.npy", "--lr", LR,
                        "--threads", 1, "--ranks", world, "--save", root / "save", "--timeout", 60])
        _, want, buffers = torch_steps(module.train(), x, labels, world, True, batch=1)
        ours, what = load_file(root / "save" / "latest" / "model.safetensors"), f"single W={world}"
        del want["0.bias"]  # in front of the batch norm: its gradient is zero
        return f"weights {far(ours, want, what):.1e} buffers {far(ours, buffers[0], what):.1e}"

    def broadcast(self, strategy, world, *more):
        x, labels, _ = self.data[world]
        losses, weights, own = self.run(strategy, world, "broadcast", *more)
        want_losses, want, buffers = torch_steps(self.module, x, labels, world, False)
        what = f"broadcast {strategy} W={world}"
        e = losses_far(losses, want_losses, what)
        worst = far(weights, want, what)
        for r in range(world):
            worst = max(worst, far(own[r], buffers[r], f"{what} rank {r}"))
        for k, v in own[0].items():
            if not torch.equal(v, weights[k]):
                raise Failed(f"{what}: the checkpoint has another {k} than rank 0")
        return f"loss {e:.1e} weights and buffers {worst:.1e}"

    def micro(self, mode, world):
        """Three micro-batches in one step."""
        x, labels, _ = self.data[world]
        losses, weights, own = self.run("full_shard", world, "broadcast", "--accum=many", f"--sync={mode}",
                                        flags=["--accum", STEPS])
        want_losses, want, buffers = torch_steps(self.module, x, labels, world, False, STEPS, mode == "every")
        what = f"micro-batches {mode} W={world}"
        e = losses_far(losses, want_losses, what)
        worst = max(far(own[r], buffers[r], f"{what} rank {r}") for r in range(world))
        return f"loss {e:.1e} buffers {worst:.1e} weights {far(weights, want, what):.1e}"

    def one_rank(self, strategy, *_):
        first = self.run(strategy, 1, "off")
        for way in ("sync", "broadcast"):
            other = self.run(strategy, 1, way)
            if first[0] != other[0] or any(not torch.equal(v, other[1][k]) for k, v in first[1].items()):
                raise Failed(f"one rank {strategy}: {way} gives other bits than off")
        return "the same bits"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("workdir")
    p.add_argument("--strategies", default="full_shard,no_shard,oss,hybrid_shard")
    p.add_argument("--worlds", default="2,4")
    args = p.parse_args()
    case = Case(args)
    strategies, worlds = args.strategies.split(","), [int(w) for w in args.worlds.split(",")]
    todo = [(case.sync, s, w) for s in strategies for w in worlds]
    todo += [(case.sync, "full_shard", 3, "--remat=block", "--backward-prefetch=post")]
    todo += [(case.single, "full_shard", w) for w in worlds]
    todo += [(case.broadcast, s, 2 + (i == 0)) for i, s in enumerate(strategies)]
    todo += [(case.micro, mode, 2) for mode in ("last", "every")]
    todo += [(case.one_rank, s, 1) for s in strategies[:2]]
    failed = 0
    for test, *rest in todo:
        name = " ".join(map(str, (test.__name__, *rest)))
        try:
            print(f"buffers: {name}: {test(*rest)}", flush=True)
        except (Failed, subprocess.TimeoutExpired, ValueError, OSError) as e:
            failed += 1
            print(f"buffers: FAIL {name}: {e}", flush=True)
    print(f"buffers: {len(todo) - failed} of {len(todo)} passed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
