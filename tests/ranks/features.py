"""Every training feature under every strategy at 1, 2 and 4 ranks, against an independent reference.

Five steps of SGD with momentum (groups: AdamW) on W ranks with batch B, labels ignored in other numbers on every rank.

  f32 features   PyTorch in f64 in one process that sees all samples of a step: loss and weights within 1e-5 (weights
                 norm-relative per tensor), what the steps changed in all weights together within 1e-4
  16-bit         PyTorch in f64 again, but the bound is what PyTorch itself loses: the same steps with the module and
                 its gradients in that dtype, f32 masters and f32 sums over ranks.  What the steps changed may be off by
                 three times PyTorch's error, the loss by three times its error or 1e-3, never by more than 1%
  fp8            the same, and PyTorch's products of blocks read 8-bit floats, tensor by tensor and scaled anew each time
  rounded sums   (reduce-bf16, hook-*) PyTorch in f64; a gradient is rounded when it is sent, where its sum stays in
                 place, and between the groups of hybrid_shard, each time by at most 2^-9 of it: within three times that
                 Batch norms are f32 in the module, too, and take and give that dtype
  init           our own one rank with W*B samples in f32: the same weights from the same seed

Every run ends with --check-replicas: hashes of all copies of parameters are equal on all ranks.  Beside the matrix:
  overflow       a sample that overflows f16 on the last rank in step 3: that update is left out on all ranks, the scale
                 is halved, and the others are PyTorch's
  curves         examples/text in bf16 against f32, means of ten steps within 1%; at a learning rate where f32 itself
                 does not jump (at 1e-3 without clipping it does)

A key's third of a fused qkv bias has no gradient and is left out.

usage: features.py SHARDC WORKDIR [--full] [--features a,b] [--strategies a,b] [--worlds 1,2] [--jobs 2] [--log FILE]
                   [--curves STEPS]
  without --full: a pairwise cover of feature x strategy x ranks
"""
import argparse
import concurrent.futures
import copy
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

import experts
import matrix
from matrix import B, OWNED, STRATEGIES, T, VOCAB, Failed, command

HERE = pathlib.Path(__file__).resolve().parent.parent.parent
STEPS, LR, MOMENTUM, WORLDS, ACCUM, SCALE = 5, 0.05, 0.9, [1, 2, 4], 3, 1024
HALF = {"bf16": torch.bfloat16, "f16": torch.float16, "fp8": torch.bfloat16}
FP8 = ["--param-dtype=bf16", "--matmul-dtype=fp8"]
BF16, F16 = ["--param-dtype=bf16"], ["--param-dtype=f16", "--reduce-dtype=f16"]
GROUPS = ["--param-group=^h\\.0\\.:lr_scale=0.3,weight_decay=0.2", "--param-group=ln:beta1=0.8,beta2=0.95,eps=1e-6",
          "--no-decay-1d"]
FREEZE = "wpe|h\\.1\\.ln"
DYNAMIC = f"--loss-scale=dynamic:init={SCALE}"


class Feature:
    """compile, run: options; the rest says what the reference does.
    dtype: of module and gradients; reduce: rounds what is sent; bcast: rounds what is read; clip: p, or "value";
    freeze: what is not trained."""

    def __init__(self, compile=(), run=(), model="g", dtype=None, reduce=None, bcast=None, accum=1, clip=None,
                 groups=False, bn="off", own=False, freeze=None, only=STRATEGIES):
        self.compile, self.run, self.model = list(compile), list(run), model
        self.dtype, self.reduce, self.bcast, self.accum, self.freeze = dtype, reduce, bcast, accum, freeze
        self.clip, self.groups, self.bn, self.own, self.only = clip, groups, bn, own, only


def clipping(p):
    return Feature([f"--clip={p}"], clip=p)


def accumulating(sync, *more, run=(), accum=ACCUM, **kind):
    return Feature(["--accum=many", f"--sync={sync}", *more], ["--accum", accum, *run], accum=accum, **kind)


