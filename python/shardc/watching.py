"""What a module calls, seen by a torch function mode below the wrappers of torch.nn.functional: refusals of what no
graph can hold, and the module as PyTorch runs it, but for dropout, which drops nothing."""
import contextlib
import math

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .errors import ExportError

# ---- what PyTorch's own functions do in a way that no graph can hold ----


def gaussian_nll_loss(input, target, var, full=False, eps=1e-6, reduction="mean"):
    """PyTorch's, which clamps the variance in place without gradients: it has the gradient of what it was."""
    if not isinstance(var, torch.Tensor):
        var = var * torch.ones_like(input)
    if var.shape != input.shape and input.shape[:-1] == var.shape:
        var = var.unsqueeze(-1)
    var = var + (var.clamp(min=eps) - var).detach()
    losses = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    losses = losses + 0.5 * math.log(2 * math.pi) if full else losses
    return {"mean": torch.mean, "sum": torch.sum, "none": lambda t: t}[reduction](losses)


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
def watched(mode, apply=None):
    """Functions that are called inside go through the mode; autograd.Function.apply is
    apply(class, original, args, kwargs)."""
    def none_overridden(*_):
        return False

    base = torch.autograd.Function
    original = vars(base)["apply"].__func__

    def applied(cls, *args, **kwargs):
        return apply(cls, original, args, kwargs)

    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    with contextlib.ExitStack() as stack:
        for owner in (F, torch.functional):
            stack.enter_context(replaced(owner, **{n: none_overridden for n in names if n in vars(owner)}))
        if apply:
            stack.enter_context(replaced(base, apply=classmethod(applied)))
        stack.enter_context(replaced(F, gaussian_nll_loss=gaussian_nll_loss))
        stack.enter_context(replaced(torch.distributions.Distribution, _validate_args=False))  # decides by values
        stack.enter_context(mode)
        yield mode


def backward(total):
    """total.backward(), but that the mode sees what a checkpoint computes again: it is off inside of a function that it
    sees itself, as Tensor.backward would be."""
    torch.autograd.Variable._execution_engine.run_backward((total,), (torch.ones_like(total),), False, False, (),
                                                           allow_unreachable=True, accumulate_grad=True)


# ---- what was called, and with what ----

def name_of(func):
    return getattr(func, "__name__", "")


def plain_name(name):
    """Of an operation in place, the name of the one that is not."""
    return name if name.startswith("__") else name.rstrip("_")


def operand(args, kwargs):
    """The tensor that a function is of, which may be given by its name."""
    return args[0] if args else kwargs.get("input")


def is_data(func):
    return getattr(getattr(func, "__self__", None), "__name__", "") == "data"


NOT_IN_PLACE = ("__init__", "__int__", "__index__", "__iter__", "__invert__", "requires_grad_", "rename_",
                "share_memory_")


def is_in_place(name):
    if name in NOT_IN_PLACE:
        return False
    if name.startswith("__"):
        return name == "__setitem__" or name.startswith("__i")
    return name.endswith("_")


def targets(name, args, kwargs):
    """Tensors into which a function writes."""
    written = [operand(args, kwargs)] if is_in_place(name) else []
    return [t for t in pytree.tree_leaves([written, kwargs.get("out")]) if isinstance(t, torch.Tensor)]


# ---- what a graph cannot hold ----

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


def refuse_call(name, func, args, kwargs):
    x = operand(args, kwargs)
    if func is torch.autograd.grad:
        raise ExportError("forward calls torch.autograd.grad, or what uses it (torch.func.grad, hessian): a program has "
                          "one backward pass, of the loss; a gradient penalty cannot be exported")
    if name == "__set__" and is_data(func):
        raise ExportError("forward assigns to .data of a tensor: compute a new value instead")
    if name in NUMBERS and isinstance(x, torch.Tensor) and x.requires_grad:
        raise ExportError(f"forward takes a number out of a value that depends on parameters ({name}): the program "
                          "would keep the number of now; compute with tensors")
    target = args[1] if len(args) > 1 else kwargs.get("target")
    if name in ("cross_entropy", "cross_entropy_loss") and isinstance(target, torch.Tensor) and target.is_floating_point():
        raise ExportError("forward calls cross_entropy with probabilities, of which exporters make class numbers: write "
                          "-(target * F.log_softmax(logits, 1)).sum(1).mean()")
    if name not in REFUSED or name == "rrelu" and not (args[3] if len(args) > 3 else kwargs.get("training")):
        return
    if name == "detach_" and not x.requires_grad:
        return
    raise ExportError(f"forward {REFUSED[name]}")


