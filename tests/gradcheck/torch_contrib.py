"""Operators of onnxruntime (com.microsoft) and of ONNX's preview in PyTorch, for torch_ops.py."""
import math

import torch
from torch.nn import functional as F

from torch_nn import attend, heads_of, rotate
from torch_ops import OPS, op, run_graph


def ms(*names):
    return op(*(f"com.microsoft.{n}" for n in names))


def both(*names):
    """Under ONNX's own domain, too."""
    return op(*names, *(f"com.microsoft.{n}" for n in names))


OPS["com.microsoft.Gelu"] = lambda n, x: F.gelu(x)
OPS["com.microsoft.BiasGelu"] = lambda n, x, b: F.gelu(x + b)
OPS["com.microsoft.FastGelu"] = lambda n, x, b=None: F.gelu(x if b is None else x + b, approximate="tanh")
OPS["com.microsoft.QuickGelu"] = lambda n, x: x * torch.sigmoid(n.get("alpha", 1.702) * x)
OPS["com.microsoft.BiasAdd"] = lambda n, x, b, skip: x + b + skip
OPS["com.microsoft.Trilu"] = OPS["Trilu"]
OPS["com.microsoft.LayerNormalization"] = OPS["LayerNormalization"]


@ms("BiasSplitGelu")
def bias_split_gelu(n, x, b):
    a, gate = (x + b).chunk(2, -1)
    return a * F.gelu(gate)


