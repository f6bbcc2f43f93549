"""shardc.check: one step of the program beside one of PyTorch's."""
import contextlib
import dataclasses
import math
import pathlib
import re
import tempfile

import onnx
import torch

from . import comparing, graphs, losses, state, values
from .errors import CheckError
from .programs import Program, find_compiler
from .watching import Undropped, backward, watched

DRAWS = ("loss, gradients and buffers were not compared, as the model draws random numbers ({}), which are others in PyTorch: "
         "make them an input for that")
FACTOR = 3.0  # of PyTorch's own error in f32, within which ours is no fault
OTHER = 1e-2  # error of PyTorch's loss in f32 that is no rounding: in f64 the module computes something else


@dataclasses.dataclass
class Row:
    """A parameter: its gradient here and there."""
    name: str
    ours: float       # norms
    theirs: float
    error: float      # of the difference, relative to PyTorch's in f64
    bound: float

    @property
    def ok(self):
        return self.error <= self.bound


@dataclasses.dataclass
class Report:
    """What check found.  ok: the program trains what the module trains."""
    loss: float
    torch_loss: float
    loss_error: float
    rows: list                 # the worst first
    faults: list               # sentences; empty when ok
    said: str                  # what the compiler printed
    note: str = ""             # what the comparison could not do

    @property
    def ok(self):
        return not self.faults

    def __bool__(self):
        return self.ok

    def __str__(self):
        width = max([len(r.name) for r in self.rows] + [9])
        lines = [f"loss: program {self.loss:.9g}, PyTorch {self.torch_loss:.9g}, off by {self.loss_error:.1e}",
                 f"{'parameter':{width}}  {'gradient':>10}  {'PyTorch':>10}  {'error':>8}"]
        lines += [f"{r.name:{width}}  {r.ours:10.4g}  {r.theirs:10.4g}  {r.error:8.1e}{'' if r.ok else '  <- differs'}"
                  for r in self.rows]
        lines += [f"note: {self.note}"] if self.note else []
        lines += [f"fault: {f}" for f in self.faults]
        return "\n".join(lines + ["the program trains what the module trains" if self.ok else
                                  f"the program does not train what the module trains: {len(self.faults)} faults"])


def check(module, args, path, loss, labels=None, *, kwargs=None, input_names=None, outputs=None, const=None,
          shardc=None, flags=(), tolerance=1e-3, limit=600, show=True):
    """Compiles the ONNX file `path`, runs one step on `args`, and compares with PyTorch's loss and gradients.

    loss       as shardc's --loss: "cross_entropy", "mse", "l1", "bce_with_logits" with labels=, or "output:NAME"
    const      names of inputs that are the same for all samples; default: those whose first axis is not as long as the
               labels' (without labels: as the file's axis of a free length, else as that of the first input)
    shardc     the compiler; default: SHARDC, the search path, the tree of this package; flags: further ones for it
    tolerance  largest error of a gradient, relative to its norm; rounding that PyTorch has in f32, too, is no fault
    limit      seconds for the compiler and for the program

    Dropout is off on both sides for the numbers; its rates are compared.  Of a model that draws random numbers, which are
    others in PyTorch, no numbers are compared: a note says so, and the rest is compared as ever.  Prints the table, the
    worst gradient first, unless show is false, and returns a Report.  The module is left as it was."""
    arguments = values.arguments_of(module, args, kwargs, input_names)
    held = state.tensors_of(module)
    flags = [str(f) for f in flags]
    refuse_own(flags)
    with tempfile.TemporaryDirectory(prefix="shardc-check-") as folder:
        program = Program(find_compiler(shardc), path, pathlib.Path(folder), limit, const)
        tensors = inputs_of(program, arguments, loss, labels)
        rates = dropout_rates(program.ir(tensors, "canon", *flags))
        quiet = without(flags, "--dropout") + ["--dropout=off"] * bool(rates)
        program.compile(tensors, loss, "--optimizer=sgd:momentum", *quiet)
        theirs = Reference(module, held, arguments, loss, labels, outputs, program)
        found, model, optimizer = program.train(tensors, 1, "--lr", 0, "--momentum", 0.9, "--weight-decay", 0)
    first = {alias: h.name for h in held for alias in [h.name, *h.aliases]}
    ours = {first.get(n, n): t for n, t in ((k.removesuffix(".momentum_buffer"), t) for k, t in optimizer.items())}
    draws = comparing.random_ops(onnx.load(path, load_external_data=False))
    report = compared(theirs, found[0], ours, math.inf if draws else tolerance)
    report.said, report.note = program.said, DRAWS.format(", ".join(draws)) if draws else theirs.note
    if not draws:
        report.faults += statistics(theirs, {first.get(n, n): t for n, t in model.items()}, tolerance)
    report.faults += ties(held, path, optimizer, model)
    report.faults += dropouts(rates, theirs.dropped)
    if show:
        print(report)
    return report


