"""Training options against PyTorch in f64: the optimizer on one process with the batch of all ranks.

  clip      clip_grad_norm_ of any p, clip_grad_value_, both; every strategy, mixed ones, ranks 1, 2, 4
  groups    an optimizer with parameter groups; --no-decay-1d
  schedule  learning rates of every step against their closed forms, a run resumed in the middle
  freeze    five steps, a block frozen, resumed, unfrozen, resumed: a parameter that comes back has a new state

Loss and norm within 1e-5 relative, weights within 1e-4 norm-relative per tensor (the key third of a fused qkv bias,
whose true gradient is zero, is left out).

usage: training.py SHARDC WORKDIR [--only clip,groups,..]
"""
import copy
import json
import math
import warnings

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

import matrix
from matrix import B, T, VOCAB, Failed, Gpt, command

STEPS = 5


class Setup:
    def __init__(self, shardc, root):
        self.shardc, self.root, self.n = shardc, root, 0
        torch.manual_seed(5)
        self.module = Gpt(drop=0, layers=2).train()
        x = torch.zeros(B, T, dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(self.module, (x,), str(root / "gpt.onnx"), dynamo=False, opset_version=17,
                              training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, input_names=["x"],
                              output_names=["logits"], dynamic_axes={k: {0: "batch"} for k in ["x", "logits"]})
        g = np.random.default_rng(17)
        n = 4 * B * 30
        self.x, self.labels = g.integers(0, VOCAB, (n, T)), g.integers(0, VOCAB, (n, T))
        self.labels[np.arange(T)[None] >= g.integers(0, T + 1, n)[:, None]] = -100
        np.save(root / "x.npy", self.x)
        np.save(root / "labels.npy", self.labels)
        self.data = ["--data", f"x={root}/x.npy", "--data", f"labels={root}/labels.npy", "--threads", "1"]

    def build(self, *options):
        self.n += 1
        out = self.root / f"p{self.n}"
        command([self.shardc, self.root / "gpt.onnx", "-O0", f"--bind=batch={B}", "--loss=cross_entropy", "-o", out, *options])
        return out

    def run(self, binary, world, *flags):
        """Log lines of steps and the weights at the end."""
        self.n += 1
        out = self.root / f"run{self.n}"
        command([binary, *self.data, *(["--ranks", world] if world > 1 else []), "--log", f"{out}.jsonl", "--save", out,
                 *flags])
        rows = [r for r in map(json.loads, open(f"{out}.jsonl")) if "loss" in r]
        return rows, load_file(out / "latest" / "model.safetensors"), out

    def batch(self, step, world):
        part = slice(step * B * world, (step + 1) * B * world)
        return torch.tensor(self.x[part]), torch.tensor(self.labels[part])

    def train(self, m, optimizer, world, steps, clip=lambda params: None, first=0):
        """PyTorch's steps: losses and norms."""
        rows = []
        for step in range(first, first + steps):
            x, labels = self.batch(step, world)
            loss = F.cross_entropy(m(x).flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            norm = clip([p for p in m.parameters() if p.requires_grad])
            optimizer.step()
            rows.append((loss.item(), norm))
        return rows


def near(what, a, b, bound):
    if not abs(a - b) <= bound * max(abs(b), 1e-30):
        raise Failed(f"{what}: {a}, wanted {b}")
    return abs(a - b) / max(abs(b), 1e-30)


def check(name, ours, rows, module, worst):
    """Losses, norms where the reference has one, weights."""
    for (loss, norm), row in zip(rows, ours[0], strict=True):
        worst["loss"] = max(worst.get("loss", 0), near(f"{name}: loss", row["loss"], loss, 1e-5))
        if norm is not None:
            worst["norm"] = max(worst.get("norm", 0), near(f"{name}: norm", row["grad_norm"], float(norm), 1e-5))
    for key, want in module.named_parameters():
        a, b = ours[1][key].double(), want.detach()
        if key.endswith("qkv.bias"):
            keep = torch.ones(len(b), dtype=torch.bool)
            keep[len(b) // 3: 2 * len(b) // 3] = False
            a, b = a[keep], b[keep]
        error = float((a - b).norm() / b.norm().clamp_min(1e-30))
        if error > 1e-4:
            raise Failed(f"{name}: {key} differs by {error:.2e}, at most 1e-4")
        worst["weights"] = max(worst.get("weights", 0), error)


def clipper(p, most, value=None):
    def clip(params):
        norm = torch.nn.utils.clip_grad_norm_(params, most, norm_type=p) if p else None
        if value:
            torch.nn.utils.clip_grad_value_(params, value)
        return norm
    return clip


STRATEGIES = {s: [f"--strategy={s}"] for s in matrix.STRATEGIES}
STRATEGIES["mixed"] = [r"--unit-strategy=h\.0=no_shard", r"--unit-strategy=h\.1=shard_grad_op"]
STRATEGIES["ignored"] = [r"--ignore=ln|wpe"]


def test_clip(s):
    """Bounds that bite in every step; SGD, whose step is as long as the gradient."""
    worst, n = {}, 0
    kinds = {"1": (1, 1.0), "2": (2, 0.2), "2.5": (2.5, 0.1), "inf": (math.inf, 0.02)}
    for i, (strategy, options) in enumerate(STRATEGIES.items()):
        for k, (text, (p, most)) in enumerate(kinds.items()):
            for world in (1, 2, 4):
                if world != (1, 2, 4)[(i + k) % 3] and world != 2:
                    continue
                owned = [f"--world={world}"] if strategy in matrix.OWNED else []
                value = 1e-3 if k % 2 else None
                binary = s.build("--optimizer=sgd", f"--clip={text}{',value' if value else ''}", *options, *owned)
                flags = ["--lr", 0.5, "--steps", STEPS, "--clip-norm", most, *(["--clip-value", value] if value else [])]
                if strategy == "hybrid_shard" and world == 4:
                    flags += ["--shard-size", 2]
                m = copy.deepcopy(s.module).double()
                rows = s.train(m, torch.optim.SGD(m.parameters(), lr=0.5), world, STEPS, clipper(p, most, value))
                if min(float(r[1]) for r in rows) <= most:
                    raise Failed(f"the bound {most} does not bite")
                check(f"clip {text} {strategy} {world}", s.run(binary, world, *flags), rows, m, worst)
                n += 1
    m = copy.deepcopy(s.module).double()
    rows = s.train(m, torch.optim.SGD(m.parameters(), lr=0.5), 2, STEPS, clipper(None, 0, 1e-3))
    binary = s.build("--optimizer=sgd", "--clip=value", "--grad-norm=off")
    check("clip value", s.run(binary, 2, "--lr", 0.5, "--steps", STEPS, "--clip-value", 1e-3), rows, m, worst)
    return n + 1, worst


def groups_of(module, rules, base):
    """PyTorch's groups: the first pattern that a name contains counts; a last one for the rest."""
    left, out = dict(module.named_parameters()), []
    for test, own in rules:
        mine = [k for k in left if test(k, left[k])]
        out.append({"params": [left.pop(k) for k in mine], **base, **own})
    return [*out, {"params": list(left.values()), **base}]


def test_groups(s):
    worst, n, lr = {}, 0, 1e-3
    adamw = dict(lr=lr, betas=(0.8, 0.95), eps=1e-8, weight_decay=0.1)
    flags = ["--lr", lr, "--betas", "0.8,0.95", "--weight-decay", 0.1, "--steps", STEPS]
    given = [r"--param-group=^h\.0\.:lr_scale=0.1,weight_decay=0.5", r"--param-group=bias$:beta1=0.5,beta2=0.9,eps=1e-4",
             r"--param-group=^w.e:lr_scale=3"]
    rules = [(lambda k, p: k.startswith("h.0."), dict(lr=0.1 * lr, weight_decay=0.5)),
             (lambda k, p: k.endswith("bias"), dict(betas=(0.5, 0.9), eps=1e-4)),
             (lambda k, p: k[0] == "w", dict(lr=3 * lr))]
    flat = [(lambda k, p, t=t: t(k, p) and p.ndim < 2, {**own, "weight_decay": 0}) for t, own in rules]
    one_d = [r for pair in zip(flat, rules) for r in pair] + [(lambda k, p: p.ndim < 2, dict(weight_decay=0))]
    for world, strategy in ((1, "full_shard"), (2, "full_shard"), (2, "oss"), (4, "mixed"), (4, "hybrid_shard")):
        for no_decay in (False, True):
            owned = [f"--world={world}"] if strategy in matrix.OWNED else []
            binary = s.build("--optimizer=adamw", *given, *STRATEGIES[strategy], *owned,
                             *(["--no-decay-1d"] if no_decay else []))
            m = copy.deepcopy(s.module).double()
            rows = s.train(m, torch.optim.AdamW(groups_of(m, one_d if no_decay else rules, adamw)), world, STEPS)
            check(f"groups {strategy} {world} {no_decay}", s.run(binary, world, *flags), rows, m, worst)
            n += 1
    m = copy.deepcopy(s.module).double()
    sgd = dict(lr=0.1, momentum=0.9, weight_decay=0.01)
    rules = [(lambda k, p: ".attn." in k, dict(momentum=0.5, lr=0.05))]
    rows = s.train(m, torch.optim.SGD(groups_of(m, rules, sgd)), 2, STEPS)
    binary = s.build("--optimizer=sgd:momentum", r"--param-group=\.attn\.:momentum=0.5,lr_scale=0.5")
    check("groups of sgd", s.run(binary, 2, "--lr", 0.1, "--weight-decay", 0.01, "--steps", STEPS), rows, m, worst)
    return n + 1, worst


def closed_form(kind, step, lr, least, warmup, steps):
    if step < warmup:
        return lr * (step + 1) / warmup
    t = (step - warmup) / (steps - warmup)
    return {"constant": lr, "linear": lr + (least - lr) * t,
            "cosine": least + (lr - least) * (1 + math.cos(math.pi * t)) / 2}[kind]


def test_schedule(s):
    """Every step's rate, in one run and in two parts: the rate is a function of the step alone."""
    binary, worst, n = s.build("--optimizer=sgd"), {"lr": 0}, 0
    for kind in ("constant", "linear", "cosine"):
        for warmup in (0, 4):
            flags = ["--lr", 0.3, "--min-lr", 0.02, "--warmup", warmup, "--lr-schedule", kind]
            whole = s.run(binary, 2, "--steps", 11, *flags)
            part = s.run(binary, 2, "--steps", 11, *flags, "--save-every", 3)
            rest = s.run(binary, 2, "--resume", part[2] / "step-00000003")
            for step, row in enumerate(whole[0]):
                worst["lr"] = max(worst["lr"], near(kind, row["lr"], closed_form(kind, step, 0.3, 0.02, warmup, 11), 1e-6))
            if [r["lr"] for r in whole[0][3:]] != [r["lr"] for r in rest[0]]:
                raise Failed(f"{kind}: a resumed run has other rates")
            if any(not torch.equal(whole[1][k], rest[1][k]) for k in whole[1]):
                raise Failed(f"{kind}: a resumed run has other weights")
            n += 1
    return n, worst


def test_freeze(s):
    """PyTorch's parameter that comes back is put into the optimizer anew: its old state was left out."""
    worst, n = {}, 0
    adamw = dict(lr=1e-3, betas=(0.9, 0.999), weight_decay=0.1)
    for strategy, world in (("full_shard", 1), ("full_shard", 2), ("no_shard", 2), ("sharded_ddp", 2), ("hybrid_shard", 4)):
        owned = [f"--world={world}"] if strategy in matrix.OWNED else []
        options = ["--optimizer=adamw", *STRATEGIES[strategy], *owned]
        whole, frozen = s.build(*options), s.build(*options, r"--freeze=^h\.0\.")
        flags = ["--lr", 1e-3, "--weight-decay", 0.1]
        runs = [s.run(whole, world, *flags, "--steps", 5)]
        runs.append(s.run(frozen, world, "--resume", runs[0][2], "--steps", 9))
        runs.append(s.run(whole, world, "--resume", runs[1][2], "--steps", 13))
        runs.append(s.run(whole, world, "--resume", runs[2][2], "--steps", 16))
        m = copy.deepcopy(s.module).double()
        optimizer = torch.optim.AdamW(m.parameters(), **adamw)
        block = list(m.h[0].parameters())
        check(f"freeze {strategy} {world}", runs[0], s.train(m, optimizer, world, 5), m, worst)
        for p in block:
            p.requires_grad_(False)
            p.grad = None
            del optimizer.state[p]
        check(f"frozen {strategy} {world}", runs[1], s.train(m, optimizer, world, 4, first=5), m, worst)
        for p in block:
            p.requires_grad_(True)
        check(f"back {strategy} {world}", runs[2], s.train(m, optimizer, world, 4, first=9), m, worst)
        check(f"resumed {strategy} {world}", runs[3], s.train(m, optimizer, world, 3, first=13), m, worst)
        n += 4
    return n, worst


TESTS = {"clip": test_clip, "groups": test_groups, "schedule": test_schedule, "freeze": test_freeze}


def main():
    args = matrix.arguments(TESTS)
    s = Setup(args.shardc, args.workdir)
    for name in args.only:
        n, worst = TESTS[name](s)
        print(f"{name}: {n} runs; worst relative errors: " + ", ".join(f"{k} {v:.1e}" for k, v in worst.items()))


if __name__ == "__main__":
    main()
