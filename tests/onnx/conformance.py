"""The ONNX backend tests through `shardc run`: real codegen, real kernels.

Every test folder holds model.onnx and test_data_set_K/{input,output}_I.pb.  A test passes when all outputs
have the expected dtype and shape and agree to rtol 1e-3, atol 1e-7 (the ONNX runner's own bounds).  What
random operators make is checked as RANDOM says: dtype, shape, rate, and equal bits of a second run.  It is
refused when shardc ends with status 1 and a message; anything else is a failure.

refused.tsv lists what is refused without flags, a row for each op and message.  A refusal that it does not list is a
failure, and so
is, in a run of all tests, a row whose tests all pass: --prune takes such rows out of the table.

usage: python conformance.py SHARDC TESTS_FOLDER [--only SUBSTRING] [--every N [--from K]] [--flag FLAG].. [--jobs N] [--json FILE]
                             [--prune]
  --every: each N-th test of those, from the K-th on; --flag: of shardc run, as --flag=--target=cuda
At the end stands what is refused by op, and as the last line "passed N, failed N, refused N".
"""
import argparse
import collections
import concurrent.futures
import fnmatch
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import numpy_helper

RTOL, ATOL = 1e-3, 1e-7
# Expected values that numpy computed in f32, of numbers up to 50, where the exact ones are 0.
ROUNDED = {"test_dft_inverse": 1e-6}
TABLE = pathlib.Path(__file__).with_name("refused.tsv")
Row = collections.namedtuple("Row", "op tests message")


def op_of(model):
    """What a test is about: its only node's op, or the folder's family."""
    ops = {n.op_type for n in model.graph.node}
    return ops.pop() if len(ops) == 1 else "+".join(sorted(ops)[:4])


def read_pb(path, info):
    """The array in a file; None: it holds a sequence or an optional."""
    if info.type.WhichOneof("value") != "tensor_type":
        return None
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def elements(message):
    """The tensors of a sequence, or of what an optional holds."""
    if isinstance(message, onnx.OptionalProto):
        if message.elem_type == onnx.OptionalProto.SEQUENCE:
            return elements(message.sequence_value)
        return [message.tensor_value] if message.elem_type == onnx.OptionalProto.TENSOR else []
    return list(message.tensor_values)


def expected(path, info):
    """What an output is, by the names of the files that shardc writes: NAME, or NAME.0, NAME.1, .. of a sequence."""
    data, name, kind = path.read_bytes(), info.name.replace("/", "_"), info.type.WhichOneof("value")
    if kind == "tensor_type":
        return {name: read_pb(path, info)}
    inner = info.type.optional_type.elem_type.WhichOneof("value") if kind == "optional_type" else None
    proto = onnx.OptionalProto if kind == "optional_type" else onnx.SequenceProto
    tensors = [numpy_helper.to_array(t) for t in elements(proto.FromString(data))]
    return {name if inner == "tensor_type" else f"{name}.{i}": t for i, t in enumerate(tensors)}


def narrow(dtype):
    """Whether NumPy lacks the type: .npy files then hold its bytes as void, as ml_dtypes writes them."""
    return dtype.name in ("bfloat16", "int4", "uint4", "int2", "uint2") or dtype.name.startswith(("float8", "float4"))


def mismatch(name, got, want, atol=ATOL):
    if narrow(want.dtype) and got.dtype == np.dtype(f"V{want.dtype.itemsize}"):
        got, want = got.view(want.dtype).astype(np.float64), want.astype(np.float64)
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{name}: {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
    if want.dtype == bool or want.dtype.kind in "iu":
        return None if np.array_equal(got, want) else f"{name}: {np.count_nonzero(got != want)} elements differ"
    if np.allclose(got, want, rtol=RTOL, atol=atol, equal_nan=True):
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


def inputs_of(data, model, staged):
    """The folder of a test's inputs.  Where NumPy lacks the type of one they are staged as .npy files of ml_dtypes."""
    files = [data / f"input_{i}.pb" for i in range(len(model.graph.input))]
    arrays = [read_pb(f, v) if f.exists() else None for f, v in zip(files, model.graph.input)]
    if any(a is None for a in arrays) or not any(narrow(a.dtype) for a in arrays):
        return data
    staged.mkdir()
    for i, array in enumerate(arrays):
        np.save(staged / f"input_{i}.npy", array)
    return staged


def run_set(shardc, folder, data, model, out):
    inputs = inputs_of(data, model, pathlib.Path(out) / "in")
    command = [*shardc, str(folder / "model.onnx"), "--inputs", str(inputs), "--outputs", out]
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
        wanted = expected(data / f"output_{i}.pb", output)
        extra = pathlib.Path(out) / f"{output.name.replace('/', '_')}.{len(wanted)}.npy"
        if output.type.WhichOneof("value") != "tensor_type" and extra.exists():
            return "failed", f"{output.name} has more than {len(wanted)} elements"
        for name, want in wanted.items():
            bad = mismatch(name, np.load(pathlib.Path(out) / f"{name}.npy"), want, ROUNDED.get(folder.name, ATOL))
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


def read_table():
    lines = TABLE.read_text().splitlines()
    return [Row(*line.split("\t")) for line in lines if not line.startswith("#")]


def row_of(table, test):
    """The row of the table that lists this refusal, or None."""
    name = test["test"].split("/")[-1]
    for row in table:
        listed = any(fnmatch.fnmatchcase(name, t) for t in row.tests.split())
        if row.op == test["op"] and listed and row.message in test["reason"]:
            return row
    return None


def judge_refusals(table, tests, whole, prune):
    """Prints the refusals by op; returns how many are not listed, and how many rows are of tests that pass."""
    found = collections.Counter()
    bad = 0
    for test in tests:
        if test["status"] == "refused":
            row = row_of(table, test)
            found[row] += 1
            if not row:
                bad += 1
                print(f"FAILED {test['test']} ({test['op']}): refused, which {TABLE.name} does not list: {test['reason']}")
    for row in table:
        if found[row]:
            print(f"refused {found[row]:3} x {row.op}: {row.message}")
        elif whole:
            bad += not prune
            print(f"{'pruned' if prune else 'FAILED'} {TABLE.name}: listed, but passes: {row.op} ({row.message})")
    if whole and prune:
        head = TABLE.read_text().splitlines(keepends=True)[0]
        TABLE.write_text(head + "".join("\t".join(row) + "\n" for row in table if found[row]))
    return bad


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("tests")
    p.add_argument("--only", default="")
    p.add_argument("--every", type=int, default=1)
    p.add_argument("--from", type=int, default=0, dest="first")
    p.add_argument("--flag", action="append", default=[])
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--json")
    p.add_argument("--prune", action="store_true")
    args = p.parse_args()
    folders = sorted(m.parent for m in pathlib.Path(args.tests).rglob("model.onnx") if args.only in m.parent.name)
    command = [args.shardc, "run", *args.flag]
    rows = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for row in pool.map(lambda f: run_test(command, f), folders[args.first::args.every]):
            rows.append(row)
            if row["status"] == "failed":
                print(f"FAILED {row['test']}: {row['reason']}", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text("".join(json.dumps(r) + "\n" for r in rows))
    whole = not args.only and args.every == 1 and not args.flag
    bad = 0 if args.flag else judge_refusals(read_table(), rows, whole, args.prune)
    count = {s: sum(r["status"] == s for r in rows) for s in ("passed", "failed", "refused")}
    print(f"passed {count['passed']}, failed {count['failed']}, refused {count['refused']}")
    sys.exit(count["failed"] > 0 or bad > 0 or count["passed"] == 0)


main()
