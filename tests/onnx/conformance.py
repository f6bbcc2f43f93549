"""The ONNX backend tests through `shardc run`: real codegen, real kernels.

Every test folder holds model.onnx and test_data_set_K/{input,output}_I.pb.  A test passes when all outputs
have the expected dtype and shape and agree to rtol 1e-3, atol 1e-7 (the ONNX runner's own bounds).  What
random operators make is checked as RANDOM says: dtype, shape, rate, and equal bits of a second run.  It is
refused when shardc ends with status 1 and a message; anything else is a failure.

usage: python conformance.py SHARDC TESTS_FOLDER [--only SUBSTRING] [--every N] [--flag FLAG].. [--jobs N] [--json FILE]
  --every: each N-th test of those; --flag: of shardc run, as --flag=--target=cuda
The last line is "passed N, failed N, refused N".
"""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import numpy_helper

RTOL, ATOL = 1e-3, 1e-7


def op_of(model):
    """What a test is about: its only node's op, or the folder's family."""
    ops = {n.op_type for n in model.graph.node}
    return ops.pop() if len(ops) == 1 else "+".join(sorted(ops)[:4])


def read_pb(path, value_info):
    data = path.read_bytes()
    if value_info.type.HasField("tensor_type"):
        return numpy_helper.to_array(onnx.TensorProto.FromString(data))
    return None  # sequences and optionals


def mismatch(name, got, want):
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{name}: {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
    if want.dtype == bool or want.dtype.kind in "iu":
        return None if np.array_equal(got, want) else f"{name}: {np.count_nonzero(got != want)} elements differ"
    if np.allclose(got, want, rtol=RTOL, atol=ATOL, equal_nan=True):
        return None
    return f"{name}: largest difference {np.nanmax(np.abs(got.astype(np.float64) - want)):.3g}"


def rate_of(kept, p):
    """None if the share of True in kept is that of independent draws with these probabilities, within 4 sigma."""
    p = np.broadcast_to(np.asarray(p, np.float64), kept.shape)
    error, sigma = kept.sum() - p.sum(), np.sqrt((p * (1 - p)).sum())
    return None if abs(error) <= 4 * sigma else f"{kept.sum()} of {kept.size} elements, expected {p.sum():.6g} +- {sigma:.3g}"


def check_bernoulli(inputs, outputs):
    got = outputs[0]
    kept = got == 1
    return rate_of(kept, inputs[0]) if (kept | (got == 0)).all() else "numbers besides 0 and 1"


def check_dropout(inputs, outputs):
    x, p = inputs[0], float(inputs[1]) if len(inputs) > 1 else 0.5
    kept = outputs[1] if len(outputs) > 1 else outputs[0] != 0
    if not np.allclose(outputs[0], np.where(kept, x / (1 - p), 0), rtol=RTOL, atol=ATOL):
        return "not the kept elements, scaled"
    return rate_of(kept, 1 - p)


# The operators whose results are random, by the names of their tests.
RANDOM = {"test_bernoulli": check_bernoulli, "test_training_dropout": check_dropout}


def random_check(folder):
    return next((check for name, check in RANDOM.items() if folder.name.startswith(name)), None)


def load_outputs(model, out):
    return [np.load(pathlib.Path(out) / f"{o.name.replace('/', '_')}.npy") for o in model.graph.output]


def check_random(check, command, data, model, out):
    """None, or why the results of a random model are wrong."""
    got = load_outputs(model, out)
    for i, output in enumerate(model.graph.output):
        want = read_pb(data / f"output_{i}.pb", output)
        if got[i].dtype != want.dtype or got[i].shape != want.shape:
            return mismatch(output.name, got[i], want)
    inputs = [read_pb(data / f"input_{i}.pb", v) for i, v in enumerate(model.graph.input)]
    subprocess.run(command, capture_output=True, timeout=300, check=True)
    if any(not np.array_equal(x, y) for x, y in zip(got, load_outputs(model, out))):
        return "a second run draws other numbers"
    return check(inputs, got)


def run_set(shardc, folder, data, model, out):
    command = [*shardc, str(folder / "model.onnx"), "--inputs", str(data), "--outputs", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    message = (done.stderr.strip().splitlines() or [""])[0]
    if done.returncode == 1 and message:
        return "refused", message.replace(str(folder) + "/", "")
    if done.returncode:
        return "failed", f"exit status {done.returncode}: {done.stderr.strip()[:400]}"
    if random_check(folder):
        bad = check_random(random_check(folder), command, data, model, out)
        return ("failed", bad) if bad else ("passed", "")
    for i, output in enumerate(model.graph.output):
        want = read_pb(data / f"output_{i}.pb", output)
        got = np.load(pathlib.Path(out) / f"{output.name.replace('/', '_')}.npy")
        bad = mismatch(output.name, got, want)
        if bad:
            return "failed", bad
    return "passed", ""


def run_test(shardc, folder):
    model = onnx.load(folder / "model.onnx")
    status, reason = "refused", "no data set"
    for data in sorted(folder.glob("test_data_set_*")):
        with tempfile.TemporaryDirectory() as out:
            try:
                status, reason = run_set(shardc, folder, data, model, out)
            except (subprocess.TimeoutExpired, OSError, ValueError) as e:
                status, reason = "failed", str(e)[:400]
        if status != "passed":
            break
    return dict(test=f"{folder.parent.name}/{folder.name}", op=op_of(model), status=status, reason=reason)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("tests")
    p.add_argument("--only", default="")
    p.add_argument("--every", type=int, default=1)
    p.add_argument("--flag", action="append", default=[])
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--json")
    args = p.parse_args()
    folders = sorted(m.parent for m in pathlib.Path(args.tests).rglob("model.onnx") if args.only in m.parent.name)
    command = [args.shardc, "run", *args.flag]
    rows = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for row in pool.map(lambda f: run_test(command, f), folders[::args.every]):
            rows.append(row)
            if row["status"] == "failed":
                print(f"FAILED {row['test']}: {row['reason']}", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text("".join(json.dumps(r) + "\n" for r in rows))
    count = {s: sum(r["status"] == s for r in rows) for s in ("passed", "failed", "refused")}
    print(f"passed {count['passed']}, failed {count['failed']}, refused {count['refused']}")
    sys.exit(count["failed"] > 0 or count["passed"] == 0)


main()
