"""ONNX nodes in PyTorch, in f64: what gradients of `make gradcheck` are compared with.

OPS has one function per operator.  It takes the node and its operands (None = absent) and returns a tensor or a tuple.
Floats are f64 tensors, integers i64, so that autograd differentiates what the standard says and nothing is rounded.
A sequence is a Python list.  Gradients at kinks do not matter: cases stay away from them.
"""
import math

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.nn import functional as F

OPS = {}


class Node:
    """A node as its function sees it."""

    def __init__(self, proto, opset, scope):
        self.op, self.opset, self.scope, self.n_out = proto.op_type, opset, scope, len(proto.output)
        self.attrs = {a.name: value_of(a) for a in proto.attribute}

    def get(self, name, default=None):
        return self.attrs.get(name, default)


def value_of(attribute):
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    return tensor(numpy_helper.to_array(value)) if isinstance(value, onnx.TensorProto) else value


def tensor(array):
    array = np.asarray(array)
    kind = {"f": np.float64, "b": np.bool_}.get(array.dtype.kind, np.int64)
    return torch.from_numpy(np.array(array, dtype=kind))


def name_of(proto):
    return f"{proto.domain}.{proto.op_type}" if proto.domain not in ("", "ai.onnx") else proto.op_type


def run_graph(graph, scope, opset):
    """Evaluates a graph; scope: values by name, to which its own are added.  Returns the outputs."""
    for t in graph.initializer:
        scope.setdefault(t.name, tensor(numpy_helper.to_array(t)))
    for proto in graph.node:
        operands = [scope[i] if i else None for i in proto.input]
        result = OPS[name_of(proto)](Node(proto, opset, scope), *operands)
        for name, value in zip(proto.output, result if isinstance(result, tuple) else (result,)):
            scope[name] = value
    return [scope[o.name] for o in graph.output]


def op(*names):
    def add(f):
        OPS.update(dict.fromkeys(names, f))
        return f
    return add


def ints(x):
    return [int(v) for v in (x.tolist() if isinstance(x, torch.Tensor) else x)]


# ---- elementwise ----

def simple(**functions):
    for name, f in functions.items():
        OPS[name] = lambda n, *x, f=f: f(*x)


simple(
    Abs=torch.abs, Acos=torch.acos, Acosh=torch.acosh, Add=torch.add, And=torch.logical_and, Asin=torch.asin,
    Asinh=torch.asinh, Atan=torch.atan, Atanh=torch.atanh, Ceil=torch.ceil, Cos=torch.cos, Cosh=torch.cosh,
    Det=torch.det,
    Equal=torch.eq, Erf=torch.erf, Exp=torch.exp, Floor=torch.floor, Greater=torch.gt, GreaterOrEqual=torch.ge,
    Identity=lambda x: x, IsNaN=torch.isnan, Less=torch.lt, LessOrEqual=torch.le, Log=torch.log, Mish=F.mish,
    MatMul=torch.matmul, Mul=torch.mul, Neg=torch.neg, Not=torch.logical_not, Or=torch.logical_or, Pow=torch.pow,
    Reciprocal=torch.reciprocal, Relu=F.relu, Round=torch.round, Selu=F.selu, Sigmoid=torch.sigmoid, Sign=torch.sign,
    Sin=torch.sin, Sinh=torch.sinh, Softplus=lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    Softsign=lambda x: x / (1 + x.abs()), Sqrt=torch.sqrt, Sub=torch.sub, Tan=torch.tan, Tanh=torch.tanh,
    Where=torch.where, Xor=torch.logical_xor, Max=lambda *x: fold(torch.maximum,
                                                                  x), Min=lambda *x: fold(torch.minimum, x),
    Sum=lambda *x: fold(torch.add, x), Mean=lambda *x: fold(torch.add, x) / len(x),
    PRelu=lambda x, slope: torch.where(x < 0, x * slope, x), HardSwish=lambda x: x * F.relu6(x + 3) / 6)


def fold(f, terms):
    total = terms[0]
    for t in terms[1:]:
        total = f(total, t)
    return total


@op("Div")
def div(n, a, b):
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


@op("Mod")
def mod(n, a, b):
    return torch.fmod(a, b) if n.get("fmod", 0) else torch.remainder(a, b)


