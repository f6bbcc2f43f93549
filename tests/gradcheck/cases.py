"""The cases of `make gradcheck`, by operator; what they may say stands in case.py.

Cases of operators that the frontend's table does not have are not run."""
import numpy as np
from onnx import TensorProto, helper

from case import C, P, R, case, kink, node

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

# Operators whose results no gradient passes back through, and why.  Their cases show what they become and take.
without = {}


def no_gradient(why, op, *operands, **attributes):
    domain = attributes.get("domain")
    without[f"{domain}.{op}" if domain else op] = why
    case(op, *operands, **attributes)


INTEGER = "it takes and gives integers or bools"
COMPARES = "its result is bool, a step function of the operands"
STEPS = "its derivative is zero wherever there is one"
SHAPES = "its result depends on shapes alone"
INDEX = "its result is an index, a step function of the operand"
CONSTANT = "its result is a constant of the graph"
CHANCE = "its result depends on no float operand, but on chance"
QUANTISED = "it computes with quantised integers"

for op in "And Or Xor BitwiseAnd BitwiseOr BitwiseXor".split():
    no_gradient(INTEGER, op, P(2, 3), P(3))
for op in "Not BitwiseNot".split():
    no_gradient(INTEGER, op, P(2, 3))
no_gradient(INTEGER, "BitShift", P(2, 3), P(3), direction="LEFT")
for op in "Equal Greater GreaterOrEqual Less LessOrEqual".split():
    no_gradient(COMPARES, op, P(2, 3), P(3))
for op in "IsInf IsNaN".split():
    no_gradient(COMPARES, op, P(2, 3))
for op in "Ceil Floor Round Sign Hardmax".split():
    no_gradient(STEPS, op, P(2, 3))
for op in "Shape Size EyeLike".split():
    no_gradient(SHAPES, op, P(2, 3))
no_gradient(SHAPES, "ConstantOfShape", C([2, 3]))
no_gradient(CONSTANT, "Constant", value_float=1.5)
no_gradient("its operands decide how long its result is, so they are constants", "Range", C(0.0), C(3.0), C(1.0))
for op in "ArgMax ArgMin".split():
    no_gradient(INDEX, op, P(2, 3))
no_gradient(INDEX, "NonZero", C([[1, 0], [1, 1]]))
no_gradient(CHANCE, "RandomUniformLike", P(2, 3))
no_gradient(CHANCE, "RandomNormalLike", P(2, 3))
no_gradient(CHANCE, "RandomUniform", shape=[2, 3])
no_gradient(CHANCE, "RandomNormal", shape=[2, 3])
no_gradient("its result is 0 or 1 by chance", "Bernoulli", P(2, 3, lo=0.1, hi=0.9))
no_gradient("its result is an index that chance draws", "Multinomial", P(2, 3), sample_size=2)
no_gradient("it reads the bits of a number as another type", "BitCast", P(2, 3), to=TensorProto.INT32)
no_gradient("its result is empty", "SequenceEmpty", nodes=[
    node("SequenceEmpty", "", "s"), node("Constant", "", "c", value_floats=[1.0]),
    node("SequenceInsert", "s c", "t"), node("ConcatFromSequence", "t", "y0", axis=0)])
no_gradient(SHAPES, "SequenceLength", P(3, 2), nodes=[node("SplitToSequence", "a0", "s"),
                                                      node("SequenceLength", "s", "y0")])
for op in "BlackmanWindow HammingWindow HannWindow".split():
    no_gradient(CONSTANT, op, C(5))
no_gradient(CONSTANT, "MelWeightMatrix", C(4), C(8), C(8000), C(0.0), C(4000.0))
no_gradient(QUANTISED, "ConvInteger", R(np.ones((1, 1, 3, 3), np.uint8)), R(np.ones((1, 1, 2, 2), np.uint8)))
no_gradient(QUANTISED, "MatMulInteger", R(np.ones((2, 3), np.uint8)), R(np.ones((3, 2), np.uint8)))
scale8, zero8 = C(0.5), C(np.uint8(128))
no_gradient(QUANTISED, "QLinearMatMul", R(np.ones((2, 3), np.uint8)), scale8, zero8, R(np.ones((3, 2), np.uint8)),
            scale8,
            zero8, scale8, zero8)
no_gradient(QUANTISED, "QLinearConv", R(np.ones((1, 1, 3, 3), np.uint8)), scale8, zero8,
            R(np.ones((1, 1, 2, 2), np.uint8)),
            scale8, zero8, scale8, zero8)
no_gradient("its scale and its integers are step functions of the operand", "DynamicQuantizeLinear", P(2, 3), results=3)


