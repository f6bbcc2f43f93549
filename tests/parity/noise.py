"""Random operators against PyTorch: models with noise, exported by both exporters, train as PyTorch does when it is given
the numbers that the program draws.

The numbers are made here from their definition (docs/training.md, Random numbers), in numpy; PyTorch's random functions
are replaced by them.  Each model is trained by two ranks, and by one rank in two micro-batches; both must have PyTorch's
losses with the whole batch.  Evaluations, whose last batch is not full, must have PyTorch's loss as well: without
dropout, and with the noise of their own step.

usage: python noise.py SHARDC WORKDIR [--cases a,b]
"""
import argparse
import json
import logging
import math
import pathlib
import subprocess
import sys
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

BATCH, WORLD, STEPS, EVALS, SEED, LR, BOUND = 4, 2, 4, 10, 5, 0.05, 2e-5
EVAL_STEP = (1 << 44) - 1
MASK = (1 << 64) - 1


# ---- the numbers ----


def mix(z):
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def philox(key, row, block, step):
    """Four words for each pair of row and block, which are arrays of one shape."""
    row, block = np.broadcast_arrays(np.asarray(row, np.uint64), np.asarray(block, np.uint64))
    low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [block & low, row & low, np.full_like(row, step & 0xFFFFFFFF),
         block >> high & np.uint64(0xFF) | (row >> high & np.uint64(0xFFF)) << np.uint64(8)
         | np.uint64((step >> 32 & 0xFFF) << 20)]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [b >> high ^ c[1] ^ np.uint64(k0), b & low, a >> high ^ c[3] ^ np.uint64(k1), a & low]
        k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
    return np.stack(c, -1)


class Draws:
    """The numbers of one step: of samples from `first` on where a tensor has `samples` rows, else of none."""

    def __init__(self, step, first, samples):
        self.step, self.first, self.samples, self.ids = step, first, samples, 0

    def words(self, shape):
        n = math.prod(shape)
        by_sample = len(shape) > 0 and shape[0] == self.samples
        rows = np.arange(shape[0])[:, None] + self.first if by_sample else np.zeros((1, 1))
        inner = n // shape[0] if by_sample else n
        key = mix(mix(SEED) ^ self.ids)
        self.ids += 1
        blocks = np.arange((inner + 3) // 4)[None]
        w = philox(key, rows, blocks, self.step).reshape(len(rows), -1)
        return w, inner, shape

    def take(self, numbers, inner, shape):
        return torch.from_numpy(numbers[:, :inner].reshape(shape).copy())

    def uniform(self, shape):
        w, inner, shape = self.words(shape)
        return self.take((w >> np.uint64(8)).astype(np.float64) * 2.0**-24, inner, shape)

    def normal(self, shape):
        w, inner, shape = self.words(shape)
        pair = w.reshape(len(w), -1, 2).astype(np.float64)
        radius = np.sqrt(-2 * np.log(((pair[..., 0] + 0.5) * 2.0**-32).astype(np.float32).astype(np.float64)))
        angle = 2 * np.pi * np.floor(pair[..., 1] / 256) * 2.0**-24
        z = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1).reshape(len(w), -1)
        return self.take(z, inner, shape)

    def kept(self, shape, keep):
        """1 where a mask with this constant probability has 1."""
        w, inner, shape = self.words(shape)
        drop = float(np.float32(1 - float(np.float32(keep))))
        return self.take((w >= np.uint64(int(drop * 2.0**32))).astype(np.float64), inner, shape)


class Drawn(TorchDispatchMode):
    """PyTorch's random functions, made of those numbers."""

    def __init__(self, draws):
        super().__init__()
        self.draws = draws

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, d = func._schema.name.removeprefix("aten::"), self.draws
        shape = tuple(args[0].shape) if args and torch.is_tensor(args[0]) else ()
        if name in ("randn", "rand"):
            shape = tuple(args[0])
        if name in ("randn_like", "randn", "normal_"):
            z = d.normal(shape)
            return args[0].copy_(z * (args[2] if len(args) > 2 else 1)) if name == "normal_" else z
        if name in ("rand_like", "rand"):
            return d.uniform(shape)
        if name == "randint":
            low, high, shape = (0, *args[:2]) if len(args) == 2 else args[:3]
            return torch.floor(d.uniform(tuple(shape)) * (high - low) + low).long()
        if name == "bernoulli_":
            return args[0].copy_(d.kept(shape, args[1]))
        if name == "bernoulli":
            return (d.uniform(shape) < args[0]).to(args[0].dtype)
        if name == "native_dropout":
            mask = d.kept(shape, 1 - float(np.float32(args[1])))
            return args[0] * mask / (1 - args[1]), mask.bool()
        if name == "multinomial":
            sums = torch.cumsum(args[0], 1)
            u = d.uniform((shape[0], args[1])) * sums[:, -1:]
            return (u[:, :, None] >= sums[:, None]).sum(2)
        if name == "rrelu_with_noise_functional" or name == "rrelu_with_noise":
            slope = d.uniform(shape) * (1 / 3 - 1 / 8) + 1 / 8
            return torch.where(args[0] >= 0, args[0], args[0] * slope)
        return func(*args, **(kwargs or {}))


