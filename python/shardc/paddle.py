"""Exports Paddle layers (by paddle2onnx), and takes what was trained back.

    shardc.paddle.export(layer, specs, "model.onnx")       specs: paddle.static.InputSpec of each input
    shardc.paddle.load(layer, "trained.onnx")              what `shardc ckpt export CKPT --onnx model.onnx -o trained.onnx` wrote

A weight is called as in state_dict().  Paddle exports in inference: batch norms train as in train() unless they use
global statistics; dropout is refused, as the graph has no trace of it."""
import pathlib
import tempfile

import numpy as np
import onnx

from . import weights as w
from .errors import ExportError


def export(layer, specs, path, *, examples=None, opset=17):
    """Writes a Paddle layer to the ONNX file `path`.

    examples: a list of arrays, one for each input, with which the file is compared; default: drawn ones, small
    integers where they are integers.  The layer's weights and mode are as they were when this returns.
    Raises ExportError, with what to change, and writes nothing then.  Returns the notes, as a list of texts."""
    import paddle
    refuse(layer)
    tensors = floats_of(layer)
    statistics = {id(t) for m in norms_of(layer).values() for t in (m._mean, m._variance)}
    parameters = {id(p) for p in layer.parameters()} - statistics
    held = [w.Weight(name, t.numpy().copy(), "parameter" if id(t) in parameters else "buffer", not t.stop_gradient)
            for name, t in tensors.items()]

    def set_weights(arrays):
        for t, a in zip(tensors.values(), arrays):
            t.set_value(a)

    examples = examples if examples is not None else [drawn(s) for s in specs]
    training = layer.training
    layer.eval()
    try:
        with paddle.no_grad():
            result = layer(*[paddle.to_tensor(e) for e in examples])
        wanted = [t.numpy() for t in (result if isinstance(result, (list, tuple)) else [result])]
        graph, notes = w.named(held, lambda: converted(layer, specs, opset), set_weights, "paddle", "paddle2onnx", True)
    finally:
        if training:
            layer.train()
    w.name_batch(graph)
    w.compare(graph, {i.name: e for i, e in zip(graph.graph.input, examples)}, wanted)
    norms_train(graph, layer)
    onnx.checker.check_model(graph)
    onnx.save(graph, pathlib.Path(path))
    return notes


def load(layer, path):
    """Sets the weights of a Paddle layer to those of the ONNX file `path`."""
    tensors = floats_of(layer)
    stored = w.trained_values(path, [w.Weight(name, t.numpy()) for name, t in tensors.items()])
    for name, t in tensors.items():
        t.set_value(stored[name])


def floats_of(layer):
    """{name: tensor} of state_dict(), each tensor once."""
    found, seen = {}, set()
    for name, t in layer.state_dict().items():
        if "float" in str(t.dtype) and id(t) not in seen:
            seen.add(id(t))
            found[name] = t
    return found


def norms_of(layer):
    """{name of its running mean: batch norm}"""
    import paddle
    return {f"{name}._mean" if name else "_mean": m for name, m in layer.named_sublayers(include_self=True)
            if isinstance(m, paddle.nn.layer.norm._BatchNormBase)}


def refuse(layer):
    drops = [f"{name or 'layer'} ({type(m).__name__})" for name, m in layer.named_sublayers(include_self=True)
             if "Dropout" in type(m).__name__ and getattr(m, "p", 0)
             or isinstance(getattr(m, "dropout", None), float) and m.dropout]
    if drops:
        raise ExportError(f"{', '.join(drops)} drops values in training, of which paddle2onnx leaves no trace: set the "
                          "rate to 0")


def drawn(spec):
    shape = [n if n and n > 0 else 3 for n in spec.shape]
    random = np.random.RandomState(0)
    name = str(spec.dtype).rsplit(".", 1)[-1]
    return random.randint(0, 2, shape).astype(name) if "int" in name else random.randn(*shape).astype(name)


def converted(layer, specs, opset):
    import paddle
    with tempfile.TemporaryDirectory() as folder:
        paddle.onnx.export(layer, f"{folder}/model", input_spec=specs, opset_version=opset, optimize_tool=None)
        return onnx.load(f"{folder}/model.onnx")


def norms_train(model, layer):
    """Batch norms use the batch's statistics, and keep running ones as Paddle does."""
    layers, found = norms_of(layer), set()
    for graph in w.graphs_of(model.graph):
        for n in graph.node:
            m = layers.get(n.input[3]) if n.op_type == "BatchNormalization" else None
            if m is None:
                continue
            found.add(n.input[3])
            if not m._use_global_stats:
                w.train_norm(n, m._momentum)
    lost = [name for name, m in layers.items() if not m._use_global_stats and name not in found]
    if lost:
        raise ExportError(f"paddle2onnx makes no BatchNormalization of {', '.join(lost)}, which would not train as in "
                          "Paddle")
