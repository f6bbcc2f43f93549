"""The losses of shardc, as PyTorch computes them: `--loss=KIND[:KEY=VALUE,..]`."""
import torch
from torch.nn import functional as F

from .errors import CheckError

LABELS = {"cross_entropy": "labels", "mse": "target", "l1": "target", "bce_with_logits": "target"}


def parsed(text):
    """(kind, options): output:NAME has the name under "name"."""
    kind, _, rest = text.partition(":")
    if kind == "output":
        return kind, {"name": rest}
    if kind not in LABELS:
        raise CheckError(f"loss={text!r}: known are {', '.join(LABELS)} and output:NAME")
    return kind, dict(part.split("=", 1) for part in rest.split(",") if part)


def label_input(text):
    """Name of the input that the program has beside the graph's: labels, target, or None."""
    return LABELS.get(parsed(text)[0])


def value(text, outputs, labels):
    """outputs: {name: tensor}.  The loss as a tensor of one element."""
    kind, options = parsed(text)
    name = options.get("name") or options.get("logits") or next(iter(outputs))
    if name not in outputs:
        raise CheckError(f"loss={text!r}: the outputs are {', '.join(outputs)}")
    x = outputs[name]
    if kind == "output":
        return x.mean()
    if labels is None:
        raise CheckError(f"loss={text!r} compares with {LABELS[kind]}: give labels=")
    if kind == "cross_entropy":
        return cross_entropy(x, labels, options)
    if labels.shape != x.shape:
        raise CheckError(f"loss={text!r}: labels have shape {list(labels.shape)}, {name} {list(x.shape)}")
    labels = labels.to(x.dtype)
    return {"mse": F.mse_loss, "l1": F.l1_loss, "bce_with_logits": F.binary_cross_entropy_with_logits}[kind](x, labels)


def cross_entropy(logits, labels, options):
    logits = torch.movedim(logits, int(options.get("axis", -1)), -1)
    if int(options.get("shift", 0)):
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1),
                           ignore_index=int(options.get("ignore_index", -100)),
                           label_smoothing=float(options.get("label_smoothing", 0)))
