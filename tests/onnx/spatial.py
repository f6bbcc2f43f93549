"""Gradients of spectral and spatial ONNX operators against PyTorch's autograd in f64.

All cases are nodes of one model, whose loss is the sum of their results times random numbers: it is compiled once, and
one step of SGD gives every gradient.  What PyTorch has no operator for is written here as a formula of its tensors.

usage: python spatial.py SHARDC WORKDIR [--ranks N]; a line a case that is wrong, then "N of N gradients agree"
"""
import argparse
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from safetensors.torch import load_file
from torch.nn import functional as F

BOUND, LR = 2e-5, 2.0 ** -6
RNG = np.random.default_rng(5)
CASES = []  # (name, op, operands by name: floats are trained, attributes, formula of the trained tensors)


def floats(*shape, lo=-1.0, hi=1.0):
    return RNG.uniform(lo, hi, shape).astype(np.float32)


def case(name, op, operands, attributes, formula):
    CASES.append((name, op, operands, attributes, formula))


# ---- points of a grid ----

def grid_cases():
    torch_mode = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}
    for mode in torch_mode:
        for pad in ("zeros", "border", "reflection"):
            for align in (0, 1):
                case(f"{mode} {pad} {align}", "GridSample",
                     {"x": floats(2, 3, 5, 4), "grid": floats(2, 3, 7, 2, lo=-1.9, hi=1.9)},
                     dict(mode=mode, padding_mode=pad, align_corners=align),
                     lambda x, grid, m=mode, p=pad, a=align: F.grid_sample(
                         x, grid, mode=torch_mode[m], padding_mode=p, align_corners=bool(a)))
    for mode, pad in (("linear", "zeros"), ("linear", "reflection"), ("nearest", "border")):
        case(f"{mode} {pad} in a volume", "GridSample",
             {"x": floats(2, 2, 3, 5, 4), "grid": floats(2, 2, 3, 2, 3, lo=-1.6, hi=1.6)},
             dict(mode=mode, padding_mode=pad), lambda x, grid, m=mode, p=pad: F.grid_sample(
                 x, grid, mode=torch_mode[m], padding_mode=p, align_corners=False))
    for size in ((2, 3, 4, 5), (2, 1, 1, 6), (3, 1, 2, 3, 4)):
        for align in (0, 1):
            case(f"affine {size} {align}", "AffineGrid",
                 {"theta": floats(size[0], len(size) - 2, len(size) - 1), "size": np.array(size)},
                 dict(align_corners=align), lambda theta, s=size, a=align: F.affine_grid(theta, s, align_corners=bool(a)))


# ---- boxes and moved taps ----

def pixels(plane, y, x):
    """plane [C,H,W] at the points y, x, linear between pixels and 0 outside."""
    c, h, w = plane.shape
    total = 0
    for dy in (0, 1):
        for dx in (0, 1):
            i, j = torch.floor(y.detach()) + dy, torch.floor(x.detach()) + dx
            weight = (1 - (y - i).abs()) * (1 - (x - j).abs())
            inside = (i >= 0) & (i < h) & (j >= 0) & (j < w)
            at = i.clamp(0, h - 1).long() * w + j.clamp(0, w - 1).long()
            total = total + plane.reshape(c, -1)[:, at] * (weight * inside)
    return total


