"""W ranks equal one rank: every strategy, wrap policy and prefetch setting at 1 to 5 ranks.

  gpt    five AdamW steps on W ranks with batch B against one rank with W*B: labels are ignored (-100) in other
         numbers on every rank, dropout is on
  tied   the same for a model with tied, frozen and unused parameters
  cnn    a network with BatchNorm: one SGD step against PyTorch in f64 with the statistics of each rank's batch

Loss within 1e-5 relative, weights within 1e-4 norm-relative per tensor (cnn: 1e-5 both).  Tensors or ranges
whose true gradient is zero (the key third of a fused qkv bias, a bias before BatchNorm) are bounded elementwise
by 2 * lr * steps.  Strategies agree with each other within the same bounds: each run is also held against the
first one of its model and number of ranks.  Every fourth run is done twice and must give the same bits.
Collectives, bytes and memory of a step, as rank 0 logs them, are those of `shardc plan`.

A combination whose emitted program is the same as an earlier one's, to the byte, is not run again.

usage: matrix.py SHARDC WORKDIR [--full] [--models a,b] [--strategies a,b] [--worlds 2,4] [--jobs 2] [--log FILE]
  without --full: a pairwise cover of model x strategy x wrap x prefetch x ranks
"""
import argparse
import concurrent.futures
import copy
import hashlib
import itertools
import json
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

B, STEPS, LR = 2, 5, 1e-3
VOCAB, T = 61, 12


# ---- models ----

class Attention(nn.Module):
    def __init__(self, d, heads, drop):
        super().__init__()
        self.qkv, self.proj, self.heads, self.drop = nn.Linear(d, 3 * d), nn.Linear(d, d), heads, nn.Dropout(drop)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, d // self.heads).transpose(1, 2) for p in self.qkv(x).split(d, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.drop(self.proj(y.transpose(1, 2).reshape(b, t, d)))


class Block(nn.Module):
    def __init__(self, d, heads, drop, gelu="none"):
        super().__init__()
        self.gelu = gelu
        self.ln1, self.attn, self.ln2 = nn.LayerNorm(d), Attention(d, heads, drop), nn.LayerNorm(d)
        self.fc, self.out, self.drop = nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.Dropout(drop)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.drop(self.out(F.gelu(self.fc(self.ln2(x)), approximate=self.gelu)))


class Gpt(nn.Module):
    def __init__(self, d=40, layers=3, drop=0.1, tied=False, gelu="none"):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, d), nn.Embedding(T, d)
        self.h = nn.ModuleList(Block(d, 4, drop, gelu) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(d), nn.Linear(d, VOCAB, bias=False)
        self.spare = nn.Linear(d, 3) if tied else None
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, x):
        y = self.wte(x) + self.wpe.weight
        for block in self.h:
            y = block(y)
        y = self.ln_f(y)
        return (self.head(y), self.spare(y)) if self.spare else self.head(y)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class Cnn(nn.Module):
    def __init__(self, c=12, layers=3):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, c, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(c)
        self.layers = nn.ModuleList(Layer(c) for _ in range(layers))
        self.fc = nn.Linear(c, 7)

    def forward(self, x):
        y = F.relu(self.bn(self.stem(x)))
        for layer in self.layers:
            y = layer(y)
        return self.fc(y.mean((2, 3)))


MODELS = {"gpt": lambda: Gpt(), "tied": lambda: Gpt(drop=0, tied=True), "cnn": Cnn}
COMPILE = {
    "gpt": ["--loss=cross_entropy"],
    "tied": ["--loss=cross_entropy:logits=logits", "--freeze=wpe|h\\.1\\.ln"],
    "cnn": ["--loss=cross_entropy", "--optimizer=sgd"],
}
ZERO_THIRD, ZERO = re.compile(r"qkv\.bias$"), re.compile(r"layers\.\d+\.conv1\.bias$")

# ---- the settings ----

STRATEGIES = ["full_shard", "shard_grad_op", "hybrid_shard", "no_shard", "oss", "sharded_ddp"]
WRAPS = {"none": ["--wrap=none"], "each": ["--wrap=each"], "size": ["--wrap=size:5000"], "block": ["--wrap=block"],
         "joined": ["--wrap=blocks:2"], "cut": ["--wrap=blocks:1/2"], "exec-order": ["--wrap=exec-order:40000"], "remat": ["--remat=block"],
         "each-remat": ["--wrap=each", "--remat=block"], "exec-remat": ["--wrap=exec-order:20000", "--remat=block"]}
