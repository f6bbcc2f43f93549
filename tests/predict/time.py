#!/usr/bin/env python3
"""Predicted beside measured times of steps, on this machine.

usage: tests/predict/time.py SHARDC DIR [--turns N] [--only REGEX] [--machines FOLDER] [--json FILE.jsonl]

Each case is a model and flags at 1, 2 and 4 ranks, with all cores shared out; where the processor multiplies bf16, one of
each model does so.  A model is calibrated in up to four variants: as it is, at half its batch, recomputing blocks, in bf16.
These calibrations, into DIR/MODEL-VARIANT.json, and all cases of the model share the machine in slices (slices.py): others
compute on the processors of a virtual machine, and its host moves them, for tenths of a second up to minutes, and what is
compared has to meet the same times.  A slice counts by the middle half of its steps, a turn by that of its slices, as
calibration counts runs; and what is compared are the means of N turns, of what was measured and of what was predicted.
Of some cases the calibration measures the very program, so only the others can show that a prediction is wrong: errors are
also shown apart, and the bar of the mean holds for these as well.
--machines: the files are in this folder, and nothing is calibrated.
The table goes to standard output, and each row with all its turns to --json.  It ends with 1 when a bar is missed."""
import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import sys

from slices import Sliced
from workloads import (NAMES, RANKS, WITHOUT_BLOCKS, Program, Training, calibrate, has_bf16_units, ids_of, middle, variants_of,
                       words_of)

MEAN, WORST, ORDER = 0.05, 0.12, 0.95
SHARE = 1 / 15               # of the seconds of calibrations, which each case beside them has
ALONE = 3                    # seconds that each case has where nothing is calibrated
# flags, whether at half the batch; of models without blocks and of those with some
COMMON = [("", False), ("", True), ("--wrap=each --strategy=shard_grad_op", False),
          ("--wrap=none --strategy=no_shard --optimizer=sgd:momentum", False)]
BLOCKS = [*COMMON, ("--remat=block", False)]
PLAIN = [*COMMON, ("--wrap=size:100000 --forward-prefetch=0 --backward-prefetch=none --optimizer=sgd", False)]
HALF = [("--param-dtype=bf16", False)] if has_bf16_units() else []
CASES = [(name, flags, half) for name in NAMES
         for flags, half in [*(PLAIN if name in WITHOUT_BLOCKS else BLOCKS), *HALF]]


def title(name, flags, half):
    return " ".join(filter(None, [name, "at half its batch" if half else "", flags]))


def variant_of(name, flags, half):
    """The variant of the model that has the ops of this case."""
    variants = variants_of(name)
    return next((v for v in variants if v[1:] == (half, flags.split())), variants[0])


def file_of(name, variant):
    return f"{name}-{variant}.json" if variant else f"{name}.json"


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


def order(rows):
    """How many pairs of one model that differ by more than 5% there are, and how many are predicted in their order."""
    pairs = [(a, b) for a in rows for b in rows if a["model"] == b["model"] and a["ranks"] == b["ranks"]
             and a["measured_ms"] < 0.95 * b["measured_ms"]]
    return len(pairs), sum(a["predicted_ms"] < b["predicted_ms"] for a, b in pairs)


class Row:
    """A case at some ranks: the ms of its steps as they were measured and predicted in each turn."""

    def __init__(self, case, program, ranks, cores):
        self.case, self.program, self.ranks, self.cores = case, program, ranks, cores
        self.measured, self.predicted, self.evidence = [], [], {}

    def predict(self, machine):
        found = self.program.plan(machine, self.ranks)["prediction"]
        self.predicted.append(found["step_ms"])
        self.evidence = found["evidence_ms"]

    def result(self):
        measured, predicted = statistics.mean(self.measured), statistics.mean(self.predicted)
        return {"model": self.case[0], "case": title(*self.case), "ranks": self.ranks, "measured_ms": measured,
                "predicted_ms": predicted, "error": predicted / measured - 1, "measured": self.measured,
                "predicted": self.predicted, "calibrated": self.case[1].split() == variant_of(*self.case)[2],
                "evidence_ms": self.evidence}


