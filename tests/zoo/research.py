"""Models of papers: loops of fixed length, weights that are computed, structures that no library has."""
import math

import torch
from case import CLASSES, LENGTH, VOCAB, Case, images, language, mlp, tokens
from torch import nn
from torch.nn import functional as F


class Ode(nn.Module):
    """A neural ordinary differential equation: one field, integrated by Runge and Kutta's fourth order in fixed steps."""

    def __init__(self, steps=4):
        super().__init__()
        self.steps, self.up, self.field, self.head = steps, nn.Linear(6, 8), mlp(9, 24, 8, act=nn.Tanh), nn.Linear(8, CLASSES)

    def slope(self, t, y):
        return self.field(torch.cat([y, torch.full_like(y[:, :1], t)], 1))

    def forward(self, x):
        y, h = self.up(x), 1 / self.steps
        for i in range(self.steps):
            t = i * h
            a = self.slope(t, y)
            b = self.slope(t + h / 2, y + h / 2 * a)
            c = self.slope(t + h / 2, y + h / 2 * b)
            d = self.slope(t + h, y + h * c)
            y = y + h / 6 * (a + 2 * b + 2 * c + d)
        return self.head(y)


class SetTransformer(nn.Module):
    """Sets: attention by way of inducing points, and pooling by a learnt query."""

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.attend = nn.MultiheadAttention(width, 2, batch_first=True)
            self.a, self.b, self.row = nn.LayerNorm(width), nn.LayerNorm(width), nn.Linear(width, width)

        def forward(self, x, seen):
            h = self.a(x + self.attend(x, seen, seen, need_weights=False)[0])
            return self.b(h + F.relu(self.row(h)))

    def __init__(self, width=16):
        super().__init__()
        self.up = nn.Linear(3, width)
        self.points, self.seed = nn.Parameter(torch.randn(1, 4, width)), nn.Parameter(torch.randn(1, 1, width))
        self.down, self.back, self.pool = (SetTransformer.Block(width) for _ in range(3))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        x = self.up(x)
        x = self.back(x, self.down(self.points.expand(x.shape[0], -1, -1), x))
        return self.head(self.pool(self.seed.expand(x.shape[0], -1, -1), x)[:, 0])


class Capsules(nn.Module):
    """Vectors that agree: routing by three rounds, whose first two give no gradient, and a margin loss."""

    def __init__(self):
        super().__init__()
        self.conv, self.first = nn.Conv2d(1, 8, 5), nn.Conv2d(8, 16, 5, stride=2)
        self.weight = nn.Parameter(torch.randn(CLASSES, 64, 6, 4) / 4)

    @staticmethod
    def squash(x):
        square = x.pow(2).sum(-1, keepdim=True)
        return square / (1 + square) * x / (square + 1e-8).sqrt()

    def forward(self, x, kinds):
        n = x.shape[0]
        u = self.squash(self.first(F.relu(self.conv(x))).view(n, 4, 4, 16).permute(0, 2, 3, 1).reshape(n, 64, 4))
        votes = torch.einsum("kpio,bpo->bkpi", self.weight, u)
        still = votes.detach()
        logits = torch.zeros(n, CLASSES, 64, 1)
        for _ in range(2):
            v = self.squash((logits.softmax(1) * still).sum(2, keepdim=True))
            logits = logits + (still * v).sum(-1, keepdim=True)
        length = self.squash((logits.softmax(1) * votes).sum(2)).norm(dim=-1)
        one = F.one_hot(kinds, CLASSES).to(length.dtype)
        return {"loss": (one * F.relu(0.9 - length) ** 2 + 0.5 * (1 - one) * F.relu(length - 0.1) ** 2).sum(1).mean()}


class Hypernetwork(nn.Module):
    """Each sample has a network of its own, written by another, and applied as one grouped convolution."""

    def __init__(self):
        super().__init__()
        self.write = mlp(6, 24, 8 * 3 * 9 + 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x, style):
        n, w = x.shape[0], self.write(style)
        weight, bias = w[:, :216].reshape(n * 8, 3, 3, 3), w[:, 216:].reshape(n * 8)
        y = F.conv2d(x.reshape(1, n * 3, *x.shape[2:]), weight, bias, padding=1, groups=n)
        return self.head(F.relu(y).reshape(n, 8, -1).mean(2))