PREFETCH = {
    "none": ["--forward-prefetch=0", "--backward-prefetch=none"],
    "pre": ["--forward-prefetch=2", "--backward-prefetch=pre:2"],
    "post": ["--forward-prefetch=1", "--backward-prefetch=post"],
    "default": [],
    "no-ring": ["--limit-all-gathers=0"],
    "ring-of-3": ["--limit-all-gathers=3"],
    "late": ["--limit-reduces=3"],
}
SCHEDULES = {  # those of steps of one micro-batch
    **PREFETCH,
    "early-updates": ["--update=backward"],
    "early-updates-at-once": ["--update=backward", "--limit-reduces=0", "--backward-prefetch=pre:2"],
}
WORLDS = [1, 2, 3, 4, 5]
OWNED = ("oss", "sharded_ddp")


def groups(strategy, world):
    return [s for s in range(1, world + 1) if world % s == 0] if strategy == "hybrid_shard" else [None]


def arguments(tests):
    """SHARDC, a WORKDIR that is emptied, and --only: some of the tests."""
    p = argparse.ArgumentParser()
    p.add_argument("shardc", type=lambda s: pathlib.Path(s).resolve())
    p.add_argument("workdir", type=lambda s: pathlib.Path(s).resolve())
    p.add_argument("--only", type=lambda s: s.split(","), default=list(tests))
    args = p.parse_args()
    unknown = [name for name in args.only if name not in tests]
    if unknown:
        p.error(f"--only: no {', '.join(unknown)}; there are {', '.join(tests)}")
    shutil.rmtree(args.workdir, ignore_errors=True)
    args.workdir.mkdir(parents=True)
    torch.set_num_threads(1)
    return args


def pairwise(factors, seed=1):
    """A small list of combinations in which every pair of values of two factors occurs (greedy)."""
    rng = np.random.default_rng(seed)
    keys = list(factors)
    left = {(i, a, j, b) for i, j in itertools.combinations(range(len(keys)), 2)
            for a in factors[keys[i]] for b in factors[keys[j]]}
    rows = []
    while left:
        i, a, j, b = sorted(left, key=str)[int(rng.integers(len(left)))]
        best, most = None, -1
        for _ in range(60):
            row = [factors[k][int(rng.integers(len(factors[k])))] for k in keys]
            row[i], row[j] = a, b
            covers = sum((p, row[p], q, row[q]) in left for p, q in itertools.combinations(range(len(keys)), 2))
            if covers > most:
                best, most = row, covers
        left -= {(p, best[p], q, best[q]) for p, q in itertools.combinations(range(len(keys)), 2)}
        rows.append(dict(zip(keys, best)))
    return rows


# ---- data and references ----

def make_data(model, world, root):
    """Samples of all steps in file order; returns the arguments that name the files."""
    g = np.random.default_rng(17)
    n = B * world * (1 if model == "cnn" else STEPS)
    path = root / f"data-{model}-{world}"
    path.mkdir(parents=True, exist_ok=True)
    if model == "cnn":
        x, labels = g.standard_normal((n, 3, 12, 12)).astype(np.float32), g.integers(0, 7, n)
    else:
        x, labels = g.integers(0, VOCAB, (n, T)), g.integers(0, VOCAB, (n, T))
        keep = g.integers(0, T + 1, n)  # another count of valid labels in every sample, sometimes none
        labels[np.arange(T)[None] >= keep[:, None]] = -100
    np.save(path / "x.npy", x)
    np.save(path / "labels.npy", labels.astype(np.int64))
    return x, labels, ["--data", f"x={path}/x.npy", "--data", f"labels={path}/labels.npy"]


def torch_step(module, x, labels, world):
    """One SGD step in f64 with the batch statistics of each rank: loss and weights."""
    m = copy.deepcopy(module).double().train()
    x, labels = torch.tensor(x).double(), torch.tensor(labels)
    total, stats = 0, []
    running = {k: v.clone() for k, v in m.named_buffers()}
    for r in range(world):
        for k, v in m.named_buffers():
            v.copy_(running[k])
        part = slice(r * B, (r + 1) * B)
        loss = F.cross_entropy(m(x[part]), labels[part], reduction="sum") / (world * B)
        loss.backward()
        total += loss.item()
        stats.append({k: v.clone() for k, v in m.named_buffers()})
    with torch.no_grad():
        for p in m.parameters():
            p -= LR * p.grad
    weights = {k: p.detach() for k, p in m.named_parameters()}
    for k in running:
        if running[k].is_floating_point():
            weights[k] = sum(s[k] for s in stats) / world
    return [total], weights


class Failed(Exception):
    pass


def command(parts, timeout=300):
    run = subprocess.run([str(p) for p in parts], capture_output=True, text=True, timeout=timeout)
    if run.returncode:
        raise Failed(f"{' '.join(str(p) for p in parts)}\nexit {run.returncode}\n{run.stdout[-600:]}{run.stderr[-1500:]}")
    return run.stdout