def both(name, *more, **kind):
    """A feature with several micro-batches, reduced once and each: three, and two."""
    return {f"{name}-accum-last": accumulating("last", *more, **kind),
            f"{name}-accum-every": accumulating("every", *more, accum=2, **kind)}


FEATURES = {
    "f32": Feature(),
    "bf16": Feature(BF16, dtype="bf16"),
    "bf16-reduce": Feature([*BF16, "--reduce-dtype=bf16"], dtype="bf16", reduce="bf16"),
    "f16-dynamic": Feature([*F16, DYNAMIC], dtype="f16", reduce="f16"),
    "keep-low-grads": Feature([*BF16, "--reduce-dtype=bf16", "--keep-low-precision-grads"], dtype="bf16",
                              reduce="bf16"),
    "reduce-bf16": Feature(["--reduce-dtype=bf16"], reduce="bf16"),
    "bcast-bf16": Feature(["--bcast-dtype=bf16"], bcast="bf16", only=OWNED),
    "accum-last": accumulating("last"),
    "accum-every": accumulating("every"),
    "accum-last-bf16": accumulating("last", *BF16, dtype="bf16"),
    "accum-every-bf16": accumulating("every", *BF16, dtype="bf16"),
    "clip-1": clipping(1),
    "clip-2": clipping(2),
    "clip-3": clipping(3),
    "clip-inf": clipping("inf"),
    "clip-value": clipping("value"),
    "groups": Feature(["--optimizer=adamw", *GROUPS], groups=True),
    "bn-sync": Feature(["--bn-sync=sync"], model="cnn", bn="sync"),
    "bn-broadcast": Feature(["--bn-sync=broadcast"], model="cnn", bn="broadcast"),
    "bn-sync-accum": accumulating("last", "--bn-sync=sync", model="cnn", bn="sync"),
    "bn-broadcast-accum": accumulating("last", "--bn-sync=broadcast", model="cnn", bn="broadcast"),
    "offload-optim": Feature(["--offload=optim"]),
    "offload-params": Feature(["--offload=params"]),
    "hook-bf16": Feature(["--comm-hook=bf16"], reduce="bf16"),
    "hook-c": Feature([f"--comm-hook={HERE}/examples/hooks/exact.c:exact"]),
    "init-random": Feature(["--init=random:7"], own=True),
    # what was made by itself, together
    **both("reduce-bf16", "--reduce-dtype=bf16", reduce="bf16"),
    **both("bf16-reduce", *BF16, "--reduce-dtype=bf16", dtype="bf16", reduce="bf16"),
    **both("f16-dynamic", *F16, DYNAMIC, dtype="f16", reduce="f16"),
    **both("offload-params", "--offload=params"),
    **both("offload-bf16", "--offload=params", *BF16, dtype="bf16"),
    **both("clip-2", "--clip=2", clip=2),
    **both("clip-inf-check", "--clip=inf", "--check-nan", clip="inf"),
    **both("clip-value-threads", "--clip=value", clip="value", run=["--comm-threads", 1]),
    **both("groups", "--optimizer=adamw", *GROUPS, groups=True),
    **both("bcast-bf16", "--bcast-dtype=bf16", bcast="bf16", only=OWNED),
    **both("freeze", f"--freeze={FREEZE}", freeze=FREEZE),
    **both("cnn-bf16", *BF16, model="cnn", dtype="bf16"),
    "hook-c-accum": accumulating("last", f"--comm-hook={HERE}/examples/hooks/exact.c:exact"),
    "bf16-offload": Feature([*BF16, "--offload=params"], dtype="bf16"),
    "bf16-offload-optim": Feature([*BF16, "--offload=optim", "--reduce-dtype=bf16"], dtype="bf16", reduce="bf16"),
    "bf16-check-freeze": Feature([*BF16, "--check-nan", f"--freeze={FREEZE}"], dtype="bf16", freeze=FREEZE),
    "bf16-clip-groups": Feature([*BF16, "--clip=2", "--optimizer=adamw", *GROUPS], dtype="bf16", clip=2, groups=True),
    "bf16-hook-c": Feature([*BF16, f"--comm-hook={HERE}/examples/hooks/exact.c:exact"], dtype="bf16"),
    "cnn": Feature(model="cnn"),
    "cnn-bf16": Feature(BF16, model="cnn", dtype="bf16"),
    "cnn-bf16-reduce": Feature([*BF16, "--reduce-dtype=bf16"], model="cnn", dtype="bf16", reduce="bf16"),
    "cnn-f16": Feature([*F16, DYNAMIC], model="cnn", dtype="f16", reduce="f16"),
    "moe": Feature(model="moe"),
    "moe-bf16": Feature(BF16, model="moe", dtype="bf16"),
    "fp8": Feature(FP8, model="wide", dtype="fp8"),
    "fp8-clip-reduce": Feature([*FP8, "--clip=2", "--reduce-dtype=bf16"], model="wide", dtype="fp8", clip=2, reduce="bf16"),
    "fp8-freeze": Feature([*FP8, f"--freeze={FREEZE}|qkv"], model="wide", dtype="fp8", freeze=f"{FREEZE}|qkv"),
    **both("fp8", *FP8, model="wide", dtype="fp8"),
    "cnn-bf16-sync": Feature([*BF16, "--bn-sync=sync"], model="cnn", dtype="bf16", bn="sync"),
}


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 40), nn.Linear(40, 7)

    def forward(self, x):
        return self.b(F.relu(self.a(x)))


