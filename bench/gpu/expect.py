"""Prints what a step of a model is expected to take on one GPU: milliseconds by class of op.

Two columns say how it was found.  "at the ceilings": each op takes its products at 790 TFLOP/s or its bytes at 4.3 TB/s,
whichever is longer, and nothing for its start: no program is faster.  "by the plan": shardc's own prediction
(`shardc plan --machine`, docs/prediction.md), which knows waves of tiles, exponentials and launches, and whose rates
are published for kernels like ours.  Operations and bytes are those of the emitted step; a value that a cache holds
counts as if it came from memory.

usage: expect.py SHARDC [--was SHARDC] [--case NAME] [--machine FILE] [--json FILE]
--was: another build, whose step is printed beside it.  --json: {case: milliseconds by the plan}, for report.py --expect.
"""
import argparse
import contextlib
import io
import json
import logging
import pathlib
import sys
import tempfile
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/gpu"), str(ROOT / "bench")]
from classes import KINDS, class_of  # noqa: E402
from kit import ADAMW, BENCHES, LOSS, call, export, export_absent  # noqa: E402
from gpu_models import build, sample_of  # noqa: E402

PRODUCTS, BYTES = 790e12, 4.3e12  # a second: the best square product and copy that are expected of an H200


def expected(shardc, model, flags, machine, work):
    """{class: [calls, operations, bytes, ms at the ceilings, ms by the plan]} of the ops that compute."""
    trace = work / "trace.json"
    trace.unlink(missing_ok=True)
    call(shardc, "plan", model, *flags, f"--machine={machine}", f"--trace={trace}")
    rows = {name: [0, 0, 0, 0, 0] for name in KINDS}
    for e in json.loads(trace.read_text())["traceEvents"]:
        if "kernel" not in e.get("args", {}):
            continue
        flops, moved = e["args"]["flops"], e["args"]["moved"]
        row = rows[class_of(e["cat"], e["args"].get("class"))]
        for i, more in enumerate((1, flops, moved, 1e3 * max(flops / PRODUCTS, moved / BYTES), e["dur"] / 1e3)):
            row[i] += more
    rows = {name: row for name, row in rows.items() if row[0]}
    return {**rows, "step": [sum(column) for column in zip(*rows.values())]}


def show(case, rows, was):
    head = ["class", "ops", "TFLOP", "GB", "at the ceilings", "by the plan"] + ["was", "was"] * bool(was)
    table = [head]
    for name in dict.fromkeys([*rows, *was]):
        calls, flops, moved, least, plan = rows.get(name, [0] * 5)
        table.append([name, str(calls), f"{flops / 1e12:.2f}", f"{moved / 1e9:.1f}", f"{least:.2f}", f"{plan:.2f}",
                      *([f"{v:.2f}" for v in was.get(name, [0] * 5)[3:]] if was else [])])
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    print(f"{case}: milliseconds of a step on one GPU")
    for row in table:
        print("  " + "  ".join(f"{t:<{w}}" if i == 0 else f"{t:>{w}}" for i, (t, w) in enumerate(zip(row, widths))))


def make_model(case, path):
    """Exports the model; weights of more than a GB exist nowhere, as in the kit."""
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if case["kind"] == "llama":
            export_absent(case, path)
        else:
            export(build(case), path, (case["batch"], *sample_of(case)), case["kind"] != "resnet")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shardc", type=pathlib.Path)
    p.add_argument("--was", type=pathlib.Path)
    p.add_argument("--case", choices=BENCHES, default="gpt2-124m")
    p.add_argument("--machine", type=pathlib.Path, default=ROOT / "machines/h200-8.json")
    p.add_argument("--json", type=pathlib.Path)
    args = p.parse_args()
    case = BENCHES[args.case]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        make_model(case, work / "model.onnx")
        flags = [*LOSS, *ADAMW, *case["flags"], "--target=cuda"]
        rows, was = (expected(s, work / "model.onnx", flags, args.machine, work) if s else {}
                     for s in (args.shardc, args.was))
    show(args.case, rows, was)
    tokens = case["batch"] * case["model"].get("length", 1)
    least, plan = rows["step"][3:]
    print(f"{'tokens' if 'length' in case['model'] else 'samples'} a second: {tokens / least * 1e3:,.0f} at the ceilings, "
          f"{tokens / plan * 1e3:,.0f} by the plan")
    if args.json:
        args.json.write_text(json.dumps({args.case: plan}) + "\n")


if __name__ == "__main__":
    main()
