"""Modules that shardc.export refuses, and what it says of each; refusals.py runs them."""
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

X = torch.linspace(-1, 1, 24).reshape(4, 6)


def linear(forward, **attributes):
    """A module of one Linear(6, 6) whose forward is the function given."""
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 6)
            for name, value in attributes.items():
                if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                    self.register_buffer(name, value)
                else:
                    setattr(self, name, value)

        def forward(self, *args, **kwargs):
            return forward(self, *args, **kwargs)
    torch.manual_seed(0)
    return Module().train()


class Round(torch.autograd.Function):
    """Straight through, by a backward of its own."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Square(torch.autograd.Function):
    """A backward that is its forward's derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


class Power(torch.autograd.Function):
    """Whose forward is given no context."""

    @staticmethod
    def forward(x, scale=3.0, exponent=3):
        return scale * x ** exponent

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.scale, ctx.exponent = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return ctx.scale * ctx.exponent * x ** (ctx.exponent - 1) * gradient, None, None


class Scaled(torch.autograd.Function):
    """A gradient multiplied by a number of each call."""

    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.by, None


class Multiplied(torch.autograd.Function):
    """A number that calls give by its name."""

    @staticmethod
    def forward(ctx, x, by=2.0):
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.by, None


class Clipped(torch.autograd.Function):
    """A gradient within bounds, which most are."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-10, 10)


class Saturated(torch.autograd.Function):
    """Straight through where operands are large, which X is not."""

    @staticmethod
    def forward(ctx, x):
        return x.clamp(-4, 4)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Blind(torch.autograd.Function):
    """A backward that leaves out a parameter of its forward."""
    weight = None

    @staticmethod
    def forward(ctx, x):
        ctx.weight = Blind.weight
        return x * ctx.weight

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.weight.detach()


def scaled_twice(self, x):
    return Scaled.apply(self.b(Scaled.apply(self.a(x), 1.0)), 0.1)


def blind(self, x):
    Blind.weight = self.a.weight[0]
    return Blind.apply(self.a(x))


def clamped(by_data, bound):
    def forward(self, x):
        if by_data:
            self.a.weight.data.clamp_(-bound, bound)
        else:
            with torch.no_grad():
                self.a.weight[:2].clamp_(-bound, bound)
        return self.a(x)
    return forward


def overwritten(self, x):
    self.a.weight.detach().numpy()[0] += 1
    return self.a(x)


def exchanged(self, x):
    self.a.weight = nn.Parameter(self.a.weight * 0.5)
    return self.a(x)


def averaged(self, x):
    """A teacher that follows, in forward."""
    with torch.no_grad():
        for mine, other in zip(self.b.parameters(), self.a.parameters()):
            torch.add(mine, other, out=mine)
        aim = self.b(x)
    return self.a(x) - aim


def halved(self, x):
    y = self.a(x)
    with torch.no_grad():
        y.mul_(0.5)
    return y


def zeroed_view(self, x):
    y = self.a(x)
    with torch.no_grad():
        y[:, 0].zero_()
    return y


def checkpointed_first(self, x):
    return self.b(torch.utils.checkpoint.checkpoint(self.a, x, use_reentrant=True))


def by_largest(self, x):
    return self.a(x / float(x.abs().max()))


def by_mask(self, x, mask):
    return self.a(x) * 2 if mask.sum() > 4 else self.a(x)


OWN = np.random.default_rng(0)


def own_noise(self, x):
    return self.a(x) + OWN.random()


def skipped(self, x):
    return self.a(x) * 2 if random.random() < 0.5 else self.a(x)


def looked_into(self, x):
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    return self.b(x[None], mask=mask)


def shuffled(self, x):
    return self.a(x)[:, torch.randperm(6)]


def last_state(self, x):
    packed = nn.utils.rnn.pack_padded_sequence(x[None], torch.tensor([3]), batch_first=True)
    return self.a(self.b(packed)[1][-1])


def by_length(self, x):
    return self.a(x).sum() / len(x)


def accumulating():
    m = linear(lambda self, x: self.a(x))
    m.a.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.1))
    return m


def counted(self, x):
    self.seen += x.mean(0)
    return self.a(x)


def penalised(self, x):
    x = x.detach().requires_grad_()
    y = self.a(x).sum()
    return y + torch.autograd.grad(y, x, create_graph=True)[0].pow(2).sum()


def hooked(self, x):
    y = self.a(x)
    y.register_hook(lambda gradient: -gradient)
    return y


def in_place_detach(self, x):
    y = self.a(x)
    y.detach_()
    return y + self.a(x)


def numbers(self, x):
    return x * float(self.a.weight.sum())


def branch(self, x):
    return self.a(x) if float(x[0, 0]) < 0 else -self.a(x)


def set_data(self, x):
    y = self.a(x)
    y.data = y.data * 2
    return y


def shared_memory():
    m = linear(lambda self, x: self.b(self.a(x)), b=nn.Linear(6, 6))
    m.b.weight.data = m.a.weight.data
    return m


def with_hook():
    m = linear(lambda self, x: self.a(x))
    m.a.register_full_backward_hook(lambda *_: None)
    return m


def lazy():
    return linear(lambda self, x: self.b(self.a(x)), b=nn.LazyLinear(3))


def max_norm():
    return linear(lambda self, x: self.a(self.b(x)), b=nn.Embedding(9, 6, max_norm=0.1))


def complex_parameter():
    return linear(lambda self, x: self.a(x) + self.c.abs(), c=nn.Parameter(torch.ones(6, dtype=torch.complex64)))


def momentum_none():
    return linear(lambda self, x: self.n(self.a(x)), n=nn.BatchNorm1d(6, momentum=None))


def instance_statistics():
    return linear(lambda self, x: self.n(self.a(x)), n=nn.InstanceNorm1d(4, track_running_stats=True))


def rrelu():
    return linear(lambda self, x: F.rrelu(self.a(x), training=True))


class ListedExperts(nn.Module):
    """Experts that compute the tokens which chose them, and none where none did."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 2), nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x):
        chosen, y = self.gate(x).argmax(-1), torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            at = torch.where(chosen == i)[0]
            if len(at):
                y = y.index_add(0, at, expert(x[at]))
        return y


