"""usage: test_sklearn.py SHARDC FOLDER      scikit-learn's networks, exported by shardc.sklearn, beside scikit-learn"""
import sys
import warnings

import common
import numpy as np
from common import BATCH, LR, STEPS, integers, numbers
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import shardc.sklearn

warnings.simplefilter("ignore")
PLAIN = {"solver": "sgd", "alpha": 0, "momentum": 0, "learning_rate_init": LR, "shuffle": False, "random_state": 0}


def trains(checks, name, model, x, y, loss, labels, factor=1.0, **first):
    """factor: scikit-learn's loss over ours, which the rate of ours makes good"""
    model.partial_fit(x[:BATCH], y[:BATCH], **first)
    path = checks.work / f"sklearn-{name}.onnx"
    shardc.sklearn.export(model, x[:3], path)
    losses, out = checks.train(path, {"X": x, "labels" if loss == "cross_entropy" else "target": labels}, lr=LR * factor,
                               loss=loss)
    theirs = []
    for i in range(0, len(x), BATCH):
        model.partial_fit(x[i:i + BATCH], y[i:i + BATCH])
        theirs.append(model.loss_ / factor)
    reference = {h.name: h.value for h in shardc.sklearn.weights_of(model)}
    shardc.sklearn.load(model, out)
    checks.same(name, losses, theirs, {h.name: h.value for h in shardc.sklearn.weights_of(model)}, reference)


def main():
    checks = common.Checks("sklearn", *sys.argv[1:3])
    n = STEPS * BATCH
    x, y = numbers(n, 20), integers(3, n)
    trains(checks, "classes", MLPClassifier((16, 8), **PLAIN), x, y, "cross_entropy", y, classes=[0, 1, 2])
    trains(checks, "tanh", MLPClassifier((16,), activation="tanh", **PLAIN), x, y, "cross_entropy", y, classes=[0, 1, 2])
    two = integers(2, n)
    trains(checks, "two", MLPClassifier((16,), activation="logistic", **PLAIN), x, two, "bce_with_logits",
           two[:, None].astype(np.float32), classes=[0, 1])
    trains(checks, "values", MLPRegressor(hidden_layer_sizes=(16,), **PLAIN), x, x[:, 0], "mse", x[:, :1].copy(), factor=0.5)

    path = checks.work / "sklearn-refused.onnx"
    checks.refused("a pipeline", lambda: shardc.sklearn.export(
        make_pipeline(StandardScaler(), MLPClassifier((4,))).fit(x, y), x, path), "pipeline[-1]")
    checks.refused("another estimator", lambda: shardc.sklearn.export(LogisticRegression().fit(x, y), x, path),
                   "LogisticRegression")
    checks.refused("no weights", lambda: shardc.sklearn.export(MLPClassifier(), x, path), "partial_fit")
    checks.check(not path.exists(), "a refused export writes nothing")
    checks.finish()


main()
