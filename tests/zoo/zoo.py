"""Models that people train, in small configurations, exported by shardc.export and trained beside PyTorch.

Five steps of AdamW: each loss, and the one behind them, is at most twice as far off PyTorch's in f64 as PyTorch's own in
f32 is (over several orders of the samples and layouts of images), and each tensor at most three times; the weights load
into the module with strict=True.  Some also run on two ranks, against two micro-batches on one.  What draws random numbers has other losses
than PyTorch: they are finite, and the same in a second run.

usage: python zoo.py SHARDC WORKDIR [--quick] [--every N [--from K]] [--cases 'a;b'] [--exporters dynamo,torchscript] [--rows FILE] [--docs FILE]
       --docs times the programs beside PyTorch, and writes the table of docs/models.md
       --rows keeps what was found in a file: what passed is not run again, so that the table can be made in several runs
"""
import argparse
import copy
import json
import math
import multiprocessing
import pathlib
import re
import resource
import shutil
import subprocess
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
import research  # noqa: E402
import text  # noqa: E402
import vision  # noqa: E402
from case import BATCH  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import shardc  # noqa: E402
from shardc.programs import Program, read_safetensors  # noqa: E402

FAMILIES = {"text": text, "vision": vision, "recurrent": recurrent, "generative": generative,
            "sound, tables, graphs, series": other, "papers": research}
CASES = {name: case for module in FAMILIES.values() for name, case in module.CASES.items()}
STEPS, TURNS = 5, 3
LOSS_FLOOR, LOSS_FACTOR, TENSOR_FLOOR, TENSOR_FACTOR, RANKS_BOUND = 2e-7, 2, 1e-5, 3, 1e-5
NO_GRADIENT = 1e-12  # of the largest in the module: in f64 rounding alone
HYPER = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
FLAGS = "--lr 1e-3 --betas 0.9,0.999 --eps 1e-8 --weight-decay 0.01".split()
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
    """(losses, state_dict behind STEPS steps, {parameter: the largest gradients of its elements})"""
    module = copy.deepcopy(module).to(dtype=dtype, memory_format=layout)
    data = {k: t.contiguous(memory_format=layout) if t.dim() == 4 else t for k, t in data.items()}
    optimizer = torch.optim.AdamW(module.parameters(), **HYPER)
    losses, state, seen = [], None, {}
    for i in range(STEPS + 1):
        batch = {k: t.to(dtype) if t.is_floating_point() else t for k, t in batch_of(data, i, turn).items()}
        if i == STEPS:
            state = {k: v.clone() for k, v in module.state_dict().items()}
        loss = loss_of(case, module, batch)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        for name, p in module.named_parameters():
            if p.grad is not None:
                seen[name] = torch.maximum(seen.get(name, torch.zeros_like(p)), p.grad.abs())
        optimizer.step()
    return losses, state, seen


def timed(name, threads, fused, pipe):
    """In a process of its own: the best seconds of a step, and peak bytes of the process."""
    torch.set_num_threads(threads)
    case = CASES[name]
    module, data = make(case), data_of(case)
    optimizer = torch.optim.AdamW(module.parameters(), fused=fused, **HYPER)
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
    """(seconds of a step, peak bytes) of the fastest of PyTorch's configurations."""
    context = multiprocessing.get_context("forkserver")  # which has the modules loaded, and runs nothing itself
    context.set_forkserver_preload(["onnx", "torch.optim", "transformers.modeling_utils"])
    found = [(math.nan, math.nan)]
    for threads, fused in ((1, True), (2, True), (2, False)):
        ours, theirs = context.Pipe()
        process = context.Process(target=timed, args=(name, threads, fused, theirs))
        process.start()
        theirs.close()
        try:
            found.append(ours.recv())
        except EOFError:
            pass
        process.join()
    return min(found[1:] or found)


# ---- ours ----

class Watched(Program):
    """Knows how much memory its last run took."""
    peak = math.nan

    def run(self, *parts):
        if parts[0] != self.folder / "train":
            return super().run(*parts)
        said = self.folder / "said.txt"
        with said.open("w") as file, subprocess.Popen([str(p) for p in parts], stdout=file, stderr=subprocess.STDOUT,
                                                      cwd=self.folder) as process:
            self.watch(process)
        if process.returncode:
            raise Failed(f"{' '.join(map(str, parts))}\nexit {process.returncode}\n{said.read_text()[-3000:]}")
        return said.read_text()

    def watch(self, process):
        """The kernel's own mark, as long as the process is there; not that of resource, which this process is a part of."""
        end = time.time() + self.limit
        while process.poll() is None:
            if mark := re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{process.pid}/status").read_text()):
                self.peak = int(mark[1]) * 1024
            time.sleep(0.002)
            if time.time() > end:
                process.kill()
                raise Failed(f"a run did not end within {self.limit} s")


