"""The models of the parity and speed comparisons, as PyTorch modules with fresh weights.

Each case builds a module that maps one input tensor to logits, in training mode with dropout off, the
shape of its input and labels, and what is known of its true gradient.
"""
import dataclasses

import torch
import transformers as hf
from torch import nn

import signals


@dataclasses.dataclass
class Case:
    build: callable           # () -> module; call torch.manual_seed first
    batch: int
    sample: tuple             # shape of one sample
    classes: int              # of the logits' last axis
    tokens: bool = False      # integer input below `classes`; labels have the sample's shape
    batch_norm: bool = False
    image: bool = False
    dense: tuple = ()         # shape of a sample's labels where each place has one; the logits' classes are axis 1
    zero_grad: tuple = ()     # (parameter name suffix, begin, end as fractions): true gradient is zero
    optimize: bool = False    # the exporter's optimizer may run: nothing in the model is small enough to be folded
    slow: bool = False        # left out of quick runs
    exporters: tuple = ("dynamo", "torchscript")  # those that have its ops
    opset: int = 17           # that torchscript writes


class Logits(nn.Module):
    """Calls a Hugging Face model with one positional input and returns its logits alone.

    Positions are given, because tracing cannot follow how the models derive them."""

    def __init__(self, model, position_ids=None):
        super().__init__()
        self.model = model
        if position_ids is not None:
            self.register_buffer("position_ids", position_ids, persistent=False)
        self.has_positions = position_ids is not None

    def forward(self, x):
        extra = {"position_ids": self.position_ids} if self.has_positions else {}
        return self.model(x, **extra, return_dict=True, **self.flags()).logits

    def flags(self):
        return {"use_cache": False} if self.has_positions and hasattr(self.model.config, "use_cache") else {}


def gpt2(**size):
    def build():
        config = hf.GPT2Config(embd_pdrop=0, resid_pdrop=0, attn_pdrop=0, attn_implementation="sdpa", **size)
        return Logits(hf.GPT2LMHeadModel(config))
    return build


def bert(**size):
    def build():
        # ONNX cannot say that the embedding of a padding token gets no gradient
        config = hf.BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0, pad_token_id=None, **size)
        return Logits(hf.BertForMaskedLM(config))
    return build


def llama(**size):
    def build():
        return Logits(hf.LlamaForCausalLM(hf.LlamaConfig(attention_dropout=0, **size)))
    return build


def vit(**size):
    def build():
        return Logits(hf.ViTForImageClassification(
            hf.ViTConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0, **size)))
    return build


def resnet(layer_type, depths, widths, labels, **more):
    def build():
        config = hf.ResNetConfig(layer_type=layer_type, depths=depths, hidden_sizes=widths, num_labels=labels, **more)
        return Logits(hf.ResNetForImageClassification(config))
    return build


def mobilenet(labels, size, **more):
    def build():
        config = hf.MobileNetV2Config(num_labels=labels, image_size=size, classifier_dropout_prob=0,
                                      tf_padding=False, **more)
        return Logits(hf.MobileNetV2ForImageClassification(config))
    return build


class LanguageModel(nn.Module):
    """Tokens -> embedding -> recurrent layers -> logits; tied: the embedding gives the logits, too."""

    def __init__(self, rnn, classes, inner, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(classes, rnn.input_size)
        self.rnn = rnn
        self.head = nn.Linear(inner, classes, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.rnn(self.embedding(x))[0])


class Tagger(nn.Module):
    """A label for each token of a sequence, in both directions; what follows a sequence's end is padding.  The length
    comes from the first token, as data would bring it."""

    def __init__(self, classes, width):
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.rnn = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x):
        lengths = x[:, 0] % x.shape[1] + 1
        packed = nn.utils.rnn.pack_padded_sequence(self.embedding(x), lengths.cpu(), batch_first=True,
                                                   enforce_sorted=False)
        states = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=x.shape[1])[0]
        return self.head(states)


class SequenceToSequence(nn.Module):
    """The tokens are encoded and, in reversed order, decoded from the encoder's states, with attention."""

    def __init__(self, classes, width):
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.encoder = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.decoder = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.query = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x):
        x = self.embedding(x)
        keys, state = self.encoder(x)
        h = self.decoder(x.flip(1), state)[0]
        weights = torch.softmax(self.query(h) @ keys.transpose(1, 2), -1)
        return self.head(torch.cat([h, weights @ keys], -1))


KEY_THIRD = (("c_attn.bias", 1 / 3, 2 / 3),)
KEY_BIAS = (("key.bias", 0, 1), ("k_proj.bias", 0, 1))

