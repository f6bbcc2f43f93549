"""Models whose graph alone does not say what is trained: tiny, with fresh weights.

Each case builds a module in train mode, gives the data of a batch, and names the loss as shardc does."""
import dataclasses

import torch
import transformers as hf
from torch import nn
from torch.nn import functional as F

VOCAB, BATCH, LENGTH = 61, 4, 12


@dataclasses.dataclass
class Case:
    build: callable              # () -> module
    data: callable               # (samples) -> {input: tensor}; with "labels" where the loss compares
    loss: str = "cross_entropy"
    outputs: tuple = ()          # of those that the module returns; default: all
    beyond: tuple = ()           # exporters of PyTorch that cannot write it
    stops: bool = False          # gradients stop in forward, of which a plain export may leave no trace
    unwritten: tuple = ()        # exporters that fail without the helper
    quick: str = ""              # the exporter that the quick part takes


def tokens(samples, length=LENGTH):
    return torch.randint(3, VOCAB, (samples, length))


def language(names=("input_ids",)):
    return lambda samples: {**{n: tokens(samples) for n in names}, "labels": tokens(samples)}


# ---- of Hugging Face ----

def whisper():
    return hf.WhisperForConditionalGeneration(hf.WhisperConfig(
        vocab_size=VOCAB, num_mel_bins=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, d_model=16, max_source_positions=10,
        max_target_positions=LENGTH, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1))


def speech(samples):
    return {"input_features": torch.randn(samples, 8, 20), **language(("decoder_input_ids",))(samples)}


def marian():
    return hf.MarianMTModel(hf.MarianConfig(
        vocab_size=VOCAB, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, d_model=16, max_position_embeddings=32, dropout=0.0, use_cache=False,
        pad_token_id=0, eos_token_id=2, decoder_start_token_id=0))


def bart():
    return hf.BartForConditionalGeneration(hf.BartConfig(
        vocab_size=VOCAB, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, d_model=16, max_position_embeddings=32, dropout=0.0, use_cache=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None))


