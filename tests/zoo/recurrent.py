"""Recurrent models, and those that convolve along time."""
import torch
from case import CLASSES, VOCAB, Case, language, texts, tokens
from torch import nn
from torch.nn import functional as F


class Language(nn.Module):
    """A word-level language model: an embedding, recurrent layers, a head."""

    def __init__(self, layer, tied=False):
        super().__init__()
        self.table = nn.Embedding(VOCAB, 16)
        self.layers = layer(16, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, VOCAB)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, input_ids):
        return self.head(self.layers(self.table(input_ids))[0])


class Tagger(nn.Module):
    """A bidirectional LSTM that gives a class to each word."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCAB, 16)
        self.layers = nn.LSTM(16, 12, bidirectional=True, batch_first=True)
        self.head = nn.Linear(24, VOCAB)

    def forward(self, input_ids):
        return self.head(self.layers(self.table(input_ids))[0])


class Seq2seq(nn.Module):
    """Encoder and decoder, whose states look back at the encoder's by attention."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCAB, 16)
        self.encoder, self.decoder = nn.GRU(16, 16, batch_first=True), nn.GRU(16, 16, batch_first=True)
        self.join, self.head = nn.Linear(32, 16), nn.Linear(16, VOCAB)

    def forward(self, input_ids, decoder_input_ids):
        seen, state = self.encoder(self.table(input_ids))
        said, _ = self.decoder(self.table(decoder_input_ids), state)
        looked = (said @ seen.transpose(1, 2) / 4).softmax(-1) @ seen
        return self.head(torch.tanh(self.join(torch.cat([said, looked], -1))))


class Classifier(nn.Module):
    """A plain RNN whose last state is classified."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(VOCAB, 16), nn.RNN(16, 16, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, input_ids):
        return self.head(self.layer(self.table(input_ids))[1][0])


class Temporal(nn.Module):
    """Dilated causal convolutions with residual connections."""

    class Block(nn.Module):
        def __init__(self, width, dilation):
            super().__init__()
            self.pad = 2 * dilation
            self.a = nn.Conv1d(width, width, 3, dilation=dilation)
            self.b = nn.Conv1d(width, width, 3, dilation=dilation)

        def forward(self, x):
            y = F.relu(self.a(F.pad(x, (self.pad, 0))))
            return x + F.relu(self.b(F.pad(y, (self.pad, 0))))

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(VOCAB, 16), nn.Linear(16, VOCAB)
        self.blocks = nn.Sequential(*(Temporal.Block(16, d) for d in (1, 2, 4)))

    def forward(self, input_ids):
        return self.head(self.blocks(self.table(input_ids).transpose(1, 2)).transpose(1, 2))


class LongConvolution(nn.Module):
    """Each channel is convolved with a filter as long as the sequence, by Fourier transforms (S4 and its like)."""

    def __init__(self, length=32, width=8):
        super().__init__()
        self.length = length
        self.up, self.head = nn.Linear(1, width), nn.Linear(width, CLASSES)
        self.decay = nn.Parameter(torch.linspace(0.05, 0.5, width))
        self.wave = nn.Parameter(torch.linspace(0.1, 2.0, width))
        self.skip = nn.Parameter(torch.ones(width))

    def forward(self, x):
        t = torch.arange(self.length, dtype=x.dtype)
        kernel = torch.exp(-self.decay[:, None] * t) * torch.cos(self.wave[:, None] * t)
        u = self.up(x).transpose(1, 2)
        n = 2 * self.length
        y = torch.fft.irfft(torch.fft.rfft(u, n=n) * torch.fft.rfft(kernel, n=n), n=n)[..., :self.length]
        return self.head(F.gelu(y + self.skip[:, None] * u).mean(-1))


class Cells(nn.Module):
    """A cell called step by step in a Python loop, as exporters unroll it."""

    def __init__(self):
        super().__init__()
        self.table, self.cell = nn.Embedding(VOCAB, 16), nn.LSTMCell(16, 16)
        self.head = nn.Linear(16, VOCAB)

    def forward(self, input_ids):
        x, outputs = self.table(input_ids), []
        h = c = torch.zeros(x.shape[0], 16, dtype=x.dtype)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            outputs.append(h)
        return self.head(torch.stack(outputs, 1))


def two_texts(samples):
    return {"input_ids": tokens(samples), "decoder_input_ids": tokens(samples), "labels": tokens(samples)}


def waves(samples):
    return {"x": torch.randn(samples, 32, 1), "labels": torch.randint(0, CLASSES, (samples,))}


CASES = {
    "LSTM language model": Case(lambda: Language(nn.LSTM), language, ranks=True, quick="torchscript"),
    "LSTM language model, tied": Case(lambda: Language(nn.LSTM, True), language),
    "GRU language model": Case(lambda: Language(nn.GRU), language, quick="dynamo"),
    "bidirectional LSTM tagger": Case(Tagger, language, ranks=True),
    "seq2seq with attention": Case(Seq2seq, two_texts),
    "RNN classifier": Case(Classifier, texts),
    "LSTM cells": Case(Cells, language),
    "temporal convolutions": Case(Temporal, language),
    "long convolution (S4)": Case(LongConvolution, waves, beyond={"torchscript": "has no Fourier transforms"}),
}
