"""Small models of the structure of configs.MODELS train to PyTorch's digits.

Five steps of SGD with momentum on one rank and on two, in f32 and in bf16, with each set of options: weights against
PyTorch in f64 that sees all samples of a step.  What the steps changed in all weights together may be off by three
times PyTorch's own error (f32; bf16: the module and its gradients in bf16, masters in f32), and so may each loss.

PyTorch draws other numbers for dropout, so there a program is held against the one without options: masks do not
depend on options, and without dropout losses are others.

usage: train.py SHARDC WORKDIR [--models a,b] [--jobs 2]
"""
import argparse
import concurrent.futures
import copy
import dataclasses
import itertools
import json
import logging
import pathlib
import subprocess
import sys
import warnings

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

import configs
from models import BUILD

STEPS, MOMENTUM, RANKS = 5, 0.9, (1, 2)
FLOOR = {"f32": 1e-6, "bf16": 1e-3}  # of errors that PyTorch happens not to make
TINY = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=160, vocab_size=320,
            rope_theta=1e4)
SMALL = {
    "llama": configs.llama(32, 2, **TINY),
    "llama-mha": configs.llama(32, 2, **TINY | {"num_key_value_heads": 4}),
    "llama-long": configs.llama(160, 2, **TINY),
    "qwen": configs.qwen(32, 3, **TINY),
    "gpt2": configs.gpt2(32, 3, n_embd=64, n_head=4, vocab_size=320, attn_pdrop=0, resid_pdrop=0, embd_pdrop=0),
    "gpt2-dropout": configs.gpt2(32, 2, n_embd=64, n_head=4, vocab_size=320),
    "vit": configs.vit(32, 2, 1, hidden_size=64, num_attention_heads=4, intermediate_size=160, patch_size=8,
                       num_labels=10),
    "resnet": configs.resnet(32, [2, 2], 1, embedding_size=16, hidden_sizes=[32, 64], num_labels=10),
}
# Batch norms amplify rounding: with larger steps a value crosses a relu's kink by chance, and in bf16 PyTorch itself is
# off by a third of what steps change, so that three times as much would say nothing.
BATCH, LR, FACTOR = ({"resnet": 32}, 2), ({"resnet": 0.002}, 0.05), ({"resnet": 1.5}, 3)
# Rows of logits at a time, fewer than a rank has.
CHUNK = {"vit": 1}, 16
# Each new form on and off: recomputed blocks, logits by chunks, MLPs by tiles, units smaller and larger than blocks.
OPTIONS = {
    "plain": [],
    "tiles": ["--tile-rows=16", "--remat=block"],
    "chunks": ["--loss-chunk=N", "--remat=block"],
    "pieces": ["--loss-chunk=off", "--remat=block", "--wrap=size:5000"],
    "kept": ["--loss-chunk=off", "--strategy=shard_grad_op", "--wrap=each", "--tile-rows=16"],
}
# What -v says of products by weights that lie together (gate and up; q, k and v) and of columns of one product, if
# blocks are whole.
ONCE = {"llama": "{} give gradients to what those read", "gpt2": "those of {} written there"}
PRECISION = {"f32": [], "bf16": ["--param-dtype=bf16"]}


@dataclasses.dataclass
class Case:
    name: str
    model: configs.Model
    module: torch.nn.Module
    path: pathlib.Path

    def number(self, table):
        special, usual = table
        return special.get(self.name, usual)

    @property
    def batch(self):
        return self.number(BATCH)

    @property
    def sync(self):
        return ["--bn-sync=sync"] if self.model.family == "resnet" else []

    def data(self, ranks):
        g = torch.Generator().manual_seed(1)
        n = STEPS * ranks * self.batch
        if self.model.tokens:
            vocab = self.model.size["vocab_size"]
            return [torch.randint(0, vocab, (n, *self.model.sample), generator=g) for _ in range(2)]
        return torch.randn(n, *self.model.sample, generator=g), torch.randint(0, 10, (n,), generator=g)


