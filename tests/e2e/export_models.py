"""Models of export.py, as users write them, and their ONNX files."""
import pathlib
import sys

import onnx
import torch
import transformers
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import shardc  # noqa: E402

BATCH = 4


class Mix(nn.Module):
    """Weights under names of their own, and one of a module inside that is never called."""

    def __init__(self, width):
        super().__init__()
        self.kernel, self.inner = nn.Parameter(torch.randn(width, width) / width), nn.Linear(width, width, bias=False)

    def forward(self, x):
        return x + F.linear(x @ self.kernel, self.inner.weight)


class Cnn(nn.Module):
    """Convolutions, batch norms, linear layers."""

    def __init__(self):
        super().__init__()
        self.a, self.bn_a = nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.b, self.bn_b = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
        self.mix, self.fc = Mix(8 * 16), nn.Linear(8 * 16, 10)

    def forward(self, x):
        x = F.relu(self.bn_a(self.a(x)))
        return self.fc(self.mix(F.relu(self.bn_b(self.b(x))).flatten(1)))


class Layers(nn.Module):
    """What exporters fold and merge: transposed weights, equal norms and biases, biases of zeros."""

    def __init__(self, width=96):
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.conv = nn.Conv1d(width, width, 3, padding=1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.lin = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, 50)
        for layer in [self.conv, self.head, *self.lin]:
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        y = self.embed(x)
        y = y + self.conv(y.transpose(1, 2)).transpose(1, 2)
        for norm, lin in zip(self.norms, self.lin):
            y = y + F.gelu(lin(norm(y)))
        return self.head(y)


class Gpt(transformers.GPT2LMHeadModel):
    """Logits alone; the head is tied to the embedding."""

    def __init__(self):
        super().__init__(transformers.GPT2Config(
            n_layer=2, n_embd=48, n_head=3, vocab_size=101, n_positions=16, embd_pdrop=0, resid_pdrop=0, attn_pdrop=0))

    def forward(self, x):
        return super().forward(x, return_dict=True).logits


class Cells(nn.Module):
    """A module that is called several times, and one that is named as TorchScript names the second call."""

    def __init__(self):
        super().__init__()
        self.c, self.c_2, self.head = nn.LSTMCell(6, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = c = torch.zeros(x.shape[0], 8)
        for _ in range(3):
            h, c = self.c(x, (h, c))
            h = torch.tanh(self.c_2(h))
        return self.head(h)


class Parametrized(nn.Module):
    """Weight norm: the weight is computed from two parameters; one parameter under two names."""

    def __init__(self):
        super().__init__()
        self.a = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
        self.b, self.d = nn.Linear(8, 8), nn.Linear(8, 8)
        self.d.weight, self.d.bias, self.head = self.b.weight, self.b.bias, nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.d(F.relu(self.b(F.relu(self.a(x))))))


class Unused(nn.Module):
    """A layer and a buffer that forward does not use."""

    def __init__(self):
        super().__init__()
        self.never, self.a = nn.Linear(3, 3), nn.Linear(6, 5)
        self.register_buffer("count", torch.ones(1))

    def forward(self, x):
        return self.a(x)


class Bert(nn.Module):
    """The output head's weight and bias are tied."""

    def __init__(self):
        super().__init__()
        self.model = transformers.BertForMaskedLM(transformers.BertConfig(
            num_hidden_layers=1, hidden_size=48, num_attention_heads=3, intermediate_size=96, vocab_size=101,
            max_position_embeddings=16, hidden_dropout_prob=0, attention_probs_dropout_prob=0, pad_token_id=None))
        self.register_buffer("positions", torch.arange(16)[None], persistent=False)

    def forward(self, x):
        return self.model(x, position_ids=self.positions, return_dict=True).logits


def images():
    return torch.randn(BATCH, 1, 8, 8), torch.randint(0, 10, (BATCH,))


def rows():
    return torch.randn(BATCH, 6), torch.randint(0, 5, (BATCH,))


def tokens(classes, length):
    return lambda: (torch.randint(0, classes, (BATCH, length)), torch.randint(0, classes, (BATCH, length)))


MODELS = {"cnn": (Cnn, images), "layers": (Layers, tokens(50, 12)), "gpt": (Gpt, tokens(101, 16))}


def to_onnx(module, x, path, exporter, external):
    names = dict(input_names=["x"], output_names=["logits"])
    folds = isinstance(module, Layers)  # in the others it would take parameters away
    if exporter.startswith("shardc."):
        shardc.export(module, (x,), path, exporter=exporter.removeprefix("shardc."))
        return
    if exporter == "torchscript":
        norms = any(isinstance(m, nn.BatchNorm2d) for m in module.modules())
        mode = torch.onnx.TrainingMode.TRAINING if norms else torch.onnx.TrainingMode.EVAL
        torch.onnx.export(module, (x,), str(path), dynamo=False, training=mode, do_constant_folding=folds,
                          opset_version=17, **names)
        if external:
            model = onnx.load(path)
            onnx.save(model, path, save_as_external_data=True, location=path.name + ".weights", size_threshold=64)
        return
    program = torch.onnx.export(module, (x,), dynamo=True, optimize=folds, verbose=False, **names)
    program.save(str(path), external_data=external)
