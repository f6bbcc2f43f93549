"""Who trains in the step benchmark: our binary, and a process of PyTorch for each configuration of it.

Both have turns of some steps.  Errors of ours end the benchmark; a PeerFailed says why a peer has no time.
"""
import dataclasses
import hashlib
import json
import logging
import os
import pathlib
import selectors
import subprocess
import sys
import warnings

import numpy as np
import torch

import cases  # adds tests/parity to the path
import models

warnings.simplefilter("ignore")  # of exporters
logging.disable(logging.WARNING)
HERE = pathlib.Path(__file__).resolve().parent
HANDICAPS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "OMP_PROC_BIND",
             "OMP_PLACES", "OMP_DYNAMIC", "OMP_SCHEDULE", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "GOMP_CPU_AFFINITY",
             "KMP_AFFINITY", "KMP_BLOCKTIME", "MKL_NUM_THREADS", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA",
             "DNNL_MAX_CPU_ISA", "ONEDNN_VERBOSE", "DNNL_VERBOSE", "ATEN_CPU_CAPABILITY", "TORCH_COMPILE_DISABLE",
             "TORCHDYNAMO_DISABLE", "TORCH_LOGS", "MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_",
             "MALLOC_TRIM_THRESHOLD_", "MALLOC_PERTURB_", "MALLOC_CHECK_", "GLIBC_TUNABLES")
# By default glibc returns big blocks to the system after every step, which costs a PyTorch step up to a fifth
KEEP_MEMORY = {"OMP_WAIT_POLICY": "passive", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "1000000000000"}
WARM = 2  # steps of a run of ours that are not timed, as those of peers.py
BATCHES = 4  # in the data, as in that of peers.py
MIB = 2.0**20


def clean_environment():
    return {k: v for k, v in os.environ.items() if k not in HANDICAPS}


def call(parts, environment=None):
    parts = [str(p) for p in parts]
    run = subprocess.run(parts, env={**clean_environment(), **(environment or {})}, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{' '.join(parts)}\nexit {run.returncode}: {run.stdout}{run.stderr}")
    return run.stdout


@dataclasses.dataclass
class Turn:
    ms: list        # of each timed step
    losses: list    # of all steps since the weights were those of the file
    peak_mib: float = 0  # 0: not measured


# ---- ours ----

def digest(files, words):
    h = hashlib.sha256(repr(words).encode())
    for f in files:
        h.update(pathlib.Path(f).read_bytes())
    return h.hexdigest()


class Ours:
    """Exports and compiles a row in a folder of its own, unless what is there was made of the same things."""

    name = "shardc"

    def __init__(self, args, row):
        self.args, self.row = args, row
        self.work = pathlib.Path(args.work) / (row.name + (".quick" if args.quick else ""))
        self.words = [self.work / "model.onnx", f"--loss=cross_entropy{':axis=1' if row.case.dense else ''}",
                      "--optimizer=adamw",
                      *(["--param-dtype=bf16"] if row.half else [])]
        self.work.mkdir(parents=True, exist_ok=True)
        self.prepare()

    def prepare(self):
        shardc = pathlib.Path(self.args.shardc)
        made_of = [HERE / "cases.py", models.__file__, shardc, *sorted(shardc.parent.glob("lib/native/*.a"))]
        stamp, wanted = self.work / "made-of", digest(made_of, [self.words, torch.__version__])
        if stamp.exists() and stamp.read_text() == wanted:
            return
        stamp.unlink(missing_ok=True)
        self.export()
        call([self.args.shardc, *self.words, "-o", self.work / "train"])
        stamp.write_text(wanted)

    def export(self):
        case = self.row.case
        torch.manual_seed(0)
        models.export(case, case.build().train(), self.work / "model.onnx", "dynamo")
        x, labels = models.make_data(case, case.batch * BATCHES, 0)
        np.save(self.work / "x.npy", x.numpy())
        np.save(self.work / "labels.npy", labels.numpy())

    def command(self, steps, *options):
        return [self.work / "train", "--data", f"x={self.work}/x.npy", "--data", f"labels={self.work}/labels.npy",
                "--steps", steps, "--lr", 1e-4, "--threads", self.args.threads, "--log", self.work / "log.jsonl",
                *options]

    def logged(self):
        return [r for r in map(json.loads, open(self.work / "log.jsonl")) if "step_ms" in r]

    def turn(self, steps):
        (self.work / "log.jsonl").unlink(missing_ok=True)
        if self.args.clock == "processor":
            ms = self.processor_times(steps)
        else:
            call(self.command(steps + WARM))
            ms = [r["step_ms"] for r in self.logged()][WARM:]
        return Turn(ms, [r["loss"] for r in self.logged()])

    def processor_times(self, steps):
        """What all threads have used is read whenever a step is reported."""
        parts = [str(p) for p in self.command(steps + WARM + 1)]
        with subprocess.Popen(parts, text=True, env=clean_environment(), stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE) as program:
            at = [used_ms(program.pid) for line in program.stderr if line.startswith("step ")]
        if program.returncode or len(at) != steps + WARM + 1:
            sys.exit(f"{parts[0]}: status {program.returncode}, {len(at)} of {steps + WARM + 1} steps reported: "
                     "shorter steps than half a second are not all reported, and cannot be timed by --clock processor")
        return [b - a for a, b in zip(at[1:], at[2:-1])]  # at the last one the program may be ending

    def traced(self, steps):
        """A run that writes trace.json of its last steps; returns the largest resident set in MiB, all of it."""
        (self.work / "log.jsonl").unlink(missing_ok=True)
        parts = self.command(steps + WARM, "--trace", self.work / "trace.json",
                             f"--trace-steps={WARM + 1}:{steps + WARM}")
        call([sys.executable, "-S", HERE / "resident.py", self.work / "resident", *parts])
        return int((self.work / "resident").read_text()) * 1024 / MIB

    def plan(self, machine):
        """Writes predicted.json, a trace of the planned step on the machine; returns shardc plan's JSON."""
        said = call([self.args.shardc, "plan", *self.words, "--world=1", f"--threads={self.args.threads}",
                     f"--machine={machine}", f"--trace={self.work}/predicted.json", "--format=json"])
        return json.loads(said[said.index("{"):])


def used_ms(pid):
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(t.read_text().split()[0]) for t in tasks) * 1e-6


