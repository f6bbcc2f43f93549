"""GPT-2 and ResNet-50 in plain PyTorch: what the GPU kit exports for us and trains itself on a machine that has no more.

Names and shapes are those of the Hugging Face models; weights are tied, dropout is off, no layer has a switch.
"""
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_out = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = (batch, length, self.heads, width // self.heads)
        q, k, v = (t.view(heads).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers=12, width=768, heads=12, vocabulary=50257, length=1024):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


class Bottleneck(nn.Module):
    def __init__(self, inside, outside, stride, planes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, planes, 1, bias=False), nn.BatchNorm2d(planes), nn.ReLU(),
            nn.Conv2d(planes, planes, 3, stride, 1, bias=False), nn.BatchNorm2d(planes), nn.ReLU(),
            nn.Conv2d(planes, outside, 1, bias=False), nn.BatchNorm2d(outside))
        self.down = nn.Identity() if stride == 1 and inside == outside else nn.Sequential(
            nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        return F.relu(self.body(x) + self.down(x))


class ResNet(nn.Module):
    def __init__(self, depths=(3, 4, 6, 3), planes=64, classes=1000):
        super().__init__()
        layers, inside = [nn.Conv2d(3, planes, 7, 2, 3, bias=False), nn.BatchNorm2d(planes), nn.ReLU(),
                          nn.MaxPool2d(3, 2, 1)], planes
        for i, depth in enumerate(depths):
            for j in range(depth):
                layers.append(Bottleneck(inside, planes << (i + 2), 2 if i and not j else 1, planes << i))
                inside = planes << (i + 2)
        self.body = nn.Sequential(*layers)
        self.fc = nn.Linear(inside, classes)

    def forward(self, x):
        return self.fc(self.body(x).mean((2, 3)))


def gpt2_flops_per_token(layers, width, vocabulary, length):
    """6N + 6LCT: products forward and backward, and causal attention's; N counts the tied table once."""
    n = 12 * layers * width ** 2 + (vocabulary + length) * width + layers * 13 * width + 2 * width
    return 6 * n + 6 * layers * width * length


def make_data(path, sample, classes, tokens, n, seed):
    """path/x.npy and path/labels.npy, without numpy, which a machine with PyTorch need not have."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(classes, (n, *sample), generator=g) if tokens else torch.randn((n, *sample), generator=g)
    labels = torch.randint(classes, (n, *sample) if tokens else (n,), generator=g)
    for name, t in (("x", x), ("labels", labels)):
        save_npy(path / f"{name}.npy", t)


def save_npy(path, t):
    t = t.contiguous()
    kind = {torch.int64: "<i8", torch.float32: "<f4"}[t.dtype]
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {tuple(t.shape)}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    import ctypes
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode())
        f.write((ctypes.c_char * (t.numel() * t.element_size())).from_address(t.data_ptr()))