def listed_experts():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), ListedExperts()).train()


HIDDEN = torch.zeros(4, 4).index_fill(0, torch.tensor(1), -torch.inf)
HIDDEN[2, 3] = -torch.inf


def hidden(self, x, mask):
    y = self.a(x)[None, None]
    return F.scaled_dot_product_attention(y, y, y, attn_mask=mask)


TOKENS = torch.tensor([[0, 1, 2], [3, 4, 5]])
CHANGES = "forward changes parameter a.weight"
DECIDES = {"torchscript": "took a branch by its value", "dynamo": "forward decides by the value of a tensor"}
# name: (build, arguments, what the error says, or that by exporter, options)
REFUSED = {
    "attention of which a row sees nothing, by numbers": (lambda: linear(hidden), (X, HIDDEN),
                                                          {"torchscript": "computes something else than the module"}),
    "own backward": (lambda: linear(lambda self, x: Round.apply(self.a(x))), X, "autograd.Function Round"),
    "a scaled gradient, not by the first call": (lambda: linear(scaled_twice, b=nn.Linear(6, 6)), X, "Function Scaled"),
    "own backward, an argument by name": (
        lambda: linear(lambda self, x: Scaled.apply(self.a(x), by=0.1)), X, "autograd.Function Scaled"),
    "a clipped gradient": (lambda: linear(lambda self, x: Clipped.apply(self.a(x))), X, "autograd.Function Clipped"),
    "as_strided of a part": (lambda: linear(lambda self, x: self.a(x)[:, ::2].as_strided((2, 2), (1, 1))), X,
                             "a part of the memory of another tensor"),
    "saturated operands": (lambda: linear(lambda self, x: Saturated.apply(self.a(x))), X, "Function Saturated"),
    "a backward that forgets a parameter": (lambda: linear(blind), X, "autograd.Function Blind"),
    "a parameter clamped by .data": (lambda: linear(clamped(True, 0.1)), X, CHANGES),
    "a parameter clamped without effect": (lambda: linear(clamped(True, 9)), X, CHANGES),
    "a parameter clamped under no_grad": (lambda: linear(clamped(False, 9)), X, CHANGES),
    "a parameter written by numpy": (lambda: linear(overwritten), X, CHANGES),
    "a parameter exchanged": (lambda: linear(exchanged), X, CHANGES),
    "a teacher that follows": (lambda: linear(averaged, b=nn.Linear(6, 6)), X, "forward changes parameter b.weight"),
    "in place under no_grad": (lambda: linear(halved), X, "in place (mul_) under no_grad"),
    "a view in place under no_grad": (lambda: linear(zeroed_view), X, "in place (zero_) under no_grad"),
    "checkpointing without a gradient": (lambda: linear(checkpointed_first, b=nn.Linear(6, 6)), X, "use_reentrant"),
    "a hook behind a gradient": (accumulating, X, "parameter a.weight has a backward hook"),
    "divided by the largest": (lambda: linear(by_largest), X, DECIDES),
    "a branch by a mask of ones": (lambda: linear(by_mask), (X, torch.ones(6)), DECIDES),
    "skipped by Python's random": (lambda: linear(skipped), X, "forward draws from Python's `random`"),
    "noise of NumPy": (lambda: linear(lambda self, x: self.a(x) + np.random.rand()), X, "forward draws from NumPy's"),
    "noise of a generator of its own": (lambda: linear(own_noise), X, "is another each time that forward runs"),
    "a mask that is looked into": (
        lambda: linear(looked_into, b=nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True), 1)), X,
        {"dynamo": "say it, is_causal=True or False"}),
    "a permutation": (lambda: linear(shuffled), X, "Neither exporter writes a permutation"),
    "the last state of a packed sequence": (lambda: linear(last_state, b=nn.GRU(6, 6, batch_first=True)), X,
                                            {"torchscript": "unpack the outputs"}),
    "divided by a length": (lambda: linear(by_length), X[:2], "batch", {"dynamic_batch": True}),
    "experts by lists": (listed_experts, X, {"dynamo": "Give each expert a static capacity"}),
    "gradient penalty": (lambda: linear(penalised), X, "torch.autograd.grad"),
    "hook of a value": (lambda: linear(hooked), X, "hook"),
    "hook of a module": (with_hook, X, "module a has a backward hook"),
    "detach_": (lambda: linear(in_place_detach), X, "detach_()"),
    "assigned .data": (lambda: linear(set_data), X, ".data"),
    "a counting buffer": (lambda: linear(counted, seen=torch.zeros(6)), X, "forward changes buffer seen"),
    "parameters as numbers": (lambda: linear(numbers), X, "a number out of a value"),
    "a branch by value": (lambda: linear(branch), X, DECIDES),
    "shared memory": (shared_memory, X, "a.weight and b.weight share memory"),
    "lazy": (lazy, X, "b.weight has no shape yet"),
    "probabilities as labels": (lambda: linear(lambda self, x: F.cross_entropy(self.a(x), x.softmax(1))), X,
                                "cross_entropy with probabilities"),
    "max_norm": (max_norm, TOKENS, "max_norm"),
    "complex": (complex_parameter, X, "parameter c is complex"),
    "rrelu": (rrelu, X, "rrelu"),
    "an average of statistics": (momentum_none, X, "module n (BatchNorm1d) has momentum=None"),
    "statistics of instances": (instance_statistics, X[None], "module n (InstanceNorm1d) keeps running statistics"),
    "wrong shape": (lambda: linear(lambda self, x: self.a(x)), X[:, :5], "does not run with these arguments"),
    "no tensor in": (lambda: linear(lambda self, n: self.a(torch.ones(n, 6))), (3,), "no tensor"),
    "no tensor out": (lambda: linear(lambda self, x: 3), X, "int"),
    "no module": (lambda: F.relu, X, "no torch.nn.Module"),
    "a string": (lambda: linear(lambda self, x: x), "x", "args is a str"),
}
