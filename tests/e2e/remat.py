"""Models of tests/e2e/remat, of batch 8, and their data, x.npy and t.npy.

usage: remat.py     writes norms.onnx (batch norms and dropout in blocks), grouped.onnx (attention whose heads share keys,
                    gated MLPs, RMS norms), experts.onnx (blocks that mix experts by their input) and loops.onnx (a Scan
                    in each block)
"""
import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

BATCH, TOKENS, WIDTH, BLOCKS, SAMPLES = 8, 12, 32, 3, 64


class NormBlock(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Conv1d(TOKENS, 2 * TOKENS, 1), torch.nn.Conv1d(2 * TOKENS, TOKENS, 1)
        self.norm, self.out = torch.nn.BatchNorm1d(2 * TOKENS), torch.nn.BatchNorm1d(TOKENS)
        self.drop = torch.nn.Dropout(0.25)

    def forward(self, x):
        return x + self.out(self.down(self.drop(F.gelu(self.norm(self.up(x))))))


class GroupedBlock(torch.nn.Module):
    HEADS, KEYS = 4, 2

    def __init__(self):
        super().__init__()
        head = WIDTH // self.HEADS
        self.q, self.o = torch.nn.Linear(WIDTH, WIDTH, bias=False), torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (torch.nn.Linear(WIDTH, self.KEYS * head, bias=False) for _ in range(2))
        self.gate, self.up = (torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(3 * WIDTH, WIDTH, bias=False)
        self.first, self.second = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)

    def heads(self, x, n):
        return x.reshape(BATCH, TOKENS, n, -1).transpose(1, 2)

    def forward(self, x):
        n = self.first(x)
        q, k, v = self.heads(self.q(n), self.HEADS), self.heads(self.k(n), self.KEYS), self.heads(self.v(n), self.KEYS)
        k, v = (y.repeat_interleave(self.HEADS // self.KEYS, 1) for y in (k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH))
        n = self.second(x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


class ExpertBlock(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.router = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 4)
        self.up = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.down = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        n = self.norm(x)
        p = torch.softmax(self.router(n), -1)
        best, at = torch.topk(p, 2, -1)
        mask = torch.zeros_like(p).scatter(-1, at, best)
        return x + sum(mask[..., e:e + 1] * down(F.gelu(up(n))) for e, (up, down) in enumerate(zip(self.up, self.down)))


class Model(torch.nn.Module):
    def __init__(self, block):
        super().__init__()
        self.h = torch.nn.ModuleList(block() for _ in range(BLOCKS))
        self.head = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for block in self.h:
            x = block(x)
        return self.head(x)


def export(name, block):
    torch.manual_seed(1)
    torch.onnx.export(Model(block).train(), (torch.zeros(BATCH, TOKENS, WIDTH),), name, input_names=["x"],
                      output_names=["y"], dynamo=False, opset_version=18, do_constant_folding=False,
                      training=torch.onnx.TrainingMode.TRAINING)


def value(name, *shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def scan_block(k, draw, weights):
    """h = tanh(x_t W + h U) over tokens, then x + an MLP of all h."""
    for name, shape in (("W", (WIDTH, WIDTH)), ("U", (WIDTH, WIDTH)), ("up", (WIDTH, 2 * WIDTH)),
                        ("down", (2 * WIDTH, WIDTH))):
        data = draw.standard_normal(shape).astype("f4") * 0.1
        weights.append(numpy_helper.from_array(data, f"h.{k}.{name}"))
    inner = [helper.make_node(op, i, [o]) for op, i, o in (
        ("MatMul", ["xt", f"h.{k}.W"], "a"), ("MatMul", ["h", f"h.{k}.U"], "b"), ("Add", ["a", "b"], "s"),
        ("Tanh", ["s"], "h1"), ("Identity", ["h1"], "yt"))]
    wide = (BATCH, WIDTH)
    body = helper.make_graph(inner, "body", [value("h", *wide), value("xt", *wide)],
                             [value("h1", *wide), value("yt", *wide)])
    node = lambda op, i, o, where, **at: helper.make_node(op, i, o, name=f"/h.{k}/{where}/{op}", **at)
    return [node("Scan", ["zero", f"x{k}"], [f"last{k}", f"y{k}"], "cell", body=body, num_scan_inputs=1,
                 scan_input_axes=[1], scan_output_axes=[1]),
            node("MatMul", [f"y{k}", f"h.{k}.up"], [f"u{k}"], "up"), node("Tanh", [f"u{k}"], [f"t{k}"], "act"),
            node("MatMul", [f"t{k}", f"h.{k}.down"], [f"d{k}"], "down"),
            node("Add", [f"x{k}", f"d{k}"], [f"x{k + 1}"], "sum")]


def loops():
    draw, weights = np.random.default_rng(5), []
    zero = numpy_helper.from_array(np.zeros((BATCH, WIDTH), "f4"))
    nodes = [helper.make_node("Constant", [], ["zero"], value=zero), helper.make_node("Identity", ["x"], ["x0"])]
    for k in range(BLOCKS):
        nodes += scan_block(k, draw, weights)
    nodes.append(helper.make_node("Identity", [f"x{BLOCKS}"], ["y"]))
    shape = (BATCH, TOKENS, WIDTH)
    graph = helper.make_graph(nodes, "loops", [value("x", *shape)], [value("y", *shape)], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), "loops.onnx")


export("norms.onnx", NormBlock)
export("grouped.onnx", GroupedBlock)
export("experts.onnx", ExpertBlock)
loops()
rng = np.random.default_rng(7)
for file in ("x.npy", "t.npy"):
    np.save(file, rng.standard_normal((SAMPLES, TOKENS, WIDTH)).astype("f4"))
