"""Models that people train, in small configurations, exported by shardc.export and trained beside PyTorch.

Five steps of AdamW: each loss, and the one behind them, is at most twice as far off PyTorch's in f64 as PyTorch's own in
f32 is (over several orders of the samples and layouts of images), and each tensor at most three times; the weights load into the module with
strict=True.  Some also run on two ranks, against two micro-batches on one.  What draws random numbers has other losses
than PyTorch: they are finite, and the same in a second run.

usage: python zoo.py SHARDC WORKDIR [--quick] [--cases a,b] [--exporters dynamo,torchscript] [--docs FILE]
       --docs writes the table of docs/models.md
"""
import argparse
import copy
import math
import multiprocessing
import pathlib
import re
import resource
import shutil
import sys
import time
import traceback
import warnings

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "python")]

import generative  # noqa: E402
import other  # noqa: E402
import recurrent  # noqa: E402
import text  # noqa: E402
import vision  # noqa: E402
from case import BATCH  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import shardc  # noqa: E402
from shardc.programs import Program, read_safetensors  # noqa: E402

FAMILIES = {"text": text, "vision": vision, "recurrent": recurrent, "generative": generative,
            "sound, tables, graphs, series": other}
CASES = {name: case for module in FAMILIES.values() for name, case in module.CASES.items()}
STEPS, TURNS = 5, 3
LOSS_FLOOR, LOSS_FACTOR, TENSOR_FLOOR, TENSOR_FACTOR, RANKS_BOUND = 2e-7, 2, 1e-5, 3, 1e-5
HYPER = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
FLAGS = "--lr 1e-3 --betas 0.9,0.999 --eps 1e-8 --weight-decay 0.01 --threads 2".split()
TIMED = 20  # steps


class Failed(Exception):
    pass


def make(case):
    torch.manual_seed(0)
    return case.build().train()


def data_of(case):
    torch.manual_seed(7)
    return case.data(BATCH * (STEPS + 1))


def batch_of(data, i, turn=0):
    return {k: t[BATCH * i:BATCH * (i + 1)].roll(turn, 0) for k, t in data.items()}


def loss_of(case, module, batch):
    batch = dict(batch)
    labels, target = batch.pop("labels", None), batch.pop("target", None)
    result = module(**batch)
    if case.loss == "output:loss":
        return result["loss"]
    result = result[case.output] if case.output else result
    if case.loss == "mse":
        return F.mse_loss(result, target)
    if case.loss == "bce_with_logits":
        return F.binary_cross_entropy_with_logits(result, target)
    return F.cross_entropy(result.reshape(-1, result.shape[-1]), labels.reshape(-1))


# ---- PyTorch ----

def torch_run(case, module, data, dtype, turn=0, layout=torch.contiguous_format):
    """(losses, state_dict behind STEPS steps)"""
    module = copy.deepcopy(module).to(dtype=dtype, memory_format=layout)
    data = {k: t.contiguous(memory_format=layout) if t.dim() == 4 else t for k, t in data.items()}
    optimizer = torch.optim.AdamW(module.parameters(), **HYPER)
    losses, state = [], None
    for i in range(STEPS + 1):
        batch = {k: t.to(dtype) if t.is_floating_point() else t for k, t in batch_of(data, i, turn).items()}
        if i == STEPS:
            state = {k: v.clone() for k, v in module.state_dict().items()}
        loss = loss_of(case, module, batch)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses, state


