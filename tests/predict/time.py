#!/usr/bin/env python3
"""Predicted beside measured times of steps, on this machine.

usage: tests/predict/time.py SHARDC DIR [--rounds N] [--exact] [--only REGEX] [--machine FILE.json] [--json FILE.jsonl]

Each case is a model and flags at 1, 2 and 4 ranks, with all cores shared out.  Its program runs in every round, after
those of the other cases, and what is compared is the least step of all rounds: the prediction is of a machine that has
nothing else to do.  Where ranks take turns on cores one step may be short because another is long, so there it is the
least mean of a round.  --machine: a file of an earlier `shardc calibrate`; else this machine is calibrated first.  --exact:
and each case's model is then added to a copy of the file, so that its ops are measured ones.  The table goes to standard
output, and each row to --json."""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
DIGITS, TEXT = "examples/digits/digits.onnx", "examples/text/text.onnx"
LOSS = "--loss=cross_entropy"
RANKS = (1, 2, 4)
STEPS, WARM = 12, 3  # of a run; those that are left out
KINDS = {"f32": np.float32, "i64": np.int64, "i32": np.int32}
# model, ids that its inputs may have, flags
CASES = [
    (DIGITS, 10, f"{LOSS} --bind=batch=32"),
    (DIGITS, 10, f"{LOSS} --bind=batch=128"),
    (DIGITS, 10, f"{LOSS} --bind=batch=32 --optimizer=sgd:momentum --wrap=none"),
    (DIGITS, 10, f"{LOSS} --bind=batch=64 --strategy=no_shard"),
    (DIGITS, 10, f"{LOSS} --bind=batch=32 --param-dtype=bf16"),
    (TEXT, 64, f"{LOSS} --bind=batch=4"),
    (TEXT, 64, f"{LOSS} --bind=batch=16"),
    (TEXT, 64, f"{LOSS} --bind=batch=8 --remat=block"),
    (TEXT, 64, f"{LOSS} --bind=batch=8 --wrap=block --strategy=shard_grad_op"),
    (TEXT, 64, f"{LOSS} --bind=batch=8 --wrap=each"),
    (TEXT, 64, f"{LOSS} --bind=batch=8 --optimizer=sgd --strategy=no_shard"),
    (TEXT, 64, f"{LOSS} --bind=batch=8 --param-dtype=bf16"),
]


def call(*words):
    run = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{' '.join(map(str, words))}\nexit {run.returncode}: {run.stdout}{run.stderr}")
    return run.stdout


class Case:
    def __init__(self, shardc, folder, number, case):
        self.model, self.ids, self.flags = case
        self.shardc, self.folder = shardc, folder / str(number)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.name = f"{pathlib.Path(self.model).stem} {self.flags.replace(LOSS, '').strip()}"
        self.words = [ROOT / self.model, *self.flags.split()]
        self.least = {}
        call(shardc, *self.words, "-o", self.folder / "train")
        self.data = self.samples()

    def samples(self):
        """One micro-batch for each of the most ranks, of random numbers and ids."""
        module = json.loads(call(self.shardc, *self.words, "--emit=json"))
        draw, words = np.random.default_rng(1), []
        for s in module["symbols"]:
            if s["kind"] != "input":
                continue
            dtype, dims = s["type"].rstrip("]").split("[")
            shape = [int(n) for n in dims.split(",")]
            shape[0] *= max(RANKS)
            of_ids = dtype.startswith("i")
            x = draw.integers(0, self.ids, shape) if of_ids else draw.standard_normal(shape)
            path = self.folder / f"{len(words)}.npy"
            np.save(path, x.astype(KINDS[dtype]))
            words += ["--data", f"{s['name']}={path}"]
        return words

    def run(self, ranks, threads, turns):
        log = self.folder / "log.jsonl"
        log.unlink(missing_ok=True)
        call(self.folder / "train", *self.data, "--steps", STEPS, "--lr", "1e-6", "--ranks", ranks, "--threads", threads,
             "--log", log)
        steps = [row["step_ms"] for row in map(json.loads, log.open()) if "step_ms" in row and "step" in row]
        step = sum(steps[WARM:]) / len(steps[WARM:]) if turns else min(steps[WARM:])
        self.least[ranks] = min(self.least.get(ranks, 1e9), step)

    def predict(self, machine, ranks, exact):
        if exact:
            copy = self.folder / "machine.json"
            shutil.copy(machine, copy)
            call(self.shardc, "calibrate", "-o", copy, *self.words)
            machine = copy
        text = call(self.shardc, "plan", *self.words, f"--world={ranks}", f"--machine={machine}", "--format=json")
        return json.loads(text[text.index("{"):])["prediction"]


def show(rows):
    width = max(len(r["case"]) for r in rows)
    print(f"{'case':{width}} ranks  measured ms  predicted ms  error")
    for r in rows:
        print(f"{r['case']:{width}} {r['ranks']:5} {r['measured_ms']:12.3f} {r['predicted_ms']:13.3f} {r['error']:+6.0%}")
    errors = [abs(r["error"]) for r in rows]
    print(f"{len(rows)} rows: mean error {sum(errors) / len(errors):.1%}, worst {max(errors):.0%}")
    pairs = [(a, b) for a in rows for b in rows if a["measured_ms"] < b["measured_ms"] * 0.95
             and a["case"].split()[0] == b["case"].split()[0] and a["ranks"] == b["ranks"]]
    if pairs:
        kept = sum(a["predicted_ms"] < b["predicted_ms"] for a, b in pairs)
        print(f"pairs of one model that differ by more than 5%: {kept} of {len(pairs)} are predicted in their order")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc", type=pathlib.Path)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--exact", action="store_true")
    p.add_argument("--only", default="")
    p.add_argument("--machine", type=pathlib.Path)
    p.add_argument("--json", type=pathlib.Path)
    o = p.parse_args()
    shardc, folder = o.shardc.resolve(), o.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    machine = o.machine or folder / "machine.json"
    if not o.machine:
        print(call(shardc, "calibrate", "-o", machine), end="", flush=True)
    cores = int(json.loads(machine.read_text())["ranks_per_host"][0])
    cases = [Case(shardc, folder, i, c) for i, c in enumerate(CASES) if re.search(o.only, f"{c[0]} {c[2]}")]
    for _ in range(o.rounds):
        for case in cases:
            for ranks in RANKS:
                case.run(ranks, max(cores // ranks, 1), ranks > cores)
    rows = []
    for case in cases:
        for ranks in RANKS:
            predicted = case.predict(machine, ranks, o.exact and ranks == RANKS[0]) if not o.exact or ranks == RANKS[0] \
                else case.predict(case.folder / "machine.json", ranks, False)
            rows.append({"case": case.name, "ranks": ranks, "measured_ms": case.least[ranks],
                         "predicted_ms": predicted["step_ms"], "evidence_ms": predicted["evidence_ms"],
                         "error": predicted["step_ms"] / case.least[ranks] - 1, "exact": o.exact})
    show(rows)
    if o.json:
        o.json.write_text("".join(json.dumps(r) + "\n" for r in rows))


main()
