"""Round trips of checkpoints: saved by W1 ranks with strategy S1 and kind K1 after five steps, loaded by W2 ranks with S2.

The next five steps, and the checkpoint of kind K2 behind them, are those of the run that was not interrupted: bit by
bit where ranks and strategy are the same, else losses within 1e-5 and weights within the bounds of matrix.py.  A step
takes 12 samples at any W, of 50 that are shuffled anew in each epoch, so epochs end within batches.

  gpt      dropout, AdamW
  bf16     the same with bf16 parameters, f32 masters and a dynamic loss scale: losses within 1e-3, and what ten steps
           changed within 1%: sums over other batches round otherwise
  tied     tied, frozen and unused parameters
  cnn      BatchNorm, each rank its own statistics: W2 = W1 alone, and the buffers of all ranks come back
  bn-sync  BatchNorm over all ranks

Kind local is read at the same ranks and strategy; elsewhere its error names `shardc ckpt convert`, whose output is read.
Checkpoints of any kind are read here as docs/checkpoints.md specifies them, not by our own code.

usage: trips.py SHARDC WORKDIR [--full] [--models a,b] [--worlds 2,4] [--jobs 2] [--log FILE]
  without --full: a pairwise cover of model x W1 x S1 x K1 x W2 x S2 x K2, and every model and kind at the same W and S.
  --full: every (W1, S1, K1) with every (W2, S2); models and K2 take turns
"""
import argparse
import concurrent.futures
import itertools
import json
import pathlib
import shutil
import subprocess
import sys
import time

import numpy as np
import torch
from safetensors.torch import load_file

import matrix
from matrix import LR, OWNED, STEPS, STRATEGIES, T, VOCAB, Failed, command

BATCH, SAMPLES, KINDS, WORLDS = 12, 50, ["full", "sharded", "local"], [1, 2, 3, 4]
SGD = ["--loss=cross_entropy", "--optimizer=sgd:momentum"]
MODELS = {  # the ONNX file, options
    "gpt": ("gpt", ["--loss=cross_entropy"]),
    "bf16": ("gpt", ["--loss=cross_entropy", "--param-dtype=bf16", "--loss-scale=dynamic"]),
    "tied": ("tied", matrix.COMPILE["tied"]),
    "cnn": ("cnn", SGD),
    "bn-sync": ("cnn", [*SGD, "--bn-sync=sync"]),
}


# ---- a reader of checkpoints ----

def read_section(folder, section):
    """The tensors of one section, by docs/checkpoints.md."""
    kind = json.loads((folder / "state.json").read_text())["layout"]["kind"]
    if kind == "full":
        path = folder / f"{section}.safetensors"
        return load_file(path) if path.exists() else {}
    files, out = {}, {}
    for name, entry in json.loads((folder / "index.json").read_text())["tensors"].get(section, {}).items():
        parts = []
        for file, tensor, at, _, n in sorted(entry["pieces"], key=lambda piece: piece[3]):
            if file not in files:
                files[file] = load_file(folder / file)
            parts.append(files[file][tensor].flatten()[at:at + n])
        out[name] = torch.cat(parts).reshape(entry["shape"])
    return out


def first_other(a, b):
    """The name of a tensor of which two sections have other bits; None: there is none."""
    if set(a) != set(b):
        return str(sorted(set(a) ^ set(b))[:3])
    return next((k for k in a if a[k].dtype != b[k].dtype or not torch.equal(a[k], b[k])), None)


def same_files(a, b, but=()):
    """Two checkpoints of one kind have the same files, byte for byte; `but` names those that may differ."""
    names = sorted(p.name for p in a.iterdir())
    if names != sorted(p.name for p in b.iterdir()):
        raise Failed(f"{b} has other files than {a}: {names}")
    for name in set(names) - set(but):
        if (a / name).read_bytes() != (b / name).read_bytes():
            raise Failed(f"{b / name} has other bytes than {a / name}")


# ---- runs ----

def make_data(root):
    g = np.random.default_rng(31)
    out = {}
    for model in ("gpt", "tied", "cnn"):
        if model == "cnn":
            x, labels = g.standard_normal((SAMPLES, 3, 12, 12)).astype(np.float32), g.integers(0, 7, SAMPLES)
        else:
            x, labels = g.integers(0, VOCAB, (SAMPLES, T)), g.integers(0, VOCAB, (SAMPLES, T))
            labels[np.arange(T)[None] >= g.integers(1, T + 1, SAMPLES)[:, None]] = -100
        path = root / f"data-{model}"
        path.mkdir()
        np.save(path / "x.npy", x)
        np.save(path / "labels.npy", labels.astype(np.int64))
        out[model] = ["--data", f"x={path}/x.npy", "--data", f"labels={path}/labels.npy"]
    return out


