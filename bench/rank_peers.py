"""One rank of the PyTorch side of the rank benchmark: trains on gloo, with one thread, when asked.

Reads lines "VARIANT STEPS" from standard input, the same on all ranks, and answers each with one JSON object: the
step times in milliseconds, the loss of each of the variant's steps so far, and the peak resident megabytes.
A variant is one or several of these words, joined by "-":
  fsdp (FSDP2, each block and the root a unit) or ddp
  keep       fsdp: parameters stay gathered from forward into backward (reshard_after_forward=False)
  one        fsdp: the whole model is one unit
  view       ddp: gradients are views of the buckets
  static     ddp: static_graph
  bN         ddp: buckets of N MB instead of 25
  foreach    the AdamW that is not fused
  math       attention without the fused kernel
  compile    torch.compile: the blocks with fsdp, the wrapped model with ddp, and the loss

usage: python rank_peers.py CASE BATCH RANK WORLD PORT
"""
import gc
import json
import os
import pathlib
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "parity"))
import models  # noqa: E402
import cases  # noqa: E402


def wrap(module, words):
    network = module.model.transformer
    if "math" in words:
        module.model.set_attn_implementation("eager")
    if words[0] == "ddp":
        size = [float(w[1:]) for w in words if w[0] == "b" and w[1:].isdigit()]
        module = DistributedDataParallel(module, gradient_as_bucket_view="view" in words,
                                         static_graph="static" in words, bucket_cap_mb=size[0] if size else 25)
        return torch.compile(module) if "compile" in words else module
    for block in network.h if "one" not in words else []:
        if "compile" in words:
            block.compile()
        fully_shard(block, reshard_after_forward="keep" not in words)
    return fully_shard(module, reshard_after_forward="keep" not in words)


class Rank:
    def __init__(self, case, batch, rank, world, variant):
        words = variant.split("-")
        torch.manual_seed(0)
        self.case, self.batch, self.first, self.stride = case, batch, rank * batch, world * batch
        self.x, self.labels = models.make_data(case, cases.RANK_SAMPLES, 0)
        self.module = wrap(case.build().train(), words)
        self.score = torch.compile(F.cross_entropy) if "compile" in words else F.cross_entropy
        how = {"foreach": True} if "foreach" in words else {"fused": True}
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-4, **how)
        self.losses = []

    def step(self):
        """Milliseconds of one step; the average of the loss over ranks is not part of the time."""
        at = (len(self.losses) * self.stride + self.first) % len(self.x)
        x, labels = self.x[at:at + self.batch], self.labels[at:at + self.batch]
        dist.barrier()
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.score(self.module(x).reshape(-1, self.case.classes), labels.reshape(-1))
        loss.backward()
        self.optimizer.step()
        ms = (time.perf_counter() - begin) * 1e3
        total = loss.detach().clone()
        dist.all_reduce(total)
        self.losses.append(total.item() / dist.get_world_size())
        return ms


def peak_mb():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1000


def answer(ranks, make, variant, steps):
    if variant not in ranks:
        ranks.clear()
        gc.collect()
        torch._dynamo.reset()
        ranks[variant] = make(variant)
        for _ in range(2):
            ranks[variant].step()
    rank = ranks[variant]
    return dict(ms=[rank.step() for _ in range(steps)], loss=rank.losses, peak_mb=peak_mb())


def main():
    case, batch, rank, world, port = cases.CASES[sys.argv[1]], *map(int, sys.argv[2:])
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    dist.init_process_group("gloo")
    ranks = {}
    for line in sys.stdin:
        variant, steps = line.split()
        print(json.dumps(answer(ranks, lambda v: Rank(case, batch, rank, world, v), variant, int(steps))), flush=True)
    ranks.clear()
    dist.destroy_process_group()


main()
