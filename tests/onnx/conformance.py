"""The ONNX backend tests through `shardc run`: real codegen, real kernels.

Every test folder holds model.onnx and test_data_set_K/{input,output}_I.pb.  A test passes when all outputs
have the expected dtype and shape and agree to rtol 1e-3, atol 1e-7 (the ONNX runner's own bounds).  It is
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
        return {name: numpy_helper.to_array(onnx.TensorProto.FromString(data))}
    inner = info.type.optional_type.elem_type.WhichOneof("value") if kind == "optional_type" else None
    proto = onnx.OptionalProto if kind == "optional_type" else onnx.SequenceProto
    tensors = [numpy_helper.to_array(t) for t in elements(proto.FromString(data))]
    return {name if inner == "tensor_type" else f"{name}.{i}": t for i, t in enumerate(tensors)}


def mismatch(name, got, want):
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{name}: {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
    if want.dtype == bool or want.dtype.kind in "iu":
        return None if np.array_equal(got, want) else f"{name}: {np.count_nonzero(got != want)} elements differ"
    if np.allclose(got, want, rtol=RTOL, atol=ATOL, equal_nan=True):
        return None
    return f"{name}: largest difference {np.nanmax(np.abs(got.astype(np.float64) - want)):.3g}"


def run_set(shardc, folder, data, model, out):
    done = subprocess.run([*shardc, str(folder / "model.onnx"), "--inputs", str(data), "--outputs", out],
                          capture_output=True, text=True, timeout=300)
    message = (done.stderr.strip().splitlines() or [""])[0]
    if done.returncode == 1 and message:
        return "refused", message.replace(str(folder) + "/", "")
    if done.returncode:
        return "failed", f"exit status {done.returncode}: {done.stderr.strip()[:400]}"
    for i, output in enumerate(model.graph.output):
        wanted = expected(data / f"output_{i}.pb", output)
        extra = pathlib.Path(out) / f"{output.name.replace('/', '_')}.{len(wanted)}.npy"
        if output.type.WhichOneof("value") != "tensor_type" and extra.exists():
            return "failed", f"{output.name} has more than {len(wanted)} elements"
        for name, want in wanted.items():
            bad = mismatch(name, np.load(pathlib.Path(out) / f"{name}.npy"), want)
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