@op("Clip")
def clip(n, x, lo=None, hi=None):
    lo, hi = n.get("min", lo), n.get("max", hi)
    if not any(torch.is_tensor(b) and b.requires_grad for b in (lo, hi)):
        return x if lo is None and hi is None else x.clamp(lo, hi)
    x = x if lo is None else torch.maximum(x, torch.as_tensor(lo, dtype=x.dtype))
    return x if hi is None else torch.minimum(x, torch.as_tensor(hi, dtype=x.dtype))


@op("Cast")
def cast(n, x):
    to = n.get("to")
    to = onnx.TensorProto.DataType.Value(to) if isinstance(to, str) else to
    kind = {onnx.TensorProto.BOOL: torch.bool, onnx.TensorProto.FLOAT: torch.float64,
            onnx.TensorProto.DOUBLE: torch.float64}
    return x.to(kind.get(to, torch.int64))


OPS["CastLike"] = lambda n, x, like: x.to(like.dtype)


@op("Dropout")
def dropout(n, x, *rest):
    return x, torch.ones_like(x, dtype=torch.bool)


# ---- activations ----

OPS["Celu"] = lambda n, x: F.celu(x, n.get("alpha", 1.0))
OPS["Elu"] = lambda n, x: F.elu(x, n.get("alpha", 1.0))
OPS["Gelu"] = lambda n, x: F.gelu(x, approximate=n.get("approximate", "none"))
OPS["HardSigmoid"] = lambda n, x: (n.get("alpha", 0.2) * x + n.get("beta", 0.5)).clamp(0, 1)
OPS["LeakyRelu"] = lambda n, x: F.leaky_relu(x, n.get("alpha", 0.01))
OPS["Swish"] = lambda n, x: x * torch.sigmoid(n.get("alpha", 1.0) * x)
OPS["ThresholdedRelu"] = lambda n, x: torch.where(x > n.get("alpha", 1.0), x, 0.0)
OPS["Selu"] = lambda n, x: n.get("gamma", 1.05070102214813232421875) * torch.where(
    x > 0, x, n.get("alpha", 1.67326319217681884765625) * torch.expm1(x))


@op("Shrink")
def shrink(n, x):
    bias, lambd = n.get("bias", 0.0), n.get("lambd", 0.5)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, 0.0))


@op("Softmax", "LogSoftmax", "Hardmax")
def softmax(n, x):
    f = {"Softmax": torch.softmax, "LogSoftmax": torch.log_softmax, "Hardmax": one_hot_of_max}[n.op]
    if n.opset >= 13:
        return f(x, n.get("axis", -1))
    axis = n.get("axis", 1)
    rows = math.prod(x.shape[:axis if axis >= 0 else axis + x.dim()])
    return f(x.reshape(rows, -1), 1).reshape(x.shape)


def one_hot_of_max(x, axis):
    return F.one_hot(x.argmax(axis), x.shape[axis]).movedim(-1, axis).to(x.dtype)


OPS["SwiGLU"] = lambda n, a, b: a * torch.sigmoid(n.get("alpha", 1.0) * a) * b


# ---- shapes and movement ----

OPS["Concat"] = lambda n, *x: torch.cat(x, n.get("axis", 1))
OPS["Flatten"] = lambda n, x: x.reshape(math.prod(x.shape[:n.get("axis",
                                                                 1) + (x.dim() if n.get("axis", 1) < 0 else 0)]),
                                       -1)
OPS["Transpose"] = lambda n, x: x.permute(*n.get("perm", range(x.dim())[::-1]))
OPS["Tile"] = lambda n, x, repeats: x.repeat(*ints(repeats))
OPS["Expand"] = lambda n, x, shape: x * torch.ones(ints(shape), dtype=x.dtype)


@op("Reshape")
def reshape(n, x, shape):
    sizes = ints(shape)
    if not n.get("allowzero", 0):
        sizes = [x.shape[i] if s == 0 else s for i, s in enumerate(sizes)]
    return x.reshape(sizes)


@op("Squeeze")
def squeeze(n, x, axes=None):
    axes = n.get("axes", axes)
    axes = [i for i, s in enumerate(x.shape) if s == 1] if axes is None else ints(axes)
    for a in sorted((a % x.dim() for a in axes), reverse=True):
        x = x.squeeze(a)
    return x


