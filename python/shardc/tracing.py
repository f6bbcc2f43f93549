"""What a module does while an exporter watches it: where gradients stop is marked, dropout is written out.

A torch function mode sees every function that the module calls, below the wrappers of torch.nn.functional.  Autograd
is on while both exporters trace, so it knows where gradients stop: at a result of floats that requires no gradient
although an operand does.  That covers detach(), .data, no_grad, inference_mode and set_grad_enabled alike.  Such a
result passes through the operator shardc::stop_gradient, which exporters write as a node of our own."""
import contextlib
import functools
import math

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .errors import ExportError


@torch.library.custom_op("shardc::stop_gradient", mutates_args=())
def stop_gradient(x: torch.Tensor) -> torch.Tensor:
    """Its operand, through which no gradient passes."""
    return x.clone()


@stop_gradient.register_fake
def _(x):
    return torch.empty_like(x)


# ---- dropout, written so that it trains ----

def drop(x, p):
    return torch.dropout(x, p, True)


def ones_of(x):
    """Ones in the shape of x, computed from x: a compiler that splits batches sees which axis holds the samples."""
    return x.detach().clamp(1, 1)


def first_of(x):
    """[N, C, 1, ..]: one element of each channel."""
    for axis in range(2, x.dim()):
        x = x.narrow(axis, 0, 1)
    return x


def keep_mask(like, p):
    """1 where an element is kept, else 0, of dropout's own randomness."""
    return torch.sign(drop(ones_of(like), p))


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """scaled_dot_product_attention as products and a softmax, whose weights are dropped."""
    if enable_gqa:
        groups = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = torch.matmul(query, key.transpose(-2, -1)) * scale
    lowest = torch.finfo(scores.dtype).min
    kept = None
    if is_causal:
        causal = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~causal, lowest)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, lowest)
        kept = attn_mask.to(scores.dtype).amax(-1, keepdim=True)  # a row without any key gives zeros
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.softmax(scores, -1)
    weights = weights if kept is None else weights * kept
    return torch.matmul(drop(weights, dropout_p) if dropout_p else weights, value)


def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    """A lookup whose row `padding_idx` gets no gradient."""
    rows = torch.embedding(weight, indices)
    return torch.where((indices == padding_idx).unsqueeze(-1), rows.detach(), rows)


def feature_dropout(x, p):
    return x * drop(ones_of(first_of(x)), p)


SELU = -1.7580993408473766  # what alpha dropout puts in place of a value


def alpha_dropout(x, p, like=None):
    a = 1 / math.sqrt((SELU ** 2 * p + 1) * (1 - p))
    keep = keep_mask(x if like is None else like, p)
    return a * (x * keep + SELU * (1 - keep)) - a * SELU * p


def feature_alpha_dropout(x, p):
    return alpha_dropout(x, p, first_of(x))


FAMILY = {"feature_dropout": feature_dropout, "alpha_dropout": alpha_dropout,
          "feature_alpha_dropout": feature_alpha_dropout}
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def layered(func, x, state, weights, biases, layers, p, two_ways, batch_first):
    """A stack of recurrent layers, one by one, with dropout between them."""
    states = state if isinstance(state, (tuple, list)) else (state,)
    ways = 2 if two_ways else 1
    each, ends = len(weights) // layers, []
    for i in range(layers):
        own = [s[i * ways:(i + 1) * ways] for s in states]
        own = tuple(own) if len(own) > 1 else own[0]
        x, *end = func(x, own, weights[i * each:(i + 1) * each], biases, 1, 0.0, True, two_ways, batch_first)
        ends.append(end)
        if i < layers - 1:
            x = drop(x, p)
    return (x, *(torch.cat(column) for column in zip(*ends)))


# ---- what the TorchScript exporter has no operator for ----

def reduced(losses, reduction):
    return {"mean": losses.mean, "sum": losses.sum, "none": lambda: losses}[reduction]()


def smooth_l1(a, b, beta):
    off = (a - b).abs()
    return torch.where(off < beta, 0.5 * off * off / beta, off - 0.5 * beta) if beta > 0 else off


