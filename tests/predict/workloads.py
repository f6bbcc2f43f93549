"""Models whose steps are timed beside their predictions, and programs of them."""
import dataclasses
import json
import logging
import pathlib
import re
import statistics
import subprocess
import sys
import warnings

import numpy as np
import torch
from slices import Sliced
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "parity"))
import models  # noqa: E402
from models import Case  # noqa: E402

LOSS = "--loss=cross_entropy"
RANKS = (1, 2, 4)
SLICE, SLICE_STEPS = 0.2, 8  # seconds of a slice, and steps that it has, both at least
STARTS, FIRST = 50, 5        # slices in which a program may start, and steps that it has to log in them
ENDLESS = 10**6              # steps: a program ends when it is told to
KINDS = {"f32": np.float32, "i64": np.int64, "i32": np.int32}


def mlp():
    widths = [256, 1024, 1024, 1024, 100]
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


TRANSFORMER = dict(num_hidden_layers=3, hidden_size=192, num_attention_heads=6, intermediate_size=768)
EXPORTED = {
    "gpt2": Case(models.gpt2(n_layer=4, n_embd=192, n_head=6, vocab_size=1009, n_positions=64), 4, (64,), 1009,
                 tokens=True, optimize=True),
    "bert": Case(models.bert(vocab_size=1009, max_position_embeddings=64, **TRANSFORMER), 4, (64,), 1009, tokens=True,
                 optimize=True),
    "llama": Case(models.llama(vocab_size=1009, num_key_value_heads=2, max_position_embeddings=64, **TRANSFORMER), 4, (64,),
                  1009, tokens=True, optimize=True),
    "vit": Case(models.vit(image_size=32, patch_size=4, num_labels=10, **TRANSFORMER), 4, (3, 32, 32), 10, image=True),
    "resnet18": Case(models.resnet("basic", [2, 2, 2, 2], [32, 64, 128, 256], 10), 4, (3, 64, 64), 10, batch_norm=True,
                     image=True),
    "mobilenetv2": Case(models.mobilenet(10, 64), 4, (3, 64, 64), 10, batch_norm=True, image=True),
    "lstm": Case(lambda: models.LanguageModel(nn.LSTM(128, 128, 2, batch_first=True), 1009, 128), 8, (32,), 1009,
                 tokens=True),
    "mlp": Case(mlp, 64, (256,), 100),
}
EXAMPLES = {"digits": ("examples/digits/digits.onnx", 10, 64), "text": ("examples/text/text.onnx", 64, 8)}
NAMES = [*EXAMPLES, *EXPORTED]
WITHOUT_BLOCKS = ("digits", "lstm", "mlp")


def call(*words):
    run = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{' '.join(map(str, words))}\nexit {run.returncode}: {run.stdout}{run.stderr}")
    return run.stdout


def batch_of(name, half):
    whole = EXAMPLES[name][2] if name in EXAMPLES else EXPORTED[name].batch
    return whole // 2 if half else whole


def words_of(name, half, folder):
    """The arguments that name a model at its batch, or half of that; exports it where it has to be."""
    batch = batch_of(name, half)
    if name in EXAMPLES:
        return [ROOT / EXAMPLES[name][0], LOSS, f"--bind=batch={batch}"]
    path = folder / f"{name}-{batch}.onnx"
    if not path.exists():
        case = dataclasses.replace(EXPORTED[name], batch=batch)
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        torch.manual_seed(0)
        models.export(case, case.build().train(), path, "dynamo")
    return [path, LOSS]


def middle(values):
    """The mean of the middle half, as calibration takes it of the steps of a run and of runs (calibrate/private.h)."""
    outside = len(values) // 4
    return statistics.mean(sorted(values)[outside:len(values) - outside])


