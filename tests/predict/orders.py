#!/usr/bin/env python3
"""Looks for orders of collectives that are faster than what --wrap=auto finds, by random edits of its schedule's file.

usage: tests/predict/orders.py SHARDC MODELS MACHINES [--edits N] [--seed N]

Gathers and reduces are issued earlier or later, waited for later, put in front of their neighbours, and gathers into
other slots or regions of their own; each edit on top of the fastest before, or of the schedule as it was found.  What
the verifier refuses is no order.  Prints how many edits of each case hold, and what the best of them gains; fails where
that is more than FASTER, or where few hold.
"""
import argparse
import concurrent.futures
import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from defaults import edited, in_order

ROOT = Path(__file__).resolve().parents[2]
FASTER = 1e-3  # of a step
SLOW = re.compile(r'("link.bandwidth": \[)[^,]*')
TEXT = [str(ROOT / "examples/text/text.onnx"), "--loss=cross_entropy:shift=1", "--bind=batch=4", "--target=cuda"]
LLAMA = ["llama3-8b.onnx", "--loss=cross_entropy:shift=1", "--param-dtype=bf16", "--target=cuda"]
GPT2 = ["gpt2-xl.onnx", *LLAMA[1:]]
# name, model and options, bytes a second of links (None: the machine's), edits for one of --edits
CASES = [("text, H100", [*TEXT, "--strategy=full_shard"], None, 1), ("text, links of 2 GB/s", TEXT, 2e9, 1),
         ("text with blocks, links of 2 GB/s", [*TEXT, "--strategy=full_shard", "--memory-limit=44M"], 2e9, 1),
         ("GPT-2 XL, links of 60 GB/s", [*GPT2, "--strategy=full_shard", "--memory-limit=24G"], 6e10, 0.2),
         ("Llama-3 8B, H100", [*LLAMA, "--memory-limit=52G"], None, 0.2),
         ("Llama-3 8B, links of 60 GB/s", [*LLAMA, "--memory-limit=52G"], 6e10, 0.2)]


def plan(shardc, *options):
    """The plan's object; None if it is refused."""
    got = subprocess.run([str(w) for w in (shardc, "plan", *options, "--format=json")], capture_output=True, text=True)
    if got.returncode not in (0, 1):
        sys.exit(f"{' '.join(map(str, got.args))}\nexit {got.returncode}: {got.stderr}")
    return json.loads(got.stdout[got.stdout.index("{"):]) if got.returncode == 0 else None


def moved(point, by):
    """Another point of the section; behind its end there is none."""
    section, at = point.split("+")
    return point if at == "end" else f"{section}+{max(int(at) + by, 0)}"


def change(draw, lines):
    """One edit of a gather or a reduce."""
    of = draw.choice([line for line in lines if line.columns[2] in ("gather", "reduce")])
    same = [line for line in lines if line.columns[2] == of.columns[2]]
    kind = draw.choice(["issue", "wait", "swap", "slot", "as another's"])
    if kind == "issue":
        of.issue = moved(of.issue, draw.choice([-40, -10, -3, -1, 1, 3, 10]))
    elif kind == "wait":
        of.wait = moved(of.wait, draw.choice([1, 3, 10, 40]))
    elif kind == "as another's":
        of.issue = draw.choice(same).issue
    elif kind == "swap":
        other = draw.choice(same)
        of.issue, other.issue = other.issue, of.issue
    elif of.columns[2] == "gather":
        of.columns[3] = draw.choice(["-", "0", "1", "2", "3"])
    return in_order(lines)


def search(args, case, folder):
    """(options of the plan that --wrap=auto finds, its plan, its schedule)"""
    name, (model, *options), bandwidth, _ = case
    machine, schedule = folder / "machine.json", folder / "found"
    text = (args.machines / "h100-8.json").read_text()
    machine.write_text(SLOW.sub(rf"\g<1>{bandwidth}", text) if bandwidth else text)
    model = [model if model.startswith("/") else args.models / model, *options, "--world=8", f"--machine={machine}"]
    found = plan(args.shardc, *model, "--wrap=auto", f"--schedule-out={schedule}")
    if not found:
        sys.exit(f"{name}: nothing is found")
    return [*model, *found["search"]["options"]], found, schedule.read_text()


def try_case(args, case):
    """(a line of what was found, whether it is a miss)"""
    name, edits = case[0], max(int(args.edits * case[3]), 10)
    draw = random.Random(f"{args.seed} {name}")
    with tempfile.TemporaryDirectory() as folder:
        options, found, first = search(args, case, Path(folder))
        ms = found["prediction"]["step_ms"]
        best, at, hold, file = ms, first, 0, Path(folder) / "edited"
        if plan(args.shardc, *options, f"--schedule-in={Path(folder) / 'found'}")["prediction"]["step_ms"] != ms:
            return f"{name}: its own schedule takes another time", True
        for _ in range(edits):
            text = edited(draw.choice([first, at]), lambda lines: change(draw, lines))
            file.write_text(text)
            got = plan(args.shardc, *options, f"--schedule-in={file}") if text != at else None
            hold += got is not None
            if got and got["prediction"]["step_ms"] < best:
                best, at = got["prediction"]["step_ms"], text
    exposed = found["prediction"]["exposed_ms"] / ms
    line = f"| {name} | {exposed:.1%} | {hold} of {edits} | {best / ms - 1:+.2%} |"
    return line, best < ms * (1 - FASTER) or hold < edits / 20


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc", type=Path)
    p.add_argument("models", type=Path)
    p.add_argument("machines", type=Path)
    p.add_argument("--edits", type=int, default=300)
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    there = [case for case in CASES if case[1][0].startswith("/") or (args.models / case[1][0]).exists()]
    for case in CASES:
        if case not in there:
            print(f"{case[0]}: left out, there is no {args.models / case[1][0]}")
    print("| what was found | exposed | edits that hold | best of them |\n| --- | --- | --- | --- |", flush=True)
    missed = False
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for line, miss in pool.map(lambda case: try_case(args, case), there):
            print(line, flush=True)
            missed = missed or miss
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
