"""Gradients of every ONNX operator that shardc takes, against finite differences and against PyTorch.

Each case of cases.py is a model of one node or a few; its loss is a random combination of the results.  Compared are
  rule      gradients by the compiler's rules, evaluated in f64, with central differences of the f64 evaluation: 1e-6
  torch     the same with PyTorch's autograd through the same nodes (torch_ops.py), in f64: 1e-6
  program   gradients of a compiled f32 program with PyTorch's: 1e-5, and what results.tsv says of the operator
and the loss itself with PyTorch's.  Errors are norm of the difference over norm, tensor by tensor; the norm counts as
at least a thousandth of the largest of the case, for tensors whose gradient is zero.

Every row of frontend/onnx_ops.def must have cases here, or a reason in `without` of cases.py.  results.tsv has a line
per operator: cases, and the bound of its program's error, a power of ten; with --write it is written again.

usage: python gradcheck.py SHARDC DIFFERENCES WORKDIR [--only OP,..] [--every N] [--write] [--jobs N]
"""
import argparse
import collections
import concurrent.futures
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import zlib

import numpy as np
import torch
from onnx import numpy_helper
from safetensors.numpy import load_file

import case as cases_of
import cases
import torch_nn  # noqa: F401: its operators
import torch_ops
from case import CASES

HERE = pathlib.Path(__file__).parent
RULE, TORCH, FLOOR = 1e-6, 1e-6, 1e-3
BUNDLE = 40  # cases of one program


def operators():
    """Names of the operators of the frontend's tables, with their domains."""
    table = (HERE.parent.parent / "frontend/onnx_ops.def").read_text()
    rows = re.findall(r'^ONNX_\w+\((?:"([\w.]*)", *)?(\w+), *\d+, *\d+,', table, re.M)
    return {f"{domain}.{name}" if domain else name for domain, name in rows}


# ---- PyTorch ----

def through_torch(c):
    """Sets the weights of the loss by the shapes of the results, and computes the loss and its gradients."""
    scope = {}
    for name, array in c.data.items():
        scope[name] = torch_ops.tensor(array).requires_grad_(cases_of.operand(c, name).kind == "P")
    graph = cases_of.helper.make_graph(c.nodes, "case", [], [], [])
    torch_ops.run_graph(graph, scope, c.opset)
    c.weights, total = {}, torch.zeros((), dtype=torch.float64)
    for i in range(c.results):
        y = scope[f"y{i}"]
        if not y.is_floating_point() or (c.takes is not None and i not in c.takes):
            continue
        rng = np.random.default_rng(zlib.crc32(f"{c.name} weights {i}".encode()))
        c.weights[f"y{i}"] = rng.uniform(0.3, 1.3, y.shape).astype(np.float32)
        total = total + (y * torch_ops.tensor(c.weights[f"y{i}"])).sum()
    c.loss = total.item()
    leaves = [scope[name] for name in c.trained()]
    grads = torch.autograd.grad(total, leaves, allow_unused=True) if total.requires_grad else [None] * len(leaves)
    c.expected = {n: np.zeros(t.shape) if g is None else g.numpy() for n, t, g in zip(c.trained(), leaves, grads)}


# ---- rules and differences, in f64 ----

