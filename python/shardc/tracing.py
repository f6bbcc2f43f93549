"""What a module does while an exporter watches it: where gradients stop is marked, dropout is written out.

Autograd is on while both exporters trace, so it knows where gradients stop: at a result of floats that requires no
gradient although an operand does.  That covers detach(), .data, no_grad, inference_mode and set_grad_enabled alike.
Such a result passes through the operator shardc::stop_gradient, which exporters write as a node of our own."""
import functools
import math

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .errors import ExportError
from .values import results_of
from .watching import (DROPOUTS, RECURRENT, SELU, alpha_scaled, attention_rate, drop_arguments, drops_between, is_data,
                       is_in_place, is_packed, name_of, operand, plain_name, refuse_call, watched)


@torch.library.custom_op("shardc::stop_gradient", mutates_args=())
def stop_gradient(x: torch.Tensor) -> torch.Tensor:
    """Its operand, through which no gradient passes."""
    return x.clone()


@stop_gradient.register_fake
def _(x):
    return torch.empty_like(x)


@stop_gradient.register_vmap
def _(info, axes, x):
    return stop_gradient(x), axes[0]


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
    elif attn_mask is not None:
        kept = attn_mask
        if attn_mask.dtype != torch.bool:
            kept = attn_mask != -math.inf
            scores = scores + attn_mask.masked_fill(~kept, 0.0)
        scores = scores.masked_fill(~kept, lowest)
    weights = torch.softmax(scores, -1)
    if kept is not None:  # a row without any key gives zeros
        weights = weights * kept.to(scores.dtype).amax(-1, keepdim=True)
    return torch.matmul(drop(weights, dropout_p) if dropout_p else weights, value)


def masked_attention(query, key, value, attn_mask, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """scaled_dot_product_attention with a mask.  A row without any key gives zeros in PyTorch.  The dynamo exporter writes
    equal shares of all keys there, or NaN where the mask has numbers."""
    if attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, -math.inf).to(query.dtype)
    root = math.sqrt(1 / math.sqrt(query.size(-1)) if scale is None else scale)
    weights = torch.softmax(torch.matmul(query * root, key.transpose(-2, -1) * root) + attn_mask, -1)
    return torch.matmul(torch.where(torch.isnan(weights), 0.0, weights), value)


def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    """A lookup whose row `padding_idx` gets no gradient."""
    rows = torch.embedding(weight, indices)
    return torch.where((indices == padding_idx).unsqueeze(-1), rows.detach(), rows)


def feature_dropout(x, p):
    return x * drop(ones_of(first_of(x)), p)


def alpha_dropout(x, p, like=None):
    keep = keep_mask(x if like is None else like, p)
    return alpha_scaled(x * keep + SELU * (1 - keep), p)


def feature_alpha_dropout(x, p):
    return alpha_dropout(x, p, first_of(x))


WRITTEN_DROPOUTS = {"feature_dropout": feature_dropout, "alpha_dropout": alpha_dropout,
                    "feature_alpha_dropout": feature_alpha_dropout}


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


# ---- what one of the exporters has no operator for, or writes with another gradient ----

def reduced(losses, reduction):
    return {"mean": losses.mean, "sum": losses.sum, "none": lambda: losses}[reduction]()


def smooth_l1(a, b, beta):
    off = (a - b).abs()
    return torch.where(off < beta, 0.5 * off * off / beta, off - 0.5 * beta) if beta > 0 else off


def huber(a, b, delta):
    off = (a - b).abs()
    return torch.where(off < delta, 0.5 * off * off, delta * (off - 0.5 * delta))


REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


def written_loss(one, input, target, reduction=1, width=1.0):
    return reduced(one(input, target, width), REDUCTIONS[reduction])


def difference(input, n=1, dim=-1, prepend=None, append=None):
    ends = [t for t in (prepend, input, append) if t is not None]
    x = torch.cat(ends, dim) if len(ends) > 1 else input
    for _ in range(n):
        length = x.size(dim) - 1
        now, before = x.narrow(dim, 1, length), x.narrow(dim, 0, length)
        x = now != before if x.dtype == torch.bool else now - before
    return x


