"""Losses of ranks and micro-batches, and evaluations whose last batch is not full, against PyTorch in f64.

  reduce    losses that the graph computes (sums, means, masked means, sums divided by the batch, a contrastive one) and
            --loss-reduce: W ranks and A micro-batches of B samples beside PyTorch with one batch of all samples, or, where
            that is what was asked for, beside the mean over micro-batches; loss of every step, weights after it
  evaluate  batch norms without running statistics, losses of one number a batch, sums: numbers of samples that are no
            multiple of the batch

usage: losses.py SHARDC WORKDIR [--only reduce,evaluate]
"""
import copy
import itertools
import json
import logging
import subprocess
import warnings

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from matrix import Failed, arguments

B, D, STEPS, LR = 4, 6, 3, 0.01


class Loss(nn.Module):
    """A regression whose loss is made of rows [B,D] in one of several ways."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.net = nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, D))

    def forward(self, x, y):
        rows = (self.net(x) - y) ** 2
        k = self.kind
        if k == "sum":
            return rows.sum()
        if k == "elbo":  # a sum of two, as a variational autoencoder has
            return rows.sum() + 0.5 * (self.net[0](x) ** 2).sum()
        if k == "mean":
            return rows.mean()
        if k == "rows":  # a mean over samples of sums over features
            return rows.sum(1).mean()
        if k == "divided":
            return rows.sum() / x.shape[0]
        if k == "masked":
            mask = (y > 0).to(x.dtype)
            return (rows * mask).sum() / mask.sum()
        if k == "root":
            return rows.mean().sqrt()
        if k == "decay":  # a mean and a penalty
            return rows.mean() + 0.01 * (self.net[0].weight ** 2).sum()
        if k == "contrast":
            a, b = F.normalize(self.net(x), dim=1), F.normalize(y, dim=1)
            logits = a @ b.t() * 5
            labels = torch.arange(x.shape[0])
            return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
        raise ValueError(k)


SUM_SAID = "is a sum over samples: losses and gradients of ranks and micro-batches are added"
MEAN_SAID = "is a mean over samples: losses and gradients"
MIX_SAID = "the loss depends on which samples share a batch"
# kind, options, what is compared with (all: one batch of all samples; mean, sum: of micro-batches), what is said
REDUCE = [
    ("sum", [], "all", SUM_SAID),
    ("elbo", [], "all", SUM_SAID),
    ("mean", [], "all", MEAN_SAID),
    ("rows", [], "all", MEAN_SAID),
    ("decay", [], "all", MEAN_SAID),
    ("masked", [], "all", ""),
    ("divided", [], "all", "which looks like the batch size 4: a mean over samples is assumed"),
    ("root", [], "mean", "does not show whether it is a sum or a mean over samples"),
    ("contrast", [], "mean", MIX_SAID),
    ("sum", ["--loss-reduce=mean"], "mean", "the sums of ranks and micro-batches are averaged"),
    ("sum", ["--loss-norm=rank"], "mean", "(--loss-norm=rank)"),
    ("mean", ["--loss-reduce=sum"], "sum", "the means of ranks and micro-batches are added"),
    ("root", ["--loss-reduce=sum"], "sum", ""),
    ("masked", ["--loss-norm=rank"], "mean", ""),
]


def command(parts):
    """What it prints and says."""
    run = subprocess.run([str(p) for p in parts], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    if run.returncode:
        raise Failed(f"{' '.join(str(p) for p in parts)}\nexit {run.returncode}\n{run.stdout[-2000:]}")
    return run.stdout


def export(module, args, path, exporter, names):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            torch.onnx.export(module, args, str(path), dynamo=True, optimize=False, verbose=False, input_names=names)
        else:
            torch.onnx.export(module, args, str(path), dynamo=False, opset_version=17, input_names=names,
                              training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)


def near(what, got, wanted, bound, worst):
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    error = float(np.abs(got - wanted).max() / max(np.abs(wanted).max(), 1e-12))
    worst[0] = max(worst[0], error)
    if not error <= bound:
        raise Failed(f"{what}: {got} beside PyTorch's {wanted}")


def torch_steps(module, x, y, parts, how):
    """Each step's loss, of `parts` micro-batches of B samples; the module trains on."""
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=LR), []
    for s in range(STEPS):
        rows = slice(s * parts * B, (s + 1) * parts * B)
        if how == "all":
            loss = module(x[rows], y[rows])
        else:
            each = [module(a, b) for a, b in zip(x[rows].split(B), y[rows].split(B))]
            loss = sum(each) / (len(each) if how == "mean" else 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_reduce(shardc, root):
    worst, n = [0.0], 0
    g = np.random.default_rng(3)
    x, y = (g.standard_normal((4 * B * STEPS, D)).astype(np.float32) for _ in range(2))
    np.save(root / "x.npy", x)
    np.save(root / "y.npy", y)
    for i, (kind, options, how, said) in enumerate(REDUCE):
        torch.manual_seed(1)
        module = Loss(kind)
        model, binary = root / f"{kind}{i}.onnx", root / f"reduce{i}"
        export(module, (torch.zeros(B, D) + 0.5, torch.ones(B, D)), model, ("dynamo", "torchscript")[i % 2], ["x", "y"])
        out = command([shardc, model, "-v", "-O0", "--optimizer=sgd", "--accum=many", "-o", binary, *options])
        if said not in out:
            raise Failed(f"{kind} {options}: the compiler does not say {said!r}:\n{out}")
        for world, accum in ((2, 1), (1, 2), (2, 2)) if i else itertools.product((1, 2), (1, 2)):
            run = root / f"{i}-{world}-{accum}"
            command([binary, "--data", f"x={root}/x.npy", "--data", f"y={root}/y.npy", "--threads", 1, "--steps", STEPS,
                     "--lr", LR, "--accum", accum, "--log", f"{run}.jsonl", "--save", run,
                     *(["--ranks", world] if world > 1 else [])])
            m = copy.deepcopy(module).double()
            losses = torch_steps(m, torch.tensor(x).double(), torch.tensor(y).double(), world * accum, how)
            what = f"{kind} {options}, {world} ranks, {accum} micro-batches"
            near(what, [r["loss"] for r in map(json.loads, open(f"{run}.jsonl")) if "loss" in r], losses, 1e-5, worst)
            weights = load_file(run / "latest/model.safetensors")
            for name, p in m.named_parameters():
                near(f"{what}: {name}", weights[name], p.detach(), 1e-5, worst)
            n += 1
    return n, worst[0]


# ---- evaluations ----

class Norms(nn.Module):
    def __init__(self, classes=3, track=False):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6, track_running_stats=track)
        self.fc = nn.Linear(6 * 16, classes)

    def forward(self, x):
        return self.fc(F.relu(self.bn(self.conv(x))).flatten(1))