OWN = ("--optimizer", "--loss", "--emit", "--stop-after", "-o")


def refuse_own(flags):
    """Raises for flags that check gives itself."""
    own = [f for f in flags if f.split("=")[0] in OWN]
    if own:
        raise CheckError(f"flags: {', '.join(own)} is what check sets itself: loss= says the loss, and one step of SGD "
                         "gives the gradients, whatever optimizer the program will have")


def without(flags, name):
    """The flags but for one of this name, with its value in the same word or the next."""
    return [f for i, f in enumerate(flags) if f.split("=")[0] != name and flags[i - 1:i] != [name]]


def dropout_rates(ir):
    return sorted(float(p) for p in re.findall(r"= dropout .*\bp=([0-9.e-]+)", ir))


def inputs_of(program, arguments, loss, labels):
    """{input of the program: tensor}; by name, or by order where a file has other names."""
    names = [i.name for i in program.inputs]
    given = dict(zip(arguments.names, arguments.tensors))
    if not set(names) <= set(given):
        if len(names) != len(given):
            raise CheckError(f"the model's inputs are {', '.join(names)}, the call has {', '.join(given)}")
        given = dict(zip(names, arguments.tensors))
    tensors = {n: given[n] for n in names}
    extra = losses.label_input(loss)
    if extra and labels is not None:
        tensors[extra] = labels
    return tensors


# ---- PyTorch's side ----

class Reference:
    """Loss and gradients by PyTorch's own autograd, in f64, and in f32 for what rounding does to PyTorch itself.

    outputs: names of the results that are wanted; program: the file, which says how they are called."""

    def __init__(self, module, held, arguments, loss, labels, outputs, program):
        self.frozen = [h.name for h in held if h.kind == "parameter" and not h.tensor.requires_grad]
        call = (module, arguments, loss, labels, outputs, program)
        single = measured(*call, None)
        self.peer_loss, self.peers, _, _ = single
        self.note = ""
        try:
            with doubled(module):
                exact = measured(*call, torch.float64)
        except (RuntimeError, TypeError, NotImplementedError) as e:  # forward makes f32 tensors of its own
            exact, self.note = single, f"PyTorch computed in f32, as the module fails in f64: {str(e).splitlines()[0]}"
        if not abs(single[0] - exact[0]) <= OTHER * abs(exact[0]):
            self.note = f"PyTorch computed in f32, as the module's loss is another in f64: {exact[0]:.9g}"
            exact = single
        self.loss, self.gradients, self.buffers, self.dropped = exact


def measured(module, arguments, loss, labels, outputs, program, dtype):
    """(loss, gradients by first names, buffers afterwards, rates of dropout)"""
    tensors = [t.to(dtype) if dtype and t.is_floating_point() else t.clone() for t in arguments.tensors]
    with state.unchanged(module), torch.enable_grad(), watched(Undropped()) as mode:
        for p in module.parameters():
            p.grad = None
        results = values.results_of(arguments.call(module, tensors), outputs)
        total = losses.value(loss, program.results(results.names, results.tensors), labels)
        if not total.requires_grad:
            raise CheckError("the loss does not depend on any parameter that requires a gradient")
        dropped = list(mode.dropped)  # a checkpoint drops again in its backward
        backward(total)
        got = {n: p.grad.double() for n, p in module.named_parameters() if p.requires_grad and p.grad is not None}
        buffers = {n: b.detach().clone().double() for n, b in module.named_buffers() if b.is_floating_point()}
    return total.item(), got, buffers, dropped