def refuse_writing(name, args, kwargs, parameters):
    """parameters: {memory: name}.  A graph has no writes: what a parameter holds is changed by its update alone, and
    a value whose numbers change without gradients would get the gradient of the numbers before."""
    for t in targets(name, args, kwargs):
        changed = parameters.get(memory(t))
        if changed:
            raise ExportError(f"forward changes parameter {changed} in place ({name}), which a program's update alone "
                              "does: compute a new value of it, as w = w.clamp(-1, 1), or change it outside of forward")
        base = t._base if t._is_view() else None
        if not torch.is_grad_enabled() and (t.requires_grad or base is not None and base.requires_grad):
            raise ExportError(f"forward changes a value that requires a gradient in place ({name}) under no_grad, so "
                              "that its gradient is that of what it was: write y = y + (new - y).detach()")


def memory(tensor):
    """What tensors have in common that share memory; None of those that have none."""
    try:
        return (tensor.device, tensor.untyped_storage().data_ptr()) if tensor.numel() else None
    except (RuntimeError, NotImplementedError):  # lazy and sparse tensors
        return None


# ---- the module itself ----

DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def drop_arguments(input, p=0.5, train=True, training=True):
    """(operand, rate, whether it drops) of a function of DROPOUTS."""
    return input, p, train and training and p > 0


def attention_rate(query, key, value, attn_mask=None, dropout_p=0.0, *_, **__):
    return dropout_p


def rate_place(args):
    """Where a stack of recurrent layers, given padded or packed sequences, has its rate among the arguments."""
    return 6 if is_packed(args) else 5


def is_packed(args):
    return isinstance(args[3], (tuple, list))


def drops_between(args):
    """How often a stack of recurrent layers drops."""
    layers, p, train = args[rate_place(args) - 1:rate_place(args) + 2]
    return layers - 1 if train and p > 0 else 0


SELU = -1.7580993408473766  # what alpha dropout puts in place of a value


def alpha_scaled(x, p):
    """What alpha dropout makes of x with values dropped at this rate in it, so that mean and variance stay."""
    a = 1 / math.sqrt((SELU ** 2 * p + 1) * (1 - p))
    return a * x - a * SELU * p


class Undropped(TorchFunctionMode):
    """PyTorch's own functions, of which none drops anything: as a program is with dropout off.

    parameters: {memory: name}; what no graph can hold is refused then.
    Attributes: dropped, the rates of dropout in their order."""

    def __init__(self, parameters=None):
        super().__init__()
        self.parameters, self.dropped = parameters, []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, kwargs = name_of(func), kwargs or {}
        if self.parameters is not None:
            refuse_call(name, func, args, kwargs)
            refuse_writing(name, args, kwargs, self.parameters)
        return self.undropped(name, func, args, kwargs)

    def undropped(self, name, func, args, kwargs):
        if plain_name(name) in DROPOUTS:
            x, p, drops = drop_arguments(*args, **kwargs)
            if drops:
                self.dropped.append(float(p))
                kept = alpha_scaled(x, p) if "alpha" in name else x.clone()
                return x.copy_(kept) if is_in_place(name) else kept
        if name == "scaled_dot_product_attention" and (p := attention_rate(*args, **kwargs)) > 0:
            self.dropped.append(float(p))
            args, kwargs = (*args[:4], *(0.0 for _ in args[4:5]), *args[5:]), dict(kwargs)
            kwargs.pop("dropout_p", None)
        if name in RECURRENT and len(args) >= 8:
            place = rate_place(args)
            self.dropped += [float(args[place])] * drops_between(args)
            args = (*args[:place], 0.0, *args[place + 1:])
        return func(*args, **kwargs)