class Ours:
    def __init__(self, args, case, path, data, kind=""):
        self.case, self.path = case, path
        work = path.parent / (path.stem + kind)
        work.mkdir(exist_ok=True)
        self.program = Watched(args.shardc, path, work, args.limit)
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
        """(the best seconds of a step, peak bytes of the process)"""
        found = [(math.nan, math.nan)]
        for threads in (1, 2):
            self.train(TIMED, "--threads", threads)
            log = (self.program.folder / "log.jsonl").read_text()
            times = [float(t) for t in re.findall(r'"step_ms": *([0-9.e+-]+)', log)]
            found += [(min(times) / 1e3, self.program.peak)] * bool(times)
        return min(found[1:] or found)


def off(losses, wanted):
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(losses, wanted))


def noise_of(seen):
    """{parameter: its elements whose true gradient is zero}: AdamW moves these (a bias of keys) by rounding errors."""
    most = max(t.max().item() for t in seen.values())
    return {n: (t > 0) & (t <= NO_GRADIENT * most) for n, t in seen.items()}


def tensor_errors(state, wanted, noise):
    errors = {}
    for n, t in wanted.items():
        if t.is_floating_point():
            gap = state[n].double() - t.double()
            if n in noise:
                gap = gap.masked_fill(noise[n], 0)
            errors[n] = gap.norm().item() / max(t.double().norm().item(), 1e-3)
    return errors


def strays(state, wanted, noise):
    """Parameters whose elements without a gradient went further than AdamW takes anything."""
    bound = 2 * HYPER["lr"] * STEPS
    return [n for n, m in noise.items() if m.any() and (state[n].double() - wanted[n]).abs()[m].max() > bound]


def check_random(ours):
    losses = ours.train(STEPS + 1, "--threads", 1)
    again = ours.train(STEPS + 1, "--threads", 1)
    if not all(map(math.isfinite, losses)) or losses != again or len(set(losses)) == 1:
        raise Failed(f"losses {losses}, and in a second run {again}")
    return "draws, finite and repeatable"


def check_exact(case, module, data, ours):
    wanted, state64, seen = torch_run(case, module, data, torch.float64)
    images = any(t.dim() == 4 for t in data.values()) and all(p.dim() < 5 for p in module.parameters())
    layouts = [torch.contiguous_format] + [torch.channels_last] * images
    peers = [torch_run(case, module, data, torch.float32, turn, x) for turn in range(TURNS) for x in layouts]
    own = max(off(p[0], wanted) for p in peers)
    losses = ours.train(STEPS + 1, "--threads", 1)
    error = max(off(losses, wanted), off(ours.train(STEPS, "--threads", 2), wanted))
    told = f"loss off by {error:.0e} (PyTorch {own:.0e})"
    if len(losses) != STEPS + 1 or not error <= LOSS_FACTOR * max(own, LOSS_FLOOR):
        raise Failed(f"{told}: losses {losses}, wanted {wanted}\n{ours.program.said}")
    state, noise = ours.state(), noise_of(seen)
    module.load_state_dict(state, strict=True)
    theirs = [tensor_errors(p[1], state64, noise) for p in peers]
    errors = {n: (e, max(t[n] for t in theirs)) for n, e in tensor_errors(state, state64, noise).items()}
    bad = [f"{n} is off by {e:.1e} (PyTorch {t:.1e})" for n, (e, t) in errors.items()
           if not e <= TENSOR_FACTOR * max(t, TENSOR_FLOOR)]
    bad += [f"{n} moved where it has no gradient" for n in strays(state, state64, noise)]
    if bad:
        raise Failed(f"{told}; {'; '.join(bad)}\n{ours.program.said}")
    return f"{told}, tensors by {max(e for e, _ in errors.values()):.0e}"


def check_ranks(args, case, path, data):
    ours = Ours(args, case, path, data, "-ranks")
    ours.compile("--accum=many")
    alone = ours.train(3, "--accum", 2, "--threads", 1)
    two = ours.train(3, "--ranks", 2, "--threads", 1)
    if len(alone) != 3 or not off(two, alone) <= RANKS_BOUND:
        raise Failed(f"two ranks: losses {two}, one rank {alone}")
    return f"; two ranks off by {off(two, alone):.0e}"


def file_of(args, name, exporter):
    return args.work / f"{re.sub('[^A-Za-z0-9]+', '-', name)}-{exporter}.onnx"


def run(args, name, exporter):
    """What was found: (words, seconds of compilation, planned bytes)"""
    case, module, path = CASES[name], make(CASES[name]), file_of(args, name, exporter)
    data = data_of(case)
    batch = {k: t for k, t in batch_of(data, 0).items() if k not in ("labels", "target")}
    outputs = [case.output] if case.output else ["loss"] if case.loss == "output:loss" else None
    shutil.rmtree(path.parent / path.stem, ignore_errors=True)
    shardc.export(module, batch, path, exporter, outputs=outputs, opset=case.opset.get(exporter))
    ours = Ours(args, case, path, data)
    compiled = ours.compile()
    planned = re.search(r"^  total +(\d+)", ours.program.said, re.M)
    told = check_random(ours) if case.random else check_exact(case, module, data, ours)
    if case.ranks:
        told += check_ranks(args, case, path, data)
    return told, compiled, int(planned[1]) if planned else math.nan


