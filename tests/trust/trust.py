"""Models whose graph alone does not say what is trained, exported by shardc.export, against PyTorch.

Five steps of AdamW: the loss before each of them and after the last, against PyTorch in f64, at most twice as far off
as PyTorch in f32 is (over several orders of the samples), with a floor of FLOOR; what PyTorch does not train keeps its
bits.  --plain exports without the helper, too: then the losses are equal, or what the compiler guessed is said.

usage: python trust.py SHARDC WORKDIR [--quick] [--plain] [--check] [--cases a,b] [--exporters dynamo,torchscript]
       [--log FILE]     (the commit, then one line a run, as they are printed but for the seconds)
"""
import argparse
import copy
import pathlib
import shutil
import subprocess
import sys
import time
import traceback
import warnings

import torch
from torch.nn import functional as F

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "python"))

import models  # noqa: E402
import shardc  # noqa: E402
from shardc.exporters import silent  # noqa: E402
from shardc.programs import Program  # noqa: E402

STEPS, FLOOR, FACTOR = 5, 1e-7, 2
HYPER = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
FLAGS = "--lr 1e-3 --betas 0.9,0.999 --eps 1e-8 --weight-decay 0.01".split()


class Failed(Exception):
    pass


def data_of(case, steps=STEPS + 1):
    torch.manual_seed(7)
    return case.data(models.BATCH * steps)


def batch_of(data, i, turn=0):
    return {k: t[models.BATCH * i:models.BATCH * (i + 1)].roll(turn, 0) for k, t in data.items()}


def loss_of(case, module, batch):
    batch = dict(batch)
    labels = batch.pop("labels", None)
    result = module(**batch)
    if case.loss == "output:loss":
        return result["loss"]
    logits = result["logits"] if case.outputs else result
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def torch_run(case, module, data, dtype, turn=0):
    """(losses, the module afterwards)"""
    module = copy.deepcopy(module).to(dtype)
    optimizer = torch.optim.AdamW(module.parameters(), **HYPER)
    losses = []
    for i in range(STEPS + 1):
        batch = {k: t.to(dtype) if t.is_floating_point() else t for k, t in batch_of(data, i, turn).items()}
        loss = loss_of(case, module, batch)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses, module


def off(losses, wanted):
    return max(abs(a - b) / abs(b) for a, b in zip(losses, wanted))


def untouched(module, after):
    """Names of parameters that PyTorch left as they were."""
    now = dict(after.named_parameters())
    return [n for n, p in module.named_parameters() if torch.equal(p.double(), now[n].double())]


def compiled_run(args, case, path, data):
    """(losses, the model's tensors, what the compiler said) of five steps of ours, and a loss behind them."""
    work = path.parent / path.stem
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    program = Program(args.shardc, path, work, args.limit)
    names = [i.name for i in program.inputs]
    given = {k: t for k, t in data.items() if k != "labels"}
    tensors = {n: given[n] if n in given else t for n, t in zip(names, given.values())}
    if "labels" in data:
        tensors["labels"] = data["labels"]
    program.compile(tensors, case.loss, "--optimizer=adamw")
    losses, model, _ = program.train(tensors, STEPS + 1, *FLAGS)
    return losses, model, program.said


def compare(args, name, exporter, path):
    """Raises when the program trains something else; says how far off its losses are."""
    case, module = models.CASES[name], models.make(name)
    data = data_of(case)
    wanted, after = torch_run(case, module, data, torch.float64)
    own = max(off(torch_run(case, module, data, torch.float32, turn)[0], wanted) for turn in range(models.BATCH))
    losses, model, said = compiled_run(args, case, path, data)
    error = off(losses, wanted)
    moved = [n for n in untouched(module, after) if n in model and not torch.equal(model[n], module.get_parameter(n))]
    told = f"loss off by {error:.1e}, PyTorch f32 by {own:.1e}"
    if len(losses) != STEPS + 1 or not error <= FACTOR * max(own, FLOOR):
        raise Failed(f"{told}: losses {losses}, wanted {wanted}\n{said}")
    if moved:
        raise Failed(f"PyTorch does not train {', '.join(moved)}\n{said}")
    return told


def by_helper(args, name, exporter):
    case, path = models.CASES[name], args.work / f"{name}-{exporter}.onnx"
    module = models.make(name)
    batch = batch_of(data_of(case), 0)
    labels = batch.pop("labels", None)
    outputs = list(case.outputs) or None
    shardc.export(module, batch, path, exporter, outputs=outputs)
    if args.check:
        report = shardc.check(module, batch, path, case.loss, labels, outputs=outputs, shardc=args.shardc, show=False,
                              limit=args.limit)
        if not report:
            raise Failed(str(report))
    return compare(args, name, exporter, path)