class Modulated(nn.Module):
    """StyleGAN's convolution: weights scaled by a style, normalised per sample; pixels shuffled upwards."""

    def __init__(self):
        super().__init__()
        self.style, self.weight = nn.Linear(6, 8), nn.Parameter(torch.randn(12, 8, 3, 3))
        self.const, self.strength = nn.Parameter(torch.randn(1, 8, 4, 4)), nn.Parameter(torch.zeros(1))

    def forward(self, style, noise):
        n = style.shape[0]
        w = self.weight * (self.style(style) + 1)[:, None, :, None, None]
        w = w * torch.rsqrt(w.pow(2).sum((2, 3, 4), keepdim=True) + 1e-8)
        x = self.const.expand(n, -1, -1, -1).reshape(1, n * 8, 4, 4)
        y = F.conv2d(x, w.flatten(0, 1), padding=1, groups=n).view(n, 12, 4, 4)
        return torch.tanh(F.leaky_relu(F.pixel_shuffle(y, 2) + self.strength * noise, 0.2))


class Perceiver(nn.Module):
    """Latents read a long input again and again with the same weights; a query per output reads them."""

    def __init__(self, width=16):
        super().__init__()
        def block():
            return nn.TransformerDecoderLayer(width, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.up, self.latents = nn.Linear(3 + 8, width), nn.Parameter(torch.randn(4, width) / 4)
        self.read, self.out = block(), nn.MultiheadAttention(width, 2, batch_first=True)
        self.query, self.head = nn.Parameter(torch.randn(1, 1, width)), nn.Linear(width, CLASSES)

    def forward(self, x):
        n, side = x.shape[0], x.shape[2]
        line = torch.linspace(-1, 1, side)
        y, z = torch.meshgrid(line, line, indexing="ij")
        at = torch.stack([y, z], -1)[..., None] * math.pi * torch.tensor([1.0, 2.0])
        at = torch.cat([at.sin(), at.cos()], -1).flatten(2).to(x.dtype)
        rows = torch.cat([x.permute(0, 2, 3, 1), at.expand(n, -1, -1, -1)], -1).flatten(1, 2)
        rows, latents = self.up(rows), self.latents.expand(n, -1, -1)
        for _ in range(2):
            latents = self.read(latents, rows)
        return self.head(self.out(self.query.expand(n, -1, -1), latents, latents, need_weights=False)[0][:, 0])


class Kan(nn.Module):
    """Kolmogorov and Arnold: each edge is a spline of third order, on a grid of its own."""

    class Layer(nn.Module):
        def __init__(self, a, b, grid=5, order=3):
            super().__init__()
            self.order = order
            knots = (torch.arange(-order, grid + order + 1) / grid * 2 - 1)
            self.register_buffer("knots", knots.repeat(a, 1))
            self.base, self.spline = nn.Parameter(torch.randn(b, a) / a), nn.Parameter(torch.randn(b, a, grid + order) / a)

        def forward(self, x):
            g, x1 = self.knots, x[..., None]
            basis = ((x1 >= g[:, :-1]) & (x1 < g[:, 1:])).to(x.dtype)
            for k in range(1, self.order + 1):
                left = (x1 - g[:, :-k - 1]) / (g[:, k:-1] - g[:, :-k - 1]) * basis[..., :-1]
                right = (g[:, k + 1:] - x1) / (g[:, k + 1:] - g[:, 1:-k]) * basis[..., 1:]
                basis = left + right
            return F.linear(F.silu(x), self.base) + torch.einsum("bif,oif->bo", basis, self.spline)

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Kan.Layer(6, 8), Kan.Layer(8, CLASSES))

    def forward(self, x):
        return self.layers(x)


