"""shardc.export of modules of every kind: what it writes as it should, and what it refuses with the way out.

Every call leaves the module, PyTorch's functions and the folder as they were.

usage: python refusals.py WORKDIR [--quick] [CASE..]     (--quick: TorchScript's exporter alone)
"""
import collections
import copy
import dataclasses
import pathlib
import sys
import traceback
import warnings
from unittest import mock

import numpy as np
import onnx
import onnx.reference
import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import shardc  # noqa: E402
from shardc import comparing, graphs, tracing  # noqa: E402

X = torch.linspace(-1, 1, 24).reshape(4, 6)


def linear(forward, **attributes):
    """A module of one Linear(6, 6) whose forward is the function given."""
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 6)
            for name, value in attributes.items():
                if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                    self.register_buffer(name, value)
                else:
                    setattr(self, name, value)

        def forward(self, *args, **kwargs):
            return forward(self, *args, **kwargs)
    torch.manual_seed(0)
    return Module().train()


class Round(torch.autograd.Function):
    """Straight through, by a backward of its own."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Square(torch.autograd.Function):
    """A backward that is its forward's derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


class Power(torch.autograd.Function):
    """Whose forward is given no context."""

    @staticmethod
    def forward(x, scale=3.0, exponent=3):
        return scale * x ** exponent

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.scale, ctx.exponent = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return ctx.scale * ctx.exponent * x ** (ctx.exponent - 1) * gradient, None, None


class Scaled(torch.autograd.Function):
    """A gradient multiplied by a number of each call."""

    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.by, None


class Multiplied(torch.autograd.Function):
    """A number that calls give by its name."""

    @staticmethod
    def forward(ctx, x, by=2.0):
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.by, None


