"""Functions with a backward of their own: a graph holds their forward alone, which is enough where autograd of it gives
what the backward gives."""
import inspect

import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from .errors import ExportError

# What the operands are multiplied with, and the gradients, beside what they are: a backward that clips does so
# somewhere.
OPERANDS = (1.0, 8.0)
MAGNITUDES = (1.0, 1e-6, 1e6)
NARROW = (1.0, 1 / 64, 64.0)  # of f16
BOUND = 1e-3


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


def has_setup(function):
    """Whether its forward is given no context."""
    return function.setup_context is not torch.autograd.Function.setup_context


def ordered(function, args, kwargs):
    """The arguments of a call as PyTorch passes them on: in the order of a forward that is given no context, with its
    defaults."""
    if not has_setup(function):
        return args, kwargs
    bound = inspect.signature(function.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args, bound.kwargs


def run_plain(function, args, kwargs):
    """forward of an autograd.Function, differentiated as the operations that it is made of."""
    context = Context(args)
    result = function.forward(*args, **kwargs) if has_setup(function) else function.forward(context, *args, **kwargs)
    if context.none:
        result = pytree.tree_map_only(torch.Tensor, lambda t: t.detach() if id(t) in context.none else t, result)
    return result


def floats(args):
    return [t for t in args if isinstance(t, torch.Tensor) and t.is_floating_point()]


def leaf(t, factor):
    if not floats([t]):
        return t
    t, wanted = t.detach(), t.requires_grad
    return (t * factor if wanted else t.clone()).requires_grad_(wanted)


def gradients(call, args, parameters, factor, magnitude):
    """Of the operands, and of the parameters that the function may use beside them; None where none goes."""
    leaves = [leaf(t, factor) for t in args]
    wanted = [t for t in floats(leaves) if t.requires_grad] + parameters
    with torch.enable_grad():
        outputs = floats(pytree.tree_leaves(call(leaves)))
    generator = torch.Generator().manual_seed(0)
    into = [torch.randn(t.shape, generator=generator, dtype=torch.float32).to(t) * magnitude for t in outputs]
    pairs = [(t, g) for t, g in zip(outputs, into) if t.requires_grad]
    if not pairs or not wanted:
        return [None] * len(wanted)
    outputs, into = zip(*pairs)
    return torch.autograd.grad(outputs, wanted, into, allow_unused=True, retain_graph=True)


def near(a, b, magnitude):
    if a is None or b is None:
        return not any(t is not None and t.any() for t in (a, b))
    bound = max(BOUND, 8 * torch.finfo(b.dtype).eps)
    a, b = a.double(), b.double()
    finite = b.isfinite()
    if not torch.equal(a.isfinite(), finite):
        return False
    return (a - b)[finite].norm() <= bound * b[finite].norm() + 1e-12 * magnitude


def same_gradients(function, original, args, kwargs, parameters):
    """Whether autograd of its forward gives what its backward gives: on these operands, on larger ones if it takes
    them, and for gradients of several sizes."""
    def by_backward(leaves):
        return original(function, *leaves, **kwargs)

    def by_autograd(leaves):
        return run_plain(function, leaves, kwargs)

    narrow = any(t.dtype == torch.float16 for t in floats(args))
    with torch._C.DisableTorchFunction():
        for factor in OPERANDS:
            for magnitude in NARROW if narrow else MAGNITUDES:
                try:
                    theirs = gradients(by_backward, args, parameters, factor, magnitude)
                except Exception:
                    if factor == 1:
                        raise
                    break
                ours = gradients(by_autograd, args, parameters, factor, magnitude)
                if not all(near(a, b, magnitude) for a, b in zip(ours, theirs)):
                    return False
    return True


class Functions:
    """autograd.Function.apply during an export: plain operations where that gives the same gradient, else refused."""

    def __init__(self, parameters):
        self.parameters, self.tested = [p for p in parameters if p.requires_grad], set()

    def tried(self, function, original, args, kwargs):
        """As PyTorch runs it, every call of it tested."""
        if function is CheckpointFunction:
            return self.checkpoint(args)
        args, kwargs = ordered(function, args, kwargs)
        if torch.is_grad_enabled() and not same_gradients(function, original, args, kwargs, self.parameters):
            raise ExportError(
                f"forward uses autograd.Function {function.__name__}, whose backward is not the derivative of its "
                "forward; a graph holds forward alone. Write it with detach(): a straight-through estimator is "
                "y = x + (quantize(x) - x).detach(), a gradient scaled by s is s * x + (x - s * x).detach()")
        self.tested.add(function)
        return original(function, *args, **kwargs)

    def plain(self, function, original, args, kwargs):
        """As an exporter can write it."""
        if function is CheckpointFunction:
            return self.checkpoint(args)
        if function not in self.tested:
            raise ExportError(f"forward uses autograd.Function {function.__name__} in the export alone, not in the "
                              "runs before it: decide by nothing that the exporter changes")
        return run_plain(function, args, kwargs)

    @staticmethod
    def checkpoint(args):
        """torch.utils.checkpoint with use_reentrant=True: what it runs, where it passes a gradient on."""
        run, _, *operands = args
        result = run(*operands)
        if not any(t.requires_grad for t in operands if isinstance(t, torch.Tensor)) and \
                any(t.requires_grad for t in floats(pytree.tree_leaves(result))):
            raise ExportError("forward checkpoints with use_reentrant=True what has no operand that requires a "
                              "gradient: PyTorch computes no gradient for the parameters in it. Write "
                              "checkpoint(.., use_reentrant=False)")
        return result
