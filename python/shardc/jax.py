"""Exports JAX functions (by jax2onnx), and takes what was trained back.

    shardc.jax.export(apply, params, (x,), "model.onnx")   apply(params, x); params: any pytree of f32 arrays
    params = shardc.jax.load(params, "trained.onnx")       what `shardc ckpt export CKPT --onnx model.onnx -o trained.onnx` wrote

A leaf of params is called by its path, as layer0.kernel.  flax.nnx modules: graphdef, params, rest = nnx.split(model,
nnx.Param, ...), and apply = lambda p, x: nnx.merge(graphdef, p, rest)(x)."""
import contextlib
import pathlib

import numpy as np
import onnx
from onnx import helper

from . import weights as w
from .errors import ExportError


def export(apply, params, args, path, *, frozen=(), opset=None):
    """Writes apply(params, *args) to the ONNX file `path`; the first axis of each argument is that of samples.

    frozen: paths of leaves that are not trained, with all below them.  apply is traced as it is: what it draws by a
    key is the same number in every step, so it should compute what the loss needs without randomness.
    Raises ExportError, with what to change, and writes nothing then.  Returns the notes, as a list of texts."""
    import jax
    refuse(apply, params, args)
    leaves, tree = jax.tree_util.tree_flatten_with_path(params)
    names = names_of(leaves)
    held = [w.Weight(name, np.array(leaf), trained=not is_under(name, frozen))
            for name, (_, leaf) in zip(names, leaves)]
    unknown = [f for f in frozen if not any(is_under(name, [f]) for name in names)]
    if unknown:
        raise ExportError(f"frozen= names {', '.join(unknown)}; the leaves are {', '.join(names)}")
    state = {"arrays": [h.value for h in held]}

    def convert():
        now = tree.unflatten([jax.numpy.asarray(a) for a in state["arrays"]])
        return converted(lambda *a: apply(now, *a), args, opset)

    wanted = [np.array(t) for t in jax.tree_util.tree_leaves(apply(params, *args))]
    graph, notes = w.named(held, convert, lambda arrays: state.update(arrays=arrays), "jax", "jax2onnx", True)
    w.name_batch(graph)
    w.compare(graph, {i.name: np.asarray(a) for i, a in zip(graph.graph.input, args)}, wanted)
    onnx.checker.check_model(graph)
    onnx.save(graph, pathlib.Path(path))
    return notes


def load(params, path):
    """A pytree like params with the values of the ONNX file `path`."""
    import jax
    leaves, tree = jax.tree_util.tree_flatten_with_path(params)
    held = [w.Weight(name, np.asarray(leaf)) for name, (_, leaf) in zip(names_of(leaves), leaves)]
    stored = w.trained_values(path, held)
    return tree.unflatten([jax.numpy.asarray(stored[h.name]) for h in held])


def names_of(leaves):
    names = [".".join(key_of(k) for k in path if key_of(k)) or "params" for path, _ in leaves]
    if len(set(names)) < len(names):
        raise ExportError(f"two leaves of params have one path: {', '.join(sorted(names))}")
    return names


def key_of(key):
    """What a step of a path is called: a key, an index or an attribute.  The `value` of a flax variable is itself."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            text = str(getattr(key, attribute))
            return "" if attribute == "name" and text == "value" else text
    return str(key)


def is_under(name, prefixes):
    return any(name == p or name.startswith(f"{p}.") for p in prefixes)


def converted(function, args, opset):
    import jax
    import jax2onnx
    batch = jax.export.symbolic_shape("batch")[0]
    shapes = [jax.ShapeDtypeStruct((batch, *np.shape(a)[1:]), np.asarray(a).dtype) for a in args]
    with stops_kept():
        model = jax2onnx.to_onnx(function, shapes, **({"opset": opset} if opset else {}))
    for graph in w.graphs_of(model.graph):
        for node in graph.node:
            if node.op_type == "StopGradient":
                node.domain = w.KEY
    w.declare_marker(model)
    return model


class Renamed:
    """As an object, but for the attributes `instead`."""

    def __init__(self, of, **instead):
        self.__dict__.update(of=of, instead=instead)

    def __getattr__(self, name):
        return self.instead[name] if name in self.instead else getattr(self.of, name)


@contextlib.contextmanager
def stops_kept():
    """lax.stop_gradient becomes a node StopGradient, where jax2onnx makes an Identity."""
    from jax2onnx.plugins.jax.lax.stop_gradient import StopGradientPlugin as plugin
    lower = plugin.lower

    def marked(self, context, equation):
        builder = Renamed(context.builder, Identity=context.builder.StopGradient)
        return lower(self, Renamed(context, builder=builder), equation)

    plugin.lower = marked
    try:
        yield
    finally:
        plugin.lower = lower


# ---- what a graph would not show ----

WORDS = {"custom_vjp_call": "has a derivative of its own (jax.custom_vjp), which ONNX cannot say: write its forward so "
                            "that the derivative is its own",
         "random_bits": "draws random numbers by a key, the same in every step: give them as an input"}


def refuse(apply, params, args):
    """Raises for what the graph would leave out without a word."""
    import jax
    found = {p for p in primitives_of(jax.make_jaxpr(apply)(params, *args).jaxpr) if p in WORDS}
    if found:
        raise ExportError("; ".join(f"apply {WORDS[p]}" for p in sorted(found)))


def primitives_of(jaxpr):
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        yield "custom_vjp_call" if name.startswith("custom_vjp_call") else "random_bits" if name.startswith(
            ("random_bits", "threefry", "random_seed")) else name
        for value in equation.params.values():
            for inner in value if isinstance(value, (list, tuple)) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from primitives_of(inner)
