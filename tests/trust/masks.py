"""The masks of dropout, read out of gradients: rate, scale, independence, and the same masks for the same samples on
any number of ranks and micro-batches.

Sample b of a step is the number 2^b, spread over a tensor, dropped, multiplied by a table of parameters and summed: the
gradient of a table's element is the sum of 2^b / (1 - p) over the samples that keep it, whose bits are the mask.

usage: python masks.py SHARDC WORKDIR [--exporters dynamo,torchscript] [--plain]    (--plain: without the helper, too)
"""
import argparse
import itertools
import math
import pathlib
import shutil
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional as F

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "python"))

import models  # noqa: E402
import shardc  # noqa: E402
from shardc.exporters import silent  # noqa: E402
from shardc.programs import Program  # noqa: E402

SAMPLES, STEPS, HEADS, LENGTH, P = 8, 3, 2, 8, 0.25
WIDTH = HEADS * LENGTH
SIGMAS = 5


class Fails(Exception):
    pass


# ---- places at which values are dropped: x [B,1] -> [B, ..] ----

def spread(x, *dims):
    return x.reshape(-1, *[1] * len(dims)) * torch.ones(dims)


def rows(self, x):
    return F.dropout(spread(x, LENGTH, WIDTH), P)


def merged(self, x):
    """[B,T,E] -> [B*T,E]"""
    y = spread(x, LENGTH, WIDTH)
    return F.dropout(y.flatten(0, 1), P).reshape(y.shape)


def turned(self, x):
    """[T,B,E]"""
    return F.dropout(spread(x, LENGTH, WIDTH).transpose(0, 1), P).transpose(0, 1)


def behind(self, x):
    """[T,B,E] -> [T*B,E]: the place of the linear layer in nn.MultiheadAttention"""
    y = spread(x, LENGTH, WIDTH).transpose(0, 1).contiguous()
    return F.dropout(y.flatten(0, 1), P).reshape(y.shape).transpose(0, 1)


def attention(self, x):
    """Scores are zeros, values are rows of the identity: the result is the weights."""
    v = spread(x, HEADS, LENGTH, LENGTH) * torch.eye(LENGTH)
    return F.scaled_dot_product_attention(v * 0, v * 0, v, dropout_p=P) * LENGTH


def by_heads(self, x, need_weights):
    y = spread(x, LENGTH, WIDTH) * torch.eye(LENGTH).repeat(1, HEADS)
    return self.heads(y, y, y, need_weights=need_weights)[0].unflatten(2, (HEADS, LENGTH)).transpose(1, 2) * LENGTH


def heads(self, x):
    return by_heads(self, x, False)


def weights(self, x):
    return by_heads(self, x, True)


def last(self, x):
    """[T,E,B]"""
    return F.dropout(spread(x, LENGTH, WIDTH).permute(1, 2, 0), P).permute(2, 0, 1)


def shared(self, x):
    """What depends on no sample is dropped for all of them alike."""
    return spread(x, LENGTH, WIDTH) * F.dropout(self.positions, P)


PLACES = [rows, merged, turned, behind, attention, heads, weights, last, shared]


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.MultiheadAttention(WIDTH, HEADS, dropout=P, batch_first=True)
        with torch.no_grad():
            self.heads.in_proj_weight.zero_()[2 * WIDTH:] = torch.eye(WIDTH)
            self.heads.out_proj.weight.copy_(torch.eye(WIDTH))
        self.heads.requires_grad_(False)
        self.positions = nn.Parameter(torch.ones(LENGTH, WIDTH), requires_grad=False)
        x = torch.ones(2, 1)
        self.tables = nn.ParameterDict({p.__name__: torch.ones(p(self, x).shape[1:]) for p in PLACES})

    def forward(self, x):
        return {"loss": sum((p(self, x) * self.tables[p.__name__]).sum() for p in PLACES)}


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Dropping()

    def forward(self, x):
        return self.inner(x)["loss"]


