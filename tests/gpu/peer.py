"""PyTorch's side of the GPU kit: a process trains one model in one way and prints its times as one JSON line.

It uses bf16 autocast over f32 parameters, fused AdamW and scaled_dot_product_attention, and channels-last images.
`fsdp` is fully_shard at one rank with bf16 compute and f32 shards, each block a unit.  Only steps are timed, between
two events of the GPU; the loss is read after the last step.

`ceilings` prints the rates of bf16 products (TFLOP/s) and of a copy (GB/s) instead, `data` writes a case's samples.

usage: peer.py eager|compile|fsdp CASE STEPS [--device cpu]
       peer.py ceilings
       peer.py data CASE FOLDER
"""
import argparse
import json
import os
import pathlib
import statistics
import time

import torch
from torch.nn import functional as F

from gpu_models import GPT2, ResNet, make_data

HERE = pathlib.Path(__file__).resolve().parent


def fully_sharded(module, device):
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    blocks = module.h if hasattr(module, "h") else [m for m in module.body if next(m.parameters(), None) is not None]
    for block in blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(module, mp_policy=policy)


class Peer:
    def __init__(self, name, case, variant, device):
        torch.manual_seed(0)
        self.tokens, self.device, self.sharded = name.startswith("gpt2"), device, variant == "fsdp"
        model, batch = case["model"], case["batch"]
        self.classes = model["vocabulary"] if self.tokens else model["classes"]
        sample = (model["length"],) if self.tokens else (3, case["image"], case["image"])
        self.module = (GPT2(**model) if self.tokens else ResNet(**model)).train().to(device)
        if self.tokens:
            self.x = torch.randint(self.classes, (batch, *sample), device=device)
        else:
            self.module = self.module.to(memory_format=torch.channels_last)
            self.x = torch.randn((batch, *sample), device=device).contiguous(memory_format=torch.channels_last)
        self.labels = torch.randint(self.classes, (batch, *sample) if self.tokens else (batch,), device=device)
        if self.sharded:
            fully_sharded(self.module, device)
            self.x = self.x if self.tokens else self.x.bfloat16()
        self.forward = torch.compile(self.loss) if variant == "compile" else self.loss
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-4, fused=True)

    def loss(self):
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=not self.sharded):
            logits = self.module(self.x)
            return F.cross_entropy(logits.reshape(-1, self.classes), self.labels.reshape(-1))

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def timed(peer, n):
    """Returns the milliseconds of a step, where all steps are issued without waiting, and the last loss."""
    if peer.device == "cpu":
        begin = time.perf_counter()
        loss = [peer.step() for _ in range(n)][-1]
        return (time.perf_counter() - begin) * 1e3 / n, loss.item()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(n):
        loss = peer.step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / n, loss.item()


def milliseconds(function):
    """The median of ten calls, after two."""
    times = []
    for _ in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[2:])


def ceilings():
    """TFLOP/s of bf16 products, a square one and those of GPT-2 124M at 65,536 tokens; GB/s read and written by a copy."""
    rates = {}
    for m, n, k in ((8192, 8192, 8192), (65536, 3072, 768), (65536, 768, 3072), (65536, 50257, 768), (65536, 50304, 768)):
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
        rates[f"product {m} x {n} x {k}, TFLOP/s"] = 2 * m * n * k / milliseconds(lambda: a @ b) / 1e9
        del a, b
    source = torch.zeros(1 << 30, device="cuda", dtype=torch.float32)
    target = torch.empty_like(source)
    rates["copy of 4 GiB, GB/s"] = 2 * source.nbytes / milliseconds(lambda: target.copy_(source)) / 1e6
    return rates


def write_data(case, tokens, folder):
    model = case["model"]
    sample = (model["length"],) if tokens else (3, case["image"], case["image"])
    make_data(folder, sample, model["vocabulary"] if tokens else model["classes"], tokens, 2 * case["batch"], 0)
    return dict(samples=2 * case["batch"])


def train(case, name, variant, n, device):
    torch.set_float32_matmul_precision("highest")
    try:
        peer = Peer(name, case, variant, device)
        timed(peer, 3)
        ms, loss = timed(peer, n)
    except torch.cuda.OutOfMemoryError:
        return dict(error="PyTorch ran out of memory")
    if peer.sharded:
        torch.distributed.destroy_process_group()
    gpu = device == "cuda"
    return dict(step_ms=ms, loss=loss, torch=torch.__version__,
                allocated=torch.cuda.max_memory_allocated() if gpu else None,
                reserved=torch.cuda.max_memory_reserved() if gpu else None)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["eager", "compile", "fsdp", "ceilings", "data"])
    p.add_argument("case", nargs="?")
    p.add_argument("more", nargs="?", help="number of steps, or a folder")
    p.add_argument("--device", default="cuda")
    args = p.parse_args()
    if args.what == "ceilings":
        told = ceilings()
    else:
        case = json.loads((HERE / "cases.json").read_text())["benches"][args.case]
        tokens = args.case.startswith("gpt2")
        told = write_data(case, tokens, pathlib.Path(args.more)) if args.what == "data" else train(
            case, args.case, args.what, int(args.more), args.device)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
