"""Attention, interpolation, recurrent and spatial operators of ONNX in PyTorch, for torch_ops.py."""
import math

import torch
from torch.nn import functional as F

from torch_ops import OPS, ints, op

# ---- attention ----


def heads_of(x, heads):
    """[B,T,H*D] -> [B,H,T,D]"""
    return x.unflatten(2, (heads, -1)).transpose(1, 2) if x.dim() == 3 else x


def attend(q, k, v, scale, bias=None, seen=None, softcap=0.0):
    """q, k, v [B,H,T,D]; bias is added to the scores, seen [..,T,S] says which keys a row sees; no key gives zeros."""
    each = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
    s = q @ k.transpose(-1, -2) * scale
    s = softcap * torch.tanh(s / softcap) if softcap else s
    s = s if bias is None else s + bias
    if seen is None:
        return torch.softmax(s, -1) @ v
    seen = seen.expand(s.shape)
    none = ~seen.any(-1, keepdim=True)
    p = torch.softmax(torch.where(seen | none, s, -math.inf), -1)
    return torch.where(none, 0.0, p) @ v


@op("Attention")
def attention(n, q, k, v, mask=None, past_k=None, past_v=None, lengths=None):
    packed = q.dim() == 3
    q = heads_of(q, n.get("q_num_heads"))
    k, v = heads_of(k, n.get("kv_num_heads")), heads_of(v, n.get("kv_num_heads"))
    offset = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
    if past_k is not None:
        offset = offset + past_k.shape[2]
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    key, row = torch.arange(k.shape[2]), torch.arange(q.shape[2]).reshape(-1, 1)
    seen = torch.ones(1, 1, 1, k.shape[2], dtype=torch.bool)
    if lengths is not None:
        lengths = lengths.reshape(-1, 1, 1, 1)
        seen, offset = key < lengths, lengths - q.shape[2]
    at = row + offset
    left, right = n.get("left_window_size", -1), n.get("right_window_size", -1)
    seen = seen & (key <= at) if n.get("is_causal", 0) else seen
    seen = seen & (key >= at - left) if left >= 0 else seen
    seen = seen & (key <= at + right) if right >= 0 else seen
    bias = None
    if mask is not None and mask.dtype == torch.bool:
        seen = seen & F.pad(mask, (0, k.shape[2] - mask.shape[-1]))
    elif mask is not None:
        bias = F.pad(mask, (0, k.shape[2] - mask.shape[-1]))
        seen = seen & (torch.arange(k.shape[2]) < mask.shape[-1])
    y = attend(q, k, v, n.get("scale", q.shape[3] ** -0.5), bias, seen, n.get("softcap", 0.0))
    y = y.transpose(1, 2).flatten(2) if packed else y
    return (y, k, v)[:n.n_out]


@op("RotaryEmbedding")
def rotary_embedding(n, x, cos, sin, positions=None):
    packed = x.dim() == 3
    y = heads_of(x, n.get("num_heads"))
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    y = rotate(y, cos.unsqueeze(1), sin.unsqueeze(1), n.get("rotary_embedding_dim", 0), n.get("interleaved", 0))
    return y.transpose(1, 2).flatten(2) if packed else y


def rotate(x, cos, sin, size, interleaved):
    size = size or x.shape[-1]
    a, rest = x[..., :size], x[..., size:]
    a, b = (a[..., 0::2], a[..., 1::2]) if interleaved else a.chunk(2, -1)
    real, imag = cos * a - sin * b, sin * a + cos * b
    turned = torch.stack([real, imag], -1).flatten(-2) if interleaved else torch.cat([real, imag], -1)
    return torch.cat([turned, rest], -1)


# ---- interpolation ----

@op("Resize")
def resize(n, x, roi=None, scales=None, sizes=None):
    if n.opset == 10:
        scales, roi = roi, None
    axes = [a % x.dim() for a in n.get("axes", range(x.dim()))]
    if sizes is not None and sizes.numel():
        wanted = ints(sizes)
        scale = [w / x.shape[a] for w, a in zip(wanted, axes)]
        policy = n.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            s = min(scale) if policy == "not_larger" else max(scale)
            scale, wanted = [s] * len(axes), [math.floor(s * x.shape[a] + 0.5) for a in axes]
    else:
        scale = [float(s) for s in scales]
        roi_of = (lambda i: 1.0) if roi is None or not roi.numel() else (lambda i: float(roi[len(axes) + i] - roi[i]))
        crop = n.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        wanted = [math.floor(x.shape[a] * (roi_of(i) if crop else 1) * s) for i, (a, s) in enumerate(zip(axes, scale))]
    for i, a in enumerate(axes):
        ends = (0.0, 1.0) if roi is None or not roi.numel() else (float(roi[i]), float(roi[len(axes) + i]))
        m = resize_matrix(n, x.shape[a], wanted[i], scale[i], ends)
        x = torch.tensordot(x, m[0], ([a], [1])).movedim(-1, a)
        if m[1].any():
            shape = [-1 if d == a else 1 for d in range(x.dim())]
            x = torch.where(m[1].reshape(shape), n.get("extrapolation_value", 0.0), x)
    return x