def exported(name, work):
    model = SMALL[name]
    torch.manual_seed(3)
    layers = next(iter(model.layers.values()))
    module = BUILD[model.family](model, layers).train()
    case = Case(name, model, module, work / f"{name}.onnx")
    x = case.data(1)[0][:case.batch]
    program = torch.onnx.export(copy.deepcopy(module), (x,), dynamo=True, optimize=False, verbose=False,
                                input_names=["x"], output_names=["logits"])
    program.save(str(case.path), external_data=True)
    return case


# ---- PyTorch ----

def trained(case, ranks, dtype):
    """(losses, weights) of PyTorch; bf16: the module computes in it, masters are f32."""
    x, labels = case.data(ranks)
    module, size = copy.deepcopy(case.module), ranks * case.batch
    module = module.to(torch.float32 if dtype == torch.bfloat16 else dtype)
    at_work = copy.deepcopy(module).to(dtype)
    masters, working = list(module.parameters()), list(at_work.parameters())
    optimizer, losses = torch.optim.SGD(masters, lr=case.number(LR), momentum=MOMENTUM), []
    for i in range(0, len(x), size):
        with torch.no_grad():
            for w, master in zip(working, masters):
                w.copy_(master)
        at_work.zero_grad()
        logits = at_work(x[i:i + size] if case.model.tokens else x[i:i + size].to(dtype))
        logits = logits.reshape(-1, logits.shape[-1])
        loss = F.cross_entropy(logits if dtype == torch.float64 else logits.float(), labels[i:i + size].reshape(-1))
        loss.backward()
        for w, master in zip(working, masters):
            master.grad = None if w.grad is None else w.grad.to(master.dtype)
        optimizer.step()
        losses.append(loss.item())
    return losses, {n: p.detach().double() for n, p in module.named_parameters()}


# ---- shardc ----

def command(parts):
    parts = [str(p) for p in parts]
    run = subprocess.run(parts, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if run.returncode:
        raise RuntimeError(f"{' '.join(parts)}\nexit {run.returncode}\n{run.stdout[-2000:]}")
    return run.stdout


def check_forms(case, options, said):
    layers = sum(case.model.layers.values())
    once = ONCE.get(case.model.family, "").format(2 * layers if case.model.family == "llama" else layers)
    whole = case.model.family != "llama" or not any(o.startswith("--wrap") for o in options)
    if once and whole != (once in said):
        raise RuntimeError(f"{case.name}, {' '.join(options)}: whether q, k and v are one product is not as asked")
    if ("exists by 16 rows" in said) != ("--tile-rows=16" in options and case.model.family != "resnet"):
        raise RuntimeError(f"{case.name}, {' '.join(options)}: whether MLPs are computed by tiles is not as asked")


def compiled(args, case, options, precision, work):
    binary, rows = work / "train", case.number(CHUNK)
    options = [f"--loss-chunk={rows}" if o == "--loss-chunk=N" else o for o in options]
    said = command([args.shardc, case.path, "-o", binary, "--loss=cross_entropy", "--optimizer=sgd:momentum", "-O1",
                    "-v", *case.sync, *PRECISION[precision], *options])
    if (f"are computed by {rows} rows" in said) != (f"--loss-chunk={rows}" in options):
        raise RuntimeError(f"{case.name}, {' '.join(options)}: whether logits are computed by blocks is not as asked")
    check_forms(case, options, said)
    return binary


def run(binary, case, ranks, work):
    """(losses, weights) of the program."""
    x, labels = case.data(ranks)
    np.save(work / "x.npy", x.numpy())
    np.save(work / "labels.npy", labels.numpy())
    command(["rm", "-rf", work / "save", work / "log.jsonl"])
    command([binary, "--data", f"x={work}/x.npy", "--data", f"labels={work}/labels.npy", "--steps", STEPS, "--lr",
             case.number(LR), "--momentum", MOMENTUM, "--weight-decay", 0, "--ranks", ranks, "--threads", 1,
             "--save", work / "save", "--save-every", STEPS, "--log", work / "log.jsonl"])
    weights = load_file(work / "save" / f"step-{STEPS:08d}" / "model.safetensors")
    losses = [r["loss"] for r in map(json.loads, open(work / "log.jsonl")) if "loss" in r]
    return losses, {n: t.double() for n, t in weights.items()}


# ---- comparison ----

def change(case, weights):
    """What the steps changed, as one vector, by PyTorch's names of parameters."""
    start = {n: p.detach().double() for n, p in case.module.named_parameters()}
    aliases = {n: first for first, n in tied(case.module)}
    named = {aliases.get(n, n): t for n, t in weights.items()}
    return torch.cat([(named[n] - start[n]).reshape(-1) for n in start])


def tied(module):
    """(the name that PyTorch gives a tensor first, another one)"""
    first = {p.data_ptr(): n for n, p in module.named_parameters()}
    return [(first[p.data_ptr()], n) for n, p in module.named_parameters(remove_duplicate=False)]


def errors(case, got, reference):
    """(of losses, of what the steps changed), relative"""
    losses = max(abs(a - b) / abs(b) for a, b in zip(got[0], reference[0], strict=True))
    a, b = change(case, got[1]), change(case, reference[1])
    return losses, ((a - b).norm() / b.norm()).item()


def reference(case, ranks):
    """What PyTorch computes: in f64, and how far off it is itself in each precision."""
    exact = trained(case, ranks, torch.float64)
    return {"f64": exact, **{name: errors(case, trained(case, ranks, dtype), exact)
                             for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16))}}


