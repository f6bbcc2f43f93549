"""Other arguments of the same kind for a call: an export that kept a value or a size of the first as a number computes
something else with these."""
import random

import numpy as np
import torch

from .errors import ExportError

SEED = 7
SHRINK = 0.6  # of a range of floats: its largest and smallest are others


def states():
    """Of the generators whose numbers no graph can draw: Python's and NumPy's."""
    kind, keys, *rest = np.random.get_state()
    return {"Python's `random`": random.getstate(), "NumPy's `np.random`": (kind, keys.tobytes(), *rest)}


def refuse_draws(before):
    """Whether a run of the module has drawn from them since `before`: a graph would keep what this run drew."""
    for name, now in states().items():
        if now != before[name]:
            raise ExportError(f"forward draws from {name}, and a graph would keep the numbers of this one run: draw with "
                              "torch (torch.rand and its like), decide with torch.where, or give the numbers as an input")


def drawn(tensors, sizes):
    """Other numbers within the range of those given; sizes: for each tensor {axis: length}."""
    generator = torch.Generator().manual_seed(SEED)
    return [redrawn(resized(t, lengths), generator) for t, lengths in zip(tensors, sizes)]


def permuted(tensors):
    """The same numbers: samples in another order, or another order in the sample."""
    def turn(t):
        if not t.dim() or not t.numel():
            return t
        axis = 0 if t.shape[0] > 1 else t.dim() - 1
        return t.roll(1, axis).contiguous()
    return [turn(t) for t in tensors]


def resized(t, lengths):
    for axis, length in lengths.items():
        t = t.index_select(axis, torch.arange(length, device=t.device) % t.shape[axis])
    return t.contiguous()


def redrawn(t, generator):
    """t where it is not finite; numbers of the same kind elsewhere."""
    if not t.numel() or t.is_complex():
        return t
    finite = t.isfinite()
    known = t[finite].unique()
    if not len(known):
        return t
    choice = chosen(known)
    new = spread(t, known, generator) if choice is None else picked(t, choice, generator)
    return torch.where(finite, new, t)


def chosen(known):
    """Values that are allowed where these are, or None for any within their range."""
    real = known.dtype.is_floating_point
    if known.dtype == torch.bool or len(known) == 1 and known[0] == 1:
        return torch.tensor([0, 1]).to(known)
    if len(known) == 2:
        return known
    if real:
        return None
    if len(known) == 1:
        return torch.stack([known[0] // 2, known[0]]) if known[0] > 0 else known
    return known[:-1]  # without the largest, which is another then


def picked(t, choice, generator):
    """Values of a choice at random.  The first of each row stays where it may be: no mask hides all of a row."""
    new = choice[torch.randint(len(choice), t.shape, generator=generator).to(t.device)]
    if t.dim() and len(choice) == 2 and t.shape[-1] > 1:
        new[..., 0] = t[..., 0]
    if torch.equal(new.sort()[0] if new.dim() else new, t.sort()[0] if t.dim() else t):
        last = new.reshape(-1)[-1:]
        last.copy_(choice[0] if last[0] != choice[0] else choice[-1])
    return new


def spread(t, known, generator):
    """Floats at random in the middle of the range of those given; of one number, up to it."""
    low, high = known[0].item(), known[-1].item()
    if low == high:
        low, high = (low / 2, low) if low else (-0.5, 0.5)
    middle, half = (low + high) / 2, SHRINK * (high - low) / 2
    return (torch.rand(t.shape, generator=generator) * 2 * half + (middle - half)).to(t)
