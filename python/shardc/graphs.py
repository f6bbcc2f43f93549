"""The exported graph made right: names, initializers, the marker operator; and questions to a graph."""
import ast
import json
import re

import onnx
import torch
from onnx import AttributeProto, TensorProto, external_data_helper, helper, numpy_helper

from .errors import ExportError
from .tracing import ROOT

DOMAIN = "shardc"


def subgraphs(node):
    for a in node.attribute:
        if a.type == AttributeProto.GRAPH:
            yield a.g
        elif a.type == AttributeProto.GRAPHS:
            yield from a.graphs


def graphs_of(graph):
    """A graph, and those inside its nodes."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs_of(inner)


# ---- names ----

def without_root(name):
    """A name as it would be had the module itself been exported."""
    if name.startswith(f"/{ROOT}/"):
        return name[len(ROOT) + 1:]
    return name.removeprefix(f"{ROOT}.")


def rename_values(model, new_name):
    """new_name(old) for every value of the graph and its subgraphs; equal operands stay equal."""
    for graph in graphs_of(model.graph):
        for value in [*graph.input, *graph.output, *graph.value_info, *graph.initializer]:
            value.name = new_name(value.name)
        for node in graph.node:
            for i, name in enumerate(node.input):
                node.input[i] = new_name(name)
            for i, name in enumerate(node.output):
                node.output[i] = new_name(name)


def drop_root(model, held, outer):
    """Names without our wrapper's; a tensor has its first name under all of them.

    outer: names of the graph's inputs and outputs, which keep them.  Raises when one is a tensor's name, too."""
    first = {alias: h.name for h in held for alias in [h.name, *h.aliases]}
    clash = [name for name in outer if name in first]
    if clash:
        raise ExportError(f"{', '.join(clash)}: an input or output and a tensor of the module have this name; give "
                          "other input_names= or output_names=")
    stored = {t.name for t in model.graph.initializer}

    def new_name(name):
        if name in stored and name.startswith(f"{ROOT}."):
            plain = without_root(name)
            return first.get(plain, plain)
        plain = name if name in outer else without_root(name)
        return f"{plain}_value" if plain in first else plain

    rename_values(model, new_name)
    for graph in graphs_of(model.graph):
        for node in graph.node:
            node.name = without_root(node.name)
            tidy_metadata(node)
        for value in graph.value_info:
            tidy_metadata(value)
    once = {}
    for t in model.graph.initializer:
        once.setdefault(t.name, t)
    replace(model.graph.initializer, list(once.values()))


def tidy_metadata(proto):
    kept = []
    for p in proto.metadata_props:
        if p.key == "pkg.torch.onnx.stack_trace":  # names files of the exporting machine
            continue
        if p.key == "pkg.torch.onnx.name_scopes":
            scopes = [without_root(s) for s in ast.literal_eval(p.value) if s != ROOT]
            p.value = repr(scopes)
        elif p.key == "pkg.torch.onnx.class_hierarchy":
            p.value = repr([c for c in ast.literal_eval(p.value) if not c.startswith("shardc.")])
        else:
            p.value = p.value.replace(f"{ROOT}.", "").replace(f"p_{ROOT}_", "p_").replace(ROOT, "")
        kept.append(onnx.StringStringEntryProto(key=p.key, value=p.value))
    replace(proto.metadata_props, kept)


def replace(repeated, items):
    items = [type(i).FromString(i.SerializeToString()) for i in items]
    del repeated[:]
    repeated.extend(items)


def name_dimensions(model, dynamic):
    """Symbolic dimensions have the names that they were given; dynamic: {input: {axis: name}}."""
    names = {}
    for value in model.graph.input:
        for axis, name in dynamic.get(value.name, {}).items():
            names[value.type.tensor_type.shape.dim[axis].dim_param] = name
    names.pop("", None)
    if not names:
        return
    symbol = re.compile(r"\b(" + "|".join(re.escape(n) for n in names) + r")\b")
    for graph in graphs_of(model.graph):
        for value in [*graph.input, *graph.output, *graph.value_info]:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.dim_param = symbol.sub(lambda m: names[m.group()], dim.dim_param)


def fx_node(node):
    return next((p.value for p in node.metadata_props if p.key == "pkg.torch.onnx.fx_node"), "")


def mark_training_norms(model):
    """Batch norms by the batch's statistics say so: the dynamo exporter leaves that to its metadata."""
    for graph in graphs_of(model.graph):
        for node in graph.node:
            told = fx_node(node)
            if node.op_type != "BatchNormalization" or "batch_norm" not in told or "no_training" in told:
                continue
            replace(node.attribute, [a for a in node.attribute if a.name != "training_mode"])
            node.attribute.append(helper.make_attribute("training_mode", 1))
            while len(node.output) < 3:
                node.output.append(f"{node.output[0]}_statistic_{len(node.output)}")