@op("Unsqueeze")
def unsqueeze(n, x, axes=None):
    axes = ints(n.get("axes", axes))
    for a in sorted(a % (x.dim() + len(axes)) for a in axes):
        x = x.unsqueeze(a)
    return x


@op("Slice")
def slice_(n, x, starts=None, ends=None, axes=None, steps=None):
    starts, ends = ints(n.get("starts", starts)), ints(n.get("ends", ends))
    axes = n.get("axes", axes)
    axes = range(len(starts)) if axes is None else ints(axes)
    steps = [1] * len(starts) if steps is None else ints(steps)
    for axis, start, end, step in zip(axes, starts, ends, steps):
        x = x.index_select(axis, torch.arange(x.shape[axis])[range_of(x.shape[axis], start, end, step)])
    return x


def range_of(size, start, end, step):
    return torch.tensor(list(range(size))[slice(start, end if end >= -size else None, step)], dtype=torch.int64)


@op("Split")
def split(n, x, sizes=None):
    sizes, axis = n.get("split", sizes), n.get("axis", 0)
    if sizes is not None:
        return tuple(torch.split(x, ints(sizes), axis))
    return tuple(torch.split(x, -(-x.shape[axis] // n.get("num_outputs", n.n_out)), axis))


@op("Pad")
def pad(n, x, pads=None, value=None, axes=None):
    pads = ints(n.get("pads", pads))
    value = n.get("value", 0.0 if value is None else value)
    axes = range(x.dim()) if axes is None else ints(axes)
    for axis, before, after in zip(axes, pads[:len(pads) // 2], pads[len(pads) // 2:]):
        x = pad_axis(x, axis, before, after, n.get("mode", "constant"), value)
    return x


def pad_axis(x, axis, before, after, mode, value):
    size = x.shape[axis]
    at = torch.arange(-before, size + after)
    inside = (at >= 0) & (at < size)
    period = 2 * (size - 1)
    where = {"constant": at.clamp(0, size - 1), "edge": at.clamp(0, size - 1), "wrap": at % size,
             "reflect": (size - 1) - ((at % max(period, 1)) - (size - 1)).abs()}[mode]
    y = x.index_select(axis, where)
    if mode != "constant":
        return y
    shape = [-1 if i == axis % x.dim() else 1 for i in range(x.dim())]
    return torch.where(inside.reshape(shape), y, torch.as_tensor(value, dtype=x.dtype))


@op("CenterCropPad")
def center_crop_pad(n, x, shape):
    axes = n.get("axes", range(x.dim()))
    for axis, size in zip(axes, ints(shape)):
        have = x.shape[axis]
        if size < have:
            x = x.narrow(axis, (have - size) // 2, size)
        else:
            x = pad_axis(x, axis, (size - have) // 2, size - have - (size - have) // 2, "constant", 0.0)
    return x


@op("DepthToSpace")
def depth_to_space(n, x):
    b, (N, C, H, W) = n.get("blocksize"), x.shape
    if n.get("mode", "DCR") == "DCR":
        y = x.reshape(N, b, b, C // b // b, H, W).permute(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(N, C // b // b, b, b, H, W).permute(0, 1, 4, 2, 5, 3)
    return y.reshape(N, C // b // b, H * b, W * b)


@op("SpaceToDepth")
def space_to_depth(n, x):
    b, (N, C, H, W) = n.get("blocksize"), x.shape
    y = x.reshape(N, C, H // b, b, W // b, b)
    y = y.permute(0, 3, 5, 1, 2, 4) if n.get("mode", "DCR") == "DCR" else y.permute(0, 1, 3, 5, 2, 4)
    return y.reshape(N, C * b * b, H // b, W // b)


# ---- constants and control ----

OPS["Trilu"] = lambda n, x, k=None: (torch.triu if n.get("upper", 1) else torch.tril)(x, 0 if k is None else int(k))
OPS["Shape"] = lambda n, x: torch.tensor(x.shape[n.get("start", 0):n.get("end", x.dim())])
OPS["Size"] = lambda n, x: torch.tensor(x.numel())


@op("Constant")
def constant(n):
    (kind, value), = n.attrs.items()
    return value if kind == "value" else tensor(value)


@op("If")
def if_(n, condition):
    result = run_graph(n.get("then_branch" if condition else "else_branch"), dict(n.scope), n.opset)
    return tuple(result)


@op("Loop")
def loop(n, trips, condition, *carried):
    body, carried, scans = n.get("body"), list(carried), []
    k, go = 0, condition is None or bool(condition)
    while go and (trips is None or k < int(trips)):
        names = [i.name for i in body.input]
        state = dict(n.scope, **dict(zip(names, [torch.tensor(k), torch.tensor(True), *carried])))
        go, *rest = run_graph(body, state, n.opset)
        carried, scan = rest[:len(carried)], rest[len(carried):]
        scans.append(scan)
        k, go = k + 1, bool(go)
    return (*carried, *(torch.stack(s) for s in zip(*scans)))


@op("Scan")
def scan(n, *operands):
    body, n_scan = n.get("body"), n.get("num_scan_inputs")
    state, xs = list(operands[:len(operands) - n_scan]), operands[len(operands) - n_scan:]
    in_axes = n.get("scan_input_axes", [0] * n_scan)
    n_out = len(body.output) - len(state)
    back_in = n.get("scan_input_directions", [0] * n_scan)
    back_out = n.get("scan_output_directions", [0] * n_out)
    out_axes = n.get("scan_output_axes", [0] * n_out)
    length, outs = xs[0].shape[in_axes[0]], []
    for t in range(length):
        parts = [x.select(a, length - 1 - t if b else t) for x, a, b in zip(xs, in_axes, back_in)]
        names = [i.name for i in body.input]
        result = run_graph(body, dict(n.scope, **dict(zip(names, [*state, *parts]))), n.opset)
        state = result[:len(state)]
        outs.append(result[len(state):])
    return (*state, *(torch.stack(o[::-1] if b else o, a) for o, b, a in zip(zip(*outs), back_out, out_axes)))


# ---- indexing ----

@op("Gather")
def gather(n, x, ids):
    axis = n.get("axis", 0) % x.dim()
    y = x.index_select(axis, (ids % x.shape[axis]).reshape(-1))
    return y.reshape(*x.shape[:axis], *ids.shape, *x.shape[axis + 1:])


@op("GatherElements")
def gather_elements(n, x, ids):
    return torch.gather(x, n.get("axis", 0), ids % x.shape[n.get("axis", 0)])


@op("GatherND")
def gather_nd(n, x, ids):
    b = n.get("batch_dims", 0)
    lead = torch.meshgrid(*[torch.arange(s) for s in x.shape[:b]], indexing="ij") if b else ()
    tail = ids.shape[b:-1]
    lead = [i.reshape(*i.shape, *[1] * len(tail)) for i in lead]
    return x[(*lead, *ids.unbind(-1))]


@op("Scatter", "ScatterElements")
def scatter_elements(n, x, ids, updates):
    axis, reduce = n.get("axis", 0), n.get("reduction", "none")
    ids = ids % x.shape[axis]
    if reduce == "none":
        return x.scatter(axis, ids, updates)
    return x.scatter_reduce(axis, ids, updates, {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[reduce])


@op("ScatterND")
def scatter_nd(n, x, ids, updates):
    reduce, k = n.get("reduction", "none"), ids.shape[-1]
    inner = math.prod(x.shape[k:])
    strides = torch.tensor([math.prod(x.shape[i + 1:k]) for i in range(k)], dtype=torch.int64)
    sizes = torch.tensor(x.shape[:k], dtype=torch.int64)
    rows = ((ids % sizes) * strides).sum(-1).reshape(-1, 1).expand(-1, inner)
    flat, given = x.reshape(-1, inner), updates.reshape(-1, inner)
    if reduce == "none":
        return flat.scatter(0, rows, given).reshape(x.shape)
    kind = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[reduce]
    return flat.scatter_reduce(0, rows, given, kind).reshape(x.shape)


@op("TensorScatter")
def tensor_scatter(n, past, update, indices=None):
    axis = n.get("axis", -2) % past.dim()
    y = past.clone()
    for b in range(past.shape[0]):
        start = 0 if indices is None else int(indices[b])
        for t in range(update.shape[axis]):
            at = (start + t) % past.shape[axis] if n.get("mode", "linear") == "circular" else start + t
            y[b].select(axis - 1, at).copy_(update[b].select(axis - 1, t))
    return y


@op("Compress")
def compress(n, x, condition):
    keep = condition.nonzero().reshape(-1)
    if n.get("axis") is None:
        return x.reshape(-1)[keep]
    return x.index_select(n.get("axis"), keep)


@op("CumSum", "CumProd")
def cumulate(n, x, axis):
    axis, start = int(axis), 0.0 if n.op == "CumSum" else 1.0
    x = x.flip(axis) if n.get("reverse", 0) else x
    if n.get("exclusive", 0):
        first = torch.full_like(x.narrow(axis, 0, 1), start)
        x = torch.cat([first, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
    y = torch.cumsum(x, axis) if n.op == "CumSum" else torch.cumprod(x, axis)
    return y.flip(axis) if n.get("reverse", 0) else y


@op("OneHot")
def one_hot(n, ids, depth, values):
    axis, depth = n.get("axis", -1), int(depth)
    hot = F.one_hot(ids % depth, depth).movedim(-1, axis).bool()
    return torch.where(hot, values[1], values[0])


@op("ReverseSequence")
def reverse_sequence(n, x, lengths):
    time, batch = n.get("time_axis", 0), n.get("batch_axis", 1)
    at = torch.arange(x.shape[time]).unsqueeze(1)
    at = torch.where(at < lengths, lengths - 1 - at, at)      # [time, batch]
    at = at if time < batch else at.T
    shape = [x.shape[i] if i in (time, batch) else 1 for i in range(x.dim())]
    return torch.gather(x, time, at.reshape(shape).expand(x.shape))


@op("TopK")
def topk(n, x, k=None):
    k = n.get("k") if k is None else int(k)
    return tuple(torch.topk(x, k, n.get("axis", -1), bool(n.get("largest", 1))))


# ---- reductions ----

REDUCTIONS = {
    "ReduceL1": lambda x, a, k: x.abs().sum(a, k), "ReduceL2": lambda x, a, k: x.square().sum(a, k).sqrt(),
    "ReduceLogSum": lambda x, a, k: x.sum(a, k).log(), "ReduceLogSumExp": lambda x, a, k: torch.logsumexp(x, a, k),
    "ReduceMax": lambda x, a, k: x.amax(a, k), "ReduceMean": lambda x, a, k: x.mean(a, k),
    "ReduceMin": lambda x, a, k: x.amin(a, k), "ReduceSum": lambda x, a, k: x.sum(a, k),
    "ReduceSumSquare": lambda x, a, k: x.square().sum(a, k)}


@op("ReduceProd", *REDUCTIONS)
def reduce(n, x, axes=None):
    axes, keep = n.get("axes", axes), bool(n.get("keepdims", 1))
    if axes is None or len(axes) == 0:
        if n.get("noop_with_empty_axes", 0):
            return x
        axes = range(x.dim())
    axes = sorted((a % x.dim() for a in ints(axes)), reverse=True)
    if n.op != "ReduceProd":
        return REDUCTIONS[n.op](x, tuple(axes), keep) if axes else x
    for a in axes:
        x = x.prod(a, keep)
    return x


@op("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(n, x):
    axes = tuple(range(2, x.dim()))
    if n.op == "GlobalLpPool":
        p = n.get("p", 2)
        return x.abs().pow(p).sum(axes, True).pow(1 / p)
    return x.mean(axes, True) if n.op == "GlobalAveragePool" else x.amax(axes, True)


@op("LpNormalization")
def lp_normalization(n, x):
    axis = n.get("axis", -1)
    return x / (x.abs().sum(axis, True) if n.get("p", 2) == 1 else x.square().sum(axis, True).sqrt())


# ---- linear algebra ----

OPS["Einsum"] = lambda n, *x: torch.einsum(n.get("equation").replace(" ", ""), *x)


@op("Gemm")
def gemm(n, a, b, c=None):
    y = n.get("alpha", 1.0) * ((a.T if n.get("transA", 0) else a) @ (b.T if n.get("transB", 0) else b))
    return y if c is None else y + n.get("beta", 1.0) * c


# ---- convolution and pooling ----

def auto_pads(n, sizes, kernel, strides, dilations):
    """pads before and after each spatial dim"""
    rank, mode = len(sizes), n.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        pads = n.get("pads", [0] * 2 * rank)
        return pads[:rank], pads[rank:]
    if mode == "VALID":
        return [0] * rank, [0] * rank
    total = [max((-(-s // st) - 1) * st + (k - 1) * d + 1 - s, 0)
             for s, k, st, d in zip(sizes, kernel, strides, dilations)]
    small, large = [t // 2 for t in total], [t - t // 2 for t in total]
    return (small, large) if mode == "SAME_UPPER" else (large, small)


def pad_spatial(x, before, after, value=0.0):
    flat = [p for pair in reversed(list(zip(before, after))) for p in pair]
    return F.pad(x, flat, value=value)


@op("Conv")
def conv(n, x, w, b=None):
    rank = x.dim() - 2
    strides, dilations = n.get("strides", [1] * rank), n.get("dilations", [1] * rank)
    x = pad_spatial(x, *auto_pads(n, x.shape[2:], w.shape[2:], strides, dilations))
    f = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return f(x, w, b, strides, 0, dilations, n.get("group", 1))


@op("ConvTranspose")
def conv_transpose(n, x, w, b=None):
    rank = x.dim() - 2
    strides, dilations = n.get("strides", [1] * rank), n.get("dilations", [1] * rank)
    extra, shape = n.get("output_padding", [0] * rank), n.get("output_shape")
    full = [(s - 1) * st + (k - 1) * d + 1 + e
            for s, st, k, d, e in zip(x.shape[2:], strides, w.shape[2:], dilations, extra)]
    mode = n.get("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER") and shape is None:
        shape = [s * st for s, st in zip(x.shape[2:], strides)]
    if shape is None:
        pads = n.get("pads", [0] * 2 * rank)
        before, after = pads[:rank], pads[rank:]
    else:
        total = [f - s for f, s in zip(full, shape)]
        before = [t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in total]
        after = [t - p for t, p in zip(total, before)]
    f = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    y = f(x, w, b, strides, 0, 0, n.get("group", 1), dilations)
    grown = [f - s for f, s in zip(full, y.shape[2:])]
    if any(grown):  # output padding beyond what PyTorch allows: rows that nothing reaches, but the bias
        y = pad_spatial(y, [0] * rank, grown)
        if b is not None:
            reached = pad_spatial(torch.ones_like(y[..., :full[-1] - grown[-1]]) if rank == 1 else torch.ones(
                [1, 1] + [f - g for f, g in zip(full, grown)], dtype=y.dtype), [0] * rank, grown)
            y = y + b.reshape(-1, *[1] * rank) * (1 - reached)
    return pad_spatial(y, [-p for p in before], [-p for p in after])


def windows(n, x, value):
    """[N,C,out..,kernel]: the windows of a pooling, padded with `value`; and which elements are inside x."""
    kernel, rank = n.get("kernel_shape"), x.dim() - 2
    strides, dilations = n.get("strides", [1] * rank), n.get("dilations", [1] * rank)
    before, after = auto_pads(n, x.shape[2:], kernel, strides, dilations)
    index, inside, padded = [], [], []
    for s, k, st, d, p, q in zip(x.shape[2:], kernel, strides, dilations, before, after):
        span = s + p + q - (k - 1) * d - 1
        out = (-(-span // st) if n.get("ceil_mode", 0) else span // st) + 1
        if n.get("ceil_mode", 0) and (out - 1) * st >= s + p:
            out -= 1
        at = torch.arange(out).unsqueeze(1) * st - p + torch.arange(k) * d
        index.append(at.clamp(0, s - 1))
        inside.append((at >= 0) & (at < s))
        padded.append((at >= -p) & (at < s + q))
    for axis, at in enumerate(index):
        dim = 2 + 2 * axis
        x = x.index_select(dim, at.reshape(-1)).unflatten(dim, at.shape)
    order = [0, 1, *range(2, x.dim(), 2), *range(3, x.dim(), 2)]
    return (x.permute(order).flatten(2 + rank), *(outer(m, rank) for m in (inside, padded)))


def outer(masks, rank):
    total = torch.tensor(True)
    for axis, m in enumerate(masks):
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = m.shape
        total = total & m.reshape(shape)
    return total.flatten(rank)


@op("AveragePool")
def average_pool(n, x):
    w, inside, padded = windows(n, x, 0.0)
    count = (padded if n.get("count_include_pad", 0) else inside).sum(-1)
    return torch.where(inside, w, 0.0).sum(-1) / count


@op("LpPool")
def lp_pool(n, x):
    w, inside, _ = windows(n, x, 0.0)
    p = n.get("p", 2)
    return torch.where(inside, w, 0.0).abs().pow(p).sum(-1).pow(1 / p)


@op("MaxPool")
def max_pool(n, x):
    w, inside, _ = windows(n, x, -math.inf)
    return torch.where(inside, w, -math.inf).amax(-1)


@op("MaxUnpool")
def max_unpool(n, x, ids, shape=None):
    rank = x.dim() - 2
    kernel, strides, pads = n.get("kernel_shape"), n.get("strides", [1] * rank), n.get("pads", [0] * 2 * rank)
    made = [*x.shape[:2], *((s - 1) * st + k - pads[i] - pads[i + rank]
                            for i, (s, st, k) in enumerate(zip(x.shape[2:], strides, kernel)))]
    y = torch.zeros(math.prod(made), dtype=x.dtype).scatter(0, ids.reshape(-1), x.reshape(-1)).reshape(made)
    if shape is None:
        return y
    return pad_spatial(y, [0] * rank, [b - a for a, b in zip(made[2:], ints(shape)[2:])])


@op("Col2Im")
def col2im(n, x, image, block):
    image, block = ints(image), ints(block)
    rank = len(image)
    pads, strides, dilations = n.get("pads", [0] * 2 * rank), n.get("strides", [1] * rank), n.get("dilations",
                                                                                                  [1] * rank)
    big = [s + pads[i] + pads[i + rank] for i, s in enumerate(image)]
    at = torch.zeros(1, 1, dtype=torch.int64)
    for s, k, st, d in zip(big, block, strides, dilations):
        steps = (s - (k - 1) * d - 1) // st + 1
        one = (torch.arange(k) * d).reshape(-1, 1) + torch.arange(steps) * st
        at = (at.reshape(at.shape[0], 1, at.shape[1], 1) * s + one.reshape(1, k, 1, steps)).reshape(
            at.shape[0] * k, at.shape[1] * steps)
    C = x.shape[1] // math.prod(block)
    flat = torch.zeros(x.shape[0], C, math.prod(big), dtype=x.dtype)
    y = flat.index_add(2, at.reshape(-1), x.reshape(x.shape[0], C, -1)).reshape(x.shape[0], C, *big)
    return pad_spatial(y, [-p for p in pads[:rank]], [-p for p in pads[rank:]])


# ---- normalisation ----

def channelwise(v, x):
    return v.reshape(1, -1, *[1] * (x.dim() - 2))


@op("BatchNormalization")
def batch_norm(n, x, w, b, mean, var):
    if n.get("training_mode", 0):
        axes = [0, *range(2, x.dim())]
        mean, var = x.mean(axes), x.var(axes, correction=0)
    y = (x - channelwise(mean, x)) / (channelwise(var, x) + n.get("epsilon", 1e-5)).sqrt()
    return y * channelwise(w, x) + channelwise(b, x)


def standardise(x, axes, eps):
    return (x - x.mean(axes, True)) / (x.var(axes, correction=0, keepdim=True) + eps).sqrt()


@op("InstanceNormalization")
def instance_norm(n, x, w, b):
    return standardise(x, tuple(range(2, x.dim())), n.get("epsilon", 1e-5)) * channelwise(w, x) + channelwise(b, x)


@op("GroupNormalization")
def group_norm(n, x, w, b):
    groups = n.get("num_groups")
    y = standardise(x.reshape(x.shape[0], groups, -1), (2,), n.get("epsilon", 1e-5))
    if n.opset < 21:
        return (y.reshape(x.shape[0], groups, -1) * w.reshape(1, -1, 1) + b.reshape(1, -1, 1)).reshape(x.shape)
    return y.reshape(x.shape) * channelwise(w, x) + channelwise(b, x)


@op("LayerNormalization")
def layer_norm(n, x, w, b=None):
    axes = tuple(range(n.get("axis", -1) % x.dim(), x.dim()))
    mean, rstd = x.mean(axes, True), 1 / (x.var(axes, correction=0, keepdim=True) + n.get("epsilon", 1e-5)).sqrt()
    y = (x - mean) * rstd * w
    return (y if b is None else y + b), mean, rstd


@op("RMSNormalization")
def rms_norm(n, x, w):
    axes = tuple(range(n.get("axis", -1) % x.dim(), x.dim()))
    return x / (x.square().mean(axes, True) + n.get("epsilon", 1e-5)).sqrt() * w


@op("LRN")
def lrn(n, x):
    size = n.get("size")
    square = F.pad(x.square().movedim(1, -1), ((size - 1) // 2, size // 2)).unfold(-1, size, 1).sum(-1).movedim(-1, 1)
    return x / (n.get("bias", 1.0) + n.get("alpha", 1e-4) / size * square) ** n.get("beta", 0.75)


@op("MeanVarianceNormalization")
def mean_variance_norm(n, x):
    axes = tuple(n.get("axes", [0, 2, 3]))
    centred = x - x.mean(axes, True)
    return centred / (centred.square().mean(axes, True).sqrt() + 1e-9)


# ---- losses ----

def reduce_loss(n, loss, weight):
    kind = n.get("reduction", "mean")
    return loss if kind == "none" else loss.sum() if kind == "sum" else loss.sum() / weight.sum()


@op("NegativeLogLikelihoodLoss")
def nll_loss(n, logp, labels, weights=None):
    ignore = n.get("ignore_index")
    valid = torch.ones_like(labels, dtype=torch.bool) if ignore is None else labels != ignore
    safe = torch.where(valid, labels, 0)
    w = torch.ones_like(logp[:, 0]) if weights is None else weights[safe]
    w = torch.where(valid, w, 0.0)
    return reduce_loss(n, -torch.gather(logp, 1, safe.unsqueeze(1)).squeeze(1) * w, w)


@op("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(n, logits, labels, weights=None):
    logp = torch.log_softmax(logits, 1)
    return nll_loss(n, logp, labels, weights), logp


# ---- sequences ----

OPS["Optional"] = lambda n, x=None: x
OPS["OptionalGetElement"] = lambda n, x: x
OPS["OptionalHasElement"] = lambda n, x=None: torch.tensor(x is not None)
OPS["SequenceConstruct"] = lambda n, *x: list(x)
OPS["SequenceEmpty"] = lambda n: []
OPS["SequenceAt"] = lambda n, s, at: s[int(at)]
OPS["SequenceLength"] = lambda n, s: torch.tensor(len(s))
OPS["ConcatFromSequence"] = lambda n, s: (torch.stack if n.get("new_axis", 0) else torch.cat)(s, n.get("axis"))


@op("SequenceErase")
def sequence_erase(n, s, at=None):
    gone = (-1 if at is None else int(at)) % len(s)
    return [x for i, x in enumerate(s) if i != gone]


@op("SequenceInsert")
def sequence_insert(n, s, x, at=None):
    at = len(s) if at is None else int(at)
    at = at + len(s) if at < 0 else at
    return s[:at] + [x] + s[at:]


@op("SplitToSequence")
def split_to_sequence(n, x, sizes=None):
    axis = n.get("axis", 0)
    if sizes is None:
        parts = torch.split(x, 1, axis)
        return [p if n.get("keepdims", 1) else p.squeeze(axis) for p in parts]
    return list(torch.split(x, int(sizes) if sizes.dim() == 0 else ints(sizes), axis))


@op("SequenceMap")
def sequence_map(n, *operands):
    body, many = n.get("body"), next(len(x) for x in operands if isinstance(x, list))
    names, results = [i.name for i in body.input], []
    for k in range(many):
        given = [x[k] if isinstance(x, list) else x for x in operands]
        results.append(run_graph(body, dict(n.scope, **dict(zip(names, given))), n.opset))
    return tuple(list(r) for r in zip(*results))


@op("ai.onnx.preview.training.Gradient")
def gradient(n, *operands):
    xs, zs = ([name.decode() for name in n.get(of, [])] for of in ("xs", "zs"))
    at = [n.scope[name] for name in xs]
    assert all(x is y for x, y in zip(at + [n.scope[name] for name in zs], operands)), "other operands than xs and zs"
    grads = torch.autograd.grad(n.scope[n.get("y")], at, create_graph=True, allow_unused=True)
    return tuple(torch.zeros_like(x) if g is None else g for x, g in zip(at, grads))
