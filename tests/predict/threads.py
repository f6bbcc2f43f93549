"""Programs under --threads-exact have the same bits for any number of threads: losses, gradient norms, saved weights,
optimizer states and buffers.

The models are those whose steps are timed (workloads.py): transformers, CNNs with all kinds of convolutions, an LSTM, an
MLP.  Each is trained some steps from the same start at one rank and at two, with 1 to 16 threads a rank, in f32 and in 16
bits, with options that add kernels.  A run that differs is reported by its first step that does, or by the files that do;
which primitive it is says tests/unit/test_threads.c, which compares them one by one.

Without the flag the library divides sums by threads: --plain counts the runs that differ then, and fails if none does,
because then nothing is tested.

usage: threads.py SHARDC WORKDIR [--models a,b] [--cases a,b] [--plain]
"""
import argparse
import json
import pathlib
import shutil
import sys
import time

from workloads import NAMES, Program, call, ids_of, words_of

THREADS, RANKS, STEPS = (1, 2, 3, 4, 5, 7, 8, 16), (1, 2), 3
CASES = {  # options of shardc, flags of the program, and which models
    "f32": ([], [], NAMES),
    "bf16": (["--param-dtype=bf16", "--reduce-dtype=bf16"], [], NAMES),
    "f16": (["--param-dtype=f16", "--loss-scale=dynamic"], [], ["gpt2", "resnet18", "lstm"]),
    "micro": (["--accum=many", "--clip=2,value"], ["--accum", 3, "--clip-norm", 0.5, "--clip-value", 0.1],
              ["gpt2", "mobilenetv2", "mlp"]),
    "remat": (["--remat=block", "--wrap=block", "--strategy=full_shard"], [], ["text", "llama"]),
    "lion": (["--optimizer=lion", "--clip=inf"], ["--clip-norm", 0.5], ["bert"]),
}


def numbers(log):
    rows = [r for r in map(json.loads, log.open()) if "loss" in r]
    return [(r["step"], r["loss"], r.get("grad_norm")) for r in rows]


def tensors(folder):
    return {p.name: p.read_bytes() for p in folder.glob("latest/*.safetensors")}


class Runs:
    def __init__(self, program, flags):
        self.program, self.flags = program, flags

    def train(self, ranks, threads, exact):
        log, kept = self.program.folder / "log.jsonl", self.program.folder / "kept"
        log.unlink(missing_ok=True)
        shutil.rmtree(kept, ignore_errors=True)
        call(self.program.folder / "train", *self.program.data, "--steps", STEPS, "--lr", 1e-3, "--seed", 3, "--ranks", ranks,
             "--threads", threads, "--log", log, "--save", kept, *self.flags, *(["--threads-exact"] if exact else []))
        return numbers(log), tensors(kept)

    def differing(self, ranks, exact):
        """(threads, what) of the runs that are not that of one thread."""
        want, found = None, []
        for threads in THREADS:
            rows, files = self.train(ranks, threads, exact)
            if len(rows) != STEPS or "model.safetensors" not in files:
                sys.exit(f"{self.program.folder}: no {STEPS} steps, or no weights")
            want = want or (rows, files)
            steps = [a[0] for a, b in zip(rows, want[0]) if a != b]
            names = [n for n in want[1] if files.get(n) != want[1][n]]
            if steps or names:
                found.append((threads, f"from step {steps[0]} on" if steps else f"in {', '.join(names)}"))
        return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc", type=pathlib.Path)
    parser.add_argument("workdir", type=pathlib.Path)
    parser.add_argument("--models", default=",".join(NAMES))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    args.shardc, args.workdir = args.shardc.resolve(), args.workdir.resolve()
    args.workdir.mkdir(parents=True, exist_ok=True)
    count = bad = 0
    for case in args.cases.split(","):
        options, flags, models = CASES[case]
        for name in (n for n in models if n in args.models.split(",")):
            began = time.monotonic()
            program = Program(args.shardc, args.workdir / f"{name}-{case}", words_of(name, True, args.workdir), options, ids_of(name))
            for ranks in RANKS:
                found = Runs(program, flags).differing(ranks, not args.plain)
                count, bad = count + 1, bad + bool(found)
                said = "; ".join(f"{t} threads differ {what}" for t, what in found) or "same bits"
                print(f"{name} {case}, {ranks} rank(s): {said} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"threads: {bad} of {count} differ")
    sys.exit(count == 0 or (bad == 0) == args.plain)


if __name__ == "__main__":
    main()