class Clipped(torch.autograd.Function):
    """A gradient within bounds, which most are."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-10, 10)


class Saturated(torch.autograd.Function):
    """Straight through where operands are large, which X is not."""

    @staticmethod
    def forward(ctx, x):
        return x.clamp(-4, 4)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Blind(torch.autograd.Function):
    """A backward that leaves out a parameter of its forward."""
    weight = None

    @staticmethod
    def forward(ctx, x):
        ctx.weight = Blind.weight
        return x * ctx.weight

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.weight.detach()


def scaled_twice(self, x):
    return Scaled.apply(self.b(Scaled.apply(self.a(x), 1.0)), 0.1)


def blind(self, x):
    Blind.weight = self.a.weight[0]
    return Blind.apply(self.a(x))


def clamped(by_data, bound):
    def forward(self, x):
        if by_data:
            self.a.weight.data.clamp_(-bound, bound)
        else:
            with torch.no_grad():
                self.a.weight[:2].clamp_(-bound, bound)
        return self.a(x)
    return forward


def overwritten(self, x):
    self.a.weight.detach().numpy()[0] += 1
    return self.a(x)


def exchanged(self, x):
    self.a.weight = nn.Parameter(self.a.weight * 0.5)
    return self.a(x)


def averaged(self, x):
    """A teacher that follows, in forward."""
    with torch.no_grad():
        for mine, other in zip(self.b.parameters(), self.a.parameters()):
            torch.add(mine, other, out=mine)
        aim = self.b(x)
    return self.a(x) - aim


def halved(self, x):
    y = self.a(x)
    with torch.no_grad():
        y.mul_(0.5)
    return y


def zeroed_view(self, x):
    y = self.a(x)
    with torch.no_grad():
        y[:, 0].zero_()
    return y


def checkpointed_first(self, x):
    return self.b(torch.utils.checkpoint.checkpoint(self.a, x, use_reentrant=True))


def by_largest(self, x):
    return self.a(x / float(x.abs().max()))


def by_mask(self, x, mask):
    return self.a(x) * 2 if mask.sum() > 4 else self.a(x)


def by_length(self, x):
    return self.a(x).sum() / len(x)


def accumulating():
    m = linear(lambda self, x: self.a(x))
    m.a.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.1))
    return m


def counted(self, x):
    self.seen += x.mean(0)
    return self.a(x)


def penalised(self, x):
    x = x.detach().requires_grad_()
    y = self.a(x).sum()
    return y + torch.autograd.grad(y, x, create_graph=True)[0].pow(2).sum()


def hooked(self, x):
    y = self.a(x)
    y.register_hook(lambda gradient: -gradient)
    return y


def in_place_detach(self, x):
    y = self.a(x)
    y.detach_()
    return y + self.a(x)


def numbers(self, x):
    return x * float(self.a.weight.sum())


def branch(self, x):
    return self.a(x) if float(x[0, 0]) < 0 else -self.a(x)


def set_data(self, x):
    y = self.a(x)
    y.data = y.data * 2
    return y


def shared_memory():
    m = linear(lambda self, x: self.b(self.a(x)), b=nn.Linear(6, 6))
    m.b.weight.data = m.a.weight.data
    return m


def with_hook():
    m = linear(lambda self, x: self.a(x))
    m.a.register_full_backward_hook(lambda *_: None)
    return m


def lazy():
    return linear(lambda self, x: self.b(self.a(x)), b=nn.LazyLinear(3))


def max_norm():
    return linear(lambda self, x: self.a(self.b(x)), b=nn.Embedding(9, 6, max_norm=0.1))


def complex_parameter():
    return linear(lambda self, x: self.a(x) + self.c.abs(), c=nn.Parameter(torch.ones(6, dtype=torch.complex64)))


def momentum_none():
    return linear(lambda self, x: self.n(self.a(x)), n=nn.BatchNorm1d(6, momentum=None))


def instance_statistics():
    return linear(lambda self, x: self.n(self.a(x)), n=nn.InstanceNorm1d(4, track_running_stats=True))


def rrelu():
    return linear(lambda self, x: F.rrelu(self.a(x), training=True))


TOKENS = torch.tensor([[0, 1, 2], [3, 4, 5]])
CHANGES = "forward changes parameter a.weight"
DECIDES = {"torchscript": "took a branch by its value", "dynamo": "forward decides by the value of a tensor"}
# name: (build, arguments, what the error says, or that by exporter, options)
REFUSED = {
    "own backward": (lambda: linear(lambda self, x: Round.apply(self.a(x))), X, "autograd.Function Round"),
    "a scaled gradient, not by the first call": (lambda: linear(scaled_twice, b=nn.Linear(6, 6)), X, "Function Scaled"),
    "own backward, an argument by name": (
        lambda: linear(lambda self, x: Scaled.apply(self.a(x), by=0.1)), X, "autograd.Function Scaled"),
    "a clipped gradient": (lambda: linear(lambda self, x: Clipped.apply(self.a(x))), X, "autograd.Function Clipped"),
    "saturated operands": (lambda: linear(lambda self, x: Saturated.apply(self.a(x))), X, "Function Saturated"),
    "a backward that forgets a parameter": (lambda: linear(blind), X, "autograd.Function Blind"),
    "a parameter clamped by .data": (lambda: linear(clamped(True, 0.1)), X, CHANGES),
    "a parameter clamped without effect": (lambda: linear(clamped(True, 9)), X, CHANGES),
    "a parameter clamped under no_grad": (lambda: linear(clamped(False, 9)), X, CHANGES),
    "a parameter written by numpy": (lambda: linear(overwritten), X, CHANGES),
    "a parameter exchanged": (lambda: linear(exchanged), X, CHANGES),
    "a teacher that follows": (lambda: linear(averaged, b=nn.Linear(6, 6)), X, "forward changes parameter b.weight"),
    "in place under no_grad": (lambda: linear(halved), X, "in place (mul_) under no_grad"),
    "a view in place under no_grad": (lambda: linear(zeroed_view), X, "in place (zero_) under no_grad"),
    "checkpointing without a gradient": (lambda: linear(checkpointed_first, b=nn.Linear(6, 6)), X, "use_reentrant"),
    "a hook behind a gradient": (accumulating, X, "parameter a.weight has a backward hook"),
    "divided by the largest": (lambda: linear(by_largest), X, DECIDES),
    "a branch by a mask of ones": (lambda: linear(by_mask), (X, torch.ones(6)), DECIDES),
    "divided by a length": (lambda: linear(by_length), X[:2], "batch", {"dynamic_batch": True}),
    "gradient penalty": (lambda: linear(penalised), X, "torch.autograd.grad"),
    "hook of a value": (lambda: linear(hooked), X, "hook"),
    "hook of a module": (with_hook, X, "module a has a backward hook"),
    "detach_": (lambda: linear(in_place_detach), X, "detach_()"),
    "assigned .data": (lambda: linear(set_data), X, ".data"),
    "a counting buffer": (lambda: linear(counted, seen=torch.zeros(6)), X, "forward changes buffer seen"),
    "parameters as numbers": (lambda: linear(numbers), X, "a number out of a value"),
    "a branch by value": (lambda: linear(branch), X, DECIDES),
    "shared memory": (shared_memory, X, "a.weight and b.weight share memory"),
    "lazy": (lazy, X, "b.weight has no shape yet"),
    "max_norm": (max_norm, TOKENS, "max_norm"),
    "complex": (complex_parameter, X, "parameter c is complex"),
    "rrelu": (rrelu, X, "rrelu"),
    "an average of statistics": (momentum_none, X, "module n (BatchNorm1d) has momentum=None"),
    "statistics of instances": (instance_statistics, X[None], "module n (InstanceNorm1d) keeps running statistics"),
    "wrong shape": (lambda: linear(lambda self, x: self.a(x)), X[:, :5], "does not run with these arguments"),
    "no tensor in": (lambda: linear(lambda self, n: self.a(torch.ones(n, 6))), (3,), "no tensor"),
    "no tensor out": (lambda: linear(lambda self, x: 3), X, "int"),
    "no module": (lambda: F.relu, X, "no torch.nn.Module"),
    "a string": (lambda: linear(lambda self, x: x), "x", "args is a str"),
}


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    more: tuple
    text: str = "text"


Pair = collections.namedtuple("Pair", "first second")


def masked(self, batch, scale=1.0):
    return {"logits": self.a(batch["x"]) * batch["mask"] * scale}


def in_place(self, x):
    y = self.a(x)
    y.mul_(2).add_(1)
    y[:, 0] = 0
    return F.relu(y, inplace=True)


def no_gradient_in_place(self, x):
    y = torch.zeros(4, 6)
    with torch.no_grad():
        y.add_(self.a(x))
    return self.b(x) + y


def inference(self, x):
    with torch.inference_mode():
        y = self.b(x)
    return self.a(x) * y.clone()


def checkpointed(self, x):
    return torch.utils.checkpoint.checkpoint(self.a, self.b(x), use_reentrant=True)


def by_names(self, x):
    y = torch.cumsum(input=x > 0, dim=1) + torch.cumsum(input=x, dim=1)
    y = y + torch.where(input=x, condition=x > 0, other=-x)
    y = torch.dropout(input=self.a(y), p=0.5, train=True)
    return torch.feature_dropout(input=torch.diff(input=y[..., None], dim=1), p=0.25, train=True)


HIDDEN = torch.zeros(4, 4).index_fill(0, torch.tensor(1), -torch.inf)
HIDDEN[2, 3] = -torch.inf


def hiding(self, x, mask):
    y = self.a(x)[None]
    return F.scaled_dot_product_attention(y, y, y, attn_mask=mask, dropout_p=0.25)


def dropping(self, x):
    return F.scaled_dot_product_attention(*[self.a(x)[None, None]] * 3, dropout_p=0.25)


def decorated(self, x):
    @torch.no_grad()
    def teacher(x):
        return self.b(x).max(1)
    return self.a(x) + teacher(x).values[:, None] + self.b(x).data


def mixed():
    m = linear(lambda self, x: self.d(self.n(self.a(x))) + self.e(self.m(x)), n=nn.BatchNorm1d(6), m=nn.BatchNorm1d(6),
               d=nn.Dropout(0.5), e=nn.Dropout(0.25))
    m.m.eval()
    m.e.eval()
    return m


def norm(shape, forward=lambda self, x: self.n(self.a(x)), **options):
    """A batch norm behind a linear layer, and x of that shape."""
    kind = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d
    m = linear(forward, n=kind(shape[1], **options))
    if m.n.running_mean is not None:
        nn.init.uniform_(m.n.running_mean)
        nn.init.uniform_(m.n.running_var, 0.5, 2)
    return m


def numbered(*shape):
    return torch.sin(torch.arange(1.0, 1 + torch.Size(shape).numel()) ** 2).reshape(shape)


def instance_evaluated():
    m = linear(lambda self, x: self.n(self.a(x)), n=nn.InstanceNorm1d(4, track_running_stats=True))
    nn.init.uniform_(m.n.running_mean)
    return m.eval()


SHAPES = {"[B,C]": (5, 6), "[2,C]": (2, 6), "[B,C,L]": (5, 3, 6), "[1,C,L]": (1, 3, 6), "[B,C,H,W]": (3, 2, 4, 6)}
KINDS = {"": {}, " by the batch alone": {"track_running_stats": False}, " without weights": {"affine": False},
         " of the last batch": {"momentum": 1.0}}


def norms():
    """name: row of WRITTEN, for each shape and kind of batch norm."""
    return {f"a norm of {shape}{kind}": (lambda s=s, k=k: norm(s, **k), numbered(*s), {}, lambda m: True)
            for shape, s in SHAPES.items() for kind, k in KINDS.items()}


def weight_norm_old():
    m = linear(lambda self, x: self.a(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(m.a)
    return m


def weight_norm():
    m = linear(lambda self, x: self.a(x))
    nn.utils.parametrizations.weight_norm(m.a)
    return m


def shared():
    m = linear(lambda self, x: self.b(self.a(x)) + self.a(self.c(x)), c=nn.Linear(6, 6))
    m.b = m.a
    m.c.weight = m.a.weight
    return m


def buffers():
    m = linear(lambda self, x: self.a(x) * self.kept + self.gone + self.plain, kept=torch.ones(6))
    m.register_buffer("gone", torch.ones(6), persistent=False)
    m.plain = torch.full((6,), 2.0)
    return m


def integers():
    return linear(lambda self, x: self.a(x) * self.n, n=nn.Parameter(torch.arange(6), requires_grad=False))


def frozen():
    m = linear(lambda self, x: self.b(self.a(x)), b=nn.Linear(6, 6), unused=nn.Linear(2, 2))
    m.a.requires_grad_(False)
    return m


def entry(model, name):
    return next(t for t in graphs.metadata(model)["tensors"] if t["name"] == name)


def modes(model):
    norms = [graphs_attribute(n, "training_mode") for n in model.graph.node if n.op_type == "BatchNormalization"]
    return sorted(norms) == [0, 1] and count(model, "Dropout") == 1


def graphs_attribute(node, name):
    return next((a.i for a in node.attribute if a.name == name), 0)


def count(model, op):
    return sum(n.op_type == op for n in model.graph.node)


def is_finite(model):
    """What it computes is, at the arguments of `hiding`."""
    inputs = dict(zip((i.name for i in model.graph.input), (X.numpy(), HIDDEN.numpy())))
    return np.isfinite(onnx.reference.ReferenceEvaluator(comparing.quiet(model)).run(None, inputs)[0]).all()


def names(model):
    return {t.name for t in model.graph.initializer}


# name: (build, arguments, options, what must be true of the model)
WRITTEN = {
    "keywords": (lambda: linear(masked), {"batch": {"x": X, "mask": X > 0}, "scale": 2.0}, {},
                 lambda m: [i.name for i in m.graph.input] == ["batch.x", "batch.mask"]),
    "dataclass": (lambda: linear(lambda self, x: Answer(self.a(x), (x + 1, None))), X, {},
                  lambda m: [o.name for o in m.graph.output] == ["logits", "more.0"]),
    "named tuple": (lambda: linear(lambda self, x: Pair(self.a(x), self.a(x) * 2)), X, {"outputs": ["second"]},
                    lambda m: [o.name for o in m.graph.output] == ["second"]),
    "in place": (lambda: linear(in_place), X, {}, lambda m: True),
    "in place without gradients": (lambda: linear(no_gradient_in_place, b=nn.Linear(6, 6)), X, {},
                                   lambda m: count(m, "StopGradient") == 1),
    "inference mode": (lambda: linear(inference, b=nn.Linear(6, 6)), X, {}, lambda m: count(m, "StopGradient") >= 1),
    "a decorated teacher": (lambda: linear(decorated, b=nn.Linear(6, 6)), X, {},
                            lambda m: count(m, "StopGradient") >= 2),
    "mixed modes": (mixed, X, {}, modes),
    **norms(),
    # Results that are nothing but rounding.
    "a norm that is summed": (lambda: norm((5, 6), lambda self, x: self.n(self.a(x)).sum(0)), numbered(5, 6), {},
                              lambda m: True),
    "a norm's mean": (lambda: norm((2, 6), lambda self, x: self.n(self.a(x)).mean()), numbered(2, 6), {}, lambda m: True),
    "a norm of equal samples": (lambda: norm((4, 6)), torch.ones(4, 6) * 3, {}, lambda m: True),
    "a norm far from zero": (lambda: norm((4, 6), lambda self, x: self.n(x) + self.a(x * 0)), numbered(4, 6) + 3000, {},
                             lambda m: True),
    "an instance norm that is evaluated": (instance_evaluated, numbered(2, 4, 6), {}, lambda m: True),
    "batch norms in a row, before what ONNX's evaluator has not": (
        lambda: nn.Sequential(nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.BatchNorm1d(6),
                              nn.ConvTranspose1d(6, 6, 3, groups=3)), numbered(2, 6, 4), {}, lambda m: True),
    "weight_norm of old": (weight_norm_old, X, {}, lambda m: {"a.weight_g", "a.weight_v", "a.bias"} <= names(m)),
    "weight_norm": (weight_norm, X, {}, lambda m: "a.parametrizations.weight.original1" in names(m)),
    "shared modules": (shared, X, {}, lambda m: names(m) == {"a.weight", "a.bias", "c.bias"}
                       and entry(m, "a.weight")["aliases"] == ["c.weight", "b.weight"]),
    "buffers": (buffers, X, {}, lambda m: not entry(m, "gone")["persistent"] and entry(m, "plain")["kind"] == "constant"
                and entry(m, "kept")["persistent"]),
    "integers": (integers, X, {}, lambda m: entry(m, "n")["dtype"] == "int64"),
    "frozen and unused": (frozen, X, {}, lambda m: not entry(m, "a.weight")["requires_grad"]
                          and entry(m, "unused.weight")["initializer"] == "unused.weight" and "unused.weight" in names(m)),
    "its own derivative": (lambda: linear(lambda self, x: Square.apply(self.a(x))), X, {}, lambda m: True),
    "its own derivative, arguments by name": (
        lambda: linear(lambda self, x: Power.apply(Multiplied.apply(self.a(x), by=0.5), exponent=2)), X, {},
        lambda m: True),
    "checkpointing": (lambda: linear(checkpointed, b=nn.Linear(6, 6)), X, {}, lambda m: len(names(m)) == 4),
    "a backward of a parameter beside": (
        lambda: linear(lambda self, x: Square.apply(self.a(x)) + Square.apply(self.a.weight[0])), X, {},
        lambda m: True),
    "operands by name": (lambda: linear(by_names), X, {}, lambda m: count(m, "Dropout") == 2),
    "attention of which a row sees nothing": (lambda: linear(hiding), (X, HIDDEN), {}, is_finite),
    "dropout of channels": (lambda: linear(lambda self, x: F.dropout1d(self.a(x)[:, :, None], 0.5)[..., 0]), X, {},
                            lambda m: count(m, "Dropout") == 1),
    "alpha dropout": (lambda: linear(lambda self, x: F.alpha_dropout(self.a(x), 0.3, True)), X, {},
                      lambda m: count(m, "Dropout") == 1),
    "attention that drops": (
        lambda: linear(dropping), X, {},
        lambda m: count(m, "Dropout") == 1 and all(len(n.input) == 3 for n in m.graph.node if n.op_type == "Dropout")),
    "a padding row": (lambda: linear(lambda self, x: self.a(self.b(x)), b=nn.Embedding(9, 6, padding_idx=0)), TOKENS,
                      {}, lambda m: count(m, "StopGradient") == 1),
    "a free batch": (lambda: linear(lambda self, x: self.a(x)), X, {"dynamic_batch": True},
                     lambda m: m.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"),
    "weights beside": (lambda: linear(lambda self, x: self.a(x), c=nn.Parameter(torch.ones(500, 6))), X,
                       {"external_data": True}, lambda m: True),
    "evaluation": (lambda: linear(lambda self, x: F.dropout(self.a(x), 0.5, self.training)).eval(), X, {},
                   lambda m: not graphs.metadata(m)["training"] and count(m, "Dropout") == 0),
}


# ---- as it was ----

def snapshot(module):
    if not isinstance(module, nn.Module):
        return None
    held = {n: t.detach().clone() for n, t in [*module.named_parameters(), *module.named_buffers()]
            if not isinstance(t, nn.parameter.UninitializedParameter)}
    flags = [(n, p.requires_grad) for n, p in module.named_parameters()]
    return held, flags, [(n, m.training) for n, m in module.named_modules()], {n: sorted(vars(m)) for n, m in
                                                                               module.named_modules()}


def same(a, b):
    if a is None:
        return True
    return a[1:] == b[1:] and a[0].keys() == b[0].keys() and all(torch.equal(t, b[0][n]) for n, t in a[0].items())


def functions():
    """What the export puts something else in place of."""
    return [F.scaled_dot_product_attention, vars(torch.autograd.Function)["apply"], F.has_torch_function,
            torch.Tensor.detach]


FUNCTIONS = functions()


def restored():
    return all(now is was for now, was in zip(functions(), FUNCTIONS)) and not torch.overrides._get_current_function_mode_stack()


class Failed(Exception):
    pass


def want(true, what):
    if not true:
        raise Failed(what)


def call(build, args, options, folder, exporter):
    """(the model or the error, once everything is found as it was)"""
    for file in folder.iterdir():
        file.unlink()
    module = build()
    before, random = snapshot(module), torch.get_rng_state()
    try:
        shardc.export(module, copy.deepcopy(args), folder / "model.onnx", exporter, **options)
        result = onnx.load(folder / "model.onnx")
    except shardc.ExportError as e:
        result = e
    left = sorted(f.name for f in folder.iterdir())
    want(isinstance(result, onnx.ModelProto) or not left, f"left behind: {left}")
    want(same(before, snapshot(module)), "the module was changed")
    want(restored(), "a function of PyTorch was not put back")
    want(torch.is_grad_enabled() and torch.equal(random, torch.get_rng_state()), "PyTorch's state was changed")
    return result


def refuse(name, folder, exporter):
    build, args, say, *options = REFUSED[name]
    say = say[exporter] if isinstance(say, dict) else say
    result = call(build, args, *(options or [{}]), folder, exporter)
    want(isinstance(result, shardc.ExportError), "was exported")
    want(say in str(result), f"says {result}")
    want(len(str(result)) < 700, f"says pages: {result}")


def write(name, folder, exporter):
    build, args, options, true = WRITTEN[name]
    result = call(build, args, options, folder, exporter)
    if isinstance(result, shardc.ExportError):
        raise Failed(f"refused: {result}")
    onnx.checker.check_model(result, full_check=True)
    want(true(result), f"graph:\n{onnx.printer.to_text(result)[:4000]}")


def spoil(name, folder, exporter):
    """What the comparison runs is not the module: it is said, also where rounding explains some of a difference."""
    build, args, options, _ = WRITTEN[name]
    quiet = comparing.quiet

    def spoiled(model):
        model = quiet(model)
        t = next(t for t in model.graph.initializer if t.name == "a.bias")
        t.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(t) + 0.1, t.name))
        return model
    with mock.patch.object(comparing, "quiet", spoiled):
        result = call(build, args, options, folder, exporter)
    want(isinstance(result, shardc.ExportError) and "is off by" in str(result), f"was believed: {result}"[:300])


ATTENTION = tracing.attention


def halving(*args, **kwargs):
    return ATTENTION(*args, **kwargs) * 0.5


def misspell(name, folder, exporter):
    """What is written out in place of a function of PyTorch's is compared with that function."""
    build, args, options, _ = WRITTEN[name]
    with mock.patch.object(tracing, "attention", halving):
        result = call(build, args, options, folder, exporter)
    want(isinstance(result, shardc.ExportError) and "is off by" in str(result), f"was believed: {result}"[:300])


