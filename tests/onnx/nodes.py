"""Nodes that onnxruntime's optimizers make, and recurrences, through `shardc run` and through onnxruntime or PyTorch, and
their gradients.

Each case is one node.  Results may differ by 2e-5 of the largest one.  The compiler's own check (--check-passes) compares
gradients with differences of the loss.

usage: python nodes.py SHARDC [--only SUBSTRING]
The last line is "N cases, N failed".
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper

MS = "com.microsoft"
TOLERANCE = 2e-5
rng = np.random.default_rng(3)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def ints(high, *shape):
    return rng.integers(0, high, shape).astype(np.int32)


def const(*values):
    """An operand that is an initializer and not an input."""
    return ("const", np.array(values, np.int32))


def angles(rows, half):
    a = np.arange(rows)[:, None] / (10 ** (np.arange(half) / half))
    return np.cos(a).astype(np.float32), np.sin(a).astype(np.float32)


B, T, S, H, D = 2, 5, 7, 2, 4
COS, SIN = angles(16, D // 2)
mask = np.array([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0, 0]], np.int32)
left = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]], np.int32)
SELF = dict(x=floats(B, T, 6), w=floats(6, 3 * H * D), b=floats(3 * H * D))
Q, K, V = floats(B, T, H * D), floats(B, S, H * D), floats(B, S, H * D)
QKV_BIAS = floats(3 * H * D)
GQ, KV = floats(B, T, H * 8), [floats(B, T, 8), floats(B, T, 8)]  # onnxruntime wants multiples of 8
FULL = const(T - 1, T - 1), const(T)
SHORT, KNOWN_SHORT = (np.array([4, 1], np.int32), const(T)), (const(2, 0), const(T))  # the last key of each sample


def case(op, operands, results=1, domain=MS, want=None, **attrs):
    """want: a function of the operands that gives the results, for ops that onnxruntime does not have on CPUs."""
    return op, operands, results, domain, want, attrs


def torch_of(f):
    return lambda *operands: [f(*(torch.from_numpy(x) for x in operands)).numpy()]


def heads_of(x):
    return x.reshape(B, -1, H, D).transpose(1, 2)


def attend(q, k, v):
    return F.scaled_dot_product_attention(heads_of(q), heads_of(k), heads_of(v)).transpose(1, 2).reshape(B, -1, H * D)


def group_norm(x, w, b):
    return F.silu(F.group_norm(x.movedim(-1, 1), 2, w, b, 1e-5)).movedim(1, -1)


def split_gelu(x, b):
    left, right = (x + b).chunk(2, -1)
    return left * F.gelu(right)


def nhwc_conv(x, w, b):
    return F.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), b, padding=1, groups=2).permute(0, 2, 3, 1)


def gemma(angles, q, turned, k, k_turned):
    return q * angles.cos()[:, None] + turned * angles.sin()[:, None]


def gated(q, bias, rel, w, b, a):
    gates = torch.sigmoid((heads_of(q + bias) @ w + b).reshape(B, H, T, 2, -1).sum(-1))
    u, r = gates.chunk(2, -1)
    return (u * (r * a - 1) + 2) * rel


def linear(rule, dk, dv, scale=None):
    """Linear attention, token by token."""
    def run(q, k, v, past=None, g=None, beta=None):
        q, k, v = q.reshape(B, -1, H, dk), k.reshape(B, q.shape[1], -1, dk), v.reshape(B, q.shape[1], -1, dv)
        rep, rows = H // k.shape[2], q.shape[1]
        state = torch.zeros(B, k.shape[2], dk, dv) if past is None else past
        out = []
        for t in range(rows):
            if g is not None:
                state = state * g[:, t].reshape(B, k.shape[2], -1, 1).exp()
            u = v[:, t]
            if beta is not None:
                u = (u - torch.einsum("bhkv,bhk->bhv", state, k[:, t])) * beta[:, t, :, None]
            state = state + k[:, t, :, :, None] * u[:, :, None]
            out.append(torch.einsum("bhkv,bhk->bhv", state.repeat_interleave(rep, 1), q[:, t]) * (scale or dk ** -0.5))
        return [torch.stack(out, 1).reshape(B, rows, -1).numpy(), state.numpy()]

    names = {"linear": (), "gated": ("g",), "delta": ("beta",), "gated_delta": ("g", "beta")}[rule]

    def of_arrays(*operands):
        q, k, v, *rest = (torch.from_numpy(x) for x in operands)
        past = rest.pop(0) if len(rest) > len(names) else None
        return run(q, k, v, past, **dict(zip(names, rest)))
    return of_arrays


def linear_case(rule, rows, dk=6, dv=5, of_kv=H, past=False, by_key=False, **attrs):
    """Keys of length 1, decays below 0 and rates in 0..1, as models have them."""
    k = floats(B, rows, of_kv, dk)
    k = (k / np.linalg.norm(k, axis=-1, keepdims=True)).reshape(B, rows, -1)
    g = -np.abs(floats(B, rows, of_kv * (dk if by_key else 1)))
    beta = 1 / (1 + np.exp(-floats(B, rows, of_kv)))
    operands = [floats(B, rows, H * dk), k, floats(B, rows, of_kv * dv), floats(B, of_kv, dk, dv) if past else None,
                g if "gated" in rule else None, beta if "delta" in rule else None]
    return case("LinearAttention", operands, results=2, domain="", want=linear(rule, dk, dv), update_rule=rule,
                q_num_heads=H, kv_num_heads=of_kv, **attrs)


CASES = {
    "gelu": case("Gelu", [floats(3, 5)]),
    "bias gelu": case("BiasGelu", [floats(2, 3, 5), floats(5)]),
    "fast gelu": case("FastGelu", [floats(2, 3, 5)]),
    "fast gelu, bias": case("FastGelu", [floats(2, 3, 5), floats(5)]),
    "quick gelu": case("QuickGelu", [floats(3, 5)]),
    "quick gelu, alpha": case("QuickGelu", [floats(3, 5)], alpha=0.7),
    "product": case("FusedMatMul", [floats(2, 3, 4), floats(4, 5)], alpha=0.5),
    "product, transposed": case("FusedMatMul", [floats(2, 4, 3), floats(2, 5, 4)], transA=1, transB=1, alpha=-2.0),
    "product, batch transposed": case("FusedMatMul", [floats(3, 2, 4), floats(2, 4, 5)], transBatchA=1),
    "product, both": case("FusedMatMul", [floats(4, 2, 6, 3), floats(5, 2, 6, 4)], transA=1, transB=1,
                          transBatchA=1, transBatchB=1),
    "product, vector": case("FusedMatMul", [floats(4), floats(4, 5)], alpha=3.0),
    "TransposeMatMul": case("TransposeMatMul", [floats(4, 3), floats(4, 5)], transA=1, alpha=0.5),
    "gemm": case("FusedGemm", [floats(3, 4), floats(5, 4), floats(5)], transB=1, activation="Tanh"),
    "gemm, leaky": case("FusedGemm", [floats(3, 4), floats(4, 5)], activation="LeakyRelu", activation_alpha=0.3),
    "conv": case("FusedConv", [floats(2, 3, 6, 5), floats(4, 3, 3, 3), floats(4)], pads=[1, 1, 1, 1],
                 activation="Sigmoid"),
    "conv, sum": case("FusedConv", [floats(2, 3, 6, 5), floats(3, 3, 3, 3), floats(3), floats(2, 3, 6, 5)],
                      pads=[1, 1, 1, 1], activation="Relu"),
    "conv, clip": case("FusedConv", [floats(2, 3, 6, 5), floats(4, 3, 3, 3)], activation="Clip",
                       activation_params=[-0.5, 1.0]),
    "skip layer norm": case("SkipLayerNormalization", [floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8), floats(8)],
                            results=[0, 3], epsilon=1e-5),
    "skip layer norm, broadcast": case("SkipLayerNormalization", [floats(2, 3, 8), floats(1, 3, 8), floats(8)],
                                       results=[0, 3]),
    "skip rms norm": case("SkipSimplifiedLayerNormalization", [floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8)],
                          results=[0, 3], epsilon=1e-6),
    "rms norm": case("SimplifiedLayerNormalization", [floats(2, 3, 8), floats(8)], domain="", epsilon=1e-6),
    "embed": case("EmbedLayerNormalization", [ints(9, B, S), ints(2, B, S), floats(9, 8), floats(10, 8), floats(2, 8),
                                              floats(8), floats(8), mask], results=[0, 1, 2], epsilon=1e-5),
    "embed, mask with a hole": case("EmbedLayerNormalization", [ints(9, B, 5), None, floats(9, 8), floats(10, 8), None,
                                                                floats(8), floats(8), left], results=[0, 1]),
    "embed, positions": case("EmbedLayerNormalization", [ints(9, B, S), None, floats(9, 8), floats(10, 8), None, floats(8),
                                                         floats(8), None, ints(10, B, S)], results=[0, 1]),
    "bias split gelu": case("BiasSplitGelu", [floats(2, 3, 8), floats(8)], want=torch_of(split_gelu)),
    "bias add": case("BiasAdd", [floats(2, 3, 8), floats(8), floats(2, 3, 8)], want=torch_of(lambda x, b, s: x + b + s)),
    "bias softmax": case("BiasSoftmax", [floats(2, 3, 4, 4), floats(2, 1, 1, 4)], axis=3, is_inner_broadcast=1,
                         want=torch_of(lambda x, b: torch.softmax(x + b, -1))),
    "group norm": case("GroupNorm", [floats(2, 3, 5, 4), floats(4), floats(4)], groups=2, activation=1, epsilon=1e-5,
                       want=torch_of(group_norm)),
    "skip group norm": case("SkipGroupNorm", [floats(2, 3, 5, 4), floats(4), floats(4), floats(2, 4), floats(4)], groups=2,
                            activation=1, epsilon=1e-5,
                            want=torch_of(lambda x, w, b, s, c: group_norm(x + s[:, None, None] + c, w, b))),
    "conv, channels last": case("NhwcConv", [floats(2, 5, 6, 4), floats(6, 3, 3, 2), floats(6)], pads=[1, 1, 1, 1], group=2,
                                want=torch_of(nhwc_conv)),
    "gemma rotary": case("GemmaRotaryEmbedding", [floats(2, 5, 4), *(floats(2, 3, 5, 4) for _ in range(4))],
                         want=torch_of(gemma)),
    "gated bias": case("GatedRelativePositionBias", [floats(B, T, H * D), floats(H * D), floats(1, H, T, T), floats(D, 6),
                                                     floats(6), floats(1, H, 1, 1)], num_heads=H, want=torch_of(gated)),
    "attention": case("Attention", list(SELF.values()), num_heads=H),
    "attention, causal": case("Attention", list(SELF.values()), num_heads=H, unidirectional=1, scale=0.3),
    "attention, lengths": case("Attention", [*SELF.values(), const(3, 5)], num_heads=H),
    "attention, ends and starts": case("Attention", [*SELF.values(), const(4, 5, 0, 2)], num_heads=H),
    "attention, mask": case("Attention", [*SELF.values(), left], num_heads=H),
    "attention, causal and mask": case("Attention", [*SELF.values(), left], num_heads=H, unidirectional=1),
    "attention, no key": case("Attention", [*SELF.values(), np.zeros((B, T), np.int32)], num_heads=H),
    "attention, mask 3-D": case("Attention", [*SELF.values(), ints(2, B, T, T)], num_heads=H),
    "attention, bias": case("Attention", [*SELF.values(), left, None, floats(1, H, T, T)], num_heads=H),
    "attention, sizes": case("Attention", [floats(B, T, 6), floats(6, 22), floats(22)], num_heads=H,
                             qkv_hidden_sizes=[8, 8, 6]),
    "attention, past": case("Attention", [*SELF.values(), None, floats(2, B, H, 3, D)], results=2, num_heads=H,
                            unidirectional=1),
    "heads": case("MultiHeadAttention", [Q, K, V], num_heads=H),
    "heads, bias": case("MultiHeadAttention", [Q, K, V, QKV_BIAS], num_heads=H, scale=0.4),
    "heads, causal": case("MultiHeadAttention", [Q, Q + 1, Q - 1], num_heads=H, unidirectional=1),
    "heads, packed kv": case("MultiHeadAttention", [Q, floats(B, S, H, 2, D)], num_heads=H,
                             want=torch_of(lambda q, kv: attend(q, kv[:, :, :, 0], kv[:, :, :, 1]))),
    "heads, packed qkv": case("MultiHeadAttention", [floats(B, T, H, 3, D)], num_heads=H,
                              want=torch_of(lambda x: attend(x[:, :, :, 0], x[:, :, :, 1], x[:, :, :, 2]))),
    "heads, lengths": case("MultiHeadAttention", [Q, K, V, None, const(3, 7)], num_heads=H),
    "heads, mask": case("MultiHeadAttention", [Q, K, V, QKV_BIAS, mask], num_heads=H),
    "heads, mask, filter": case("MultiHeadAttention", [Q, K, V, None, mask], num_heads=H, mask_filter_value=-3.0),
    "heads, mask 3-D": case("MultiHeadAttention", [Q, K, V, None, ints(2, B, T, S)], num_heads=H),
    "heads, added": case("MultiHeadAttention", [Q, K, V, None, mask, floats(B, 1, T, S)], num_heads=H),
    "heads, cross": case("MultiHeadAttention", [Q, floats(B, H, S, D), floats(B, H, S, D)], num_heads=H),
    "heads, cross, bias": case("MultiHeadAttention", [Q, floats(B, H, S, D), floats(B, H, S, D), QKV_BIAS], num_heads=H),
    "heads, past": case("MultiHeadAttention", [Q, Q + 1, Q - 1, None, None, None, floats(B, H, 3, D), floats(B, H, 3, D)],
                        results=3, num_heads=H),
    "heads, past, causal": case("MultiHeadAttention", [Q, Q + 1, Q - 1, None, None, None, floats(B, H, 3, D),
                                                       floats(B, H, 3, D)], results=3, num_heads=H, unidirectional=1),
    "groups": case("GroupQueryAttention", [GQ, *KV, None, None, *FULL], num_heads=H, kv_num_heads=1),
    "groups, results": case("GroupQueryAttention", [GQ, *KV, None, None, *FULL], results=3, num_heads=H, kv_num_heads=1),
    "groups, packed": case("GroupQueryAttention", [floats(B, T, 4 * 8), None, None, None, None, *FULL], num_heads=H,
                           kv_num_heads=1, scale=0.3),
    "groups, window": case("GroupQueryAttention", [GQ, *KV, None, None, *FULL], num_heads=H, kv_num_heads=1,
                           local_window_size=2),
    "groups, softcap": case("GroupQueryAttention", [GQ, *KV, None, None, *FULL], num_heads=H, kv_num_heads=1, softcap=1.5),
    "groups, rotary": case("GroupQueryAttention", [floats(B, T, H * 16), floats(B, T, 16), floats(B, T, 16), None, None,
                                                   *FULL, *angles(16, 8)], num_heads=H, kv_num_heads=1, do_rotary=1),
    "groups, rotary, pairs": case("GroupQueryAttention", [floats(B, T, H * 16), floats(B, T, 16), floats(B, T, 16), None,
                                                          None, *FULL, *angles(16, 8)], num_heads=H, kv_num_heads=1,
                                  do_rotary=1, rotary_interleaved=1),
    "groups, bias": case("GroupQueryAttention", [GQ, *KV, None, None, *FULL, None, None, None, floats(1, H, T, T)],
                         num_heads=H, kv_num_heads=1),
    "groups, lengths": case("GroupQueryAttention", [GQ, *KV, None, None, *SHORT], results=3, num_heads=H, kv_num_heads=1),
    "groups, known lengths": case("GroupQueryAttention", [GQ, *KV, None, None, *KNOWN_SHORT], num_heads=H, kv_num_heads=1),
    # without results 1 and 2 onnxruntime does not window rows of padding alike
    "groups, lengths, window": case("GroupQueryAttention", [GQ, *KV, None, None, *SHORT], results=3, num_heads=H,
                                    kv_num_heads=1, local_window_size=2),
    "groups, lengths, both ways": case("GroupQueryAttention", [GQ, *KV, None, None, *SHORT], num_heads=H, kv_num_heads=1,
                                       causal=0, softcap=1.5),
    "groups, lengths, bias": case("GroupQueryAttention", [GQ, *KV, None, None, *SHORT, None, None, None,
                                                          floats(1, H, T, T)], num_heads=H, kv_num_heads=1),
    "groups, lengths, rotary": case("GroupQueryAttention", [floats(B, T, H * 16), floats(B, T, 16), floats(B, T, 16), None,
                                                            None, *SHORT, *angles(16, 8)], num_heads=H, kv_num_heads=1,
                                    do_rotary=1),
    "rotary": case("RotaryEmbedding", [Q, ("const", np.array([3], np.int64)), COS, SIN]),
    "rotary, 4-D": case("RotaryEmbedding", [floats(B, H, T, D), ("const", np.array([0], np.int64)), COS, SIN]),
    "rotary, ids": case("RotaryEmbedding", [Q, ints(16, B, T).astype(np.int64), COS, SIN], interleaved=1),
    "rotary, part": case("RotaryEmbedding", [floats(B, T, H * 8), ints(16, B, T).astype(np.int64), COS, SIN], num_heads=H,
                         rotary_embedding_dim=4),
    "rotary, start": case("RotaryEmbedding", [Q, np.array([2], np.int64), COS, SIN]),
    "linear attention": linear_case("linear", 21, chunk_size=8),
    "linear attention, one token": linear_case("linear", 1, past=True),
    "linear attention, gated": linear_case("gated", 21, past=True, chunk_size=4),
    "linear attention, gated by key": linear_case("gated", 37, by_key=True),
    "linear attention, delta": linear_case("delta", 33, past=True, chunk_size=16),
    "linear attention, gated delta": linear_case("gated_delta", 70),
    "linear attention, shared keys": linear_case("gated_delta", 21, of_kv=1, past=True, by_key=True, chunk_size=8),
    "trilu": case("Trilu", [floats(2, 4, 4)], upper=0),
}


def model_of(node):
    """The model with float operands as inputs or, for gradients, as parameters; and its inputs."""
    op, operands, results, domain, _, attrs = node
    wanted = range(results) if isinstance(results, int) else results
    outs = ["" if i not in wanted else f"y{i}" for i in range(max(wanted) + 1)]
    names, inputs, feeds, consts = [], [], {}, []
    for i, v in enumerate(operands):
        names.append("" if v is None else f"x{i}")
        if isinstance(v, tuple):
            consts.append(onnx.numpy_helper.from_array(v[1], f"x{i}"))
        elif v is not None:
            inputs.append(helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(v.dtype), v.shape))
            feeds[f"x{i}"] = v
    made = helper.make_node(op, names, outs, "n", domain=domain, **attrs)
    outputs = [helper.make_empty_tensor_value_info(o) for o in outs if o]
    graph = helper.make_graph([made], "g", inputs, outputs, consts)
    sets = [helper.make_opsetid("", 27 if node[4] else 17), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8), feeds


def trained(model, feeds):
    """The model with floats as parameters, and the mean of its first result's squares as one more result."""
    graph = model.graph
    for name, v in feeds.items():
        if v.dtype == np.float32:
            graph.initializer.append(onnx.numpy_helper.from_array(v, name))
    keep = [i for i in graph.input if feeds[i.name].dtype != np.float32]
    del graph.input[:]
    graph.input.extend(keep)
    graph.input.append(helper.make_tensor_value_info("seed", TensorProto.FLOAT, [B, 1]))
    first = next(o for o in graph.node[0].output if o)
    graph.node.append(helper.make_node("Mul", [first, first], ["squares"], "squares"))
    graph.node.append(helper.make_node("ReduceMean", ["squares"], ["mean"], "mean", keepdims=0))
    graph.node.append(helper.make_node("ReduceMean", ["seed"], ["shift"], "shift", keepdims=0))
    graph.node.append(helper.make_node("Add", ["mean", "shift"], ["loss"], "loss"))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    return model


