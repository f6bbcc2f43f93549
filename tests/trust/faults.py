"""shardc.check finds what goes wrong: a file is exported as it should be, one fault is put into it, and check names it.

usage: python faults.py SHARDC WORKDIR [--quick] [CASE..]
"""
import json
import pathlib
import sys
import traceback
import warnings

import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import shardc  # noqa: E402
from shardc import graphs  # noqa: E402


class All(nn.Module):
    """A little of everything that a graph does not say."""

    def __init__(self):
        super().__init__()
        self.temp = nn.Parameter(torch.tensor([0.5]))
        self.table = nn.Parameter(torch.randn(8), requires_grad=False)
        self.register_buffer("mean", torch.full((8,), 0.3))
        self.a, self.b, self.teacher = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.b.weight = self.a.weight
        self.norm, self.still = nn.BatchNorm1d(8), nn.BatchNorm1d(8)
        self.same, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        nn.init.zeros_(self.same.bias)
        nn.init.zeros_(self.other.bias)

    def train(self, mode=True):
        super().train(mode)
        self.still.eval()
        return self

    def forward(self, x, wanted):
        y = self.norm(self.a(x - self.mean)) + self.still(x) + self.table
        y = self.b(F.gelu(y)) / self.temp
        with torch.no_grad():
            aim = self.teacher(x)
        q = F.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None], dropout_p=0.25 * self.training)[:, 0]
        q = self.other(F.gelu(self.same(q)))
        return {"loss": F.mse_loss(y + q - 0.5 * y.detach(), aim) + F.mse_loss(q, wanted)}


def edited_metadata(change):
    def fault(model):
        known = graphs.metadata(model)
        change({t["name"]: t for t in known["tensors"]}, known)
        graphs.set_metadata(model, known)
    return fault


def tensors(name, **values):
    return edited_metadata(lambda entries, known: entries[name].update(values))


def unstopped(model):
    """As without the helper: the marker is gone, and what dynamo says of it, too."""
    for n in model.graph.node:
        if n.domain == "shardc":
            n.domain, n.op_type = "", "Identity"
            del n.metadata_props[:]


def unstopped_one(index):
    def fault(model):
        node = [n for n in model.graph.node if n.domain == "shardc"][index]
        node.domain, node.op_type = "", "Identity"
        del node.metadata_props[:]
    return fault


def stopped_too_much(model):
    node = next(n for n in model.graph.node if "a.weight" in n.input)
    model.graph.node.insert(list(model.graph.node).index(node),
                            helper.make_node("StopGradient", ["a.bias"], ["stopped_bias"], domain="shardc"))
    node.input[list(node.input).index("a.bias")] = "stopped_bias"


def untied(model):
    """One of the two uses gets a copy under its own name."""
    original = next(t for t in model.graph.initializer if t.name == "a.weight")
    copy = onnx.TensorProto()
    copy.CopyFrom(original)
    copy.name = "b.weight"
    model.graph.initializer.append(copy)
    use = [n for n in model.graph.node if "a.weight" in n.input][-1]
    use.input[list(use.input).index("a.weight")] = "b.weight"
    known = graphs.metadata(model)
    entry = next(t for t in known["tensors"] if t["name"] == "a.weight")
    entry["aliases"] = []
    known["tensors"].append({**entry, "name": "b.weight", "initializer": "b.weight"})
    graphs.set_metadata(model, known)


def merged(model):
    """Two biases that are equal now become one, as an exporter makes them."""
    for n in model.graph.node:
        for i, name in enumerate(n.input):
            if name == "other.bias":
                n.input[i] = "same.bias"
    known = graphs.metadata(model)
    known["tensors"] = [t for t in known["tensors"] if t["name"] != "other.bias"]
    entry = next(t for t in known["tensors"] if t["name"] == "same.bias")
    entry["aliases"] = ["other.bias"]
    graphs.set_metadata(model, known)
    graphs.drop_unused(model)


def undropped(model):
    """As PyTorch's exporters write the dropout of an attention: without training_mode."""
    for n in model.graph.node:
        if n.op_type == "Dropout":
            del n.input[2:]


def norm_mode(name, training):
    def fault(model):
        for n in model.graph.node:
            if n.op_type != "BatchNormalization" or f"{name}.weight" not in n.input:
                continue
            graphs.replace(n.attribute, [a for a in n.attribute if a.name != "training_mode"])
            graphs.replace(n.metadata_props, [p for p in n.metadata_props if p.key != "pkg.torch.onnx.fx_node"])
            n.attribute.append(helper.make_attribute("training_mode", training))
            if not training:
                del n.output[1:]
        known = graphs.metadata(model)
        known["modules"][name] = {"class": "BatchNorm1d", "training": bool(training)}
        graphs.set_metadata(model, known)
    return fault


def other_weight(model):
    t = next(t for t in model.graph.initializer if t.name == "same.weight")
    t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t) * 1.01, t.name))


def without_metadata(model):
    kept = [p for p in model.metadata_props if p.key != "shardc"]
    graphs.replace(model.metadata_props, kept)
    unstopped(model)