class Equilibrium(nn.Module):
    """A fixed point, sought without gradients in twelve rounds; one more round gives the gradient."""

    def __init__(self, width=16):
        super().__init__()
        self.up, self.again, self.norm = nn.Linear(6, width), nn.Linear(width, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        u = self.up(x)
        with torch.no_grad():
            z = torch.zeros_like(u)
            for _ in range(12):
                z = self.norm(torch.tanh(self.again(z) + u))
        return self.head(self.norm(torch.tanh(self.again(z) + u)))


class Energy(nn.Module):
    """Denoising score matching: the score is the derivative of an energy, which the module writes out."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 24), nn.Linear(24, 24), nn.Linear(24, 1)

    def forward(self, x, noise):
        h = self.a(x + 0.3 * noise)
        k = self.b(F.softplus(h))
        back = (self.c.weight * torch.sigmoid(k)) @ self.b.weight
        score = -(back * torch.sigmoid(h)) @ self.a.weight
        energy = self.c(F.softplus(k))
        return {"loss": (score + noise / 0.3).pow(2).sum(1).mean() + 1e-2 * (score.norm(dim=1) - 1).pow(2).mean()
                + 1e-3 * energy.pow(2).mean()}


class PointNet(nn.Module):
    """Clouds of points: turned by what a small network finds, a maximum over points, a loss that keeps turns square."""

    def __init__(self):
        super().__init__()
        def up(*widths):
            return nn.Sequential(*(m for a, b in zip(widths, widths[1:])
                                   for m in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())))
        self.find, self.turn = up(3, 8, 16), nn.Linear(16, 9)
        self.rise, self.head = up(3, 8, 32), mlp(32, 16, CLASSES)

    def forward(self, x, kinds):
        turn = self.turn(self.find(x).amax(2)).view(-1, 3, 3) + torch.eye(3)
        y = self.rise((x.transpose(1, 2) @ turn).transpose(1, 2))
        square = (torch.eye(3) - turn @ turn.transpose(1, 2)).norm(dim=(1, 2)).mean()
        return {"loss": F.cross_entropy(self.head(y.max(2).values), kinds) + 0.01 * square}


class GatedUnet(nn.Module):
    """A U-Net whose skips are weighed by attention gates, up-sampled bilinearly, with a soft dice loss."""

    class Gate(nn.Module):
        def __init__(self, a, b, width):
            super().__init__()
            self.a, self.b = nn.Conv2d(a, width, 1), nn.Conv2d(b, width, 1, bias=False)
            self.c = nn.Sequential(nn.Conv2d(width, 1, 1), nn.InstanceNorm2d(1, affine=True), nn.Sigmoid())

        def forward(self, skip, gate):
            gate = F.interpolate(self.b(gate), size=skip.shape[2:], mode="bilinear", align_corners=True)
            return skip * self.c(F.relu(self.a(skip) + gate))

    def __init__(self):
        super().__init__()
        def block(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(2, b), nn.LeakyReLU(0.1))
        self.a, self.b, self.c = block(3, 8), block(8, 16), block(24, 8)
        self.gate, self.head = GatedUnet.Gate(8, 16, 4), nn.Conv2d(8, 1, 1)

    def forward(self, x, mask):
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        up = F.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        found = self.head(self.c(torch.cat([self.gate(a, b), up], 1))).sigmoid()
        both = (found * mask).sum((1, 2, 3))
        return {"loss": (1 - (2 * both + 1) / (found.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)).mean()}


class Slots(nn.Module):
    """Slot attention: slots compete for places, and a cell renews them."""

    def __init__(self, width=16):
        super().__init__()
        self.start = nn.Parameter(torch.randn(1, 3, width))
        self.a, self.b, self.c = (nn.LayerNorm(width) for _ in range(3))
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.cell, self.mlp = nn.GRUCell(width, width), mlp(width, 32, width)
        self.up, self.paint = nn.Linear(5, width), mlp(width, 32, 9 * 6)

    def forward(self, x):
        rows = self.a(self.up(x))
        k, v, slots = self.k(rows), self.v(rows), self.start.expand(x.shape[0], -1, -1)
        for _ in range(3):
            weights = (k @ self.q(self.b(slots)).transpose(1, 2) / 4).softmax(-1) + 1e-8
            seen = (weights / weights.sum(1, keepdim=True)).transpose(1, 2) @ v
            new = self.cell(seen.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
            slots = new + self.mlp(self.c(new))
        painted = self.paint(slots).view(-1, 3, 9, 6)
        image = (painted[..., :5] * painted[..., 5:].softmax(1)).sum(1)
        return {"loss": F.mse_loss(image, x)}


class FourierOperator(nn.Module):
    """FNO: weights of the lowest frequencies in two dimensions, as two real tensors."""

    class Layer(nn.Module):
        def __init__(self, width, modes):
            super().__init__()
            self.modes, self.skip = modes, nn.Conv2d(width, width, 1)
            self.top, self.low = (nn.Parameter(torch.randn(2, width, width, modes, modes) / width) for _ in range(2))

        def forward(self, x):
            m, h, w = self.modes, x.shape[2], x.shape[3]
            f = torch.fft.rfft2(x)
            re, im = f.real, f.imag
            top = self.times(re[:, :, :m, :m], im[:, :, :m, :m], self.top)
            low = self.times(re[:, :, -m:, :m], im[:, :, -m:, :m], self.low)
            re, im = (F.pad(torch.cat([F.pad(a, (0, 0, 0, h - 2 * m)), b], 2), (0, w // 2 + 1 - m)) for a, b in zip(top, low))
            return torch.fft.irfft2(torch.complex(re, im), s=(h, w)) + self.skip(x)

        @staticmethod
        def times(re, im, weight):
            def product(a, b):
                return torch.einsum("bixy,ioxy->boxy", a, b)
            return product(re, weight[0]) - product(im, weight[1]), product(re, weight[1]) + product(im, weight[0])

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 1, 1)
        self.a, self.b = FourierOperator.Layer(8, 3), FourierOperator.Layer(8, 3)

    def forward(self, x):
        return self.down(self.b(F.gelu(self.a(self.up(x)))))


class Crf(nn.Module):
    """A conditional random field on an LSTM: all ways through the labels less the one that is given."""

    def __init__(self, tags=CLASSES):
        super().__init__()
        self.table, self.layer = nn.Embedding(VOCAB, 16), nn.LSTM(16, 8, batch_first=True, bidirectional=True)
        self.emit, self.move = nn.Linear(16, tags), nn.Parameter(torch.randn(tags, tags) / 4)
        self.begin, self.end = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))

    def forward(self, input_ids, tags):
        e = self.emit(self.layer(self.table(input_ids))[0])
        gold = e.gather(2, tags[..., None])[..., 0].sum(1) + self.move[tags[:, :-1], tags[:, 1:]].sum(1)
        gold = gold + self.begin[tags[:, 0]] + self.end[tags[:, -1]]
        a = self.begin + e[:, 0]
        for t in range(1, e.shape[1]):
            a = torch.logsumexp(a[:, :, None] + self.move, 1) + e[:, t]
        return {"loss": (torch.logsumexp(a + self.end, 1) - gold).mean()}


class Rwkv(nn.Module):
    """Linear attention in time: sums that decay, kept in a stable form."""

    def __init__(self, width=16):
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(VOCAB, width), nn.LayerNorm(width), nn.Linear(width, VOCAB)
        self.mix = nn.Parameter(torch.rand(3, width))
        self.decay, self.first = nn.Parameter(torch.randn(width) / 4), nn.Parameter(torch.randn(width) / 4)
        self.r, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, input_ids):
        x = self.norm(self.table(input_ids))
        past = F.pad(x, (0, 0, 1, -1))
        r, k, v = (f(x * m + past * (1 - m)) for f, m in zip((self.r, self.k, self.v), self.mix))
        w, rows = -torch.exp(self.decay), []
        a = b = torch.zeros_like(k[:, 0])
        top = torch.full_like(a, -1e38)
        for t in range(k.shape[1]):
            most = torch.maximum(top, self.first + k[:, t])
            old, new = torch.exp(top - most), torch.exp(self.first + k[:, t] - most)
            rows.append((old * a + new * v[:, t]) / (old * b + new))
            most = torch.maximum(top + w, k[:, t])
            old, new = torch.exp(top + w - most), torch.exp(k[:, t] - most)
            a, b, top = old * a + new * v[:, t], old * b + new, most
        return self.head(x + self.o(r.sigmoid() * torch.stack(rows, 1)))


class Sparse(nn.Module):
    """TabNet's sparsemax: features are chosen by a projection on the simplex, found by sorting."""

    def __init__(self):
        super().__init__()
        self.norm, self.choose, self.net = nn.BatchNorm1d(10), nn.Linear(10, 10), mlp(10, 16, CLASSES)

    def forward(self, x):
        x = self.norm(x)
        z = self.choose(x)
        top = z.sort(1, descending=True).values
        sums = top.cumsum(1) - 1
        rank = torch.arange(1, z.shape[1] + 1, dtype=z.dtype)
        count = (top * rank > sums).sum(1, keepdim=True)
        mask = F.relu(z - sums.gather(1, count - 1) / count)
        return self.net(mask * x)


class Equivariant(nn.Module):
    """EGNN: messages from distances, which move the points; energy and forces' stand-in are the loss."""

    def __init__(self, width=12):
        super().__init__()
        self.up, self.edge, self.row = nn.Embedding(4, width), mlp(2 * width + 1, 16, width, last=True, act=nn.SiLU), \
            mlp(2 * width, 16, width, act=nn.SiLU)
        self.move, self.head = nn.Linear(width, 1, bias=False), nn.Linear(width, 1)

    def forward(self, kinds, x, energy):
        h, n = self.up(kinds), x.shape[1]
        for _ in range(2):
            away = x[:, :, None] - x[:, None]
            far = away.pow(2).sum(-1, keepdim=True)
            both = torch.cat([h[:, :, None].expand(-1, -1, n, -1), h[:, None].expand(-1, n, -1, -1), far], -1)
            m = self.edge(both) * (1 - torch.eye(n))[..., None]
            x = x + (away / (far + 1).sqrt() * self.move(m)).mean(2)
            h = h + self.row(torch.cat([h, m.sum(2)], -1))
        return {"loss": F.huber_loss(self.head(h).sum(1), energy) + 0.1 * torch.cdist(x, x).mean()}


class Mdn(nn.Module):
    """A mixture of normal distributions: the loss is its likelihood."""

    def __init__(self, kinds=3):
        super().__init__()
        self.kinds, self.net = kinds, mlp(6, 24, 5 * kinds, act=nn.Tanh)

    def forward(self, x, y):
        w, mean, spread = self.net(x).split([self.kinds, 2 * self.kinds, 2 * self.kinds], 1)
        mean, spread = mean.view(-1, self.kinds, 2), spread.view(-1, self.kinds, 2)
        normal = torch.distributions.Normal(mean, F.softplus(spread) + 1e-3)
        return {"loss": -torch.logsumexp(F.log_softmax(w, 1) + normal.log_prob(y[:, None]).sum(-1), 1).mean()}


class BarlowTwins(nn.Module):
    """Two views, whose features are to agree and be independent: a matrix of correlations is the loss."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 8),
                                 nn.BatchNorm1d(8, affine=False))

    def forward(self, a, b):
        c = self.net(a).T @ self.net(b) / a.shape[0]
        on = (torch.diagonal(c) - 1).pow(2).sum()
        return {"loss": on + 0.01 * (c - torch.diag(torch.diagonal(c))).pow(2).sum()}


class ConvLstm(nn.Module):
    """Films: a cell whose gates are convolutions; the next picture is wanted."""

    def __init__(self, width=6):
        super().__init__()
        self.width, self.gates = width, nn.Conv2d(1 + width, 4 * width, 3, padding=1)
        self.look = nn.Parameter(torch.zeros(3, width, 1, 1))
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], self.width, *x.shape[3:])
        for t in range(x.shape[1]):
            i, f, g, o = self.gates(torch.cat([x[:, t], h], 1)).chunk(4, 1)
            c = torch.sigmoid(f + self.look[0] * c) * c + torch.sigmoid(i + self.look[1] * c) * torch.tanh(g)
            h = torch.sigmoid(o + self.look[2] * c) * torch.tanh(c)
        return self.head(h)


class Pointer(nn.Module):
    """A pointer network: places of the input are the classes, and those already taken are masked."""

    def __init__(self, width=16):
        super().__init__()
        self.up, self.encode, self.cell = nn.Linear(2, width), nn.GRU(width, width, batch_first=True), nn.GRUCell(width, width)
        self.a, self.b, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1, bias=False)

    def forward(self, x, order):
        seen, h = self.encode(self.up(x))
        h, n = h[0], x.shape[1]
        taken, last, loss = torch.zeros(x.shape[0], n, dtype=torch.bool), torch.zeros_like(h), 0
        for t in range(n):
            h = self.cell(last, h)
            logits = self.v(torch.tanh(self.a(seen) + self.b(h)[:, None]))[..., 0].masked_fill(taken, -1e9)
            loss = loss + F.cross_entropy(logits, order[:, t])
            one = F.one_hot(order[:, t], n).bool()
            taken = taken | one
            last = seen.gather(1, order[:, t, None, None].expand(-1, 1, seen.shape[2]))[:, 0]
        return {"loss": loss / n}


class Tree(nn.Module):
    """A soft decision tree: leaves by products of turns, and a penalty that keeps turns even."""

    def __init__(self, depth=3):
        super().__init__()
        self.depth, self.turns = depth, nn.Linear(6, 2 ** depth - 1)
        self.leaves = nn.Parameter(torch.randn(2 ** depth, CLASSES))

    def forward(self, x, kinds):
        p, reach, even = self.turns(x).sigmoid(), torch.ones(x.shape[0], 1), 0
        for d in range(self.depth):
            here = p[:, 2 ** d - 1:2 ** (d + 1) - 1]
            share = (reach * here).sum(0) / reach.sum(0)
            even = even - 0.5 * (share.log() + (1 - share).log()).mean() * 2.0 ** -d
            reach = torch.stack([reach * here, reach * (1 - here)], 2).flatten(1)
        likely = torch.log(reach @ self.leaves.softmax(1))
        return {"loss": F.nll_loss(likely, kinds) + 0.1 * even}


class Sinkhorn(nn.Module):
    """Optimal transport between two sets of features, by rounds of normalising in logarithms."""

    def __init__(self):
        super().__init__()
        self.a, self.b = mlp(4, 16, 6), mlp(4, 16, 6)

    def forward(self, x, y):
        cost = torch.cdist(self.a(x), self.b(y), p=2).pow(2)
        k = -cost / 0.5
        u, v = torch.zeros(x.shape[0], x.shape[1], 1), torch.zeros(x.shape[0], 1, y.shape[1])
        for _ in range(5):
            u = -torch.logsumexp(k + v, 2, keepdim=True)
            v = -torch.logsumexp(k + u, 1, keepdim=True)
        return {"loss": ((k + u + v).exp() * cost).sum((1, 2)).mean() - 0.1 * self.a(x).std(0).mean()}


class Hyperbolic(nn.Module):
    """Embeddings in Poincare's ball, told apart by their distances."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 3)
        nn.init.uniform_(self.table.weight, -0.4, 0.4)

    def forward(self, a, b):
        x, y = self.table(a)[:, None], self.table(b)
        gap = (x - y).pow(2).sum(-1)
        far = torch.acosh(1 + 2 * gap / ((1 - x.pow(2).sum(-1)) * (1 - y.pow(2).sum(-1))) + 1e-5)
        return {"loss": F.cross_entropy(-far, torch.zeros(a.shape[0], dtype=torch.long))}


class Sliced(nn.Module):
    """Sliced score matching: the derivative of a field along a direction, by forward mode."""

    def __init__(self):
        super().__init__()
        self.net = mlp(6, 24, 6, act=nn.Tanh)

    def forward(self, x, noise):
        score, change = torch.func.jvp(self.net, (x,), (noise,))
        return {"loss": ((noise * change).sum(1) + 0.5 * score.pow(2).sum(1)).mean()}


class Ensemble(nn.Module):
    """Networks side by side by torch.vmap, each sure to a degree of its own."""

    def __init__(self, count=3):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(count, 6, 16) / 3), nn.Parameter(torch.randn(count, 16, 2) / 4)

    def forward(self, x, y):
        def one(a, b):
            return torch.tanh(x @ a) @ b
        mean, spread = torch.vmap(one)(self.a, self.b).unbind(-1)
        return {"loss": F.gaussian_nll_loss(mean, y.expand_as(mean), F.softplus(spread))}