def deform_conv(x, w, offset, bias=None, mask=None, group=1, offset_group=1, stride=(1, 1), pad=(0, 0), dilation=(1, 1)):
    n, c, _, _ = x.shape
    o, _, kh, kw = w.shape
    oh, ow = offset.shape[2:]
    columns = []
    for tap in range(kh * kw):
        part = []
        for g in range(offset_group):
            k = g * kh * kw + tap
            rows = torch.arange(oh)[:, None] * stride[0] - pad[0] + tap // kw * dilation[0]
            cols = torch.arange(ow)[None] * stride[1] - pad[1] + tap % kw * dilation[1]
            one = torch.stack([pixels(x[i, g * c // offset_group:(g + 1) * c // offset_group],
                                      rows + offset[i, 2 * k], cols + offset[i, 2 * k + 1]) for i in range(n)])
            part.append(one if mask is None else one * mask[:, k:k + 1])
        columns.append(torch.cat(part, 1))
    columns = torch.stack(columns, 2).reshape(n, group, c // group, kh * kw, oh, ow)
    y = torch.einsum("ngckhw,gock->ngohw", columns, w.reshape(group, o // group, c // group, kh * kw))
    y = y.reshape(n, o, oh, ow)
    return y if bias is None else y + bias[:, None, None]


def roi_align(x, rois, ids, size, ratio, scale, half, mode):
    out = []
    for box, image in zip(torch.tensor(rois, dtype=torch.float64) * scale, ids):
        first, length = box[:2] - (0.5 if half else 0), box[2:] - box[:2]
        length = length if half else length.clamp(min=1)
        bins = length / torch.tensor([size[1], size[0]])
        many = [ratio or int(np.ceil(b)) for b in bins.tolist()]
        at = [first[d] + (torch.arange(size[1 - d] * many[d]) + 0.5) * bins[d] / many[d] for d in (0, 1)]
        limit = [x.shape[3], x.shape[2]]
        inside = [(a >= -1) & (a <= n) for a, n in zip(at, limit)]
        at = [a.clamp(0, n - 1) for a, n in zip(at, limit)]
        y, xs = torch.meshgrid(at[1], at[0], indexing="ij")
        keep = inside[1][:, None] & inside[0][None]
        if mode == "avg":
            v = (pixels(x[image], y, xs) * keep).reshape(-1, size[0], many[1], size[1], many[0])
            out.append(v.mean((2, 4)))
        else:  # the largest weighted pixel
            i, j = torch.floor(y), torch.floor(xs)
            corners = []
            for dy in (0, 1):
                for dx in (0, 1):
                    weight = (1 - (y - i - dy).abs()) * (1 - (xs - j - dx).abs()) * keep
                    corners.append(x[image][:, (i + dy).clamp(max=limit[1] - 1).long(),
                                            (j + dx).clamp(max=limit[0] - 1).long()] * weight)
            v = torch.stack(corners, -1).reshape(-1, size[0], many[1], size[1], many[0], 4)
            out.append(v.amax((2, 4, 5)))
    return torch.stack(out)


def max_roi_pool(x, rois, size, scale):
    out = []
    for image, *box in rois:
        x1, y1, x2, y2 = (int(np.floor(v * scale + 0.5)) for v in box)
        h, w = max(y2 - y1 + 1, 1) / size[0], max(x2 - x1 + 1, 1) / size[1]
        for i in range(size[0]):
            for j in range(size[1]):
                top, bottom = (int(np.clip(f((i + d) * h) + y1, 0, x.shape[2])) for d, f in ((0, np.floor), (1, np.ceil)))
                left, right = (int(np.clip(f((j + d) * w) + x1, 0, x.shape[3])) for d, f in ((0, np.floor), (1, np.ceil)))
                part = x[int(image), :, top:bottom, left:right]
                out.append(part.amax((1, 2)) if part.numel() else torch.zeros(x.shape[1], dtype=x.dtype))
    return torch.stack(out).reshape(len(rois), *size, -1).permute(0, 3, 1, 2)


def box_cases():
    for group, offset_group, mask in ((1, 1, False), (2, 1, True), (2, 4, True)):
        operands = {"x": floats(2, 4, 6, 5), "w": floats(6, 4 // group, 3, 2),
                    "offset": floats(2, 2 * 6 * offset_group, 3, 5, lo=-1.7, hi=1.7), "bias": floats(6)}
        if mask:
            operands["mask"] = floats(2, 6 * offset_group, 3, 5)
        case(f"{group} groups, {offset_group} of offsets", "DeformConv", operands,
             dict(group=group, offset_group=offset_group, strides=[2, 1], pads=[1, 1, 1, 0], dilations=[1, 1]),
             lambda *a, g=group, og=offset_group: deform_conv(*a, group=g, offset_group=og, stride=(2, 1), pad=(1, 1)))
    rois = np.array([[0.3, 0.4, 3.1, 4.2], [-2, 1.1, 2.3, 7], [1, 0.5, 1.2, 0.9], [2.2, 1.3, 30, 4]], np.float32)
    ids = np.array([1, 0, 1, 1])
    for mode, half, ratio in (("avg", 1, 2), ("avg", 0, 0), ("avg", 1, 0), ("max", 1, 2), ("max", 0, 3)):
        case(f"{mode} {half} {ratio}", "RoiAlign", {"x": floats(2, 3, 6, 5, lo=1, hi=2), "rois": rois.copy(), "ids": ids},
             dict(mode=mode, output_height=2, output_width=3, sampling_ratio=ratio, spatial_scale=0.8,
                  coordinate_transformation_mode="half_pixel" if half else "output_half_pixel"),
             lambda x, r=ratio, h=half, m=mode: roi_align(x, rois, ids, (2, 3), r, 0.8, h, m))
    numbered = np.array([[1, 0, 1, 4, 4], [0, 2, 0, 3, 9], [1, 3, 3, 1, 1]], np.float32)
    case("maxima", "MaxRoiPool", {"x": floats(2, 3, 6, 5), "rois": numbered},
         dict(pooled_shape=[2, 3], spatial_scale=0.9), lambda x: max_roi_pool(x, numbered, (2, 3), 0.9))
    for n in (1, 2, 3, 6):
        case(f"{n} x {n}", "Det", {"x": floats(2, 3, n, n)}, {}, torch.linalg.det)


# ---- spectra ----

def pair(z):
    return torch.view_as_real(z)


def spectral_cases():
    complex_of = torch.view_as_complex
    for n, length in ((5, None), (64, None), (67, None), (96, None), (12, 20), (131, 90), (7, 1)):
        more = {} if length is None else {"length": np.array(length)}
        case(f"{n} to {length}", "DFT", {"x": floats(2, n, 3, 2), **more, "axis": np.array(1)}, {},
             lambda x, m=length: pair(torch.fft.fft(complex_of(x), n=m, dim=1)))
        case(f"{n} to {length}, back", "DFT", {"x": floats(3, n, 2), **more}, dict(inverse=1),
             lambda x, m=length: pair(torch.fft.ifft(complex_of(x), n=m, dim=-1)))
        case(f"{n} to {length}, real", "DFT", {"x": floats(3, 2, n, 1), **more}, dict(onesided=1),
             lambda x, m=length: pair(torch.fft.rfft(x[..., 0], n=m, dim=-1)))
        case(f"{n} to {length}, back to real", "DFT", {"x": floats(3, n, 2), **more}, dict(inverse=1, onesided=1),
             lambda x, m=length: torch.fft.irfft(complex_of(x), n=m, dim=-1).unsqueeze(-1))
    case("first axis", "DFT", {"x": floats(6, 3, 1), "axis": np.array(0)}, {},
         lambda x: pair(torch.fft.fft(x[..., 0], dim=0)))
    window = torch.hann_window(15, dtype=torch.float64)
    case("frames", "STFT", {"x": floats(2, 50, 1), "step": np.array(4), "window": window.float().numpy().copy()}, {},
         lambda x, w: pair(torch.stft(x[..., 0], 15, 4, window=w, center=False, return_complex=True)).transpose(1, 2))


# ---- one model of all ----

def build():
    nodes, tensors, trained, terms = [], [], {}, []
    for i, (_, op, operands, attributes, _) in enumerate(CASES):
        inputs = []
        for key, value in operands.items():
            inputs.append(f"case{i}.{key}")
            tensors.append(numpy_helper.from_array(value, inputs[-1]))
            if value.dtype == np.float32 and key != "rois":
                trained[inputs[-1]] = value
        if op == "DFT" and "length" not in operands and "axis" in operands:
            inputs.insert(1, "")
        nodes.append(helper.make_node(op, inputs, [f"y{i}"], name=f"case{i}", **attributes))
        nodes.append(helper.make_node("Mul", [f"y{i}", f"factor{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("ReduceSum", [f"m{i}"], [f"s{i}"], keepdims=0))
        terms.append(f"s{i}")
    nodes.append(helper.make_node("Sum", terms, ["total"]))
    nodes.append(helper.make_node("Mul", ["one", "total"], ["each"]))
    nodes.append(helper.make_node("ReduceMean", ["each"], ["loss"], keepdims=0))
    return nodes, tensors, trained


def reference(trained):
    """The loss, the gradients, and the numbers that results are multiplied with."""
    leaf = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in trained.items()}
    factors, total = {}, 0
    for i, (_, _, operands, _, formula) in enumerate(CASES):
        y = formula(*[leaf[f"case{i}.{k}"] for k in operands if f"case{i}.{k}" in leaf])
        factors[f"factor{i}"] = floats(*y.shape)
        total = total + (y * torch.tensor(factors[f"factor{i}"], dtype=torch.float64)).sum()
    total.backward()
    return total.item(), {k: torch.zeros_like(v) if v.grad is None else v.grad for k, v in leaf.items()}, factors


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nexit {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-2000:]}")


def train(args, model, trained):
    work = args.work
    onnx.save(model, work / "model.onnx")
    (work / "trainable").write_text("".join(f"{k}\n" for k in trained))
    np.save(work / "one.npy", np.ones((4, 1), np.float32))
    run(args.shardc, work / "model.onnx", "-o", work / "train", "--loss=output:loss", "--optimizer=sgd",
        f"--trainable={work}/trainable", "--bind", f"batch={4 // args.ranks}", "--check-passes")
    run("rm", "-rf", work / "save")
    run(work / "train", "--data", f"one={work}/one.npy", "--steps", 1, "--save", work / "save", "--save-every", 1,
        "--lr", LR, *(["--ranks", args.ranks] if args.ranks > 1 else []))
    return load_file(work / "save" / "step-00000001" / "model.safetensors")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("work", type=pathlib.Path)
    p.add_argument("--ranks", type=int, default=1)
    args = p.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    grid_cases()
    box_cases()
    spectral_cases()
    nodes, tensors, trained = build()
    _, gradients, factors = reference(trained)
    tensors += [numpy_helper.from_array(v, k) for k, v in factors.items()]
    graph = helper.make_graph(nodes, "cases", [helper.make_tensor_value_info("one", onnx.TensorProto.FLOAT, ["batch", 1])],
                              [helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])], tensors)
    after = train(args, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10), trained)
    good = 0
    for key, value in trained.items():
        name, op = CASES[int(key[4:].split(".")[0])][:2]
        ours = (torch.tensor(value).double() - after[key].double()) / LR
        # the difference of two f32 weights carries their rounding
        error = (ours - gradients[key]).norm().item()
        limit = BOUND * gradients[key].norm().item() + 2.0 ** -23 / LR * torch.tensor(value).norm().item()
        good += error <= limit
        if not error <= limit:
            print(f"{op} {name}, {key.split('.')[1]}: error {error:.2e}, at most {limit:.2e}")
    print(f"{good} of {len(trained)} gradients agree")
    sys.exit(good != len(trained))


main()
