"""usage: test_keras.py SHARDC FOLDER      Keras models, exported by shardc.keras, beside Keras itself"""
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import common  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import onnx  # noqa: E402
import tensorflow as tf  # noqa: E402
from common import BATCH, LR, STEPS, integers, numbers  # noqa: E402
from keras import layers  # noqa: E402

import shardc.keras  # noqa: E402

keras.utils.set_random_seed(1)


def mlp(rate=0.0):
    return keras.Sequential([layers.Input((20,), name="x"), layers.Dense(32, "relu"), layers.Dropout(rate),
                             layers.BatchNormalization(), layers.Dense(5)])


def cnn():
    return keras.Sequential([
        layers.Input((16, 16, 3), name="x"), layers.Conv2D(8, 3, padding="same", use_bias=False),
        layers.BatchNormalization(momentum=0.9), layers.ReLU(), layers.MaxPooling2D(),
        layers.Conv2D(16, 3, strides=2, padding="same", activation="relu"), layers.DepthwiseConv2D(3, padding="same"),
        layers.GlobalAveragePooling2D(), layers.Dense(5)])


def transformer():
    ids = layers.Input((12,), dtype="int32", name="x")
    x = layers.Embedding(50, 16)(ids)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
    x = layers.LayerNormalization()(x + layers.Dense(16)(layers.Dense(32, "gelu")(x)))
    return keras.Model(ids, layers.Dense(5)(layers.GlobalAveragePooling1D()(x)))


def recurrent(layer):
    return keras.Sequential([layers.Input((12,), dtype="int32", name="x"), layers.Embedding(50, 16), layer, layers.Dense(5)])


def tied():
    """One table as embedding and as head, a frozen layer, and a value whose gradient ends."""
    ids = layers.Input((12,), dtype="int32", name="x")
    table = layers.Embedding(50, 16)
    frozen = layers.Dense(16, trainable=False)
    x = table(ids)
    x = x + frozen(keras.layers.Lambda(keras.ops.stop_gradient)(x))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(ids, layers.Lambda(lambda v: keras.ops.matmul(v, keras.ops.transpose(table.embeddings)))(x))


def in_keras(model, x, labels):
    optimizer = keras.optimizers.SGD(LR)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses = []
    for i in range(0, len(x), BATCH):
        with tf.GradientTape() as tape:
            loss = loss_of(labels[i:i + BATCH], model(x[i:i + BATCH], training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        losses.append(float(loss))
    return losses


def weights(model):
    return {v.path: v.numpy().copy() for v in model.weights if "float" in str(v.dtype)}


def trains(checks, name, model, x, classes=5, options=()):
    labels = integers(classes, len(x))
    path, before = checks.work / f"keras-{name}.onnx", weights(model)
    shardc.keras.export(model, path)
    checks.check(all(np.array_equal(v, before[k]) for k, v in weights(model).items()), f"{name}: the model changed")
    losses, out = checks.train(path, {"x": x, "labels": labels}, options=options)
    theirs = in_keras(model, x, labels)
    reference = weights(model)
    shardc.keras.load(model, out)
    checks.same(name, losses, theirs, weights(model), reference)


def main():
    checks = common.Checks("keras", *sys.argv[1:3])
    n = STEPS * BATCH
    trains(checks, "mlp", mlp(), numbers(n, 20))
    trains(checks, "cnn", cnn(), numbers(n, 16, 16, 3))
    trains(checks, "transformer", transformer(), integers(50, n, 12, dtype=np.int32))
    trains(checks, "lstm", recurrent(layers.LSTM(24)), integers(50, n, 12, dtype=np.int32))
    trains(checks, "both-ways", recurrent(layers.Bidirectional(layers.LSTM(12))), integers(50, n, 12, dtype=np.int32))
    trains(checks, "gru", recurrent(layers.GRU(20)), integers(50, n, 12, dtype=np.int32))
    trains(checks, "tied", tied(), integers(50, n, 12, dtype=np.int32), classes=50)

    path = checks.work / "keras-dropout.onnx"
    shardc.keras.export(mlp(0.25), path)
    drops = [node for node in onnx.load(path).graph.node if node.op_type == "Dropout"]
    checks.check(len(drops) == 1, "a Dropout layer drops values")
    checks.train(path, {"x": numbers(n, 20), "labels": integers(5, n)})

    noisy = keras.Sequential([layers.Input((20,)), layers.GaussianNoise(0.1), layers.Dense(5)])
    checks.refused("noise", lambda: shardc.keras.export(noisy, path), "GaussianNoise")
    checks.refused("f16", lambda: shardc.keras.export(
        keras.Sequential([layers.Input((20,)), layers.Dense(5, dtype="float16")]), path), "float16")
    other = mlp()
    checks.refused("weights of another model", lambda: shardc.keras.load(cnn(), path), "of another model")
    del other
    checks.finish()


main()
