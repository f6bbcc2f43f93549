"""PyTorch's side of the GPU benchmark: a process trains one model in one way and prints its times as one JSON line.

It uses bf16 autocast over f32 parameters, fused AdamW and scaled_dot_product_attention, and channels-last images.
`fsdp` is fully_shard at one rank with bf16 compute and f32 shards, each block a unit.  Only steps are timed, between
two events of the GPU; the loss is read after the last step.

usage: peer.py CASE VARIANT STEPS [--device cpu]      VARIANT: eager, compile, fsdp
"""
import argparse
import json
import os
import pathlib
import time

import torch
from torch.nn import functional as F

from gpu_models import GPT2, ResNet

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


def main():
    p = argparse.ArgumentParser()
    p.add_argument("case")
    p.add_argument("variant", choices=["eager", "compile", "fsdp"])
    p.add_argument("steps", type=int)
    p.add_argument("--device", default="cuda")
    args = p.parse_args()
    case = json.loads((HERE / "cases.json").read_text())[args.case]
    torch.set_float32_matmul_precision("highest")
    try:
        peer = Peer(args.case, case, args.variant, args.device)
        timed(peer, 3)
        ms, loss = timed(peer, args.steps)
    except torch.cuda.OutOfMemoryError:
        print(json.dumps(dict(error="out of memory")))
        return
    gpu = args.device == "cuda"
    print(json.dumps(dict(step_ms=ms, loss=loss, torch=torch.__version__,
                          allocated=torch.cuda.max_memory_allocated() if gpu else None,
                          reserved=torch.cuda.max_memory_reserved() if gpu else None)))
    if peer.sharded:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