def group_of(strategy, world):
    """--shard-size of hybrid_shard: two groups where that can be."""
    return ["--shard-size", world // 2 if world % 2 == 0 else world] if strategy == "hybrid_shard" else []


def steps_of(log):
    return [r for r in map(json.loads, open(log)) if "loss" in r]


class Trips:
    def __init__(self, args, models=MODELS):
        self.shardc, self.root, self.number, self.models = args.shardc, args.workdir, itertools.count(), models
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        matrix.export_models(self.root)
        self.data = make_data(self.root)

    def program(self, model, world, strategy):
        return self.root / f"{model}-{world}-{strategy}"

    def build(self, key):
        model, world, strategy = key
        file, options = self.models[model]
        owned = [f"--world={world}"] if strategy in OWNED else []
        command([self.shardc, self.root / f"{file}.onnx", "-O0", *options, f"--bind=batch={BATCH // world}",
                 f"--strategy={strategy}", *owned, "-o", self.program(*key)])

    def run(self, out, model, world, strategy, kind, *flags):
        """Runs to step 10; returns the steps of the log."""
        command([self.program(model, world, strategy), *self.data[self.models[model][0]], "--threads", 1, "--timeout", 60,
                 *(["--ranks", world] if world > 1 else []), *group_of(strategy, world), "--save", out,
                 "--save-kind", kind, "--log", f"{out}.jsonl", *flags])
        return steps_of(f"{out}.jsonl")

    def whole(self, key):
        """The run that is not interrupted: its log and folder.  Its save after five steps is beside the steps."""
        model, world, strategy, kind = key
        out = self.root / f"{model}-{world}-{strategy}-{kind}"
        rows = self.run(out, *key, "--lr", LR, "--seed", 3, "--shuffle", 3, "--steps", 2 * STEPS, "--save-every", STEPS,
                        "--keep", 2)
        if len(rows) != 2 * STEPS:
            raise Failed(f"the log has {len(rows)} steps, wanted {2 * STEPS}")
        return rows, out

    def refused(self, folder, c):
        """What a program says to a checkpoint of kind local of another layout."""
        try:
            self.run(self.root / f"refused{next(self.number)}", c["model"], c["W2"], c["S2"], "full", "--resume", folder)
        except Failed as e:
            if "kind local" in str(e) and "shardc ckpt convert" in str(e):
                return
            raise
        raise Failed("a checkpoint of kind local was read at another layout")

    def case(self, c):
        name = " ".join(str(c[k]) for k in ("model", "W1", "S1", "K1")) + f" -> {c['W2']} {c['S2']} {c['K2']}"
        try:
            return True, f"{name}: {self.trip(c)}"
        except (Failed, subprocess.TimeoutExpired, ValueError, OSError) as e:
            return False, f"{name}: FAILED {e}"

    def trip(self, c):
        wanted, whole = self.wholes[c["model"], c["W1"], c["S1"], c["K1"]]
        folder, n = whole / f"step-{STEPS:08d}", next(self.number)
        same = (c["W1"], c["S1"]) == (c["W2"], c["S2"])
        out, converted = self.root / f"out{n}", self.root / f"converted{n}"
        try:
            if c["K1"] == "local" and not same:
                self.refused(folder, c)
                command([self.shardc, "ckpt", "convert", f"--kind={KINDS[n % 2]}", folder, "-o", converted])
                folder = converted
            rows = self.run(out, c["model"], c["W2"], c["S2"], c["K2"], "--resume", folder)
            pairs = list(zip(rows, wanted[STEPS:], strict=True))
            for key in ("step", "lr", "epoch", "loss_scale"):
                if any(a[key] != b[key] for a, b in pairs):
                    raise Failed(f"{key}: {[a[key] for a, _ in pairs]}, wanted {[b[key] for _, b in pairs]}")
            return (self.bits if same else self.near)(c, pairs, out / "latest", whole / "latest")
        finally:
            shutil.rmtree(out, ignore_errors=True)
            shutil.rmtree(converted, ignore_errors=True)

    def bits(self, c, pairs, ours, want):
        if any(a[key] != b[key] for a, b in pairs for key in ("loss", "grad_norm")):
            raise Failed(f"losses {[a['loss'] for a, _ in pairs]}, wanted {[b['loss'] for _, b in pairs]}")
        for section in ("model", "optim", "buffers-rank"):
            other = first_other(read_section(ours, section), read_section(want, section))
            if other:
                raise Failed(f"{section}: {other} has other bits")
        if c["K1"] == c["K2"]:
            same_files(ours, want)
        return "the same bits"

    def near(self, c, pairs, ours, want):
        losses = [[r["loss"] for r in rows] for rows in zip(*pairs)]
        a, b = (read_section(f, "model") for f in (ours, want))
        if c["model"] == "bf16":
            begin = read_section(self.wholes[c["model"], c["W1"], c["S1"], c["K1"]][1] / f"step-{STEPS:08d}", "model")
            return near_bf16(losses, a, b, begin)
        if c["model"] == "cnn":
            own = [read_section(f, "buffers-rank") for f in (ours, want)]
            a, b = {**a, **own[0]}, {**b, **own[1]}
        loss, worst, name = matrix.compare("cnn" if "bn" in c["model"] or c["model"] == "cnn" else "gpt", (losses[0], a),
                                           (losses[1], b))
        return f"loss {loss:.1e} weights {worst:.1e} {name}"


def near_bf16(losses, a, b, begin):
    loss = max(abs(x - y) / abs(y) for x, y in zip(*losses))
    off, moved = 0, 0
    for k in b:
        keep = slice(None)
        if matrix.ZERO_THIRD.search(k):
            keep = torch.arange(len(b[k])) // (len(b[k]) // 3) != 1
        off += float((a[k] - b[k])[keep].double().square().sum())
        moved += float((b[k] - begin[k])[keep].double().square().sum())
    change = (off / moved) ** 0.5
    if not (loss <= 1e-3 and change <= 1e-2):
        raise Failed(f"loss differs by {loss:.2e}, what five steps changed by {change:.2e}")
    return f"loss {loss:.1e} changes {change:.1e}"


# ---- which ----

def at_home(c):
    """Ranks with statistics of their own: as many ranks as then."""
    return {**c, "W2": c["W1"]} if c["model"] == "cnn" else c


def cover(factors):
    same = [{"model": m, "W1": w, "S1": s, "K1": k, "W2": w, "S2": s, "K2": k} for i, (m, k) in
            enumerate(itertools.product(factors["model"], KINDS))
            for w, s in [(factors["W1"][i % len(factors["W1"])], STRATEGIES[i % len(STRATEGIES)])]]
    return [*same, *map(at_home, matrix.pairwise(factors))]


def everything(factors):
    keys, models, cases = ["W1", "S1", "K1", "W2", "S2"], factors["model"], []
    loads = len(factors["W2"]) * len(STRATEGIES)
    for i, row in enumerate(itertools.product(*(factors[k] for k in keys))):
        c = {"model": models[i % len(models)], **dict(zip(keys, row)), "K2": KINDS[(i + i // loads) % len(KINDS)]}
        cases.append({**c, "model": "bn-sync"} if c != at_home(c) else c)
    return cases


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("shardc", type=pathlib.Path)
    p.add_argument("workdir", type=pathlib.Path)
    p.add_argument("--full", action="store_true")
    p.add_argument("--models", default=",".join(MODELS))
    p.add_argument("--worlds", default=",".join(map(str, WORLDS)))
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--log")
    return p.parse_args()


def main():
    args = parse_args()
    torch.set_num_threads(1)
    worlds = [int(w) for w in args.worlds.split(",")]
    factors = {"model": args.models.split(","), "W1": worlds, "S1": STRATEGIES, "K1": KINDS, "W2": worlds,
               "S2": STRATEGIES, "K2": KINDS}
    cases = (everything if args.full else cover)(factors)
    begin, trips = time.time(), Trips(args)
    wholes = sorted({(c["model"], c["W1"], c["S1"], c["K1"]) for c in cases})
    programs = sorted({(c["model"], c[f"W{i}"], c[f"S{i}"]) for c in cases for i in (1, 2)})
    log = open(args.log, "w") if args.log else None
    passed, failed, same = 0, 0, 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(trips.build, programs))
        built = time.time()
        trips.wholes = dict(zip(wholes, pool.map(trips.whole, wholes)))
        for ok, line in pool.map(trips.case, cases):
            passed, failed, same = passed + ok, failed + (not ok), same + line.endswith("the same bits")
            print(line, file=log, flush=True) if log else None
            if not ok:
                print(line, flush=True)
    last = (f"trips: {passed} passed, {same} of them bit by bit, {failed} failed; {len(programs)} programs, "
            f"{built - begin:.0f} s, {len(wholes)} runs saved; {time.time() - begin:.0f} s")
    print(last)
    print(last, file=log) if log else None
    sys.exit(1 if failed or not same else 0)


if __name__ == "__main__":
    main()
