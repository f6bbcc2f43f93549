"""GPT-2, ResNet-50 and a Llama in plain PyTorch: what the GPU kit exports for us, and trains where there is no more.

Names and shapes are those of the Hugging Face models; weights are tied, dropout is off, no layer has a switch.
"""
import ast
import ctypes
import json
import math

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


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, inner):
        super().__init__()
        self.heads, self.kv_heads, head = heads, kv_heads, width // heads
        self.input_norm = nn.RMSNorm(width, eps=1e-5)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * head, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * head, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.post_norm = nn.RMSNorm(width, eps=1e-5)
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape

        def heads(t, n):
            return t.view(batch, length, n, width // self.heads).transpose(1, 2)

        y = self.input_norm(x)
        q = rotate(heads(self.q_proj(y), self.heads), cos, sin)
        k = rotate(heads(self.k_proj(y), self.kv_heads), cos, sin)
        y = F.scaled_dot_product_attention(q, k, heads(self.v_proj(y), self.kv_heads), is_causal=True, enable_gqa=True)
        x = x + self.o_proj(y.transpose(1, 2).reshape(batch, length, width))
        y = self.post_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


def rotate(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Llama(nn.Module):
    def __init__(self, layers=16, width=2048, heads=32, kv_heads=8, inner=8192, vocabulary=128256, length=2048):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaBlock(width, heads, kv_heads, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = width // heads

    def forward(self, tokens):
        """Rotations are computed in the graph: a table of them would be a constant that programs read from a file."""
        rates = torch.exp(torch.arange(0, self.head, 2, dtype=torch.float32) * (-math.log(500000) / self.head))
        angles = (torch.arange(tokens.shape[1], dtype=torch.float32)[:, None] * rates).repeat(1, 2)
        x, cos, sin = self.embed_tokens(tokens), angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.linear(self.norm(x), self.embed_tokens.weight)


def build(case):
    """The module of a case of kit.py."""
    return {"gpt2": GPT2, "resnet": ResNet, "llama": Llama}[case["kind"]](**case["model"])


def sample_of(case):
    """The shape of one sample."""
    return (case["model"]["length"],) if "length" in case["model"] else (3, case["image"], case["image"])


def make_data(path, sample, classes, tokens, n, seed):
    """path/x.npy and path/labels.npy, without numpy, which a machine with PyTorch need not have."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(classes, (n, *sample), generator=g) if tokens else torch.randn((n, *sample), generator=g)
    labels = torch.randint(classes, (n, *sample) if tokens else (n,), generator=g)
    for name, t in (("x", x), ("labels", labels)):
        save_npy(path / f"{name}.npy", t)


def load_npy(path):
    """What save_npy wrote."""
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(10)[8:], "little")
        head = ast.literal_eval(f.read(size).decode())
        kind = {"<i8": torch.int64, "<f4": torch.float32}[head["descr"]]
        return torch.frombuffer(bytearray(f.read()), dtype=kind).reshape(head["shape"])


def load_safetensors(path):
    """{name: tensor} of a file of f32, without the package safetensors."""
    with open(path, "rb") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = bytearray(f.read())
    tensors = {}
    for name, t in head.items():
        if name != "__metadata__" and t["dtype"] == "F32":
            begin, end = t["data_offsets"]
            flat = torch.frombuffer(data, dtype=torch.float32, offset=begin, count=(end - begin) // 4)
            tensors[name] = flat.reshape(t["shape"])
    return tensors


def save_npy(path, t):
    t = t.contiguous()
    kind = {torch.int64: "<i8", torch.float32: "<f4"}[t.dtype]
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {tuple(t.shape)}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode())
        f.write((ctypes.c_char * (t.numel() * t.element_size())).from_address(t.data_ptr()))