class Program:
    """A model and flags, compiled, with random samples for the most ranks."""

    def __init__(self, shardc, folder, words, flags, ids, world=1):
        self.shardc, self.folder, self.words, self.ids = shardc, folder, [*words, *flags], ids
        folder.mkdir(parents=True, exist_ok=True)
        call(shardc, *self.words, f"--world={world}", "-o", folder / "train")
        self.data = self.samples()

    def samples(self):
        module = json.loads(call(self.shardc, *self.words, "--emit=json"))
        draw, words = np.random.default_rng(1), []
        for s in module["symbols"]:
            if s["kind"] != "input":
                continue
            dtype, dims = s["type"].rstrip("]").split("[")
            shape = [int(n) for n in dims.split(",")]
            shape[0] *= max(RANKS)
            of_ids = dtype.startswith("i")
            x = draw.integers(0, self.ids, shape) if of_ids else draw.standard_normal(shape)
            path = self.folder / f"{len(words)}.npy"
            np.save(path, x.astype(KINDS[dtype]))
            words += ["--data", f"{s['name']}={path}"]
        return words

    def log(self, ranks):
        return self.folder / f"log{ranks}.jsonl"

    def command(self, ranks, cores, count):
        """The command line that trains so many steps, all cores shared out, into a new log."""
        self.log(ranks).unlink(missing_ok=True)
        return [self.folder / "train", *self.data, "--steps", count, "--lr", "1e-6", "--ranks", ranks, "--threads",
                max(cores // ranks, 1), "--log", self.log(ranks)]

    def logged(self, ranks):
        """How long the log is now."""
        return self.log(ranks).stat().st_size if self.log(ranks).exists() else 0

    def steps(self, ranks, begin=0, end=None):
        """The ms of the steps in the log, or in a part of it."""
        text = self.log(ranks).read_bytes()[begin:end] if self.logged(ranks) else b""
        lines = text[:text.rfind(b"\n") + 1].splitlines()  # the last one may be half written
        return [row["step_ms"] for row in map(json.loads, lines) if "step_ms" in row and "step" in row]

    def plan(self, machine, ranks, *more):
        return plan(self.shardc, [*self.words, *more], machine, ranks)


class Training:
    """A program that trains in slices (slices.py), and ends with the stack at the latest."""

    def __init__(self, program, ranks, cores, stack):
        self.program, self.ranks = program, ranks
        self.sliced = stack.enter_context(Sliced(program.command(ranks, cores, ENDLESS)))
        for _ in range(STARTS):
            self.sliced.slice(SLICE)
            steps = program.steps(ranks)
            if len(steps) >= FIRST:
                break
        else:
            sys.exit(f"it does not start: {self.sliced.complaint()}")
        self.seconds = max(SLICE, SLICE_STEPS * statistics.median(steps) / 1000)
        self.ends = [program.logged(ranks)]

    def slice(self):
        self.sliced.slice(self.seconds)
        self.ends.append(self.program.logged(self.ranks))
        return self.seconds

    def had(self):
        """The seconds of its slices."""
        return self.seconds * (len(self.ends) - 1)

    def end(self):
        """Ends it; returns the ms of a step in each slice."""
        if not self.sliced.runs():
            sys.exit(self.sliced.complaint())
        self.sliced.end()
        # The first step of a slice was stopped in its middle; a slice without another one counts as one step.
        slices = [self.program.steps(self.ranks, a, b)[1:] for a, b in zip(self.ends, self.ends[1:])]
        return [middle(s) if s else 1000 * self.seconds for s in slices]


def plan(shardc, words, machine, ranks):
    text = call(shardc, "plan", *words, f"--world={ranks}", f"--machine={machine}", "--format=json")
    return json.loads(text[text.index("{"):])


def ids_of(name):
    return EXAMPLES[name][1] if name in EXAMPLES else EXPORTED[name].classes


def has_bf16_units():
    """Whether this processor multiplies in bf16."""
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(pathlib.Path("/proc/cpuinfo").read_text().split()))


def cores_of(machine):
    return int(json.loads(machine.read_text())["ranks_per_host"][0])


# Programs of a model that have ops of their own: name, whether at half the batch, flags.
VARIANTS = [("", False, []), ("half", True, []), ("again", False, ["--remat=block"]), ("bf16", False, ["--param-dtype=bf16"])]


def variants_of(name):
    """Those of a model that has blocks or not, on this processor."""
    return [v for v in VARIANTS if (v[0] != "again" or name not in WITHOUT_BLOCKS) and (v[0] != "bf16" or has_bf16_units())]


def calibrate(shardc, folder, machine, names):
    """Measures this machine, unless the file is there, and adds the ops of the models in all variants."""
    if not machine.exists():
        print(call(shardc, "calibrate", "-o", machine), end="", flush=True)
    for name in names:
        for variant, half, flags in variants_of(name):
            said = call(shardc, "calibrate", "-o", machine, *words_of(name, half, folder), *flags)
            print(f"{name} {variant}: {re.sub('^.*?: ', '', said)}", end="", flush=True)
