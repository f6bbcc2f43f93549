#!/usr/bin/env python3
"""Predicted beside measured times of steps, on this machine.

usage: tests/predict/time.py SHARDC DIR [--turns N] [--only REGEX] [--machine FILE.json] [--json FILE.jsonl]

Each case is a model and flags at 1, 2 and 4 ranks, with all cores shared out; where the processor multiplies bf16, one of
each model does so.  Models take N turns.  In each, the model is calibrated, and behind that each of its cases is predicted
from what that calibration measured, and runs RUNS times, all cases before one runs again.  The fastest of these runs is
compared with the prediction, as the fastest run of a program counts in a calibration; and of the turns the median counts.
The processors of a virtual machine have several speeds, by what others compute on their cores, some for a second and some
for minutes.  The fastest of several runs passes over the short ones; where a speed lasts, it is that of a turn's calibration
as well as that of its runs, so errors and the order of cases are found in each turn alone.  --machine: a file of an earlier
run, and no calibration.
The table goes to standard output, and each row with all its turns to --json.  It ends with 1 when a bar is missed."""
import argparse
import json
import pathlib
import re
import shutil
import statistics
import sys

from workloads import NAMES, RANKS, Program, calibrate, cores_of, has_bf16_units, ids_of, words_of

MEAN, WORST, ORDER = 0.05, 0.12, 0.95
RUNS = 4  # of a case in a turn
# flags, whether at half the batch; of models without blocks and of those with some
COMMON = [("", False), ("", True), ("--wrap=each --strategy=shard_grad_op", False),
          ("--wrap=none --strategy=no_shard --optimizer=sgd:momentum", False)]
BLOCKS = [*COMMON, ("--remat=block", False)]
PLAIN = [*COMMON, ("--wrap=size:100000 --forward-prefetch=0 --backward-prefetch=none --optimizer=sgd", False)]
WITHOUT_BLOCKS = ("digits", "lstm", "mlp")
HALF = [("--param-dtype=bf16", False)] if has_bf16_units() else []
CASES = [(name, flags, half) for name in NAMES
         for flags, half in [*(PLAIN if name in WITHOUT_BLOCKS else BLOCKS), *HALF]]


def title(name, flags, half):
    return " ".join(filter(None, [name, "at half its batch" if half else "", flags]))


def show(rows):
    width = max(len(r["case"]) for r in rows)
    print(f"{'case':{width}} ranks  measured ms  predicted ms  error")
    for r in rows:
        print(f"{r['case']:{width}} {r['ranks']:5} {r['measured_ms']:12.3f} {r['predicted_ms']:13.3f} {r['error']:+6.0%}")
    for ranks in (*RANKS, None):
        errors = [abs(r["error"]) for r in rows if ranks in (None, r["ranks"])]
        print(f"{f'{ranks} ranks' if ranks else 'all'}: {len(errors)} rows, mean error {sum(errors) / len(errors):.1%}, "
              f"worst {max(errors):.0%}, within {WORST:.0%} {sum(e <= WORST for e in errors)}")


def order(rows):
    """How many pairs of one model that differ by more than 5% there are, and how many are predicted in their order."""
    pairs = [(a, b) for a in rows for b in rows if a["model"] == b["model"] and a["ranks"] == b["ranks"]
             and ratio(a["least"], b["least"]) < 0.95]
    return len(pairs), sum(ratio(a["predicted"], b["predicted"]) < 1 for a, b in pairs)


class Row:
    """A case at some ranks: of each turn the ms of all runs, and the predicted ones."""

    def __init__(self, case, program, ranks):
        self.case, self.program, self.ranks = case, program, ranks
        self.runs, self.predicted, self.evidence = [], [], {}

    def predict(self, machine):
        found = self.program.plan(machine, self.ranks)["prediction"]
        self.predicted.append(found["step_ms"])
        self.evidence = found["evidence_ms"]
        self.runs.append([])

    def run(self, cores):
        self.runs[-1].append(self.program.run(self.ranks, cores))

    def result(self):
        least = [min(runs) for runs in self.runs]
        return {"model": self.case[0], "case": title(*self.case), "ranks": self.ranks, "measured_ms": statistics.median(least),
                "predicted_ms": statistics.median(self.predicted), "error": ratio(self.predicted, least) - 1,
                "least": least, "predicted": self.predicted, "runs": self.runs, "evidence_ms": self.evidence}


def ratio(a, b):
    return statistics.median(x / y for x, y in zip(a, b))


def take_turn(rows, cores, machine_now):
    """machine_now(model): a machine file in which the model's ops were measured just now."""
    for name in dict.fromkeys(r.case[0] for r in rows):
        machine, of_model = machine_now(name), [r for r in rows if r.case[0] == name]
        for r in of_model:
            r.predict(machine)
        for _ in range(RUNS):
            for r in of_model:
                r.run(cores)


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
    p.add_argument("--turns", type=int, default=5)
    p.add_argument("--only", default="")
    p.add_argument("--machine", type=pathlib.Path)
    p.add_argument("--json", type=pathlib.Path)
    o = p.parse_args()
    shardc, folder = o.shardc.resolve(), o.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    cases = [c for c in CASES if re.search(o.only, title(*c))]
    machine = o.machine or folder / "machine.json"
    if not o.machine:
        machine.unlink(missing_ok=True)
        calibrate(shardc, folder, machine, [])
    cores = cores_of(machine)
    rows = []
    for i, (name, flags, half) in enumerate(cases):
        program = Program(shardc, folder / f"case{i}", words_of(name, half, folder), flags.split(), ids_of(name))
        rows += [Row((name, flags, half), program, ranks) for ranks in RANKS]

    def machine_now(name):
        now = folder / "now.json"
        shutil.copy(machine, now)
        if not o.machine:
            calibrate(shardc, folder, now, [name])
        return now

    for _ in range(o.turns):
        take_turn(rows, cores, machine_now)
        results = [r.result() for r in rows]
        if o.json:  # after each turn, so that nothing is lost where a run dies
            o.json.write_text("".join(json.dumps(r) + "\n" for r in results))
    sys.exit(judge(results))


main()
