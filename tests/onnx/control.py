"""Models with Loop, Scan, If, sequences and Gradient: trained beside the same computation written out in PyTorch.

Each model is exported by PyTorch or made node by node, trained for four steps of SGD, and its weights are compared with
those of PyTorch in f64: at most FACTOR times PyTorch's own error in f32, and FLOOR.  Models of ONNX alone have a
function in PyTorch that runs their steps one by one.  Two ranks train as well, with twice the samples in a step.  The
weights are written back into the model, those inside its subgraphs, too.

usage: python control.py SHARDC WORKDIR [--only NAME]
"""
import argparse
import copy
import json
import pathlib
import subprocess
import sys
import warnings

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import load_file
from torch import nn

FACTOR, FLOOR, STEPS, BATCH, LR = 4.0, 2e-7, 4, 4, 0.02
F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node, info = helper.make_node, helper.make_tensor_value_info


def values(name, a):
    return numpy_helper.from_array(np.asarray(a), name)


def graph(name, nodes, inputs, outputs, held=()):
    return helper.make_graph(nodes, name, [info(*i) for i in inputs], [info(*o) for o in outputs], list(held))


# ---- models that PyTorch exports ----

class Bag(nn.Module):
    """An EmbeddingBag, which both exporters write as a Loop over bags."""
    def __init__(self, mode):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(20, 6, mode=mode), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.bag(x)))


class Scripted(nn.Module):
    """A cell in a loop that TorchScript exports as Loop."""
    def __init__(self):
        super().__init__()
        self.i, self.h, self.head = nn.Linear(3, 5), nn.Linear(5, 5, bias=False), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(steps(x, self.i.weight, self.i.bias, self.h.weight))


@torch.jit.script
def steps(x, wi, bi, wh):
    h = torch.zeros([x.size(0), wh.size(0)], dtype=x.dtype)
    for t in range(x.size(1)):
        h = torch.tanh(torch.nn.functional.linear(x[:, t], wi, bi) + torch.matmul(h, wh.t()))
    return h


# ---- models of ONNX, with what they compute ----

class Made(nn.Module):
    """Parameters under their ONNX names, and the steps of the model."""
    def __init__(self, run, **shapes):
        super().__init__()
        self.run = run
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape) * 0.4))

    def forward(self, x):
        return self.run(self, x)


TRAINING = "ai.onnx.preview.training"


def made(module, nodes, x, ints=(), body_held=(), opset=17):
    """The model of these nodes from x to y, with the module's parameters and integer constants."""
    held = [values(n, p.detach().numpy()) for n, p in module.named_parameters() if n not in body_held]
    held += [values(n, np.array(v, dtype=np.int64)) for n, v in ints]
    g = graph("g", nodes, [("x", F32, x.shape)], [("y", F32, (BATCH, 3))], held)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(TRAINING, 1)]
    return helper.make_model(g, opset_imports=opsets, ir_version=8)


def rnn_scan(x):
    """An Elman cell as Scan over axis 1; the last state and all outputs are read, the second of which runs backward."""
    def run(m, x):
        h, all_h = torch.zeros(x.shape[0], 5, dtype=x.dtype), []
        for t in reversed(range(x.shape[1])):
            h = torch.tanh(x[:, t] @ m.wi + h @ m.wh)
            all_h.insert(0, torch.relu(h @ m.mix))
        return h @ m.out + torch.stack(all_h, 1).sum(1) @ m.out

    module = Made(run, wi=(3, 5), wh=(5, 5), mix=(5, 5), out=(5, 3))
    body = graph("body", [node("MatMul", ["xt", "wi"], ["a"]), node("MatMul", ["h", "wh"], ["b"]),
                          node("Add", ["a", "b"], ["s"]), node("Tanh", ["s"], ["hn"]),
                          node("MatMul", ["hn", "mix"], ["q"]), node("Relu", ["q"], ["o"])],
                 [("h", F32, None), ("xt", F32, None)], [("hn", F32, None), ("o", F32, None)],
                 [values("mix", module.mix.detach().numpy())])
    nodes = [node("Shape", ["x"], ["n"], start=0, end=1), node("Concat", ["n", "five"], ["hs"], axis=0),
             node("ConstantOfShape", ["hs"], ["h0"]),
             node("Scan", ["h0", "x"], ["last", "all"], name="scan", body=body, num_scan_inputs=1, scan_input_axes=[1],
                  scan_input_directions=[1], scan_output_axes=[1], scan_output_directions=[1]),
             node("ReduceSum", ["all", "one"], ["sum"], keepdims=0), node("Add", ["last", "sum"], ["t"]),
             node("MatMul", ["t", "out"], ["y"])]
    return module, made(module, nodes, x, [("five", [5]), ("one", [1])], ("mix",))


