"""What a case of cases.py is: one node, or a few, whose gradients are checked; and its model.

case(op, operands.., attributes..) adds a case.  Operands: P(shape, lo, hi) is trained; C(array) is a constant of the
graph; R(array) is a graph input, known at run time alone; None is absent.  They are named a0, a1, .., and results
y0, y1, ..  Of the keywords these are no attributes of the node:
  results   how many results the node has; opset; domain
  takes     which results reach the loss, where not all that are floats do
  nodes     nodes in place of the one; the names above are theirs
  straight  its gradient passes straight through rounding, so it is not compared with differences
  tol       bound of the f32 program's error, where 1e-5 is too strict: a sum that cancels
The values of a P are all different, by more than a difference moves them.
"""
import dataclasses
import zlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CASES, KINKS = [], []
OPSET = 28


@dataclasses.dataclass
class Operand:
    kind: str
    shape: tuple = ()
    lo: float = -2.0
    hi: float = 2.0
    value: object = None


def P(*shape, lo=-2.0, hi=2.0):
    return Operand("P", shape, lo, hi)


def C(value, dtype=None):
    return Operand("C", value=array_of(value, dtype))


def R(value, dtype=None):
    return Operand("R", value=array_of(value, dtype))


def V(value):
    """A P of these values."""
    value = np.asarray(value, np.float32)
    return Operand("P", shape=value.shape, value=value)


def array_of(value, dtype):
    array = np.asarray(value, dtype)
    return array.astype(np.float32) if array.dtype == np.float64 else array


@dataclasses.dataclass
class Case:
    op: str          # with its domain, unless that is ai.onnx
    name: str
    operands: list
    nodes: list
    opset: int
    results: int
    takes: object = None
    tol: float = 1e-5
    gives: object = None  # of a kink: its gradients, by operand
    straight: bool = False
    says: str = ""
    data: dict = dataclasses.field(default_factory=dict)

    def trained(self):
        return [f"a{i}" for i, o in enumerate(self.operands) if o and o.kind == "P"]


def case(op, *operands, results=1, opset=OPSET, domain="", takes=None, nodes=None, tol=1e-5, gives=None,
         straight=False, **attributes):
    full = f"{domain}.{op}" if domain else op
    kind = "" if gives is None else "kink-"
    name = f"{full}-{kind}{sum(c.op == full for c in (CASES if gives is None else KINKS))}"
    if nodes is None:
        inputs = [f"a{i}" if o else "" for i, o in enumerate(operands)]
        nodes = [helper.make_node(op, inputs, [f"y{i}" for i in range(results)], domain=domain, **attributes)]
    c = Case(full, name, list(operands), nodes, opset, results, takes, tol, gives, straight)
    for i, o in enumerate(operands):
        if o:
            c.data[f"a{i}"] = spread(f"{name} {i}", o) if o.value is None else o.value
    (CASES if gives is None else KINKS).append(c)
    return c


def kink(op, says, *operands, gives, **attributes):
    """The convention at a point where the derivative does not exist: gives has the gradient of the sum of the results
    with respect to each list among the operands; says is what docs/operators.md prints."""
    c = case(op, *[o if o is None or isinstance(o, Operand) else V(o) for o in operands], gives=gives, **attributes)
    c.says = says


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def spread(name, o):
    """Values that differ from each other by at least (hi - lo) / n, in an order that depends on the name."""
    n = int(np.prod(o.shape))
    order = np.random.default_rng(zlib.crc32(name.encode())).permutation(n)
    return (o.lo + (o.hi - o.lo) * (order + 0.37) / max(n, 1)).reshape(o.shape).astype(np.float32)


def body(c):
    """The nodes of a case and its initializers, without a loss."""
    constants = [numpy_helper.from_array(v, k) for k, v in c.data.items() if operand(c, k).kind != "R"]
    return list(c.nodes), constants


def operand(c, name):
    return c.operands[int(name[1:])]


def runtime_inputs(c):
    return [k for k in c.data if operand(c, k).kind == "R"]


def value_info(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def add_loss(c, weights, nodes, constants, loss):
    """Nodes that add up the results of the case, each times its random weights."""
    terms = []
    for y, w in weights.items():
        constants.append(numpy_helper.from_array(w, f"{y}.w"))
        nodes.append(helper.make_node("Mul", [y, f"{y}.w"], [f"{y}.p"]))
        nodes.append(helper.make_node("ReduceSum", [f"{y}.p"], [f"{y}.s"], keepdims=0))
        terms.append(f"{y}.s")
    nodes.append(helper.make_node("Sum", terms, [loss]))


def make_model(opset, nodes, constants, inputs, outputs):
    """A model whose one input with samples is x = [1]; the loss is x times what the nodes call total."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    tail = [helper.make_node("Mul", ["x", "total"], ["x.total"]),
            helper.make_node("ReduceSum", ["x.total"], ["loss"], keepdims=0)]
    graph = helper.make_graph(nodes + tail, "case", [x, *inputs], [loss, *outputs], constants)
    domains = {n.domain for n in nodes} - {"", "ai.onnx"}
    imports = [helper.make_opsetid("", opset)] + [helper.make_opsetid(d, 1) for d in sorted(domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def renamed(nodes, constants, prefix):
    """Nodes and initializers with a prefix to each of their names, also inside of subgraphs."""
    def rename(name):
        return prefix + name if name else name

    def of_node(n):
        n.name = rename(n.name)
        n.input[:] = [rename(i) for i in n.input]
        n.output[:] = [rename(o) for o in n.output]
        for a in n.attribute if n.op_type == "Gradient" else ():  # which name tensors
            a.s, a.strings[:] = rename(a.s.decode()).encode(), [rename(t.decode()).encode() for t in a.strings]
        for a in n.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                of_graph(a.g)

    def of_graph(g):
        for t in [*g.input, *g.output, *g.initializer]:
            t.name = rename(t.name)
        for n in g.node:
            of_node(n)

    copies = []
    for n in nodes:
        copies.append(onnx.NodeProto.FromString(n.SerializeToString()))
        of_node(copies[-1])
    tensors = [onnx.TensorProto.FromString(t.SerializeToString()) for t in constants]
    for t in tensors:
        t.name = rename(t.name)
    return copies, tensors