def without_options(args, case, ranks, work):
    """The same of our own program without options, and what it would be off without dropout."""
    results = []
    for more in ([], ["--dropout=off"]):
        binary = compiled(args, case, more, "f32", work)
        results.append(run(binary, case, ranks, work))
    return {"f64": results[0], "f32": (0, 0), "bf16": (0.01, 0.05), "off": errors(case, results[1], results[0])}


def check(job):
    """Lines of the table, and sentences about misses, of one program on each number of ranks."""
    args, case, references, name, precision = job
    work = args.workdir / f"{case.name}-{name}-{precision}"
    work.mkdir(parents=True, exist_ok=True)
    lines, misses = [], []
    binary = compiled(args, case, OPTIONS[name], precision, work)
    for ranks in RANKS:
        ours = errors(case, run(binary, case, ranks, work), references[ranks]["f64"])
        theirs = references[ranks][precision]
        for what, own, bound in zip(("a loss", "the change of weights"), ours, theirs):
            if not own <= case.number(FACTOR) * max(bound, FLOOR[precision]):
                misses.append(f"{case.name}, {name}, {precision}, {ranks} ranks: {what} is off by {own:.1e}, "
                              f"PyTorch's by {bound:.1e}")
        lines.append(f"{case.name:14} {name:8} {precision:9} {ranks:5} {ours[0]:9.1e} {theirs[0]:9.1e} "
                     f"{ours[1]:9.1e} {theirs[1]:9.1e}")
    return lines, misses


def check_model(args, pool, name):
    case = exported(name, args.workdir)
    drops = name.endswith("dropout")
    references = {w: without_options(args, case, w, args.workdir) if drops else reference(case, w) for w in RANKS}
    misses = [f"{name}: dropout changes losses by {references[w]['off'][0]:.1e}" for w in RANKS
              if drops and references[w]["off"][0] < 1e-3]
    names = [o for o in OPTIONS if o != "tiles" or case.model.family != "resnet"]
    jobs = [(args, case, references, *pair) for pair in itertools.product(names, PRECISION)]
    for lines, more in pool.map(check, jobs):
        print(*lines, sep="\n", flush=True)
        misses += more
    return misses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc", type=pathlib.Path)
    parser.add_argument("workdir", type=pathlib.Path)
    parser.add_argument("--models", default=",".join(SMALL))
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    args.workdir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    print(f"{'model':14} {'options':8} {'precision':9} {'ranks':>5} {'loss':>9} {'PyTorch':>9} {'change':>9} "
          f"{'PyTorch':>9}")
    misses = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for name in args.models.split(","):
            misses += check_model(args, pool, name)
    print(*misses, sep="\n")
    print(f"train: {len(misses)} misses")
    sys.exit(bool(misses))


if __name__ == "__main__":
    main()
