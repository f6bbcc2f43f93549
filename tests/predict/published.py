#!/usr/bin/env python3
"""Holds predictions of steps on GPUs against published speeds (figures.py).

usage: tests/predict/published.py SHARDC FOLDER MACHINES [--quick] [--held no|yes] [--table FILE.md]

Makes the models by shape, without data, in FOLDER, where those that are there stay, and prints a table of all figures,
--quick of those that share few models; --table writes it.  Fails if fewer than five are predicted within 10%, or if a row
is not as bench/results/predictions.md has it.
"""
import argparse
import json
import logging
import multiprocessing
import pathlib
import statistics
import subprocess
import sys
import warnings

import figures

HERE = pathlib.Path(__file__).resolve().parent
COMMITTED = HERE.parents[1] / "bench" / "results" / "predictions.md"
WITHIN, ENOUGH = 0.10, 5
OPTIONS = ("--loss=cross_entropy:shift=1", "--param-dtype=bf16", "--target=cuda", "--format=json")


def file_of(model, folder):
    """Where its ONNX file lies: one for each shape."""
    layers = "-".join(str(n) for n in model.layers.values())
    size = "-".join(str(v) for v in model.size.values())
    return folder / f"{model.family}-{layers}-{size}-{model.batch}x{model.sample[0]}.onnx"


def make(job):
    import models  # only where a model is missing: it takes PyTorch
    model, path = job
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    part = path.with_suffix(".part")
    models.save(models.made(models.exported(model, 2), model.layers), part)
    part.rename(path)


def is_new(path):
    maker = HERE.parent / "sizes" / "models.py"
    return path.exists() and path.stat().st_mtime > maker.stat().st_mtime


def make_all(rows, folder):
    folder.mkdir(parents=True, exist_ok=True)
    missing = {path: f.model for f in rows if not is_new(path := file_of(f.model, folder))}
    if missing:
        with multiprocessing.Pool(2) as pool:
            pool.map(make, [(model, path) for path, model in missing.items()], 1)


def predicted(f, args):
    """(tokens a second and GPU, the plan's object)."""
    remat = f.remat if f.remat in ("none", "block") else HERE / f.remat
    samples, attention = f.accum * f.model.batch, "auto" if figures.CUDNN in f.note else "own"
    command = [args.shardc, "plan", file_of(f.model, args.folder), *OPTIONS, *f.options, f"--world={f.world}",
               f"--global-batch={samples * f.world}", f"--remat={remat}", f"--attention={attention}",
               f"--machine={args.machines / f.machine}.json", f"--arch={'sm_80' if 'a100' in f.machine else 'sm_90a'}"]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{' '.join(map(str, run.args))}\n{run.stderr}")
    plan = json.loads(run.stdout[run.stdout.index("{"):])
    return samples * f.model.sample[0] / plan["prediction"]["step_ms"] * 1e3, plan


def row(f, tokens, plan):
    what = {"none": "nothing", "block": "blocks"}.get(f.remat, f.remat.removesuffix(".json").replace("_", " "))
    fits = "" if plan["prediction"]["fits"] else " (does not fit)"
    differs = "; ".join(filter(None, ["" if f.fused else "eager", f.note])) or "-"
    return (f"| {f.what} | {f.source} | {f.machine} | {f.world} | {what} | {f.tokens:,.0f} | {tokens:,.0f}{fits} "
            f"| {tokens / f.tokens - 1:+.1%} | {differs} |")


HEAD = ("| figure | source | machine | GPUs | recomputes | published | predicted | error | differs |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")


def summary(what, errors):
    within = sum(abs(e) <= WITHIN for e in errors)
    return (f"{what}: {within} of {len(errors)} within {WITHIN:.0%}, mean error {statistics.mean(errors):+.1%}, mean "
            f"size of the error {statistics.mean(map(abs, errors)):.1%}, standard deviation "
            f"{statistics.pstdev(errors):.1%}, {min(errors):+.1%} to {max(errors):+.1%}")


def summaries(errors):
    """errors: of figures.  A line for fused programs, one for eager ones, and one for all."""
    kinds = {"Fused": [e for f, e in errors if f.fused], "Eager": [e for f, e in errors if not f.fused],
             "All": [e for _, e in errors]}
    return "\n".join(f"- {summary(what, of)}" for what, of in kinds.items() if of)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("machines", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--held", choices=("no", "yes"))
    parser.add_argument("--table", type=pathlib.Path)
    args = parser.parse_args()
    rows = figures.QUICK if args.quick else figures.FIGURES
    rows = [f for f in rows if args.held in (None, "yes" if f.held else "no")]
    make_all(rows, args.folder)
    text, errors = [], []

    def say(line):
        text.append(line)
        print(line, flush=True)

    for title, held in (("Looked at", False), ("Held out", True)):
        part = []
        for f in (f for f in rows if f.held == held):
            if not part:
                say(f"## {title}\n\n{HEAD}")
            tokens, plan = predicted(f, args)
            part.append((f, tokens / f.tokens - 1))
            say(row(f, tokens, plan))
        if part:
            say(f"\n{summaries(part)}\n")
        errors += part
    say(f"## Both\n\n{summaries(errors)}")
    lines = set(COMMITTED.read_text().splitlines())
    if args.table:
        args.table.write_text("\n".join(text) + "\n")
    within = sum(abs(e) <= WITHIN for _, e in errors)
    if within < ENOUGH:
        print(f"FAIL {within} figures are predicted within {WITHIN:.0%}, fewer than {ENOUGH}")
    moved = [line for line in text if line.startswith("| ") and line not in lines]
    for line in moved:
        print(f"FAIL no row of {COMMITTED.name}, where it belongs if the change is meant: {line}")
    return within < ENOUGH or bool(moved)


if __name__ == "__main__":
    sys.exit(main())