def huber(a, b, delta):
    off = (a - b).abs()
    return torch.where(off < delta, 0.5 * off * off, delta * (off - 0.5 * delta))


REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


def written_loss(one, x, target, reduction=1, width=1.0):
    return reduced(one(x, target, width), REDUCTIONS[reduction])


def difference(x, n=1, dim=-1, prepend=None, append=None):
    ends = [t for t in (prepend, x, append) if t is not None]
    x = torch.cat(ends, dim) if len(ends) > 1 else x
    for _ in range(n):
        length = x.size(dim) - 1
        now, before = x.narrow(dim, 1, length), x.narrow(dim, 0, length)
        x = now != before if x.dtype == torch.bool else now - before
    return x


def running_sum(x, dim, dtype=None):
    """An exporter writes a sum of booleans as one, which ONNX does not have."""
    return torch.cumsum(x.to(torch.int64) if x.dtype == torch.bool else x, dim, dtype=dtype)


WRITTEN = {"smooth_l1_loss": functools.partial(written_loss, smooth_l1),
           "huber_loss": functools.partial(written_loss, huber), "diff": difference}


# ---- functions that a graph cannot hold ----

REFUSED = {
    "detach_": "calls detach_() on a value, in place: write x = x.detach()",
    "register_hook": "puts a hook on a value's gradient, which a graph cannot hold: compute with detach() instead, as "
                     "y = s * x + (x - s * x).detach() to scale a gradient by s",
    "backward": "calls backward() inside forward: return the loss",
    "embedding_renorm_": "looks up in an embedding with max_norm, which changes the weight in place: leave it out",
    "rrelu": "calls rrelu in training mode: its random slopes have no ONNX operator; use leaky_relu",
    "rrelu_with_noise": "calls rrelu in training mode: its random slopes have no ONNX operator; use leaky_relu",
}


NUMBERS = ("item", "tolist", "numpy", "__float__", "__int__", "__index__", "__array__")


def is_data(func):
    return getattr(getattr(func, "__self__", None), "__name__", "") == "data"


def refused(name, func, args):
    if func is torch.autograd.grad:
        raise ExportError("forward calls torch.autograd.grad: a program has one backward pass, of the loss; "
                          "a gradient penalty cannot be exported")
    if name == "__set__" and is_data(func):
        raise ExportError("forward assigns to .data of a tensor: compute a new value instead")
    if name in NUMBERS and isinstance(args[0], torch.Tensor) and args[0].requires_grad:
        raise ExportError(f"forward takes a number out of a value that depends on parameters ({name}): the program "
                          "would keep the number of now; compute with tensors")
    if name not in REFUSED or name == "rrelu" and not (len(args) > 3 and args[3]):
        return
    if name == "detach_" and not args[0].requires_grad:
        return
    raise ExportError(f"forward {REFUSED[name]}")


NOT_IN_PLACE = ("__init__", "__int__", "__index__", "__iter__", "__invert__")


def is_in_place(name):
    if name.startswith("__"):
        return name == "__setitem__" or name.startswith("__i") and name not in NOT_IN_PLACE
    return name.endswith("_")