@contextlib.contextmanager
def doubled(module):
    """The module in f64 inside, with the same parameters, whose hooks are theirs, and without gradients."""
    before = [(p, p.data, p.grad) for p in module.parameters()]
    with state.attributes_unchanged(module):
        try:
            for p, _, _ in before:
                p.grad = None  # double() would make f64 of it, too
            yield module.double()
        finally:
            for p, data, gradient in before:
                p.data, p.grad = data, gradient


# ---- comparison ----

def compared(theirs, loss, ours, tolerance):
    largest = max((g.norm().item() for g in theirs.gradients.values()), default=0.0)
    rows, faults = [], []
    for name, reference in theirs.gradients.items():
        got = ours.get(name)
        if got is None:
            faults.append(f"{name} is trained by PyTorch, and not by the program")
        elif got.shape != reference.shape:
            faults.append(f"{name} has shape {list(got.shape)} in the program, {list(reference.shape)} in the module")
        else:
            rows.append(row(name, got.double(), reference, theirs.peers.get(name), largest, tolerance))
    for name in ours:
        if name in theirs.frozen:
            faults.append(f"{name} is trained by the program, and frozen in the module (requires_grad=False)")
        elif name not in theirs.gradients and name in dict(theirs.buffers):
            faults.append(f"{name} is trained by the program, and a buffer of the module")
        elif name not in theirs.gradients:
            faults.append(f"{name} is trained by the program, and PyTorch computes no gradient for it")
    rows.sort(key=lambda r: -r.error / r.bound)
    faults += [f"the gradient of {r.name} is off by {r.error:.1e} of its norm, at most {r.bound:.0e}"
               for r in rows if not r.ok]
    off = abs(loss - theirs.loss) / max(abs(theirs.loss), 1e-30)
    own = abs(theirs.peer_loss - theirs.loss) / max(abs(theirs.loss), 1e-30)
    if not off <= max(tolerance / 10, FACTOR * own):
        faults.append(f"the loss is {loss:.9g}, PyTorch's {theirs.loss:.9g}")
    return Report(loss, theirs.loss, off, rows, faults, "")


def row(name, got, reference, peer, largest, tolerance):
    """A gradient that is zero but for rounding is measured against the largest of the module."""
    norm = reference.norm().item()
    scale = norm if norm > 1e-7 * largest else largest or 1.0
    own = (peer - reference).norm().item() / scale if peer is not None else 0.0
    return Row(name, got.norm().item(), norm, (got - reference).norm().item() / scale, max(tolerance, FACTOR * own))


def statistics(theirs, model, tolerance):
    """Buffers after the step."""
    faults = []
    for name, reference in theirs.buffers.items():
        got = model.get(name)
        if got is None or got.shape != reference.shape:
            continue
        off = (got.double() - reference).norm().item() / max(reference.norm().item(), 1e-6)
        if off > tolerance:
            faults.append(f"buffer {name} is off by {off:.1e} of its norm after the step: is its module in train mode "
                          "on one side and in eval mode on the other?")
    return faults


def ties(held, path, optimizer, model):
    """A tied parameter that the program keeps in several tensors, which then go their own ways."""
    faults, names = [], {k.removesuffix(".momentum_buffer") for k in optimizer} | set(model)
    for h in held:
        several = [n for n in [h.name, *h.aliases] if n in names]
        if h.kind == "parameter" and len(several) > 1:
            faults.append(f"{' and '.join(several)} are one tensor in the module, and {len(several)} in the program")
    known = graphs.metadata(onnx.load(path, load_external_data=False))
    for entry in (known or {}).get("tensors", []):
        now = next((h for h in held if h.name == entry["name"]), None)
        if now is not None and now.kind != entry["kind"]:
            faults.append(f"{now.name} is a {now.kind} of the module, and a {entry['kind']} in the file's metadata")
    return faults


def dropouts(ours, theirs):
    theirs = sorted(theirs)
    if len(ours) == len(theirs) and all(abs(a - b) < 1e-6 for a, b in zip(ours, theirs)):
        return []

    def told(rates):
        return ", ".join(f"{p:g}" for p in rates) or "none"
    return [f"dropout: the program's rates are {told(ours)}, the module's {told(theirs)}"]
