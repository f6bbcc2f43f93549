"""shardc.export: a module as an ONNX file that says all that the graph alone does not."""
import dataclasses
import pathlib
import shutil
import tempfile
import warnings

import numpy as np
import onnx
import torch

from . import comparing, drawing, graphs, state, values
from .errors import ExportError
from .exporters import EXPORTERS, run_exporter, shortened
from .functions import Functions
from .tracing import Root
from .watching import Undropped, memory, watched

MOVES = 3  # runs by which it is found what rounding does
SAME = 1e-5  # of its norm: what threads may change in a result
EXTERNAL_FROM = 1 << 30  # bytes of weights above which they lie in a file of their own


@dataclasses.dataclass
class Exported:
    """What was written."""
    path: pathlib.Path
    inputs: list          # names
    outputs: list
    parameters: int       # that are trained and that the graph uses; not their elements
    error: float          # of outputs against PyTorch's, relative to their norm; None when they were not compared
    notes: list           # what a reader should know


@dataclasses.dataclass
class Reference:
    """What the module computes, with dropout off."""
    calls: list           # (inputs, outputs)
    names: list           # of outputs
    left_out: list
    depends: dict         # output name -> ids of parameters to which its gradient goes
    dropped: list         # rates of dropout, in order


def export(module, args, path, exporter="dynamo", *, kwargs=None, input_names=None, output_names=None, outputs=None,
           dynamic_batch=False, dynamic=None, opset=None, external_data=None, compare=True, tolerance=None):
    """Writes `module`, called with `args`, to the ONNX file `path`, for shardc.

    args           a tensor, a tuple of positional arguments, or a mapping of keyword arguments; kwargs: further ones.
                   What is no tensor among them is a constant of the export.
    exporter       "dynamo" or "torchscript", of PyTorch
    outputs        names of those results that are wanted, as ["logits"] of a dataclass; default: all tensors
    output_names   other names for them; input_names: of the tensors among the arguments, in their order
    dynamic_batch  the first axis of inputs is as long as --bind batch=N says; dynamic: {input: {axis: name}}
    external_data  weights in a file beside `path`; default: when they are above 1 GiB
    compare        runs the file in onnxruntime or ONNX's reference evaluator and compares the outputs
    tolerance      largest error of an output over its norm

    The module is exported in the mode it is in, module by module, and is left as it was.  Raises ExportError, with
    what to change, and writes nothing then.  Returns Exported."""
    if exporter not in EXPORTERS:
        raise ExportError(f'exporter="{exporter}" is not one of {", ".join(EXPORTERS)}')
    if not isinstance(module, torch.nn.Module):
        raise ExportError(f"{type(module).__name__} is no torch.nn.Module")
    path = pathlib.Path(path)
    if not path.parent.is_dir():
        raise ExportError(f"{path.parent} is no folder")
    held = state.tensors_of(module)
    state.refuse(module, held)
    arguments = values.arguments_of(module, args, kwargs, input_names)
    if not arguments.tensors:
        raise ExportError("the call has no tensor: its inputs are what the program reads as data")
    dynamic = dynamic_axes(arguments, dynamic_batch, dynamic, exporter)
    with state.unchanged(module) as parameters, \
            tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        job = Job(module, arguments, held, exporter, pathlib.Path(folder), outputs, dynamic)
        job.measure(parameters, output_names)
        model = job.exported(opset)
        off = job.compared(model, tolerance) if compare else None
        job.write(model, path, external_data)
    for note in job.notes:
        warnings.warn(f"shardc.export: {note}", stacklevel=2)
    return Exported(path, arguments.names, job.names, len(job.trained(model)), off, job.notes)


def dynamic_axes(arguments, batch, dynamic, exporter):
    """{input: {axis: name}}, checked."""
    axes = {name: dict(a) for name, a in (dynamic or {}).items()}
    unknown = [name for name in axes if name not in arguments.names]
    if unknown:
        raise ExportError(f"dynamic= names {', '.join(unknown)}; the inputs are {', '.join(arguments.names)}")
    if batch:
        first = next((t.shape[0] for t in arguments.tensors if t.dim()), None)
        for name, t in zip(arguments.names, arguments.tensors):
            if t.dim() and t.shape[0] == first:
                axes.setdefault(name, {}).setdefault(0, batch if isinstance(batch, str) else "batch")
    for name, t in zip(arguments.names, arguments.tensors):
        for axis in axes.get(name, {}):
            if not 0 <= axis < t.dim():
                raise ExportError(f"dynamic= names axis {axis} of {name}, which has {t.dim()}")
            if exporter == "dynamo" and t.shape[axis] < 2:
                raise ExportError(f"axis {axis} of {name} is {t.shape[axis]} long: the dynamo exporter takes that for "
                                  "a constant; give example arguments of at least 2 there")
    return axes


class DoesNotRun(ExportError):
    """The module does not take these arguments."""