def selective_scan(x):
    """A state space model as in Mamba: state = exp(dt * A) * state + dt * B * x, y = state . C, as a Loop."""
    def run(m, x):
        state, out = torch.zeros(x.shape[0], 3, 4, dtype=x.dtype), []
        dt = torch.nn.functional.softplus(x @ m.wdt)
        b, c = x @ m.wb, x @ m.wc
        for t in range(x.shape[1]):
            d = dt[:, t].unsqueeze(-1)
            state = torch.exp(d * m.a) * state + d * b[:, t].unsqueeze(1) * x[:, t].unsqueeze(-1)
            out.append((state * c[:, t].unsqueeze(1)).sum(-1))
        return torch.stack(out, 0).mean(0)

    module = Made(run, a=(3, 4), wdt=(3, 3), wb=(3, 4), wc=(3, 4))
    module.a.data = -module.a.data.abs() - 0.5 # states decay
    body = graph("body", [node("Gather", ["dt", "i"], ["d0"], axis=1), node("Unsqueeze", ["d0", "last"], ["d"]),
                          node("Gather", ["b", "i"], ["b0"], axis=1), node("Unsqueeze", ["b0", "one"], ["bt"]),
                          node("Gather", ["c", "i"], ["c0"], axis=1), node("Unsqueeze", ["c0", "one"], ["ct"]),
                          node("Gather", ["x", "i"], ["x0"], axis=1), node("Unsqueeze", ["x0", "last"], ["xt"]),
                          node("Mul", ["d", "a"], ["da"]), node("Exp", ["da"], ["e"]), node("Mul", ["e", "s"], ["es"]),
                          node("Mul", ["d", "bt"], ["db"]), node("Mul", ["db", "xt"], ["dbx"]),
                          node("Add", ["es", "dbx"], ["sn"]), node("Mul", ["sn", "ct"], ["sc"]),
                          node("ReduceSum", ["sc", "last"], ["o"], keepdims=0), node("Identity", ["go"], ["go_on"])],
                 [("i", I64, ()), ("go", BOOL, ()), ("s", F32, None)],
                 [("go_on", BOOL, None), ("sn", F32, None), ("o", F32, None)])
    nodes = [node("MatMul", ["x", "wdt"], ["r"]), node("Softplus", ["r"], ["dt"]), node("MatMul", ["x", "wb"], ["b"]),
             node("MatMul", ["x", "wc"], ["c"]), node("Shape", ["x"], ["n"], start=0, end=1),
             node("Concat", ["n", "rest"], ["ss"], axis=0), node("ConstantOfShape", ["ss"], ["s0"]),
             node("Shape", ["x"], ["len"], start=1, end=2), node("Squeeze", ["len"], ["m"]),
             node("Loop", ["m", "", "s0"], ["sl", "all"], name="loop", body=body),
             node("ReduceMean", ["all"], ["y"], axes=[0], keepdims=0)]
    return module, made(module, nodes, x, [("rest", [3, 4]), ("one", [1]), ("last", [-1])])


def nested(x):
    """A While that doubles a matrix product until a counter of its own reaches 3, with a Scan and an If inside."""
    def run(m, x):
        v = x[:, 0]
        for k in range(3):
            acc = torch.zeros(x.shape[0], 3, dtype=x.dtype)
            for t in range(x.shape[1]):
                acc = torch.sigmoid(acc + x[:, t] @ m.w)
            v = (v + acc) @ m.w if k == 1 else v * acc
        return v

    module = Made(run, w=(3, 3))
    inner = graph("inner", [node("MatMul", ["xt", "w"], ["p"]), node("Add", ["acc", "p"], ["q"]),
                            node("Sigmoid", ["q"], ["acc_out"])],
                  [("acc", F32, None), ("xt", F32, None)], [("acc_out", F32, None)])
    then = graph("then", [node("Add", ["v", "a"], ["q"]), node("MatMul", ["q", "w"], ["r"])], [], [("r", F32, None)])
    other = graph("else", [node("Mul", ["v", "a"], ["r"])], [], [("r", F32, None)])
    body = graph("body", [node("Sub", ["v", "v"], ["z"]), node("Scan", ["z", "x"], ["a"], name="inner", body=inner,
                                                              num_scan_inputs=1, scan_input_axes=[-2]),
                          node("Equal", ["k", "one"], ["is_one"]),
                          node("If", ["is_one"], ["vn"], name="if", then_branch=then, else_branch=other),
                          node("Add", ["k", "one"], ["kn"]), node("Less", ["kn", "three"], ["more"])],
                 [("i", I64, ()), ("go", BOOL, ()), ("k", I64, ()), ("v", F32, None)],
                 [("more", BOOL, None), ("kn", I64, None), ("vn", F32, None)])
    nodes = [node("Gather", ["x", "zero"], ["x0"], axis=1),
             node("Loop", ["", "yes", "zero", "x0"], ["k", "y"], name="while", body=body)]
    model = made(module, nodes, x, [("zero", 0), ("one", 1), ("three", 3)])
    model.graph.initializer.append(values("yes", np.array(True)))
    return module, model


