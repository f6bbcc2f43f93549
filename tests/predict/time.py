#!/usr/bin/env python3
"""Predicted beside measured times of steps, on this machine.

usage: tests/predict/time.py SHARDC DIR [--turns N] [--only REGEX] [--machine FILE.json] [--json FILE.jsonl]

Each case is a model and flags at 1, 2 and 4 ranks, with all cores shared out; where the processor multiplies bf16, one of
each model does so.  Models take turns, in each of which the model is calibrated and each of its cases runs once.  There are
N calm turns, in which calibration does not warn of other programs, and as many others, then further ones for cases whose
two fastest runs do not agree; 2 N in all at most.  What is compared is the step of the fastest run, of a machine that has
nothing else to do, with what follows from the fastest calibrations.  Turns matter where processors are virtual: their host
moves them for seconds at a time to places in which two threads of one program share a core, or reach each other's caches
slowly.  --machine: a file of an earlier run, and no calibration.
The table goes to standard output, and each row to --json.  It ends with 1 when a bar is missed."""
import argparse
import json
import pathlib
import re
import sys

from workloads import NAMES, RANKS, Program, calibrate, cores_of, has_bf16_units, ids_of, words_of

MEAN, WORST, ORDER = 0.05, 0.12, 0.95
CALM = 0.25  # above this calibration itself warns that something else has the processors
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
    pairs = [(a, b) for a in rows for b in rows if a["measured_ms"] < b["measured_ms"] * 0.95
             and a["model"] == b["model"] and a["ranks"] == b["ranks"]]
    return len(pairs), sum(a["predicted_ms"] < b["predicted_ms"] for a, b in pairs)


def measure(models, cores, turns, calibrated):
    """Lets all models take turns, and the programs of a model in them, each time behind calibrated(its name), until so
    many turns of a model were calm and all its programs have settled."""
    calm = dict.fromkeys(models, 0)
    for _ in range(2 * turns):
        for name, programs in models.items():
            few = calm[name] < turns
            left = [(p, ranks) for p in programs for ranks in RANKS if few or not p.settled(ranks)]
            if left:
                calm[name] += calibrated(name) <= CALM
            for program, ranks in left:
                program.run(ranks, cores)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc", type=pathlib.Path)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--turns", type=int, default=4)
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
    programs = [Program(shardc, folder / f"case{i}", words_of(name, half, folder), flags.split(), ids_of(name))
                for i, (name, flags, half) in enumerate(cases)]
    models = {}
    for case, program in zip(cases, programs):
        models.setdefault(case[0], []).append(program)
    measure(models, cores, o.turns, lambda name: 0 if o.machine else calibrate(shardc, folder, machine, [name]))
    rows = []
    for case, program in zip(cases, programs):
        for ranks in RANKS:
            predicted = program.plan(machine, ranks)["prediction"]
            rows.append({"model": case[0], "case": title(*case), "ranks": ranks, "measured_ms": program.least[ranks],
                         "predicted_ms": predicted["step_ms"], "evidence_ms": predicted["evidence_ms"],
                         "error": predicted["step_ms"] / program.least[ranks] - 1})
    show(rows)
    pairs, kept = order(rows)
    print(f"pairs of one model that differ by more than 5%: {kept} of {pairs} are predicted in their order")
    if o.json:
        o.json.write_text("".join(json.dumps(r) + "\n" for r in rows))
    errors = [abs(r["error"]) for r in rows]
    sys.exit(sum(errors) / len(errors) > MEAN or max(errors) > WORST or kept < ORDER * pairs)


main()
