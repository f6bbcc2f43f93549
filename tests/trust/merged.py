"""Exports without the helper, whose exporters merge and fold tensors: every parameter is trained as a tensor of its own,
and no buffer is, or the compiler says what it guessed or lost.

usage: python merged.py SHARDC WORKDIR [CASE..]
"""
import copy
import pathlib
import re
import subprocess
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

from shardc.exporters import silent  # noqa: E402


class Buffers(nn.Module):
    """Buffers that are equal to parameters when it is exported."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("scale", torch.ones(8))
        self.register_buffer("once", torch.ones(8), persistent=False)
        self.fc, self.norm, self.out = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x):
        return self.out(self.norm(torch.relu(self.fc((x - self.mean) * self.scale + self.once))))


class Statistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn, self.fc, self.out = nn.BatchNorm1d(8, affine=False), nn.Linear(8, 8), nn.Linear(8, 3)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x):
        return self.out(torch.relu(self.fc(self.bn(x))))


class Copies(nn.Module):
    """Layers that are equal, but not one; and two that are."""

    def __init__(self):
        super().__init__()
        self.a, self.constraint = nn.Linear(8, 8), nn.Linear(8, 8)
        self.b = copy.deepcopy(self.a)
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.constraint.weight
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        for layer in (self.a, self.b, self.constraint, self.tied):
            x = torch.relu(layer(x))
        return self.out(x)


class Function(nn.Module):
    """A weight that forward computes of a parameter at its root."""

    def __init__(self):
        super().__init__()
        self.w, self.const_shift = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))
        self.turned, self.out = nn.Parameter(torch.randn(8, 8)), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(F.linear(x, torch.tanh(self.w)) @ self.turned + self.const_shift)


CASES = {"buffers": (Buffers, (4, 8)), "statistics": (Statistics, (4, 8)), "copies": (Copies, (4, 8)),
         "copies of sequences": (Copies, (4, 5, 8)), "a function of a parameter": (Function, (4, 8))}


def export(module, x, path, exporter):
    with silent():
        if exporter == "dynamo":
            torch.onnx.export(module, (x,), dynamo=True, verbose=False).save(path, external_data=False)
        else:
            torch.onnx.export(module, (x,), path, dynamo=False)


def faults(compiler, module, path):
    """What the program trains otherwise than PyTorch without the compiler saying so."""
    done = subprocess.run([compiler, path, "--emit=ir", "--stop-after=init"], capture_output=True, text=True, check=False)
    if done.returncode:
        return [done.stderr]
    said = [line for line in done.stderr.splitlines() if " is guessed " in line or " is lost" in line]
    first = {p: n for n, p in module.named_parameters()}  # of a tie
    names = {n: first[p] for n, p in module.named_parameters(remove_duplicate=False)}
    found = re.findall(r'^  param "([^"]*)" : [^{]*{trainable=1', done.stdout, re.M)
    wrong = {names.get(n, n) for n in found} ^ set(first.values())
    return [n for n in sorted(wrong) if not any(f'"{n}"' in line for line in said)]


def main():
    compiler, work = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    work.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    failed = total = 0
    for name in sys.argv[3:] or CASES:
        build, shape = CASES[name]
        for exporter in ("torchscript", "dynamo"):
            for training in (False, True):
                torch.manual_seed(0)
                module, path = build().train(training), work / "merged.onnx"
                export(module, torch.randn(shape), path, exporter)
                wrong = faults(compiler, module, path)
                total += 1
                failed += bool(wrong)
                if wrong:
                    print(f"FAIL {name} by {exporter}{' in training' * training}: not a word of {', '.join(wrong)}")
    print(f"merged: {total - failed} of {total} as they should be")
    sys.exit(failed > 0 or not total)


if __name__ == "__main__":
    main()