def data():
    return 2.0 ** (torch.arange(SAMPLES * STEPS) % SAMPLES)[:, None]


# ---- programs ----

def exported(path, exporter, batch, plain):
    x = data()[:batch]
    torch.manual_seed(0)
    if not plain:
        shardc.export(Dropping().train(), x, path, exporter)
    elif exporter == "dynamo":
        with silent():
            torch.onnx.export(Plain().train(), (x,), dynamo=True, optimize=False, verbose=False, input_names=["x"],
                              output_names=["loss"]).save(path)
    else:
        with silent():
            torch.onnx.export(Plain().train(), (x,), path, dynamo=False, opset_version=17, do_constant_folding=False,
                              training=torch.onnx.TrainingMode.TRAINING, input_names=["x"], output_names=["loss"])
    return path


def program(args, path, loss, tensors, *flags):
    folder = path.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    made = Program(args.shardc, path, folder, args.limit)
    made.compile(tensors, loss, "--optimizer=sgd:momentum", *flags)
    return made


def masks(made, tensors, steps, *flags):
    """{place: bool [SAMPLES, ..]} of the last of `steps` steps."""
    _, _, optimizer = made.train(tensors, steps, "--lr", 0, "--momentum", 0, "--weight-decay", 0, "--seed", 3, *flags)
    found = {}
    for name, gradient in optimizer.items():
        *module, place = name.removesuffix(".momentum_buffer").split(".")
        if module[-1:] != ["tables"]:  # frozen in PyTorch, of which a plain export says nothing
            continue
        bits = gradient.double() * (1 - P)
        whole = bits.round()
        if (bits - whole).abs().max() > 1e-3 or whole.min() < 0 or whole.max() >= 2 ** SAMPLES:
            raise Fails(f"{place}: what is kept is not scaled by 1/(1-p): {gradient.flatten()[:8]}")
        found[place] = torch.stack([whole.to(torch.int64) >> b & 1 for b in range(SAMPLES)]).bool()
    return found


# ---- statistics ----

def within(what, share, wanted, n):
    off = abs(share - wanted) / math.sqrt(wanted * (1 - wanted) / n)
    if off > SIGMAS:
        raise Fails(f"{what}: {share:.4f}, wanted {wanted:.4f}: {off:.1f} standard deviations of {n} numbers")
    return off


def agree(what, a, b):
    """Two masks are alike as often as independent ones are."""
    return within(what, (a == b).double().mean().item(), (1 - P) ** 2 + P ** 2, a.numel())


def independent(found):
    """found: {place: bool [STEPS, SAMPLES, ..]}.  The largest deviation."""
    worst = 0.0
    if not (found["shared"] == found["shared"][:, :1]).all():
        raise Fails("shared: samples have masks of their own")
    found = {**found, "shared": found["shared"][:, :1]}
    for place, mask in found.items():
        worst = max(worst, within(f"{place}: the rate of what is kept", mask.double().mean().item(), 1 - P, mask.numel()))
        for i, j in itertools.combinations(range(STEPS), 2):
            worst = max(worst, agree(f"{place}: steps {i} and {j}", mask[i], mask[j]))
        for i, j in itertools.combinations(range(SAMPLES) if place != "shared" else (), 2):
            worst = max(worst, agree(f"{place}: samples {i} and {j}", mask[:, i], mask[:, j]))
        for axis in range(2, mask.dim()):
            now, later = mask.narrow(axis, 1, mask.shape[axis] - 1), mask.narrow(axis, 0, mask.shape[axis] - 1)
            worst = max(worst, agree(f"{place}: neighbours along axis {axis - 1}", now, later))
    for (one, a), (other, b) in itertools.combinations(found.items(), 2):
        n = min(a[0, 0].numel(), b[0, 0].numel())
        samples = min(a.shape[1], b.shape[1])
        worst = max(worst, agree(f"{one} and {other}", a[:, :samples].flatten(2)[..., :n],
                                 b[:, :samples].flatten(2)[..., :n]))
    return worst