def write_case(c, folder):
    folder.mkdir(parents=True, exist_ok=True)
    nodes, constants = cases_of.body(c)
    names = {k: f"k{i + 1}" for i, k in enumerate(cases_of.runtime_inputs(c))}
    cases_of.add_loss(c, c.weights, nodes, constants, "total")
    nodes = [cases_of.node("Identity", k, a) for a, k in names.items()] + nodes
    inputs = [cases_of.value_info(k, c.data[a]) for a, k in names.items()]
    model = cases_of.make_model(c.opset, nodes, constants, inputs, [])
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "trained").write_text("".join(f"{n}\n" for n in c.trained()))
    for i, array in enumerate([np.ones(1, np.float32), *(c.data[a] for a in names)]):
        (folder / f"input_{i}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())


def run_differences(program, folders):
    """By name of the case: "refused" with a message, or loss, gradient and difference of each parameter."""
    done = subprocess.run([program, *map(str, folders)], capture_output=True, text=True)
    found, at = {}, None
    for line in done.stdout.splitlines():
        word, _, rest = line.partition(" ")
        if word == "case":
            at = found.setdefault(pathlib.Path(rest).name, dict(gradient={}, difference={}))
        elif word in ("gradient", "difference"):
            name, *values = rest.split(" ")
            at[word][name] = np.array([float(v) for v in values if v])
        else:
            at[word] = rest
    if done.returncode not in (0, 1) and at is not None:
        at["refused"] = f"differences ended with {done.returncode}: {done.stderr.strip()[-300:]}"
    return found


# ---- the compiled program ----

def write_bundle(bundle, folder):
    folder.mkdir(parents=True, exist_ok=True)
    nodes, constants, inputs, flags, trained = [], [], [], [], []
    for c in bundle:
        mine, tensors = cases_of.body(c)
        cases_of.add_loss(c, c.weights, mine, tensors, "total")
        mine, tensors = cases_of.renamed(mine, tensors, f"{c.name}.")
        nodes += mine
        constants += tensors
        trained += [f"{c.name}.{n}" for n in c.trained()]
        for a in cases_of.runtime_inputs(c):
            name = f"{c.name}.{a}"
            inputs.append(cases_of.value_info(name, c.data[a]))
            np.save(folder / f"{name}.npy", c.data[a])
            flags.append(name)
    nodes.append(cases_of.helper.make_node("Sum", [f"{c.name}.total" for c in bundle], ["total"]))
    model = cases_of.make_model(bundle[0].opset, nodes, constants, inputs, [])
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "trained").write_text("".join(f"{n}\n" for n in trained))
    np.save(folder / "x.npy", np.ones(1, np.float32))
    return flags


def command(parts):
    done = subprocess.run([str(p) for p in parts], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}: " + " | ".join(
            line for line in done.stdout.splitlines() if "error" in line or "exit" in line)[:600])


def run_bundle(shardc, bundle, folder):
    """Gradients by case and parameter, or a message.  A bundle that fails is halved until one case is to blame."""
    try:
        consts = write_bundle(bundle, folder)
        command([shardc, folder / "model.onnx", "-o", folder / "train", "--loss=output:loss", "--optimizer=sgd:momentum",
                 "--dropout=off", f"--trainable={folder}/trained", *(f"--const={k}" for k in consts)])
        command([folder / "train", "--data", f"x={folder}/x.npy", *(f"--const={k}={folder}/{k}.npy" for k in consts),
                 "--steps", 1, "--lr", 0, "--momentum", 0.9, "--weight-decay", 0, "--threads", 1,
                 "--save", folder / "save", "--save-every", 1])
        states = load_file(folder / "save/step-00000001/optim.safetensors")
    except RuntimeError as e:
        if len(bundle) == 1:
            return {bundle[0].name: str(e)}
        half = len(bundle) // 2
        return {**run_bundle(shardc, bundle[:half], folder / "0"), **run_bundle(shardc, bundle[half:], folder / "1")}
    return {c.name: {n: states.get(f"{c.name}.{n}.momentum_buffer") for n in c.trained()} for c in bundle}


# ---- comparing ----

def error(got, want, floor):
    if got is None:
        got = np.zeros_like(want)
    got = np.asarray(got, np.float64)
    if got.size != want.size:
        return math.inf
    difference = np.linalg.norm(got.reshape(-1) - want.reshape(-1))
    norm = max(np.linalg.norm(want), floor)
    return 0.0 if difference == 0 else difference / norm if norm else math.inf


def judge(c, told, program):
    """Errors of the case: what is wrong as text, and the worst error of the program."""
    if "refused" in told:
        return [f"refused: {told['refused']}"], 0
    if isinstance(program, str):
        return [f"program: {program}"], 0
    bad, worst = [], 0
    reference = {n: told["gradient"].get(n, np.zeros(c.data[n].size)) for n in c.trained()} if c.alone else c.expected
    floor = FLOOR * max([np.linalg.norm(g) for g in reference.values()], default=0)
    if not c.alone and not abs(float(told["loss"]) - c.loss) <= 1e-6 * (1 + abs(c.loss)):
        bad.append(f"loss {told['loss']}, PyTorch {c.loss:.12g}")
    for n in c.trained():
        rule = told["gradient"].get(n, np.zeros(c.data[n].size))
        pairs = [("rule", rule, told["difference"].get(n, c.expected[n]), RULE), ("program", program[n], reference[n], c.tol)]
        if not c.alone:
            pairs.append(("torch", rule, c.expected[n], TORCH))
        for what, got, want, bound in pairs:
            e = error(got, want, floor)
            worst = max(worst, e) if what == "program" else worst
            if not e <= bound:
                bad.append(f"{what} of {n}: error {e:.2e}, bound {bound:.0e}")
    return bad, worst