class Watching(TorchFunctionMode):
    """Rewrites what the module calls.

    quiet: nothing is dropped and nothing marked: a forward whose results can be compared.
    Attributes: dropped, the rates of dropout in their order."""

    def __init__(self, quiet):
        super().__init__()
        self.quiet, self.dropped = quiet, []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "_set_grad_enabled":
            with torch._C.DisableTorchFunction():  # the exporter needs no record of it
                return func(*args, **kwargs)
        refused(name, func, args)
        rewritten = self.rewritten(name, func, args, kwargs)
        if rewritten is not None:
            return rewritten[0]
        if not self.quiet and is_in_place(name):
            return self.in_place(func, args, kwargs)
        return self.marked(name, args, kwargs, func(*args, **kwargs))

    # A rewritten function calls others, which this mode has to see again.
    def rewritten(self, name, func, args, kwargs):
        if name == "__get__" and is_data(func):  # tracing takes what .data gives for a constant
            return (self.__torch_function__(torch.Tensor.detach, (), args),)
        base = name.rstrip("_") if not name.startswith("__") else name
        if base == "dropout" and self.trains(args, kwargs):
            return self.dropout(func, args, kwargs)
        if base in FAMILY and self.trains(args, kwargs):
            with self:
                return (FAMILY[base](args[0], args[1]),)
        if name == "scaled_dot_product_attention" and needs_writing_out(*args, **kwargs):
            with self:
                return (attention(*args, **kwargs),)
        if name == "embedding" and weight_is_padded(*args, **kwargs):
            with self:
                return (embedding(*args, **kwargs),)
        if name in WRITTEN or name == "cumsum" and args[0].dtype == torch.bool:
            with self:
                return (WRITTEN.get(name, running_sum)(*args, **kwargs),)
        if name in RECURRENT and len(args) >= 8:
            return self.recurrent(func, args)
        return None

    @staticmethod
    def trains(args, kwargs):
        p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        train = args[2] if len(args) > 2 else kwargs.get("train", kwargs.get("training", True))
        return train and p > 0

    def dropout(self, func, args, kwargs):
        self.dropped.append(float(args[1] if len(args) > 1 else kwargs.get("p", 0.5)))
        if self.quiet:
            return (args[0],)
        return None if not func.__name__.endswith("_") else (torch.dropout(args[0], args[1], True),)

    def recurrent(self, func, args):
        packed = isinstance(args[1], torch.Tensor) and isinstance(args[2], (tuple, list)) and args[3] is not True \
            and isinstance(args[3], (tuple, list))
        *head, layers, p, train, two_ways = args[:8] if not packed else args[:8]
        if not (train and p > 0 and layers > 1):
            return None
        if packed:
            raise ExportError("a recurrent module with dropout between its layers is given a packed sequence: "
                              "pass padded sequences, or use one module for each layer with nn.Dropout between them")
        x, state, weights, biases = args[:4]
        with self:
            return (layered(func, x, state, weights, biases, layers, p, two_ways, args[8]),)

    # Without gradients, what is put into a tensor in place is stopped on its way.
    @staticmethod
    def in_place(func, args, kwargs):
        if torch.is_grad_enabled() or not args:
            return func(*args, **kwargs)
        target, *rest = args
        rest = pytree.tree_map_only(torch.Tensor, lambda t: stopped(t) if t.requires_grad else t, rest)
        return func(target, *rest, **kwargs)

    def marked(self, name, args, kwargs, result):
        if self.quiet or name.endswith("_like") or name.startswith("new_"):
            return result
        if not isinstance(result, (torch.Tensor, tuple, list)) or isinstance(result, torch.Size):
            return result
        operands = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if not any(t.requires_grad for t in operands):
            return result
        known = {id(t) for t in operands}
        return each_tensor(lambda t: t if id(t) in known else stopped(t), result)


def each_tensor(change, result):
    """change of every tensor in what a function returned: a tensor, a tuple, a list, a named tuple of PyTorch's."""
    if isinstance(result, torch.Tensor):
        return change(result)
    if not isinstance(result, (tuple, list)):
        return result
    items = [each_tensor(change, r) for r in result]
    return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)


def stopped(t):
    """t, marked when it holds floats and requires no gradient now."""
    if t.requires_grad and torch.is_grad_enabled() or not t.is_floating_point():
        return t
    return torch.ops.shardc.stop_gradient(t)