class Metric(nn.Module):
    """Faces: triplets, a margin between classes as angles, a distribution over pairs."""

    def __init__(self):
        super().__init__()
        self.net, self.classes = mlp(6, 16, 8), nn.Parameter(torch.randn(CLASSES, 8))

    def forward(self, x, near, far, kinds):
        a, b, c = (F.normalize(self.net(t), dim=1) for t in (x, near, far))
        cosine = (a @ F.normalize(self.classes, dim=1).T).clamp(-0.999, 0.999)
        turned = torch.where(F.one_hot(kinds, CLASSES).bool(), (cosine.acos() + 0.3).cos(), cosine)
        pairs = torch.distributions.Bernoulli(logits=(a * b).sum(1) - (a * c).sum(1))
        return {"loss": F.cross_entropy(8 * turned, kinds) + F.triplet_margin_loss(a, b, c, swap=True)
                - pairs.log_prob(torch.ones_like(a[:, 0])).mean()}


def rows(*shape):
    return lambda n: {"x": torch.randn(n, *shape), "labels": torch.randint(0, CLASSES, (n,))}


def kinds(*shape):
    return lambda n: {"x": torch.randn(n, *shape), "kinds": torch.randint(0, CLASSES, (n,))}


def masked(n):
    return {"x": torch.randn(n, 3, 8, 8), "mask": (torch.rand(n, 1, 8, 8) < 0.4).float()}