def sequences(x):
    """Pieces of a sequence, mapped, inserted and erased, and put together; an optional that is there."""
    def run(m, x):
        parts = [torch.tanh(p @ m.w) for p in x.split(1, 1)]
        parts = [parts[-1]] + parts[:-2]
        return torch.cat(parts, 1).sum(1) * m.b

    module = Made(run, w=(3, 3), b=(3,))
    each = graph("each", [node("MatMul", ["p", "w"], ["q"]), node("Tanh", ["q"], ["r"])], [("p", F32, None)],
                 [("r", F32, None)])
    nodes = [node("SplitToSequence", ["x"], ["s"], axis=1), node("SequenceMap", ["s"], ["t"], body=each),
             node("SequenceAt", ["t", "last"], ["e"]), node("SequenceErase", ["t"], ["u0"]),
             node("SequenceErase", ["u0", "last"], ["u"]), node("SequenceInsert", ["u", "e", "zero"], ["v"]),
             node("Optional", ["v"], ["o"]), node("OptionalGetElement", ["o"], ["w0"]),
             node("ConcatFromSequence", ["w0"], ["c"], axis=1), node("ReduceSum", ["c", "axis"], ["d"], keepdims=0),
             node("Mul", ["d", "b"], ["y"])]
    return module, made(module, nodes, x, [("last", -1), ("zero", 0), ("axis", [1])], opset=18)


def forces(x):
    """An energy of each sample, whose gradient by the positions is the output: training differentiates it once more."""
    def run(m, x):
        with torch.enable_grad():
            at = x[:, 0].detach().clone().requires_grad_()
            hidden = torch.tanh(at @ m.w1 + m.b) @ m.w2
            energy = (torch.sigmoid(hidden) * hidden).sum() + (at * at * m.k).sum()
            return torch.autograd.grad(energy, at, create_graph=True)[0]

    module = Made(run, w1=(3, 8), b=(8,), w2=(8, 4), k=(3,))
    nodes = [node("Gather", ["x", "zero"], ["at"], axis=1), node("MatMul", ["at", "w1"], ["p"]),
             node("Add", ["p", "b"], ["q"]), node("Tanh", ["q"], ["t"]), node("MatMul", ["t", "w2"], ["h"]),
             node("Sigmoid", ["h"], ["s"]), node("Mul", ["s", "h"], ["e"]), node("ReduceSum", ["e"], ["e1"], keepdims=0),
             node("Mul", ["at", "at"], ["aa"]), node("Mul", ["aa", "k"], ["ak"]),
             node("ReduceSum", ["ak"], ["e2"], keepdims=0), node("Add", ["e1", "e2"], ["energy"]),
             node("Gradient", ["at"], ["y"], name="forces", domain=TRAINING, xs=["at"], y="energy")]
    return module, made(module, nodes, x, [("zero", 0)])


def exported(make, dynamo):
    def build(x):
        module = make()
        return module, lambda path: torch.onnx.export(
            copy.deepcopy(module), (x,), path, dynamo=dynamo, external_data=False, input_names=["x"],
            **({} if dynamo else dict(training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)))
    return build


TOKENS = {"bag"}
CASES = {f"bag-{mode}-{'dynamo' if d else 'torchscript'}": exported(lambda mode=mode: Bag(mode), d)
         for mode in ("sum", "mean", "max") for d in (False, True)}