@ms("BiasSoftmax")
def bias_softmax(n, x, b):
    axis = n.get("axis", 1)
    shape = x.shape
    if n.get("is_inner_broadcast", 1) == 0:
        b = b.repeat(*[s // t for s, t in zip(shape, b.shape)])
    y = (x + b).reshape(math.prod(shape[:axis]), -1)
    return torch.softmax(y, 1).reshape(shape)


def swap_last(x):
    return x.transpose(-1, -2) if x.dim() > 1 else x


@ms("FusedMatMul", "TransposeMatMul")
def fused_matmul(n, a, b):
    def batch_last(x, flag):  # transBatchA: dim 0 stands in front of the last one
        return x.movedim(0, -2) if n.get(flag, 0) else x
    a, b = batch_last(a, "transBatchA"), batch_last(b, "transBatchB")
    a = swap_last(a) if n.get("transA", 0) else a
    b = swap_last(b) if n.get("transB", 0) else b
    return n.get("alpha", 1.0) * (a @ b)


ACTIVATIONS = {"Relu": F.relu, "Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "LeakyRelu": F.leaky_relu}


@ms("FusedGemm")
def fused_gemm(n, *operands):
    y = OPS["Gemm"](n, *operands)
    alpha = n.get("activation_alpha")
    return F.leaky_relu(y, alpha) if n.get("activation") == "LeakyRelu" else ACTIVATIONS[n.get("activation")](y)


@ms("FusedConv")
def fused_conv(n, x, w, b=None, z=None):
    y = OPS["Conv"](n, x, w, b)
    return ACTIVATIONS[n.get("activation")](y if z is None else y + z)


@ms("FusedMatMulActivation")
def fused_matmul_activation(n, a, b):
    return ACTIVATIONS[n.get("activation")](fused_matmul(n, a, b))


@ms("NhwcConv")
def nhwc_conv(n, x, w, b=None):
    return OPS["Conv"](n, x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), b).permute(0, 2, 3, 1)


# ---- norms ----

def normal(x, eps):
    mean = x.mean(-1, True)
    rstd = 1 / (x.var(-1, correction=0, keepdim=True) + eps).sqrt()
    return (x - mean) * rstd, mean, rstd


@both("SkipLayerNormalization")
def skip_layer_norm(n, x, skip, w, b=None, bias=None):
    s = x + skip if bias is None else x + skip + bias
    y, mean, rstd = normal(s, n.get("epsilon", 1e-12))
    return (y * w if b is None else y * w + b), mean, rstd, s


def root_mean_square(x, w, eps, axis=-1):
    axes = tuple(range(axis % x.dim(), x.dim()))
    rstd = 1 / (x.square().mean(axes, True) + eps).sqrt()
    return x * rstd * w, rstd


@both("SimplifiedLayerNormalization")
def simplified_layer_norm(n, x, w):
    return root_mean_square(x, w, n.get("epsilon", 1e-5), n.get("axis", -1))


@both("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_norm(n, x, skip, w, bias=None):
    s = x + skip if bias is None else x + skip + bias
    y, rstd = root_mean_square(s, w, n.get("epsilon", 1e-12))
    return y, None, rstd, s


@ms("EmbedLayerNormalization")
def embed_layer_norm(n, ids, segments, words, positions, kinds=None, w=None, b=None, mask=None, at=None):
    at = torch.arange(ids.shape[1]) if at is None else at
    s = words[ids] + positions[at]
    s = s if kinds is None else s + kinds[segments]
    y = normal(s, n.get("epsilon", 1e-12))[0] * w + b
    return (y, torch.zeros(ids.shape[0], dtype=torch.int64), s)[:n.n_out]


@ms("GroupNorm", "SkipGroupNorm")
def group_norm(n, x, w, b, *more):
    s = x
    for extra in more:
        s = s + (extra.reshape(extra.shape[0], 1, 1, -1) if extra.dim() == 2 else extra)
    y = s.permute(0, 3, 1, 2) if n.get("channels_last", 1) else s
    y = F.group_norm(y, n.get("groups"), w, b, n.get("epsilon", 1e-5))
    y = F.silu(y) if n.get("activation") else y
    y = y.permute(0, 2, 3, 1) if n.get("channels_last", 1) else y
    return (y, s)[:n.n_out]


# ---- attention ----

@ms("RotaryEmbedding")
def rotary_embedding(n, x, at, cos, sin):
    packed = x.dim() == 3
    size = n.get("rotary_embedding_dim", 0)
    heads = n.get("num_heads", 0) or (x.shape[2] // (2 * cos.shape[1]) if packed else x.shape[1])
    y = heads_of(x, heads)
    at = at + torch.arange(y.shape[2]) if at.numel() == 1 else at
    at = at.reshape(-1, y.shape[2])
    y = rotate(y, cos[at].unsqueeze(1), sin[at].unsqueeze(1), size, n.get("interleaved", 0))
    return y.transpose(1, 2).flatten(2) if packed else y


@ms("GemmaRotaryEmbedding")
def gemma_rotary(n, emb, q, q_rot, k, k_rot):
    cos, sin = torch.cos(emb).unsqueeze(1), torch.sin(emb).unsqueeze(1)
    return q * cos + q_rot * sin, k * cos + k_rot * sin


@ms("MultiHeadAttention")
def multi_head_attention(n, q, k, v, bias=None, key_mask=None, added=None):
    heads = n.get("num_heads")
    if bias is not None:
        bq, bk, bv = bias.split([q.shape[2], k.shape[2], v.shape[2]])
        q, k, v = q + bq, k + bk, v + bv
    q, k, v = (heads_of(x, heads) for x in (q, k, v))
    seen = None if key_mask is None else (key_mask != 0).reshape(key_mask.shape[0], 1, 1, -1)
    if n.get("unidirectional", 0):
        causal = torch.arange(k.shape[2]) <= torch.arange(q.shape[2]).reshape(-1, 1)
        seen = causal if seen is None else seen & causal
    y = attend(q, k, v, n.get("scale", 0.0) or q.shape[3] ** -0.5, added, seen)
    return y.transpose(1, 2).flatten(2)


@ms("Attention")
def attention(n, x, w, b=None, mask=None, past=None, added=None):
    sizes = n.get("qkv_hidden_sizes", [w.shape[1] // 3] * 3)
    y = x @ w if b is None else x @ w + b
    q, k, v = y.split(list(sizes), -1)
    return multi_head_attention(n, q, k, v, None, mask, added)


@ms("GroupQueryAttention")
def group_query_attention(n, q, k, v, past_k, past_v, lengths, total, cos=None, sin=None):
    q, k, v = heads_of(q, n.get("num_heads")), heads_of(k, n.get("kv_num_heads")), heads_of(v, n.get("kv_num_heads"))
    if n.get("do_rotary", 0):
        c, s = cos[:q.shape[2]], sin[:q.shape[2]]
        q, k = (rotate(x, c, s, 2 * c.shape[1], n.get("rotary_interleaved", 0)) for x in (q, k))
    row, key = torch.arange(q.shape[2]).reshape(-1, 1), torch.arange(k.shape[2])
    seen = key <= row
    window = n.get("local_window_size", -1)
    seen = seen & (key > row - window) if window > 0 else seen
    seen = seen & (key <= lengths.reshape(-1, 1, 1, 1))
    y = attend(q, k, v, n.get("scale", 0.0) or q.shape[3] ** -0.5, None, seen, n.get("softcap", 0.0))
    return (y.transpose(1, 2).flatten(2), k, v)[:n.n_out]


@ms("GatedRelativePositionBias")
def gated_relative_position_bias(n, q, q_bias, relative, w, b, eco):
    gates = heads_of(q + q_bias, n.get("num_heads")) @ w + b
    u, r = torch.sigmoid(gates.unflatten(-1, (2, -1)).sum(-1)).chunk(2, -1)
    return (u * (r * eco - 1) + 2) * relative


@op("ai.onnx.preview.FlexAttention")
def flex_attention(n, q, k, v):
    def change(name, x):
        body = n.get(name)
        return x if body is None else run_graph(body, dict(n.scope, **{body.input[0].name: x}), n.opset)[0]
    each = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
    s = q @ k.transpose(-1, -2) * n.get("scale", q.shape[3] ** -0.5)
    return change("prob_mod", torch.softmax(change("score_mod", s), -1)) @ v


@both("LinearAttention")
def linear_attention(n, q, k, v, state=None, decay=None, beta=None):
    heads, shared, rule = n.get("q_num_heads"), n.get("kv_num_heads"), n.get("update_rule", "gated_delta")
    q, k, v = heads_of(q, heads), heads_of(k, shared), heads_of(v, shared)
    (B, _, T, D), E = k.shape, v.shape[3]
    S = torch.zeros(B, shared, D, E, dtype=q.dtype) if state is None else state
    g = None if decay is None else heads_of(decay, shared)
    b = None if beta is None else beta.transpose(1, 2).expand(B, shared, T)
    scale, out = n.get("scale", 0.0) or D ** -0.5, []
    for t in range(T):
        kt, vt = k[:, :, t].unsqueeze(3), v[:, :, t].unsqueeze(2)
        S = S * torch.exp(g[:, :, t]).unsqueeze(3) if "gated" in rule else S
        if "delta" in rule:
            vt = b[:, :, t].reshape(B, shared, 1, 1) * (vt - (kt * S).sum(2, True))
        S = S + kt * vt
        out.append((q[:, :, t].unsqueeze(2) @ S.repeat_interleave(heads // shared, 1)).squeeze(2) * scale)
    return torch.stack(out, 1).flatten(2), S


@both("CausalConvWithState")
def causal_conv(n, x, w, b=None, state=None):
    k = w.shape[2]
    full = torch.cat([torch.zeros(*x.shape[:2], k - 1, dtype=x.dtype) if state is None else state, x], 2)
    y = F.conv1d(full, w, b, groups=x.shape[1])
    y = F.silu(y) if n.get("activation", "none") in ("silu", "swish") else y
    return (y, full[:, :, full.shape[2] - (k - 1):])[:n.n_out]
