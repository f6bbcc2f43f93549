"""What shardc.export writes in the place of PyTorch's functions, against these: values and gradients in f64.  And
shardc.check of models that draw random numbers, and of gradients inside of torch.vmap.

usage: python written.py SHARDC WORKDIR
"""
import pathlib
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import shardc  # noqa: E402
from shardc import tracing, watching  # noqa: E402

BOUND = 1e-12


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def points():
    """Two of the second set are two of the first."""
    x = numbers(2, 5, 3)
    return x, torch.cat([x[:, :2], numbers(2, 2, 3)], 1)


def variance(*shape):
    return torch.rand(*shape, dtype=torch.float64)


WRITTEN = {"cdist": (torch.cdist, tracing.WRITTEN["cdist"]), "diag": (torch.diag, tracing.WRITTEN["diag"]),
           "triplet": (torch.triplet_margin_loss, tracing.WRITTEN["triplet_margin_loss"]),
           "gaussian_nll_loss": (F.gaussian_nll_loss, watching.gaussian_nll_loss),
           "smooth_l1_loss": (lambda a, b, beta: F.smooth_l1_loss(a, b, beta=beta),
                              lambda a, b, beta: tracing.WRITTEN["smooth_l1_loss"](a, b, 1, beta)),
           "huber_loss": (lambda a, b, delta: F.huber_loss(a, b, delta=delta),
                          lambda a, b, delta: tracing.WRITTEN["huber_loss"](a, b, 1, delta)),
           "diff": (torch.diff, tracing.WRITTEN["diff"])}


def calls():
    """(name, operands, keywords)"""
    for p in (1.0, 2.0, 3.0, 0.5):
        yield "cdist", points(), {"p": p}
    yield "cdist", (numbers(4, 3), numbers(2, 5, 3)), {}
    for diagonal in (0, 2, -1):
        yield "diag", (numbers(4),), {"diagonal": diagonal}
        yield "diag", (numbers(4, 5),), {"diagonal": diagonal}
    for more in ({}, {"swap": True}, {"margin": 0.3, "p": 1.0}, {"reduction": 0}, {"reduction": 2}):
        yield "triplet", (numbers(4, 3), numbers(4, 3), numbers(4, 3)), more
    for more in ({}, {"full": True}, {"reduction": "sum"}, {"reduction": "none"}, {"eps": 0.5}):
        for shape in ((4, 3), (4, 1), (4,)):
            yield "gaussian_nll_loss", (numbers(4, 3), numbers(4, 3), variance(*shape)), more
    yield "smooth_l1_loss", (numbers(4, 3), numbers(4, 3)), {"beta": 0.7}
    yield "huber_loss", (numbers(4, 3), numbers(4, 3)), {"delta": 0.7}
    yield "diff", (numbers(3, 6),), {"n": 2, "prepend": numbers(3, 1)}


def measured(function, operands, more):
    leaves = [t.clone().requires_grad_() for t in operands]
    result = function(*leaves, **more)
    return [result, *torch.autograd.grad((result * result + result).sum(), leaves)]


def compare(name, operands, more):
    theirs, ours = (measured(f, operands, more) for f in WRITTEN[name])
    for a, b in zip(ours, theirs):
        if a.shape != b.shape or not (a - b).abs().max() <= BOUND * (1 + b.abs().max()):
            return f"{name} {more}: {a.tolist()}, and PyTorch's {b.tolist()}"
    return ""


class Drawn(nn.Linear):
    """Noise of its own."""

    def forward(self, x):
        return {"loss": (super().forward(x) + torch.rand_like(x)).pow(2).mean()}


class Mapped(nn.Module):
    """A gradient goes through one factor, and stops at the other."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        rows = torch.vmap(lambda a, b: (x * a).tanh() * (x * b).detach())(self.a, self.b)
        return {"loss": rows.pow(2).mean() + (self.b * self.b).sum()}


def check(compiler, work, module, what):
    """what: a part of what the report says."""
    torch.manual_seed(0)
    path = work / f"{type(module).__name__}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shardc.export(module, torch.randn(4, 4), path, "torchscript")
    report = shardc.check(module, torch.randn(4, 4), path, "output:loss", shardc=compiler, show=False)
    return "" if report.ok and what in str(report) else f"check of {type(module).__name__}:\n{report}"


def main():
    compiler, work = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
    work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    found = [compare(*call) for call in calls()]
    found.append(check(compiler, work, Drawn(4, 4), "not compared, as the model draws random numbers (RandomUniformLike)"))
    found.append(check(compiler, work, Mapped(), "trains what the module trains"))
    try:
        tracing.WRITTEN["cdist"](numbers(2, 3), numbers(2, 3), p=float("inf"))
        found.append("cdist with p=inf is not refused")
    except shardc.ExportError as e:
        found.append("" if "p=inf" in str(e) else str(e))
    for text in filter(None, found):
        print(f"FAIL {text}")
    print(f"written functions: {found.count('')} of {len(found)} are PyTorch's")
    sys.exit(any(found))


if __name__ == "__main__":
    main()
