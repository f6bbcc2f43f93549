"""Everything that one rank does, as a CUDA program under emulation, against the CPU's program.

  numbers   losses, norms, evaluations, weights and states of eight steps: a GPT and a network with BatchNorm under
            every option that changes what a step computes; f32 within 1e-5 (weights and states 1e-4, relative to a
            tensor's norm), losses of 16 bits within 2e-2, their norms and weights within 0.1
  bits      graphs on and off, a run stopped and resumed, saves and evaluations on the way: the same log and checkpoint
  items     a program of each part that only GPUs have: it has the part, gives the CPU program's numbers, and the same
            bits in ORDERS orders of its streams
  kinds     checkpoints of every kind at 1 and 2 ranks, beside steps: the CPU program's, which goes on from ours, and we
            from its
  ends      bad data, numbers that are not finite, signals: the CPU program's words and exit code, and what it leaves

usage: train.py SHARDC WORKDIR [--only NAME,..]      SHARDC: in a folder where `make cudasim` was built
"""
import argparse
import itertools
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "ranks"))
import matrix  # noqa: E402
import trips  # noqa: E402
from matrix import T, VOCAB  # noqa: E402

B, STEPS, SAMPLES = 2, 8, 64
LONG = 128  # tokens of "padded": whole tiles
ROWS = 512  # of each sample of "rows": sums of 1024 of them have two parts (tests/unit/test_cuda_work.c)
ORDERS = 103  # of each program of ITEMS: three with a name, the others by chance
WIDE = 1201  # classes of "wide", whose logits have rows that are not aligned in any type
# True gradients of zero, in part or as a whole, and what follows from them.
ZERO = re.compile(r"qkv\.bias$|conv1\.bias$|bn1\.running_mean$")
HALF = {"bound": 2e-2, "norms": 1e-1, "weights": 1e-1}  # of 16 bits; losses, norms, weights and their states
# Adam moves what has next to no gradient by its whole rate, to the side that rounding to 16 bits gives: this eps holds it.
EPS = "--eps=1e-3"
# Of a log line: not the step's numbers.
DROPPED = {"step_ms", "samples_per_s", "tokens_per_s", "save_ms", "comm_ms", "exposed_comm_ms", "peak_bytes"}


class Failed(Exception):
    pass


def ask(condition, *what):
    if not condition:
        raise Failed(": ".join(map(str, what)))


def call(args, code=0, env=None, timeout=600):
    """Its output, standard error behind it."""
    p = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=timeout,
                       env={**os.environ, **(env or {})})
    ask(p.returncode == code, f"exit code {p.returncode}, wanted {code}", " ".join(map(str, args)),
        p.stdout[-300:] + p.stderr[-2000:])
    return p.stdout + p.stderr


def lines(path, key="loss"):
    return [r for r in map(json.loads, open(path)) if key in r]


def numbers(path):
    """What a log says of steps, but for times."""
    return [{k: v for k, v in r.items() if k not in DROPPED} for r in map(json.loads, open(path))]


def soft(check):
    """A check that fails is said and counted; the others go on."""
    def checked(s, name, *args, **kind):
        s.checks += 1
        try:
            return check(s, name, *args, **kind)
        except (Failed, matrix.Failed, subprocess.TimeoutExpired) as e:
            s.failed += 1
            print(f"FAIL {name}: {e}", flush=True)
            return None
    return checked


class Padded(torch.nn.Module):
    """A layer as BERT's: all tokens see those that are no padding (0); falls: distant ones less, as ALiBi's do."""

    def __init__(self, d=16, heads=2, falls=0):
        super().__init__()
        self.heads, self.falls = heads, falls
        self.wte, self.wpe = torch.nn.Embedding(VOCAB, d), torch.nn.Embedding(LONG, d)
        self.qkv, self.proj = torch.nn.Linear(d, 3 * d), torch.nn.Linear(d, d)
        self.head = torch.nn.Linear(d, VOCAB, bias=False)

    def forward(self, x):
        y = self.wte(x) + self.wpe.weight
        q, k, v = (p.unflatten(2, (self.heads, -1)).transpose(1, 2) for p in self.qkv(y).chunk(3, 2))
        mask, at = (x != 0)[:, None, None], torch.arange(LONG)
        if self.falls:
            mask = torch.where(mask, -self.falls * (at[:, None] - at).abs(), torch.tensor(-torch.inf))
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.head(y + self.proj(o.transpose(1, 2).flatten(2)))


