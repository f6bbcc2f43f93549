"""Two of our ranks against two of PyTorch's on gloo, same data, same weights, five AdamW steps:
DistributedDataParallel with ZeroRedundancyOptimizer against oss, fully_shard (FSDP2) against full_shard.

Bounds are those of matrix.py: loss 1e-5 relative, weights 1e-4 norm-relative.

usage: torch_peers.py SHARDC WORKDIR
"""
import argparse
import copy
import os
import socket
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import matrix

WORLD = 2
ADAMW = dict(lr=matrix.LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)


def wrap(kind, module):
    """The module as its peer trains it, and its optimizer."""
    if kind == "zero":
        wrapped = DistributedDataParallel(module)
        return wrapped, ZeroRedundancyOptimizer(wrapped.parameters(), optimizer_class=torch.optim.AdamW, **ADAMW)
    for block in module.h:
        fully_shard(block)
    fully_shard(module)
    return module, torch.optim.AdamW(module.parameters(), **ADAMW)


def whole(t):
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone()


def rank_main(rank, kind, module, x, labels, port, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, optimizer = wrap(kind, module)
    losses = []
    for step in range(matrix.STEPS):
        first = (step * WORLD + rank) * matrix.B
        part = slice(first, first + matrix.B)
        loss = F.cross_entropy(model(x[part]).flatten(0, 1), labels[part].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / WORLD)
    weights = {k: whole(p).numpy() for k, p in module.named_parameters()}
    if rank == 0:
        queue.put((losses, weights))
    dist.barrier()
    dist.destroy_process_group()


def torch_run(kind, module, x, labels):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("spawn")
    queue = context.Queue()
    ranks = [context.Process(target=rank_main, args=(r, kind, copy.deepcopy(module), x, labels, port, queue))
             for r in range(WORLD)]
    for p in ranks:
        p.start()
    losses, weights = queue.get(timeout=300)
    for p in ranks:
        p.join()
    return losses, {k: torch.tensor(v) for k, v in weights.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc")
    parser.add_argument("workdir")
    args = parser.parse_args()
    matrix.MODELS, matrix.WORLDS = {"gpt": lambda: matrix.Gpt(drop=0)}, [WORLD]
    tests = matrix.Matrix(argparse.Namespace(shardc=args.shardc, workdir=args.workdir))
    module, data = tests.modules["gpt"], tests.data["gpt", WORLD][2]
    labels = np.random.default_rng(3).integers(0, matrix.VOCAB, tests.data["gpt", WORLD][1].shape)
    np.save(data[3].split("=")[1], labels)  # every label counts: PyTorch's ranks average means
    x, labels = torch.tensor(tests.data["gpt", WORLD][0]), torch.tensor(labels)
    failed = 0
    for kind, strategy in (("zero", "oss"), ("fully_shard", "full_shard")):
        options = [f"--bind=batch={matrix.B}", f"--strategy={strategy}", f"--world={WORLD}"]
        _, binary = tests.programs.build("gpt", options)
        ours = tests.programs.run(binary, WORLD, data)
        try:
            loss, worst, name = matrix.compare("gpt", ours, torch_run(kind, module, x, labels))
            print(f"{strategy} against PyTorch {kind}: loss {loss:.1e}, weights {worst:.1e} {name}")
        except matrix.Failed as e:
            failed += 1
            print(f"{strategy} against PyTorch {kind}: FAILED {e}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
