"""The losses of shardc, as PyTorch computes them: `--loss=KIND[:KEY=VALUE,..]`."""
import torch
from torch.nn import functional as F

from .errors import CheckError

LABELS = {"cross_entropy": "labels", "mse": "target", "l1": "target", "bce_with_logits": "target"}
NAME = {kind: "logits" if kind == "cross_entropy" else "output" for kind in LABELS}  # the key that chooses an output
KEYS = {kind: {NAME[kind]: str} for kind in LABELS}
KEYS["cross_entropy"] |= {"axis": int, "ignore_index": int, "label_smoothing": float, "shift": int}


def parsed(text):
    """(kind, options): output:NAME has the name under "output"."""
    kind, _, rest = text.partition(":")
    if kind == "output":
        return kind, {"output": rest}
    if kind not in LABELS:
        raise CheckError(f"loss={text!r}: known are {', '.join(LABELS)} and output:NAME")
    options = {}
    for part in filter(None, rest.split(",")):
        key, _, given = part.partition("=")
        if key not in KEYS[kind] or key in options:
            raise CheckError(f"loss={text!r}: {key!r} is given twice, or is none of {', '.join(KEYS[kind])}")
        try:
            options[key] = KEYS[kind][key](given)
        except ValueError:
            raise CheckError(f"loss={text!r}: {key}={given!r} is no number") from None
    return kind, options


def label_input(text):
    """Name of the input that the program has beside the graph's: labels, target, or None."""
    return LABELS.get(parsed(text)[0])


def value(text, outputs, labels):
    """outputs: {name: tensor}.  The loss as a tensor of one element."""
    kind, options = parsed(text)
    name = chosen(text, kind, options, outputs)
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


def chosen(text, kind, options, outputs):
    """Name of the output: as the compiler chooses it."""
    name = options.get(NAME.get(kind, "output"))
    floats = [n for n, t in outputs.items() if t.is_floating_point()]
    if name is None:
        name = floats[0] if len(floats) == 1 else "logits"
        if name not in floats:
            raise CheckError(f"loss={text!r}: the outputs are {', '.join(floats) or 'no floats'}; say which by "
                             f"{NAME[kind]}=NAME")
    if name not in outputs:
        raise CheckError(f"loss={text!r}: the outputs are {', '.join(outputs)}")
    return name


def cross_entropy(logits, labels, options):
    logits = torch.movedim(logits, options.get("axis", -1), -1)
    if options.get("shift", 0):
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    if labels.numel() * logits.shape[-1] != logits.numel():
        raise CheckError(f"loss: labels of shape {list(labels.shape)} for logits of {list(logits.shape)}, classes last")
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1),
                           ignore_index=options.get("ignore_index", -100),
                           label_smoothing=options.get("label_smoothing", 0.0))
