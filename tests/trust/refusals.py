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
from refused import HIDDEN, REFUSED, TOKENS, Multiplied, Power, Square, X, hidden, linear, listed_experts  # noqa: E402
from shardc import comparing, graphs, tracing  # noqa: E402

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
    """Whether the model's result is finite at the arguments of `hiding`."""
    inputs = dict(zip((i.name for i in model.graph.input), (X.numpy(), HIDDEN.numpy())))
    return np.isfinite(onnx.reference.ReferenceEvaluator(comparing.quiet(model)).run(None, inputs)[0]).all()


def names(model):
    return {t.name for t in model.graph.initializer}


def casts(m):
    return {a.i for n in m.graph.node for a in n.attribute if n.op_type == "Cast" and a.name == "to"}


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
    "as_strided of what is transposed": (lambda: linear(lambda self, x: self.a(x).t().as_strided((3, 4), (2, 1))), X, {},
                                         lambda m: True),
    "bfloat16 beside integers": (lambda: linear(lambda self, x: self.a(x) + (x.bfloat16() * (x > 0).cumsum(1)).float()), X,
                                 {}, lambda m: 16 in casts(m) and 15 not in casts(m)),
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
    "attention of which a row sees nothing, by bools": (lambda: linear(hidden), (X, HIDDEN == 0), {}, is_finite),
    "attention of which a row sees nothing, by numbers": (lambda: linear(hidden), (X, HIDDEN), {}, is_finite),
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
    """The functions that the export replaces while it runs."""
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
    """A comparison with something else than the module fails, also where rounding explains a part of the difference."""
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
    "a recurrent layer": (recurrent, X, {}, ""),
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
    "experts by lists": (listed_experts, X, {}, "how long the result of NonZero is depends on values"),
    "a length": (lambda: linear(lambda self, x: self.a(x) / len(x)), X, {}, "Using len to get tensor shape"),
}


def asked(table, name, exporters):
    """The exporters under which a case is run: a refusal that names some, under these, and a model of its name under the
    others."""
    if table is TRACED:
        return ("torchscript",)
    say = REFUSED[name][2] if name in REFUSED else None
    return [e for e in exporters if not isinstance(say, dict) or (e in say) == (table is REFUSED)]


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
            for exporter in asked(table, name, exporters):
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