class Programs:
    """Compiles, runs, and remembers both by the bytes of the emitted program."""

    def __init__(self, shardc, root):
        self.shardc, self.root = shardc, root
        self.built, self.results, self.lock, self.number = {}, {}, threading.Lock(), itertools.count()

    def build(self, model, options):
        """Returns (key, binary)."""
        key = (model, tuple(options))
        with self.lock:
            known = self.built.get(key)
        if known:
            return known
        folder = self.root / f"p{next(self.number)}"
        emitted = folder / "c"
        folder.mkdir(parents=True)
        common = [self.root / f"{model}.onnx", "-O0", *COMPILE[model], *options]
        command([self.shardc, *common, "--emit=c", "-o", emitted])
        text = "".join(re.sub(r"\n\t\.options = .*(\n\t\t\".*)*", "", (emitted / f).read_text()) for f in ("step.c", "fused.c"))
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        with self.lock:
            known = self.built.get(digest)
        if not known:
            command(["make", "-s", "-C", emitted])
            binary = next(p for p in emitted.iterdir() if p.is_file() and p.stat().st_mode & 0o111)
            known = (digest, binary)
        else:
            shutil.rmtree(folder)
        with self.lock:
            self.built[key] = self.built[digest] = known
        return known

    def planned(self, model, options, world, group):
        """The rank that the plan is for, and its collectives of a step, bytes received, bytes of memory."""
        more = [f"--shard-size={group}"] if group else []
        plan = json.loads(command([self.shardc, "plan", self.root / f"{model}.onnx", *COMPILE[model], *options, *more,
                                   f"--world={world}", "--format=json"]))
        rows = plan["step"]["collectives"]
        return plan["rank"], (len(rows), sum(r["bytes"] for r in rows), plan["memory"]["total"])

    def run(self, binary, ranks, data, group=None, comm=()):
        out = self.root / f"run{next(self.number)}"
        args = [binary, *data, "--lr", LR, "--threads", 1, "--save", out, "--log", f"{out}.jsonl", "--seed", 3,
                "--timeout", 60, *comm]
        if ranks > 1:
            args += ["--ranks", ranks]
        if group:
            args += ["--shard-size", group]
        try:
            command(args)
            steps = [r for r in map(json.loads, open(f"{out}.jsonl")) if "loss" in r]
            return ([r["loss"] for r in steps], load_file(out / "latest" / "model.safetensors"),
                    {(r["collectives"], r["comm_bytes"], r["peak_bytes"]) for r in steps})
        finally:
            shutil.rmtree(out, ignore_errors=True)


def compare(model, ours, reference):
    """The largest errors of loss and weights, and the name of the worst tensor; raises beyond the bounds."""
    loss_bound, bound = (1e-5, 1e-5) if model == "cnn" else (1e-5, 1e-4)
    losses, weights = ours[:2]
    loss_error = max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(losses, reference[0], strict=True))
    worst, worst_name = 0, ""
    for name, want in reference[1].items():
        if name not in weights or not want.is_floating_point():
            continue
        a, b = weights[name].double(), want.double()
        if ZERO_THIRD.search(name) or ZERO.search(name):
            n = len(b)
            zero = slice(n // 3, 2 * n // 3) if ZERO_THIRD.search(name) else slice(0, n)
            if (a[zero] - b[zero]).abs().max() > 2 * LR * STEPS:
                raise Failed(f"{name}: moved by {(a[zero] - b[zero]).abs().max():.2e} without a gradient")
            keep = torch.ones(n, dtype=torch.bool)
            keep[zero] = False
            a, b = a[keep], b[keep]
        error = float((a - b).norm() / max(float(b.norm()), 1e-30)) if len(b) else 0
        if error > worst:
            worst, worst_name = error, name
    missing = [n for n in reference[1] if n not in weights and n not in ("head.weight", "wte.weight")]
    if missing:
        raise Failed(f"the checkpoint lacks {missing[:4]}")
    if loss_error > loss_bound or worst > bound:
        raise Failed(f"loss differs by {loss_error:.2e}, weights by {worst:.2e} in {worst_name}")
    return loss_error, worst, worst_name


def export(module, x, path, outputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), str(path), dynamo=False, opset_version=17,
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                          input_names=["x"], output_names=outputs,
                          dynamic_axes={k: {0: "batch"} for k in ["x", *outputs]})


def export_models(root):
    """ROOT/MODEL.onnx of every model; returns the modules."""
    modules = {}
    for name, build in MODELS.items():
        torch.manual_seed(5)
        module = modules[name] = build().train()
        x = torch.zeros(B, T, dtype=torch.int64) if name != "cnn" else torch.zeros(B, 3, 12, 12)
        outputs = ["logits", "spare"] if name == "tied" else ["logits"]
        export(module, x, root / f"{name}.onnx", outputs)
    return modules