def wide():
    """Every product of a block has rows, columns and sums that are multiples of 16."""
    module = matrix.Gpt(d=48, drop=0)
    module.wpe = nn.Embedding(16, 48)
    return module


MODELS = {"g": lambda: matrix.Gpt(drop=0), "wide": wide, "cnn": matrix.Cnn, "mlp": Mlp,
          "moe": lambda: experts.Moe(VOCAB, T)}
EXAMPLE = {"g": torch.zeros(B, T, dtype=torch.int64), "wide": torch.zeros(B, 16, dtype=torch.int64),
           "cnn": torch.zeros(B, 3, 12, 12), "mlp": torch.zeros(B, 16), "moe": torch.zeros(B, T, dtype=torch.int64)}


def make_data(root, model, n, spoilt=None):
    """n samples a step; every second one has a valid label.  spoilt: a sample that is no f16."""
    g = np.random.default_rng(29)
    total = n * STEPS
    if EXAMPLE[model].dtype == torch.int64:
        t = EXAMPLE[model].shape[1]
        x, labels = g.integers(0, VOCAB, (total, t)), g.integers(0, VOCAB, (total, t))
        keep = g.integers(0, t + 1, total)
        keep[::B] = np.maximum(keep[::B], 1)
        labels[np.arange(t)[None] >= keep[:, None]] = -100
    else:
        x = g.standard_normal((total, *EXAMPLE[model].shape[1:])).astype(np.float32)
        labels = g.integers(0, 7, total)
    if spoilt is not None:
        x[spoilt] *= 1e6
    path = root / f"data-{model}-{n}{'-spoilt' if spoilt is not None else ''}"
    path.mkdir(parents=True, exist_ok=True)
    np.save(path / "x.npy", x)
    np.save(path / "labels.npy", labels.astype(np.int64))
    return x, labels.astype(np.int64), ["--data", f"x={path}/x.npy", "--data", f"labels={path}/labels.npy"]


# ---- the reference ----

def rounded(t, dtype):
    return t.to(HALF[dtype]).to(t.dtype) if dtype else t


def in_8_bits(t, dtype):
    """t as f32 numbers that dtype holds, times its scale."""
    scale = t.abs().max().float() / torch.finfo(dtype).max
    return (t.float() * (1 / scale)).to(dtype).float(), scale


