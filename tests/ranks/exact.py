"""Resuming is exact: every part of the state comes back to the bit, from saves that all wait for and from those beside steps.

Per feature, at 1 and 2 ranks, for each kind: a run of nine steps saves beside its fourth (kind full at two ranks: waits
for it); a run of four steps waits for its save.  Both checkpoints are the same files, byte for byte; runs that go on from
either have the steps five to nine and the last checkpoint of the first run, byte for byte.

  dropout   masks, the order of shuffled samples across epochs, AdamW's moments
  overflow  f16: the dynamic loss scale has been halved before the save, and grows behind it
  chance    bf16 rounded by chance, by counters
  micro     three micro-batches a step
  norms     BatchNorm, each rank its own statistics
  broadcast BatchNorm of rank 0's statistics

Beside them `batch`: runs that go on with another batch size, at other ranks, take the next sample.

usage: exact.py SHARDC WORKDIR [--features a,b] [--jobs 2]
"""
import argparse
import concurrent.futures
import itertools
import json
import pathlib
import subprocess
import sys
import time

import numpy as np
import torch

import trips
from matrix import T, VOCAB, Failed, command
from trips import KINDS, SGD, Trips, same_files, steps_of

AT, STEPS, WORLDS, LR = 4, 9, (1, 2), 1e-3
ADAMW = ["--loss=cross_entropy"]
FEATURES = {  # the ONNX file, options, strategy
    "dropout": ("gpt", ADAMW, "full_shard"),
    "overflow": ("gpt", [*ADAMW, "--param-dtype=f16", "--reduce-dtype=f16",
                         "--loss-scale=dynamic:init=3e6,growth_interval=3"], "shard_grad_op"),
    "chance": ("gpt", [*ADAMW, "--param-dtype=bf16", "--stochastic-rounding"], "sharded_ddp"),
    "micro": ("gpt", [*ADAMW, "--accum=many"], "full_shard"),
    "norms": ("cnn", SGD, "no_shard"),
    "broadcast": ("cnn", [*SGD, "--bn-sync=broadcast"], "full_shard"),
}
BATCH_LOSS = 1e-5  # relative; sums over batches of other sizes


def state_of(folder):
    """state.json, but for the step at which a run ends, and for its checksum."""
    state = json.loads((folder / "state.json").read_text())
    del state["crc32"]
    return {**state, "steps": 0, "flags": {**state["flags"], "steps": 0}}


def numbers(rows):
    return [[r[k] for k in ("step", "epoch", "loss", "grad_norm", "lr", "loss_scale")] for r in rows]


class Exact(Trips):
    def __init__(self, args):
        super().__init__(args, {name: f[:2] for name, f in FEATURES.items()})

    def go(self, name, world, kind, *flags):
        """The log's steps and the folder."""
        out = self.root / f"run{next(self.number)}"
        accum = ["--accum", 3] if name == "micro" else []
        return self.run(out, name, world, FEATURES[name][2], kind, *accum, *flags), out

    def exact(self, name, world, kind):
        first = ["--lr", LR, "--seed", 3, "--shuffle", 3]
        rows, whole = self.go(name, world, kind, *first, "--steps", STEPS, "--save-every", AT, "--keep", 9)
        _, part = self.go(name, world, kind, *first, "--steps", AT)
        beside, waited = (f / f"step-{AT:08d}" for f in (whole, part))
        same_files(beside, waited, but=["state.json"])
        if state_of(beside) != state_of(waited):
            raise Failed(f"state.json is {state_of(beside)} beside steps, {state_of(waited)} else")
        scales = [r["loss_scale"] for r in rows]
        if name == "overflow" and not (scales[AT - 1] < scales[0] and max(scales[AT:]) > scales[AT]):
            raise Failed(f"loss scales {scales}: none is halved before the save, or none grows behind it")
        for folder in (beside, waited):
            again, out = self.go(name, world, kind, "--resume", folder, "--steps", STEPS)
            if numbers(again) != numbers(rows[AT:]):
                raise Failed(f"{folder}: {numbers(again)}, wanted {numbers(rows[AT:])}")
            same_files(whole / "latest", out / "latest")

    def case(self, c):
        try:
            self.exact(*c)
        except (Failed, subprocess.TimeoutExpired, ValueError, OSError) as e:
            return f"{' '.join(map(str, c))}: FAILED {e}"

    def batch(self):
        """At rate 0 the loss of twelve samples is the mean of three times four, whoever takes them."""
        g = np.random.default_rng(37)
        for key in ("x", "labels"):
            np.save(self.root / f"{key}.npy", g.integers(0, VOCAB, (22, T)))
        given = ["--data", f"x={self.root}/x.npy", "--data", f"labels={self.root}/labels.npy", "--threads", 1, "--lr", 0]
        four, six = self.root / "four", self.root / "six"
        for out, size in ((four, 4), (six, 6)):
            command([self.shardc, self.root / "tied.onnx", "-O0", "--loss=cross_entropy:logits=logits",
                     f"--bind=batch={size}", "-o", out])
        command([four, *given, "--shuffle", 5, "--steps", 12, "--save", self.root / "b", "--save-every", 3, "--keep", 9,
                 "--log", self.root / "four.jsonl"])
        command([six, *given, "--ranks", 2, "--resume", self.root / "b" / "step-00000003", "--steps", 6, "--log",
                 self.root / "six.jsonl"])
        few, many = (steps_of(self.root / f"{n}.jsonl") for n in ("four", "six"))
        if len(many) != 3:
            raise Failed(f"batch: {len(many)} steps behind the checkpoint, wanted 3")
        for i, row in enumerate(many):
            want = np.mean([r["loss"] for r in few[3 * (i + 1):3 * (i + 2)]])
            if abs(row["loss"] - want) > BATCH_LOSS * want or row["epoch"] != few[3 * i + 5]["epoch"]:
                raise Failed(f"batch: loss {row['loss']} in epoch {row['epoch']}, wanted {want}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc", type=pathlib.Path)
    p.add_argument("workdir", type=pathlib.Path)
    p.add_argument("--features", default=",".join(FEATURES))
    p.add_argument("--jobs", type=int, default=2)
    args = p.parse_args()
    torch.set_num_threads(1)
    begin, exact, names = time.time(), Exact(args), args.features.split(",")
    cases = list(itertools.product(names, WORLDS, KINDS))
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(exact.build, [(n, w, FEATURES[n][2]) for n in names for w in WORLDS]))
        failed = [line for line in pool.map(exact.case, cases) if line]
    for line in failed:
        print(line)
    exact.batch()
    print(f"exact: {len(cases) - len(failed)} passed, {len(failed)} failed; {time.time() - begin:.0f} s")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