# name: (fault, what check says)
FAULTS = {
    "no fault": (lambda model: None, ""),
    "gradients that stop nowhere": (unstopped, "teacher.weight is trained by the program"),
    "a gradient that goes on": (unstopped_one(-1), "gradient of"),
    "a gradient that stops": (stopped_too_much, "a.bias is trained by PyTorch, and not by the program"),
    "a frozen table that is trained": (tensors("table", requires_grad=True),
                                       "table is trained by the program, and frozen"),
    "a parameter that is frozen": (tensors("same.weight", requires_grad=False),
                                   "same.weight is trained by PyTorch, and not by the program"),
    "a buffer that is trained": (tensors("mean", kind="parameter", requires_grad=True),
                                 "mean is trained by the program, and a buffer"),
    "a parameter for a constant": (tensors("temp", kind="constant", requires_grad=False),
                                   "temp is trained by PyTorch, and not by the program"),
    "a tie that is lost": (untied, "a.weight and b.weight are one tensor in the module"),
    "biases that are merged": (merged, "same.bias"),
    "dropout that does not drop": (undropped, "dropout: the program's rates are none, the module's 0.25"),
    "a norm that stands still": (norm_mode("norm", 0), "the loss is"),
    "a norm that goes on": (norm_mode("still", 1), "the loss is"),
    "another weight": (other_weight, "the gradient of same.weight"),
    "an export without the helper": (without_metadata, "teacher.weight is trained by the program"),
}
QUICK = ("no fault", "gradients that stop nowhere", "a frozen table that is trained", "a tie that is lost",
         "dropout that does not drop")


class Failed(Exception):
    pass


def attempt(compiler, work, name, exporter):
    fault, say = FAULTS[name]
    torch.manual_seed(0)
    module = All().train()
    torch.nn.init.uniform_(module.still.running_mean, -0.5, 0.5)
    args = {"x": torch.randn(6, 8), "wanted": torch.randn(6, 8)}
    path = work / "fault.onnx"
    shardc.export(module, args, path, exporter)
    model = onnx.load(path)
    fault(model)
    onnx.save(model, path)
    report = shardc.check(module, args, path, "output:loss", shardc=compiler, show=False)
    if bool(report) != (not say) or say not in str(report):
        raise Failed(f"wanted {say!r}\n{report}\n{report.said}\n{json.dumps(graphs.metadata(model))}")


class Single(nn.Module):
    """Its forward makes a tensor of f32, whatever its input is."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        return {"loss": (self.a(x) @ torch.full((4, 4), 0.5)).pow(2).mean()}


class Still(nn.BatchNorm1d):
    """By its running statistics, in whatever mode it is."""

    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)


class StillNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.other = nn.Linear(4, 4), Still(4), nn.BatchNorm1d(4)
        nn.init.uniform_(self.norm.running_mean, -0.5, 0.5)

    def forward(self, x):
        return {"loss": self.other(F.gelu(self.norm(self.a(x)))).pow(2).mul(torch.arange(4)).mean()}


class Tenth(torch.autograd.Function):
    """A gradient a tenth as large: what no export of ours would take."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0.1


class Layers(nn.Module):
    """a, then b, with what `between` makes of a's result."""

    def __init__(self, between=lambda self, y: y, **more):
        super().__init__()
        self.a, self.b, self.between = nn.Linear(4, 4), nn.Linear(4, 3), between
        for name, value in more.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.b(self.between(self, self.a(x)))


class Placed(nn.Module):
    """Its first input is no sample."""

    def __init__(self):
        super().__init__()
        self.a, self.e = nn.Linear(4, 3), nn.Embedding(9, 4)

    def forward(self, places, x):
        return self.a(x + self.e(places))


class Halved(Layers):
    def forward(self, x):
        y = super().forward(x)
        return {"left": y, "right": y * y}


class Narrow(Layers):
    """With a parameter that no program trains."""

    def __init__(self):
        super().__init__(lambda self, y: y * self.c.float(), c=nn.Parameter(torch.ones(4, dtype=torch.float16)))


def checkpointing(reentrant):
    def between(self, y):
        def part(t):
            return F.dropout(F.gelu(self.a(t)), 0.25)
        return torch.utils.checkpoint.checkpoint(part, y, use_reentrant=reentrant)
    return between


def halve(parameter):
    parameter.grad.mul_(0.5)


def hooked():
    module = Layers()
    module.a.weight.register_post_accumulate_grad_hook(halve)
    return module


def lowest(self, y):
    """Uniform in f32; NaN in f64, whose lowest number f32 does not hold: what transformers' eager attention does with a
    row that is masked altogether."""
    return y * (y + torch.finfo(y.dtype).min).softmax(-1, dtype=torch.float32).to(y.dtype)


def twice_in_f64(self, y):
    return Tenth.apply(y) * (2 if y.dtype == torch.float64 else 1)