@op("Upsample")
def upsample(n, x, scales=None):
    n.attrs.update(coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    return resize(n, x, None, n.get("scales", scales))


def coordinate(n, i, size, out, scale, ends):
    default = "asymmetric" if n.opset == 10 else "half_pixel"
    mode = n.get("coordinate_transformation_mode", default)
    if mode == "align_corners":
        return i * (size - 1) / (out - 1) if out > 1 else 0.0
    if mode == "asymmetric":
        return i / scale
    if mode == "tf_crop_and_resize":
        a, b = ends
        return a * (size - 1) + i * (b - a) * (size - 1) / (out - 1) if out > 1 else 0.5 * (a + b) * (size - 1)
    if mode == "pytorch_half_pixel" and out == 1:
        return 0.0
    x = (i + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        x += size / 2 * (1 - out / (scale * size))
    return x


def kernel_of(mode, a):
    def linear(d):
        return max(1 - abs(d), 0.0)

    def cubic(d):
        d = abs(d)
        if d <= 1:
            return (a + 2) * d ** 3 - (a + 3) * d ** 2 + 1
        return a * d ** 3 - 5 * a * d ** 2 + 8 * a * d - 4 * a if d < 2 else 0.0
    return (cubic, 2) if mode == "cubic" else (linear, 1)


def nearest_index(x, mode):
    return {"round_prefer_floor": math.ceil(x - 0.5), "round_prefer_ceil": math.floor(x + 0.5), "floor": math.floor(x),
            "ceil": math.ceil(x)}[mode]


def resize_matrix(n, size, out, scale, ends):
    """[out,size] weights, and which rows are extrapolated"""
    mode = n.get("mode", "nearest")
    default = "floor" if n.opset == 10 else "round_prefer_floor"
    m, outside = torch.zeros(out, size, dtype=torch.float64), torch.zeros(out, dtype=torch.bool)
    kernel, reach = kernel_of(mode, n.get("cubic_coeff_a", -0.75))
    narrow = min(scale, 1.0) if n.get("antialias", 0) else 1.0
    for i in range(out):
        x = coordinate(n, i, size, out, scale, ends)
        crop = n.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        outside[i] = crop and not 0 <= x <= size - 1
        if mode == "nearest":
            m[i, min(max(nearest_index(x, n.get("nearest_mode", default)), 0), size - 1)] = 1
            continue
        first, last = math.floor(x - reach / narrow), math.ceil(x + reach / narrow)
        weights = {j: kernel((j - x) * narrow) for j in range(first, last + 1)}
        if n.get("exclude_outside", 0):
            weights = {j: w for j, w in weights.items() if 0 <= j < size}
        total = sum(weights.values())
        for j, w in weights.items():
            m[i, min(max(j, 0), size - 1)] += w / total
    return m, outside


# ---- recurrent ----

def activation(name, alpha=None, beta=None):
    def a(default):
        return default if alpha is None else alpha

    def b(default):
        return default if beta is None else beta

    return {
        "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": F.relu, "softsign": F.softsign, "softplus": F.softplus,
        "affine": lambda x: a(1.0) * x + b(0.0),
        "leakyrelu": lambda x: F.leaky_relu(x, a(0.01)),
        "thresholdedrelu": lambda x: torch.where(x > a(1.0), x, 0.0),
        "scaledtanh": lambda x: alpha * torch.tanh(beta * x),
        "elu": lambda x: F.elu(x, a(1.0)),
        "hardsigmoid": lambda x: (a(0.2) * x + b(0.5)).clamp(0, 1)}[name.lower()]


def activations(n, default, directions):
    names = n.get("activations", default * directions)
    names = [s.decode() if isinstance(s, bytes) else s for s in names]
    alpha, beta = list(n.get("activation_alpha", [])), list(n.get("activation_beta", []))
    takes_alpha = ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "elu", "hardsigmoid")
    made = []
    for s in names:
        a = alpha.pop(0) if s.lower() in takes_alpha and alpha else None
        b = beta.pop(0) if s.lower() in ("affine", "scaledtanh", "hardsigmoid") and beta else None
        made.append(activation(s, a, b))
    k = len(made) // directions
    return [made[d * k:(d + 1) * k] for d in range(directions)]


def recur(n, x, lengths, states, step):
    """step(direction, x_t, states) -> states; states of each kind: [D,B,H].  Returns Y [T,D,B,H] and the last ones."""
    T, B = x.shape[:2]
    lengths = torch.full((B,), T) if lengths is None else lengths
    backward = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[n.get("direction", "forward")]
    ys, ends = [], []
    for d, back in enumerate(backward):
        now, y = [s[d] for s in states], [None] * T
        for t in reversed(range(T)) if back else range(T):
            alive = (t < lengths).reshape(-1, 1)
            new = step(d, x[t], now)
            now = [torch.where(alive, a, b) for a, b in zip(new, now)]
            y[t] = torch.where(alive, now[0], 0.0)
        ys.append(torch.stack(y))
        ends.append(now)
    return torch.stack(ys, 1), [torch.stack(e) for e in zip(*ends)]


def recurrent(n, x, w, b, lengths, states, gates, make_step):
    if n.get("layout", 0):
        x = x.transpose(0, 1)
        states = [None if s is None else s.transpose(0, 1) for s in states]
    H, D = n.get("hidden_size") or w.shape[1] // gates, w.shape[0]
    zero = torch.zeros(D, x.shape[1], H, dtype=x.dtype)
    states = [zero if s is None else s for s in states]
    wb, rb = (torch.zeros(D, gates * H, dtype=x.dtype),) * 2 if b is None else b.chunk(2, 1)
    clip = n.get("clip")
    y, ends = recur(n, x, lengths, states, make_step(H, wb, rb,
                                                     (lambda v: v.clamp(-clip, clip)) if clip else (lambda v: v)))
    if n.get("layout", 0):
        return (y.permute(2, 0, 1, 3), *(e.transpose(0, 1) for e in ends))
    return (y, *ends)


@op("RNN")
def rnn(n, x, w, r, b=None, lengths=None, h0=None):
    f = activations(n, ["Tanh"], w.shape[0])

    def make_step(H, wb, rb, clip):
        return lambda d, xt, s: [f[d][0](clip(xt @ w[d].T + wb[d] + s[0] @ r[d].T + rb[d]))]
    return recurrent(n, x, w, b, lengths, [h0], 1, make_step)


@op("GRU")
def gru(n, x, w, r, b=None, lengths=None, h0=None):
    f = activations(n, ["Sigmoid", "Tanh"], w.shape[0])

    def make_step(H, wb, rb, clip):
        def step(d, xt, s):
            h, gx = s[0], xt @ w[d].T + wb[d]
            (rz, rr, rh), (bz, br, bh) = r[d].split(H), rb[d].split(H)
            z, e = f[d][0](clip(gx[:, :H] + h @ rz.T + bz)), f[d][0](clip(gx[:, H:2 * H] + h @ rr.T + br))
            inner = e * (h @ rh.T + bh) if n.get("linear_before_reset", 0) else (e * h) @ rh.T + bh
            return [(1 - z) * f[d][1](clip(gx[:, 2 * H:] + inner)) + z * h]
        return step
    return recurrent(n, x, w, b, lengths, [h0], 3, make_step)


@op("LSTM")
def lstm(n, x, w, r, b=None, lengths=None, h0=None, c0=None, p=None):
    f = activations(n, ["Sigmoid", "Tanh", "Tanh"], w.shape[0])

    def make_step(H, wb, rb, clip):
        def step(d, xt, s):
            h, c = s
            i, o, g, k = (xt @ w[d].T + wb[d] + h @ r[d].T + rb[d]).split(H, 1)
            pi, po, pf = p[d].split(H) if p is not None else (0.0, 0.0, 0.0)
            i, g = f[d][0](clip(i + pi * c)), f[d][0](clip(g + pf * c))
            if n.get("input_forget", 0):
                g = 1 - i
            now = g * c + i * f[d][1](clip(k))
            return [f[d][0](clip(o + po * now)) * f[d][2](now), now]
        return step
    return recurrent(n, x, w, b, lengths, [h0, c0], 4, make_step)


# ---- spatial ----

@op("GridSample")
def grid_sample(n, x, grid):
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(n.get("mode", "linear"), n.get("mode", "bilinear"))
    return F.grid_sample(x, grid, mode, n.get("padding_mode", "zeros"), bool(n.get("align_corners", 0)))


OPS["AffineGrid"] = lambda n, theta, size: F.affine_grid(theta, ints(size), bool(n.get("align_corners", 0)))


def bilinear(plane, y, x):
    """plane [C,H,W] at points y, x, any shape -> [C,..]; what is beyond the corners counts as zero"""
    H, W = plane.shape[-2:]
    y0, x0 = y.floor().detach().long(), x.floor().detach().long()
    total = 0.0
    for dy in (0, 1):
        for dx in (0, 1):
            at_y, at_x = y0 + dy, x0 + dx
            inside = (at_y >= 0) & (at_y < H) & (at_x >= 0) & (at_x < W)
            value = plane[:, at_y.clamp(0, H - 1), at_x.clamp(0, W - 1)]
            weight = (1 - (y - at_y).abs()) * (1 - (x - at_x).abs())
            total = total + torch.where(inside, weight, 0.0) * value
    return total


@op("DeformConv")
def deform_conv(n, x, w, offset, b=None, mask=None):
    (kh, kw), (N, C, H, W) = w.shape[2:], x.shape
    (sh, sw), (dh, dw) = n.get("strides", [1, 1]), n.get("dilations", [1, 1])
    pads, group, parts = n.get("pads", [0] * 4), n.get("group", 1), n.get("offset_group", 1)
    oh, ow = offset.shape[2:]
    off = offset.reshape(N, parts, kh, kw, 2, oh, ow)
    m = torch.ones(N, parts, kh, kw, oh, ow, dtype=x.dtype) if mask is None else mask.reshape(N, parts, kh, kw, oh, ow)
    rows = torch.arange(oh).reshape(1, 1, -1, 1) * sh - pads[0] + torch.arange(kh).reshape(-1, 1, 1, 1) * dh
    cols = torch.arange(ow).reshape(1, 1, 1, -1) * sw - pads[1] + torch.arange(kw).reshape(1, -1, 1, 1) * dw
    samples = []
    for i in range(N):
        for g in range(parts):
            plane = x[i, g * C // parts:(g + 1) * C // parts]
            samples.append(bilinear(plane, rows + off[i, g, :, :, 0], cols + off[i, g, :, :, 1]) * m[i, g])
    columns = torch.stack(samples).reshape(N, group, C // group, kh, kw, oh, ow)
    y = torch.einsum("ngcklhw,gockl->ngohw", columns, w.reshape(group, -1, *w.shape[1:])).flatten(1, 2)
    return y if b is None else y + b.reshape(1, -1, 1, 1)


@op("RoiAlign")
def roi_align(n, x, rois, batch):
    scale, ratio = n.get("spatial_scale", 1.0), n.get("sampling_ratio", 0)
    oh, ow = n.get("output_height", 1), n.get("output_width", 1)
    default = "half_pixel" if n.opset >= 16 else "output_half_pixel"
    half = n.get("coordinate_transformation_mode", default) == "half_pixel"
    H, W = x.shape[2:]
    result = []
    for k in range(rois.shape[0]):
        x1, y1, x2, y2 = (rois[k] * scale - (0.5 if half else 0.0)).unbind()
        w, h = x2 - x1, y2 - y1
        if not half:
            w, h = w.clamp(min=1.0), h.clamp(min=1.0)
        gy = ratio or math.ceil(float(h) / oh)
        gx = ratio or math.ceil(float(w) / ow)
        y = y1 + h / oh * (torch.arange(oh).reshape(-1, 1) + (torch.arange(gy) + 0.5) / gy).reshape(-1, 1)
        z = x1 + w / ow * (torch.arange(ow).reshape(-1, 1) + (torch.arange(gx) + 0.5) / gx).reshape(1, -1)
        values = roi_values(x[int(batch[k])], y, z, n.get("mode", "avg") == "max")
        values = values.reshape(x.shape[1], oh, gy, ow, gx)
        result.append(values.amax((2, 4)) if n.get("mode", "avg") == "max" else values.mean((2, 4)))
    return torch.stack(result)


def roi_values(plane, y, x, parts):
    """Bilinear; points up to one pixel outside are moved to the edge, those beyond count as zero.  parts: the largest
    of the four weighted corners in place of their sum."""
    H, W = plane.shape[-2:]
    y, x = torch.broadcast_tensors(y, x)
    outside = (y < -1) | (y > H) | (x < -1) | (x > W)
    y, x = y.clamp(min=0), x.clamp(min=0)
    y0, x0 = y.detach().long().clamp(max=H - 1), x.detach().long().clamp(max=W - 1)
    y, x = torch.where(y0 == H - 1, y0.double(), y), torch.where(x0 == W - 1, x0.double(), x)
    y1, x1 = (y0 + 1).clamp(max=H - 1), (x0 + 1).clamp(max=W - 1)
    fy, fx = y - y0, x - x0
    corners = [(1 - fy) * (1 - fx) * plane[:, y0, x0], (1 - fy) * fx * plane[:, y0, x1],
               fy * (1 - fx) * plane[:, y1, x0], fy * fx * plane[:, y1, x1]]
    value = torch.stack(corners).amax(0) if parts else sum(corners)
    return torch.where(outside, 0.0, value)


@op("MaxRoiPool")
def max_roi_pool(n, x, rois):
    (ph, pw), scale, (H, W) = n.get("pooled_shape"), n.get("spatial_scale", 1.0), x.shape[2:]
    result = []
    for roi in rois:
        b, x1, y1, x2, y2 = [int(roi[0])] + [math.floor(float(v) * scale + 0.5) for v in roi[1:]]
        h, w = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        cells = []
        for i in range(ph):
            for j in range(pw):
                ya, yb = (min(max(v + y1, 0), H) for v in (math.floor(i * h / ph), math.ceil((i + 1) * h / ph)))
                xa, xb = (min(max(v + x1, 0), W) for v in (math.floor(j * w / pw), math.ceil((j + 1) * w / pw)))
                cell = x[b, :, ya:yb, xa:xb]
                cells.append(cell.amax((1, 2)) if cell.numel() else torch.zeros(x.shape[1], dtype=x.dtype))
        result.append(torch.stack(cells, 1).reshape(-1, ph, pw))
    return torch.stack(result)


# ---- Fourier ----

@op("DFT")
def dft(n, x, length=None, axis=None):
    axis = n.get("axis", -2 if axis is None else int(axis)) if n.opset >= 20 else n.get("axis", 1)
    axis = axis if axis >= 0 else axis + x.dim()
    z = torch.complex(x[..., 0], x[..., 1] if x.shape[-1] == 2 else torch.zeros_like(x[..., 0]))
    size = None if length is None else int(length)
    onesided, inverse = n.get("onesided", 0), n.get("inverse", 0)
    if inverse and onesided:
        return torch.fft.irfft(z, size, axis).unsqueeze(-1)
    z = torch.fft.ifft(z, size, axis) if inverse else torch.fft.fft(z, size, axis)
    z = z.narrow(axis, 0, z.shape[axis] // 2 + 1) if onesided else z
    return torch.view_as_real(z)


@op("STFT")
def stft(n, signal, step, window=None, length=None):
    length = window.numel() if length is None else int(length)
    step = int(step)
    z = torch.complex(signal[..., 0], signal[..., 1]) if signal.dim() == 3 and signal.shape[-1] == 2 else (
        signal.reshape(signal.shape[:2]) + 0j)
    frames = z.unfold(1, length, step)
    frames = frames if window is None else frames * window
    z = torch.fft.fft(frames, dim=-1)
    return torch.view_as_real(z[..., :length // 2 + 1] if n.get("onesided", 1) else z)


# ---- quantised: round has the derivative 1, and no gradient passes what is clipped ----

LIMITS = {0: (0, 255), 2: (0, 255), 3: (-128, 127), 4: (0, 65535), 5: (-32768, 32767)}  # by output_dtype


def along(v, x, axis):
    shape = [-1 if i == axis % x.dim() else 1 for i in range(x.dim())]
    return v if v.numel() == 1 else v.reshape(shape)


@op("QuantizeLinear")
def quantize_linear(n, x, scale, zero=None):
    lo, hi = LIMITS[n.get("output_dtype", 0)]
    y = x / along(scale, x, n.get("axis", 1)) + (0 if zero is None else along(zero, x, n.get("axis", 1)))
    y = y + (y.round() - y).detach()
    return y.clamp(lo, hi)


@op("DequantizeLinear")
def dequantize_linear(n, x, scale, zero=None):
    x = x if zero is None else x - along(zero, x, n.get("axis", 1))
    return x * along(scale, x, n.get("axis", 1))