def timed(name, pipe):
    """In a process of its own: seconds of a step, and peak bytes of the process."""
    torch.set_num_threads(2)
    case = CASES[name]
    module, data = make(case), data_of(case)
    optimizer = torch.optim.AdamW(module.parameters(), **HYPER)
    best = math.inf
    for i in range(TIMED):
        batch = batch_of(data, i % STEPS)
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss_of(case, module, batch).backward()
        optimizer.step()
        best = min(best, time.perf_counter() - begin)
    pipe.send((best, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def torch_timing(name):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=timed, args=(name, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return math.nan, math.nan
    finally:
        process.join()


# ---- ours ----

class Ours:
    def __init__(self, args, case, path, data):
        self.case, self.path = case, path
        work = path.parent / path.stem
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        self.program = Program(args.shardc, path, work, args.limit)
        names = [i.name for i in self.program.inputs]
        loss = {k: data[k] for k in ("labels", "target") if k in data}
        given = {k: t for k, t in data.items() if k not in loss}
        self.tensors = {n: given[n] if n in given else t for n, t in zip(names, given.values())} | loss

    def compile(self, *flags):
        begin = time.time()
        self.program.compile(self.tensors, self.case.loss, "--optimizer=adamw", *flags)
        return time.time() - begin

    def train(self, steps, *flags):
        return self.program.train(self.tensors, steps, *FLAGS, *flags)[0]

    def state(self):
        """What PyTorch would load."""
        file = self.program.folder / "state.safetensors"
        file.unlink(missing_ok=True)
        self.program.run(self.program.compiler, "ckpt", "export", "save", "--onnx", self.path, "-o", file)
        return read_safetensors(file)

    def timing(self):
        """(seconds of a step, peak bytes of the process)"""
        self.train(TIMED)
        log = (self.program.folder / "log.jsonl").read_text()
        times = [float(t) for t in re.findall(r'"step_ms": *([0-9.e+-]+)', log)]
        return min(times) / 1e3 if times else math.nan


def off(losses, wanted):
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(losses, wanted))


def tensor_errors(state, wanted):
    return {n: (state[n].double() - t.double()).norm().item() / max(t.double().norm().item(), 1e-3)
            for n, t in wanted.items() if t.is_floating_point()}


def check_random(ours):
    losses = ours.train(STEPS + 1)
    again = ours.train(STEPS + 1)
    if not all(map(math.isfinite, losses)) or losses != again or len(set(losses)) == 1:
        raise Failed(f"losses {losses}, and in a second run {again}")
    return "draws, finite and repeatable"


def check_exact(case, module, data, ours):
    wanted, state64 = torch_run(case, module, data, torch.float64)
    layouts = [torch.contiguous_format] + [torch.channels_last] * any(t.dim() == 4 for t in data.values())
    peers = [torch_run(case, module, data, torch.float32, turn, x) for turn in range(TURNS) for x in layouts]
    own = max(off(p[0], wanted) for p in peers)
    losses = ours.train(STEPS + 1)
    error = off(losses, wanted)
    told = f"loss off by {error:.0e} (PyTorch {own:.0e})"
    if len(losses) != STEPS + 1 or not error <= LOSS_FACTOR * max(own, LOSS_FLOOR):
        raise Failed(f"{told}: losses {losses}, wanted {wanted}\n{ours.program.said}")
    ours.train(STEPS)
    state = ours.state()
    module.load_state_dict(state, strict=True)
    theirs = [tensor_errors(p[1], state64) for p in peers]
    errors = {n: (e, max(t[n] for t in theirs)) for n, e in tensor_errors(state, state64).items()}
    bad = [f"{n} is off by {e:.1e} (PyTorch {t:.1e})" for n, (e, t) in errors.items()
           if not e <= TENSOR_FACTOR * max(t, TENSOR_FLOOR)]
    if bad:
        raise Failed(f"{told}; {'; '.join(bad)}\n{ours.program.said}")
    return f"{told}, tensors by {max(e for e, _ in errors.values()):.0e}"


def check_ranks(ours):
    ours.compile("--accum=many")
    alone = ours.train(3, "--accum", 2)
    two = ours.train(3, "--ranks", 2)
    if len(alone) != 3 or not off(two, alone) <= RANKS_BOUND:
        raise Failed(f"two ranks: losses {two}, one rank {alone}")
    return f"; two ranks off by {off(two, alone):.0e}"


def run(args, name, exporter):
    """A row of the table: (what was found, seconds of compilation, ms of a step, PyTorch's, ..)"""
    case, module = CASES[name], make(CASES[name])
    path = args.work / f"{re.sub('[^A-Za-z0-9]+', '-', name)}-{exporter}.onnx"
    data = data_of(case)
    batch = {k: t for k, t in batch_of(data, 0).items() if k not in ("labels", "target")}
    outputs = [case.output] if case.output else ["loss"] if case.loss == "output:loss" else None
    shardc.export(module, batch, path, exporter, outputs=outputs, opset=case.opset.get(exporter))
    ours = Ours(args, case, path, data)
    compiled = ours.compile()
    planned = re.search(r"^  total +(\d+)", ours.program.said, re.M)
    told = check_random(ours) if case.random else check_exact(case, module, data, ours)
    step = ours.timing()
    if case.ranks:
        told += check_ranks(ours)
    return told, compiled, step, int(planned[1]) if planned else math.nan


# ---- the table ----

def megabytes(n):
    return f"{n / 2**20:.1f}"


def table(rows):
    """rows: {name: {exporter: row or text}}"""
    lines = ["| model | by dynamo | by TorchScript | compile, s | step, ms | PyTorch | planned, MiB | process of PyTorch, MiB |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for family, module in FAMILIES.items():
        lines.append(f"| **{family}** | | | | | | | |")
        for name in module.CASES:
            found = rows.get(name, {})
            good = [r for r in found.values() if isinstance(r, tuple)]
            words = [found[e][0] if isinstance(found.get(e), tuple) else found.get(e, "") for e in ("dynamo", "torchscript")]
            numbers = ["", "", "", "", ""]
            if good:
                seconds, peak = found["PyTorch"]
                numbers = [f"{good[0][1]:.1f}", f"{good[0][2] * 1e3:.2f}", f"{seconds * 1e3:.2f}", megabytes(good[0][3]),
                           megabytes(peak)]
            lines.append(f"| {name} | {' | '.join(words + numbers)} |")
    return "\n".join(lines) + "\n"


def write_table(path, rows):
    """The table is the end of the document."""
    head = path.read_text().split("\n| model | by dynamo |")[0].rstrip("\n")
    path.write_text(f"{head}\n\n{table(rows)}")


# ---- runs ----

def selected(args):
    for name, case in CASES.items():
        if args.cases and name not in args.cases.split(","):
            continue
        for exporter in args.exporters.split(","):
            if not args.quick or case.quick == exporter:
                yield name, exporter


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc", type=lambda s: pathlib.Path(s).resolve())
    p.add_argument("work", type=lambda s: pathlib.Path(s).resolve())
    p.add_argument("--quick", action="store_true", help="some of the models, each by one exporter")
    p.add_argument("--cases")
    p.add_argument("--exporters", default="dynamo,torchscript")
    p.add_argument("--docs", type=pathlib.Path)
    p.add_argument("--limit", type=int, default=120, help="seconds for a compile and for a run")
    args = p.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    rows, failed, count = {}, 0, 0
    for name, exporter in selected(args):
        begin = time.time()
        row = rows.setdefault(name, {})
        if exporter in CASES[name].beyond:
            row[exporter] = CASES[name].beyond[exporter]
            continue
        count += 1
        try:
            row[exporter] = run(args, name, exporter)
            print(f"ok   {name} by {exporter}: {row[exporter][0]}  ({time.time() - begin:.1f} s)", flush=True)
        except Exception as e:
            failed += 1
            row[exporter] = "fails"
            print(f"FAIL {name} by {exporter}: {e if isinstance(e, (Failed, shardc.ExportError, shardc.CheckError)) else traceback.format_exc()}  "
                  f"({time.time() - begin:.1f} s)", flush=True)
        if args.docs and "PyTorch" not in row:
            row["PyTorch"] = torch_timing(name)
    if args.docs:
        write_table(args.docs, rows)
    print(f"zoo: {count - failed} of {count} passed")
    sys.exit(failed > 0 or not count)


if __name__ == "__main__":
    main()
