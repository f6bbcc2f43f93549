"""Weights of a framework found again in a graph that its exporter made, by their values.

An exporter may rename, transpose, slice, join and duplicate weights, or fold them away.  Here every element of every
weight is given a number of its own, a code, before the exporter runs.  It runs twice, with two sets of codes: what
differs between the two graphs was computed from weights, and must consist of codes; what is equal is a constant.  Each
weight then becomes one initializer under the framework's name and in its layout, and nodes make of it what the graph
read.  This module knows no framework and no PyTorch."""
import dataclasses
import itertools
import json
import re

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from .errors import ExportError

FIRST = 0x40000001         # bits of the smallest code, a little above 2: no code is a number that exporters look for
BITS = 29                  # codes are below FIRST + 2^BITS, about 4e19
MOST = 1 << 28             # elements of all weights
FACTORS = (0x0F34A2B5, 0x1B873593)  # odd: k -> k * factor modulo 2^BITS spreads neighbours and can be undone
FEW = 4                    # parts into which an axis is cut where nothing tells them apart
KEY = "shardc"


@dataclasses.dataclass
class Weight:
    """A tensor of the framework, f32, as it is before the export."""
    name: str
    value: np.ndarray
    kind: str = "parameter"    # or buffer
    trained: bool = True
    begin: int = 0             # number of its first element among those of all weights


def coded(weights, turn):
    """What the weights are set to in the exporter's run `turn`, 0 or 1: arrays like their values."""
    begin = 1  # 0 has one code in all runs
    for w in weights:
        if w.value.dtype != np.float32:
            raise ExportError(f"{w.name} is {w.value.dtype}: weights are trained as float32; build the model so")
        w.begin, begin = begin, begin + w.value.size
    if begin > MOST:
        raise ExportError(f"the model has {begin} elements of weights, of which at most {MOST} can be told apart")
    return [code(np.arange(w.begin, w.begin + w.value.size), turn).reshape(w.value.shape) for w in weights]


def code(numbers, turn):
    spread = (numbers.astype(np.uint64) * np.uint64(FACTORS[turn])) & np.uint64((1 << BITS) - 1)
    return (spread.astype(np.uint32) + np.uint32(FIRST)).view(np.float32)


def numbers_of(array, turn, total):
    """The number of each element of which this is the code, -1 elsewhere."""
    spread = np.ascontiguousarray(array).view(np.uint32).astype(np.int64) - FIRST
    inverse = pow(FACTORS[turn], -1, 1 << BITS)
    numbers = (spread.astype(np.uint64) * np.uint64(inverse)) & np.uint64((1 << BITS) - 1)
    known = (spread >= 0) & (spread < 1 << BITS) & (numbers < total)
    return np.where(known, numbers.astype(np.int64), -1).reshape(array.shape)


# ---- graphs ----

def graphs_of(graph):
    yield graph
    for node in graph.node:
        for a in node.attribute:
            for inner in [a.g] if a.type == AttributeProto.GRAPH else a.graphs:
                yield from graphs_of(inner)


def tensors_of(model):
    """(graph, name, TensorProto, what holds it) of every initializer and constant node that is f32, in order."""
    for graph in graphs_of(model.graph):
        for t in graph.initializer:
            if t.data_type == TensorProto.FLOAT:
                yield graph, t.name, t, graph.initializer
        for node in graph.node:
            if node.op_type == "Constant":
                for a in node.attribute:
                    if a.name == "value" and a.t.data_type == TensorProto.FLOAT:
                        yield graph, node.output[0], a.t, graph.node


def without_counters(name):
    """Sorts the tensors of two runs alike: exporters count on in the second."""
    return re.sub(r"\d+", "#", name), [int(n) for n in re.findall(r"\d+", name)]


def only_in(model, other):
    """What tensors_of gives of a model whose contents the other one has nowhere."""
    def content(t):
        return tuple(t.dims), numpy_helper.to_array(t).tobytes()

    there = {content(t) for _, _, t, _ in tensors_of(other)}
    return sorted((t for t in tensors_of(model) if content(t[2]) not in there), key=lambda t: without_counters(t[1]))


