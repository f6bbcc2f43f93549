"""The models that the benchmarks of training steps train; `batch` is that of all ranks together."""
import dataclasses
import pathlib
import sys

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "parity"))
import models  # noqa: E402
from models import Case, LanguageModel, bert, gpt2, llama, mobilenet, resnet, vit  # noqa: E402


def convolutions(inside, outside):
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(),
                         nn.Conv2d(outside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU())


class UNet(nn.Module):
    """A class for each pixel: `levels` times half the size and twice the channels, and back beside what went down."""

    def __init__(self, width, levels, classes):
        super().__init__()
        widths = [width << i for i in range(levels + 1)]
        self.down = nn.ModuleList(convolutions(a, b) for a, b in zip([3, *widths], widths))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.up = nn.ModuleList(convolutions(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        kept = []
        for block in self.down[:-1]:
            kept.append(block(x))
            x = nn.functional.max_pool2d(kept[-1], 2)
        x = self.down[-1](x)
        for grow, block in zip(self.grow, self.up):
            x = block(torch.cat([kept.pop(), grow(x)], 1))
        return self.head(x)


def mlp(*widths):
    def build():
        layers = [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers[:-1])
    return build


def lstm(width, classes):
    return lambda: LanguageModel(nn.LSTM(width, width, 2, batch_first=True), classes, width)


TEXT = dict(tokens=True, optimize=True)
IMAGE = dict(batch_norm=True, image=True)
LLAMA_160M = dict(vocab_size=32000, hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
                  num_attention_heads=12, max_position_embeddings=2048)

# what step.py trains
STEPS = {
    "gpt2-124m": Case(gpt2(), 4, (256,), 50257, **TEXT),
    "bert-base": Case(bert(), 8, (128,), 30522, **TEXT),
    "llama-160m": Case(llama(**LLAMA_160M), 4, (256,), 32000, **TEXT),
    "vit-b16": Case(vit(num_labels=1000), 4, (3, 224, 224), 1000, image=True),
    "resnet50": Case(resnet("bottleneck", [3, 4, 6, 3], [256, 512, 1024, 2048], 1000), 8, (3, 224, 224), 1000, **IMAGE),
    "mobilenetv2": Case(mobilenet(1000, 224), 8, (3, 224, 224), 1000, **IMAGE),
    "unet": Case(lambda: UNet(32, 3, 21), 4, (3, 128, 128), 21, dense=(128, 128), **IMAGE),
    "lstm": Case(lstm(512, 10000), 32, (64,), 10000, tokens=True),
    "mlp": Case(mlp(784, 1024, 1024, 10), 128, (784,), 10),
}
# the same with --quick: small enough for a test of the benchmark itself
QUICK = {
    "gpt2-124m": models.CASES["gpt2-small"],
    "bert-base": models.CASES["bert"],
    "llama-160m": models.CASES["llama"],
    "vit-b16": models.CASES["vit"],
    "resnet50": Case(resnet("bottleneck", [1, 1, 1, 1], [64, 64, 64, 64], 10), 4, (3, 64, 64), 10, **IMAGE),
    "mobilenetv2": models.CASES["mobilenetv2"],
    "unet": Case(lambda: UNet(8, 2, 5), 2, (3, 32, 32), 5, dense=(32, 32), **IMAGE),
    "lstm": models.CASES["lstm"],
    "mlp": Case(mlp(64, 64, 64, 10), 16, (64,), 10),
}
# those that are trained with 16-bit products, too
HALF = ("gpt2-124m", "bert-base", "llama-160m", "vit-b16", "resnet50", "mobilenetv2")
HALF_SUFFIX = "-bf16"


@dataclasses.dataclass
class Row:
    """A case in f32, or with bf16 products and f32 masters; PyTorch uses autocast."""
    name: str
    case: Case
    half: bool


def rows(quick):
    """{name: Row} of all rows, in the order in which they are measured."""
    found = [Row(name, case, False) for name, case in (QUICK if quick else STEPS).items()]
    found += [Row(r.name + HALF_SUFFIX, r.case, True) for r in found if r.name in HALF]
    return {r.name: r for r in found}


# for the other benchmarks: short sequences, so that little computation hides communication; the last one only tries a
# script
CASES = {
    **STEPS,
    "gpt2-124m-t64": Case(gpt2(), 4, (64,), 50257, **TEXT),
    "gpt2-tiny": Case(gpt2(n_layer=2, n_embd=96, n_head=3, vocab_size=301, n_positions=40), 4, (40,), 301, tokens=True),
}
RANK_SAMPLES = 64  # in the data of ranks.py
