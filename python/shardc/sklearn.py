"""Exports multi-layer perceptrons of scikit-learn (by skl2onnx), and takes what was trained back.

    shardc.sklearn.export(estimator, x, "model.onnx")      a fitted MLPClassifier or MLPRegressor; x: some samples
    shardc.sklearn.load(estimator, "trained.onnx")         what `shardc ckpt export CKPT --onnx model.onnx -o trained.onnx` wrote

The graph's only output are the numbers in front of the last softmax or sigmoid, `logits`, which the losses
cross_entropy (labels: indices into classes_) and bce_with_logits (two classes; labels f32[N,1]) read; of a regressor it
is `prediction`, for mse.  scikit-learn's penalty alpha is no part of the graph: --weight-decay."""
import pathlib

import numpy as np
import onnx
from onnx import helper

from . import weights as w
from .errors import ExportError


def export(estimator, x, path, opset=17):
    """Writes the network to the ONNX file `path`.

    Raises ExportError, with what to change, and writes nothing then.  Returns the notes, as a list of texts."""
    check(estimator)
    x = np.ascontiguousarray(x, np.float32)
    held = weights_of(estimator)
    before = estimator.coefs_, estimator.intercepts_

    def set_weights(arrays):
        layers = len(before[0])
        estimator.coefs_, estimator.intercepts_ = list(arrays[:layers]), list(arrays[layers:])

    try:
        wanted = scores(estimator, x)
        graph, notes = w.named(held, lambda: converted(estimator, x, opset), set_weights, "sklearn", "skl2onnx", True)
    finally:
        estimator.coefs_, estimator.intercepts_ = before
    w.name_batch(graph)
    w.compare(graph, {graph.graph.input[0].name: x}, [wanted])
    onnx.checker.check_model(graph)
    onnx.save(graph, pathlib.Path(path))
    if before[0][0].dtype != np.float32:
        notes.append(f"weights are {before[0][0].dtype} in scikit-learn, and float32 in the file")
    return notes


def load(estimator, path):
    """Sets the weights of a fitted estimator to those of the ONNX file `path`."""
    check(estimator)
    stored = w.trained_values(path, weights_of(estimator))
    for name in ("coefs_", "intercepts_"):
        old = getattr(estimator, name)
        setattr(estimator, name, [stored[f"{name}.{i}"].astype(v.dtype) for i, v in enumerate(old)])


def check(estimator):
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import Pipeline
    if isinstance(estimator, Pipeline):
        raise ExportError("a Pipeline: export its last step, pipeline[-1], and write pipeline[:-1].transform(x) into the "
                          "data")
    if not isinstance(estimator, (MLPClassifier, MLPRegressor)):
        raise ExportError(f"{type(estimator).__name__} is not trained by gradients here: MLPClassifier and MLPRegressor "
                          "are; a linear model is one with hidden_layer_sizes=()")
    if not hasattr(estimator, "coefs_"):
        raise ExportError(f"{type(estimator).__name__} has no weights yet: call partial_fit once")


def weights_of(estimator):
    return [w.Weight(f"{name}.{i}", np.array(v, np.float32)) for name in ("coefs_", "intercepts_")
            for i, v in enumerate(getattr(estimator, name))]


def scores(estimator, x):
    """What the network computes in front of its last function, by scikit-learn's layers."""
    saved, estimator.out_activation_ = estimator.out_activation_, "identity"
    try:
        return np.asarray(estimator._forward_pass_fast(x)).reshape(len(x), -1)
    finally:
        estimator.out_activation_ = saved


def converted(estimator, x, opset):
    from skl2onnx import to_onnx
    classifies = hasattr(estimator, "classes_")
    model = to_onnx(estimator, x[:1], target_opset=opset, options={id(estimator): {"zipmap": False}} if classifies else None)
    return cut(model, "logits" if classifies else "prediction", len(estimator.coefs_))


def cut(model, name, layers):
    """The graph up to the sum of the last layer, its only output."""
    sums = [n for n in model.graph.node if n.op_type == "Add"]
    if len(sums) < layers:
        raise ExportError(f"skl2onnx made {len(sums)} sums for {layers} layers: this graph is not known here")
    last = sums[layers - 1]
    wanted, kept = {last.output[0]}, []
    for node in reversed(model.graph.node):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= set(node.input)
    last.output[0] = name
    w.replace(model.graph.node, reversed(kept))
    w.replace(model.graph.initializer, [t for t in model.graph.initializer if t.name in wanted])
    w.replace(model.graph.output, [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, None])])
    return model
