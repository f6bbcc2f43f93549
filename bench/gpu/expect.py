"""Prints what a step of a model is expected to take on one GPU: a table of Markdown, milliseconds by class of op.

Three columns say how it was found.  "at the ceilings": each op takes its products at 790 TFLOP/s or its bytes at 4.3
TB/s, whichever is longer, and nothing for its start: no program is faster.  "both added": its products and its bytes take
turns at these rates, as of kernels that hide nothing of either.  Products of 8 bits are twice as fast.  "by the plan":
shardc's own prediction (`shardc plan --machine`, docs/prediction.md), which knows waves of tiles, exponentials and
launches, and whose rates are published for kernels like ours.  Operations and bytes are those of the emitted step; a
value that a cache holds counts as if it came from memory.  The kit has the same figures with it, and report.py sets them
beside measured ones.

usage: expect.py SHARDC [--was SHARDC] [--case NAME] [--also NAME] [--machine FILE]
--was: another build, whose step is printed beside it.  --also: as the kit trains the case beside itself, such as fp8.
"""
import argparse
import contextlib
import io
import logging
import pathlib
import sys
import tempfile
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/gpu"), str(ROOT / "bench")]
from kit import ADAMW, BENCHES, LOSS, MACHINE, export, export_absent, gpu_of, planned, with_others  # noqa: E402
from gpu_models import build, sample_of  # noqa: E402

ARCH = "sm_90a"  # of an H200, whose machine file is read
NOTHING = (0,) * 6  # the row of a class without ops


def expected(shardc, model, flags, machine, work):
    """{class: [ops, operations, bytes, ms at the ceilings, both added, by the plan]} of what computes, the longest first."""
    rows = {}
    for op in planned(shardc, model, flags, machine, work)[1]:
        row = rows.setdefault(op["class"], [0] * len(NOTHING))
        for i, more in enumerate((1, *(op[key] for key in ("flops", "moved", "least_ms", "added_ms", "expected_ms")))):
            row[i] += more
    rows = dict(sorted(rows.items(), key=lambda row: -row[1][-1]))
    return {**rows, "step": [sum(column) for column in zip(*rows.values())]}


def show(case, rows, was):
    table = [[case, "ops", "TFLOP", "GB", "at the ceilings, ms", "both added, ms", "by the plan, ms"]
             + ["was"] * 3 * bool(was)]
    table.append(["---"] * len(table[0]))
    for name in dict.fromkeys([*rows, *was]):
        calls, flops, moved, *times = rows.get(name, NOTHING)
        table.append([name, str(calls), f"{flops / 1e12:.2f}", f"{moved / 1e9:.1f}",
                      *(f"{ms:.2f}" for ms in [*times, *(was.get(name, NOTHING)[3:] if was else [])])])
    print(*("| " + " | ".join(row) + " |" for row in table), sep="\n")


def make_model(case, path):
    """Exports the model; weights of those of tokens exist nowhere."""
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "length" in case["model"]:
            export_absent(case, path)
        else:
            export(build(case), path, (case["batch"], *sample_of(case)), False)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shardc", type=pathlib.Path)
    p.add_argument("--was", type=pathlib.Path)
    p.add_argument("--case", choices=BENCHES, default="gpt2-124m")
    p.add_argument("--also")
    p.add_argument("--machine", type=pathlib.Path, default=MACHINE)
    args = p.parse_args()
    for shardc in filter(None, (args.shardc, args.was)):
        if not shardc.is_file():
            p.error(f"there is no {shardc}")
    case = BENCHES[args.case]
    also = case.get("also", {})
    if args.also and args.also not in also:
        p.error(f"--also {args.also}: {args.case} has {', '.join(also) or 'none'}")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        make_model(case, work / "model.onnx")
        flags = [*gpu_of(ARCH), *with_others(LOSS + ADAMW + case["flags"], also.get(args.also, []))]
        rows, was = (expected(s, work / "model.onnx", flags, args.machine, work) if s else {}
                     for s in (args.shardc, args.was))
    name = " ".join(filter(None, [args.case, args.also]))
    show(name, rows, was)
    items, what = case["batch"] * case["model"].get("length", 1), "tokens" if "length" in case["model"] else "samples"
    least, added, plan = (items / ms * 1e3 for ms in rows["step"][3:])
    print(f"\n{name}: {least:,.0f} {what} a second at the ceilings, {added:,.0f} with both added, {plan:,.0f} by the plan")


if __name__ == "__main__":
    main()