def difference(got, want):
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
    if want.dtype != np.float32:
        return "" if np.array_equal(got, want) else f"{got.tolist()}, expected {want.tolist()}"
    error = np.abs(got - want).max() / np.abs(want).max()
    return "" if error <= TOLERANCE else f"differs by {error:.2g} of the largest"


def errors_of(done):
    errors = [line for line in done.stderr.splitlines() if ": error: " in line]
    return "; ".join(errors) or f"exit status {done.returncode}" if done.returncode else ""


def results_of(node, path, feeds):
    if node[4]:
        return node[4](*feeds.values())
    return onnxruntime.InferenceSession(path.as_posix(), providers=["CPUExecutionProvider"]).run(None, feeds)


def try_case(shardc, name, node, folder):
    model, feeds = model_of(node)
    path = folder / "model.onnx"
    onnx.save(model, path)
    want = results_of(node, path, feeds)
    data = folder / "in"
    data.mkdir()
    for k, v in feeds.items():
        np.save(data / f"{k}.npy", v)
    done = subprocess.run([shardc, "run", path, "--inputs", data, "--outputs", folder / "out"], capture_output=True,
                          text=True)
    if done.returncode:
        return errors_of(done)
    for out, w in zip(model.graph.output, want):
        bad = difference(np.load(folder / "out" / f"{out.name}.npy"), w)
        if bad:
            return f"{out.name} {bad}"
    onnx.save(trained(model, feeds), path)
    flags = [f"--const={k}" for k, v in feeds.items() if v.dtype != np.float32 and len(v) != B]
    done = subprocess.run([shardc, path, "--emit=ir", "--check-passes", "--loss=output:loss", *flags],
                          capture_output=True, text=True)
    return errors_of(done)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    picked = {k: v for k, v in CASES.items() if v and args.only in k}
    failed = 0
    for name, node in picked.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                bad = try_case(args.shardc, name, node, pathlib.Path(folder))
            except Exception as e:  # onnxruntime's own
                bad = f"onnxruntime: {str(e)[:300]}"
        failed += bad != ""
        if bad:
            print(f"FAIL {name}: {bad}")
    print(f"{len(picked)} cases, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
