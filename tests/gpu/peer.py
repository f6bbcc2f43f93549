"""PyTorch's side of the GPU kit: a process trains one model in one way and prints its times as one JSON line.

It uses bf16 autocast over f32 parameters, fused AdamW and scaled_dot_product_attention, and channels-last images.
`fsdp` is fully_shard at one rank with bf16 compute and f32 shards, each block a unit.  Only steps are timed, between
two events of the GPU; the loss is read after the last step.

Others of its jobs are parts of checks: `steps` prints the losses and gradient norms of steps from the weights that our
program saved, with its samples in its order; `data` writes a case's samples; `hold` takes all of the GPU's memory but
LEFT bytes until its input ends; peer_kernels.py times kernels.

usage: peer.py eager|compile|fsdp CASE STEPS [--device cpu]
       peer.py steps CASE STEPS --folder FOLDER [--device cpu]      FOLDER: x.npy, labels.npy, model.safetensors
       peer.py data CASE FOLDER
       peer.py hold LEFT
"""
import argparse
import json
import pathlib
import sys
import time

import torch
from torch.nn import functional as F

from gpu_models import build, load_npy, load_safetensors, make_data, sample_of

HERE = pathlib.Path(__file__).resolve().parent


def fully_sharded(module, device):
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    # Without a port, which another process may have.
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    blocks = module.h if hasattr(module, "h") else [m for m in module.body if next(m.parameters(), None) is not None]
    # fully_shard casts no buffers, and a batch norm whose weights are bf16 wants such statistics.
    for norm in (m for m in module.modules() if isinstance(m, torch.nn.BatchNorm2d)):
        norm.running_mean, norm.running_var = norm.running_mean.bfloat16(), norm.running_var.bfloat16()
    for block in blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(module, mp_policy=policy)


class Peer:
    def __init__(self, case, variant, device):
        torch.manual_seed(0)
        model, batch = case["model"], case["batch"]
        self.tokens, self.device, self.sharded = "vocabulary" in model, device, variant == "fsdp"
        self.classes, sample = model["vocabulary"] if self.tokens else model["classes"], sample_of(case)
        self.module = build(case).train().to(device)
        if self.tokens:
            x = torch.randint(self.classes, (batch, *sample), device=device)
        else:
            if not self.sharded:  # fully_shard refuses weights whose elements are not in C order
                self.module = self.module.to(memory_format=torch.channels_last)
            x = torch.randn((batch, *sample), device=device)
        self.take(x, torch.randint(self.classes, (batch, *sample) if self.tokens else (batch,), device=device))
        if self.sharded:
            fully_sharded(self.module, device)
            self.x = self.x if self.tokens else self.x.bfloat16()
        self.forward = torch.compile(self.loss) if variant == "compile" else self.loss
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=case["lr"], fused=True)

    def take(self, x, labels):
        """The samples of the steps that follow."""
        self.x = x if self.tokens else x.contiguous(memory_format=torch.channels_last)
        self.labels = labels

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


def compared(case, n, device, folder):
    """Losses and gradient norms of n steps from the weights of a checkpoint; batches in the order of the files."""
    torch.set_float32_matmul_precision("highest")
    try:
        peer = Peer(case, "eager", device)
        found = peer.module.load_state_dict(load_safetensors(folder / "model.safetensors"), strict=False)
        lacks = [k for k in found.missing_keys if not k.endswith("num_batches_tracked")]
        if lacks or found.unexpected_keys:
            sys.exit(f"the checkpoint lacks {lacks} and has {found.unexpected_keys}, which PyTorch's model does not")
        x, labels = (load_npy(folder / f"{name}.npy").to(device) for name in ("x", "labels"))
        told = []
        for s in range(n):
            rows = torch.arange(s * case["batch"], (s + 1) * case["batch"], device=device) % len(x)
            peer.take(x[rows], labels[rows])
            loss = peer.step()
            norms = [torch.linalg.vector_norm(p.grad) for p in peer.module.parameters()]
            told.append(torch.stack([loss.float(), torch.linalg.vector_norm(torch.stack(norms))]))
        loss, norm = torch.stack(told).T.tolist()
    except torch.cuda.OutOfMemoryError:
        return dict(error="PyTorch ran out of memory")
    return dict(loss=loss, grad_norm=norm, torch=torch.__version__)


def hold(left):
    """Takes memory, says so, and keeps it until the input ends."""
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(max(free - left, 0), dtype=torch.uint8, device="cuda")
    print(json.dumps(dict(held=held.numel(), free=torch.cuda.mem_get_info()[0])), flush=True)
    sys.stdin.read()


def write_data(case, folder):
    model, tokens = case["model"], "vocabulary" in case["model"]
    classes = model["vocabulary"] if tokens else model["classes"]
    make_data(folder, sample_of(case), classes, tokens, 2 * case["batch"], 0)
    return dict(samples=2 * case["batch"])


def train(case, variant, n, device):
    torch.set_float32_matmul_precision("highest")
    try:
        peer = Peer(case, variant, device)
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
    p.add_argument("what", choices=["eager", "compile", "fsdp", "steps", "data", "hold"])
    p.add_argument("case", help="or a number of bytes")
    p.add_argument("more", nargs="?", help="number of steps, or a folder")
    p.add_argument("--folder", type=pathlib.Path)
    p.add_argument("--device", default="cuda")
    args = p.parse_args()
    if args.what == "hold":
        return hold(int(args.case))
    case = json.loads((HERE / "cases.json").read_text())["benches"][args.case]
    if args.what == "data":
        told = write_data(case, pathlib.Path(args.more))
    elif args.what == "steps":
        told = compared(case, int(args.more), args.device, args.folder)
    else:
        told = train(case, args.what, int(args.more), args.device)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