def running_sum(input, *args, **kwargs):
    """An exporter writes a sum of booleans as one, which ONNX does not have."""
    return torch.cumsum(input.to(torch.int64) if input.dtype == torch.bool else input, *args, **kwargs)


def strided(x, size, stride, storage_offset=None):
    """as_strided of a tensor whose elements lie in another order than its dims: exporters take them in the order of dims."""
    order = sorted(range(x.dim()), key=lambda axis: -x.stride(axis))
    flat = x.permute(order)
    if not flat.is_contiguous() or storage_offset not in (None, x.storage_offset()):
        raise ExportError(f"as_strided reads a part of the memory of another tensor (size {tuple(x.shape)}, strides "
                          f"{x.stride()}), which a graph cannot hold: call contiguous() on the tensor before it")
    return flat.reshape(-1).as_strided(size, stride, 0)


def distances(x1, x2, p=2.0, compute_mode=None):
    """cdist: equal points have no gradient, where that of a root would be infinite."""
    away = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).abs()
    if p == 1:
        return away.sum(-1)
    if not 0 < p < math.inf:
        raise ExportError(f"forward calls torch.cdist with p={p:g}, which no exporter writes: use a finite p above 0")
    sums = (away * away if p == 2 else root(away, p)).sum(-1)
    return root(sums, 1 / p)


def root(x, power):
    """x ** power of numbers from 0 on; no gradient at 0."""
    zero = x == 0
    safe = torch.where(zero, torch.ones_like(x), x)
    return torch.where(zero, torch.zeros_like(x), safe.sqrt() if power == 0.5 else safe ** power)


def triplet(anchor, positive, negative, margin=1.0, p=2.0, eps=1e-6, swap=False, reduction=0):
    far = torch.pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = torch.minimum(far, torch.pairwise_distance(positive, negative, p, eps))
    losses = (margin + torch.pairwise_distance(anchor, positive, p, eps) - far).clamp(min=0)
    return reduced(losses, REDUCTIONS[reduction])


def diagonal_of(input, diagonal=0):
    """The diagonal of a matrix, or a matrix that has the vector there and zeros elsewhere."""
    if input.dim() == 2:
        return torch.diagonal(input, diagonal)
    n = input.size(0) + abs(diagonal)
    column = torch.constant_pad_nd(input, (max(-diagonal, 0), max(diagonal, 0))).unsqueeze(1)
    place = torch.arange(n, device=input.device)
    return torch.where(place - place.unsqueeze(1) == diagonal, column, torch.zeros_like(column))


WRITTEN = {"smooth_l1_loss": functools.partial(written_loss, smooth_l1),
           "huber_loss": functools.partial(written_loss, huber), "diff": difference,
           "cdist": distances, "triplet_margin_loss": triplet, "diag": diagonal_of}


# ---- a forward that is traced ----