CASES |= {"scripted": exported(Scripted, False), "rnn-scan": rnn_scan, "selective-scan": selective_scan,
          "nested": nested, "sequences": sequences, "forces": forces}


# ---- training ----

def command(*parts):
    done = subprocess.run([str(p) for p in parts], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, parts))}\n{done.stdout[-3000:]}")
    return done.stdout


def ours(shardc, work, data, ranks):
    for name, a in data.items():
        np.save(work / f"{name}.npy", a.numpy())
    command(shardc, work / "model.onnx", "-o", work / "train", "--loss=mse", "--optimizer=sgd", "--strategy=full_shard")
    command("rm", "-rf", work / "save", work / "back.onnx")
    command(work / "train", "--data", f"x={work}/x.npy", "--data", f"target={work}/target.npy", "--steps", STEPS,
            "--lr", LR, "--ranks", ranks, "--save", work / "save", "--save-every", STEPS)
    return {n: t.double() for n, t in load_file(work / "save" / f"step-{STEPS:08d}" / "model.safetensors").items()}


def initializers(g):
    """Those of a graph and of its subgraphs, by name; no name of these models is there twice."""
    found = {t.name: numpy_helper.to_array(t) for t in g.initializer}
    for a in (a for n in g.node for a in n.attribute if a.HasField("g")):
        found |= initializers(a.g)
    return found


def written_back(shardc, work, got):
    """What is wrong with the model that has the trained weights."""
    command(shardc, "ckpt", "export", work / "save" / f"step-{STEPS:08d}", "-o", work / "back.onnx",
            f"--onnx={work}/model.onnx")
    held = initializers(onnx.load(work / "back.onnx").graph)
    return [f"{n} is not written back" for n, t in got.items()
            if not np.array_equal(held[n].astype(np.float64), t.numpy())]


def theirs(module, data, dtype, batch):
    module = copy.deepcopy(module).to(dtype)
    x, y = (t.to(dtype) if t.is_floating_point() else t for t in (data["x"], data["target"]))
    step = torch.optim.SGD(module.parameters(), lr=LR)
    for k in range(STEPS):
        rows = slice(k * batch, (k + 1) * batch)
        step.zero_grad()
        nn.functional.mse_loss(module(x[rows]), y[rows]).backward()
        step.step()
    return {n: p.detach().double() for n, p in module.named_parameters()}


def worst(got, want):
    return max(float((got[n] - want[n]).norm() / want[n].norm()) for n in want)


def run(shardc, work, name, build):
    torch.manual_seed(sum(map(ord, name)))
    work.mkdir(parents=True, exist_ok=True)
    rows = 2 * BATCH * STEPS
    x = torch.randint(0, 20, (rows, 5)) if name.split("-")[0] in TOKENS else torch.randn(rows, 6, 3)
    module, model = build(x[:BATCH])
    if callable(model):
        model(str(work / "model.onnx"))
    else:
        onnx.checker.check_model(model)
        onnx.save(model, work / "model.onnx")
    data = {"x": x, "target": torch.randn(rows, 3)}
    problems = []
    for ranks in (1, 2):
        want = theirs(module, data, torch.float64, BATCH * ranks)
        bound = FACTOR * worst(theirs(module, data, torch.float32, BATCH * ranks), want) + FLOOR
        got = ours(shardc, work, data, ranks)
        if set(got) != set(want):
            problems.append(f"parameters {sorted(got)}, PyTorch's are {sorted(want)}")
        elif not worst(got, want) <= bound:
            problems.append(f"{ranks} rank(s): error {worst(got, want):.3g}, bound {bound:.3g}")
        elif ranks == 1:
            still = worst({n: p.detach().double() for n, p in module.named_parameters()}, want)
            if not still > 100 * bound:
                problems.append(f"training moves no weight by more than {still:.3g}")
            problems += written_back(shardc, work, got)
    return problems


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("work", type=pathlib.Path)
    p.add_argument("--only", default="")
    args = p.parse_args()
    warnings.simplefilter("ignore")
    failed = {}
    names = [n for n in CASES if args.only in n]
    for name in names:
        try:
            problems = run(args.shardc, args.work / name, name, CASES[name])
        except RuntimeError as e:
            problems = [str(e)]
        if problems:
            failed[name] = problems
            print(f"FAILED {name}: {json.dumps(problems)}", flush=True)
    print(f"control: {len(names) - len(failed)} of {len(names)} passed")
    sys.exit(bool(failed) or not names)


main()
