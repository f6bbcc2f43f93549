"""A language model whose blocks are mixtures of experts in the forms that exporters can express, all shapes static.

Dispatch   one-hot tensors and einsum, a capacity for each sample (GShard)
Grouped    the same over all tokens of the batch, and batched products [E, C, D] x [E, D, F]
Scatter    tokens are written to their place in [E * C + 1, D] and read back; the last place takes what is dropped
Masked     every expert sees every token; gates are zero for those that the router did not choose
"""
import torch
from torch import nn
from torch.nn import functional as F

E, K = 4, 2  # experts, and how many of them a token goes to


class Experts(nn.Module):
    def __init__(self, d, inside, capacity):
        super().__init__()
        self.capacity, self.gate = capacity, nn.Linear(d, E, bias=False)
        self.up = nn.Parameter(torch.randn(E, d, inside) * d ** -0.5)
        self.down = nn.Parameter(torch.randn(E, inside, d) * inside ** -0.5)

    def routed(self, x):
        """Gates [.., K] and experts [.., K] of each token."""
        gates, chosen = self.gate(x).softmax(-1).topk(K, -1)
        return gates / gates.sum(-1, keepdim=True), chosen

    def places(self, chosen):
        """[.., T, K] of experts -> the place of each token in its expert; first choices come first."""
        hot = F.one_hot(chosen.transpose(-1, -2).flatten(-2), E)
        place = ((hot.cumsum(-2) - 1) * hot).sum(-1)
        return place.unflatten(-1, (K, chosen.shape[-2])).transpose(-1, -2)

    def combine(self, gates, chosen):
        """[.., T, E, C]: the gate of a token at its expert and place, 0 where it is not, or is dropped."""
        place, c = self.places(chosen), self.capacity
        slot = F.one_hot(place.clamp(max=c - 1), c) * (place < c)[..., None]
        return torch.einsum("...k,...ke,...kc->...ec", gates, F.one_hot(chosen, E).to(gates.dtype), slot.to(gates.dtype))


class Dispatch(Experts):
    def forward(self, x):
        combine = self.combine(*self.routed(x))
        sent = torch.einsum("btec,btd->becd", (combine > 0).to(x.dtype), x)
        inside = F.gelu(torch.einsum("becd,edf->becf", sent, self.up))
        return torch.einsum("btec,becd->btd", combine, torch.einsum("becf,efd->becd", inside, self.down))


class Grouped(Experts):
    def forward(self, x):
        tokens = x.flatten(0, 1)
        combine = self.combine(*self.routed(tokens))
        sent = torch.einsum("nec,nd->ecd", (combine > 0).to(x.dtype), tokens)
        out = torch.bmm(F.silu(torch.bmm(sent, self.up)), self.down)
        return torch.einsum("nec,ecd->nd", combine, out).reshape(x.shape)


class Scatter(Experts):
    def forward(self, x):
        (gates, chosen), c, d = self.routed(x), self.capacity, x.shape[-1]
        place = self.places(chosen)
        at = torch.where(place < c, chosen * c + place, E * c).flatten(1)[..., None].expand(-1, -1, d)
        copies = x[:, :, None].expand(-1, -1, K, -1).flatten(1, 2)
        buffer = torch.zeros_like(x[:, :1]).expand(-1, E * c + 1, -1).scatter(1, at, copies)
        sent = buffer[:, :-1].unflatten(1, (E, c))
        out = torch.einsum("becf,efd->becd", F.silu(torch.einsum("becd,edf->becf", sent, self.up)), self.down)
        out = F.pad(out.flatten(1, 2), (0, 0, 0, 1)).gather(1, at).unflatten(1, (x.shape[1], K))
        return (out * gates[..., None]).sum(2)


class Masked(Experts):
    def forward(self, x):
        gates, chosen = self.routed(x)
        gate = torch.zeros_like(self.gate(x)).scatter(-1, chosen, gates)
        out = torch.einsum("ebtf,efd->ebtd", F.silu(torch.einsum("btd,edf->ebtf", x, self.up)), self.down)
        return torch.einsum("bte,ebtd->btd", gate, out)


class Moe(nn.Module):
    def __init__(self, vocabulary, length, d=24, inside=32):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, d), nn.Embedding(length, d)
        self.h = nn.ModuleList([Dispatch(d, inside, length // 2), Grouped(d, inside, length), Scatter(d, inside, 5),
                                Masked(d, inside, 0)])
        self.ln, self.head = nn.ModuleList(nn.LayerNorm(d) for _ in self.h), nn.Linear(d, vocabulary, bias=False)

    def forward(self, x):
        y = self.wte(x) + self.wpe.weight
        for norm, experts in zip(self.ln, self.h):
            y = y + experts(norm(y))
        return self.head(y)