# ---- models ----


class Model(nn.Module):
    """One number: the mean over samples of a loss of x [B,4,16]."""

    def __init__(self, noise=None):
        super().__init__()
        self.first, self.second, self.noise = nn.Linear(16, 12), nn.Linear(12, 16), noise

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return ((self.second(self.noise(2 * h)) - x) ** 2).mean()


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.mean, self.scale, self.out = (nn.Linear(16, 12), nn.Linear(12, 6), nn.Linear(12, 6),
                                                      nn.Linear(6, 16))

    def forward(self, x):
        h = torch.relu(self.body(x))
        mean, log_var = self.mean(h), self.scale(h)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var)
        kl = -0.5 * (1 + log_var - mean**2 - log_var.exp())
        return ((self.out(z) - x) ** 2).mean() + 0.1 * kl.mean()


class Denoise(nn.Module):
    """Its loss is the program's own, of which each sample of the last batch counts."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 12), nn.Linear(12, 16)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.second(h + torch.randn_like(h) * 0.5)


class Gan(nn.Module):
    """Both players' losses at once; z depends on no input."""

    def __init__(self):
        super().__init__()
        self.g, self.d = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 64)), nn.Linear(64, 1)

    def forward(self, x):
        fake = self.g(torch.randn(x.shape[0], 5))
        real = self.d(x.flatten(1))
        return F.softplus(-real).mean() + F.softplus(self.d(fake)).mean()


class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.net = nn.Embedding(50, 16), nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))

    def forward(self, x):
        t = torch.randint(0, 50, (x.shape[0],))
        a = 0.99 - t.to(x.dtype)[:, None, None] / 51
        noise = torch.randn_like(x)
        y = a.sqrt() * x + (1 - a).sqrt() * noise
        return ((self.net(y + self.time(t)[:, None]) - noise) ** 2).mean()


class Noisy(nn.Module):
    """Noise of weights (NoisyNet), which all samples share; `size` features, perhaps as many as the batch has samples."""

    def __init__(self, size):
        super().__init__()
        self.inner, self.size = nn.Linear(16, size), size
        self.weight, self.sigma = nn.Parameter(torch.randn(size, size) * 0.3), nn.Parameter(torch.full((size, size), 0.2))
        self.out = nn.Linear(size, 16)

    def forward(self, x):
        w = self.weight + self.sigma * torch.outer(torch.randn(self.size), torch.randn(self.size))
        return ((self.out(F.linear(torch.tanh(self.inner(x)), w)) - x) ** 2).mean()


def drop_path(x, keep=0.6, scale=True):
    mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
    return x * (mask.div_(keep) if scale else mask)


def old_drop_path(x, keep=0.6):
    return x.div(keep) * (keep + torch.rand((x.shape[0],) + (1,) * (x.ndim - 1), dtype=x.dtype)).floor_()


def stochastic_depth(x, keep=0.6, batch=False):
    noise = torch.empty([1 if batch else x.shape[0]] + [1] * (x.ndim - 1), dtype=x.dtype).bernoulli_(keep)
    return x * noise.div_(keep)


class Off(nn.Module):
    """A dropout, as a module that evaluation turns off."""

    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x) if self.training else x


class Same(nn.Module):
    """Noise of the model, which evaluation keeps."""

    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


BOTH, DYNAMO, SCRIPT = (True, False), (True,), (False,)
CASES = {
    "denoise": (Denoise, BOTH), "vae": (Vae, BOTH), "gan": (Gan, BOTH), "diffusion": (Diffusion, BOTH),
    "noisy": (lambda: Noisy(7), BOTH), "noisy_batch": (lambda: Noisy(BATCH), BOTH),
    "drop_path": (lambda: Model(Off(drop_path)), BOTH),
    "drop_path_unscaled": (lambda: Model(Off(lambda x: drop_path(x, scale=False))), BOTH),
    "drop_path_old": (lambda: Model(Off(old_drop_path)), BOTH),
    "depth_rows": (lambda: Model(Off(stochastic_depth)), BOTH),
    "depth_batch": (lambda: Model(Off(lambda x: stochastic_depth(x, batch=True))), BOTH),
    "dropout1d": (lambda: Model(nn.Dropout1d(0.3)), DYNAMO),
    "alpha": (lambda: Model(nn.AlphaDropout(0.3)), DYNAMO),
    "feature_alpha": (lambda: Model(nn.FeatureAlphaDropout(0.3)), DYNAMO),
    "in_place": (lambda: Model(nn.Dropout(0.3, inplace=True)), BOTH),
    "uniform": (lambda: Model(Same(lambda h: h + torch.rand_like(h))), BOTH),
    "bernoulli": (lambda: Model(Same(lambda h: h + torch.bernoulli(h.sigmoid()))), BOTH),
    "multinomial": (lambda: Model(Same(lambda h: h + torch.multinomial(h[:, 0].softmax(-1), 3, True).to(h.dtype).mean(
        -1)[:, None, None])), BOTH),
    "gumbel": (lambda: Model(Same(lambda h: torch.softmax(h - torch.log(-torch.log(torch.rand_like(h) + 1e-6)), -1))),
               BOTH),
    "order": (lambda: Model(Same(lambda h: torch.gather(h, 2, torch.argsort(torch.rand(h.shape), 2)))), BOTH),
}