def replace(field, values):
    values = list(values)
    del field[:]
    field.extend(values)


class Joined:
    """A model, and the weights that its tensors are made of."""

    def __init__(self, weights, first, second):
        self.weights, self.model = weights, first
        self.total = 1 + sum(w.value.size for w in weights)
        self.begins = np.array([w.begin for w in weights])
        self.nodes, self.made, self.used = [], {}, set()
        self.inserted, self.taken = [], {w.name for w in weights}
        self.find(second)

    def find(self, second):
        ours, theirs = only_in(self.model, second), only_in(second, self.model)
        if [list(t.dims) for _, _, t, _ in ours] != [list(t.dims) for _, _, t, _ in theirs]:
            raise ExportError("two runs of the exporter gave two graphs: what it makes depends on values of weights")
        drop, renamed, problems = {}, {}, []
        for (graph, name, t, where), (_, _, other, _) in zip(ours, theirs):
            a, b = numpy_helper.to_array(t), numpy_helper.to_array(other)
            try:
                renamed[name] = self.value_of(name, self.number(a, b, name), a)
            except ExportError as e:
                problems.append(str(e))
            drop.setdefault(id(where), (where, set()))[1].add(name)
        if problems:
            raise ExportError("; ".join(problems))
        for where, names in drop.values():
            replace(where, [x for x in where if (x.name if isinstance(x, TensorProto) else list(x.output)[0]
                                                 if x.op_type == "Constant" else None) not in names])
        self.rename(renamed)

    def number(self, a, b, name):
        """Of each element the number of the weight's element that it is; -1: it is a constant."""
        first, second = numbers_of(a, 0, self.total), numbers_of(b, 1, self.total)
        same = a.view(np.uint32) == b.view(np.uint32)
        found = np.where(same, -1, first)
        if a.shape != b.shape or ((first != second) & ~same).any() or ((found < 0) & ~same).any():
            raise ExportError(f"{name} {list(a.shape)} of the graph was computed from weights, so that they are lost: "
                              "export without folding of constants and of batch norms")
        return found

    def rename(self, renamed):
        for graph in graphs_of(self.model.graph):
            clash = [v.name for v in [*graph.input, *graph.initializer] if v.name in self.taken]
            clash += [o for n in graph.node for o in n.output if o in self.taken]
            if clash:
                raise ExportError(f"{', '.join(clash)}: a value of the graph has the name of a weight; give the input "
                                  "or the layer another name")
            for node in graph.node:
                for i, name in enumerate(node.input):
                    node.input[i] = renamed.get(name, name)
            for output in graph.output:
                if output.name in renamed:
                    raise ExportError(f"output {output.name} is a weight, and depends on no input")
        replace(self.model.graph.node, [*self.nodes, *self.model.graph.node])

    # ---- a tensor of the graph as nodes on weights ----

    def node(self, op, inputs, hint, **attributes):
        key = (op, tuple(inputs), json.dumps(attributes, sort_keys=True))
        if key not in self.made:
            name = self.fresh(f"{hint}/{op}")
            self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
            self.made[key] = name
        return self.made[key]

    def fresh(self, name):
        plain, count = name, 0
        while name in self.taken:
            count += 1
            name = f"{plain}_{count}"
        self.taken.add(name)
        return name

    def constant(self, array):
        key = ("constant", array.dtype.str, array.shape, array.tobytes())
        if key not in self.made:
            self.made[key] = self.fresh("shardc/constant")
            self.inserted.append(numpy_helper.from_array(array, self.made[key]))
        return self.made[key]

    def value_of(self, name, numbers, stored):
        """The value whose elements are those with these numbers, and where they have none, as stored."""
        if (numbers < 0).all():
            return self.constant(np.ascontiguousarray(stored))
        whole = self.of_one(name, numbers)
        return whole if whole is not None else self.by_parts(name, numbers, stored)

    def of_one(self, name, numbers):
        """The value as a box of one weight, its axes in another order; None: it is none."""
        if not numbers.size or numbers.min() < 0:
            return None
        at = int(np.searchsorted(self.begins, numbers.flat[0], side="right")) - 1
        while not self.weights[at].value.size:
            at -= 1
        w = self.weights[at]
        inside = numbers - w.begin
        if inside.min() < 0 or inside.max() >= w.value.size:
            return None
        shape = w.value.shape
        where = [np.unravel_index(f(inside), shape) if shape else () for f in (np.min, np.max)]
        box = [(int(lo), int(hi) + 1) for lo, hi in zip(*where)]
        part = np.arange(w.value.size).reshape(shape)[tuple(slice(*b) for b in box)]
        if part.size != numbers.size:
            return None
        for order in itertools.permutations(range(len(shape))):
            if np.array_equal(part.transpose(order).reshape(numbers.shape), inside):
                self.used.add(w.name)
                return self.boxed(w, box, order, part.transpose(order).shape, numbers.shape)
        return None

    def boxed(self, w, box, order, shape, wanted):
        value = w.name
        cut = [i for i, (b, n) in enumerate(zip(box, w.value.shape)) if b != (0, n)]
        if cut:
            ends = [self.constant(np.array([box[i][k] for i in cut], np.int64)) for k in (0, 1)]
            value = self.node("Slice", [value, *ends, self.constant(np.array(cut, np.int64))], w.name)
        moved = [i for i in order if w.value.shape[i] != 1]
        if moved != sorted(moved):
            value = self.node("Transpose", [value], w.name, perm=list(order))
        else:
            shape = tuple(hi - lo for lo, hi in box)
        if shape != wanted:
            value = self.node("Reshape", [value, self.constant(np.array(wanted, np.int64))], w.name)
        return value

    def by_parts(self, name, numbers, stored):
        """The value as parts along an axis, each of one weight or constant."""
        few = [a for a in range(numbers.ndim) if 1 < numbers.shape[a] <= FEW]  # two directions have one step between them
        tries = [(a, cuts_of(numbers, a)) for a in range(numbers.ndim)] + [(a, [*range(1, numbers.shape[a])]) for a in few]
        for axis, cuts in tries:
            if not cuts:
                continue
            parts = [self.value_of(name, *p) for p in zip(np.split(numbers, cuts, axis), np.split(stored, cuts, axis))]
            return self.node("Concat", parts, name, axis=axis)
        raise ExportError(f"{name} {list(numbers.shape)} of the graph is made of elements of weights in an order that "
                          "is not known here")