class Rewriting(TorchFunctionMode):
    """Rewrites what the module calls."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, kwargs = name_of(func), kwargs or {}
        if name == "_set_grad_enabled":
            with torch._C.DisableTorchFunction():  # the exporter needs no record of it
                return func(*args, **kwargs)
        refuse_call(name, func, args, kwargs)
        rewritten = self.rewritten(name, func, args, kwargs)
        if rewritten is not None:
            return rewritten[0]
        if is_in_place(name):
            return self.in_place(func, args, kwargs)
        return self.marked(name, args, kwargs, func(*args, **kwargs))

    # A rewritten function calls others, which this mode has to see again.
    def rewritten(self, name, func, args, kwargs):
        if name == "__get__" and is_data(func):  # tracing takes what .data gives for a constant
            return (self.__torch_function__(torch.Tensor.detach, (), args),)
        base = plain_name(name)
        if base in DROPOUTS:
            return self.dropout(name, base, *drop_arguments(*args, **kwargs))
        if name == "scaled_dot_product_attention" and needs_writing_out(*args, **kwargs):
            with self:
                return (attention(*args, **kwargs),)
        if name == "scaled_dot_product_attention" and has_mask(*args, **kwargs):
            with self:
                return (masked_attention(*args, **kwargs),)
        if name == "embedding" and weight_is_padded(*args, **kwargs):
            with self:
                return (embedding(*args, **kwargs),)
        if name in WRITTEN or name == "cumsum" and operand(args, kwargs).dtype == torch.bool:
            with self:
                return (WRITTEN.get(name, running_sum)(*args, **kwargs),)
        if name == "as_strided" and not operand(args, kwargs).is_contiguous():
            with self:
                return (strided(*args, **kwargs),)
        if name in RECURRENT and len(args) >= 8 and drops_between(args):
            return self.recurrent(func, args)
        return None

    def dropout(self, name, base, x, p, drops):
        if not drops:
            return None
        if base == "dropout":
            return (drop(x, p),) if is_in_place(name) else None
        with self:
            return (WRITTEN_DROPOUTS[base](x, p),)

    def recurrent(self, func, args):
        if is_packed(args):
            raise ExportError("a recurrent module with dropout between its layers is given a packed sequence: "
                              "pass padded sequences, or use one module for each layer with nn.Dropout between them")
        x, state, weights, biases, layers, p, _, two_ways, batch_first = args
        with self:
            return (layered(func, x, state, weights, biases, layers, p, two_ways, batch_first),)

    # Without gradients, what is put into a tensor in place is stopped on its way.
    @staticmethod
    def in_place(func, args, kwargs):
        if torch.is_grad_enabled() or not args:
            return func(*args, **kwargs)
        target, *rest = args
        rest = pytree.tree_map_only(torch.Tensor, lambda t: stopped(t) if has_gradient(t) else t, rest)
        return func(target, *rest, **kwargs)

    def marked(self, name, args, kwargs, result):
        if name.endswith("_like") or name.startswith("new_"):
            return result
        if not isinstance(result, (torch.Tensor, tuple, list)) or isinstance(result, torch.Size):
            return result
        operands = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if not any(has_gradient(t) for t in operands):
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


def has_gradient(t):
    """Whether a gradient goes back from t.  Inside of torch.vmap and torch.func the tensor behind the wrappers knows."""
    while torch._C._functorch.is_functorch_wrapped_tensor(t) and not t.requires_grad:
        t = torch._C._functorch.get_unwrapped(t)
    return t.requires_grad


def stopped(t):
    """t, marked when it holds floats and requires no gradient now."""
    if has_gradient(t) and torch.is_grad_enabled() or not t.is_floating_point():
        return t
    return torch.ops.shardc.stop_gradient(t)


def needs_writing_out(*args, enable_gqa=False, **kwargs):
    return attention_rate(*args, **kwargs) > 0 or enable_gqa


def has_mask(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """TorchScript's exporter writes zeros for a mask of bools by itself, and a size that it traces is no number."""
    return attn_mask is not None and (scale is None or scale > 0) and not torch.jit.is_tracing()


def weight_is_padded(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    if scale_grad_by_freq and weight.requires_grad:
        raise ExportError("an embedding has scale_grad_by_freq, which a graph cannot hold: leave it out")
    return padding_idx is not None and padding_idx >= 0 and weight.requires_grad and torch.is_grad_enabled()


ROOT = "shardc_root"


class Root(torch.nn.Module):
    """What exporters are given: takes and returns tensors, and watches the module inside."""

    def __init__(self, module, arguments, functions, outputs):
        super().__init__()
        self.training = True  # the exporter merges and folds where the root is in eval mode
        setattr(self, ROOT, module)
        self.arguments, self.functions, self.outputs = arguments, functions, outputs

    def forward(self, *tensors):
        with watched(Rewriting(), self.functions.plain):
            value = self.arguments.call(getattr(self, ROOT), list(tensors))
        return tuple(results_of(value, self.outputs).tensors)
