"""Exports Keras models (TensorFlow backend, by tf2onnx), and takes what was trained back.

    shardc.keras.export(model, "model.onnx")     each weight under its path and in Keras' layout
    shardc.keras.load(model, "trained.onnx")     what `shardc ckpt export CKPT --onnx model.onnx -o trained.onnx` wrote

Keras converts models in inference: a Dropout layer becomes an identity, and a BatchNormalization layer one that keeps
its statistics.  Here these layers train as in fit(), unless they are not trainable; other layers that are random in
training are refused."""
import contextlib
import pathlib

import numpy as np
import onnx
from onnx import helper

from . import weights as w
from .errors import ExportError

DROP, STOP = "shardc dropout ", "shardc stop"  # messages of PreventGradient, which tf2onnx leaves as it is
RANDOM = ("Noise", "Dropout", "Random", "Augment", "RandAugment")


def export(model, path, *, examples=None, opset=17):
    """Writes a built Keras model to the ONNX file `path`.

    examples: a list of arrays, one for each input, with which the file is compared; default: drawn ones.
    The model's weights are as they were when this returns.  Raises ExportError, with what to change, and writes
    nothing then.  Returns the notes, as a list of texts."""
    import keras
    import tensorflow as tf
    if keras.backend.backend() != "tensorflow":
        raise ExportError(f"Keras runs on {keras.backend.backend()}: set KERAS_BACKEND=tensorflow for the export")
    refuse(model)
    variables = floats_of(model)
    held = [w.Weight(v.path, values_of(v), "parameter" if v.trainable else kind_of(v), v.trainable) for v in variables]

    def set_weights(arrays):
        for v, a in zip(variables, arrays):
            v.assign(a)

    examples = examples if examples is not None else drawn(model)
    wanted = [np.array(t) for t in tf.nest.flatten(model(nested(examples), training=False))]
    graph, notes = w.named(held, lambda: converted(model, opset), set_weights, "keras", "tf2onnx", True)
    w.name_batch(graph)
    quiet = onnx.ModelProto()
    quiet.CopyFrom(graph)
    markers_become(quiet, identity, identity)
    w.compare(quiet, {i.name: e for i, e in zip(graph.graph.input, examples)}, wanted)
    trains(graph, model)
    onnx.checker.check_model(graph)
    onnx.save(graph, pathlib.Path(path))
    return notes


def load(model, path):
    """Sets the weights of a Keras model to those of the ONNX file `path`."""
    variables = {v.path: v for v in floats_of(model)}
    held = [w.Weight(name, values_of(v)) for name, v in variables.items()]
    for name, value in w.trained_values(path, held).items():
        variables[name].assign(value)


def floats_of(model):
    """The variables that a checkpoint of the program holds: counters and seeds are none."""
    return [v for v in model.weights if "float" in str(v.dtype)]


def values_of(variable):
    """A copy: the array that a variable gives may be its own memory."""
    return variable.numpy().copy()


def kind_of(variable):
    """A variable that is not trained is a buffer where a layer keeps it so, else a frozen parameter."""
    return "buffer" if "moving_" in variable.path.rsplit("/", 1)[-1] else "parameter"


def layers_of(model):
    return list(model._flatten_layers())


def refuse(model):
    if not model.built:
        raise ExportError("the model has no shapes yet: call it once, or build() it")
    import keras
    problems = [f"layer {layer.name} ({type(layer).__name__}) is random in training: use Dropout"
                for layer in layers_of(model)
                if any(word in type(layer).__name__ for word in RANDOM)
                and not (isinstance(layer, keras.layers.Dropout) and layer.noise_shape is None)]
    problems += [f"layer {layer.name} drops values of its {what}: set {what}_dropout=0, and use a Dropout layer"
                 for layer in layers_of(model) for what in ("recurrent",)
                 if getattr(layer, "recurrent_dropout", 0)]
    problems += [f"layer {layer.name} ({type(layer).__name__}) has dropout={layer.dropout}, which is not seen here: set "
                 "it to 0, and use a Dropout layer" for layer in layers_of(model)
                 if isinstance(getattr(layer, "dropout", None), float) and layer.dropout]
    if problems:
        raise ExportError("; ".join(problems))


def nested(examples):
    return examples[0] if len(examples) == 1 else list(examples)


def drawn(model):
    """Examples for the inputs: numbers below 2 where they are integers, which any table takes."""
    random = np.random.RandomState(0)
    arrays = []
    for i in model.inputs:
        shape = tuple(n or 3 for n in i.shape)
        whole = np.issubdtype(np.dtype(i.dtype), np.integer)
        arrays.append((random.randint(0, 2, shape) if whole else random.randn(*shape)).astype(i.dtype))
    return arrays


# ---- the conversion ----

def converted(model, opset):
    import tensorflow as tf
    import tf2onnx
    names = [i.name.split(":")[0] for i in model.inputs]
    specs = [tf.TensorSpec((None, *i.shape[1:]), i.dtype, name=n) for i, n in zip(model.inputs, names)]
    with drops_marked(), unoptimized():
        function = tf.function(lambda *inputs: model(nested(inputs), training=False), input_signature=specs)
        graph, _ = tf2onnx.convert.from_function(function, input_signature=specs, opset=opset)
    complements(graph)
    return graph


