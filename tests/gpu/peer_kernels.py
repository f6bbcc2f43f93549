"""PyTorch's kernels alone, as a process of its own: a JSON line of milliseconds or rates.

`ceilings`: TFLOP/s of bf16 products, a square one and those of GPT-2 124M at 65,536 tokens; GB/s of a copy, read and
written.  `attention`: of each case with heads, forward and backward of scaled_dot_product_attention, causal, bf16, by
each of its back ends; what a back end refuses is told in its words.

usage: peer_kernels.py ceilings|attention [--device cpu]
"""
import argparse
import json
import pathlib
import statistics
import time

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HERE = pathlib.Path(__file__).resolve().parent
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


def milliseconds(function, device="cuda"):
    """The median of ten calls, after two."""
    times = []
    for _ in range(12):
        if device == "cpu":
            begin = time.perf_counter()
            function()
            times.append((time.perf_counter() - begin) * 1e3)
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[2:])


SIZES = (8192, 8192, 8192), (65536, 3072, 768), (65536, 768, 3072), (65536, 50257, 768), (65536, 50304, 768)
COPIED, TINY = 1 << 30, 1 << 10  # floats; of what a CPU has to do, each size is that fraction


def ceilings(device):
    rates, less = {}, TINY if device == "cpu" else 1
    for m, n, k in SIZES:
        m, n = m // less, max(n // less, 1)
        a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
        b = torch.randn(k, n, device=device, dtype=torch.bfloat16)
        rates[f"product {m} x {n} x {k}, TFLOP/s"] = 2 * m * n * k / milliseconds(lambda: a @ b, device) / 1e9
        del a, b
    source = torch.zeros(COPIED // less, device=device, dtype=torch.float32)
    target = torch.empty_like(source)
    rates["copy, GB/s"] = 2 * source.nbytes / milliseconds(lambda: target.copy_(source), device) / 1e6
    return rates


def attend(case, backend, device):
    """Milliseconds forward and backward; q, k and v are views of products' rows, as models have them."""
    heads, length = case["model"]["heads"], case["model"]["length"]
    kv, wide = case["model"].get("kv_heads", heads), case["model"]["width"] // heads

    def rows(n):
        return torch.randn(case["batch"], length, n, wide, device=device, dtype=torch.bfloat16).transpose(1, 2)

    q, k, v = (rows(n).requires_grad_() for n in (heads, kv, kv))
    with sdpa_kernel(backend):
        def forward():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv != heads)

        y = forward()
        dy = torch.randn_like(y)
        return dict(forward_ms=milliseconds(forward, device),
                    backward_ms=milliseconds(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True), device))


def attention(cases, device):
    told = {}
    for name, case in cases.items():
        for how, backend in BACKENDS.items() if "heads" in case["model"] else ():
            try:
                took = attend(case, backend, device)
            except RuntimeError as e:  # it is refused, or there is no memory
                took = dict(refused=str(e).splitlines()[0][:200])
            told.setdefault(name, {})[how] = took
    return told


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["ceilings", "attention"])
    p.add_argument("--device", default="cuda")
    args = p.parse_args()
    cases = json.loads((HERE / "cases.json").read_text())["benches"]
    print(json.dumps(ceilings(args.device) if args.what == "ceilings" else attention(cases, args.device)))


if __name__ == "__main__":
    main()