class Job:
    """One export."""

    def __init__(self, module, arguments, held, exporter, folder, outputs, dynamic):
        self.module, self.arguments, self.held, self.exporter, self.folder = module, arguments, held, exporter, folder
        self.outputs, self.dynamic, self.notes = outputs, dynamic, []
        self.functions = Functions(module.parameters())
        self.spreads = {}  # of calls: how far rounding moves each output
        self.modules, self.training = state.modules_of(module), module.training

    def measure(self, parameters, output_names):
        """The module run by PyTorch on the arguments, and on others, from the same state."""
        tensors = self.arguments.tensors
        results, dropped = self.measured(tensors, parameters)
        depends = {n: gradient_goes_to(t) for n, t in zip(results.names, results.tensors)}
        other = self.measured_on_others(parameters, all(is_finite(t) for t in results.tensors))
        calls = [(tensors, [t.detach() for t in results.tensors]), other]
        self.reference = Reference(calls, results.names, results.left_out, depends, dropped)
        self.names = list(output_names or results.names)
        if len(self.names) != len(results.names):
            raise ExportError(f"output_names has {len(self.names)} names, forward returns {len(results.names)} "
                              f"tensors: {', '.join(results.names)}")
        self.note_what_shows()

    def measured(self, tensors, parameters):
        """(results, rates of dropout) of a run that changes nothing."""
        with state.attributes_unchanged(self.module):
            before = state.copied_buffers(self.module)
            results, mode = self.called(tensors)
            state.refuse_changes(self.module, parameters, before)
        return results, mode.dropped

    def measured_on_others(self, parameters, finite):
        """(arguments, outputs) of a second call: on other numbers and other lengths of the free axes, or on what of
        that the module takes, with a note.  finite: whether the outputs of the first call are, so that these have to
        be."""
        tensors, why = self.arguments.tensors, ""
        longer = [{axis: tensors[i].shape[axis] + 1 for axis in self.dynamic.get(name, {})}
                  for i, name in enumerate(self.arguments.names)]
        free = any(longer)
        length = ["another length of its free axes"] if free else []
        tries = [(drawing.drawn(tensors, longer), [])] if free else []
        tries += [(drawing.drawn(tensors, [{}] * len(tensors)), length),
                  (drawing.permuted(tensors), [*length, "other numbers"]),
                  (tensors, [*length, "other numbers", "its samples in another order"])]
        for others, missed in tries:
            try:
                results, _ = self.measured(others, parameters)
            except DoesNotRun as e:
                why = why or str(e)
                continue
            if finite and not all(is_finite(t) for t in results.tensors):
                why = why or "an output is not finite"
                continue
            if missed:
                self.notes.append(f"the file is not compared on {', '.join(missed)}: {why}")
            return others, [t.detach() for t in results.tensors]
        raise ExportError(f"the module runs once with these arguments, and not twice: {why}")

    def called(self, tensors):
        """(results of the module with dropout off, the mode that watched it)"""
        parameters = {memory(p): name for name, p in self.module.named_parameters() if memory(p)}
        before = drawing.states()
        try:
            with torch.enable_grad(), watched(Undropped(parameters), self.functions.tried) as mode:
                value = self.arguments.call(self.module, [t.clone() for t in tensors])
            drawing.refuse_draws(before)
            return values.results_of(value, self.outputs), mode
        except ExportError:
            raise
        except Exception as e:
            raise DoesNotRun(f"the module does not run with these arguments: {type(e).__name__}: {e}") from e

    def moved(self, call, output):
        """By how much of its norm an output of a call moves when the last bits of inputs and parameters do: what
        rounding may do to it."""
        if call not in self.spreads:
            self.spreads[call] = [0.0] * len(self.names)
            self.refuse_other_results(call)
            for seed in range(MOVES):
                self.move(call, seed)
        return self.spreads[call][output]

    def refuse_other_results(self, call):
        """A module whose results differ from run to run, by draws that are not seen, is not one that rounding moves."""
        tensors, wanted = self.reference.calls[call]
        with state.attributes_unchanged(self.module):
            results, _ = self.called(tensors)
        for name, got, want in zip(self.names, results.tensors, wanted):
            off = comparing.error(comparing.array(got), comparing.array(want))
            if off > SAME:
                raise ExportError(f"{name} is another each time that forward runs on the same arguments, by {off:.1e} of "
                                  "its norm: a graph keeps one of them; draw with torch, or give what differs as an input")

    def move(self, call, seed):
        (tensors, wanted), spread = self.reference.calls[call], self.spreads[call]
        with state.attributes_unchanged(self.module), state.last_bits_moved(self.module, seed) as generator:
            results, _ = self.called([state.moved(t, generator) for t in tensors])
        for i, (got, want) in enumerate(zip(results.tensors, wanted)):
            off = comparing.error(comparing.array(got), comparing.array(want))
            spread[i] = max(spread[i], off if np.isfinite(off) else 0.0)

    def note_what_shows(self):
        if self.reference.left_out:
            self.notes.append(f"left out of the outputs, as no tensors: {', '.join(self.reference.left_out)}")
        dropouts = [name for name, m in self.modules.items() if m.get("dropout")]
        norms = [name for name, m in self.modules.items() if "Norm" in m["class"]]
        if not self.training and (dropouts or norms):
            self.notes.append("exported in eval mode: dropout is absent and batch norms use their stored statistics; "
                              "call module.train() first if the program is to train as PyTorch would")
        frozen = [h.name for h in self.held if h.kind == "parameter" and not h.tensor.requires_grad]
        if frozen:
            self.notes.append(f"frozen, by requires_grad: {shortened(frozen)}")

    def exported(self, opset):
        root = Root(self.module, self.arguments, self.functions, self.outputs)
        raw = self.folder / "exported.onnx"
        with state.attributes_unchanged(self.module), torch.enable_grad():
            self.notes += run_exporter(self.exporter, root, self.arguments, self.names, raw, self.dynamic, opset)
        model = onnx.load(raw, load_external_data=False)
        graphs.drop_root(model, self.held, [*self.arguments.names, *self.names])
        graphs.name_dimensions(model, self.dynamic)
        graphs.mark_training_norms(model)
        graphs.drop_wrong_biases(model)
        graphs.correct_wrong_casts(model)
        graphs.declare_marker(model)
        graphs.drop_unused(model)
        graphs.take_values(model, self.held, self.folder)
        graphs.add_unused(model, self.held)
        used = {t.name for t in model.graph.initializer}
        graphs.set_metadata(model, state.described(self.held, self.training, self.exporter, self.modules, used))
        self.same_dependence(model)
        self.same_dropout(model)
        self.notes += graphs.refused_later(model, self.trained(model))
        return model

    def same_dependence(self, model):
        """The graph's results depend on the parameters on which PyTorch's do."""
        found, lost, leaks = graphs.reached(model.graph), {}, {}
        for ours, theirs in zip(self.names, self.reference.names):
            for h in self.held:
                if h.kind != "parameter" or not h.tensor.requires_grad:
                    continue
                there, here = id(h.tensor) in self.reference.depends[theirs], h.name in found.get(ours, ())
                if there and not here:
                    lost.setdefault(h.name, ours)
                elif here and not there:
                    leaks.setdefault(h.name, ours)
        if lost:
            outputs = ", ".join(sorted(set(lost.values())))
            raise ExportError(f"the exported graph has lost parameters on which {outputs} depends: "
                              f"{shortened(list(lost))}; forward turns them into numbers (.item(), .tolist(), "
                              f"numpy), or the {self.exporter} exporter folded them: compute with tensors, or use the "
                              "other exporter")
        if leaks:
            raise ExportError(f"in the exported graph a gradient of {', '.join(sorted(set(leaks.values())))} goes to "
                              f"{shortened(list(leaks))}, where PyTorch's stops: forward stops it in a way that is not "
                              "seen here; use detach() or torch.no_grad()")

    def same_dropout(self, model):
        """Every dropout of the module is a Dropout that trains."""
        trains = [n for g in graphs.graphs_of(model.graph) for n in g.node if n.op_type == "Dropout"]
        rates = [p for p in self.reference.dropped]
        if len(trains) < len(rates):
            raise ExportError(f"forward drops values {len(rates)} times, the exported graph {len(trains)} times: one "
                              "lies in a function that is not seen here; use nn.Dropout or F.dropout")

    def compared(self, model, tolerance):
        kinds = comparing.random_ops(model)
        if kinds:
            self.notes.append(f"outputs were not compared, as the model draws random numbers ({', '.join(kinds)})")
            return None
        quiet = comparing.quiet(model)
        file = self.folder / "quiet.onnx"
        save(quiet, file, total_bytes(quiet) > EXTERNAL_FROM)
        worst, rounded = comparing.compare(quiet, file, self.arguments.names, self.reference.calls, self.names,
                                           tolerance, self.moved)
        self.notes += rounded
        return worst

    def write(self, model, path, external):
        """The finished file, and nothing before it is finished."""
        if external is None:
            external = total_bytes(model) > EXTERNAL_FROM
        done = self.folder / "finished"
        done.mkdir()
        save(model, done / path.name, external)
        data = done / data_name(path)
        if data.exists():
            shutil.move(str(data), str(path.parent / data.name))
        (done / path.name).replace(path)

    def trained(self, model):
        """Parameters that the program trains: a node of the graph reads them."""
        used = graphs.uses_of(model.graph)
        return [h for h in self.held if h.kind == "parameter" and h.tensor.requires_grad and h.name in used]


def data_name(path):
    return f"{path.name}.data"


def save(model, path, external):
    if external:
        onnx.save(model, path, save_as_external_data=True, location=data_name(path), size_threshold=1024)
    else:
        onnx.save(model, path)


def total_bytes(model):
    return sum(len(t.raw_data) for t in model.graph.initializer)


def is_finite(tensor):
    return bool(tensor.isfinite().all())


def gradient_goes_to(tensor):
    """ids of the leaves to which a gradient of the tensor goes."""
    found, seen, left = set(), set(), [tensor.grad_fn]
    if tensor.grad_fn is None and tensor.requires_grad:
        found.add(id(tensor))
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        left += [n for n, _ in node.next_functions]
    return found
