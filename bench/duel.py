"""Steps per second of our binary and of PyTorch's configurations, which share the machine in slices of time.

On a machine that others use, step.py's turns meet faster and slower times.  Here all contenders train without end, one
runs for a slice and the others are stopped, so that all meet the same.  What counts is how many steps a contender has
ended in its time; a step that a slice's end cuts goes on in the next one.  The first steps, those of a first round, do
not count.  The ratio is that of the whole time, its range is over rounds; a round of few steps is off by one of them.
Ratio above 1: we are faster.  Of PyTorch's configurations only those with memory kept take part (README.md).

usage: python duel.py SHARDC WORKDIR [--only a,b] [--modes a,b] [--rounds N] [--seconds S] [--slice S] [--threads N]
       [--json FILE]
"""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import sys

import torch

import cases
from contenders import HANDICAPS, HERE, KEEP_MEMORY, MODES, Ours, variants

sys.path.insert(0, str(HERE.parent / "tests" / "predict"))
from slices import Sliced  # noqa: E402

ENDLESS = 1000000  # steps, which are more than any duel has
PATIENCE = 1200    # seconds that a contender has for its first two steps, compiling included


class Contender:
    """lines: a function that tells how many steps have ended."""

    def __init__(self, name, process, lines):
        self.name, self.process, self.lines = name, process, lines
        self.seconds, self.marks = 0.0, []  # its running time; (that time, steps) at the beginning of rounds

    def run(self, seconds):
        self.process.slice(seconds)
        self.seconds += seconds
        if not self.process.runs():
            raise RuntimeError(self.process.complaint())

    def begin(self):
        """Until steps are those that follow the first."""
        while self.lines() < 2:
            self.run(0.5)
            if self.seconds > PATIENCE:
                raise RuntimeError(f"{self.name}: no step within {PATIENCE} s")

    def mark(self):
        self.marks.append((self.seconds, self.lines()))

    def ms(self, first, last):
        """Of a step, between two marks."""
        (t, steps), (u, more) = self.marks[first], self.marks[last]
        return 1e3 * (u - t) / max(1, more - steps)


def count(path):
    return pathlib.Path(path).read_bytes().count(b"\n") if pathlib.Path(path).exists() else 0


def logged(path):
    return sum('"step_ms"' in line for line in open(path)) if path.exists() else 0


def contend(args, row, stack):
    ours = Ours(args, row)
    log = ours.work / "log.jsonl"
    log.unlink(missing_ok=True)
    found = [Contender("shardc", stack.enter_context(Sliced(ours.command(ENDLESS))), lambda: logged(log))]
    keep = ["env", *(f"{k}={x}" for k, x in KEEP_MEMORY.items())]
    for v in (v for v in variants(row.case, args.modes) if v.keep_memory):
        layout = "channels_last" if v.channels_last else "plain"
        process = stack.enter_context(Sliced([*keep, sys.executable, HERE / "peers.py", row.name, v.mode, layout,
                                              "--threads", args.threads, "--endless"]))
        found.append(Contender(f"PyTorch {v}", process, lambda p=process: count(f"/proc/self/fd/{p.said.fileno()}")))
    return found


def duel(args, row):
    with contextlib.ExitStack() as stack:
        all_of_it = contend(args, row, stack)
        for c in all_of_it:
            c.begin()
        for _ in range(args.rounds + 1):  # the first one is not counted
            for c in all_of_it:
                c.mark()
            for _ in range(round(args.seconds / args.slice)):
                for c in all_of_it:
                    c.run(args.slice)
        for c in all_of_it:
            c.mark()
        return all_of_it


def show(args, row, ours, peers):
    rows = []
    print(f"{row.name}: {'bf16' if row.half else 'f32'}, {args.threads} threads, {args.rounds} rounds of "
          f"{args.seconds:g} s in slices of {args.slice:g} s, load {os.getloadavg()[0]:.1f}")
    for c in [ours, *peers]:
        ratios = [c.ms(i, i + 1) / ours.ms(i, i + 1) for i in range(1, args.rounds + 1)]
        ratio = c.ms(1, -1) / ours.ms(1, -1)
        print(f"  {c.name:45} {c.ms(1, -1):9.1f} ms, {c.marks[-1][1] - c.marks[1][1]:4} steps, ratio {ratio:5.2f}  "
              f"{min(ratios):.2f}..{max(ratios):.2f}", flush=True)
        rows.append(dict(case=row.name, metric="sliced_ms", threads=args.threads, ours=ours.ms(1, -1), peer=c.ms(1, -1),
                         peer_name=f"{c.name}, torch {torch.__version__}", ratio=ratio, ratio_min=min(ratios),
                         ratio_max=max(ratios), rounds=args.rounds, load=os.getloadavg()[0]))
    return rows[1:]


def options():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("work", type=pathlib.Path)
    p.add_argument("--only", help="rows, by comma; all unless given")
    p.add_argument("--modes", default="compile,max-autotune", help="of PyTorch, by comma")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=10, help="of a round, for each contender")
    p.add_argument("--slice", type=float, default=0.25, help="seconds")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--json", help="rows are added to it")
    args = p.parse_args()
    args.modes, args.quick, args.clock = args.modes.split(","), False, "wall"
    if args.rounds < 1 or args.slice <= 0 or args.seconds < args.slice:
        p.error("--rounds is at least 1, --slice above 0, --seconds at least a slice")
    known = cases.rows(False)
    names = args.only.split(",") if args.only else list(known)
    unknown = [n for n in names if n not in known] + [m for m in args.modes if m not in MODES]
    if unknown:
        p.error(f"nothing is called {', '.join(unknown)}; rows: {', '.join(known)}; modes: {', '.join(MODES)}")
    return args, [known[n] for n in names]


def main():
    args, rows = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # contenders are ended, too
    for name in HANDICAPS:
        os.environ.pop(name, None)
    for row in rows:
        ours, *peers = duel(args, row)
        found = show(args, row, ours, peers)
        if args.json:
            with open(args.json, "a") as f:
                f.writelines(json.dumps(r) + "\n" for r in found)


main()