class Product8(torch.autograd.Function):
    """x w^T + bias of bf16: operands are e4m3, the gradient that comes in is e5m2, sums are f32."""

    @staticmethod
    def forward(ctx, x, w, bias):
        ctx.save_for_backward(x, w)
        (a, s), (b, t) = in_8_bits(x, torch.float8_e4m3fn), in_8_bits(w, torch.float8_e4m3fn)
        return (a @ b.T * (s * t) + bias.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        (g, r), (a, s), (b, t) = (in_8_bits(dy, torch.float8_e5m2), in_8_bits(x, torch.float8_e4m3fn),
                                  in_8_bits(w, torch.float8_e4m3fn))
        dw = g.flatten(0, -2).T @ a.flatten(0, -2) * (r * s)
        return (g @ b * (r * t)).to(x.dtype), dw.to(w.dtype), dy.float().flatten(0, -2).sum(0).to(w.dtype)


class Linear8(nn.Linear):
    def forward(self, x):
        return Product8.apply(x, self.weight, self.bias)


def narrowed(module, dtype, fp8=False):
    """A copy; batch norms take and give 16 bits, and are f32 inside."""
    m = copy.deepcopy(module).to(dtype)
    for layer in m.h.modules() if fp8 else ():
        if isinstance(layer, nn.Linear):
            layer.__class__ = Linear8
    for layer in m.modules():
        if isinstance(layer, nn.BatchNorm2d) and dtype != torch.float64:
            layer.float()
    return m


def norm(grads, p):
    flat = torch.cat([g.double().flatten() for g in grads.values()])
    return float(flat.abs().max() if p == "inf" else flat.abs().pow(int(p)).sum() ** (1 / int(p)))


def half(value):
    return float(f"{value / 2:.3g}")


class Reference:
    """Losses, weights, and the bound of clipping (half the first step's)."""

    def __init__(self, module, x, labels, world, f, dtype=None, skip=(), clip_at=None):
        exact = torch.float32 if dtype else torch.float64
        self.f, self.world, self.dtype, self.skip = f, world, dtype, skip
        self.master = {k: p.detach().to(exact, copy=True) for k, p in module.named_parameters()}
        self.begin = {k: p.clone() for k, p in self.master.items()}
        self.work = narrowed(module, HALF[dtype] if dtype else exact, dtype == "fp8").train()
        self.frozen = [k for k in self.master if f.freeze and re.search(f.freeze, k)]
        self.x, self.labels, self.exact = torch.tensor(x), torch.tensor(labels), exact
        self.velocity, self.losses, self.clip_at = {}, [], clip_at
        self.adam = self.adamw() if f.groups else None
        for step in range(STEPS):
            grads, loss = self.gradients(step)
            self.losses.append(loss)
            if step not in skip:
                self.update(self.clipped(grads))
        self.weights = {**self.master, **{k: v for k, v in self.work.named_buffers() if v.is_floating_point()}}

    def gradients(self, step):
        """The gradient of the mean over all valid labels of the step, as the ranks sum it up."""
        f, per_step = self.f, B * self.world * self.f.accum
        with torch.no_grad():
            for k, p in self.work.named_parameters():
                p.copy_(rounded(self.master[k], f.bcast))
        count = int((self.labels[step * per_step:(step + 1) * per_step] != -100).sum())
        begin, sums, total = {k: v.clone() for k, v in self.work.named_buffers()}, None, 0
        ends = []
        for r in range(1 if f.bn == "sync" else self.world):
            own = {}
            for k, v in self.work.named_buffers():
                v.copy_(begin[k])
            for a in range(f.accum):
                at, n = step * per_step + a * B * self.world + r * B, B * self.world if f.bn == "sync" else B
                logits = self.work(self.x[at:at + n].to(self.work_dtype()))
                logits = logits.to(self.exact)
                loss = F.cross_entropy(logits.flatten(0, -2), self.labels[at:at + n].flatten(), reduction="sum") / count
                scale = SCALE if self.dtype == "f16" else 1
                self.work.zero_grad()
                (loss * scale).backward()
                total += loss.item()
                for k, p in self.work.named_parameters():
                    own[k] = own.get(k, 0) + p.grad.to(self.exact) / scale
            ends.append({k: v.clone() for k, v in self.work.named_buffers()})
            # our gradients are 1/count of all labels only after they were sent: before, they are 1/n of a rank's
            unit = count / self.labels[:B].numel()
            written = any(o.startswith("--reduce-dtype") for o in f.compile) and f.accum == 1
            sent = {k: rounded(g * unit, f.reduce) / unit for k, g in own.items()} if self.world > 1 or written else own
            sums = {k: g if sums is None else sums[k] + g for k, g in sent.items()}
        # a rank's own statistics are averaged when they are saved; that is the same as averaging them in each step
        for k, v in self.work.named_buffers():
            mean = f.bn == "off" and v.is_floating_point()
            v.copy_(sum(e[k] for e in ends) / len(ends) if mean else ends[0][k])
        return {k: g for k, g in sums.items() if k not in self.frozen}, total

    def work_dtype(self):
        return torch.int64 if self.x.dtype == torch.int64 else HALF[self.dtype] if self.dtype else self.exact

    def clipped(self, grads):
        p = self.f.clip
        if not p:
            return grads
        if self.clip_at is None:
            self.clip_at = half(norm(grads, "inf") if p == "value" else norm(grads, p))
        if p == "value":
            return {k: g.clamp(-self.clip_at, self.clip_at) for k, g in grads.items()}
        factor = min(1, self.clip_at / (norm(grads, p) + 1e-6))
        return {k: g * factor for k, g in grads.items()}

    def adamw(self):
        """GROUPS, as torch.optim has them: the first match counts, and what has one dimension does not decay."""
        groups = []
        for k, p in self.master.items():
            g = dict(params=[p], lr=LR / 10, weight_decay=0.01)
            if k.startswith("h.0."):
                g.update(lr=LR / 10 * 0.3, weight_decay=0.2)
            elif "ln" in k:
                g.update(betas=(0.8, 0.95), eps=1e-6)
            if p.dim() <= 1:
                g["weight_decay"] = 0
            groups.append(g)
        return torch.optim.AdamW(groups)

    def update(self, grads):
        if self.adam:
            for k in grads:
                self.master[k].grad = grads[k]
            self.adam.step()
            return
        for k, p in self.master.items():
            if k in self.frozen:
                continue
            v = self.velocity[k] = grads[k] + MOMENTUM * self.velocity[k] if k in self.velocity else grads[k].clone()
            p -= LR * v


# ---- errors ----

def trusted(name, t):
    """Without what has no gradient."""
    keep = torch.ones_like(t, dtype=torch.bool)
    if matrix.ZERO_THIRD.search(name):
        keep[len(t) // 3:2 * len(t) // 3] = False
    if matrix.ZERO.search(name):
        keep[:] = False
    return t.double()[keep]


class Errors:
    """Of `losses` and `weights` from a reference: loss, the worst tensor, what the steps changed."""

    def __init__(self, losses, weights, ref, begin=None):
        if None in losses:
            raise Failed(f"a loss is not finite: {losses}")
        self.loss = max(abs(a - b) / abs(b) for a, b in zip(losses, ref.losses, strict=True))
        self.weights, self.name, moved, off = 0, "", 0, 0
        for name, want in ref.weights.items():
            if name not in weights:
                raise Failed(f"the checkpoint lacks {name}")
            a, b = trusted(name, weights[name]), trusted(name, want)
            e = float((a - b).norm() / max(float(b.norm()), 1e-30)) if len(b) else 0
            if not np.isfinite(e):
                raise Failed(f"{name} is not finite")
            if e > self.weights:
                self.weights, self.name = e, name
            if name in ref.begin:
                moved += float((b - trusted(name, ref.begin[name])).norm() ** 2)
                off += float((a - b).norm() ** 2)
        self.change = (off / max(moved, 1e-60)) ** 0.5

    def __str__(self):
        return f"loss {self.loss:.1e} weights {self.weights:.1e} change {self.change:.1e} {self.name}"


class Own:
    """Our one rank as a reference."""

    def __init__(self, run, begin):
        self.losses, self.weights, self.begin = run[0], run[1], begin


# ---- the matrix ----

class Features:
    def __init__(self, args):
        self.root = pathlib.Path(args.workdir).resolve()
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        self.programs = matrix.Programs(args.shardc, self.root)
        self.modules, self.known, self.lock, self.worst = {}, {}, threading.RLock(), {}
        for name, build in MODELS.items():
            torch.manual_seed(5)
            module = self.modules[name] = build().train()
            matrix.COMPILE[name] = ["--loss=cross_entropy"]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(module, (EXAMPLE[name],), str(self.root / f"{name}.onnx"), dynamo=False,
                                  opset_version=17, training=torch.onnx.TrainingMode.TRAINING,
                                  do_constant_folding=False, input_names=["x"], output_names=["logits"],
                                  dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}})

    def once(self, key, make):
        with self.lock:
            if key not in self.known:
                self.known[key] = make()
            return self.known[key]

    def data(self, model, n, spoilt=None):
        return self.once(("data", model, n, spoilt), lambda: make_data(self.root, model, n, spoilt))

    def reference(self, name, world, dtype=None):
        f = FEATURES[name]
        x, labels, _ = self.data(f.model, B * world * f.accum)
        # Without a loop over ranks only what is sent tells strategies apart, so a reference serves all of them.
        key = ("reference", f.model, world, f.accum, f.clip, f.groups, f.bn, f.bcast, f.freeze,
               f.reduce if dtype else None, dtype)
        if not dtype and (f.dtype or f.reduce):
            f = Feature(model=f.model, accum=f.accum, clip=f.clip, groups=f.groups, bn=f.bn, freeze=f.freeze)
        clip_at = self.reference(name, world).clip_at if dtype and f.clip else None
        return self.once(key, lambda: Reference(self.modules[f.model], x, labels, world, f, dtype, clip_at=clip_at))

    def run(self, name, model, options, ranks, data, more=()):
        """Rows of the log, weights, state.json."""
        _, binary = self.programs.build(model, options)
        out = self.root / f"run{next(self.programs.number)}"
        adam = any("adamw" in o for o in options)
        args = [binary, *data, "--lr", LR / 10 if adam else LR, "--threads", 1, "--save", out, "--log", f"{out}.jsonl",
                "--timeout", 60, "--check-replicas", *more]
        if ranks > 1:
            args += ["--ranks", ranks]
        if "hybrid_shard" in " ".join(options):
            args += ["--shard-size", max(ranks // 2, 1)]
        if any("--offload" in o for o in options):
            args += ["--offload-dir", self.root]
        try:
            command(args)
            rows = [r for r in map(json.loads, open(f"{out}.jsonl")) if "loss" in r]
            latest = out / "latest"
            return rows, load_file(latest / "model.safetensors"), json.loads((latest / "state.json").read_text())
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def options(self, name, strategy, world):
        f = FEATURES[name]
        o = [f"--bind=batch={B}", f"--strategy={strategy}", "--wrap=block", *f.compile]
        if not any("--optimizer" in c for c in f.compile):
            o.append("--optimizer=sgd:momentum")
        return o + [f"--world={world}"] * (strategy in OWNED)

    def bounds(self, name, strategy, world):
        """Of loss, weights per tensor, change."""
        f = FEATURES[name]
        if f.dtype:
            theirs = self.reference(name, world, f.dtype)
            own = self.once(("own", name, world), lambda: Errors(theirs.losses, theirs.weights,
                                                                 self.reference(name, world)))
            return min(max(3 * own.loss, 1e-3), 2e-2), 1, 3 * own.change
        if f.reduce:
            return 1e-4, 3 * 2 ** -9, 3 * 2 ** -9
        if f.bcast:
            return 1e-5, 1e-4, 1e-4  # a master beside the middle of two bf16 numbers may fall to either side
        if f.groups:
            return 1e-5, 3e-5, 1e-4  # AdamW divides by the root of what may be as small as its rounding
        return 1e-5, 1e-5, 1e-4

    def judge(self, name, strategy, world, losses, weights):
        f = FEATURES[name]
        if f.own:
            n = B * world
            options = [f"--bind=batch={n}", "--wrap=none", "--optimizer=sgd:momentum", *f.compile]
            one = self.once(("one", name, world), lambda: self.run(name, f.model, options, 1, self.data(f.model, n)[2]))
            ref = Own(([r["loss"] for r in one[0]], one[1]), {})
            e, e.change = Errors(losses, weights, ref), 0
        else:
            e = Errors(losses, weights, self.reference(name, world))
        loss, weight, change = self.bounds(name, strategy, world)
        if not (e.loss <= loss and e.weights <= weight and e.change <= change):
            raise Failed(f"{e}; bounds {loss:.1e} {weight:.1e} {change:.1e}")
        if f.dtype == "fp8" and e.change < change / 9:
            raise Failed(f"{e}: nearer than products of 8-bit floats can be, {change / 3:.1e} in PyTorch")
        with self.lock:
            worst = self.worst.setdefault(name, [0, 0, 0, 0, change])
            worst[0] += 1
            worst[1:4] = [max(a, b) for a, b in zip(worst[1:4], (e.loss, e.weights, e.change))]
            worst[4] = max(worst[4], change)
        return str(e)

    def case(self, c):
        name, strategy, world = c["feature"], c["strategy"], c["world"]
        f, title = FEATURES[name], f"{name} {strategy} W={world}"
        if strategy not in f.only:
            return None
        try:
            more = list(f.run)
            if f.clip:
                clip_at = self.reference(name, world).clip_at
                more += ["--clip-value" if f.clip == "value" else "--clip-norm", clip_at]
            data = self.data(f.model, B * world * f.accum)[2]
            rows, weights, state = self.run(name, f.model, self.options(name, strategy, world), world, data, more)
            if state["updates"] != STEPS:
                raise Failed(f"{state['updates']} updates, wanted {STEPS}")
            return True, f"{title}: {self.judge(name, strategy, world, [r['loss'] for r in rows], weights)}"
        except Exception as e:  # a broken test must not pass
            return False, f"{title}: FAILED {'' if isinstance(e, Failed) else type(e).__name__ + ' '}{e}"

    def overflow(self, strategy, world):
        """Step 3 (index 2) has a sample of the last rank that is infinite in f16."""
        title, at = f"overflow {strategy} W={world}", 2
        try:
            f = Feature([*F16, DYNAMIC], model="mlp", dtype="f16", reduce="f16")
            spoilt = at * B * world + world * B - 1
            x, labels, data = self.data("mlp", B * world, spoilt)
            options = [f"--bind=batch={B}", f"--strategy={strategy}", *f.compile, "--optimizer=sgd:momentum"]
            options += [f"--world={world}"] * (strategy in OWNED)
            rows, weights, state = self.run("overflow", "mlp", options, world, data)
            scales = [r["loss_scale"] for r in rows]
            wanted = [SCALE] * (at + 1) + [SCALE / 2] * (STEPS - at - 1)
            if scales != wanted:
                raise Failed(f"loss scales {scales}, wanted {wanted}")
            if state["updates"] != STEPS - 1:
                raise Failed(f"{state['updates']} updates, wanted {STEPS - 1}: one step overflows")
            theirs, ref = (Reference(self.modules["mlp"], x, labels, world, Feature(model="mlp"), d, (at,))
                           for d in ("f16", None))
            good = [i for i in range(STEPS) if i != at]
            for r in (theirs, ref):
                r.losses = [r.losses[i] for i in good]
            e = Errors([rows[i]["loss"] for i in good], weights, ref)
            own = Errors(theirs.losses, theirs.weights, ref)
            if not (e.loss <= 2e-2 and e.change <= max(3 * own.change, 1e-3)):
                raise Failed(f"{e}; PyTorch: {own}")
            return True, f"{title}: {e}"
        except Exception as e:
            return False, f"{title}: FAILED {'' if isinstance(e, Failed) else type(e).__name__ + ' '}{e}"

    def curves(self, steps):
        """examples/text in bf16 on two ranks against f32 on one."""
        text, curve = HERE / "examples" / "text", {}
        kinds = (("f32", ["--bind=batch=8"], 1), ("bf16", ["--bind=batch=8", *BF16], 1),
                 ("bf16, bf16 sums of 2 ranks", ["--bind=batch=4", *BF16, "--reduce-dtype=bf16"], 2))
        for name, options, ranks in kinds:
            binary, log = self.root / f"text{len(curve)}", self.root / f"text{len(curve)}.jsonl"
            command([self.programs.shardc, text / "text.onnx", "-o", binary, "--loss=cross_entropy", *options])
            command([binary, "--tokens", text / "tokens_train.npy", "--steps", steps, "--shuffle", 1, "--seed", 3,
                     "--lr", 3e-4, "--warmup", min(100, steps // 3), "--log", log, "--ranks", ranks, "--threads", 1],
                    3000)
            losses = np.array([r["loss"] for r in map(json.loads, open(log)) if "loss" in r])
            curve[name] = losses[:steps // 10 * 10].reshape(-1, 10).mean(1)
        lines = []
        for name in list(curve)[1:]:
            off = np.abs(curve[name] - curve["f32"]) / curve["f32"]
            lines.append((bool(off.max() <= 0.01), f"curves {name}: {steps} steps, means of 10 off by at most "
                          f"{off.max():.2%}, loss {curve['f32'][0]:.3f} -> f32 {curve['f32'][-1]:.4f}, "
                          f"this {curve[name][-1]:.4f}"))
        return lines

    def table(self):
        yield f"{'feature':18} {'runs':>4} {'loss':>9} {'weights':>9} {'change':>9} {'bound of change':>16}"
        for name in FEATURES:
            if name in self.worst:
                n, *e, bound = self.worst[name]
                yield f"{name:18} {n:4} " + " ".join(f"{v:9.1e}" for v in e) + f" {bound:16.1e}"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("workdir")
    p.add_argument("--full", action="store_true")
    p.add_argument("--features", default=",".join(FEATURES))
    p.add_argument("--strategies", default=",".join(STRATEGIES))
    p.add_argument("--worlds", default=",".join(map(str, WORLDS)))
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--log")
    p.add_argument("--curves", type=int, default=0, metavar="STEPS")
    p.add_argument("--no-overflow", action="store_true")
    args = p.parse_args()
    torch.set_num_threads(1)
    factors = {"feature": args.features.split(","), "strategy": args.strategies.split(","),
               "world": [int(w) for w in args.worlds.split(",")]}
    cases = ([dict(zip(factors, row)) for row in itertools.product(*factors.values())] if args.full
             else matrix.pairwise(factors))
    log, begin, passed, failed = open(args.log, "w") if args.log else None, time.time(), 0, 0
    features = Features(args)

    def say(ok, line):
        nonlocal passed, failed
        passed, failed = passed + bool(ok), failed + (not ok)
        print(line, file=log, flush=True) if log else None
        if not ok:
            print(line, flush=True)

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for result in pool.map(features.case, cases):
            if result:
                say(*result)
        if not args.no_overflow:
            for result in pool.map(lambda c: features.overflow(*c), itertools.product(factors["strategy"], [2])):
                say(*result)
    for result in features.curves(args.curves) if args.curves else []:
        say(*result)
    for line in [*features.table(), f"passed {passed}, failed {failed}"]:
        print(line)
        print(line, file=log) if log else None
    print(f"features: {passed} runs passed, {failed} failed, {time.time() - begin:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