def share_machine(rows, commands):
    """Runs these cases in slices, beside calibrations until all of them have ended; without any for ALONE."""
    with contextlib.ExitStack() as stack:
        trainings = [Training(r.program, r.ranks, r.cores, stack) for r in rows]
        longest = max(t.seconds for t in trainings)
        calibrations = [stack.enter_context(Sliced(words)) for words in commands]
        owed = 0 if commands else ALONE * len(rows)
        while owed > 0 or any(c.runs() for c in calibrations):
            for c in filter(Sliced.runs, calibrations):
                c.slice(longest)
                owed += longest * len(rows) * SHARE
            while owed > 0:
                owed -= min(trainings, key=Training.had).slice()
        for r, t in zip(rows, trainings):
            r.measured.append(middle(t.end()))
        for c in calibrations:
            if c.process.returncode:
                sys.exit(c.complaint())
            print(re.sub("^.*/", "", c.output()), end="", flush=True)


def take_turn(rows, shardc, folder, machines):
    """machines: the folder of files that are there; None: each model is calibrated beside its cases."""
    for name in dict.fromkeys(r.case[0] for r in rows):
        of_model = [r for r in rows if r.case[0] == name]
        variants = [v for v in variants_of(name) if any(variant_of(*r.case) == v for r in of_model)]
        commands = []
        for variant, half, flags in variants if not machines else []:
            own = folder / file_of(name, variant)
            shutil.copy(folder / "machine.json", own)
            commands.append([shardc, "calibrate", "-o", own, *words_of(name, half, folder), *flags])
        share_machine(of_model, commands)
        for r in of_model:
            r.predict((machines or folder) / file_of(name, variant_of(*r.case)[0]))


def judge(rows):
    """Prints the table; returns whether a bar is missed, of all rows and of those that no calibration measured itself."""
    show(rows)
    turns = [abs(p / m - 1) for r in rows for p, m in zip(r["predicted"], r["measured"])]
    print(f"each turn by itself: mean error {statistics.mean(turns):.1%}, worst {max(turns):.0%}")
    pairs, kept = order(rows)
    print(f"pairs of one model that differ by more than 5%: {kept} of {pairs} are predicted in their order")
    errors, others = [abs(r["error"]) for r in rows], [abs(r["error"]) for r in rows if not r["calibrated"]]
    return max(map(statistics.mean, filter(None, (errors, others)))) > MEAN or max(errors) > WORST or kept < ORDER * pairs


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc", type=pathlib.Path)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--turns", type=int, default=1)
    p.add_argument("--only", default="")
    p.add_argument("--machines", type=pathlib.Path)
    p.add_argument("--json", type=pathlib.Path)
    o = p.parse_args()
    shardc, folder = o.shardc.resolve(), o.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("stopped"))  # ends what it has stopped, as Ctrl-C does
    cases = [c for c in CASES if re.search(o.only, title(*c))]
    files = [*dict.fromkeys(file_of(c[0], variant_of(*c)[0]) for c in cases)]
    missing = [file for file in files if o.machines and not (o.machines / file).exists()]
    if missing:
        sys.exit(f"{o.machines} has no {', '.join(missing)}")
    if not o.machines:
        for file in ("machine.json", *files):
            (folder / file).unlink(missing_ok=True)
        calibrate(shardc, folder, folder / "machine.json", [])
    cores = len(os.sched_getaffinity(0))
    rows = []
    for i, (name, flags, half) in enumerate(cases):
        program = Program(shardc, folder / f"case{i}", words_of(name, half, folder), flags.split(), ids_of(name))
        rows += [Row((name, flags, half), program, ranks, cores) for ranks in RANKS]
    for _ in range(o.turns):
        take_turn(rows, shardc, folder, o.machines)
        results = [r.result() for r in rows]
        if o.json:  # after each turn, so that nothing is lost where a run dies
            o.json.write_text("".join(json.dumps(r) + "\n" for r in results))
    sys.exit(judge(results))


main()