PAIR = (torch.arange(5), torch.ones(2, 5, 4))
ROWS, WIDE = torch.linspace(-1, 1, 24).reshape(6, 4), torch.linspace(0, 2, 18).reshape(6, 3)
# name: (the module that is exported, or None for the same; the module; arguments; options of check; what check says, or
# nothing where all is well)
CHECKS = {
    "a module of f32 alone": (None, Single, {"x": torch.randn(3, 4)}, {"loss": "output:loss"},
                              "as the module fails in f64"),
    "a module that is not a number in f64": (None, lambda: Layers(lowest), ROWS, {}, "loss is another in f64: nan"),
    "a module that computes something else in f64": (Layers, lambda: Layers(twice_in_f64), ROWS, {},
                                                     "the gradient of a.weight is off"),
    "a norm whose forward has a mode of its own": (None, lambda: StillNorm().train(), {"x": torch.randn(3, 4)},
                                                   {"loss": "output:loss"}, ""),
    "a backward of its own": (Layers, lambda: Layers(lambda self, y: Tenth.apply(y)), ROWS, {}, "gradient of a.weight"),
    "a gradient that is changed afterwards": (Layers, hooked, ROWS, {}, "the gradient of a.weight is off"),
    "a checkpoint": (None, lambda: Layers(checkpointing(False)), ROWS, {}, ""),
    "a reentrant checkpoint": (None, lambda: Layers(checkpointing(True)), ROWS, {}, ""),
    "a reentrant checkpoint of nothing": (
        Layers, lambda: Layers(lambda self, y: torch.utils.checkpoint.checkpoint(lambda t: t, y.detach(),
                                                                                 use_reentrant=True)),
        ROWS, {}, "a.weight is trained by the program, and PyTorch computes no gradient for it"),
    "one of two outputs": (None, Halved, ROWS, {"loss": "mse:output=right"}, ""),
    "an output of two": (None, Halved, ROWS, {"loss": "mse"}, "say which by"),
    "an unknown key": (None, Layers, ROWS, {"loss": "cross_entropy:bar=2"}, "'bar' is given twice, or is none of"),
    "a key without a number": (None, Layers, ROWS, {"loss": "cross_entropy:axis=b"}, "axis='b' is no number"),
    "an input that is no sample": (None, Placed, PAIR, {"labels": torch.zeros(2, 5, 3)}, ""),
    "an input that is said to be no sample": (None, Placed, PAIR, {"labels": torch.zeros(2, 5, 3), "const": ["places"]},
                                              ""),
    "an input that is not there": (None, Placed, PAIR, {"labels": torch.zeros(2, 5, 3), "const": ["where"]},
                                   "const= names where"),
    "a file that a flag makes readable": (None, Narrow, ROWS, {"flags": ["--freeze=^c$"]},
                                          "c is trained by PyTorch, and not by the program"),
    "dropout by a flag": (None, lambda: Layers(lambda self, y: F.dropout(y)), ROWS, {"flags": ["--dropout=on"]}, ""),
    "dropout by two words": (None, lambda: Layers(lambda self, y: F.dropout(y)), ROWS, {"flags": ["--dropout", "on"]}, ""),
    "a flag of check's own": (None, Layers, ROWS, {"flags": ["--optimizer=adamw"]}, "is what check sets itself"),
}


def checked(compiler, work, name, exporter):
    exported, build, args, options, say = CHECKS[name]
    torch.manual_seed(0)
    module, path = build(), work / "checked.onnx"
    other = exported() if exported else module
    other.load_state_dict(module.state_dict())
    shardc.export(other, args, path, exporter)
    options = {"loss": "mse", "labels": WIDE, **options}
    before = [(p, torch.full_like(p, 3)) for p in module.parameters()]
    for p, gradient in before:
        p.grad = gradient
    try:
        report = shardc.check(module, args, path, shardc=compiler, show=False, **options)
    except shardc.CheckError as e:
        if not say or say not in str(e):
            raise Failed(str(e)) from None
        return
    if say not in str(report) or not say and not report or "warning" in report.said:
        raise Failed(f"wanted {say!r}\n{report}\n{report.said}")
    if any(p.dtype == torch.float64 or p.grad is not g or g.dtype != p.dtype or (g != 3).any() for p, g in before):
        raise Failed("the module was changed")


def main():
    compiler, work = sys.argv[1], pathlib.Path(sys.argv[2])
    names = [a for a in sys.argv[3:] if a != "--quick"] or [*(QUICK if "--quick" in sys.argv else FAULTS), *CHECKS]
    work.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    exporters = ("torchscript",) if "--quick" in sys.argv else ("torchscript", "dynamo")
    failed = 0
    for exporter in exporters:
        for name in names:
            try:
                (checked if name in CHECKS else attempt)(compiler, work, name, exporter)
            except Exception as e:
                failed += 1
                told = e if isinstance(e, Failed) else traceback.format_exc()
                print(f"FAIL {name} by {exporter}: {told}", flush=True)
    total = len(exporters) * len(names)
    print(f"faults: {total - failed} of {total} as they should be")
    sys.exit(failed > 0 or not total)


if __name__ == "__main__":
    main()
