"""GPT-2 124M maps what its plan says: every strategy at 1, 2 and 4 ranks, one training step each.

What a rank maps (its own anonymous memory, and its part of the memory that ranks share) is counted by a preloaded
library, tests/e2e/nomalloc.c; what is planned are the lines of --print-plan in whole pages; both are those of
rank 0.  The same in bf16, where gathers, reductions and broadcasts, by the run's counters, are half of f32's bytes and
copies of parameters are equal on all ranks.  The closed forms behind the plan are tests/unit/test_plan.c's and tests/e2e/plan_big's.

usage: memory.py SHARDC WORKDIR
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "parity"))
import models  # noqa: E402

STRATEGIES = ["full_shard", "shard_grad_op", "hybrid_shard", "no_shard", "oss", "sharded_ddp"]
SHARED = ["parameters", "gradients", "sent copies"]  # the communicator's page lies before them in one mapping
PRECISIONS = {"f32": [], "bf16": ["--param-dtype=bf16", "--reduce-dtype=bf16"]}
HALVED = ["gather_bytes", "reduce_bytes", "broadcast_bytes"]


def command(parts, **more):
    run = subprocess.run([str(p) for p in parts], capture_output=True, text=True, **more)
    if run.returncode:
        sys.exit(f"{' '.join(str(p) for p in parts)}\nexit {run.returncode}\n{run.stdout[-500:]}{run.stderr[-1500:]}")
    return run.stdout


def pages(n):
    return -(-n // 4096) * 4096


def planned(text, ranks, precision):
    """Bytes in whole pages, at least and at most: the plan does not say which of one rank's gradients follow the
    activations in their mapping."""
    rows = {}
    shared = SHARED + ["gathered"] * (precision != "f32")  # peers read what a rank has cast
    for line in text[text.index("\nmemory:"):].splitlines()[2:]:
        words = line.split()
        number = next((i for i, w in enumerate(words) if w.isdigit()), None)
        if number is None or words[0] == "total":
            break
        rows[" ".join(words[:number])] = int(words[number])
    if ranks == 1:
        least = pages(rows.pop("activations") + rows.pop("gradients")) + sum(map(pages, rows.values()))
        return least, least + 4096
    together = sum(rows.pop(k, 0) for k in shared) + rows.pop("communication")
    return (pages(together) + sum(map(pages, rows.values())),) * 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc")
    parser.add_argument("workdir")
    args = parser.parse_args()
    root = pathlib.Path(args.workdir)
    root.mkdir(parents=True, exist_ok=True)
    case = models.CASES["gpt2-124m"]
    torch.manual_seed(0)
    models.export(case, case.build().train(), root / "gpt2.onnx", "torchscript")
    x = np.random.default_rng(0).integers(0, case.classes, (4 * case.batch, *case.sample))
    np.save(root / "x.npy", x)
    np.save(root / "labels.npy", x)
    library = root / "nomalloc.so"
    command(["cc", "-O1", "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-shared", "-o", library, HERE.parent / "e2e/nomalloc.c", "-ldl"])
    failed = 0
    for strategy in STRATEGIES:
        for ranks in (1, 2, 4):
            full = None
            for precision, options in PRECISIONS.items():
                binary = root / "train"
                command([args.shardc, root / "gpt2.onnx", "-o", binary, "--loss=cross_entropy", "-O0",
                         f"--strategy={strategy}", f"--world={ranks}", *options])
                run = [binary, "--data", f"x={root}/x.npy", "--data", f"labels={root}/labels.npy", "--steps", 1]
                run += ["--ranks", ranks] if ranks > 1 else []
                run += ["--shard-size", 2] if strategy == "hybrid_shard" and ranks == 4 else []
                counts = root / "counts"
                environment = dict(os.environ, LD_PRELOAD=str(library.resolve()), NOMALLOC=str(counts.resolve()))
                text = command([*run, "--print-plan", "--check-replicas", "--log", root / "log.jsonl"], env=environment)
                least, most = planned(text, ranks, precision)
                got = next(int(line.split()[1]) for line in counts.read_text().splitlines() if line.startswith("mapped"))
                step = json.loads((root / "log.jsonl").read_text().splitlines()[0])
                moved = [step[k] for k in HALVED]
                full = full or moved
                wrong = not least <= got <= most or (precision != "f32" and [2 * n for n in moved] != full)
                failed += wrong
                print(f"{strategy} x{ranks} {precision}: planned {least} bytes in pages, mapped {got}; "
                      + ", ".join(f"{k} {n}" for k, n in zip(HALVED, moved)) + ("  FAILED" if wrong else ""), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
