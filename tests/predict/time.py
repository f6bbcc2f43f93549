#!/usr/bin/env python3
"""Predicted beside measured times of steps, on this machine.

usage: tests/predict/time.py SHARDC DIR [--turns N] [--only REGEX] [--machines FOLDER] [--json FILE.jsonl]

Each case is a model and flags at 1, 2 and 4 ranks, with all cores shared out; where the processor multiplies bf16, one of
each model does so.  Models take N turns.  In each, the model is calibrated into DIR/MODEL.json, and behind that all of its
cases run, RUNS times.  The processors of a virtual machine have several speeds, by what others compute on their cores and
by where its host puts them: for tenths of a second, for seconds, and for minutes.  So on both sides the fastest steps
count, those of the fastest run of all turns: a calibration leaves in the file what was faster in an earlier turn.  By how
much the mean step of all runs was longer is said below the table.
Of some cases the calibration measures the very program; errors of these and of the others are also shown apart.
--machines: MODEL.json in this folder is a model's file, and nothing is calibrated.
The table goes to standard output, and each row with all its runs to --json.  It ends with 1 when a bar is missed."""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import sys

from workloads import NAMES, RANKS, WITHOUT_BLOCKS, Program, calibrate, has_bf16_units, ids_of, words_of

MEAN, WORST, ORDER = 0.05, 0.12, 0.95
RUNS = 2  # of a case in a turn
# flags, whether at half the batch; of models without blocks and of those with some
COMMON = [("", False), ("", True), ("--wrap=each --strategy=shard_grad_op", False),
          ("--wrap=none --strategy=no_shard --optimizer=sgd:momentum", False)]
BLOCKS = [*COMMON, ("--remat=block", False)]
PLAIN = [*COMMON, ("--wrap=size:100000 --forward-prefetch=0 --backward-prefetch=none --optimizer=sgd", False)]
HALF = [("--param-dtype=bf16", False)] if has_bf16_units() else []
CASES = [(name, flags, half) for name in NAMES
         for flags, half in [*(PLAIN if name in WITHOUT_BLOCKS else BLOCKS), *HALF]]


CALIBRATED = ("", "--remat=block", "--param-dtype=bf16")  # flags of programs that workloads.calibrate measures


def title(name, flags, half):
    return " ".join(filter(None, [name, "at half its batch" if half else "", flags]))


def show(rows):
    width = max(len(r["case"]) for r in rows)
    print(f"{'case':{width}} ranks  measured ms  predicted ms  error")
    for r in rows:
        print(f"{r['case']:{width}} {r['ranks']:5} {r['measured_ms']:12.3f} {r['predicted_ms']:13.3f} {r['error']:+6.0%}")
    parts = {f"{n} ranks": [r for r in rows if r["ranks"] == n] for n in RANKS}
    parts["programs that were calibrated"] = [r for r in rows if r["calibrated"]]
    parts["other programs"] = [r for r in rows if not r["calibrated"]]
    for what, part in [*parts.items(), ("all", rows)]:
        errors = [abs(r["error"]) for r in part]
        if errors:
            print(f"{what}: {len(errors)} rows, mean error {sum(errors) / len(errors):.1%}, worst {max(errors):.0%}, within "
                  f"{WORST:.0%} {sum(e <= WORST for e in errors)}")
    print(f"steps of all runs took {statistics.mean(r['mean_ms'] / r['measured_ms'] for r in rows) - 1:.0%} longer on average "
          "than the fastest")


def order(rows):
    """How many pairs of one model that differ by more than 5% there are, and how many are predicted in their order."""
    pairs = [(a, b) for a in rows for b in rows if a["model"] == b["model"] and a["ranks"] == b["ranks"]
             and a["measured_ms"] < 0.95 * b["measured_ms"]]
    return len(pairs), sum(a["predicted_ms"] < b["predicted_ms"] for a, b in pairs)


class Row:
    """A case at some ranks: the ms of its runs in each turn, of the fastest steps and of all, and what is predicted now."""

    def __init__(self, case, program, ranks):
        self.case, self.program, self.ranks = case, program, ranks
        self.runs, self.means, self.predicted, self.evidence = [], [], 0, {}

    def predict(self, machine):
        found = self.program.plan(machine, self.ranks)["prediction"]
        self.predicted, self.evidence = found["step_ms"], found["evidence_ms"]

    def run(self, cores):
        self.runs[-1].append(self.program.run(self.ranks, cores))
        self.means.append(self.program.last[self.ranks])

    def result(self):
        least = min(ms for runs in self.runs for ms in runs)
        return {"model": self.case[0], "case": title(*self.case), "ranks": self.ranks, "measured_ms": least,
                "predicted_ms": self.predicted, "error": self.predicted / least - 1, "runs": self.runs,
                "mean_ms": statistics.mean(self.means), "calibrated": self.case[1] in CALIBRATED,
                "evidence_ms": self.evidence}


def take_turn(rows, cores, machine_of):
    """machine_of(model): a machine file in which the model's ops were measured now and in the turns before."""
    for name in dict.fromkeys(r.case[0] for r in rows):
        machine, of_model = machine_of(name), [r for r in rows if r.case[0] == name]
        for r in of_model:
            r.runs.append([])
        for _ in range(RUNS):
            for r in of_model:
                r.run(cores)
        for r in of_model:
            r.predict(machine)


def judge(rows):
    """Prints the table; returns whether a bar is missed."""
    show(rows)
    pairs, kept = order(rows)
    print(f"pairs of one model that differ by more than 5%: {kept} of {pairs} are predicted in their order")
    errors = [abs(r["error"]) for r in rows]
    return sum(errors) / len(errors) > MEAN or max(errors) > WORST or kept < ORDER * pairs


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc", type=pathlib.Path)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--only", default="")
    p.add_argument("--machines", type=pathlib.Path)
    p.add_argument("--json", type=pathlib.Path)
    o = p.parse_args()
    shardc, folder = o.shardc.resolve(), o.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    cases = [c for c in CASES if re.search(o.only, title(*c))]
    machine = folder / "machine.json"
    missing = [name for name, *_ in cases if o.machines and not (o.machines / f"{name}.json").exists()]
    if missing:
        sys.exit(f"{o.machines} has no machine file of {', '.join(dict.fromkeys(missing))}")
    if not o.machines:
        for file in [machine, *(folder / f"{name}.json" for name in NAMES)]:
            file.unlink(missing_ok=True)
        calibrate(shardc, folder, machine, [])
    cores = len(os.sched_getaffinity(0))
    rows = []
    for i, (name, flags, half) in enumerate(cases):
        program = Program(shardc, folder / f"case{i}", words_of(name, half, folder), flags.split(), ids_of(name))
        rows += [Row((name, flags, half), program, ranks) for ranks in RANKS]

    def machine_of(name):
        own = (o.machines or folder) / f"{name}.json"
        if not own.exists() and not o.machines:
            shutil.copy(machine, own)
        if not o.machines:
            calibrate(shardc, folder, own, [name])
        return own

    for _ in range(o.turns):
        take_turn(rows, cores, machine_of)
        results = [r.result() for r in rows]
        if o.json:  # after each turn, so that nothing is lost where a run dies
            o.json.write_text("".join(json.dumps(r) + "\n" for r in results))
    sys.exit(judge(results))


main()