# ---- without the helper ----

class Flat(torch.nn.Module):
    """The tensor of a model that returns a dataclass."""

    def __init__(self, inner, names, output):
        super().__init__()
        self.inner, self.names, self.output = inner, names, output

    def forward(self, *tensors):
        result = self.inner(**dict(zip(self.names, tensors)))
        return result[self.output] if self.output else result


def plain_export(flat, tensors, path, exporter, names):
    """As the README says to."""
    if exporter == "dynamo":
        torch.onnx.export(flat, tensors, dynamo=True, optimize=False, verbose=False, **names).save(path)
    else:
        torch.onnx.export(flat, tensors, path, dynamo=False, opset_version=17, do_constant_folding=False,
                          training=torch.onnx.TrainingMode.TRAINING, **names)


def plainly(args, name, exporter):
    """Equal to PyTorch, or the compiler says what it guessed."""
    case, path = models.CASES[name], args.work / f"{name}-{exporter}-plain.onnx"
    batch = batch_of(data_of(case), 0)
    batch.pop("labels", None)
    flat = Flat(models.make(name), list(batch), "loss" if case.loss == "output:loss" else "".join(case.outputs)).train()
    more = dict(input_names=list(batch), output_names=["loss" if case.loss == "output:loss" else "logits"])
    try:
        with silent():
            plain_export(flat, tuple(batch.values()), path, exporter, more)
    except Exception as e:  # its own limits
        if exporter not in case.unwritten:
            raise
        return f"PyTorch's exporter does not write it: {type(e).__name__}"
    if exporter in case.unwritten:
        raise Failed("PyTorch's exporter writes it now: take it out of `unwritten`")
    try:
        return compare(args, name, exporter, path)
    except Failed as e:
        said = [word for word in ("is guessed", "suspect", *["no trace of no_grad"] * case.stops) if word in str(e)]
        if said:
            return f"differs, and the compiler says so ({said[0]})"
        raise
    except shardc.CheckError as e:
        if "exit 1\n" in str(e):
            return f"refused: {str(e).splitlines()[2][-150:]}"
        raise


# ---- runs ----

def selected(args):
    for name, case in models.CASES.items():
        if args.cases and name not in args.cases.split(","):
            continue
        for exporter in args.exporters.split(","):
            if not args.quick or case.quick == exporter:
                yield name, exporter


def attempt(log, what, function, *parameters):
    begin = time.time()
    try:
        told, good = function(*parameters), True
    except Exception as e:
        told, good = str(e) if isinstance(e, Failed) else traceback.format_exc(), False
    line = f"{'ok  ' if good else 'FAIL'} {what}: {told}"
    print(f"{line}  ({time.time() - begin:.1f} s)", flush=True)
    note(log, line)
    return good


def commit():
    """Of the tree that is tested, with "-dirty" where files differ from it."""
    told = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, stdout=subprocess.PIPE, text=True)
    return told.stdout.strip() or "unknown"


def note(log, line):
    if log:
        with open(log, "a") as f:
            print(line, file=f)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc", type=lambda s: pathlib.Path(s).resolve())
    p.add_argument("work", type=lambda s: pathlib.Path(s).resolve())
    p.add_argument("--quick", action="store_true", help="some of the models, each by one exporter")
    p.add_argument("--plain", action="store_true", help="exported without the helper, too")
    p.add_argument("--check", action="store_true", help="shardc.check of each, too")
    p.add_argument("--cases")
    p.add_argument("--exporters", default="dynamo,torchscript")
    p.add_argument("--log", type=pathlib.Path, help="file for the results, written anew")
    p.add_argument("--limit", type=int, default=120, help="seconds for a compile and for a run")
    args = p.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    results = []
    if args.log:
        args.log.write_text(f"commit {commit()}\n")
    for name, exporter in selected(args):
        if exporter not in models.CASES[name].beyond:
            results.append(attempt(args.log, f"{name} by {exporter}", by_helper, args, name, exporter))
        if args.plain:
            results.append(attempt(args.log, f"{name} by {exporter}, without the helper", plainly, args, name, exporter))
    told = f"trust: {sum(results)} of {len(results)} passed"
    print(told)
    note(args.log, told)
    sys.exit(not all(results) or not results)


if __name__ == "__main__":
    main()