def orders(n):
    return {"x": torch.rand(n, 5, 2), "order": torch.stack([torch.randperm(5) for _ in range(n)])}


def molecules(n):
    return {"kinds": torch.randint(0, 4, (n, 6)), "x": torch.randn(n, 6, 3), "energy": torch.randn(n, 1)}


CASES = {
    "neural ODE": Case(Ode, rows(6), ranks=True),
    "set transformer": Case(SetTransformer, rows(9, 3)),
    "capsules": Case(Capsules, kinds(1, 15, 15), "output:loss"),
    "hypernetwork": Case(Hypernetwork, lambda n: images(n, 8) | {"style": torch.randn(n, 6)}, ranks=True),
    "modulated convolution": Case(Modulated, lambda n: {"style": torch.randn(n, 6), "noise": torch.randn(n, 1, 8, 8),
                                                        "target": torch.rand(n, 3, 8, 8)}, "mse"),
    "Perceiver": Case(Perceiver, lambda n: images(n, 8), ranks=True),
    "KAN": Case(Kan, lambda n: {"x": torch.rand(n, 6) * 2 - 1, "labels": torch.randint(0, CLASSES, (n,))}),
    "deep equilibrium": Case(Equilibrium, rows(6)),
    "energy, score matching": Case(Energy, lambda n: {"x": torch.randn(n, 6), "noise": torch.randn(n, 6)}, "output:loss"),
    "sliced score matching (jvp)": Case(
        Sliced, lambda n: {"x": torch.randn(n, 6), "noise": torch.randn(n, 6)}, "output:loss",
        beyond={"torchscript": "does not know forward mode"}),
    "ensemble (vmap)": Case(Ensemble, lambda n: {"x": torch.randn(n, 6), "y": torch.randn(n)}, "output:loss",
                            quick="torchscript"),
    "metric learning": Case(Metric, lambda n: {"x": torch.randn(n, 6), "near": torch.randn(n, 6), "far": torch.randn(n, 6),
                                               "kinds": torch.randint(0, CLASSES, (n,))}, "output:loss", ranks=True),
    "PointNet": Case(PointNet, kinds(3, 20), "output:loss", ranks=True),
    "attention-gated U-Net": Case(GatedUnet, masked, "output:loss", ranks=True),
    "slot attention": Case(Slots, lambda n: {"x": torch.randn(n, 9, 5)}, "output:loss"),
    "Fourier neural operator": Case(FourierOperator,
        lambda n: {"x": torch.randn(n, 1, 8, 8), "target": torch.randn(n, 1, 8, 8)}, "mse",
        beyond={"torchscript": "has no Fourier transforms"}),
    "LSTM-CRF": Case(Crf, lambda n: {"input_ids": tokens(n), "tags": torch.randint(0, CLASSES, (n, LENGTH))}, "output:loss"),
    "RWKV": Case(Rwkv, language, ranks=True),
    "TabNet (sparsemax)": Case(Sparse, rows(10)),
    "EGNN": Case(Equivariant, molecules, "output:loss"),
    "mixture density": Case(Mdn, lambda n: {"x": torch.randn(n, 6), "y": torch.randn(n, 2)}, "output:loss"),
    "Barlow twins": Case(BarlowTwins, lambda n: {"a": torch.randn(n, 12), "b": torch.randn(n, 12)}, "output:loss"),
    "ConvLSTM": Case(ConvLstm, lambda n: {"x": torch.randn(n, 4, 1, 8, 8), "target": torch.randn(n, 1, 8, 8)}, "mse"),
    "pointer network": Case(Pointer, orders, "output:loss"),
    "soft decision tree": Case(Tree, kinds(6), "output:loss"),
    "Sinkhorn": Case(Sinkhorn, lambda n: {"x": torch.randn(n, 5, 4), "y": torch.randn(n, 5, 4)}, "output:loss"),
    "Poincare embeddings": Case(Hyperbolic, lambda n: {
        "a": torch.randint(0, 20, (n,)), "b": torch.randint(0, 20, (n, 4))}, "output:loss",
        beyond={"torchscript": "has no acosh"}),
}