def cuts_of(numbers, axis):
    """Where along an axis one part ends and another begins: where the step from one index to the next changes."""
    rows = np.moveaxis(numbers, axis, 0).reshape(numbers.shape[axis], -1)
    cuts, step = [], None
    for i in range(1, len(rows)):
        now = rows[i] - rows[i - 1]
        one_kind = ((rows[i] < 0) == (rows[i - 1] < 0)).all()
        if step is None and one_kind:
            step = now
        elif not one_kind or not np.array_equal(now, step):
            cuts.append(i)
            step = None
    return cuts


# ---- the file ----

def named(weights, convert, set_weights, framework, exporter, training):
    """The model that convert() makes, with each weight as one initializer.

    set_weights(arrays) gives the weights, in their order, other values; they have their own again when this returns or
    raises.  Returns (ModelProto, notes).  Raises ExportError where a weight is lost that is trained."""
    try:
        models = []
        for turn in (0, 1):
            set_weights(coded(weights, turn))
            models.append(convert())
    finally:
        set_weights([w.value for w in weights])
    joined = Joined(weights, *models)
    model, notes = joined.model, []
    unused = [w for w in weights if w.name not in joined.used]
    lost = [w.name for w in unused if w.kind == "parameter" and w.trained]
    if lost:
        notes.append(f"the graph does not read {', '.join(lost)}, which therefore do not train")
    replace(model.graph.initializer, [*[numpy_helper.from_array(np.ascontiguousarray(w.value), w.name) for w in weights],
                                      *joined.inserted, *model.graph.initializer])
    kept = {o for g in graphs_of(model.graph) for n in g.node for o in n.output}
    replace(model.graph.value_info, [v for v in model.graph.value_info if v.name in kept])
    describe(model, weights, framework, exporter, training)
    return model, notes


