"""What a model of the zoo is."""
import dataclasses

import torch
from torch import nn

VOCAB, BATCH, LENGTH, CLASSES = 61, 4, 12, 5


@dataclasses.dataclass
class Case:
    """A model in a structurally complete small configuration, in train mode."""
    build: callable              # () -> module
    data: callable               # (samples) -> {input: tensor}; "labels" and "target" are what the loss compares with
    loss: str = "cross_entropy"  # of shardc; "output:loss": the module computes it
    output: str = ""             # of those that the module returns; default: its only one
    beyond: dict = dataclasses.field(default_factory=dict)  # exporter -> why it cannot write the model
    opset: dict = dataclasses.field(default_factory=dict)   # exporter -> what it needs
    random: bool = False         # it draws numbers: losses are not PyTorch's, and finite
    ranks: bool = False          # also two ranks against one
    quick: str = ""              # the exporter by which CI runs it; default: CI does not


def tokens(samples, length=LENGTH):
    return torch.randint(3, VOCAB, (samples, length))


def language(samples):
    return {"input_ids": tokens(samples), "labels": tokens(samples)}


def texts(samples):
    """Classified texts."""
    return {"input_ids": tokens(samples), "labels": torch.randint(0, CLASSES, (samples,))}


def images(samples, side=32, channels=3):
    return {"x": torch.randn(samples, channels, side, side), "labels": torch.randint(0, CLASSES, (samples,))}


def mlp(*widths, last=False, act=nn.ReLU):
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), act())]
    return nn.Sequential(*(layers if last else layers[:-1]))