def tell(name, folder, exporter):
    """What a reader should know is said, and nothing else."""
    build, args, options, say = (TOLD | TRACED)[name]
    told = shardc.export(build(), args, folder / "model.onnx", exporter, **options)
    want(bool(told.notes) == bool(say) and say in " ".join(told.notes), f"notes: {told.notes}")
    used = graphs.uses_of(onnx.load(folder / "model.onnx").graph)
    want(told.parameters == len([n for n, _ in build().named_parameters() if n in used]), f"{told.parameters} parameters")


def recurrent():
    return linear(lambda self, x: self.b(self.a(x))[0], b=nn.LSTM(6, 6, 2, dropout=0.5))


def picky(self, x):
    """Takes numbers of the sum of X alone."""
    assert abs(x.sum() - X.sum()) < 1e-4
    return self.a(x)


# name: (build, arguments, options, what a note says, or nothing)
TOLD = {
    "parameters that are not used": (lambda: linear(lambda self, x: self.a(x), b=nn.Linear(6, 6)), X, {}, ""),
    "a recurrent layer": (recurrent, X, {}, "it has LSTM"),
    "a dropout of all": (lambda: linear(lambda self, x: x + F.dropout(self.a(x), 1.0)), X, {}, "the rate 1"),
    "bf16": (lambda: linear(lambda self, x: self.a(x)).bfloat16(), X.bfloat16(), {}, "a.weight is bfloat16"),
    "f64": (lambda: linear(lambda self, x: self.a(x)).double(), X.double(), {}, "a.weight is float64"),
    "a free batch": (lambda: linear(lambda self, x: self.a(x)), X, {"dynamic_batch": True}, ""),
}
TRACED = {
    "numbers that are looked at": (lambda: linear(picky), X, {}, "not compared on other numbers"),
    "numbers that are looked at, of a free batch": (
        lambda: linear(picky), X, {"dynamic_batch": True}, "not compared on another length of its free axes, other numbers:"),
    "a value as a Python number": (lambda: linear(lambda self, x: self.a(x) if x.sum() < 99 else x), X, {},
                                   "refusals.py:"),
    "a length": (lambda: linear(lambda self, x: self.a(x) / len(x)), X, {}, "Using len to get tensor shape"),
}
SPOILED = {name: None for name in ("in place", "keywords", "an instance norm that is evaluated",
                                  "a norm far from zero")}
MISSPELT = {name: None for name in ("attention that drops", "attention of which a row sees nothing")}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    failed = done = 0
    exporters = ("torchscript",) if "--quick" in sys.argv else ("torchscript", "dynamo")
    wanted = [a for a in sys.argv[2:] if a != "--quick"]
    for table, function in ((REFUSED, refuse), (WRITTEN, write), (SPOILED, spoil), (MISSPELT, misspell), (TOLD, tell),
                            (TRACED, tell)):
        for name in table:
            if wanted and name not in wanted:
                continue
            for exporter in exporters if table is not TRACED else ("torchscript",):
                done += 1
                try:
                    function(name, folder, exporter)
                except Failed as e:
                    failed += 1
                    print(f"FAIL {name} by {exporter}: {e}", flush=True)
                except Exception:
                    failed += 1
                    print(f"FAIL {name} by {exporter}: {traceback.format_exc()}", flush=True)
    print(f"refusals: {done - failed} of {done} passed")
    sys.exit(failed > 0 or not done)


if __name__ == "__main__":
    main()
