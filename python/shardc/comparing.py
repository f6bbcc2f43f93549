"""The exported graph in an independent runtime, against the module, with dropout off on both sides."""
import warnings

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from .errors import ExportError
from .graphs import DOMAIN, graphs_of, replace

BOUND = {"float32": 1e-4, "float64": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
ROUNDINGS = 10  # times what a last bit does to the module itself, within which an output is no other
RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")


def random_ops(model):
    return sorted({n.op_type for g in graphs_of(model.graph) for n in g.node if n.op_type in RANDOM})


def quiet(model):
    """A copy without dropout, markers and training batch norms, which runtimes for inference do not all have."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for graph in graphs_of(copy.graph):
        nodes = []
        for n in graph.node:
            nodes += quiet_node(n)
        replace(graph.node, nodes)
        for v in list(graph.value_info):
            graph.value_info.remove(v)
    del copy.functions[:]
    replace(copy.opset_import, [o for o in copy.opset_import if o.domain != DOMAIN])
    return copy


def quiet_node(n):
    if n.op_type == "Dropout" or n.domain == DOMAIN:
        return [helper.make_node("Identity", [n.input[0]], [n.output[0]])]
    if n.op_type == "BatchNormalization" and attribute(n, "training_mode", 0):
        return batch_norm(n)
    return [n]


def attribute(node, name, default):
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def batch_norm(n):
    """The norm by the batch's statistics, as an InstanceNormalization of one sample that has all elements of a channel:
    [N, C, ..] -> [N, C, S] -> [C, N, S] -> [1, C, N S], normalised, and back."""
    x, scale, bias = n.input[:3]
    y = n.output[0]
    made = []

    def add(op, *operands, **attributes):
        made.append(helper.make_node(op, operands, [f"{y}/statistics/{len(made)}"], **attributes))
        return made[-1].output[0]

    def ints(*items):
        return add("Constant", value=numpy_helper.from_array(np.array(items, np.int64)))

    shape = add("Shape", x)
    rows = add("Transpose", add("Reshape", add("Unsqueeze", x, ints(-1)), ints(0, 0, -1)), perm=[1, 0, 2])
    one = add("Unsqueeze", add("Reshape", rows, ints(0, -1)), ints(0))
    normed = add("InstanceNormalization", one, scale, bias, epsilon=attribute(n, "epsilon", 1e-5))
    back = add("Transpose", add("Reshape", normed, add("Shape", rows)), perm=[1, 0, 2])
    add("Reshape", back, shape)
    made[-1].output[0] = y
    return made


def run(model, path, inputs):
    """Outputs by an independent runtime: onnxruntime where it is installed and has all operators, else ONNX's own."""
    try:
        return run_onnxruntime(path, inputs)
    except Exception:  # not installed, or an operator that it lacks: errors of either kind are of many classes
        from onnx.reference import ReferenceEvaluator
    known = {i.name for i in model.graph.input}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ReferenceEvaluator(model).run(None, {k: v for k, v in inputs.items() if k in known})


def run_onnxruntime(path, inputs):
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    known = {i.name for i in session.get_inputs()}
    return session.run(None, {k: v for k, v in inputs.items() if k in known})


def array(tensor):
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def error(got, wanted):
    """Norm of the difference over norm of what is wanted; infinite where one is finite and the other is not."""
    got, wanted = np.asarray(got, np.float64).ravel(), np.asarray(wanted, np.float64).ravel()
    if got.shape != wanted.shape:
        return np.inf
    finite = np.isfinite(wanted)
    if (np.isfinite(got) != finite).any():
        return np.inf
    norm = np.linalg.norm(wanted[finite])
    return np.linalg.norm(got[finite] - wanted[finite]) / (norm if norm > 0 else 1)


def problem(name, got, want, bound, moved):
    """(relative error, what is wrong or None, whether only rounding excuses it); moved(): how far rounding alone moves
    PyTorch's own result, asked where the result is off by more than the bound."""
    if tuple(np.shape(got)) != tuple(want.shape):
        return 0.0, f"{name} has shape {list(np.shape(got))}, PyTorch's {list(want.shape)}", False
    off = error(got, array(want)) if want.numel() else 0.0
    if off <= bound:
        return off, None, False
    own = ROUNDINGS * moved()
    if off <= own:
        return off, None, True
    least = f"{bound:.0e}" + (f", or {own:.0e} for what rounding does to PyTorch's own" if own > bound else "")
    return off, f"{name} is off by {off:.1e} of its norm, at most {least}", False


def compare(model, path, names, calls, output_names, tolerance=None, moved=lambda call, output: 0.0):
    """calls: (inputs, PyTorch's outputs) of each call.  moved(call, output): by how much of its norm rounding moves
    that output, both by index.  Returns the largest error of those that are no rounding, and sentences about those
    that are; raises where an output differs."""
    worst, problems, rounded = 0.0, [], {}
    for call, (inputs, wanted) in enumerate(calls):
        try:
            results = run(model, path, dict(zip(names, map(array, inputs))))
        except Exception as e:
            raise ExportError(f"the exported model does not run: {type(e).__name__}: {str(e)[:600]}"
                              + (advice([(call, "")]) if call else "")) from e
        for i, (name, got, want) in enumerate(zip(output_names, results, wanted)):
            bound = tolerance or BOUND.get(str(want.dtype).removeprefix("torch."), 0)
            off, wrong, excused = problem(name, got, want, bound, lambda: moved(call, i))
            if wrong:
                problems.append((call, wrong))
            elif excused:
                rounded[name] = max(off, rounded.get(name, 0.0))
            else:
                worst = max(worst, off)
    if problems:
        raise ExportError("the exported model computes something else than the module: "
                          + "; ".join(dict.fromkeys(text for _, text in problems)) + advice(problems))
    return worst, [f"{name} is off by {off:.1e} of its norm, which is rounding: it is nearly zero beside the numbers "
                   "that it comes from, or depends on their last bits" for name, off in rounded.items()]


def advice(problems):
    if {call for call, _ in problems} == {1}:
        return (". The batch of the export agrees, one of other numbers or length does not: forward turned a tensor or "
                "a length into a Python number or took a branch by its value, which an export keeps as it was. Compute "
                "with tensors: torch.where, x.shape[0] for len(x)")
    return ". The exporter wrote another computation: try the other one, or export parts of the module to find which"