class Matrix:
    def __init__(self, args):
        self.root = pathlib.Path(args.workdir)
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        self.programs = Programs(args.shardc, self.root)
        self.references, self.lock, self.seen, self.count = {}, threading.Lock(), {}, 0
        self.first = {}
        self.modules = export_models(self.root)
        self.data = {(m, w): make_data(m, w, self.root) for m in MODELS for w in WORLDS}

    def reference(self, model, world):
        with self.lock:
            if (model, world) in self.references:
                return self.references[model, world]
        x, labels, data = self.data[model, world]
        if model == "cnn":
            ref = torch_step(self.modules[model], x, labels, world)
        else:
            _, binary = self.programs.build(model, [f"--bind=batch={B * world}", "--wrap=none"])
            ref = self.programs.run(binary, 1, data)
        with self.lock:
            self.references[model, world] = ref
        return ref

    def case(self, c):
        """One combination at one number of ranks; returns lines for the log."""
        options = [f"--bind=batch={B}", f"--strategy={c['strategy']}", *WRAPS[c["wrap"]], *SCHEDULES[c["prefetch"]]]
        if c["strategy"] in OWNED:
            options.append(f"--world={c['world']}")
        lines = []
        for group in groups(c["strategy"], c["world"]):
            name = f"{c['model']} {c['strategy']} {c['wrap']} {c['prefetch']} W={c['world']}" + (f" S={group}" if group else "")
            try:
                lines.append((True, f"{name}: {self.one(c, options, group)}"))
            except (Failed, subprocess.TimeoutExpired, ValueError, OSError) as e:
                lines.append((False, f"{name}: FAILED {e}"))
        return lines

    def one(self, c, options, group):
        reference = self.reference(c["model"], c["world"])
        digest, binary = self.programs.build(c["model"], options)
        key = (digest, c["world"], group)
        with self.lock:
            known = self.seen.get(key)
            self.count += not known
            twice = self.count % 4 == 0
        if known:
            return f"same program as {known}"
        data = self.data[c["model"], c["world"]][2]
        ours = self.programs.run(binary, c["world"], data, group)
        loss, worst, name = compare(c["model"], ours, reference)
        rank, planned = self.programs.planned(c["model"], [o for o in options if "world" not in o], c["world"], group)
        if rank == 0 and c["world"] > 1 and ours[2] != {planned}:
            raise Failed(f"collectives, bytes received, memory: {ours[2]}, the plan says {planned}")
        with self.lock:
            first = self.first.setdefault((c["model"], c["world"]), ours)
        compare(c["model"], ours, first)
        again = ""
        if twice:
            other = self.programs.run(binary, c["world"], data, group)
            if other[0] != ours[0] or any(not torch.equal(other[1][k], ours[1][k]) for k in ours[1]):
                raise Failed("a second run gives other bits")
            again = ", twice the same bits"
        with self.lock:
            self.seen[key] = f"{digest} ({c['wrap']} {c['prefetch']})"
        return f"loss {loss:.1e} weights {worst:.1e} {name}{again}"


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("workdir")
    p.add_argument("--full", action="store_true")
    p.add_argument("--models", default=",".join(MODELS))
    p.add_argument("--strategies", default=",".join(STRATEGIES))
    p.add_argument("--wraps", default=",".join(WRAPS))
    p.add_argument("--prefetch", default=",".join(SCHEDULES))
    p.add_argument("--worlds", default=",".join(map(str, WORLDS)))
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--log")
    return p.parse_args()


def main():
    args = parse_args()
    factors = {"model": args.models.split(","), "strategy": args.strategies.split(","), "wrap": args.wraps.split(","),
               "prefetch": args.prefetch.split(","), "world": [int(w) for w in args.worlds.split(",")]}
    cases = ([dict(zip(factors, row)) for row in itertools.product(*factors.values())] if args.full
             else pairwise(factors))
    log = open(args.log, "w") if args.log else None
    begin, passed, failed = time.time(), 0, 0
    matrix = Matrix(args)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for lines in pool.map(matrix.case, cases):
            for ok, line in lines:
                passed, failed = passed + ok, failed + (not ok)
                print(line, file=log, flush=True) if log else None
                if not ok:
                    print(line, flush=True)
    print(f"matrix: {len(cases)} combinations, {passed} runs passed, {failed} failed, "
          f"{len(matrix.seen)} different programs and rank counts, {time.time() - begin:.0f} s")
    if log:
        print(f"passed {passed}, failed {failed}", file=log)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
