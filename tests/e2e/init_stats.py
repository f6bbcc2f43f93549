"""What --init=random makes of modules, beside what PyTorch's reset_parameters makes of them.

usage: init_stats.py export DIR                      DIR/NAME.onnx of each module, DIR/absent.onnx, DIR/lookups.onnx
       init_stats.py damage FILE.safetensors DIR     other files from it, most of them wrong
       init_stats.py check NAME FILE.safetensors     moments and bounds of every tensor, against the module's own"""
import math
import os
import sys

import numpy
import onnx
import safetensors.torch
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.causal = False

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(nn.functional.gelu(self.up(self.ln_2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(500, 64), nn.Embedding(32, 64)
        self.h = nn.ModuleList([Block(64), Block(64)])
        self.ln_f, self.head = nn.LayerNorm(64), nn.Linear(64, 500, bias=False)
        for b in self.h:
            b.causal = True

    def forward(self, x, positions):
        x = self.wte(x) + self.wpe(positions)
        for b in self.h:
            x = b(x)
        return self.head(self.ln_f(x))


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.kinds = nn.Embedding(300, 64), nn.Embedding(2, 64)
        self.norm, self.layer = nn.LayerNorm(64), nn.ModuleList([Block(64), Block(64)])
        self.pooler, self.classifier = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x, kind):
        x = self.norm(self.words(x) + self.kinds(kind))
        for b in self.layer:
            x = b(x)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 32, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(32)
        self.conv2, self.bn2 = nn.Conv2d(32, 64, 3, padding=1, groups=2), nn.BatchNorm2d(64)
        self.down, self.act = nn.Conv2d(32, 64, 1), nn.PReLU(64)
        self.norm, self.fc = nn.GroupNorm(8, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.act(self.bn2(self.conv2(x)) + self.down(x))
        return self.fc(self.norm(x).mean((2, 3)))


def ids(n, t):
    return torch.randint(n, (2, t))


MODULES = {"gpt": (Gpt, lambda: (ids(500, 32), ids(32, 32))), "bert": (Bert, lambda: (ids(300, 32), ids(2, 32))),
           "resnet": (ResNet, lambda: (torch.randn(2, 3, 16, 16),))}


def export(folder):
    for name, (make, inputs) in MODULES.items():
        names = ["x", "p"][:len(inputs())]
        torch.onnx.export(make().train(), inputs(), f"{folder}/{name}.onnx", dynamo=True, optimize=False, verbose=False,
                          input_names=names, output_names=["y"], external_data=False)


def absent(folder):
    """gpt.onnx with weights in a file that is gone; and a table of lookups, a constant, in one that is gone."""
    onnx.save(onnx.load(f"{folder}/gpt.onnx"), f"{folder}/absent.onnx", save_as_external_data=True, location="gone.bin",
              size_threshold=1024)
    rng, h = numpy.random.default_rng(0), onnx.helper
    data = [onnx.numpy_helper.from_array(rng.integers(0, 9, 5000), "lookups"),
            onnx.numpy_helper.from_array(rng.random((9, 4), numpy.float32), "fc.weight")]
    nodes = [h.make_node("Gather", ["fc.weight", "lookups"], ["e"]), h.make_node("MatMul", ["x", "e"], ["y"])]
    graph = h.make_graph(nodes, "lookups", [h.make_tensor_value_info("x", 1, [2, 5000])],
                         [h.make_tensor_value_info("y", 1, [2, 4])], data)
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10), f"{folder}/lookups.onnx",
              save_as_external_data=True, location="gone2.bin", size_threshold=1024)
    for gone in "gone.bin", "gone2.bin":
        os.remove(f"{folder}/{gone}")


def damage(path, folder):
    """Copies of a file of weights with something else wrong in each."""
    t = safetensors.torch.load_file(path)
    save = safetensors.torch.save_file
    name = "h.0.qkv.weight"
    save({k: v for k, v in t.items() if not k.startswith("h.1.ln")}, f"{folder}/missing.safetensors")
    save(t | {"h.9.weight": torch.ones(3), "step": torch.ones(3)}, f"{folder}/extra.safetensors")
    save(t | {name: t[name].T.contiguous()}, f"{folder}/turned.safetensors")
    save({k: v.double() if v.ndim > 1 else v for k, v in t.items()} | {
        "copy": t["wte.weight"].double(), "count": torch.ones(2, dtype=torch.int64)}, f"{folder}/double.safetensors")


def check(name, path):
    """Standard errors: of a mean std/sqrt(n); of a deviation at most std/sqrt(2n), the normal's; six of them pass."""
    torch.manual_seed(0)
    want = {k: v for k, v in MODULES[name][0]().state_dict().items() if v.is_floating_point()}
    got, bad = safetensors.torch.load_file(path), []
    if want.keys() != got.keys():
        bad.append(f"other tensors: {want.keys() ^ got.keys()}")
    for k in want.keys() & got.keys():
        w, g, n = want[k].double(), got[k].double(), want[k].numel()
        s = w.std(correction=0).item()
        ok = w.shape == g.shape
        if s == 0:
            ok = ok and torch.equal(w, g)
        else:
            ok = ok and abs(g.mean().item()) < 6 * s / math.sqrt(n)
            ok = ok and abs(g.std(correction=0).item() - s) < 6 * s * math.sqrt(1 / n)
            bound = w.abs().max().item()
            uniform = bound < 2 * s  # 1.73 of a uniform law; a normal one reaches further
            ok = ok and (not uniform or abs(g.abs().max().item() / bound - 1) < 12 / n)
            ok = ok and (uniform or g.abs().max().item() > 2 * s)
        if not ok:
            bad.append(f"{k} {tuple(g.shape)}: mean {g.mean():.5f} std {g.std(correction=0):.5f} max {g.abs().max():.5f}, "
                       f"PyTorch's {w.mean():.5f} {s:.5f} {w.abs().max():.5f}")
    if bad:
        sys.exit("\n".join(bad))


if sys.argv[1] == "export":
    export(sys.argv[2])
    absent(sys.argv[2])
elif sys.argv[1] == "damage":
    damage(sys.argv[2], sys.argv[3])
else:
    check(sys.argv[2], sys.argv[3])