for op, states in ("Adagrad", 1), ("Adam", 2), ("Momentum", 1):
    more = {"mode": "standard", "alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.01} if op == "Momentum" else {}
    no_gradient("it is the update of an optimizer, no part of a loss", op, C(0.1), C(np.int64(1)),
                *(P(2, 3, lo=0.1, hi=0.9) for _ in range(2 + states)), results=1 + states,
                domain="ai.onnx.preview.training", **more)


def unary(*ops, lo=-2.0, hi=2.0, **attributes):
    for op in ops:
        case(op, P(3, 5, lo=lo, hi=hi), **attributes)
        case(op, P(7, lo=lo, hi=hi), **attributes)
        case(op, P(lo=lo, hi=hi), **attributes)
        case(op, P(2, 0, 3), **attributes)


def binary(*ops, lo=-2.0, hi=2.0):
    for op in ops:
        case(op, P(3, 5, lo=lo, hi=hi), P(3, 5, lo=lo, hi=hi))
        case(op, P(3, 1, 5, lo=lo, hi=hi), P(4, 1, lo=lo, hi=hi))
        case(op, P(lo=lo, hi=hi), P(2, 3, lo=lo, hi=hi))
        case(op, P(2, 0, lo=lo, hi=hi), P(1, lo=lo, hi=hi))


# ---- elementwise ----

unary("Abs", "Atan", "Asinh", "Cos", "Cosh", "Erf", "Exp", "Neg", "Sigmoid", "Sin", "Sinh", "Softplus", "Softsign",
      "Tanh",
      "Mish", "HardSwish", "Relu", "Identity")
unary("Acos", "Asin", "Atanh", lo=-0.9, hi=0.9)
unary("Acosh", lo=1.2, hi=4)
unary("Log", "Sqrt", lo=0.2, hi=4)
unary("Reciprocal", lo=0.3, hi=3)
unary("Reciprocal", lo=-3, hi=-0.3)
unary("Tan", lo=-1.2, hi=1.2)
unary("Softplus", lo=-40, hi=40)
binary("Add", "Sub", "Mul")
binary("Div", "Pow", lo=0.4, hi=2)
case("Div", P(3, 4), P(4, lo=-2, hi=-0.5))
case("Div", C([[1.5, -2.0]]), P(3, 1, lo=0.5, hi=2))
case("Pow", P(3, 4), C([2.0, 3.0, 1.0, 2.0]))
case("Pow", P(3, 4), C(2.0))
case("Pow", P(3, 4, lo=0.3), C(-0.5))
case("Pow", C(2.0), P(3, 4))
case("Pow", P(3, 2), C([2, 3], np.int64))
case("Mod", P(3, 4, lo=-7, hi=7), P(3, 4, lo=2, hi=3), fmod=1)
case("Mod", P(3, 4, lo=-7, hi=7), C([2.0, -3.0, 1.5, 2.5]), fmod=1)
for op in ("Max", "Min", "Sum", "Mean"):
    case(op, P(3, 5))
    case(op, P(3, 5), P(3, 5))
    case(op, P(3, 1, 5), P(4, 1), P())
    case(op, P(2, 3), P(3), P(2, 1), P(2, 3))
case("Max", P(2, 5), C(0.11))
case("Clip", P(3, 5), P(lo=-0.7, hi=-0.6), P(lo=0.8, hi=0.9))
case("Clip", P(3, 5), C(-0.7), C(0.9))
case("Clip", P(3, 5), None, C(0.9))
case("Clip", P(3, 5), C(-0.7))
case("Clip", P(3, 5))
case("Clip", P(7), opset=6, min=-0.7, max=0.9)
case("Where", R([[True, False, True]]), P(2, 3), P(2, 3))
case("Where", R([[True], [False]]), P(3), P(2, 1))
case("Where", C([True, False, True]), P(2, 3), P())
case("Where", nodes=[node("Greater", "a0 a1", "c"), node("Where", "c a0 a1", "y0")],
     *[P(3, 4), P(3, 4, lo=-1.9, hi=2.1)])
case("Cast", P(3, 4), to=FLOAT)
case("Cast", P(5), nodes=[node("Cast", "a0", "d", to=TensorProto.DOUBLE), node("Sin", "d", "e"),
                          node("Cast", "e", "y0", to=FLOAT)])
case("CastLike", P(3, 4), C(1.0))
case("CastLike", P(3, 4), P(1))
case("Identity", P(2, 3), nodes=[node("Identity", "a0", "b"), node("Mul", "a0 b", "y0")])
case("Dropout", P(3, 5))
case("Dropout", P(3, 5), C(0.5), C(False))
case("Dropout", P(3, 5), C(0.0), C(True))
case("Dropout", P(3, 5), C(0.5), C(True))  # compared with --dropout=off

# ---- activations ----

for alpha in (0.5, 1.0, 1.7):
    case("Celu", P(3, 5), alpha=alpha)
    case("Elu", P(3, 5), alpha=alpha)
    case("LeakyRelu", P(3, 5), alpha=alpha / 10)
    case("ThresholdedRelu", P(3, 5), alpha=alpha)
    case("Swish", P(3, 5), alpha=alpha)
    case("SwiGLU", P(3, 5), P(3, 5), alpha=alpha)
for op in ("Celu", "Elu", "LeakyRelu", "Selu", "Swish", "ThresholdedRelu", "Gelu", "HardSigmoid"):
    case(op, P(7))
case("Elu", P(3, 5, lo=-30, hi=5))
case("Gelu", P(3, 5), approximate="tanh")
case("Gelu", P(3, 5, lo=-6, hi=6))
case("Gelu", P(), approximate="none")
case("HardSigmoid", P(3, 5, lo=-4, hi=4), alpha=0.3, beta=0.4)
case("HardSwish", P(3, 5, lo=-5, hi=5))
case("Selu", P(3, 5), alpha=1.2, gamma=0.9)
case("Shrink", P(3, 5), bias=0.3, lambd=0.7)
case("Shrink", P(7))
case("SwiGLU", P(2, 0), P(2, 0))
case("PRelu", P(3, 4, 5), P(3, 4, 5, lo=0.1, hi=0.5))
case("PRelu", P(3, 4, 5), P(4, 1, lo=0.1, hi=0.5))
case("PRelu", P(3, 4, 5), P(1, lo=-0.5, hi=-0.1))
for op in ("Softmax", "LogSoftmax"):
    case(op, P(3, 5), axis=-1)
    case(op, P(3, 4, 5), axis=1)
    case(op, P(3, 4, 5), axis=0)
    case(op, P(2, 3, 4), opset=11)
    case(op, P(2, 3, 4), axis=2, opset=11)
    case(op, P(2, 1), axis=1)
    case(op, P(3, 5, lo=95, hi=110), axis=-1)

# ---- shapes and movement ----

case("CenterCropPad", P(5, 4), C([3, 7]))
case("CenterCropPad", P(5, 4, 3), C([6, 2]), axes=[0, -1])
case("Concat", P(2, 3), P(2, 1), P(2, 3), axis=1)
case("Concat", P(2, 3), axis=0)
case("Concat", P(2, 0), P(2, 3), axis=-1)
case("Concat", P(3), P(2), axis=0, nodes=[node("Concat", "a0 a1 a0", "y0", axis=0)])
for mode in ("DCR", "CRD"):
    case("DepthToSpace", P(2, 8, 2, 3), blocksize=2, mode=mode)
case("DepthToSpace", P(1, 9, 1, 2), blocksize=3)
case("SpaceToDepth", P(2, 3, 4, 6), blocksize=2)
case("SpaceToDepth", P(1, 1, 3, 6), blocksize=3)
case("Expand", P(3, 1), C([2, 3, 4]))
case("Expand", P(1), C([5]))
case("Expand", P(), C([2, 2]))
case("Expand", P(2, 3), C([1, 3]))
case("Expand", P(1, 3), C([0, 3]))
case("Flatten", P(2, 3, 4))
case("Flatten", P(2, 3, 4), axis=0)
case("Flatten", P(2, 3, 4), axis=-1)
case("Pad", P(3, 4), C([1, 0, 2, 1]))
case("Pad", P(3, 4), C([1, 0, 2, 1]), C(1.5))
case("Pad", P(3, 4), C([-1, 1, 2, -1]))
case("Pad", P(3, 4), C([1, 2, 1, 2]), mode="reflect")
case("Pad", P(3, 4), C([1, 5, 4, 2]), mode="edge")
case("Pad", P(3, 4), C([1, 2, 2, 3]), mode="wrap")
case("Pad", P(3, 4, 2), C([1, 2]), None, C([1]))
case("Pad", P(3, 4), opset=10, pads=[1, 0, 0, 2], value=0.5)
case("Reshape", P(2, 6), C([3, -1]))
case("Reshape", P(2, 3, 4), C([0, 12]))
case("Reshape", P(2, 0, 4), C([0, 4]), allowzero=1)
case("Reshape", P(1), C([], np.int64))
case("Slice", P(5, 6), C([1, 2]), C([4, 6]))
case("Slice", P(5, 6), C([4]), C([-100]), C([0]), C([-2]))
case("Slice", P(5, 6), C([0, 1]), C([5, 100]), C([0, -1]), C([2, 3]))
case("Slice", P(5, 6), C([2]), C([2]), C([1]))
case("Slice", P(5, 6), opset=9, starts=[1], ends=[-1], axes=[1])
case("Split", P(6, 2), results=3, num_outputs=3)
case("Split", P(7, 2), results=3, num_outputs=3)
case("Split", P(2, 6), C([1, 0, 5]), results=3, axis=1)
case("Split", P(2, 6), C([2, 4]), results=2, axis=-1, takes=[1])
case("Split", P(2, 6), results=2, opset=11, axis=1, split=[2, 4])
case("Squeeze", P(1, 3, 1))
case("Squeeze", P(1, 3, 1), C([-1]))
case("Squeeze", P(1, 3, 1), opset=11, axes=[0])
case("Tile", P(2, 3), C([2, 3]))
case("Tile", P(2, 3), C([1, 0]))
case("Tile", P(3), C([4]))
case("Transpose", P(2, 3, 4))
case("Transpose", P(2, 3, 4), perm=[1, 2, 0])
case("Transpose", P(2, 1, 3, 2), perm=[3, 1, 0, 2])
case("Unsqueeze", P(3), C([0, -1]))
case("Unsqueeze", P(), C([0]))
case("Unsqueeze", P(2, 3), opset=11, axes=[1])
for upper in (0, 1):
    case("Trilu", P(3, 4), upper=upper)
    case("Trilu", P(2, 4, 3), C(1), upper=upper)
    case("Trilu", P(4, 4), C(-2), upper=upper)


def branch(op, name):
    y = helper.make_tensor_value_info(name, FLOAT, None)
    return helper.make_graph([helper.make_node(op, ["a1"], [name])], name, [], [y])


for condition in (True, False):
    case("If", C(condition), P(3, 2), nodes=[node("If", "a0", "y0", then_branch=branch("Sin", "t"),
                                                  else_branch=branch("Exp", "e"))])


def loop_body(*nodes, takes, gives):
    tensor = lambda name, kind: helper.make_tensor_value_info(name, kind, None)  # noqa: E731
    return helper.make_graph(list(nodes), "body", [tensor("i", INT64),
                                                   tensor("go", BOOL)] + [tensor(t, FLOAT) for t in takes],
                             [tensor("on", BOOL)] + [tensor(g, FLOAT) for g in gives])


again = node("Identity", "go", "on")
for trips in (1, 3):
    case("Loop", C(trips), C(True), P(2, 3), P(3), nodes=[node(
        "Loop", "a0 a1 a2", "y0 y1", body=loop_body(again, node("Mul", "s a3", "t"), node("Tanh", "t", "u"),
                                                    node("Sin", "u", "v"), takes=["s"], gives=["u", "v"]))], results=2)
case("Loop", C(4), None, P(2, 3), P(3, 3), nodes=[helper.make_node(
    "Loop", ["a0", "", "a2"], ["y0"], body=loop_body(
        node("Constant", "", "four", value_int=4), node("Less", "i four", "on"), node("MatMul", "s a3", "t"),
        node("Tanh", "t", "u"), takes=["s"], gives=["u"]))])


def scan_body(*nodes, takes, gives):
    tensor = lambda name: helper.make_tensor_value_info(name, FLOAT, None)  # noqa: E731
    return helper.make_graph(list(nodes), "body", [tensor(t) for t in takes], [tensor(g) for g in gives])


cell = scan_body(node("Add", "h x", "p"), node("Mul", "p a2", "q"), node("Tanh", "q", "g"), node("Sin", "g", "z"),
                 takes=["h", "x"], gives=["g", "z"])
case("Scan", P(3), P(4, 3), P(3), results=2, num_scan_inputs=1, body=cell,
     nodes=[node("Scan", "a0 a1", "y0 y1", num_scan_inputs=1, body=cell)])
case("Scan", P(3), P(3, 4), P(3), results=2, nodes=[node(
    "Scan", "a0 a1", "y0 y1", num_scan_inputs=1, body=cell, scan_input_axes=[1], scan_input_directions=[1],
    scan_output_axes=[1], scan_output_directions=[1])])

# ---- indexing ----

for index in (C, R):
    case("Gather", P(5, 3), index([[0, -1], [4, 0]]))
    case("Gather", P(2, 5), index([1, 3, 1]), axis=1)
    case("Gather", P(4, 3), index(2), axis=-2)
    case("GatherElements", P(3, 4), index([[0, 1, -1], [2, 0, 1]]), axis=0)
    case("GatherElements", P(3, 4), index([[0, 3], [1, 1], [-4, 2]]), axis=1)
    case("GatherND", P(3, 4, 2), index([[0, 1], [2, -1], [0, 1]]))
    case("GatherND", P(2, 3, 4), index([[[1]], [[-1]]]), batch_dims=1)
    case("GatherND", P(2, 3), index([[1, 2], [0, 0]]))
    case("ScatterElements", P(3, 4), index([[1, 0, 2, 0], [0, 2, 0, 1]]), P(2, 4), axis=0)
    case("ScatterElements", P(3, 4), index([[1, -1], [0, 2], [3, 0]]), P(3, 2), axis=1)
    case("ScatterElements", P(3, 4), index([[1, 1], [0, 0], [3, 1]]), P(3, 2), axis=1, reduction="add")
    case("ScatterElements", P(3, 4, lo=0.5), index([[1, 1], [0, 0], [3, 1]]), P(3, 2, lo=0.5), axis=1, reduction="mul")
    case("ScatterElements", P(3, 4), index([[1, 1], [0, 0], [3, 1]]), P(3, 2), axis=1, reduction="max")
    case("ScatterElements", P(3, 4), index([[1, 1], [0, 0], [3, 1]]), P(3, 2), axis=1, reduction="min")
    case("ScatterND", P(4, 3), index([[2], [0]]), P(2, 3))
    case("ScatterND", P(4, 3), index([[2, 1], [0, -1], [2, 0]]), P(3))
    case("ScatterND", P(4, 3), index([[2], [2], [0]]), P(3, 3), reduction="add")
    case("ScatterND", P(4, 3, lo=0.5), index([[2], [2], [0]]), P(3, 3, lo=0.5), reduction="mul")
    case("ScatterND", P(4, 3), index([[2], [2], [0]]), P(3, 3), reduction="max")
    case("ScatterND", P(4, 3), index([[2], [2], [0]]), P(3, 3), reduction="min")
    case("ReverseSequence", P(4, 3, 2), index([4, 1, 3]))
    case("ReverseSequence", P(3, 4), index([4, 1, 3]), time_axis=1, batch_axis=0)
    case("OneHot", index([0, 2, -1]), C(3), P(2))
    case("OneHot", index([[0, 2], [1, 1]]), C(4), P(2), axis=1)
case("Scatter", P(3, 4), C([[1, 0, 2, 0]]), P(1, 4), axis=0, opset=10)
case("Scatter", P(3, 4), R([[1], [0], [3]]), P(3, 1), axis=1, opset=9)
case("Gather", P(5, 3), C([], np.int64))
case("Compress", P(3, 4), C([True, False, True]), axis=0)
case("Compress", P(3, 4), C([False, True, True, False, True]))
for name, lo in (("CumSum", -2), ("CumProd", 0.5)):
    case(name, P(3, 4, lo=lo), C(1))
    case(name, P(3, 4, lo=lo), C(0), exclusive=1)
    case(name, P(3, 4, lo=lo), C(-1), reverse=1)
    case(name, P(2, 3, 4, lo=lo), C(1), exclusive=1, reverse=1)
case("CumProd", P(3, 4), C(1))
case("TopK", P(3, 5), C([2]), results=2)
case("TopK", P(3, 5), C([3]), results=2, axis=0, largest=0)
case("TopK", P(3, 5), C([5]), results=2, axis=1)
case("TopK", P(6), results=2, opset=9, k=2)
case("TensorScatter", P(2, 3, 5, 2), P(2, 3, 2, 2), C([1, 3]), axis=2)
case("TensorScatter", P(2, 4, 3), P(2, 2, 3), C([3, 1]), axis=1, mode="circular")

# ---- reductions ----

for op in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"):
    lo = 0.3 if op in ("LogSum", "Prod") else -2.0
    case(f"Reduce{op}", P(3, 4, lo=lo))
    case(f"Reduce{op}", P(3, 4, 5, lo=lo), C([1]), keepdims=0)
    case(f"Reduce{op}", P(3, 4, 5, lo=lo), C([0, -1]))
    case(f"Reduce{op}", P(3, 1, 2, lo=lo), C([1]))
    case(f"Reduce{op}", P(3, 4, lo=lo), C([], np.int64), noop_with_empty_axes=0)
    case(f"Reduce{op}", P(3, 4, lo=lo), opset=11, axes=[0], keepdims=0)
case("ReduceSum", P(3, 4), C([], np.int64), noop_with_empty_axes=1)
case("ReduceSum", P(3, 0, 2), C([1]))
case("ReduceProd", P(3, 4), C([1]))
for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
    case(op, P(2, 3, 4, 5))
    case(op, P(1, 2, 7))
    case(op, P(2, 1, 2, 3, 2))
case("GlobalLpPool", P(2, 3, 4), p=3)
case("GlobalLpPool", P(2, 3, 4), p=1)
for p in (1, 2):
    case("LpNormalization", P(3, 5), p=p)
    case("LpNormalization", P(3, 4, 2), p=p, axis=1)

# ---- linear algebra ----

case("MatMul", P(3, 4), P(4, 5))
case("MatMul", P(4), P(4, 5))
case("MatMul", P(3, 4), P(4))
case("MatMul", P(4), P(4))
case("MatMul", P(2, 1, 3, 4), P(5, 4, 2))
case("MatMul", P(2, 3, 4), P(4, 2))
case("MatMul", P(3, 0), P(0, 2))
for equation, *shapes in (("ij,jk->ik", (3, 4), (4, 2)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
                          ("i,j->ij", (3,), (4,)),
                          ("ij->ji", (3, 4)), ("ii->i", (3, 3)), ("ij->", (3, 4)), ("bhqd,bhkd->bhqk", (2, 2, 3, 4),
                                                                                    (2, 2, 5, 4)),
                          ("...ij,...jk->...ik", (2, 3, 4), (4, 2)), ("ij,jk,kl->il", (2, 3), (3, 4),
                                                                      (4, 2)), ("ij,ij->i", (3, 4), (3, 4)),
                          ("bn,anm,bm->ba", (2, 3), (4, 3, 5), (2, 5))):
    case("Einsum", *[P(*s) for s in shapes], equation=equation)
case("Gemm", P(3, 4), P(4, 5), P(5))
case("Gemm", P(4, 3), P(5, 4), P(3, 1), transA=1, transB=1, alpha=0.5, beta=1.5)
case("Gemm", P(3, 4), P(4, 5))
case("Gemm", P(3, 4), P(4, 5), P())
case("Gemm", P(3, 4), P(5, 4), P(3, 5), transB=1)
case("Det", P(3, 3))
case("Det", P(2, 4, 4))
case("Det", P(2, 1, 2, 2))

# ---- convolution and pooling ----

case("Conv", P(2, 3, 7), P(4, 3, 3), P(4))
case("Conv", P(2, 3, 6, 5), P(4, 3, 3, 2), P(4))
case("Conv", P(2, 4, 6, 7), P(6, 2, 3, 3), strides=[2, 1], pads=[1, 0, 2, 1], dilations=[1, 2], group=2)
case("Conv", P(1, 3, 5, 5), P(3, 1, 3, 3), P(3), group=3, pads=[1, 1, 1, 1])
case("Conv", P(1, 2, 4, 5, 3), P(3, 2, 2, 3, 2), P(3), strides=[1, 2, 1], pads=[1, 0, 0, 0, 1, 1])
case("Conv", P(2, 3, 5, 6), P(2, 3, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2])
case("Conv", P(2, 3, 5, 6), P(2, 3, 2, 2), auto_pad="SAME_LOWER")
case("Conv", P(2, 3, 5, 6), P(2, 3, 2, 2), auto_pad="VALID", kernel_shape=[2, 2])
case("Conv", P(2, 3, 4, 4), P(5, 3, 1, 1), P(5))
case("ConvTranspose", P(2, 3, 5), P(3, 4, 3), P(4), strides=[2])
case("ConvTranspose", P(2, 3, 4, 3), P(3, 2, 3, 3), strides=[2, 1], pads=[1, 0, 1, 1], output_padding=[1, 0])
case("ConvTranspose", P(1, 4, 3, 3), P(4, 2, 2, 2), P(4), group=2, dilations=[2, 1])
case("ConvTranspose", P(1, 2, 3, 3), P(2, 2, 3, 3), strides=[2, 2], output_shape=[6, 5])
case("ConvTranspose", P(1, 2, 3, 3), P(2, 2, 3, 3), P(2), strides=[2, 2], auto_pad="SAME_UPPER")
case("ConvTranspose", P(1, 2, 2, 3, 2), P(2, 3, 2, 2, 2), P(3), strides=[1, 2, 1])
pools = (dict(kernel_shape=[2, 3]), dict(kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
         dict(kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1), dict(kernel_shape=[2, 2], dilations=[2, 1]),
         dict(kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"), dict(kernel_shape=[2, 2],
                                                                                auto_pad="SAME_LOWER"))
for attributes in pools:
    for op in ("AveragePool", "MaxPool", "LpPool"):
        case(op, P(2, 2, 5, 6), **attributes)
for op in ("AveragePool", "MaxPool", "LpPool"):
    case(op, P(2, 3, 7), kernel_shape=[3], strides=[2])
    case(op, P(1, 2, 3, 4, 3), kernel_shape=[2, 2, 2])
case("AveragePool", P(2, 2, 5, 6), kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
case("AveragePool", P(1, 1, 5, 5), kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 1, 1], ceil_mode=1,
     count_include_pad=1)
case("LpPool", P(2, 2, 5, 6), kernel_shape=[2, 2], p=3)
case("LpPool", P(2, 2, 5, 6), kernel_shape=[2, 2], p=1)
case("MaxUnpool", P(1, 1, 2, 2), C([[[[5, 7], [13, 15]]]]), kernel_shape=[2, 2], strides=[2, 2])
case("MaxUnpool", P(1, 1, 2, 2), R([[[[5, 7], [13, 15]]]]), C([1, 1, 4, 4]), kernel_shape=[2, 2], strides=[2, 2])
case("Col2Im", P(1, 5, 5), C([5, 5]), C([1, 5]))
case("Col2Im", P(2, 8, 12), C([4, 5]), C([2, 2]))
case("Col2Im", P(1, 8, 6), C([5, 6]), C([2, 2]), dilations=[2, 1], pads=[1, 0, 0, 1], strides=[2, 2])
for op in ("Resize",):
    one = (None, C([1.0, 1.0, 2.0, 1.5]))
    case("Resize", P(1, 2, 3, 4), *one)
    for mode in ("linear", "cubic"):
        for coordinates in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric"):
            case("Resize", P(1, 2, 3, 4), *one, mode=mode, coordinate_transformation_mode=coordinates)
        case("Resize", P(1, 1, 5, 6), None, C([1.0, 1.0, 0.6, 0.5]), mode=mode)
        case("Resize", P(1, 1, 5, 6), None, C([1.0, 1.0, 0.6, 0.5]), mode=mode, antialias=1)
        case("Resize", P(1, 2, 3, 4), None, None, C([1, 2, 5, 3]), mode=mode)
    for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
        case("Resize", P(1, 2, 3, 4), None, None, C([1, 2, 7, 5]), nearest_mode=nearest)
    case("Resize", P(1, 2, 3, 4), None, None, C([7, 5]), axes=[2, 3], keep_aspect_ratio_policy="not_larger")
    case("Resize", P(1, 2, 4, 4), *one, mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1)
    case("Resize", P(1, 1, 4, 4), C([0.0, 0.0, 0.4, 0.6, 1.0, 1.0, 1.2, 1.7], np.float32), None, C([1, 1, 3, 3]),
         mode="linear",
         coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=10.0)
    case("Resize", P(1, 2, 5), None, C([1.0, 1.0, 1.7]), mode="linear")
    case("Resize", P(1, 1, 3, 4), C([1.0, 1.0, 2.0, 1.5]), opset=10, mode="linear")
case("Upsample", P(1, 2, 3, 4), C([1.0, 1.0, 2.0, 3.0]), opset=9)
case("Upsample", P(1, 2, 3, 4), C([1.0, 1.0, 2.0, 2.0]), opset=9, mode="linear")
case("Upsample", P(1, 2, 3, 4), opset=7, scales=[1.0, 1.0, 2.0, 1.0])

# ---- normalisation ----

statistics = (C([0.1, -0.2, 0.3]), C([1.0, 0.5, 2.0]))
for shape in ((4, 3), (2, 3, 4, 5), (4, 3, 2)):  # the node that trains says that nodes mean what they say
    case("BatchNormalization", P(*shape), P(3), P(3), *statistics, *statistics, results=2, nodes=[
        node("BatchNormalization", "a0 a1 a2 a3 a4", "y0 m v", training_mode=1),
        node("BatchNormalization", "a0 a1 a2 a5 a6", "y1", epsilon=1e-3, training_mode=0)])
    case("BatchNormalization", P(*shape), P(3), P(3), *statistics, tol=3e-5, nodes=[
        node("BatchNormalization", "a0 a1 a2 a3 a4", "y0 m v", training_mode=1)])
for shape, groups in (((2, 6, 3, 4), 3), ((2, 4, 5), 2), ((3, 4, 5), 4), ((2, 3, 4), 1)):
    case("GroupNormalization", P(*shape), P(shape[1]), P(shape[1]), num_groups=groups)
    case("GroupNormalization", P(*shape), P(groups), P(groups), num_groups=groups, opset=18, epsilon=1e-3)
case("InstanceNormalization", P(2, 3, 4, 5), P(3), P(3))
case("InstanceNormalization", P(2, 3, 6), P(3), P(3), epsilon=1e-2)
case("LayerNormalization", P(3, 5), P(5), P(5))
case("LayerNormalization", P(2, 3, 4), P(3, 4), P(3, 4), axis=1, epsilon=1e-3)
case("LayerNormalization", P(2, 3, 4), P(4))
case("LayerNormalization", P(2, 3, 4), P(4), P(4), results=3)
case("LRN", P(2, 5, 3, 2), size=3)
case("LRN", P(2, 5, 3, 2), size=4, alpha=0.5, beta=0.6, bias=2.0)
case("LRN", P(2, 3, 4), size=5, alpha=1.0)
case("MeanVarianceNormalization", P(3, 2, 3, 4))
case("MeanVarianceNormalization", P(3, 4, 5), axes=[0, 2])
case("RMSNormalization", P(3, 5), P(5))
case("RMSNormalization", P(2, 3, 4), P(3, 4), axis=1, epsilon=1e-3)
case("RMSNormalization", P(2, 3, 4), P(4), axis=-1)

# ---- losses ----

for index in (C, R):
    for reduction in ("mean", "sum", "none"):
        for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
            case(op, P(4, 3), index([0, 2, 1, 1]), reduction=reduction)
            case(op, P(4, 3), index([0, 2, -1, 1]), C([0.5, 1.5, 1.0]), reduction=reduction, ignore_index=-1)
            case(op, P(2, 3, 4), index([[0, 2, 1, 1], [2, 2, 0, 1]]), reduction=reduction)
case("SoftmaxCrossEntropyLoss", P(4, 3), C([0, 2, 1, 1]), results=2)
case("SoftmaxCrossEntropyLoss", P(2, 3, 2, 2), R([[[0, 2], [1, 1]], [[2, -100], [0, 1]]]), results=2, ignore_index=-100)

# ---- attention ----

qkv = lambda b, h, hk, t, s, d, dv: (P(b, h, t, d), P(b, hk, s, d), P(b, hk, s, dv))  # noqa: E731
case("Attention", *qkv(2, 2, 2, 3, 3, 4, 4), opset=23)
case("Attention", *qkv(1, 4, 2, 3, 5, 4, 3), scale=0.3)
case("Attention", *qkv(2, 2, 1, 4, 4, 4, 4), is_causal=1)
case("Attention", *qkv(1, 2, 2, 3, 4, 4, 4), P(3, 4))
case("Attention", *qkv(2, 2, 2, 3, 4, 4, 4), P(2, 1, 3, 4), opset=23)
case("Attention", *qkv(1, 2, 2, 3, 4, 4, 4), C([[True, True, False, True], [True] * 4, [False, True, False, False]]))
case("Attention", *qkv(1, 2, 2, 3, 3, 4, 4), softcap=1.5)
case("Attention", *qkv(1, 1, 1, 5, 5, 4, 4), left_window_size=2, right_window_size=1)
case("Attention", P(2, 3, 8), P(2, 5, 4), P(2, 5, 6), q_num_heads=4, kv_num_heads=2)
case("Attention", P(1, 4, 6), P(1, 4, 6), P(1, 4, 6), q_num_heads=2, kv_num_heads=2, is_causal=1, opset=23)
case("Attention", *qkv(1, 2, 2, 3, 2, 4, 4), None, P(1, 2, 2, 4), P(1, 2, 2, 4), results=3, is_causal=1)
case("Attention", *qkv(2, 2, 2, 3, 6, 4, 4), None, None, None, C([4, 6]), is_causal=1)
for interleaved in (0, 1):
    case("RotaryEmbedding", P(2, 2, 3, 4), P(3, 2, lo=-1, hi=1), P(3, 2, lo=-1, hi=1), C([[0, 1, 2], [2, 0, 1]]),
         interleaved=interleaved)
    case("RotaryEmbedding", P(2, 3, 12), C(np.cos(np.arange(12).reshape(2, 3, 2))),
         C(np.sin(np.arange(12).reshape(2, 3, 2))),
         num_heads=3, interleaved=interleaved)
    case("RotaryEmbedding", P(1, 2, 3, 6), C(np.cos(np.arange(6).reshape(1, 3, 2))),
         C(np.sin(np.arange(6).reshape(1, 3, 2))),
         rotary_embedding_dim=4, interleaved=interleaved)

# ---- sequences ----

case("SequenceConstruct", P(2, 3), P(1, 3), nodes=[node("SequenceConstruct", "a0 a1", "s"),
                                                    node("ConcatFromSequence", "s", "y0", axis=0)])
case("ConcatFromSequence", P(2, 3), P(2, 3), nodes=[node("SequenceConstruct", "a0 a1", "s"),
                                                     node("ConcatFromSequence", "s", "y0", axis=1, new_axis=1)])
case("SplitToSequence", P(5, 3), C(2), nodes=[node("SplitToSequence", "a0 a1", "s", axis=0),
                                              node("ConcatFromSequence", "s", "y0", axis=0)])
case("SplitToSequence", P(3, 4), nodes=[node("SplitToSequence", "a0", "s", axis=1, keepdims=0),
                                        node("ConcatFromSequence", "s", "y0", axis=0)])
case("SequenceAt", P(4, 3), C(2), C(-1), nodes=[node("SplitToSequence", "a0 a1", "s"),
                                                node("SequenceAt", "s a2", "y0")])
case("SequenceInsert", P(2, 3), P(2, 3), P(2, 3), C(1), nodes=[
    node("SequenceConstruct", "a0 a1", "s"), node("SequenceInsert", "s a2 a3", "t"), node("ConcatFromSequence", "t",
                                                                                          "y0", axis=0)])
case("SequenceErase", P(2, 3), P(2, 3), C(0), nodes=[
    node("SequenceConstruct", "a0 a1", "s"), node("SequenceErase", "s a2", "t"), node("ConcatFromSequence", "t", "y0",
                                                                                      axis=0)])

# ---- kinks ----


def called(made, target):
    """The node with what dynamo's metadata say of the call that it was made of."""
    made.metadata_props.add(key="pkg.torch.onnx.fx_node", value=f"%y : call_function[target=torch.ops.{target}](args = ())")
    return made



kink("Relu", "0 at 0", [0.0], gives=[0])
kink("Abs", "0 at 0", [0.0], gives=[0])
kink("Sqrt", "infinite at 0", [0.0], gives=[np.inf])
kink("ReduceL1", "0 where an element is 0", [[0.0, 2.0]], C([1]), gives=[[0, 1]])
kink("ReduceL2", "0 where all elements are 0", [[0.0, 0.0]], C([1]), gives=[[0, 0]])
kink("ReduceL2", "also behind a clip, as torch.nn.functional.normalize has it", [[0.0, 0.0], [3.0, 4.0]], gives=[
    [1e12, 1e12, 0.032, -0.024]], nodes=[
        node("Constant", "", "axes", value_ints=[1]), node("Constant", "", "eps", value_float=1e-12),
        node("ReduceL2", "a0 axes", "n"), node("Max", "n eps", "m"), node("Div", "a0 m", "y0")])
kink("LpNormalization", "of a row of zeros as if its norm were 1", [[0.0, 0.0]], gives=[[1, 1]])
kink("GlobalLpPool", "0 where all elements are 0", [[[0.0, 0.0]]], gives=[[0, 0]])
kink("GlobalLpPool", "0 where all elements are 0", [[[0.0, 0.0]]], p=3, gives=[[0, 0]])
kink("LpPool", "0 where all elements of a window are 0", [[[0.0, 0.0, 3.0, 4.0]]], kernel_shape=[2], strides=[2],
     gives=[[0, 0, 0.6, 0.8]])
kink("LpPool", "0 where all elements of a window are 0", [[[0.0, 0.0]]], kernel_shape=[2], p=3, gives=[[0, 0]])
kink("Max", "halved at a tie of two, pair by pair", [1.0], [1.0], gives=[0.5, 0.5])
kink("Min", "halved at a tie of two, pair by pair", [1.0], [1.0], gives=[0.5, 0.5])
kink("Max", "of one made by PyTorch's clamp: 1 at the bound", [1.0, 2.0], gives=[[1, 1]], nodes=[
    node("Constant", "", "low", value_float=1.0), called(node("Max", "a0 low", "y0"), "aten.clamp.Tensor")])
kink("Min", "of one made by PyTorch's clamp: 1 at the bound", [1.0, 2.0], gives=[[1, 0]], nodes=[
    node("Constant", "", "high", value_float=1.0), called(node("Min", "a0 high", "y0"), "aten.clamp.default")])
kink("ReduceMax", "of PyTorch's max(dim): to the first", [[1.0, 1.0, 0.0], [3.0, 4.0, 4.0]], gives=[[1, 0, 0, 0, 1, 0]],
     nodes=[node("Constant", "", "axes", value_ints=[1]), called(node("ReduceMax", "a0 axes", "y0"), "aten.max.dim")])
kink("ReduceMin", "of PyTorch's min(dim): to the first", [[1.0, 3.0], [1.0, 2.0]], gives=[[1, 0, 0, 1]],
     nodes=[node("Constant", "", "axes", value_ints=[0]), called(node("ReduceMin", "a0 axes", "y0"), "aten.min.dim")])
kink("Sqrt", "of a sum or mean of squares: 0 where all are 0", [[1.0, 1.0, 1.0]], gives=[[0, 0, 0]], nodes=[
    node("Constant", "", "axes", value_ints=[1]), node("Constant", "", "two", value_float=2.0),
    node("ReduceMean", "a0 axes", "m"), node("Sub", "a0 m", "d"), node("Mul", "d d", "q"),
    node("ReduceSum", "q axes", "s"), node("Div", "s two", "v"), node("Sqrt", "v", "y0")])
kink("Log", "clipped from below: 0 below", [0.0, 1.0], gives=[[0, 1]], nodes=[
    node("Constant", "", "low", value_float=-100.0), node("Log", "a0", "l"), node("Max", "l low", "y0")])
kink("Log", "clipped from below: 0 below", [0.0, 1.0], gives=[[0, 1]], nodes=[
    node("Constant", "", "low", value_float=-100.0), node("Log", "a0", "l"), node("Clip", "l low", "y0")])
kink("Pow", "a root of a sum of powers of magnitudes: 0 where all are 0", [[0.0, 0.0]], gives=[[0, 0]], nodes=[
    node("Constant", "", "three", value_float=3.0), node("Constant", "", "third", value_float=1 / 3),
    node("Abs", "a0", "m"), node("Pow", "m three", "c"), node("ReduceSum", "c", "s"), node("Pow", "s third", "y0")])
kink("Pow", "a root of a sum of powers of magnitudes: 0 where all are 0", [[0.0, 0.0]], gives=[[0, 0]], nodes=[
    node("Constant", "", "two", value_float=2.0), node("Constant", "", "half", value_float=0.5),
    node("Pow", "a0 two", "c"), node("ReduceSum", "c", "s"), node("Pow", "s half", "y0")])
kink("ReduceMax", "shared equally by ties", [[1.0, 1.0, 0.0]], C([1]), gives=[[0.5, 0.5, 0]])
kink("ReduceMin", "shared equally by ties", [[1.0, 1.0, 2.0]], C([1]), gives=[[0.5, 0.5, 0]])
kink("GlobalMaxPool", "to the first of ties", [[[1.0, 1.0, 0.0]]], gives=[[1, 0, 0]])
kink("MaxPool", "to the first of ties", [[[0.0, 1.0, 1.0]]], kernel_shape=[3], gives=[[0, 1, 0]])
kink("ReduceProd", "exact where elements are 0", [[0.0, 2.0, 3.0]], C([1]), gives=[[6, 0, 0]])
kink("Clip", "one constant bound: 1 at it, as PyTorch's clamp", [0.0, 1.0], C(0.0), gives=[[1, 1]])
kink("Clip", "one constant bound: 1 at it, as PyTorch's clamp", [0.0, 1.0], None, C(0.0), gives=[[1, 0]])
kink("Clip", "two: 0 at them, as PyTorch's relu6 and hardtanh, whatever it was in PyTorch", [0.0, 1.0], C(0.0), C(1.0),
     gives=[[0, 0]])
kink("Clip", "bounds that are computed: halved at them", [0.0], 0.0, 1.0, gives=[0.5, 0.5, 0])
kink("TopK", "of ties the lower index is the larger", [1.0, 1.0, 0.0], C([1]), results=2, gives=[[1, 0, 0]])
kink("LeakyRelu", "alpha at 0", [0.0], alpha=0.25, gives=[0.25])
kink("PRelu", "the slope at 0", [0.0], [0.25], gives=[0.25, 0])
kink("Elu", "alpha at 0", [0.0], alpha=2.0, gives=[2])
kink("Selu", "gamma times alpha at 0", [0.0], alpha=2.0, gamma=3.0, gives=[6])
kink("ThresholdedRelu", "0 at alpha", [1.0], alpha=1.0, gives=[0])
kink("HardSigmoid", "0 at both ends", [-2.0, 2.0], alpha=0.25, gives=[[0, 0]])
kink("HardSwish", "0 at -3, 1 at 3", [-3.0, 3.0], gives=[[0, 1]])
kink("Shrink", "0 at lambd and -lambd", [0.5, -0.5], gives=[[0, 0]])
kink("Softsign", "1 at 0", [0.0], gives=[1])
kink("Pow", "at base 0: exponent 1 gives 1, exponent 0 gives 0", [0.0, 0.0], [1.0, 0.0], gives=[[1, 0], [0, 0]])
kink("Mod", "with respect to the divisor -floor(a / b), also where b divides a", [4.0], [2.0], fmod=1, gives=[1, -2])
kink("ScatterElements", "max, min: halved at a tie of two", [1.0, 5.0], C([0]), [1.0], reduction="max",
     gives=[[0.5, 1], 0.5])
kink("ScatterElements", "none: of equal indices the last one", [0.0, 5.0], C([0, 0]), [2.0, 3.0],
     gives=[[0, 1], [0, 1]])


# ---- gradients inside a model, which the check differentiates once more ----

def gradient(operands, nodes, xs, zs=""):
    inner = helper.make_node("Gradient", f"{xs} {zs}".split(), [f"y{i}" for i in range(len(xs.split()))],
                             domain="ai.onnx.preview.training", xs=xs.split(), y="e", **({"zs": zs.split()} if zs else {}))
    case("Gradient", *operands, nodes=[*nodes, inner], results=len(xs.split()), domain="ai.onnx.preview.training")


gradient([P(3, 4), P(4, 5)], [node("MatMul", "a0 a1", "m"), node("Tanh", "m", "t"), node("Mul", "t m", "p"),
                              node("ReduceSum", "p", "e", keepdims=0)], "a0 a1")
gradient([P(3, 4), P(4)], [node("Mul", "a0 a1", "m"), node("Softmax", "m", "s", axis=-1), node("Mul", "s m", "p"),
                           node("ReduceSum", "p", "e", keepdims=0)], "a0", "a1")
gradient([P(3, 4), P(4)], [node("Mul", "a0 a1", "m"), node("LogSoftmax", "m", "s", axis=0), node("Mul", "s s", "p"),
                           node("Mul", "p m", "q"), node("ReduceMean", "q", "e", keepdims=1)], "m")
gradient([P(1, 2, 6, 6), P(3, 2, 3, 3)], [node("Conv", "a0 a1", "m"), node("Sigmoid", "m", "s"), node("Mul", "s m", "p"),
                                          node("ReduceSum", "p", "e", keepdims=0)], "a0 a1")