CASES = {
    "gpt2-small": Case(gpt2(n_layer=2, n_embd=96, n_head=3, vocab_size=301, n_positions=40), 4, (40,), 301,
                       tokens=True, zero_grad=KEY_THIRD),
    "gpt2-124m": Case(gpt2(), 1, (64,), 50257, tokens=True, zero_grad=KEY_THIRD, optimize=True, slow=True),
    "bert": Case(bert(num_hidden_layers=2, hidden_size=96, num_attention_heads=3, intermediate_size=384,
                      vocab_size=301, max_position_embeddings=40), 4, (40,), 301, tokens=True, zero_grad=KEY_BIAS),
    "llama": Case(llama(num_hidden_layers=2, hidden_size=96, num_attention_heads=6, num_key_value_heads=2,
                        intermediate_size=256, vocab_size=301, max_position_embeddings=40), 4, (40,), 301,
                  tokens=True),
    "vit": Case(vit(num_hidden_layers=2, hidden_size=96, num_attention_heads=3, intermediate_size=384,
                    image_size=32, patch_size=8, num_labels=10), 8, (3, 32, 32), 10, image=True,
                zero_grad=KEY_BIAS),
    "resnet18": Case(resnet("basic", [2, 2, 2, 2], [64, 128, 256, 512], 10), 8, (3, 64, 64), 10,
                     batch_norm=True, image=True),
    "resnet50": Case(resnet("bottleneck", [3, 4, 6, 3], [256, 512, 1024, 2048], 10), 8, (3, 64, 64), 10,
                     batch_norm=True, image=True, slow=True),
    "lstm": Case(lambda: LanguageModel(nn.LSTM(24, 48, 2, batch_first=True), 101, 48), 4, (20,), 101, tokens=True),
    "lstm-tied": Case(lambda: LanguageModel(nn.LSTM(48, 48, batch_first=True), 101, 48, tied=True), 4, (20,), 101, tokens=True,
                      slow=True),
    "gru": Case(lambda: LanguageModel(nn.GRU(24, 48, 2, batch_first=True), 101, 48), 4, (20,), 101, tokens=True),
    "rnn": Case(lambda: LanguageModel(nn.RNN(24, 48, nonlinearity="relu", batch_first=True), 101, 48), 4, (20,), 101,
                tokens=True, slow=True),
    "tagger": Case(lambda: Tagger(101, 24), 4, (20,), 101, tokens=True, slow=True, exporters=("torchscript",)),
    "seq2seq": Case(lambda: SequenceToSequence(101, 24), 4, (20,), 101, tokens=True, slow=True),
    "mobilenetv2": Case(mobilenet(10, 64), 8, (3, 64, 64), 10, batch_norm=True, image=True),
    "transformer": Case(lambda: signals.SpatialTransformer(10), 8, (1, 16, 16), 10, image=True,
                        opset=20),
    "spectral": Case(lambda: signals.Spectral(10), 4, (509,), 10, exporters=("dynamo",)),
    "spectrogram": Case(lambda: signals.Spectrogram(10), 6, (400,), 10),
}


def make_data(case, samples, seed):
    """(inputs, labels) of `samples` samples."""
    g = torch.Generator().manual_seed(seed)
    if case.tokens:
        x = torch.randint(0, case.classes, (samples, *case.sample), generator=g)
        return x, torch.randint(0, case.classes, (samples, *case.sample), generator=g)
    return (torch.randn(samples, *case.sample, generator=g),
            torch.randint(0, case.classes, (samples, *case.dense), generator=g))


def export(case, module, path, exporter):
    """Writes the module as ONNX with weights in a file beside it (needed above 2 GB, and how big models come)."""
    x, _ = make_data(case, case.batch, 0)
    names = dict(input_names=["x"], output_names=["logits"])
    if exporter == "dynamo":
        # the exporter's optimizer folds BatchNorm into Conv and small parameters into constants, training mode or not
        program = torch.onnx.export(module, (x,), dynamo=True, optimize=case.optimize, verbose=False, **names)
        program.save(str(path), external_data=True)
    else:
        if isinstance(getattr(getattr(module, "model", None), "config", None), hf.LlamaConfig):
            module.model.set_attn_implementation("eager")  # this exporter has no grouped-query attention
        mode = torch.onnx.TrainingMode.TRAINING if case.batch_norm else torch.onnx.TrainingMode.EVAL
        torch.onnx.export(module, (x,), str(path), dynamo=False, training=mode,
                          do_constant_folding=case.optimize, opset_version=case.opset, **names)