@contextlib.contextmanager
def drops_marked():
    """A Dropout layer is a marker that says its rate, and a gradient's end is one; a BatchNormalization layer is one
    operation, which it is in Keras for some shapes only."""
    import keras
    import tensorflow as tf
    saved = keras.layers.Dropout.call, keras.layers.BatchNormalization.call, tf.stop_gradient

    def call(self, inputs, training=False):
        if not self.rate or not self.trainable:
            return inputs
        return tf.raw_ops.PreventGradient(input=inputs, message=f"{DROP}{self.rate!r}")

    def normalized(self, inputs, training=None, mask=None):
        rank = len(inputs.shape)
        if mask is not None or self.axis not in (-1, rank - 1):
            raise ExportError(f"layer {self.name}: only axis=-1 without a mask is exported")
        gamma = self.gamma if self.scale else tf.ones_like(self.moving_mean)
        beta = self.beta if self.center else tf.zeros_like(self.moving_mean)
        rows = inputs if rank == 4 else tf.reshape(inputs, [-1, 1, 1, inputs.shape[-1]])
        y = tf.raw_ops.FusedBatchNormV3(x=rows, scale=tf.convert_to_tensor(gamma), offset=tf.convert_to_tensor(beta),
                                        mean=tf.convert_to_tensor(self.moving_mean),
                                        variance=tf.convert_to_tensor(self.moving_variance), epsilon=self.epsilon,
                                        is_training=False).y
        return y if rank == 4 else tf.reshape(y, tf.shape(inputs))

    def stopped(input, name=None):
        return tf.raw_ops.PreventGradient(input=input, message=STOP)

    keras.layers.Dropout.call, keras.layers.BatchNormalization.call, tf.stop_gradient = call, normalized, stopped
    try:
        yield
    finally:
        keras.layers.Dropout.call, keras.layers.BatchNormalization.call, tf.stop_gradient = saved


@contextlib.contextmanager
def unoptimized():
    """tf2onnx folds batch norms into convolutions, and leaves out biases that are zero: not here."""
    from tf2onnx import optimizer
    saved, folding = optimizer._get_optimizers, ("fold_constants", "remove_back_to_back")
    optimizer._get_optimizers = lambda: {k: v for k, v in saved().items() if k not in folding}
    try:
        yield
    finally:
        optimizer._get_optimizers = saved


def complements(model):
    """tf2onnx leaves Erfc in the graph, which ONNX does not have: 1 - Erf."""
    for graph in w.graphs_of(model.graph):
        nodes = []
        for n in graph.node:
            if n.op_type != "Erfc":
                nodes.append(n)
                continue
            one, erf = f"{n.output[0]}/one", f"{n.output[0]}/erf"
            nodes += [helper.make_node("Constant", [], [one], value_float=1.0),
                      helper.make_node("Erf", list(n.input), [erf], name=f"{n.name}/erf"),
                      helper.make_node("Sub", [one, erf], list(n.output), name=n.name)]
        w.replace(graph.node, nodes)


# ---- what is different in training ----

def markers_become(model, drop, stop):
    """drop(node, rate) and stop(node): the nodes that a marker becomes."""
    for graph in w.graphs_of(model.graph):
        nodes = []
        for n in graph.node:
            message = next((a.s.decode() for a in n.attribute if a.name == "message"), "")
            if n.op_type == "PreventGradient" and message.startswith(DROP):
                nodes += drop(n, float(message.removeprefix(DROP)))
            elif n.op_type == "PreventGradient" and message == STOP:
                nodes += stop(n)
            else:
                nodes.append(n)
        w.replace(graph.node, nodes)


def identity(n, *_):
    return [helper.make_node("Identity", list(n.input), list(n.output), name=n.name)]


def dropout(n, rate):
    ratio, trains = f"{n.output[0]}/ratio", f"{n.output[0]}/trains"
    yes = helper.make_tensor("trains", onnx.TensorProto.BOOL, (), [True])
    return [helper.make_node("Constant", [], [ratio], value_float=rate),
            helper.make_node("Constant", [], [trains], value=yes),
            helper.make_node("Dropout", [n.input[0], ratio, trains], list(n.output), name=n.name)]


def stop_gradient(n):
    return [helper.make_node("StopGradient", list(n.input), list(n.output), name=n.name, domain=w.KEY)]


def trains(model, of):
    """The graph as it is in training: its dropouts, batch norms and gradients' ends."""
    markers_become(model, dropout, stop_gradient)
    w.declare_marker(model)
    norms_train(model, of)


def norms_train(model, of):
    """Batch norms that are trainable use the batch's statistics, and keep running ones as Keras does."""
    import keras
    layers = {v.path: layer for layer in layers_of(of) if isinstance(layer, keras.layers.BatchNormalization)
              for v in layer.weights}
    found = set()
    for graph in w.graphs_of(model.graph):
        for n in graph.node:
            layer = layers.get(n.input[3]) if n.op_type == "BatchNormalization" else None
            if layer is None:
                continue
            found.add(layer.name)
            if layer.trainable:
                w.train_norm(n, layer.momentum)
    missing = [layer.name for layer in layers.values() if layer.trainable and layer.name not in found]
    if missing:
        raise ExportError(f"{', '.join(sorted(set(missing)))}: tf2onnx makes no BatchNormalization of this layer, which "
                          "would not train as Keras does; use axis=-1 of 4-D values, or layer.trainable = False")
