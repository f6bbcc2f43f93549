"""usage: test_paddle.py SHARDC FOLDER      Paddle layers, exported by shardc.paddle, beside Paddle itself"""
import sys

import common
import paddle
from common import BATCH, LR, STEPS, integers, numbers
from paddle import nn
from paddle.static import InputSpec

import shardc.paddle

paddle.seed(0)


class Transformer(nn.Layer):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 16), nn.Linear(16, 5)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0)

    def forward(self, ids):
        return self.head(self.block(self.table(ids)).mean(1))


def mlp():
    return nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))


def cnn():
    return nn.Sequential(nn.Conv2D(3, 8, 3, padding=1, bias_attr=False), nn.BatchNorm2D(8), nn.ReLU(), nn.MaxPool2D(2),
                         nn.Conv2D(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


def in_paddle(layer, x, labels):
    layer.train()
    optimizer, losses = paddle.optimizer.SGD(LR, parameters=layer.parameters()), []
    for i in range(0, len(x), BATCH):
        loss = nn.functional.cross_entropy(layer(paddle.to_tensor(x[i:i + BATCH])), paddle.to_tensor(labels[i:i + BATCH]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses


def weights(layer):
    return {name: t.numpy().copy() for name, t in shardc.paddle.floats_of(layer).items()}


def trains(checks, name, layer, x, spec, options=()):
    labels = integers(5, len(x))
    path = checks.work / f"paddle-{name}.onnx"
    shardc.paddle.export(layer, [spec], path)
    losses, out = checks.train(path, {"x": x, "labels": labels}, options=options)
    theirs = in_paddle(layer, x, labels)
    reference = weights(layer)
    shardc.paddle.load(layer, out)
    checks.same(name, losses, theirs, weights(layer), reference)


def main():
    checks = common.Checks("paddle", *sys.argv[1:3])
    n = STEPS * BATCH
    trains(checks, "mlp", mlp(), numbers(n, 20), InputSpec([None, 20], "float32", "x"))
    trains(checks, "cnn", cnn(), numbers(n, 3, 16, 16), InputSpec([None, 3, 16, 16], "float32", "x"))
    trains(checks, "transformer", Transformer(), integers(50, n, 12), InputSpec([None, 12], "int64", "x"))

    path = checks.work / "paddle-refused.onnx"
    checks.refused("dropout", lambda: shardc.paddle.export(
        nn.Sequential(nn.Linear(20, 5), nn.Dropout(0.1)), [InputSpec([None, 20], "float32", "x")], path), "Dropout")
    checks.refused("weights of another model", lambda: shardc.paddle.load(
        mlp(), checks.work / "paddle-cnn.onnx"), "of another model")
    checks.check(not path.exists(), "a refused export writes nothing")
    checks.finish()


main()
