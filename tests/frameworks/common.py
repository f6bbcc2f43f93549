"""What the tests of all frameworks share: a model is exported, compiled and trained by shardc and by its framework, on
the same batches; losses and weights are compared, and the weights are taken back into the framework."""
import json
import pathlib
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

STEPS, BATCH, LR = 5, 4, 0.05
LOSS_BOUND, WEIGHT_BOUND = 2e-6, 2e-5  # relative to the loss, and to a weight's norm; all compute in f32


class Checks:
    def __init__(self, framework, shardc, work):
        self.framework, self.shardc, self.work = framework, pathlib.Path(shardc).resolve(), pathlib.Path(work)
        self.work.mkdir(parents=True, exist_ok=True)
        self.passed = self.failed = 0

    def check(self, good, what):
        self.passed, self.failed = self.passed + bool(good), self.failed + (not good)
        if not good:
            print(f"FAIL {self.framework}: {what}")

    def same(self, name, losses, theirs, weights, reference):
        """losses of each step; weights: {name: array} of our program and of the framework"""
        off = max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(losses, theirs)) if losses else np.inf
        self.check(len(losses) == len(theirs) and off <= LOSS_BOUND, f"{name}: losses {losses}, {theirs}")
        worst = max((error(weights[n], r), n) for n, r in reference.items())
        self.check(worst[0] <= WEIGHT_BOUND, f"{name}: weights of {worst[1]} are off by {worst[0]:.1e}")
        print(f"{self.framework} {name}: loss {losses[-1]:.6f}, off by {off:.1e}; weights by {worst[0]:.1e}")

    def refused(self, name, call, *words):
        try:
            call()
        except Exception as e:
            self.check(type(e).__name__ == "ExportError" and all(w in str(e) for w in words), f"{name}: {e!r}")
        else:
            self.check(False, f"{name}: was not refused")

    def train(self, model, data, *, lr=LR, options=(), loss="cross_entropy"):
        """(losses, path of the ONNX file with the weights that were trained)"""
        stem = self.work / model.stem
        for key, value in data.items():
            np.save(self.work / f"{key}.npy", value)
        run(self.shardc, model, "-o", stem, f"--loss={loss}", "--optimizer=sgd", "--bind", f"batch={BATCH}", *options)
        save, log, out = f"{stem}.save", f"{stem}.jsonl", pathlib.Path(f"{stem}.trained.onnx")
        run("rm", "-rf", save, log, out)
        files = [part for key in data for part in ("--data", f"{key}={self.work}/{key}.npy")]
        run(stem, *files, "--steps", STEPS, "--lr", lr, "--weight-decay", 0, "--save", save, "--save-every", STEPS,
            "--log", log, "--threads", 2)
        run(self.shardc, "ckpt", "export", save, "--onnx", model, "-o", out)
        return [r["loss"] for r in map(json.loads, open(log)) if "loss" in r], out

    def finish(self):
        print(f"tests/frameworks/{self.framework}: {self.passed} of {self.passed + self.failed} passed")
        sys.exit(self.failed > 0)


def error(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-3)) if a.shape == b.shape else np.inf


def run(*parts):
    parts = [str(p) for p in parts]
    done = subprocess.run(parts, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(parts)}\nexit {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


def numbers(*shape, seed=0):
    return np.random.RandomState(seed).randn(*shape).astype(np.float32)


def integers(below, *shape, seed=1, dtype=np.int64):
    return np.random.RandomState(seed).randint(0, below, shape).astype(dtype)