def needs_writing_out(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    return dropout_p > 0 or enable_gqa


def weight_is_padded(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    if scale_grad_by_freq and weight.requires_grad:
        raise ExportError("an embedding has scale_grad_by_freq, which a graph cannot hold: leave it out")
    return padding_idx is not None and padding_idx >= 0 and weight.requires_grad and torch.is_grad_enabled()


# ---- functions with a backward of their own ----

class Context:
    """What forward of an autograd.Function is given when it is run as plain operations."""

    def __init__(self, inputs):
        self.needs_input_grad = tuple(isinstance(t, torch.Tensor) and t.requires_grad for t in inputs)
        self.saved_tensors, self.none = (), ()

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_non_differentiable(self, *tensors):
        self.none = tuple(id(t) for t in tensors)

    def mark_dirty(self, *tensors):
        raise ExportError("an autograd.Function changes its operand in place: let it return a new tensor")

    def set_materialize_grads(self, value):
        pass


def run_plain(function, args):
    """forward of an autograd.Function, differentiated as the operations that it is made of."""
    context = Context(args)
    own_setup = function.setup_context is not torch.autograd.Function.setup_context
    result = function.forward(*args) if own_setup else function.forward(context, *args)
    if context.none:
        result = pytree.tree_map_only(torch.Tensor, lambda t: t.detach() if id(t) in context.none else t, result)
    return result


def gradients(call, args):
    leaves = [t.detach().clone().requires_grad_() if isinstance(t, torch.Tensor) and t.is_floating_point() else t
              for t in args]
    wanted = [t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point()]
    with torch.enable_grad():
        outputs = [t for t in pytree.tree_leaves(call(leaves)) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not outputs or not wanted:
        return [None] * len(wanted)
    generator = torch.Generator().manual_seed(0)
    into = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in outputs]
    return torch.autograd.grad(outputs, wanted, into, allow_unused=True)


def same_gradients(function, original, args):
    """Whether autograd of its forward gives what its backward gives, on these operands."""
    def near(a, b):
        if a is None or b is None:
            return (a is None or not a.any()) and (b is None or not b.any())
        return (a - b).norm() <= 1e-3 * b.norm() + 1e-12

    with torch._C.DisableTorchFunction():
        ours = gradients(lambda leaves: run_plain(function, leaves), args)
        theirs = gradients(lambda leaves: original(function, *leaves), args)
    return all(near(a, b) for a, b in zip(ours, theirs))


class Functions:
    """autograd.Function.apply during an export: plain operations where that gives the same gradient, else refused."""

    def __init__(self):
        self.plain = set()

    def apply(self, function, original, args, quiet):
        if function.__name__ == "CheckpointFunction":
            return args[0](*args[2:])
        if quiet and function not in self.plain:
            if not same_gradients(function, original, args):
                raise ExportError(
                    f"forward uses autograd.Function {function.__name__}, whose backward is not the derivative of its "
                    "forward; a graph holds forward alone. Write it with detach(): a straight-through estimator is "
                    "y = x + (quantize(x) - x).detach()")
            self.plain.add(function)
        return run_plain(function, args)


# ---- a watched forward ----

@contextlib.contextmanager
def replaced(owner, **values):
    """Attributes of an object, other ones inside."""
    before = {name: vars(owner)[name] for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextlib.contextmanager
def watched(functions, quiet):
    """Functions that are called inside go through the mode that this gives."""
    def none_overridden(*_):
        return False

    base = torch.autograd.Function
    original = vars(base)["apply"].__func__

    def apply(cls, *args, **kwargs):
        return functions.apply(cls, original, args, quiet)

    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    mode = Watching(quiet)
    with contextlib.ExitStack() as stack:
        for owner in (F, torch.functional):
            stack.enter_context(replaced(owner, **{n: none_overridden for n in names if n in vars(owner)}))
        stack.enter_context(replaced(base, apply=classmethod(apply)))
        stack.enter_context(mode)
        yield mode


ROOT = "shardc_root"


class Root(torch.nn.Module):
    """What exporters are given: takes and returns tensors, and watches the module inside."""

    def __init__(self, module, arguments, functions, outputs):
        super().__init__()
        self.training = True  # the exporter merges and folds where the root is in eval mode
        setattr(self, ROOT, module)
        self.arguments, self.functions, self.outputs = arguments, functions, outputs

    def forward(self, *tensors):
        from .values import results_of
        with watched(self.functions, quiet=False):
            value = self.arguments.call(getattr(self, ROOT), list(tensors))
        return tuple(results_of(value, self.outputs).tensors)
