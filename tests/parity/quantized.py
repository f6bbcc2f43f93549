"""Quantisation-aware training against PyTorch: fake-quantised networks exported both ways, five AdamW steps.

Each network trains in PyTorch in f64 and f32, and here in f32 from the same weights, batches and frozen scales.
Losses may be off the f64 run by twice as much as PyTorch's f32 run is, the worst tensor by three times as much.

usage: python quantized.py SHARDC WORKDIR
"""
import copy
import json
import logging
import pathlib
import subprocess
import sys
import warnings

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.ao.quantization import (FakeQuantize, MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver,
                                   disable_observer)
from torch.nn import functional as F

STEPS, BATCH, LR = 5, 16, 1e-2


def weights(per_channel):
    if per_channel:
        return FakeQuantize(MovingAveragePerChannelMinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.qint8,
                            qscheme=torch.per_channel_symmetric, ch_axis=0)
    return FakeQuantize(MovingAverageMinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.qint8,
                        qscheme=torch.per_tensor_symmetric)


def features(top=255):
    return FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=top, dtype=torch.quint8)


class Observed(nn.Module):
    """A convolutional network with FakeQuantize modules, as torch.ao builds it, before observers are frozen."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.fc = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 20, 3, padding=1), nn.Linear(20, 10)
        self.q1, self.q2, self.q3 = weights(True), weights(True), weights(False)
        self.f0, self.f1, self.f2 = features(), features(127), features()

    def forward(self, x):
        x = F.relu(F.conv2d(self.f0(x), self.q1(self.conv1.weight), self.conv1.bias, padding=1))
        x = F.relu(F.conv2d(self.f1(x), self.q2(self.conv2.weight), self.conv2.bias, padding=1))
        return F.linear(self.f2(x.mean((2, 3))), self.q3(self.fc.weight), self.fc.bias)


class Frozen(nn.Module):
    """The same with functions in place of the modules, whose switches torch.export cannot follow."""

    def __init__(self, of):
        super().__init__()
        self.conv1, self.conv2, self.fc = of.conv1, of.conv2, of.fc
        for name in ("q1", "q2", "q3", "f0", "f1", "f2"):
            q = getattr(of, name)
            self.register_buffer(name + "_scale", q.scale.detach().clone())
            self.register_buffer(name + "_zero", q.zero_point.detach().to(torch.int32).clone())
        self.s = {n: (float(getattr(of, n).scale[0]), int(getattr(of, n).zero_point[0])) for n in ("q3", "f0", "f1", "f2")}

    def channels(self, w, name):
        scale, zero = getattr(self, name + "_scale").float(), getattr(self, name + "_zero")
        return torch.fake_quantize_per_channel_affine(w, scale, zero, 0, -128, 127)

    def tensor(self, x, name, low, high):
        return torch.fake_quantize_per_tensor_affine(x, *self.s[name], low, high)

    def forward(self, x):
        x = F.relu(F.conv2d(self.tensor(x, "f0", 0, 255), self.channels(self.conv1.weight, "q1"), self.conv1.bias, padding=1))
        x = F.relu(F.conv2d(self.tensor(x, "f1", 0, 127), self.channels(self.conv2.weight, "q2"), self.conv2.bias, padding=1))
        return F.linear(self.tensor(x.mean((2, 3)), "f2", 0, 255), self.tensor(self.fc.weight, "q3", -128, 127), self.fc.bias)


def observed():
    torch.manual_seed(3)
    module = Observed()
    for _ in range(3):  # ranges smaller than what training meets, so that some numbers are clipped
        module(torch.rand(BATCH, 1, 8, 8) * 0.9)
    module.apply(disable_observer)
    return module


def train(module, x, labels, dtype):
    module = copy.deepcopy(module).to(dtype)
    for b in module.modules():  # scales are f32 in PyTorch's kernels
        if isinstance(b, FakeQuantize):
            b.scale = b.scale.float()
    optimizer, losses = torch.optim.AdamW(module.parameters(), lr=LR, weight_decay=0.01), []
    for i in range(STEPS):
        rows = slice(i * BATCH, (i + 1) * BATCH)
        loss = F.cross_entropy(module(x[rows].to(dtype)), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {n: p.detach().double() for n, p in module.named_parameters()}


def ours(shardc, work, model, x, labels, flags=()):
    np.save(work / "x.npy", x.numpy())
    np.save(work / "labels.npy", labels.numpy())
    save, log = work / "save", work / "log.jsonl"
    run([shardc, model, "-o", work / "train", "--loss=cross_entropy", "--check-passes", *flags])
    run(["rm", "-rf", save, log])
    run([work / "train", "--data", f"x={work}/x.npy", "--data", f"labels={work}/labels.npy", "--steps", STEPS, "--lr", LR,
         "--weight-decay", 0.01, "--save", save, "--save-every", STEPS, "--log", log])
    losses = [r["loss"] for r in map(json.loads, open(log)) if "loss" in r]
    return losses, {n: t.double() for n, t in load_file(save / f"step-{STEPS:08d}" / "model.safetensors").items()}


def run(parts):
    done = subprocess.run([str(p) for p in parts], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, parts))}\nexit {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


def apart(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def worst(a, b):
    return max((a[n] - b[n]).norm().item() / b[n].norm().item() for n in b)


def check(name, shardc, work, model, module, x, labels):
    losses64, tensors64 = train(module, x, labels, torch.float64)
    losses32, tensors32 = train(module, x, labels, torch.float32)
    losses, tensors = ours(shardc, work, model, x, labels)
    rows = [("loss", apart(losses, losses64), apart(losses32, losses64), 2),
            ("tensor", worst(tensors, tensors64), worst(tensors32, tensors64), 3)]
    bad = 0
    for what, own, theirs, factor in rows:
        ok = own <= factor * max(theirs, 1e-6)
        bad += not ok
        print(f"{name:28} {what:7} ours {own:.2e}  torch f32 {theirs:.2e}  {'ok' if ok else 'FAILED'}", flush=True)
    return bad


def main():
    shardc, work = sys.argv[1], pathlib.Path(sys.argv[2])
    work.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    module = observed()
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(STEPS * BATCH, 1, 8, 8, generator=generator)
    labels = torch.randint(10, (STEPS * BATCH,), generator=generator)
    example = (x[:BATCH],)
    bad = 0
    torch.onnx.export(module, example, str(work / "ts.onnx"), dynamo=False, do_constant_folding=False, input_names=["x"],
                      training=torch.onnx.TrainingMode.TRAINING, opset_version=18)
    bad += check("FakeQuantize, TorchScript", shardc, work, work / "ts.onnx", module, x, labels)
    frozen = Frozen(module)
    torch.onnx.export(frozen, example, str(work / "dynamo.onnx"), dynamo=True, input_names=["x"], optimize=False)
    bad += check("fake_quantize, dynamo", shardc, work, work / "dynamo.onnx", frozen, x, labels)
    sys.exit(bad > 0)


main()
