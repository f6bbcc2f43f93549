"""Step time of our training binary against PyTorch, the two alternating in one run.

In every round each contender runs a few steps in turn.  A contender's figure is the median over rounds of the
fastest step of a round; the range of a ratio is over rounds.  All configurations of PyTorch that were tried are
printed, and the fastest one is the peer.  Ratio above 1: we are faster.

--clock processor compares processor time instead, which other work on the machine disturbs less.  It is the sum of all
threads, waiting ones too, so it says nothing about how well threads share the work.

usage: python step.py SHARDC WORKDIR [--cases a,b] [--rounds N] [--steps N] [--threads N] [--clock wall|processor]
                      --json FILE
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import numpy as np
import torch

import cases  # adds tests/parity to the path
import models

HANDICAPS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OMP_NUM_THREADS", "OMP_PROC_BIND", "KMP_AFFINITY",
             "MKL_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def clean_environment():
    return {k: v for k, v in os.environ.items() if k not in HANDICAPS}


class Ours:
    """Compiles the exported case once; each round is a run of the binary, whose first two steps are not counted."""

    def __init__(self, shardc, name, work, threads, options):
        case = cases.CASES[name]
        self.work, self.threads = work, threads
        work.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        models.export(case, case.build().train(), work / "model.onnx", "dynamo")
        x, labels = models.make_data(case, case.batch * 4, 0)
        np.save(work / "x.npy", x.numpy())
        np.save(work / "labels.npy", labels.numpy())
        self.call([shardc, work / "model.onnx", "-o", work / "train", "--loss=cross_entropy", "--optimizer=adamw",
                   *options])

    def call(self, parts):
        subprocess.run([str(p) for p in parts], check=True, env=clean_environment(), stdout=subprocess.DEVNULL)

    def train(self, steps, *options):
        return [self.work / "train", "--data", f"x={self.work}/x.npy", "--data", f"labels={self.work}/labels.npy",
                "--steps", steps, "--lr", 1e-4, "--threads", self.threads, *options]

    def times(self, steps, clock):
        if clock == "processor":
            return self.processor_times(steps)
        log = self.work / "log.jsonl"
        log.unlink(missing_ok=True)
        self.call(self.train(steps + 2, "--log", log))
        return [r["step_ms"] for r in map(json.loads, open(log)) if "step_ms" in r][2:]

    def processor_times(self, steps):
        """What all threads have used is read whenever a step is reported."""
        parts = [str(p) for p in self.train(steps + 3)]
        with subprocess.Popen(parts, text=True, env=clean_environment(), stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE) as program:
            at = [used_ms(program.pid) for line in program.stderr if line.startswith("step ")]
        if program.returncode or len(at) != steps + 3:
            sys.exit(f"{parts[0]}: status {program.returncode}, {len(at)} of {steps + 3} steps reported")
        return [b - a for a, b in zip(at[1:], at[2:-1])] # at the last one the program may be ending


def used_ms(pid):
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(t.read_text().split()[0]) for t in tasks) * 1e-6


# By default glibc returns big blocks to the system after every step, which costs a PyTorch step up to a fifth
KEEP_MEMORY = {"OMP_WAIT_POLICY": "passive", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "1000000000000"}


class Peer:
    def __init__(self, name, threads, variant, clock):
        here = pathlib.Path(__file__).resolve().parent
        extra = KEEP_MEMORY if "keep_memory" in variant else {}
        self.process = subprocess.Popen([sys.executable, str(here / "peers.py"), name, str(threads), clock],
                                        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        env={**clean_environment(), **extra})

    def times(self, variant, steps):
        self.process.stdin.write(f"{variant} {steps}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def run_case(args, name):
    case = cases.CASES[name]
    variants = [f"{mode}{layout}{memory}" for mode in ("eager", "compile")
                for layout in (["", "-channels_last"] if case.image else [""]) for memory in ("", "-keep_memory")]
    half = cases.HALF.get(name, [])
    ours = {"ours": Ours(args.shardc, name, pathlib.Path(args.work) / name, args.threads, half)}
    if half:
        ours["ours f32"] = Ours(args.shardc, name, pathlib.Path(args.work) / f"{name}-f32", args.threads, [])
    peers = {v: Peer(name, args.threads, v, args.clock) for v in variants}
    rounds = {v: [] for v in [*ours, *variants]}
    for _ in range(args.rounds):
        for who, binary in ours.items():
            rounds[who].append(min(binary.times(args.steps, args.clock)))
        for v in variants:
            rounds[v].append(min(peers[v].times(v, args.steps)))
    for p in peers.values():
        p.close()
    median = {v: statistics.median(t) for v, t in rounds.items()}
    for v in variants:
        print(f"  {name}: PyTorch {v}: {median[v]:.1f} ms", flush=True)
    best = min(variants, key=median.get)
    autocast = " bf16 autocast" if half else ""
    rows = [row(args, name, rounds, median, best, f"PyTorch {torch.__version__} {best}{autocast}")]
    return rows + [row(args, name, rounds, median, "ours f32", "ours in f32")] if half else rows


def row(args, name, rounds, median, peer, peer_name):
    ratios = [p / o for p, o in zip(rounds[peer], rounds["ours"])]
    metric = "step_ms" if args.clock == "wall" else "step_processor_ms"
    return dict(case=name, metric=metric, threads=args.threads, ours=median["ours"], peer=median[peer], peer_name=peer_name,
                ratio=median[peer] / median["ours"], ratio_min=min(ratios), ratio_max=max(ratios))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("work")
    p.add_argument("--cases", default=",".join(cases.STEP_CASES))
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--clock", choices=("wall", "processor"), default="wall")
    p.add_argument("--json", required=True)
    args = p.parse_args()
    rows = [r for name in args.cases.split(",") for r in run_case(args, name)]
    print(f"{'case':14} | {'ours':>9} | {'peer':>9} | {'ratio':>5} | min..max   ({args.clock} ms, {args.threads} threads)")
    for r in rows:
        print(f"{r['case']:14} | {r['ours']:9.1f} | {r['peer']:9.1f} | {r['ratio']:5.2f} | "
              f"{r['ratio_min']:.2f}..{r['ratio_max']:.2f}   {r['peer_name']}")
    with open(args.json, "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows)


if __name__ == "__main__":
    main()