def power_above(x):
    """The power of ten above x, with room for other processors' rounding."""
    return 10.0 ** math.ceil(math.log10(max(2 * x, 1e-8)))


# ---- all of them ----

def check_table(chosen):
    """Rows of the frontend's table without a decision here, and decisions that are out of date."""
    rows, checked = operators(), {c.op for c in CASES}
    bad = [f"{name}: a row of onnx_ops.def without gradient cases; add some to tests/gradcheck/cases.py, or say in "
           "`without` why it has no gradient" for name in sorted(rows - checked - set(cases.without))]
    bad += [f"{name}: has cases, and `without` says that it has no gradient"
            for name in sorted(checked & set(cases.without))]
    return [] if chosen else bad


def bundles_of(todo):
    groups = collections.defaultdict(list)
    for c in todo:
        groups[c.opset].append(c)
    return [g[i:i + BUNDLE] for g in groups.values() for i in range(0, len(g), BUNDLE)]


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("differences")
    p.add_argument("work", type=pathlib.Path)
    p.add_argument("--only", default="")
    p.add_argument("--every", type=int, default=1)
    p.add_argument("--write", action="store_true")
    p.add_argument("--jobs", type=int, default=2)
    return p.parse_args()


def read_results():
    lines = [line.split("\t") for line in (HERE / "results.tsv").read_text().splitlines()[1:]]
    return {op: (int(n), float(bound)) for op, n, bound in lines}


def write_results(results):
    text = "operator\tcases\tbound\n" + "".join(f"{op}\t{n}\t{b:.0e}\n" for op, (n, b) in sorted(results.items()))
    (HERE / "results.tsv").write_text(text)


def main():
    args = parse_args()
    torch.set_num_threads(1)
    chosen = [o for o in args.only.split(",") if o]
    known = operators()
    todo = [c for c in CASES if c.op in known and (not chosen or c.op in chosen)][::args.every]
    failed = check_table(chosen)
    shutil.rmtree(args.work, ignore_errors=True)
    for c in todo:
        try:
            through_torch(c)
        except (RuntimeError, TypeError, KeyError, IndexError, ValueError, AttributeError) as e:
            sys.exit(f"{c.name}: PyTorch: {type(e).__name__}: {e}")
        write_case(c, args.work / "cases" / c.name)
    told, program = {}, {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        folders = [args.work / "cases" / c.name for c in todo]
        parts = [folders[i:i + 60] for i in range(0, len(folders), 60)]
        first = [pool.submit(run_differences, args.differences, part) for part in parts]
        second = [pool.submit(run_bundle, args.shardc, b, args.work / f"bundle-{i}")
                  for i, b in enumerate(bundles_of(todo))]
        for f in first:
            told.update(f.result())
        for f in second:
            program.update(f.result())
    results, worst = {}, collections.Counter()
    bad_ops = set()
    for c in todo:
        bad, e = judge(c, told.get(c.name, dict(refused="no answer")), program[c.name])
        worst[c.op] = max(worst[c.op], e)
        bad_ops |= {c.op} if bad else set()
        failed += [f"{c.name}: {b}" for b in bad]
    for op in sorted({c.op for c in todo}):
        results[op] = (sum(c.op == op for c in todo), power_above(worst[op]))
    if args.write and not chosen and args.every == 1:
        write_results({op: r for op, r in results.items() if op not in bad_ops})
    elif not chosen:
        failed += compare(results, read_results(), args.every > 1)
    for line in failed:
        print(line)
    print(f"{len(todo)} cases of {len(results)} operators, {len(failed)} failed")
    sys.exit(bool(failed))


def compare(now, was, partial):
    """Where results.tsv says something else; of a part of the cases, only where errors are above its bounds."""
    bad = []
    for op, (n, bound) in now.items():
        if op not in was or (was[op][0] != n and not partial):
            bad.append(f"{op}: results.tsv has not these {n} cases; make gradcheck GRADCHECK=--write")
        elif bound > 10 * was[op][1]:
            bad.append(f"{op}: error above {bound / 10:.0e}, results.tsv says at most {was[op][1]:.0e}")
    return bad


if __name__ == "__main__":
    main()
