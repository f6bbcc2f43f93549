"""Gradients of every ONNX operator that shardc takes, against finite differences and against PyTorch.

Each case of cases.py is a model of one node or a few; its loss is a random combination of the results.  Compared are
  rule      gradients by the compiler's rules, evaluated in f64, with central differences of the f64 evaluation: 1e-6
  torch     the same with PyTorch's autograd through the same nodes (torch_ops.py), in f64: 1e-6
  program   gradients of a compiled f32 program with PyTorch's: 1e-5, and what results.tsv says of the operator
and the loss itself with PyTorch's.  Errors are norm of the difference over norm, tensor by tensor; the norm counts as
at least a thousandth of the largest of the case, for tensors whose gradient is zero.

Every row of frontend/onnx_ops.def must have cases, also the operators that cases.py says have no gradient.
operators.tsv has a line per operator, from which tools/operators prints docs/operators.md: how many gradients were
checked, the bound of the program's error, a power of ten, and what facts.py finds.  With --write it is written again.

usage: python gradcheck.py SHARDC DIFFERENCES WORKDIR [--only OP,..] [--write] [--jobs N]
"""
import argparse
import collections
import concurrent.futures
import math
import pathlib
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
import cases_nn  # noqa: F401: its cases
import torch_contrib  # noqa: F401: its operators
import torch_nn  # noqa: F401
import torch_ops
from case import CASES, KINKS
from facts import facts
from tables import operators