def evaluate(binary, root, data, world):
    run = root / f"eval-{binary.name}-{world}"
    out = command([binary, *(f for n in data for f in ("--data", f"{n}={root}/{n}.npy")),
                   *(f for n in data for f in ("--eval-data", f"{n}={root}/{n}.npy")), "--threads", 1, "--steps", 1,
                   "--lr", 0, "--log", f"{run}.jsonl", *(["--ranks", world] if world > 1 else [])])
    return [r for r in map(json.loads, open(f"{run}.jsonl")) if "eval_loss" in r][-1], out


def test_evaluate(shardc, root):
    worst, n = [0.0], 0
    torch.manual_seed(2)
    g = np.random.default_rng(4)
    samples = 7 * B + 3
    images = g.standard_normal((samples, 1, 6, 6)).astype(np.float32)
    labels = g.integers(0, 3, samples)
    for name, a in (("x", images), ("labels", labels)):
        np.save(root / f"{name}.npy", a)
    for exporter, track in itertools.product(("dynamo", "torchscript"), (False, True)):
        module = Norms(track=track).train()
        model, binary = root / f"norms-{exporter}-{track}.onnx", root / f"norms-{exporter}-{track}"
        export(module, (torch.randn(B, 1, 6, 6),), model, exporter, ["x"])
        start = copy.deepcopy(module)  # tracing has moved the running statistics
        said = command([shardc, model, "-O0", "-o", binary, "--loss=cross_entropy"])
        if ("a last batch that is not full is left out" in said) == track:
            raise Failed(f"batch norm, running statistics {track}, {exporter}: the compiler says\n{said}")
        # --lr 0: the weights stay; running statistics are those behind one step
        for world in (1, 2) if not track else (1,):
            m = copy.deepcopy(start).double()
            x, y = torch.tensor(images).double(), torch.tensor(labels)
            if track:
                m(x[:B])
                m.eval()
            with torch.no_grad():
                logits = torch.cat([m(part) for part in (x if track else x[:7 * B]).split(B)])
            row, out = evaluate(binary, root, ["x", "labels"], world)
            y = y[:len(logits)]
            what = f"batch norm, running statistics {track}, {exporter}, {world} ranks"
            near(what, row["eval_loss"], F.cross_entropy(logits, y).item(), 1e-5, worst)
            near(what, row["eval_accuracy"], (logits.argmax(1) == y).double().mean().item(), 1e-8, worst)
            if ("3 samples left out, only whole batches of 4 are evaluated: samples of a batch meet" in out) == track:
                raise Failed(f"{what}: {out}")
            n += 1
    return n + evaluate_scalars(shardc, root, worst), worst[0]


def evaluate_scalars(shardc, root, worst):
    """Sums and masked means count every sample; one number a batch is averaged over whole batches."""
    g = np.random.default_rng(5)
    n, samples = 0, 5 * B + 3
    x, y = (g.standard_normal((samples, D)).astype(np.float32) for _ in range(2))
    np.save(root / "x.npy", x)
    np.save(root / "y.npy", y)
    for kind, whole in (("sum", False), ("masked", False), ("mean", True), ("root", True), ("contrast", True)):
        torch.manual_seed(1)
        module = Loss(kind)
        model, binary = root / f"e-{kind}.onnx", root / f"e-{kind}"
        export(module, (torch.zeros(B, D) + 0.5, torch.ones(B, D)), model, "dynamo", ["x", "y"])
        command([shardc, model, "-O0", "-o", binary])
        m = copy.deepcopy(module).double()
        a, b = torch.tensor(x).double(), torch.tensor(y).double()
        with torch.no_grad():
            loss = np.mean([m(*p).item() for p in zip(a.split(B)[:5], b.split(B)[:5])]) if whole else m(a, b).item()
        for world in (1, 2):
            row, out = evaluate(binary, root, ["x", "y"], world)
            near(f"evaluation of {kind}, {world} ranks", row["eval_loss"], loss, 1e-5, worst)
            if whole != ("3 samples left out, only whole batches of 4" in out):
                raise Failed(f"evaluation of {kind}: {out}")
            n += 1
    return n


TESTS = {"reduce": test_reduce, "evaluate": test_evaluate}


def main():
    args = arguments(TESTS)
    logging.disable(logging.WARNING)
    for name in args.only:
        n, worst = TESTS[name](args.shardc, args.workdir)
        print(f"{name}: {n} runs, worst relative error {worst:.1e}")


if __name__ == "__main__":
    main()
