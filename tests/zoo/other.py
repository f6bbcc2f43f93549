"""Sound, tables of features, graphs, series."""
import torch
import transformers as hf
from case import CLASSES, LENGTH, VOCAB, Case, mlp, tokens
from torch import nn
from torch.nn import functional as F

# ---- sound ----


def whisper():
    return hf.WhisperForConditionalGeneration(hf.WhisperConfig(
        vocab_size=VOCAB, num_mel_bins=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, d_model=16, max_source_positions=10,
        max_target_positions=LENGTH, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1))


def speech(samples):
    return {"input_features": torch.randn(samples, 8, 20), "decoder_input_ids": tokens(samples), "labels": tokens(samples)}


class Encoder(nn.Module):
    """Convolutions on the wave, a transformer, a class for each frame."""

    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(1, 16, 10, stride=5, bias=False), nn.GroupNorm(16, 16), nn.GELU(),
                                   nn.Conv1d(16, 16, 3, stride=2), nn.GELU())
        self.places = nn.Conv1d(16, 16, 5, padding=2, groups=4)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, wave):
        x = self.front(wave[:, None])
        x = (x + F.gelu(self.places(x))).transpose(1, 2)
        return self.head(self.layer(x))


class Spectrogram(nn.Module):
    """A CNN on the logarithm of a short-time Fourier transform."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(16))
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(),
                                 nn.Linear(48, CLASSES))

    def forward(self, wave):
        s = torch.stft(wave, 16, 8, window=self.window, center=False, return_complex=False)
        return self.net(torch.log1p(s.pow(2).sum(-1))[:, None])


# ---- tables of features ----

class Table(nn.Module):
    """Numbers and classes of a row, each as a token of a transformer."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 16) / 4), nn.Parameter(torch.zeros(6, 16))
        self.classes = nn.ModuleList(nn.Embedding(n, 16) for n in (7, 4))
        self.start = nn.Parameter(torch.zeros(1, 1, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, numbers, kinds):
        rows = [self.start.expand(numbers.shape[0], -1, -1), numbers[..., None] * self.weight + self.bias]
        rows += [table(kinds[:, i])[:, None] for i, table in enumerate(self.classes)]
        return self.head(self.layer(torch.cat(rows, 1))[:, 0])


class Dlrm(nn.Module):
    """Recommendation: bags of classes, numbers, and all pairs of them."""

    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(20, 8, mode="sum") for _ in range(3))
        self.bottom, self.top = mlp(6, 16, 8), mlp(14, 16, 1)
        self.register_buffer("pairs", torch.tensor([[0, 0, 0, 1, 1, 2], [1, 2, 3, 2, 3, 3]]))

    def forward(self, numbers, kinds):
        rows = torch.stack([self.bottom(numbers)] + [bag(kinds[:, i]) for i, bag in enumerate(self.bags)], 1)
        dots = rows @ rows.transpose(1, 2)
        return self.top(torch.cat([rows[:, 0], dots[:, self.pairs[0], self.pairs[1]]], 1))


def clicks(samples):
    return {"numbers": torch.randn(samples, 6), "kinds": torch.randint(0, 20, (samples, 3, 5)),
            "target": torch.randint(0, 2, (samples, 1)).float()}


# ---- graphs: a batch of graphs of as many nodes ----

class Gcn(nn.Module):
    """Neighbours by a matrix, normalised by degrees."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, x, edges):
        edges = edges + torch.eye(edges.shape[-1])
        scale = edges.sum(-1).rsqrt()
        edges = edges * scale[:, None] * scale[:, :, None]
        x = F.relu(edges @ self.a(x))
        return self.head((edges @ self.b(x)).mean(1))


class Gat(nn.Module):
    """Neighbours by attention."""

    def __init__(self):
        super().__init__()
        self.up, self.at, self.of = nn.Linear(6, 16), nn.Linear(16, 1), nn.Linear(16, 1)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x, edges):
        x = self.up(x)
        weights = F.leaky_relu(self.at(x) + self.of(x).transpose(1, 2), 0.2)
        weights = weights.masked_fill(edges + torch.eye(edges.shape[-1]) == 0, float("-inf")).softmax(-1)
        return self.head(F.elu(weights @ x).mean(1))


class Messages(nn.Module):
    """Messages along lists of edges, summed where they arrive."""

    def __init__(self):
        super().__init__()
        self.up, self.message, self.head = nn.Linear(6, 16), mlp(32, 16, 16), nn.Linear(16, CLASSES)

    def forward(self, x, source, to):
        x = self.up(x)
        at = source[..., None].expand(-1, -1, 16)
        there = to[..., None].expand(-1, -1, 16)
        sent = self.message(torch.cat([x.gather(1, at), x.gather(1, there)], -1))
        return self.head(F.relu(x + torch.zeros_like(x).scatter_add(1, there, sent)).mean(1))


def graphs(samples):
    return {"x": torch.randn(samples, 7, 6), "edges": (torch.rand(samples, 7, 7) < 0.4).float(),
            "labels": torch.randint(0, CLASSES, (samples,))}


def edges(samples):
    return {"x": torch.randn(samples, 7, 6), "source": torch.randint(0, 7, (samples, 12)),
            "to": torch.randint(0, 7, (samples, 12)), "labels": torch.randint(0, CLASSES, (samples,))}


# ---- series ----

def patchtst():
    return hf.PatchTSTForPrediction(hf.PatchTSTConfig(
        num_input_channels=2, context_length=32, prediction_length=4, patch_length=4, patch_stride=4, d_model=16,
        num_attention_heads=2, num_hidden_layers=2, ffn_dim=32, attention_dropout=0.0, positional_dropout=0.0,
        path_dropout=0.0, ff_dropout=0.0, head_dropout=0.0, loss="mse", positional_encoding_type="sincos"))


class Beats(nn.Module):
    """N-BEATS: blocks that explain what those before them left."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(mlp(16, 24, 20) for _ in range(3))

    def forward(self, x):
        forecast = 0
        for block in self.blocks:
            out = block(x)
            x, forecast = x - out[:, :16], forecast + out[:, 16:]
        return forecast


CASES = {
    "Whisper": Case(whisper, speech, output="logits"),
    "speech encoder": Case(Encoder, lambda n: {"wave": torch.randn(n, 120), "labels": torch.randint(0, CLASSES, (n, 11))}),
    "spectrogram CNN": Case(Spectrogram, lambda n: {"wave": torch.randn(n, 128), "labels": torch.randint(0, CLASSES, (n,))}),
    "FT-Transformer": Case(Table, lambda n: {
        "numbers": torch.randn(n, 6), "kinds": torch.randint(0, 4, (n, 2)), "labels": torch.randint(0, CLASSES, (n,))}),
    "DLRM (EmbeddingBag)": Case(Dlrm, clicks, "bce_with_logits", ranks=True, quick="torchscript"),
    "GCN": Case(Gcn, graphs),
    "GAT": Case(Gat, graphs),
    "message passing": Case(Messages, edges, ranks=True, quick="dynamo"),
    "PatchTST": Case(patchtst, lambda n: {"past_values": torch.randn(n, 32, 2), "future_values": torch.randn(n, 4, 2)},
                     "output:loss", output="loss",
                     beyond={"torchscript": "PyTorch's tracer fails in unfold of a free length"}),
    "N-BEATS": Case(Beats, lambda n: {"x": torch.randn(n, 16), "target": torch.randn(n, 4)}, "mse"),
}