HERE = pathlib.Path(__file__).parent
RULE, TORCH, FLOOR = 1e-6, 1e-6, 1e-3
BUNDLE = 40  # cases of one program


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
        command([shardc, folder / "model.onnx", "-o", folder / "train", "--loss=output:loss",
                 "--optimizer=sgd:momentum",
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
    floor = FLOOR * max([np.linalg.norm(g) for g in c.expected.values()], default=0)
    if not abs(float(told["loss"]) - c.loss) <= 1e-6 * (1 + abs(c.loss)):
        bad.append(f"loss {told['loss']}, PyTorch {c.loss:.12g}")
    for n in c.trained():
        rule = told["gradient"].get(n, np.zeros(c.data[n].size))
        pairs = [("program", program[n], c.expected[n], c.tol), ("torch", rule, c.expected[n], TORCH)]
        if not c.straight:
            pairs.append(("rule", rule, told["difference"].get(n, c.expected[n]), RULE))
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

def check_table():
    """Rows of the frontend's table without a case."""
    return [f"{name}: a row of onnx_ops.def without cases: add some to tests/gradcheck/cases.py, or say there by "
            "no_gradient() why it has no gradient" for name in sorted(operators() - {c.op for c in CASES})]


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
    p.add_argument("--write", action="store_true")
    p.add_argument("--jobs", type=int, default=2)
    return p.parse_args()


COLUMNS = ("operator", "cases", "bound", "becomes", "types", "cuda", "gradient")


def read_table():
    lines = [line.split("\t") for line in (HERE / "operators.tsv").read_text().splitlines()[1:]]
    return {line[0]: dict(zip(COLUMNS, line)) for line in lines}


def write_table(table):
    rows = [COLUMNS] + [tuple(table[op][k] for k in COLUMNS) for op in sorted(table)]
    (HERE / "operators.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))


def line_of(op, mine, worst, found):
    """The line of an operator in operators.tsv."""
    says = [k.says for k in KINKS if k.op == op]
    return dict(operator=op, cases=str(0 if op in cases.without else len(mine)),
                bound="" if op in cases.without else f"{power_above(worst):.0e}",
                becomes=" ".join(found["becomes"]), types=" ".join(found["types"]),
                cuda="yes" if found["cuda"] else "no",
                gradient=f"none: {cases.without[op]}" if op in cases.without else "; ".join(dict.fromkeys(says)) or "yes")


def differs(now, was):
    """Why a line of operators.tsv is not what was found, or None.  An error may be ten times as large."""
    if not was:
        return "is not there"
    for key in COLUMNS:
        small = key == "bound" and now[key] and was[key] and float(now[key]) <= 10 * float(was[key])
        if now[key] != was[key] and not small:
            return f"says {key} \"{was[key]}\", found \"{now[key]}\""
    return None


def judge_kink(c, told, program):
    finite = np.isfinite(np.concatenate([np.ravel(g) for g in c.gives])).all()
    if "refused" in told or (isinstance(program, str) and finite):
        return [f"refused: {told.get('refused', program)}"]
    bad = []
    for n, want in zip(c.trained(), c.gives):
        want = np.ravel(np.asarray(want, np.float64))
        for what, got in (("rule", told["gradient"].get(n)), ("program",
                                                              want if isinstance(program, str) else program[n])):
            got = np.zeros(want.size) if got is None else np.ravel(got)
            if not np.allclose(got, want, rtol=1e-6, atol=0):
                bad.append(f"{what} of {n} at a kink: {got.tolist()}, {c.says}: {want.tolist()}")
    return bad


def prepare(c, work):
    """Runs the case through PyTorch, which gives the shapes of its results, and writes its model."""
    try:
        through_torch(c)
    except (RuntimeError, TypeError, KeyError, IndexError, ValueError, AttributeError) as e:
        sys.exit(f"{c.name}: PyTorch: {type(e).__name__}: {e}")
    if c.gives is not None:
        c.weights = {y: np.ones_like(w) for y, w in c.weights.items()}
    write_case(c, work / "cases" / c.name)


def run_all(args, todo, named):
    """What the rules and the programs say of all cases, and the facts by operator, on --jobs processors."""
    told, program, found = {}, {}, {}
    folders = [args.work / "cases" / c.name for c in todo]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        rules = [pool.submit(run_differences, args.differences, folders[i:i + 60]) for i in range(0, len(folders), 60)]
        bundles = [pool.submit(run_bundle, args.shardc, b, args.work / f"bundle-{i}")
                   for i, b in enumerate(bundles_of(todo))]
        looks = {op: pool.submit(facts, args.shardc, [c for c in CASES if c.op == op],
                                 args.work / "facts") for op in named}
        for f in rules:
            told.update(f.result())
        for f in bundles:
            program.update(f.result())
        for op, f in looks.items():
            found[op] = f.result()
    return told, program, found


def main():
    args = parse_args()
    torch.set_num_threads(1)
    chosen = set(args.only.split(",")) if args.only else operators()
    named = sorted(chosen & {c.op for c in CASES})
    todo = [c for c in CASES if c.op in named and c.op not in cases.without]
    kinks = [c for c in KINKS if c.op in named]
    failed = [] if args.only else check_table()
    shutil.rmtree(args.work, ignore_errors=True)
    for c in todo + kinks:
        prepare(c, args.work)
    told, program, found = run_all(args, todo + kinks, named)
    worst = collections.Counter()
    no_answer = dict(refused="no answer")
    for c in todo:
        bad, e = judge(c, told.get(c.name, no_answer), program[c.name])
        worst[c.op] = max(worst[c.op], e)
        failed += [f"{c.name}: {b}" for b in bad]
    for c in kinks:
        failed += [f"{c.name}: {b}" for b in judge_kink(c, told.get(c.name, no_answer), program[c.name])]
    table = {op: line_of(op, [c for c in CASES if c.op == op], worst[op], found[op]) for op in named}
    was = read_table()
    failed += [f"{op}: operators.tsv has it, onnx_ops.def has not" for op in sorted(set(was) - operators())
               if not args.write]
    if args.write and not failed:
        write_table({**{op: line for op, line in was.items() if op in operators()}, **table})
    else:
        reasons = {op: differs(line, was.get(op)) for op, line in table.items()}
        failed += [f"{op}: operators.tsv {why}; make gradcheck GRADCHECK=--write" for op, why in reasons.items() if why]
    for line in failed:
        print(line)
    checked = len({c.op for c in todo})
    print(f"gradients of {checked} operators in {len(todo)} cases, {len(kinks)} kinks; {len(named) - checked} "
          f"operators have none; {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
