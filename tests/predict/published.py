#!/usr/bin/env python3
"""Holds predictions of steps on GPUs against published speeds (figures.py).

usage: tests/predict/published.py SHARDC FOLDER MACHINES [--quick] [--held no|yes] [--table FILE.md]

Makes the models by shape, without data, in FOLDER, where those that are there stay.  --quick takes a few figures of
small exports and fails if fewer than five are predicted within 10%; without it five of all have to be.
"""
import argparse
import json
import multiprocessing
import pathlib
import statistics
import subprocess
import sys
import warnings

import figures

HERE = pathlib.Path(__file__).resolve().parent
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
    part = path.with_suffix(".part")
    models.save(models.made(models.exported(model, 2), model.layers), part)
    part.rename(path)


def make_all(rows, folder):
    folder.mkdir(parents=True, exist_ok=True)
    missing = {path: f.model for f in rows if not (path := file_of(f.model, folder)).exists()}
    if missing:
        with multiprocessing.Pool(2) as pool:
            pool.map(make, [(model, path) for path, model in missing.items()], 1)


def predicted(f, args):
    """(tokens a second and GPU, the plan's object)."""
    remat = f.remat if f.remat in ("none", "block") else HERE / f.remat
    run = subprocess.run([args.shardc, "plan", file_of(f.model, args.folder), *OPTIONS, *f.options, f"--world={f.world}",
                          f"--remat={remat}", f"--machine={args.machines / f.machine}.json"],
                         capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{' '.join(map(str, run.args))}\n{run.stderr}")
    plan = json.loads(run.stdout[run.stdout.index("{"):])
    p = plan["prediction"]
    ms = p["step_ms"]
    if f.accum > 1:
        parts = p["micro_batches_ms"]
        ms = parts["first"] + (f.accum - 2) * parts["middle"] + parts["last"]
    return f.accum * f.model.batch * f.model.sample[0] / ms * 1e3, plan


def row(f, tokens, plan):
    what = {"none": "nothing", "block": "blocks"}.get(f.remat, f.remat.removesuffix(".json").replace("_", " "))
    fits = "" if plan["prediction"]["fits"] else " (does not fit)"
    return (f"| {f.what} | {f.source} | {f.machine} | {f.world} | {what} | {f.tokens:,.0f} | {tokens:,.0f}{fits} "
            f"| {tokens / f.tokens - 1:+.1%} | {'; '.join(filter(None, ['' if f.fused else 'eager', f.note])) or '-'} |")


HEAD = ("| figure | source | machine | GPUs | recomputes | published | predicted | error | differs |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")


def summary(errors):
    within = sum(abs(e) <= WITHIN for e in errors)
    spread = f", standard deviation {statistics.pstdev(errors):.1%}" if len(errors) > 1 else ""
    return (f"{within} of {len(errors)} within {WITHIN:.0%}; mean error {statistics.mean(errors):+.1%}, mean size of the "
            f"error {statistics.mean(map(abs, errors)):.1%}{spread}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("machines", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--held", choices=("no", "yes"))
    parser.add_argument("--table", type=pathlib.Path)
    args = parser.parse_args()
    rows = [f for f in figures.FIGURES if (f.quick or not args.quick) and (not args.held or f.held == (args.held == "yes"))]
    make_all(rows, args.folder)
    text, errors = [], []
    for held in (False, True):
        part = []
        for f in (f for f in rows if f.held == held):
            if not part:
                text += [f"\n{'Held out' if held else 'Looked at'}:\n", HEAD]
                print("\n".join(text[-2:]), flush=True)
            tokens, plan = predicted(f, args)
            part.append(tokens / f.tokens - 1)
            text.append(row(f, tokens, plan))
            print(text[-1], flush=True)
        if part:
            text.append(f"\n{summary(part)}")
            print(text[-1], flush=True)
        errors += part
    text.append(f"\nAll: {summary(errors)}")
    print(text[-1])
    if args.table:
        args.table.write_text("\n".join(text).strip() + "\n")
    within = sum(abs(e) <= WITHIN for e in errors)
    if within < ENOUGH:
        print(f"FAIL {within} figures are predicted within {WITHIN:.0%}, fewer than {ENOUGH}")
    return within < ENOUGH


if __name__ == "__main__":
    sys.exit(main())
