"""Prints the expected step of GPT-2 124M (64 x 1024 tokens, bf16, AdamW) on one GPU: milliseconds by class of op.

The model is shardc's own prediction (`shardc plan --machine`, docs/prediction.md), for which the machine file gives
the ceilings.  The calls of the step are counted in the emitted step.cu; some launch more than one kernel, so launches
are at least as many.

usage: expect.py SHARDC [--machine FILE] [--json FILE]      --json: {case: milliseconds}, for report.py --expect
"""
import argparse
import json
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/gpu"))
from kit import ADAMW, BENCHES, LOSS, call, export  # noqa: E402
from gpu_models import GPT2  # noqa: E402

CASE = "gpt2-124m"
FUNCTION = re.compile(r"^static void (\w+)\(Rt \*rt.*?\)\n\{\n(.*?)^\}", re.M | re.S)
LOOP = re.compile(r"for \(int i = 0; i (<=?) (\d+); i\+\+\)[^\n]*\n\s*(?:OP )?(\w+)\(")


def calls(functions, name):
    """Calls of kernels in a function of step.cu and in those that it calls, loops unrolled."""
    body = functions[name]
    times = {}
    for less, n, called in LOOP.findall(body):
        times[called] = int(n) + (less == "<=")
    return sum(times.get(called, 1) * (counts(called) if called.startswith(("k_", "fused_", "rt_"))
                                       else calls(functions, called))
               for called in re.findall(r"^\s*(?:OP )?([a-z]\w+)\(", body, re.M))


def counts(called):
    """A call that works on the GPU's compute stream: kernels, and the runtime's sums and updates."""
    return called.startswith(("k_", "fused_")) or called in ("rt_sumsq", "rt_step_scalars", "rt_update_shard",
                                                             "rt_report_loss", "rt_zero_gaps", "rt_zero_grads")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shardc", type=pathlib.Path)
    p.add_argument("--machine", type=pathlib.Path, default=ROOT / "machines/h200-8.json")
    p.add_argument("--json", type=pathlib.Path)
    args = p.parse_args()
    bench = BENCHES[CASE]
    with tempfile.TemporaryDirectory() as work:
        model, out = pathlib.Path(work) / "model.onnx", pathlib.Path(work) / "out"
        export(GPT2(**bench["model"]), model, (bench["batch"], bench["model"]["length"]), True)
        flags = [*LOSS, *ADAMW, *bench["flags"], "--target=cuda"]
        plan = json.loads(call(args.shardc, "plan", model, *flags, f"--machine={args.machine}", "--format=json"))
        call(args.shardc, model, "-o", out, "--emit=c", *flags)
        functions = dict(FUNCTION.findall((out / "step.cu").read_text()))
    told = plan["prediction"]
    print(f"{CASE} on {told['machine']}: {told['step_ms']:.1f} ms a step, {told['tokens_per_s']:,.0f} tokens/s")
    for name, ms in told["classes_ms"].items():
        print(f"  {name:<12}{ms:8.2f} ms")
    print(f"  calls of kernels in a step: {sum(calls(functions, f) for f in ('forward', 'backward', 'update'))}")
    if args.json:
        args.json.write_text(json.dumps({CASE: told["step_ms"]}) + "\n")


if __name__ == "__main__":
    main()