def test_masks(args, exporter, plain):
    tensors, base = {"x": data()}, args.work / f"{exporter}{'-plain' if plain else ''}"
    whole = program(args, exported(base.with_suffix(".onnx"), exporter, SAMPLES, plain), "output:loss", tensors)
    half = program(args, exported(base.with_name(f"{base.name}-half.onnx"), exporter, SAMPLES // 2, plain), "output:loss",
                   tensors, "--accum=many")
    every = [masks(whole, tensors, 1 + step) for step in range(STEPS)]
    found = {place: torch.stack([m[place] for m in every]) for place in every[0]}
    if set(found) != {p.__name__ for p in PLACES}:
        raise Fails(f"masks were found of {', '.join(found)}, wanted {', '.join(p.__name__ for p in PLACES)}")
    worst = independent(found)
    for told, flags in (("two ranks", ("--ranks", 2)), ("two micro-batches", ("--accum", 2))):
        for place, mask in masks(half, tensors, STEPS, *flags).items():
            if not torch.equal(mask, found[place][-1]):
                raise Fails(f"{place}: {told} drop other elements than one rank, {(mask != found[place][-1]).sum()} of "
                            f"{mask.numel()}")
    return f"{len(found)} places, at most {worst:.1f} standard deviations off; equal at W=1, W=2 and A=2"


def test_gpt(args, exporter, plain):
    """A GPT whose attention drops: losses of two ranks and with recomputation are those of one, and not those of another
    seed; its attention is one op."""
    case, losses = models.CASES["gpt"], {}
    torch.manual_seed(7)
    tensors = case.data(8 * 3)
    for batch, flags, made in ((8, (), ()), (4, ("--ranks", 2), ()), (8, ("--seed", 4), ()), (8, (), ("--remat=block",))):
        torch.manual_seed(0)
        path = args.work / f"gpt-{exporter}.onnx"
        batch_of = {"input_ids": tensors["input_ids"][:batch]}
        shardc.export(models.gpt(0.25).train(), batch_of, path, exporter, outputs=["logits"])
        compiled = program(args, path, case.loss, tensors, *made)
        losses[flags, made], _, _ = compiled.train(tensors, 3, "--lr", 0.1, *flags)
        if "= attention" not in compiled.ir(tensors, "patterns") or "softmax" in compiled.ir(tensors, "patterns"):
            raise Fails("attention with dropout is not recognised")
    one, two, other, again = losses.values()
    off = max(abs(a - b) / b for a, b in zip(two + again, one + one))
    if off > 1e-5 or min(abs(a - b) / b for a, b in zip(other, one)) < 1e-6:
        raise Fails(f"losses {one}, of two ranks {two}, of another seed {other}, recomputed {again}")
    return f"losses of two ranks and with recomputation are off by {off:.1e}"


def attempt(what, function, *parameters):
    try:
        print(f"ok   {what}: {function(*parameters)}", flush=True)
        return True
    except (Fails, shardc.ExportError, shardc.CheckError) as e:
        print(f"FAIL {what}: {e}", flush=True)
        return False


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc", type=lambda s: pathlib.Path(s).resolve())
    p.add_argument("work", type=lambda s: pathlib.Path(s).resolve())
    p.add_argument("--exporters", default="dynamo,torchscript")
    p.add_argument("--plain", action="store_true")
    p.add_argument("--limit", type=int, default=120, help="seconds for a compile and for a run")
    args = p.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    good = []
    for exporter in args.exporters.split(","):
        good.append(attempt(f"masks by {exporter}", test_masks, args, exporter, False))
        good.append(attempt(f"gpt by {exporter}", test_gpt, args, exporter, False))
        if args.plain:
            good.append(attempt(f"masks by {exporter}, without the helper", test_masks, args, exporter, True))
    print(f"masks: {sum(good)} of {len(good)} as they should be")
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