# ---- PyTorch ----

class PeerFailed(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Variant:
    mode: str
    channels_last: bool
    keep_memory: bool

    def __str__(self):
        return ", ".join(filter(None, [self.mode, "channels-last" if self.channels_last else "",
                                       "memory kept" if self.keep_memory else ""]))


MODES = ("eager", "compile", "max-autotune")


def variants(case, modes):
    """What is tried of PyTorch: each mode with memory kept, but where memory is compared with glibc as it is, too."""
    return [Variant(mode, layout, keep) for layout in ([False, True] if case.image else [False]) for mode in modes
            for keep in ([True] if mode == "max-autotune" else [False, True])]


class Peer:
    """A process is started when it has a turn and there is none; `stop` gives its memory back until then."""

    def __init__(self, args, row, variant):
        self.args, self.row, self.variant, self.process = args, row, variant, None
        self.name = f"PyTorch {variant}"
        self.log = pathlib.Path(args.work) / "peers.log"

    def start(self):
        layout = "channels_last" if self.variant.channels_last else "plain"
        parts = [sys.executable, str(HERE / "peers.py"), self.row.name, self.variant.mode, layout, "--threads",
                 str(self.args.threads), "--clock", self.args.clock, *(["--quick"] if self.args.quick else [])]
        extra = KEEP_MEMORY if self.variant.keep_memory else {}
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(parts, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                            env={**clean_environment(), **extra})

    def turn(self, steps):
        if not self.process:
            self.start()
        try:
            self.process.stdin.write(f"{steps}\n".encode())
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended; why, is said below
        with selectors.DefaultSelector() as ready:
            ready.register(self.process.stdout, selectors.EVENT_READ)
            if not ready.select(self.args.patience):
                self.process.kill()
                self.stop()
                raise PeerFailed(f"no answer within {self.args.patience} s")
        line = self.process.stdout.readline()
        if not line:
            raise PeerFailed(self.last_words())
        return Turn(**json.loads(line))

    def last_words(self):
        status = self.stop()
        said = [s.strip() for s in self.log.read_text(errors="replace").splitlines() if s.strip()]
        errors = [s for s in said if "Error" in s]
        return f"exit {status}: {(errors or said or ['nothing was printed'])[-1][:200]}"

    def stop(self):
        """Ends the process; returns its exit status."""
        if not self.process:
            return 0
        self.process.stdin.close()
        status = self.process.wait()
        self.process.stdout.close()
        self.process = None
        return status