def albert():
    return hf.AlbertForMaskedLM(hf.AlbertConfig(
        vocab_size=VOCAB, embedding_size=8, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


def deberta():
    return hf.DebertaForMaskedLM(hf.DebertaConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, type_vocab_size=0,
        relative_attention=True, pos_att_type=["c2p", "p2c"]))


def patchtst():
    return hf.PatchTSTForPrediction(hf.PatchTSTConfig(
        num_input_channels=2, context_length=32, prediction_length=4, patch_length=4, patch_stride=4, d_model=16,
        num_attention_heads=2, num_hidden_layers=2, ffn_dim=32, attention_dropout=0.0, positional_dropout=0.0,
        path_dropout=0.0, ff_dropout=0.0, head_dropout=0.0, loss="mse", positional_encoding_type="sincos"))


def mamba():
    return hf.MambaForCausalLM(hf.MambaConfig(
        vocab_size=VOCAB, hidden_size=16, state_size=4, num_hidden_layers=2, conv_kernel=3, time_step_rank=2,
        use_cache=False, use_mambapy=False, pad_token_id=0, bos_token_id=0, eos_token_id=0))


def gpt(rate=0.0):
    return hf.GPT2LMHeadModel(hf.GPT2Config(
        vocab_size=VOCAB, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=rate, attn_implementation="sdpa", use_cache=False, bos_token_id=1, eos_token_id=2))


# ---- by hand ----

def mlp(*widths):
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Dqn(nn.Module):
    """The target network is a part of the module, and runs without gradients."""

    def __init__(self):
        super().__init__()
        self.online, self.target = mlp(6, 24, 3), mlp(6, 24, 3)

    def forward(self, state, action, reward, later):
        with torch.no_grad():
            wanted = reward + 0.9 * self.target(later).max(1).values
        return {"loss": F.smooth_l1_loss(self.online(state).gather(1, action[:, None])[:, 0], wanted)}


def plays(samples):
    return {"state": torch.randn(samples, 6), "action": torch.randint(0, 3, (samples,)), "reward": torch.randn(samples),
            "later": torch.randn(samples, 6)}


class Gan(nn.Module):
    """The discriminator learns from fakes that are detached, the generator from detached weights."""

    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = mlp(4, 24, 6), mlp(6, 24, 1)

    def forward(self, noise, real):
        fake = self.generator(noise)
        there, here = self.discriminator(real), self.discriminator(fake.detach())
        a, b = self.discriminator[0], self.discriminator[2]
        fooled = F.relu(F.linear(fake, a.weight.detach(), a.bias.detach()))
        fooled = F.linear(fooled, b.weight.detach(), b.bias.detach())
        one = torch.ones_like(there)
        bce = F.binary_cross_entropy_with_logits
        return {"loss": bce(there, one) + bce(here, 1 - one) + bce(fooled, one)}


def noise_and_real(samples):
    return {"noise": torch.randn(samples, 4), "real": torch.randn(samples, 6) + 1}


class Vq(nn.Module):
    """Vector quantisation: straight through the nearest code."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = mlp(8, 24, 4), mlp(4, 24, 8)
        self.codes = nn.Embedding(16, 4)
        self.register_buffer("mean", torch.full((8,), 0.1))

    def forward(self, x):
        x = x - self.mean
        z = self.encode(x)
        nearest = (z[:, None] - self.codes.weight).pow(2).sum(-1).argmin(1)
        code = self.codes(nearest)
        near = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
        return {"loss": F.mse_loss(self.decode(z + (code - z).detach()), x) + near}


class SimClr(nn.Module):
    """Contrastive, with a temperature of one element at the top of the module."""

    def __init__(self):
        super().__init__()
        self.temp = nn.Parameter(torch.tensor([0.5]))
        self.encode = mlp(8, 24, 6)
        self.register_buffer("scale", torch.full((8,), 1.5))

    def forward(self, a, b):
        z = F.normalize(self.encode(torch.cat([a, b]) * self.scale), dim=1)
        alike = z @ z.T / self.temp
        n = a.shape[0]
        alike = alike.masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
        other = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
        return {"loss": F.cross_entropy(alike, other)}


class Mixer(nn.Module):
    """MLP-Mixer: patches by a convolution, tokens and channels mixed in turn."""

    class Block(nn.Module):
        def __init__(self, tokens, width):
            super().__init__()
            self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
            self.tokens, self.channels = mlp(tokens, 2 * tokens, tokens), mlp(width, 2 * width, width)

        def forward(self, x):
            x = x + self.tokens(self.a(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.b(x))

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 4, stride=4)
        self.blocks = nn.Sequential(*(Mixer.Block(16, 12) for _ in range(2)))
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x).flatten(2).transpose(1, 2)).mean(1))


class Xcit(nn.Module):
    """Attention over channels, with a temperature per head, and a convolution over patches."""

    class Block(nn.Module):
        def __init__(self, width, heads, side):
            super().__init__()
            self.heads, self.side = heads, side
            self.a, self.b, self.c = (nn.LayerNorm(width) for _ in range(3))
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
            self.local = nn.Conv2d(width, width, 3, padding=1, groups=width)
            self.mlp = mlp(width, 2 * width, width)
            self.gamma = nn.Parameter(torch.full((width,), 0.5))

        def attend(self, x):
            n, t, c = x.shape
            q, k, v = self.qkv(x).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 4, 1)
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
            weights = (q @ k.transpose(-2, -1) * self.temperature).softmax(-1)
            return self.out((weights @ v).permute(0, 3, 1, 2).reshape(n, t, c))

        def forward(self, x):
            n, t, c = x.shape
            x = x + self.gamma * self.attend(self.a(x))
            y = self.b(x).transpose(1, 2).reshape(n, c, self.side, self.side)
            x = x + self.local(y).reshape(n, c, t).transpose(1, 2)
            return x + self.mlp(self.c(x))

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 4, stride=4)
        self.blocks = nn.Sequential(*(Xcit.Block(12, 2, 4) for _ in range(2)))
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x).flatten(2).transpose(1, 2)).mean(1))


def images(samples):
    return {"x": torch.randn(samples, 3, 16, 16), "labels": torch.randint(0, 5, (samples,))}


def series(samples):
    return {"past_values": torch.randn(samples, 32, 2), "future_values": torch.randn(samples, 4, 2)}


two_texts = language(("input_ids", "decoder_input_ids"))
CASES = {
    "whisper": Case(whisper, speech, outputs=("logits",), unwritten=("torchscript",)),
    "marian": Case(marian, two_texts, outputs=("logits",)),
    "bart": Case(bart, two_texts, outputs=("logits",)),
    "albert": Case(albert, language(), outputs=("logits",)),
    "deberta": Case(deberta, language(), outputs=("logits",)),
    "patchtst": Case(patchtst, series, "output:loss", outputs=("loss",), beyond=("torchscript",),
                     unwritten=("torchscript",)),
    "mamba": Case(mamba, language(), outputs=("logits",)),
    "gpt": Case(gpt, language(), outputs=("logits",), unwritten=("torchscript",), quick="torchscript"),
    "dqn": Case(Dqn, plays, "output:loss", stops=True, unwritten=("torchscript",), quick="dynamo"),
    "gan": Case(Gan, noise_and_real, "output:loss", stops=True, quick="torchscript"),
    "vq": Case(Vq, lambda n: {"x": torch.randn(n, 8)}, "output:loss", stops=True, quick="torchscript"),
    "simclr": Case(SimClr, lambda n: {"a": torch.randn(n, 8), "b": torch.randn(n, 8)}, "output:loss",
                   quick="torchscript"),
    "mixer": Case(Mixer, images),
    "xcit": Case(Xcit, images),
}


def make(name, seed=0):
    """A module in train mode."""
    torch.manual_seed(seed)
    return CASES[name].build().train()