def drop_wrong_biases(model):
    """The dynamo exporter gives a convolution of volumes without bias one of zeros of a wrong shape, which no runtime
    takes: an Expand of a constant zero."""
    makers = {n.output[0]: n for n in model.graph.node if n.output}

    def expanded_zero(name):
        seen = set()
        while name in makers and makers[name].op_type in ("Expand", "CastLike", "Cast"):
            seen.add(makers[name].op_type)
            name = makers[name].input[0]
        constant = makers.get(name)
        return "Expand" in seen and constant is not None and constant.op_type == "Constant" and not any(
            numpy_helper.to_array(a.t).any() if a.name == "value" else a.f for a in constant.attribute)

    for node in model.graph.node:
        if node.op_type in ("Conv", "ConvTranspose") and len(node.input) > 2 and expanded_zero(node.input[2]):
            del node.input[2:]


def correct_wrong_casts(model):
    """The TorchScript exporter takes PyTorch's number of bfloat16, where it stands as a number, for ONNX's of the same
    value, which is that of complex128.  No model with complex128 gets so far: it has no operator for one."""
    for graph in graphs_of(model.graph):
        for node in graph.node:
            if node.op_type == "Cast" and cast_to(node) == TensorProto.COMPLEX128:
                replace(node.attribute, [helper.make_attribute("to", TensorProto.BFLOAT16)])


# ---- the marker ----

def declare_marker(model):
    """A function whose body is Identity, so that any runtime can run the file; no Identity beside a marker."""
    if not any(n.domain == DOMAIN for g in graphs_of(model.graph) for n in g.node):
        drop_opset(model)
        return
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    for graph in graphs_of(model.graph):
        past_identities(graph)
    kept = [f for f in model.functions if f.domain != DOMAIN]
    replace(model.functions, kept)
    model.functions.append(helper.make_function(
        DOMAIN, "StopGradient", ["x"], ["y"], [helper.make_node("Identity", ["x"], ["y"])],
        [helper.make_opsetid("", opset)]))
    drop_opset(model)
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    model.ir_version = max(model.ir_version, 8)


def past_identities(graph):
    """A marker reads what the Identity before it read: the exporter's trace of detach()."""
    copies = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Identity" and n.domain == ""}
    for n in graph.node:
        while n.domain == DOMAIN and n.input[0] in copies:
            n.input[0] = copies[n.input[0]]


def drop_opset(model):
    replace(model.opset_import, [o for o in model.opset_import if o.domain != DOMAIN])


# ---- initializers ----

def uses_of(graph):
    """Names that nodes read, or that are results of the graph, in it and its subgraphs."""
    used = {o.name for g in graphs_of(graph) for o in g.output}
    return used | {name for g in graphs_of(graph) for n in g.node for name in n.input}


def drop_unused(model):
    """Nodes that nothing needs, then initializers that no node uses."""
    while True:
        used = uses_of(model.graph)
        kept = [n for n in model.graph.node if any(o in used for o in n.output)]
        if len(kept) == len(model.graph.node):
            break
        replace(model.graph.node, kept)
    replace(model.graph.initializer, [t for t in model.graph.initializer if t.name in used])


def take_values(model, held, folder):
    """Initializers hold the module's own values, in its layout.  Raises where the exporter changed one."""
    tensors = {h.name: h for h in held}
    problems = []
    for t in model.graph.initializer:
        if external_data_helper.uses_external_data(t):
            external_data_helper.load_external_data_for_tensor(t, str(folder))
            t.data_location = TensorProto.DEFAULT
            del t.external_data[:]
        h = tensors.get(t.name)
        if h is None:
            continue
        if list(t.dims) != list(h.tensor.shape):
            problems.append(f"{h.name} of shape {list(h.tensor.shape)} became {list(t.dims)}")
        elif h.kind == "buffer":  # tracing in train mode moves a norm's statistics, which the file is not to hold
            t.CopyFrom(numpy_helper.from_array(as_array(h.tensor), t.name))
        elif not same_values(t, h.tensor):
            problems.append(f"{h.name} has other values in the exported file")
    if problems:
        raise ExportError(f"the exporter changed {'; '.join(problems)}")