class Grouped(torch.nn.Module):
    """Causal attention whose heads share those of keys and values, two and two."""

    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.q, self.kv = heads, torch.nn.Linear(d, d, bias=False), torch.nn.Linear(d, d, bias=False)
        self.proj = torch.nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q = self.q(x).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = (p.view(b, t, self.heads // 2, -1).transpose(1, 2)[:, :, None].expand(b, -1, 2, t, -1).reshape(q.shape)
                for p in self.kv(x).split(d // 2, 2))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


def grouped():
    model = matrix.Gpt(d=32, layers=1, drop=0, gelu="tanh")
    model.h[0].attn = Grouped(32, 4)
    return model


class Rows(torch.nn.Module):
    """A norm of many rows, and numbers that all of them share, whose gradients are sums over the rows."""

    def __init__(self, d=8):
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(8, d), torch.nn.LayerNorm(d), torch.nn.Linear(d, 7)
        self.scale, self.shift = (torch.nn.Parameter(torch.full((d,), v)) for v in (1.5, 0.25))

    def forward(self, x):
        return self.down(torch.tanh(self.norm(self.up(x)) * self.scale + self.shift))


class Setup:
    def __init__(self, shardc, root):
        self.shardc, self.root, self.n = shardc, root, 0
        self.checks = self.failed = 0
        self.cuda = ["--target=cuda", "--arch=cudasim", f"--nvcc={shardc.parent}/cudasim/nvcc"]
        self.built = {}
        torch.manual_seed(5)
        g = np.random.default_rng(17)
        tokens = torch.zeros(B, T, dtype=torch.int64)
        self.export("gpt", matrix.Gpt(d=16, layers=2, drop=0), tokens)
        self.export("drop", matrix.Gpt(d=16, layers=1, drop=0.2), tokens)
        self.export("wide", torch.nn.Sequential(torch.nn.Embedding(VOCAB, 16), torch.nn.Linear(16, WIDE, bias=False)), tokens)
        self.export("heads", matrix.Gpt(d=32, layers=2, drop=0, gelu="tanh"), tokens)
        self.export("cnn", matrix.Cnn(c=4, layers=1), torch.zeros(B, 3, 8, 8))
        self.export("padded", Padded(), torch.ones(B, LONG, dtype=torch.int64))
        self.export("distant", Padded(falls=0.1), torch.ones(B, LONG, dtype=torch.int64))
        self.export("grouped", grouped(), tokens)
        self.export("rows", Rows(), torch.zeros(B, ROWS, 8))
        x, labels = g.integers(0, VOCAB, (SAMPLES, T)), g.integers(0, VOCAB, (SAMPLES, T))
        labels[np.arange(T)[None] >= g.integers(1, T + 1, SAMPLES)[:, None]] = -100
        images = g.standard_normal((SAMPLES, 3, 8, 8)).astype(np.float32), g.integers(0, 7, SAMPLES)
        long, targets = g.integers(1, VOCAB, (2, SAMPLES, LONG))
        padding = np.arange(LONG)[None] >= g.integers(LONG // 3, LONG + 1, SAMPLES)[:, None]
        long[padding], targets[padding] = 0, -100
        rows = g.standard_normal((SAMPLES, ROWS, 8)).astype(np.float32), g.integers(0, 7, (SAMPLES, ROWS))
        self.columns = {"gpt": (x, labels), "heads": (x, labels), "drop": (x, labels), "wide": (x, labels), "cnn": images,
                        "padded": (long, targets), "distant": (long, targets), "grouped": (x, labels), "rows": rows}
        self.data = {m: self.files(m, *c) for m, c in self.columns.items()}
        self.held = {m: [f"--eval-data={f}" for f in self.files(f"{m}.held", *(a[:5] for a in c))]
                     for m, c in self.columns.items()}

    def export(self, name, module, x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(module.train(), (x,), str(self.root / f"{name}.onnx"), dynamo=False, opset_version=17,
                              training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, input_names=["x"],
                              output_names=["logits"], dynamic_axes={k: {0: "batch"} for k in ["x", "logits"]})

    def files(self, name, x, labels):
        np.save(self.root / f"{name}.x.npy", x)
        np.save(self.root / f"{name}.labels.npy", labels)
        return [f"x={self.root}/{name}.x.npy", f"labels={self.root}/{name}.labels.npy"]

    def build(self, cuda, model, *options):
        key = (cuda, model, *options)
        if key not in self.built:
            out = self.built[key] = self.root / f"p{len(self.built)}{'cuda' if cuda else 'cpu'}"
            shardc, *words = self.compiler(model, options)
            arch = next((o.partition("=")[2] for o in options if o.startswith("--arch=")), None)
            target = [o for o in self.cuda if not (arch and o.startswith("--arch="))] if cuda else []
            call([self.compiler_for(arch) if arch else shardc, *words, "-O0", "-o", out, *target])
        return self.built[key]

    def compiler_for(self, arch):
        """A compiler whose runtime for these GPUs is the emulation's."""
        tree = self.root / "tree"
        lib = tree / "lib" / arch
        if not lib.exists():
            lib.mkdir(parents=True)
            shutil.copy(self.shardc, tree)
            for file in (pathlib.Path(self.shardc).parent / "lib/cudasim").iterdir():
                (lib / file.name).symlink_to(file)
            if not (tree / "include").exists():
                (tree / "include").symlink_to(pathlib.Path(__file__).resolve().parents[2])
        return tree / "shardc"

    def compiler(self, model, options):
        given = {o.partition("=")[0] for o in options}
        usual = [o for o in ("--loss=cross_entropy", f"--bind=batch={B}") if o.partition("=")[0] not in given]
        return [self.shardc, self.root / f"{model}.onnx", *usual, *options]

    def ir(self, model, *options):
        """Of the program for GPUs."""
        return call([*self.compiler(model, options), "--target=cuda", "--emit=ir"])

    def flags(self, model, steps=STEPS, data=None):
        data = data or self.data[model]
        return [*(f"--data={c}" for c in data), "--threads=1", f"--steps={steps}"]

    def run(self, binary, model, *flags, code=0, env=None, data=None, steps=STEPS):
        """The log, the folder of checkpoints, what was said."""
        self.n += 1
        out = self.root / f"run{self.n}"
        given = {f.partition("=")[0] for f in flags}
        ours = [*self.flags(model, steps, data), f"--log={out}.jsonl", f"--save={out}"]
        ours = [f for f in ours if f.startswith("--data=") or f.partition("=")[0] not in given]
        said = call([binary, *ours, *flags], code, env)
        return f"{out}.jsonl", out, said

    @soft
    def both(self, name, model, options=(), flags=(), bound=1e-5, norms=1e-5, weights=1e-4, cuda_options=(),
             cuda_flags=(), **kind):
        """The two programs' numbers are near each other."""
        want = self.run(self.build(False, model, *options), model, *flags, **kind)
        got = self.run(self.build(True, model, *options, *cuda_options), model, *flags, *cuda_flags, **kind)
        a, b = lines(want[0]), lines(got[0])
        ask(len(a) == len(b) > 0, name, f"{len(b)} lines, wanted {len(a)}")
        for i, (x, y) in enumerate(zip(a, b)):
            ask(set(x) == set(y), name, f"line {i + 1}: one log alone has {set(x) ^ set(y)}")
            for key in set(x) & {"loss", "grad_norm", "eval_loss"}:
                most = norms if key == "grad_norm" else bound
                ask(near(x[key], y[key], most), name, f"line {i + 1}: {key} {y[key]}, wanted {x[key]}")
            for key in set(x) & {"step", "lr", "epoch", "loss_scale", "accuracy"}:
                ask(x[key] == y[key], name, f"line {i + 1}: {key} {y[key]}, wanted {x[key]}")
        self.same_weights(name, want[1], got[1], weights)
        return want, got

    def same_weights(self, name, want, got, bound):
        for file in ("model", "optim"):
            self.near_tensors(f"{name}, {file}", *(load_file(p / "latest" / f"{file}.safetensors") for p in (want, got)),
                              bound)

    def near_tensors(self, name, a, b, bound=1e-4):
        ask(set(a) == set(b), name, f"one file alone has {set(a) ^ set(b)}")
        for key in a:
            if not ZERO.search(key):
                x, y = a[key].double(), b[key].double()
                error, most = float((x - y).norm()), bound * max(float(x.norm()), 1e-3 if bound < 1e-2 else 2e-2)
                ask(error <= most, name, f"{key} differs by {error:.2e}, at most {most:.2e}")

    @soft
    def same_bits(self, name, want, got):
        ask(numbers(want[0]) == numbers(got[0]), name, "the logs differ", *first_other(want[0], got[0]))
        for file in ("model", "optim"):
            a, b = ((p / "latest" / f"{file}.safetensors").read_bytes() for p in (want[1], got[1]))
            ask(a == b, name, f"{file}.safetensors has other bits")


def first_other(want, got):
    return first_other_row(numbers(want), numbers(got))


def first_other_row(want, got):
    return next(((b, "wanted", a) for a, b in zip(want, got) if a != b), ("lengths",))


def near(a, b, bound):
    if a is None or b is None:
        return a == b
    return abs(a - b) <= bound * max(abs(a), 1e-30)


# ---- numbers ----

def test_models(s):
    for model in ("gpt", "cnn", "drop"):
        s.both(model, model, ["--optimizer=adamw", *(["--dropout=on"] if model == "drop" else [])],
               [*s.held[model], "--eval-every=3", "--seed=3", "--shuffle=1"])


def test_optimizers(s):
    kinds = ["sgd", "sgd:momentum", "sgd:momentum,nesterov", "adam", "adamw", "adagrad", "lion"]
    for kind in kinds:
        s.both(kind, "gpt", [f"--optimizer={kind}"], ["--weight-decay=0.1"])


def test_options(s):
    adamw = "--optimizer=adamw"
    cases = {
        "clip 1": (["--clip=1"], ["--clip-norm=1"]),
        "clip 2 and value": (["--clip=2,value", "--optimizer=sgd"],
                             ["--clip-norm=0.2", "--clip-value=1e-3", "--lr=0.5"]),
        "clip 2.5": (["--clip=2.5", "--optimizer=sgd"], ["--clip-norm=0.1", "--lr=0.5"]),
        "clip inf": (["--clip=inf", "--optimizer=sgd"], ["--clip-norm=0.02", "--lr=0.5"]),
        "no norm": ([adamw, "--grad-norm=off"], []),
        "early updates": ([adamw, "--update=backward"], []),
        "groups": ([adamw, r"--param-group=^h\.0\.:lr_scale=0.3,weight_decay=0.2",
                    "--param-group=ln:beta1=0.8,beta2=0.95,eps=1e-6", "--no-decay-1d"], ["--weight-decay=0.1"]),
        "linear": ([adamw], ["--lr-schedule=linear", "--warmup=3", "--min-lr=1e-5"]),
        "cosine": ([adamw], ["--lr-schedule=cosine", "--warmup=2"]),
        "freeze": ([adamw, r"--freeze=wpe|h\.1\.ln"], []),
        "smoothing": ([adamw, "--loss=cross_entropy:label_smoothing=0.1"], []),
        "rank norm": ([adamw, "--loss-norm=rank"], []),
        "random init": ([adamw, "--init=random:7"], []),
        "remat": ([adamw, "--remat=block"], []),
        "tiles": ([adamw, "--remat=block", "--tile-rows=16"], []),
        "no weights shared": ([adamw, "--wrap=each", "--strategy=no_shard"], []),
    }
    for name, (options, flags) in cases.items():
        s.both(name, "gpt", options, flags)
    x, labels = s.columns["gpt"]
    s.both("ignored 7", "gpt", [adamw, "--loss=cross_entropy:label_smoothing=0.1,ignore_index=7"],
           data=s.files("sevens", x, np.where(labels < 0, 7, labels)))
    for name, options in {"frozen statistics": ["--bn=frozen"], "biased": ["--bn-biased-var"], "momentum": []}.items():
        s.both(name, "cnn", ["--optimizer=sgd:momentum", *options])


def test_accumulate(s):
    for model, counts in (("gpt", (1, 2, 3)), ("cnn", (3,))):
        for sync in ("last", "every"):
            for accum in counts:
                s.both(f"{accum} micro-batches of {model}, {sync}", model,
                       ["--optimizer=adamw", "--accum=many", f"--sync={sync}", "--clip=2"],
                       [f"--accum={accum}", "--clip-norm=0.5"])


def test_halves(s):
    cases = {"bf16": ["--param-dtype=bf16"],
             "bf16 tiles": ["--param-dtype=bf16", "--tile-rows=16"],
             "bf16 early": ["--param-dtype=bf16", "--update=backward"],
             "bf16 kept": ["--param-dtype=bf16", "--reduce-dtype=bf16", "--keep-low-precision-grads"],
             "f16": ["--param-dtype=f16", "--loss-scale=dynamic:init=1024,growth_interval=3"],
             "static": ["--param-dtype=f16", "--loss-scale=128"],
             "bf16 many": ["--param-dtype=bf16", "--accum=many"]}
    for name, options in cases.items():
        for model in ("gpt", "cnn"):
            s.both(f"{name} {model}", model, ["--optimizer=sgd", *options],
                   ["--lr=0.05", *(["--accum=2"] if name.endswith("many") else [])], **HALF)


def test_pitch(s):
    """Logits in rows with pads, and their gradient; blocks of them; with --check-nan they have none."""
    adamw = "--optimizer=adamw"
    cases = {"f32": ([], {}), "accum": (["--accum=many"], {}), "blocks": (["--loss-chunk=8"], {}),
             "smooth": (["--loss=cross_entropy:label_smoothing=0.1"], {}), "checked": (["--check-nan"], {}),
             "bf16": (["--param-dtype=bf16"], HALF), "f16": (["--param-dtype=f16", "--loss-scale=128"], HALF),
             "bf16 blocks": (["--param-dtype=bf16", "--loss-chunk=8"], HALF)}
    for name, (options, bounds) in cases.items():
        flags = [*(["--accum=2"] if name == "accum" else []), *([EPS] if bounds else [])]
        s.both(f"pitch, {name}", "wide", [adamw, *options], flags, **bounds)
        text = s.ir("wide", *options)
        padded = name != "checked" and "blocks" not in name
        ask(("width=1216" in text) == padded, name, "logits with pads: wanted", padded)


def test_attention(s):
    """cuDNN's kernels forward, both ways and nowhere; a library that is too old leaves the bits of our own kernels."""
    none, forward, all_engines = set(), {2}, {2, 5}
    cases = [("heads", "bf16", {"auto": forward, "own": none, "cudnn": all_engines}), ("heads", "f16", {"cudnn": all_engines}),
             ("padded", "bf16", {"auto": none, "cudnn": all_engines}), ("padded", "f16", {"cudnn": all_engines})]
    for model, dtype, choices in cases:
        flags = [*s.held[model], "--eval-every=3", "--print-plan", EPS]
        options = ["--optimizer=adamw", f"--param-dtype={dtype}", *(["--remat=block"] if model == "heads" else [])]
        own = s.run(s.build(True, model, *options, "--attention=own"), model, *flags)
        for kernels, engines in choices.items():
            name, choice = f"attention of {model}, {dtype}, by {kernels}", [f"--attention={kernels}"]
            both = s.both(name, model, options, flags, cuda_options=choice, **HALF)
            said = both[1][2] if both else ""
            found = {int(n) for n in re.findall(r"^  cudnn:attention.*, engine (\d+)$", said, re.M)}
            ask(found == engines, name, f"engines {found}, wanted {engines}")
            ask(("with a mask" in said) == (model == "padded" and bool(engines)), name, "of a mask it says", said)
            program = s.build(True, model, *options, *choice)
            s.same_bits(f"graphs, {name}", both[1], s.run(program, model, *flags, "--cuda-graph=0"))
            old = s.run(program, model, *flags, env={"CUDASIM_CUDNN": "91001"})
            s.same_bits(f"an old library, {name}", own, old)
            ask(bool(engines) == ("our own kernels compute them" in old[2]), name, "what it says of an old library", old[2])


def test_overflow(s):
    """A scale that f16 does not hold: both programs leave out the same updates and halve it as often."""
    options = ["--optimizer=adamw", "--param-dtype=f16", "--loss-scale=dynamic:init=1e8,growth_interval=2"]
    for norm in ("on", "off"):
        runs = s.both(f"overflow, norm {norm}", "gpt", [*options, f"--grad-norm={norm}"], [EPS], **HALF)
        rows = lines(runs[1][0]) if runs else []
        ask(not runs or rows[1]["loss_scale"] < rows[0]["loss_scale"], "no step overflowed")


# ---- bits ----

def test_graphs(s):
    """A replayed step is the step; an evaluation in a graph of its own, micro-batches in graphs of their own."""
    cases = [("gpt", ["--optimizer=adamw"], []), ("cnn", ["--optimizer=adamw"], []),
             ("drop", ["--optimizer=adamw", "--dropout=on", "--param-dtype=bf16"], ["--seed=5"]),
             ("gpt", ["--optimizer=adamw", "--accum=many"], ["--accum=4"])]
    for model, options, flags in cases:
        binary = s.build(True, model, *options)
        flags = [*flags, *s.held[model], "--eval-every=2"]
        want = s.run(binary, model, *flags, "--cuda-graph=0")
        s.same_bits(f"graphs of {model}", want, s.run(binary, model, *flags))
        s.same_bits(f"at once: {model}", want, s.run(binary, model, *flags, env={"CUDASIM_ORDER": "eager"}))


def test_resume(s):
    scaled = ["--optimizer=adamw", "--param-dtype=f16", "--loss-scale=dynamic:init=1e6,growth_interval=2"]
    for model, options in (("drop", ["--optimizer=adamw", "--dropout=on"]), ("gpt", scaled),
                           ("cnn", ["--optimizer=sgd:momentum"])):
        binary = s.build(True, model, *options)
        want = s.run(binary, model, "--shuffle=3")
        _, half, _ = s.run(binary, model, "--shuffle=3", steps=3)
        log, out, _ = s.run(binary, model, f"--resume={half}", "--shuffle=3")
        whole = numbers(want[0])[3:]
        ask([r for r in numbers(log) if "loss" in r] == whole, f"resumed {model}", "other log")
        s.same_bits(f"resumed {model}", (log, want[1]), (log, out))


def read_model(folder):
    """Weights and the optimizer's states."""
    return {k: t for section in ("model", "optim") for k, t in trips.read_section(folder, section).items()}


def test_kinds(s):
    """Saves beside steps, of every kind: what CPU programs write; either goes on from what the other saved."""
    for ranks, kind in itertools.product((1, 2), trips.KINDS):
        name, flags, saved = f"{kind} at {ranks}", [f"--save-kind={kind}", "--shuffle=3", "--keep=9"], []
        flags += [f"--ranks={ranks}", "--comm=shm"] if ranks > 1 else []
        programs = [s.build(cuda, "gpt", "--optimizer=adamw") for cuda in (False, True)]
        for binary in programs:
            log, out, _ = s.run(binary, "gpt", *flags, "--save-every=3")
            waited = s.run(binary, "gpt", *flags, steps=3)[1]
            trips.same_files(out / "step-00000003", waited / "latest", but=["state.json"])
            saved.append((numbers(log)[3:], out))
        s.near_tensors(name, *(read_model(out / "step-00000003") for _, out in saved))
        for to, binary in enumerate(programs):
            for of, (rows, out) in enumerate(saved):
                log, end, _ = s.run(binary, "gpt", *flags, f"--resume={out}/step-00000003")
                if of == to:
                    ask(numbers(log) == rows, name, "resumed", *first_other_row(rows, numbers(log)))
                    trips.same_files(out / "latest", end / "latest")
                else:
                    ask(all(near(a["loss"], b["loss"], 1e-5) for a, b in zip(rows, numbers(log), strict=True)), name,
                        "another target's losses")
                    s.near_tensors(f"{name} of another target", *(read_model(f / "latest") for f in (out, end)))


def test_boundaries(s):
    """Where steps overlap, a save or an evaluation sees the steps before it and no later one."""
    binary = s.build(True, "gpt", "--optimizer=adamw")
    held = s.held["gpt"]
    log, out, _ = s.run(binary, "gpt", *held, "--eval-every=2", "--save-every=3")
    plain = s.run(binary, "gpt")
    ask([r for r in numbers(log) if "loss" in r] == [r for r in numbers(plain[0]) if "loss" in r],
        "losses are not those of a run without evaluations and saves")
    for steps in (1, 3, 6):
        at = s.run(binary, "gpt", *held, steps=steps)
        if steps != 1:
            saved = out / f"step-{steps:08d}", at[1] / "latest"
            a, b = ((p / "model.safetensors").read_bytes() for p in saved)
            ask(a == b, f"saved at step {steps}", "the weights are not those of a run that ends there")


# ---- items ----

BF16 = ["--optimizer=adamw", "--param-dtype=bf16"]
# Adam would move by its rate what has next to no gradient, whatever rounding to 8 bits says.
FP8 = ["--optimizer=sgd", "--param-dtype=bf16", "--matmul-dtype=fp8", "--bind=batch=4"]
# The gradient of logits has their place.
IN_PLACE = rf"{WIDE}\] (@act\+\d+) = matmul (?s:.*){WIDE}\] \1 = cross_entropy_grad "
# The mask of an attention's gradient is of f32.
ADDED = rf"(%\S+) : f32\[{B},1,{LONG},{LONG}\] (?s:.*) = attention_grad (%\S+, ){{4}}\1, .*library=1"
F32_FEATURE = re.compile(rf"^ +%\S+ : f32\[{B}(,\d+){{3}}\](?!.* = input ).* = ", re.M)  # of "cnn"
# For each: the model and options of its programs.  has, lacks: what the IR has, and has not; says: what the program says
# of its kernels; flags, env: of all runs; tune: a file of algorithms of products, which is made first.
ITEMS = {
    "rows of logits with pads, loss in place": dict(model="wide", options=BF16, has=["width=1216", IN_PLACE]),
    "grouped heads by cuDNN, epilogues, blocks of the loss": dict(
        model="grouped", options=[*BF16, "--loss-chunk=8"], cuda=["--attention=cudnn"],
        has=[r" attention .*library=1", r" attention_grad .*library=1", 'epilogue="gelu"', 'epilogue="gelu_grad"',
             r'epilogue="sums_[ab]"', "linear_cross_entropy"],
        says=["cudnn:attention, engine 2", "cudnn:attention_grad, engine 5"]),
    "masks by cuDNN": dict(
        model="padded", options=BF16, cuda=["--attention=cudnn"], has=[r" attention_grad .*library=1"],
        says=["cudnn:attention with a mask, engine 2", "cudnn:attention_grad with a mask, engine 5"]),
    "masks of numbers by cuDNN": dict(
        model="distant", options=BF16, cuda=["--attention=cudnn"], has=[ADDED],
        says=["cudnn:attention with a mask, engine 2", "cudnn:attention_grad with a mask, engine 5"]),
    "gathers and reductions of two ranks": dict(
        model="gpt", options=[*BF16, "--wrap=block"], flags=["--ranks=2"], env={"CUDASIM_DEVICES": "2"},
        has=["all_gather @h.1 ", "reduce_scatter @h.1 "], says=["nccl"]),
    "norms and sums of many rows": dict(
        model="rows", options=BF16, has=[r"layer_norm_grad .*to=f32", "reduce_sum .*to=f32"]),
    "batch norms of bf16, convolutions by graphs": dict(
        model="cnn", options=BF16, has=["conv_grad_w"], lacks=[F32_FEATURE],
        says=["cudnn:conv, engine", "cudnn:conv_grad_x, engine", "cudnn:conv_grad_w, engine"]),
    "products that were tuned": dict(model="drop", options=["--optimizer=adamw", "--dropout=off"], tune="tune.txt"),
    "fp8": dict(model="grouped", options=FP8, flags=["--lr=0.05"], has=["matmul_f8"]),
    "fp8, gathered by two ranks": dict(
        model="grouped", options=[*FP8, "--wrap=block"], flags=["--lr=0.05", "--ranks=2"], env={"CUDASIM_DEVICES": "2"},
        has=["matmul_f8", "f8_scales .*stream=\"sync\"", "async flat @.*:e4m3 = all_gather"], says=["nccl"]),
    "a program for sm_100a": dict(
        model="grouped", options=BF16, cuda=["--attention=cudnn", "--arch=sm_100a"], env={"CUDASIM_ARCH": "100"},
        has=[r" attention .*library=1"], lacks=[re.compile(r" attention_grad .*library=1")],
        says=["cudnn:attention, engine 2"]),
    "a program for sm_120a": dict(
        model="grouped", options=FP8, cuda=["--arch=sm_120a"], flags=["--lr=0.05"], env={"CUDASIM_ARCH": "120"},
        has=["matmul_f8"]),
}


def seconds_of_programs():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def orders():
    """Name, seed, and whether steps are graphs."""
    for name in ("eager", "lazy", "priority"):
        yield name, 0, 1
    for seed in range(1, ORDERS - 2):
        yield "random", seed, seed % 2


@soft
def has_item(s, name, item, said):
    text = s.ir(item["model"], *item["options"], *item.get("cuda", []))
    for pattern in item.get("has", []):
        ask(re.search(pattern, text), name, "the IR is without", pattern)
    for pattern in item.get("lacks", []):
        found = pattern.search(text)
        ask(not found, name, "the IR has", found and found[0])
    for words in item.get("says", []):
        ask(words in said, name, "the program does not say", words, said[-2000:])
    if "tune" in item:  # 20, 0x14, is proposed behind 21
        chosen = re.findall(" = (..)", (s.root / item["tune"]).read_text())
        ask("14" in chosen, name, "no product takes what was measured", chosen)


def test_items(s):
    for i, (name, item) in enumerate(ITEMS.items()):
        begun, spent = time.monotonic(), seconds_of_programs()
        model, options, cuda = item["model"], item["options"], item.get("cuda", [])
        flags, env = [*item.get("flags", []), *([EPS] if set(BF16) <= set(options) else [])], item.get("env", {})
        tune = [f"--tune={s.root / item['tune']}"] if "tune" in item else []
        binary = s.build(True, model, *options, *cuda)
        if tune:
            s.run(binary, model, *tune, steps=1, env={"CUDASIM_SLOW_ALGO": "21"})
        runs = s.both(name, model, options, [*flags, "--print-plan"], cuda_options=cuda, cuda_flags=tune,
                      env=env, **(HALF if "--param-dtype=bf16" in options else {}))
        if runs:  # what failed already needs no second word
            has_item(s, name, item, runs[1][2])
        want = None
        for order, seed, graph in orders():
            got = s.run(binary, model, *flags, *tune, f"--cuda-graph={graph}", steps=3,
                        env={**env, "CUDASIM_ORDER": order, "CUDASIM_SEED": str(1000 * i + seed)})[:2]
            want = want or got
            s.same_bits(f"{name}, {order} order {seed}", want, got)
            if got is not want:
                shutil.rmtree(got[1])
        print(f"  {name}: {time.monotonic() - begun:.0f} s, {seconds_of_programs() - spent:.0f} s of processors", flush=True)


# ---- ends ----

@soft
def ends_alike(s, name, model, options=(), flags=(), code=1, data=None):
    """Both programs end with the same exit code and words; the last checkpoint is that of a run which ends there."""
    said = []
    for cuda in (False, True):
        binary = s.build(cuda, model, "--optimizer=adamw", *options)
        log, out, text = s.run(binary, model, "--save-every=1", *flags, code=code, data=data)
        errors = [t.replace(binary.name, "P").replace(str(out), "OUT") for t in text.splitlines() if "error:" in t]
        said.append((errors, len(lines(log)), sorted(p.name for p in out.glob("step-*"))))
    ask(said[0][0], name, "the CPU's program says nothing")
    ask(said[0] == said[1], name, said[1], "wanted", said[0])
    if said[1][2]:
        clean = s.run(binary, model, *[f for f in flags if not f.startswith("--eval-data")], steps=len(said[1][2]))
        a, b = (load_file(p / "latest" / "model.safetensors") for p in (clean[1], out))
        ask(all(torch.equal(a[k], b[k]) for k in a), name, "the last checkpoint is not that of a run which ends there")


def test_bad_data(s):
    for step, what, column, value in ((0, "token", 0, VOCAB), (2, "label", 1, VOCAB + 3), (4, "label", 1, VOCAB),
                                      (5, "negative token", 0, -VOCAB - 1)):
        columns = [c.copy() for c in s.columns["gpt"]]
        columns[column][step * B + 1, 0] = value
        data = s.files(f"bad{s.n}", *columns)
        ends_alike(s, f"{what} {value} in step {step + 1}", "gpt", data=data)
    ends_alike(s, "in a micro-batch", "gpt", ["--accum=many"], ["--accum=3"], data=data)
    ends_alike(s, "in an evaluation", "gpt", flags=[f"--eval-data={c}" for c in data])


def spoilt(s, value, step):
    x, labels = (c.copy() for c in s.columns["cnn"])
    x[step * B, 0, 3, 3] = value
    return s.files("spoilt", x, labels)


def test_nan(s):
    for value, step in ((np.nan, 0), (np.nan, 4), (np.inf, 3)):
        data = spoilt(s, value, step)
        for norm in ("on", "off"):
            ends_alike(s, f"{value} in step {step + 1}", "cnn", ["--bn=frozen", f"--grad-norm={norm}"], code=3,
                       data=data)
        s.both(f"{value} left out", "cnn", ["--optimizer=adamw", "--bn=frozen"], ["--on-nan=skip"], data=data)
        ends_alike(s, f"--check-nan: {value}", "cnn", ["--bn=frozen", "--check-nan"], code=3, data=data)
    plain, checked = (s.run(s.build(True, "gpt", "--optimizer=adamw", *o), "gpt") for o in ([], ["--check-nan"]))
    s.same_bits("--check-nan changes no bit", plain, checked)


def start(s, binary, model, *flags):
    s.n += 1
    out = s.root / f"run{s.n}"
    args = (binary, *s.flags(model, 1000000), f"--log={out}.jsonl", f"--save={out}", *flags)
    p = subprocess.Popen([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return p, pathlib.Path(f"{out}.jsonl"), out


def await_text(p, path, text, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end and p.poll() is None:
        if path.exists() and text in path.read_text():
            return
        time.sleep(0.02)
    p.kill()
    raise Failed(f"waited for {text} in {path}: {p.communicate()[0][-2000:]}")


def test_signals(s):
    binary = s.build(True, "gpt", "--optimizer=adamw")
    p, log, out = start(s, binary, "gpt")
    await_text(p, log, '"step": 4,')
    p.send_signal(signal.SIGINT)
    said = p.communicate(timeout=60)[0]
    ask(p.returncode == 0 and "stopped by Interrupt" in said, "SIGINT", said)
    steps = lines(log)[-1]["step"]
    ask((out / "latest").resolve().name == f"step-{steps:08d}", "SIGINT", "no checkpoint of the last step")
    want = s.run(binary, "gpt", steps=steps)
    a, b = ((p / "latest/model.safetensors").read_bytes() for p in (out, want[1]))
    ask(a == b, "SIGINT", "the weights are not those of a run of as many steps")
    hyper = s.root / "h.json"
    hyper.write_text('{"lr": 0.001}')
    p, log, out = start(s, binary, "gpt", f"--hyper={hyper}")
    await_text(p, log, '"step": 4,')
    hyper.write_text('{"lr": 0.0078125, "weight_decay": 0.5}')
    p.send_signal(signal.SIGHUP)
    await_text(p, log, '"lr": 0.0078125, "step_ms')
    hyper.write_text('{"lr": 0.25, "nothing": 1}')
    p.send_signal(signal.SIGHUP)
    await_text(p, log, "hyper_refused")
    p.send_signal(signal.SIGTERM)
    said = p.communicate(timeout=60)[0]
    ask(p.returncode == 0 and "refused; what was in force stays" in said, "SIGHUP", said)
    rows = list(map(json.loads, open(log)))
    events = [i for i, r in enumerate(rows) if r.get("event") == "hyper"]
    ask(len(events) == 2, "SIGHUP", f"{len(events)} events of --hyper, wanted 2")
    first = {round(r["lr"], 6) for r in rows[events[0]:events[1]] if "loss" in r}
    then = {r["lr"] for r in rows[events[1]:] if "loss" in r}
    ask((first, then) == ({0.001}, {0.0078125}), "SIGHUP", f"rates {first}, then {then}: wanted 0.001, then 0.0078125")
    cpu = s.build(False, "gpt", "--optimizer=adamw")
    begun = (out / "latest/state.json").read_text()
    resumed = [s.run(b, "gpt", f"--resume={out}", steps=lines(log)[-1]["step"] + 3)[0] for b in (cpu, binary)]
    a, b = map(lines, resumed)
    ask('"weight_decay": 0.5' in begun and len(a) == len(b) == 3, "resumed with --hyper", begun[:500])
    for x, y in zip(a, b):
        ask(near(x["loss"], y["loss"], 1e-5) and x["lr"] == y["lr"] == 0.0078125, "resumed with --hyper", x, y)


@soft
def run_test(s, name):
    TESTS[name](s)


TESTS = {n[5:]: f for n, f in list(globals().items()) if n.startswith("test_")}


def main(script, names, run):
    """Runs those of the tests `names` that --only names (all): run(setup, name)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc", type=pathlib.Path)
    parser.add_argument("workdir", type=pathlib.Path)
    parser.add_argument("--only", default=",".join(names))
    args = parser.parse_args()
    shutil.rmtree(args.workdir, ignore_errors=True)
    args.workdir.mkdir(parents=True)
    torch.set_num_threads(1)
    s = Setup(args.shardc.resolve(), args.workdir.resolve())
    for name in args.only.split(","):
        begun = time.monotonic()
        run(s, name)
        print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)
    print(f"tests/cudasim/{script}: {s.checks - s.failed} of {s.checks} passed")
    sys.exit(s.failed != 0)


if __name__ == "__main__":
    main("train.py", TESTS, run_test)