# ---- both sides ----


def export(module, path, dynamo):
    x = torch.randn(BATCH, 4, 16)
    kwargs = dict(dynamo=True, verbose=False) if dynamo else dict(dynamo=False, opset_version=17, do_constant_folding=False)
    torch.onnx.export(module, (x,), path, input_names=["x"], output_names=["loss"],
                      training=torch.onnx.TrainingMode.TRAINING, **kwargs)


def torch_losses(module, x):
    """Losses of the steps, and of the evaluation after them: of whole batches, where the loss is the model's."""
    module, whole = module.double(), not isinstance(module, Denoise)
    loss_of = module if whole else lambda v: F.mse_loss(module(v), v)
    evals = EVALS // (BATCH * WORLD) * BATCH * WORLD if whole else EVALS
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    losses, size = [], BATCH * WORLD
    for step in range(STEPS):
        with Drawn(Draws(step, step * size, size)):
            loss = loss_of(x[step * size:(step + 1) * size].double())
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    module.eval()
    with torch.no_grad(), Drawn(Draws(EVAL_STEP, 0, evals)):
        losses.append(loss_of(x[:evals].double()).item())
    return losses


def program_losses(program, out, *flags):
    log = out / "log.jsonl"
    log.unlink(missing_ok=True)
    command = [program, "--steps", STEPS, "--lr", LR, "--data", f"x={out / 'x.npy'}", "--eval-data", f"x={out / 'eval.npy'}",
               "--seed", SEED, "--threads", 1, "--log", log, *flags]
    if out.name.startswith("denoise"):
        command += ["--data", f"target={out / 'x.npy'}", "--eval-data", f"target={out / 'eval.npy'}"]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    evals = [r["eval_loss"] for r in rows if "eval_loss" in r]
    return [r["loss"] for r in rows if "loss" in r and "step" in r and "eval_loss" not in r][:STEPS] + evals[-1:]


def run(shardc, work, name, dynamo):
    make, _ = CASES[name]
    out = work / f"{name}-{'dynamo' if dynamo else 'script'}"
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(3)
    module = make().train()
    x = torch.randn(STEPS * BATCH * WORLD, 4, 16)
    np.save(out / "x.npy", x.numpy())
    np.save(out / "eval.npy", x[:EVALS].numpy())
    export(module, str(out / "model.onnx"), dynamo)
    want = torch_losses(module, x)
    done = subprocess.run([shardc, out / "model.onnx", "-o", out / "train", "--optimizer=sgd",
                           "--loss=mse" if name == "denoise" else "--loss=output:loss",
                           "--accum=many"], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip().splitlines()[0]
    if program_losses(out / "train", out) != program_losses(out / "train", out):
        return "a second run has other losses"
    worst = 0
    for flags in (["--accum", 2], ["--ranks", 2]):
        got = program_losses(out / "train", out, *flags)
        if len(got) != len(want):
            return f"{len(got)} losses, expected {len(want)}"
        worst = max(worst, *(abs(a - b) / abs(b) for a, b in zip(got, want)))
        if worst > BOUND:
            return f"{' '.join(map(str, flags))}: losses {got}, PyTorch's are {want}"
    return worst


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("work", type=pathlib.Path)
    p.add_argument("--cases", default="")
    args = p.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    failed = 0
    for name in args.cases.split(",") if args.cases else CASES:
        for dynamo in CASES[name][1]:
            try:
                result = run(args.shardc, args.work, name, dynamo)
            except Exception as e:  # the next case still runs
                result = f"{type(e).__name__}: {str(e)[:400]}"
            failed += isinstance(result, str)
            told = f"FAILED {result}" if isinstance(result, str) else f"{result:.1e}"
            print(f"{name:20} {'dynamo' if dynamo else 'TorchScript':12} {told}", flush=True)
    sys.exit(failed > 0)


main()