# ---- the table ----

def megabytes(n):
    return f"{n / 2**20:.2f}" if n < 2**20 else f"{n / 2**20:.1f}"


def timing(args, name, row):
    """(ours, PyTorch's), each (the best seconds of a step, peak bytes of the process)"""
    exporter = next(e for e in ("dynamo", "torchscript") if not isinstance(row.get(e, ""), str))
    case = CASES[name]
    return Ours(args, case, file_of(args, name, exporter), data_of(case)).timing(), torch_timing(name)


def numbers_of(good, times):
    """times: None where nothing was timed."""
    _, compiled, planned = good
    if not times:
        return [f"{compiled:.1f}", "", "", "", megabytes(planned), "", ""]
    (step, peak), (peer, its_peak) = times
    return [f"{compiled:.1f}", f"{step * 1e3:.2f}", f"{peer * 1e3:.2f}", f"{peer / step:.1f}", megabytes(planned),
            megabytes(peak), megabytes(its_peak)]


def table(rows):
    """rows: {name: {exporter: what was found or text, "times": ..}}"""
    lines = ["| model | by dynamo | by TorchScript | compile, s | step, ms | PyTorch, ms | ratio | planned, MiB | process, MiB "
             "| PyTorch's, MiB |", "| --- " * 10 + "|"]
    for family, module in FAMILIES.items():
        lines.append(f"| **{family}** " + "| " * 9 + "|")
        for name in module.CASES:
            found = rows.get(name, {})
            results = [found.get(e, "") for e in ("dynamo", "torchscript")]
            words = [r if isinstance(r, str) else r[0] for r in results]
            good = [r for r in results if not isinstance(r, str)]
            numbers = numbers_of(good[0], found.get("times")) if good else [""] * 7
            lines.append(f"| {name} | {' | '.join(words + numbers)} |")
    return "\n".join(lines) + "\n"


def write_table(path, rows):
    """The table is the end of the document."""
    head = path.read_text().split("\n| model | by dynamo |")[0].rstrip("\n")
    path.write_text(f"{head}\n\n{table(rows)}")


# ---- runs ----

def selected(args):
    pairs = [(name, exporter) for name, case in CASES.items() if not args.cases or name in args.cases
             for exporter in args.exporters.split(",") if not args.quick or case.quick == exporter]
    return pairs[args.first::args.every]


def keep(args, rows):
    if args.rows:
        args.rows.write_text(json.dumps(rows))


def check_all(args, rows):
    """(how many ran, how many failed)"""
    count = failed = 0
    for name, exporter in selected(args):
        begin, row = time.time(), rows.setdefault(name, {})
        if exporter in CASES[name].beyond:
            row[exporter] = CASES[name].beyond[exporter]
        if exporter in CASES[name].beyond or row.get(exporter, "fails") != "fails":
            continue
        count += 1
        row.pop("times", None)
        try:
            row[exporter] = run(args, name, exporter)
            print(f"ok   {name} by {exporter}: {row[exporter][0]}  ({time.time() - begin:.1f} s)", flush=True)
        except Exception as e:
            failed += 1
            row[exporter] = "fails"
            known = isinstance(e, (Failed, shardc.ExportError, shardc.CheckError))
            print(f"FAIL {name} by {exporter}: {e if known else traceback.format_exc()}  ({time.time() - begin:.1f} s)", flush=True)
        keep(args, rows)
    return count, failed


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc", type=lambda s: pathlib.Path(s).resolve())
    p.add_argument("work", type=lambda s: pathlib.Path(s).resolve())
    p.add_argument("--quick", action="store_true", help="some of the models, each by one exporter")
    p.add_argument("--every", type=int, default=1, help="each N-th of them ..")
    p.add_argument("--from", type=int, default=0, dest="first", help=".. from the K-th on")
    p.add_argument("--cases", type=lambda s: s.split(";"))
    p.add_argument("--exporters", default="dynamo,torchscript")
    p.add_argument("--docs", type=pathlib.Path)
    p.add_argument("--rows", type=pathlib.Path)
    p.add_argument("--limit", type=int, default=120, help="seconds for a compile and for a run")
    args = p.parse_args()
    if unknown := set(args.cases or []) - set(CASES):
        p.error(f"no case is called {', '.join(sorted(unknown))}")
    args.work.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # small tensors
    rows = json.loads(args.rows.read_text()) if args.rows and args.rows.exists() else {}
    count, failed = check_all(args, rows)
    if args.docs:
        for name in [n for n, row in rows.items() if "times" not in row and any(not isinstance(r, str) for r in row.values())]:
            rows[name]["times"] = timing(args, name, rows[name])
            print(f"timed {name}", flush=True)
            keep(args, rows)
        write_table(args.docs, rows)
    print(f"zoo: {count - failed} of {count} passed")
    sys.exit(failed > 0 or not rows)


if __name__ == "__main__":
    main()