def add_unused(model, held):
    """Parameters and saved buffers that the graph does not use: a trained model is to be loaded with all its names.
    PyTorch does without the count of batches."""
    stored = {t.name for t in model.graph.initializer}
    for h in held:
        if h.name in stored or h.name.endswith("num_batches_tracked"):
            continue
        if h.kind == "parameter" or (h.kind == "buffer" and h.persistent):
            model.graph.initializer.extend(numpy_helper.from_array(as_array(h.tensor), name)
                                           for name in (h.name, *h.aliases) if name not in stored)


def as_array(tensor):
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes  # which onnx needs for such tensors, too
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def same_values(proto, tensor):
    return numpy_helper.to_array(proto).tobytes() == as_array(tensor).tobytes()


def set_metadata(model, value):
    kept = [p for p in model.metadata_props if p.key != DOMAIN]
    replace(model.metadata_props, kept)
    helper.set_model_props(model, {**{p.key: p.value for p in kept}, DOMAIN: json.dumps(value)})


def metadata(model):
    """What `shardc.export` wrote, or None."""
    for p in model.metadata_props:
        if p.key == DOMAIN:
            return json.loads(p.value)
    return None


# ---- which tensors a result depends on ----

# Ops through which no gradient passes, and operands that only choose.
NO_GRADIENT = frozenset("""StopGradient Shape Size ArgMax ArgMin Equal Greater Less GreaterOrEqual LessOrEqual And
    Or Not Xor IsNaN IsInf NonZero ConstantOfShape RandomNormalLike RandomUniformLike EyeLike Bernoulli OneHot
    Range""".split())
CHOOSERS = {"Gather": (1,), "GatherElements": (1,), "GatherND": (1,), "Where": (0,), "ScatterElements": (1,),
            "ScatterND": (1,), "CastLike": (1,), "Reshape": (1,), "Expand": (1,), "Slice": (1, 2, 3, 4), "Tile": (1,),
            "TopK": (1,), "BatchNormalization": (), "Unsqueeze": (1,), "Squeeze": (1,), "Split": (1,)}
INTEGERS = frozenset([TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.INT16, TensorProto.UINT8,
                      TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64, TensorProto.BOOL])


def reached(graph):
    """output name -> names of initializers whose values a gradient of this output reaches."""
    source = {o: n for n in graph.node for o in n.output if o}
    leaves = {t.name for t in graph.initializer}
    return {o.name: walk(o.name, source, leaves) for o in graph.output}


def walk(name, source, leaves):
    found, seen, left = set(), set(), [name]
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in leaves:
            found.add(name)
        elif name in source:
            left += passed(source[name], name)
    return found


def passed(node, result):
    """Operands of a node to which the gradient of a result goes."""
    if node.op_type in NO_GRADIENT or node.op_type == "Cast" and cast_to(node) in INTEGERS:
        return []
    if node.op_type in ("TopK", "MaxPool") and result != node.output[0]:
        return []
    inner = [name for g in subgraphs(node) for name in uses_of(g)]
    return [name for i, name in enumerate(node.input) if i not in CHOOSERS.get(node.op_type, ())] + inner


def cast_to(node):
    return next(a.i for a in node.attribute if a.name == "to")


# ---- what an exporter writes and the compiler refuses ----

BY_VALUE = ("NonZero", "Unique", "Compress")


def refused_later(model, trained):
    """Notes.  trained: parameters, as Held."""
    nodes = [n for g in graphs_of(model.graph) for n in g.node]
    ratios = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if not t.dims}
    ratios |= {n.output[0]: numpy_helper.to_array(n.attribute[0].t) for n in nodes
               if n.op_type == "Constant" and n.attribute[0].name == "value"}
    notes = []
    kinds = sorted({n.op_type for n in nodes if n.op_type in BY_VALUE})
    if kinds:
        notes.append(f"shardc will refuse the file: how long the result of {', '.join(kinds)} is depends on values; use "
                     "masks (torch.where with three arguments), and a static capacity for each expert of a mixture "
                     "(docs/export.md, Mixtures of experts)")
    if any(n.op_type == "Dropout" and len(n.input) > 1 and ratios.get(n.input[1], 0) >= 1 for n in nodes):
        notes.append("shardc will refuse the file: a dropout has the rate 1, which leaves nothing; multiply by 0 "
                     "instead")
    other = [h for h in trained if h.tensor.dtype != torch.float32]
    if other:
        what = ", ".join(f"{h.name} is {str(h.tensor.dtype).removeprefix('torch.')}" for h in other[:3])
        notes.append(f"shardc trains parameters of float32 alone and will refuse the file: {what}; call module.float() "
                     "before the export, and give --param-dtype to the compiler for 16-bit computing")
    return notes