def describe(model, weights, framework, exporter, training):
    """The metadata that the compiler reads (docs/export.md)."""
    tensors = []
    for w in weights:
        entry = {"name": w.name, "kind": w.kind, "shape": list(w.value.shape), "dtype": "float32",
                 "requires_grad": w.kind == "parameter" and w.trained, "aliases": [], "initializer": w.name}
        if w.kind == "buffer":
            entry["persistent"] = True
        tensors.append(entry)
    value = {"format": 1, "framework": framework, "exporter": exporter, "training": training, "modules": {},
             "tensors": tensors}
    kept = {p.key: p.value for p in model.metadata_props if p.key != KEY}
    del model.metadata_props[:]
    helper.set_model_props(model, {**kept, KEY: json.dumps(value)})


def declare_marker(model):
    """A function whose body is Identity, so that any runtime can run a file with StopGradient nodes."""
    if not any(n.domain == KEY for g in graphs_of(model.graph) for n in g.node):
        return
    opset = next(o for o in model.opset_import if o.domain in ("", "ai.onnx"))
    model.functions.append(helper.make_function(
        KEY, "StopGradient", ["x"], ["y"], [helper.make_node("Identity", ["x"], ["y"])], [opset]))
    model.opset_import.append(helper.make_opsetid(KEY, 1))
    model.ir_version = max(model.ir_version, 8)


def train_norm(node, momentum):
    """A BatchNormalization node uses the batch's statistics, and keeps momentum * old + (1 - momentum) * new."""
    replace(node.attribute, [a for a in node.attribute if a.name not in ("training_mode", "momentum")])
    node.attribute.extend([helper.make_attribute("training_mode", 1), helper.make_attribute("momentum", float(momentum))])
    replace(node.output, [node.output[0], f"{node.output[0]}/mean", f"{node.output[0]}/variance"])


def name_batch(model):
    """The first axis of each input and output that has no length is `batch`."""
    for value in [*model.graph.input, *model.graph.output]:
        shape = value.type.tensor_type.shape
        if shape.dim and not shape.dim[0].HasField("dim_value"):
            shape.dim[0].dim_param = "batch"


def trained_values(path, weights):
    """{name: array} of the weights in the ONNX file that `shardc ckpt export` wrote.

    Raises ExportError when one is not there or has another shape."""
    model = onnx.load(path)
    stored = {t.name: t for t in model.graph.initializer}
    wrong = [w.name for w in weights
             if w.name not in stored or tuple(stored[w.name].dims) != w.value.shape]
    if wrong:
        raise ExportError(f"{path} has no {', '.join(wrong)} of these shapes: it is of another model")
    return {w.name: numpy_helper.to_array(stored[w.name]) for w in weights}


def compare(model, feeds, wanted, tolerance=1e-4):
    """Raises when the file computes anything else than the framework did.  feeds: {input: array}; wanted: arrays in
    the order of the outputs.  Returns the largest error, over the norm of the output."""
    from onnx.reference import ReferenceEvaluator
    try:
        import onnxruntime
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except ImportError:
        session = ReferenceEvaluator(model)
    worst = 0.0
    for output, got, want in zip(model.graph.output, session.run(None, feeds), wanted):
        if got.shape != want.shape:
            raise ExportError(f"output {output.name} is {list(got.shape)}, the framework's {list(want.shape)}")
        off = float(np.linalg.norm(got.astype(np.float64) - want) / max(np.linalg.norm(want.astype(np.float64)), 1e-30))
        worst = max(worst, off)
        if not off <= tolerance:
            raise ExportError(f"output {output.name} of the file is off by {off:.1e} of the framework's norm")
    return worst
