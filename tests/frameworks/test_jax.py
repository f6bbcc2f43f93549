"""usage: test_jax.py SHARDC FOLDER      JAX functions, exported by shardc.jax, beside JAX itself"""
import sys

import common
import jax
import jax.numpy as jnp
import numpy as np
from common import BATCH, LR, STEPS, integers, numbers
from flax import nnx

import shardc.jax

jax.config.update("jax_default_matmul_precision", "highest")


def plain():
    """Nested dictionaries and a list, by hand."""
    params = {"layers": [{"w": numbers(20, 32, seed=2) / 4, "b": np.zeros(32, np.float32)}], "head": numbers(32, 5) / 5}

    def apply(p, x):
        return jnp.tanh(x @ p["layers"][0]["w"] + p["layers"][0]["b"]) @ p["head"]
    return params, apply


class Cnn(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.second = nnx.Conv(8, 16, (3, 3), strides=(2, 2), rngs=rngs)
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.head = nnx.Linear(16, 5, rngs=rngs)

    def __call__(self, x):
        x = nnx.avg_pool(nnx.relu(self.first(x)), window_shape=(2, 2), strides=(2, 2))
        return self.head(self.norm(nnx.gelu(self.second(x))).mean((1, 2)))


class Transformer(nnx.Module):
    def __init__(self, rngs):
        self.table = nnx.Embed(50, 16, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(num_heads=2, in_features=16, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.up, self.down = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 16, rngs=rngs)

    def __call__(self, ids):
        x = self.table(ids)
        x = x + self.attention(self.norm(x))
        x = x + self.down(nnx.gelu(self.up(x)))
        return self.table.attend(x.mean(1))  # the table is the head, too


def of_flax(module):
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    return params, lambda p, x: nnx.merge(graph, p, rest)(x)


def in_jax(params, apply, x, labels, frozen):
    def loss_of(p, xb, lb):
        logits = jax.nn.log_softmax(apply(p, xb))
        return -jnp.take_along_axis(logits, lb[:, None], 1).mean()

    losses, step = [], jax.value_and_grad(loss_of)
    for i in range(0, len(x), BATCH):
        loss, gradient = step(params, x[i:i + BATCH], labels[i:i + BATCH])
        params = jax.tree.map_with_path(
            lambda path, p, g: p if any(str(f) in jax.tree_util.keystr(path) for f in frozen) else p - LR * g, params, gradient)
        losses.append(float(loss))
    return losses, params


def named(params):
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return dict(zip(shardc.jax.names_of(leaves), [np.asarray(v) for _, v in leaves]))


def trains(checks, name, params, apply, x, classes=5, frozen=()):
    labels = integers(classes, len(x))
    path = checks.work / f"jax-{name}.onnx"
    shardc.jax.export(apply, params, (x[:3],), path, frozen=frozen)
    losses, out = checks.train(path, {"in_0": x, "labels": labels})
    theirs, reference = in_jax(params, apply, x, labels, frozen)
    checks.same(name, losses, theirs, named(shardc.jax.load(params, out)), named(reference))


def main():
    checks = common.Checks("jax", *sys.argv[1:3])
    n = STEPS * BATCH
    trains(checks, "plain", *plain(), numbers(n, 20))
    trains(checks, "frozen", *plain(), numbers(n, 20), frozen=["head"])
    params, apply = plain()
    trains(checks, "stopped", params, lambda p, x: apply(p, x) + jax.lax.stop_gradient(apply(p, 2 * x)), numbers(n, 20))
    trains(checks, "cnn", *of_flax(Cnn(nnx.Rngs(0))), numbers(n, 16, 16, 3))
    trains(checks, "transformer", *of_flax(Transformer(nnx.Rngs(0))), integers(50, n, 12, dtype=np.int32), classes=50)

    params, apply = plain()
    path, x = checks.work / "jax-refused.onnx", numbers(4, 20)
    @jax.custom_vjp
    def clipped(x):
        return x
    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1, 1),))
    checks.refused("custom_vjp", lambda: shardc.jax.export(
        lambda p, x: clipped(apply(p, x)), params, (x,), path), "derivative of its own")
    checks.refused("random", lambda: shardc.jax.export(
        lambda p, x: apply(p, x + jax.random.normal(jax.random.key(0), x.shape)), params, (x,), path), "random numbers")
    checks.refused("frozen", lambda: shardc.jax.export(apply, params, (x,), path, frozen=["tail"]), "tail", "head")
    checks.refused("of another model", lambda: shardc.jax.load({"w": x}, checks.work / "jax-plain.onnx"), "other model")
    checks.check(not path.exists(), "a refused export writes nothing")
    checks.finish()


main()
