"""Checkpoints to ONNX, to PyTorch and back.

For models of both exporters, trained for a few steps: `shardc ckpt export` writes the weights into the model, which
passes onnx.checker and gives in onnxruntime and in onnx's reference evaluator what PyTorch gives with the weights of the
safetensors export; compiled again it has the same parameters, bit by bit.  Nothing but weights differs from the model
that was exported.  The optimizer goes on in PyTorch with our losses, and the reverse: with the Python of
docs/checkpoints.md, which is run here as it stands there.

usage: python tests/e2e/export.py SHARDC WORKDIR [CASE..]
"""
import copy
import json
import logging
import pathlib
import re
import shutil
import subprocess
import sys
import warnings

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "../../python"))
import shardc  # noqa: E402
from export_models import (BATCH, MODELS, Bert, Cells, Gpt, Parametrized, Unused, rows,  # noqa: E402
                           to_onnx, tokens)
STEPS, MORE = 5, 5
LOSS_BOUND, OUTPUT_BOUND = 1e-5, 3e-6
HYPER = dict(lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
FLAGS = "--lr 1e-3 --betas 0.9,0.99 --eps 1e-8 --weight-decay 0.1".split()


class Failed(Exception):
    pass


def want(true, what):
    if not true:
        raise Failed(what)


def near(a, b, bound, what):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    error = np.linalg.norm(a - b) / np.linalg.norm(b)
    want(a.shape == b.shape and error <= bound, f"{what}: {error:.1e}, at most {bound:.0e}")


# ---- programs ----

class Work:
    """A folder with a model, its program and data."""

    def __init__(self, shardc, folder):
        self.shardc, self.dir = shardc, folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def run(self, *parts, code=0, say=""):
        done = subprocess.run([str(p) for p in parts], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              cwd=self.dir)
        want(done.returncode == code and say in done.stdout,
             f"{' '.join(map(str, parts))}: exit {done.returncode}, not {code} with {say!r}\n{done.stdout[-1500:]}")
        return done.stdout

    def ckpt(self, *parts, **more):
        return self.run(self.shardc, "ckpt", *parts, **more)

    def compile(self, model="model.onnx", out="train", *options):
        self.run(self.shardc, model, "-o", self.dir / out, "--loss=cross_entropy", *options)

    def data(self, make, steps):
        torch.manual_seed(1)
        batches = [make() for _ in range(steps)]
        np.save(self.dir / "x.npy", torch.cat([x for x, _ in batches]).numpy())
        np.save(self.dir / "labels.npy", torch.cat([y for _, y in batches]).numpy())
        return batches

    def train(self, *flags, program="train"):
        """Losses of the steps that were taken."""
        log = self.dir / "log.jsonl"
        log.unlink(missing_ok=True)
        self.run(self.dir / program, "--data", "x=x.npy", "--data", "labels=labels.npy", "--log", log, *flags)
        return [r["loss"] for r in map(json.loads, open(log)) if "loss" in r]

    def outputs(self, model, x):
        """Of two independent runtimes."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(self.dir / model), options)
        return session.run(None, {"x": x})[0], ReferenceEvaluator(str(self.dir / model)).run(None, {"x": x})[0]


def torch_steps(module, optimizer, batches):
    losses = []
    for x, y in batches:
        loss = F.cross_entropy(module(x).flatten(0, -2), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def without_weights(path):
    """The model's bytes but for its tensors' data, which must have kept their places and sizes."""
    model = onnx.load(path, load_external_data=False)
    sizes = []
    for t in model.graph.initializer:
        sizes.append((t.name, len(t.raw_data), len(t.float_data)))
        t.raw_data = b"" if t.HasField("raw_data") else t.raw_data
        t.ClearField("float_data")
        for e in t.external_data:
            e.value = "" if e.key == "location" else e.value
    return model.SerializeToString(deterministic=True), sizes


def python_blocks(section):
    """The Python of a section of docs/checkpoints.md."""
    text = (HERE / "../../docs/checkpoints.md").read_text()
    part = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.S | re.M).group(1)
    return [b for b in re.findall(r"```python\n(.*?)```", part, re.S)]


# ---- cases ----

def check_model(work, name, exporter, external, options, flags=()):
    """Trained, exported to ONNX and to PyTorch; everything is compared with everything."""
    build, make = MODELS[name]
    torch.manual_seed(0)
    module = build().train()
    to_onnx(copy.deepcopy(module), make()[0], work.dir / "model.onnx", exporter, external)
    batches = work.data(make, STEPS)
    work.compile()
    work.train("--steps", STEPS, "--save", "save", "--lr", "1e-2", *flags)
    before = {p: p.read_bytes() for p in work.dir.glob("model.onnx*")}
    work.ckpt("export", "save", "--onnx", "model.onnx", "-o", "trained.onnx", *options)
    work.ckpt("export", "save", "--onnx", "model.onnx", "-o", "weights.safetensors")
    want(before == {p: p.read_bytes() for p in work.dir.glob("model.onnx*")}, "the input was changed")
    onnx.checker.check_model(str(work.dir / "trained.onnx"), full_check=True)
    trained = build().eval()
    trained.load_state_dict(load_file(work.dir / "weights.safetensors"), strict=True)
    check_reimport(work)
    check_outputs(work, name, exporter, trained, batches[0][0])


def check_strict(work, build, make, exporter, absent=()):
    """load_state_dict(strict=True) takes what was trained, but for what the exporter has left out, which is said."""
    torch.manual_seed(0)
    module = build().train()
    to_onnx(copy.deepcopy(module), make()[0], work.dir / "model.onnx", exporter, False)
    work.data(make, 1)
    work.compile()
    work.train("--steps", 1, "--lr", 0, "--save", "save")
    said = work.ckpt("export", "save", "--onnx", "model.onnx", "-o", "weights.safetensors")
    weights, loaded = load_file(work.dir / "weights.safetensors"), build()
    want(all(f'"{name}"' in said for name in absent), f"nothing is said of {absent}:\n{said}")
    loaded.load_state_dict(weights | {n: module.state_dict()[n] for n in absent}, strict=True)
    want(not set(absent) & set(weights), f"{absent} are written")
    other = [n for n, p in module.named_parameters() if not torch.equal(p, dict(loaded.named_parameters())[n])]
    want(not other, f"other values: {other}")


def check_outputs(work, name, exporter, trained, x):
    with torch.no_grad():
        expected = trained(x).numpy()
    if (name, exporter) == ("cnn", "torchscript"):  # it says training: runtimes would use the batch's statistics
        state, tensors = trained.state_dict(), onnx.load(work.dir / "trained.onnx").graph.initializer
        compared = [np.array_equal(numpy_helper.to_array(t), state[t.name]) for t in tensors if t.name in state]
        want(len(compared) >= 10 and all(compared), f"{sum(compared)} of {len(compared)} tensors are PyTorch's")
        return
    for runtime, got in zip(("onnxruntime", "the reference evaluator"), work.outputs("trained.onnx", x.numpy())):
        near(got, expected, OUTPUT_BOUND, runtime)
    want(np.linalg.norm(work.outputs("model.onnx", x.numpy())[0] - expected) > 0.01 * np.linalg.norm(expected),
         "the model was not trained")


def check_reimport(work):
    """The exported model has the parameters that the first one had, with the trained bits."""
    work.compile("trained.onnx", "again")
    work.train("--steps", 1, "--lr", 0, "--save", "again-save", program="again")
    work.ckpt("export", "save", "-o", "then.safetensors")  # of any kind
    then = load_file(work.dir / "then.safetensors")
    now = load_file(work.dir / "again-save/latest/model.safetensors")
    want(then.keys() == now.keys(), f"other names: {sorted(then.keys() ^ now.keys())[:6]}")
    moved = [n for n in then if "running_" not in n and not torch.equal(then[n], now[n])]
    want(not moved, f"other bits: {moved[:6]}")


def check_same_but_weights(work):
    a, sizes_a = without_weights(work.dir / "model.onnx")
    b, sizes_b = without_weights(work.dir / "trained.onnx")
    want(sizes_a == sizes_b and a == b, "more than weights is different")
    data = work.dir / "model.onnx.weights", work.dir / "trained.onnx.data"
    if data[0].exists():
        want(data[0].stat().st_size == data[1].stat().st_size, "the data files have other sizes")


def check_optimizer(work, exporter, kind):
    """Five steps of ours, five of PyTorch's behind them, against ten of ours; and the reverse."""
    adam = kind == "adamw"
    flags = FLAGS if adam else ["--lr", "1e-2", "--momentum", "0.9", "--weight-decay", "0.01"]
    make_optimizer = (lambda m: torch.optim.AdamW(m.parameters(), **HYPER)) if adam else (
        lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9, weight_decay=0.01))
    torch.manual_seed(0)
    start = Gpt().train()
    to_onnx(copy.deepcopy(start), MODELS["gpt"][1]()[0], work.dir / "model.onnx", exporter, True)
    batches = work.data(MODELS["gpt"][1], STEPS + MORE)
    work.compile("model.onnx", "train", f"--optimizer={kind}")
    ours = work.train("--steps", STEPS + MORE, "--save", "save", "--save-every", STEPS, *flags)
    at = f"save/step-{STEPS:08d}"
    work.ckpt("export", at, "--onnx", "model.onnx", "-o", "model.safetensors")
    work.ckpt("export", at, "--optim", "--onnx", "model.onnx", "-o", "optim.safetensors")
    to_torch, from_torch = python_blocks("To and from PyTorch")
    if not adam:
        to_torch = to_torch.replace('("step", "exp_avg", "exp_avg_sq")', '("momentum_buffer",)')
    module = Gpt().train()
    optimizer = make_optimizer(module)
    execute(work, to_torch, module, optimizer)
    near(torch_steps(module, optimizer, batches[STEPS:]), ours[STEPS:], LOSS_BOUND, "ours, then PyTorch")

    module = copy.deepcopy(start)
    optimizer = make_optimizer(module)
    torch_steps(module, optimizer, batches[:STEPS])
    execute(work, from_torch, module, optimizer)
    save_file({f"state.{i}.{k}": t for i, s in optimizer.state_dict()["state"].items() for k, t in s.items()},
              work.dir / "numbered.safetensors", metadata={"params": "\n".join(n for n, _ in module.named_parameters())})
    theirs = torch_steps(module, optimizer, batches[STEPS:])
    count = [] if adam else ["--step", STEPS]
    for states in "states", "numbered":
        work.ckpt("import", "weights.safetensors", "--optim", f"{states}.safetensors", "--onnx", "model.onnx", *count,
                  "--samples", STEPS * BATCH, "-o", states)
        near(work.train("--resume", states, "--steps", STEPS + MORE, *flags), theirs, LOSS_BOUND, f"PyTorch, {states}")


def check_tied(work):
    """One parameter under two names in a file: both are read, and refused when they differ; states too."""
    module = Gpt().train()
    to_onnx(copy.deepcopy(module), MODELS["gpt"][1]()[0], work.dir / "model.onnx", "dynamo", True)
    both = {k: t.clone() for k, t in module.state_dict().items()}
    one, other = "lm_head.weight", "transformer.wte.weight"
    states = {f"{n}.{k}": torch.zeros_like(both[n]) for n in dict(module.named_parameters()) | {one: 0}
              for k in ("exp_avg", "exp_avg_sq")}
    states |= {f"{n}.step": torch.tensor(3.0) for n in {key.rsplit(".", 1)[0] for key in states}}

    def load(name, changed=None, code=0, say=""):
        files = {"weights": dict(both), "states": dict(states)}
        for tensors in files.values():
            if changed in tensors:
                tensors[changed] = tensors[changed] + 1
        for file, tensors in files.items():
            save_file(tensors, work.dir / f"{file}.safetensors")
        work.ckpt("import", "weights.safetensors", "--optim", "states.safetensors", "--onnx", "model.onnx", "-o", name,
                  code=code, say=say)

    load("equal")
    for changed in one, other, f"{one}.exp_avg_sq":
        load("differs", changed, 1, "are one parameter of the model, and are not equal")
    load("differs", f"{other}.step", 1, "updates, under another name it is")
    want(not (work.dir / "differs").exists(), "a refused import left a folder")
    work.ckpt("export", "equal", "--onnx", "model.onnx", "-o", "again.safetensors",
              say="1 tensors are written under further names")
    again = load_file(work.dir / "again.safetensors")
    want(again.keys() == both.keys() and all(torch.equal(again[k], t) for k, t in both.items()), "other weights")


def execute(work, text, module, optimizer):
    """In the folder of the work."""
    text = re.sub(r'"(\w+\.safetensors)"', lambda m: f'"{work.dir}/{m.group(1)}"', text)
    exec(compile(text, "docs/checkpoints.md", "exec"), {"module": module, "optimizer": optimizer})


def check_shards(work):
    """Several files, as transformers reads them."""
    torch.manual_seed(0)
    module = Gpt().train()
    to_onnx(copy.deepcopy(module), MODELS["gpt"][1]()[0], work.dir / "model.onnx", "dynamo", True)
    work.data(MODELS["gpt"][1], STEPS)
    work.compile()
    work.train("--steps", STEPS, "--save", "save")
    hub = work.dir / "hub"
    hub.mkdir()
    work.ckpt("export", "save", "--onnx", "model.onnx", "-o", hub / "model.safetensors", "--shard-bytes", 60000)
    module.config.save_pretrained(hub)
    index = json.loads((hub / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    want(len(files) > 2 and all((hub / f).stat().st_size < 60000 + 8192 for f in files), f"files {files}")
    saved = load_file(work.dir / "save/latest/model.safetensors")
    loaded = transformers.GPT2LMHeadModel.from_pretrained(hub).state_dict()
    want(all(torch.equal(loaded[n], t) for n, t in saved.items()), "transformers loads other weights")


# ---- models made by hand ----

def two_layers(dtype, storage):
    """x @ w + b, twice, with tensors stored in one way: raw, typed fields, or a tensor shared by both layers' biases."""
    rng = np.random.default_rng(3)
    arrays = {"l0.weight": rng.normal(0, 0.3, (16, 16)), "l0.bias": rng.normal(0, 0.1, 16),
              "l1.weight": rng.normal(0, 0.3, (16, 16)), "l1.bias": rng.normal(0, 0.1, 16)}
    kind = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[dtype]
    tensors = [helper.make_tensor(n, kind, v.shape, v.astype(np.float32).flatten().tolist()) for n, v in arrays.items()]
    if storage == "raw":
        tensors = [numpy_helper.from_array(numpy_helper.to_array(t), t.name) for t in tensors]
    one, two = TensorProto.FLOAT, TensorProto.FLOAT
    nodes = [helper.make_node("MatMul", ["x", "l0.weight"], ["a"]), helper.make_node("Add", ["a", "l0.bias"], ["b"]),
             helper.make_node("Relu", ["b"], ["c"]), helper.make_node("MatMul", ["c", "l1.weight"], ["d"]),
             helper.make_node("Add", ["d", "l1.bias"], ["logits"])]
    if dtype != "f32":
        nodes[0].input[0] = "x16"
        nodes[-1].output[0] = "y16"
        nodes = [helper.make_node("Cast", ["x"], ["x16"], to=kind), *nodes,
                 helper.make_node("Cast", ["y16"], ["logits"], to=TensorProto.FLOAT)]
    graph = helper.make_graph(nodes, "two", [helper.make_tensor_value_info("x", one, [BATCH, 16])],
                              [helper.make_tensor_value_info("logits", two, [BATCH, 16])], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def vectors():
    return torch.randn(BATCH, 16), torch.randint(0, 16, (BATCH,))


def check_stored(work, dtype, storage):
    """Weights of a dtype, stored as raw bytes or in typed fields, from a file of f32."""
    model = two_layers(dtype, storage)
    (work.dir / "model.onnx").write_bytes(model.SerializeToString())
    torch.manual_seed(4)
    weights = {t.name: torch.randn(list(t.dims)) for t in model.graph.initializer}
    save_file(weights, work.dir / "weights.safetensors")
    work.ckpt("export", "weights.safetensors", "--onnx", "model.onnx", "-o", "trained.onnx")
    onnx.checker.check_model(str(work.dir / "trained.onnx"), full_check=True)
    rounded = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    for t, was in zip(onnx.load(work.dir / "trained.onnx").graph.initializer, model.graph.initializer):
        got = torch.from_numpy(numpy_helper.to_array(t).astype(np.float32))
        want(t.data_type == was.data_type and torch.equal(got, weights[t.name].to(rounded).float()), t.name)
        want(not t.int32_data and len(t.float_data) == len(was.float_data), f"{t.name}: other fields")


def check_external(work):
    """One file a tensor, two tensors that share bytes, a constant beside them, a node's tensor outside; unknown fields."""
    model = two_layers("f32", "raw")
    constant = numpy_helper.from_array(np.arange(16, dtype=np.int64).repeat(4).reshape(4, 16), "table")
    picked = helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.ones((4, 16), np.float32), "k"))
    model.graph.node.insert(0, picked)
    model.graph.node.insert(1, helper.make_node("Cast", ["table"], ["tablef"], to=1))
    model.graph.node.insert(2, helper.make_node("Mul", ["x", "one"], ["x1"]))
    model.graph.node.insert(3, helper.make_node("Add", ["x1", "tablef"], ["x2"]))
    model.graph.node[4].input[0] = "x2"
    model.graph.initializer.append(constant)
    model.graph.initializer[3].CopyFrom(numpy_helper.from_array(
        numpy_helper.to_array(model.graph.initializer[1]), "l1.bias"))
    (work.dir / "w").mkdir()
    tensors = [*model.graph.initializer, model.graph.node[0].attribute[0].t]
    for i, t in enumerate(tensors):
        shared = 1 if t.name == "l1.bias" else i  # the biases are equal and lie in one place
        (work.dir / f"w/{shared}.bin").write_bytes(b"pad!" * 16 + t.raw_data + b"tail")
        n = len(t.raw_data)
        t.ClearField("raw_data")
        t.data_location = TensorProto.EXTERNAL
        for key, value in dict(location=f"w/{shared}.bin", offset=64, length=n, checksum="0" * 40).items():
            t.external_data.add(key=key, value=str(value))
    unknown = b"\xfa\x3f\x05hello"  # field 1023
    (work.dir / "model.onnx").write_bytes(model.SerializeToString() + unknown)
    work.data(vectors, STEPS)
    work.compile()
    work.train("--steps", STEPS, "--save", "save", "--lr", "1e-2")
    saved = load_file(work.dir / "save/latest/model.safetensors")
    for out, *options in ("as_is.onnx",), ("in.onnx", "--embed"), ("out.onnx", "--external"):
        work.ckpt("export", "save", "--onnx", "model.onnx", "-o", out, *options)
        onnx.checker.check_model(str(work.dir / out), full_check=True)
        want((work.dir / f"{out}.data").exists() == (out != "in.onnx"), f"{out}: data file")
        want((work.dir / out).read_bytes().endswith(unknown), f"{out}: the unknown field is gone")
        got = {t.name: numpy_helper.to_array(t) for t in onnx.load(work.dir / out).graph.initializer}
        want(all(np.array_equal(got[n], t) for n, t in saved.items()), f"{out}: other weights")
        want(not np.array_equal(got["l0.bias"], got["l1.bias"]), f"{out}: the biases are one still")
        want(np.array_equal(got["table"], numpy_helper.to_array(constant)), f"{out}: the constant was changed")
        x = np.load(work.dir / "x.npy")[:BATCH]
        near(*work.outputs(out, x), OUTPUT_BOUND, out)


def check_errors(work):
    """What is refused, and by what words; nothing is left."""
    model = two_layers("f32", "raw")
    (work.dir / "model.onnx").write_bytes(model.SerializeToString())
    work.data(vectors, STEPS)
    work.compile()
    work.train("--steps", STEPS, "--save", "save")
    export = lambda *more, **say: work.ckpt("export", "save", *more, **say)
    files = lambda: sorted(p.name for p in work.dir.iterdir())
    other = copy.deepcopy(model)
    for old, new in ("l0.weight", "l9.weight"), ("l1.bias", "l8.bias"):
        next(t for t in other.graph.initializer if t.name == old).name = new
        for node in other.graph.node:
            node.input[:] = [new if n == old else n for n in node.input]
    wide = copy.deepcopy(model)
    wide.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.zeros((4, 16), np.float32), "l0.bias"))
    for name, content in (("other", other.SerializeToString()), ("wide", wide.SerializeToString()),
                          ("short", model.SerializeToString()[:-40])):
        (work.dir / f"{name}.onnx").write_bytes(content)
    before = files()
    said = export("--onnx", "other.onnx", "-o", "o.onnx", code=1, say='no tensor "l9.weight", which the model has')
    for name in 'no tensor "l8.bias", which', 'the model has no tensor "l0.weight"', 'the model has no tensor "l1.bias"':
        want(name in said, f"not all problems were said: {name}\n{said}")
    export("--onnx", "wide.onnx", "-o", "o.onnx", code=1, say='tensor "l0.bias" is f32[16], the model\'s is f32[4,16]')
    export("--onnx", "short.onnx", "-o", "o.onnx", code=1, say="not an ONNX model, or cut short")
    export("--onnx", "model.onnx", "-o", "model.onnx", code=1, say="the output must be new or empty")
    export("--onnx", "model.onnx", "-o", "no/o.onnx", code=3, say="could not be written: No such file or directory")
    export("--onnx", "model.onnx", "-o", "/proc/o.onnx", code=3, say="could not be written")
    export("-o", "no/o.safetensors", code=3, say="could not be written: No such file or directory")
    export("-o", "o.onnx", code=2, say="FILE.safetensors, or with --onnx")
    export("--onnx", "model.onnx", "-o", "o.onnx", "--embed", "--external", code=2, say="not both")
    export("-o", "o.safetensors", "--embed", code=2, say="need a model as output")
    want(files() == before, f"left behind: {set(files()) - set(before)}")
    check_old_version(work)
    check_import_errors(work)
    weights = work.dir / "save/latest/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    export("--onnx", "model.onnx", "-o", "o.onnx", code=1, say="is damaged")


def check_old_version(work):
    """Two biases that were one tensor of zeros, in a model whose tensors must be inputs."""
    model = two_layers("f32", "raw")
    tensors = model.graph.initializer
    tensors[1].CopyFrom(numpy_helper.from_array(np.zeros(16, np.float32), "bias"))
    del tensors[3]
    for node, layer in (model.graph.node[1], 0), (model.graph.node[4], 1):
        node.input[1], node.name = "bias", f"/l{layer}/Add"
    weights = {"l0.weight": (16, 16), "l1.weight": (16, 16), "l0.bias": (16,), "l1.bias": (16,)}
    save_file({n: torch.ones(shape) for n, shape in weights.items()}, work.dir / "two.safetensors")
    for version, code, say in (3, 1, "models of IR version 3 cannot have tensors that are no inputs"), (4, 0, ""):
        model.ir_version = version
        for t in tensors if version == 3 else ():
            model.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, t.dims))
        (work.dir / "merged.onnx").write_bytes(model.SerializeToString())
        work.ckpt("export", "two.safetensors", "--onnx", "merged.onnx", "-o", "split.onnx", code=code, say=say)
    names = {t.name for t in onnx.load(work.dir / "split.onnx").graph.initializer}
    want(len(names) == 4, f"tensors {names}")


def check_import_errors(work):
    saved = load_file(work.dir / "save/latest/model.safetensors")
    bad = {**saved, "extra": torch.zeros(3), "l0.bias": torch.zeros(17), "steps": torch.zeros(1, dtype=torch.int64),
           "l1.weight": saved["l1.weight"].half()}
    del bad["l1.bias"]
    save_file(bad, work.dir / "bad.safetensors")
    said = work.ckpt("import", "bad.safetensors", "--onnx", "model.onnx", "-o", "imported", code=1)
    for text in ('the model has no tensor "extra"', 'no tensor "l1.bias", which', 'tensor "l0.bias" is f32[17]',
                 'tensor "l1.weight" is f16[16,16], the model\'s is f32[16,16]'):
        want(text in said, f"not all problems were said: {text}\n{said}")
    save_file(saved, work.dir / "good.safetensors")
    states = {f"{n}.{k}": torch.zeros_like(t) for n, t in saved.items() for k in ("exp_avg", "exp_avg_sq")}
    count = {f"{n}.step": torch.tensor(3.0) for n in saved}
    for content, say in (
            ({"7.exp_avg": torch.zeros(3)}, "which parameter is that?"),
            ({"l7.exp_avg": torch.zeros(3)}, 'the model has no parameter "l7"'),
            ({**states, "l0.bias.max_exp_avg_sq": torch.zeros(16)}, "is no state of adamw"),
            ({**states, **count, "l0.bias.exp_avg": torch.zeros(3)}, 'tensor "l0.bias.exp_avg" is f32[3]'),
            ({"l0.bias.exp_avg": torch.zeros(16)}, 'there is no tensor "l0.bias.exp_avg_sq"'),
            ({**states, "l0.bias.step": torch.tensor(2.0)}, 'there is no tensor "l0.weight.step"'),
            ({**states, **count, "l0.bias.step": torch.tensor(2.5)}, "is not one number of updates")):
        save_file(content, work.dir / "states.safetensors")
        work.ckpt("import", "good.safetensors", "--optim", "states.safetensors", "--onnx", "model.onnx", "-o", "imported",
                  code=1, say=say)
    want(not (work.dir / "imported").exists(), "a refused import left a folder")
    save_file({**states, **count}, work.dir / "states.safetensors")
    work.ckpt("import", "good.safetensors", "--optim", "states.safetensors", "--onnx", "model.onnx", "--step", 2, "-o",
              "imported", code=1, say="the states are of 3 updates")
    save_file({**saved, "steps": torch.zeros(1, dtype=torch.int64)}, work.dir / "more.safetensors")
    work.ckpt("import", "more.safetensors", "--onnx", "model.onnx", "--optimizer", "adamw", "-o", "imported",
              say='1 tensor(s) of integers are left out: "steps"')
    want(len(work.train("--resume", "imported", "--steps", 2)) == 2, "weights alone do not train on")
    work.ckpt("import", "good.safetensors", "--onnx", "model.onnx", "-o", "imported", code=1, say="must be new or empty")


def check_symbolic(work):
    """A batch size that is bound when compiling: state.json has it for an export, --options for an import."""
    model = two_layers("f32", "raw")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    (work.dir / "model.onnx").write_bytes(model.SerializeToString())
    work.data(vectors, STEPS)
    work.compile("model.onnx", "train", "--bind", f"batch={BATCH}")
    work.train("--steps", STEPS, "--save", "save")
    work.ckpt("export", "save", "--onnx", "model.onnx", "-o", "trained.onnx")
    work.ckpt("export", "save", "-o", "weights.safetensors")
    said = work.ckpt("import", "weights.safetensors", "--onnx", "model.onnx", "-o", "imported", code=1)
    want("is not bound" in said and 'go into --options="--bind=' in said, said)
    bound = f"--options=--bind=batch={BATCH}"
    work.ckpt("import", "weights.safetensors", "--onnx", "model.onnx", bound, "-o", "imported")
    work.ckpt("export", "imported", "--onnx", "model.onnx", "-o", "again.onnx")
    said = work.ckpt("export", "weights.safetensors", "--onnx", "model.onnx", "-o", "file.onnx", code=1)
    want("is not bound" in said and 'go into --options="--bind=' in said, said)
    work.ckpt("export", "weights.safetensors", "--onnx", "model.onnx", bound, "-o", "file.onnx")
    want((work.dir / "file.onnx").read_bytes() == (work.dir / "again.onnx").read_bytes(), "of a file are other weights")
    same = [(work.dir / f"{name}.onnx").read_bytes() for name in ("trained", "again")]
    want(same[0] == same[1] != (work.dir / "model.onnx").read_bytes(), "an import exports other weights")


CASES = {
    "gpt, dynamo": lambda w: check_model(w, "gpt", "dynamo", True, []),
    "gpt, TorchScript": lambda w: check_model(w, "gpt", "torchscript", False, []),
    "gpt, dynamo, sharded, into one file": lambda w: check_model(
        w, "gpt", "dynamo", True, ["--embed"], ["--ranks", 2, "--save-kind", "sharded"]),
    "layers, dynamo": lambda w: check_model(w, "layers", "dynamo", False, []),
    "layers, TorchScript, out of the file": lambda w: check_model(w, "layers", "torchscript", False, ["--external"]),
    "cnn, dynamo, local, averages": lambda w: (check_model(
        w, "cnn", "dynamo", False, [], ["--ranks", 2, "--save-kind", "local"]), check_same_but_weights(w)),
    "cnn, TorchScript, external": lambda w: (check_model(w, "cnn", "torchscript", True, []), check_same_but_weights(w)),
    **{f"{dtype}, {storage} data": lambda w, d=dtype, s=storage: check_stored(w, d, s)
       for dtype in ("f32", "f16", "bf16") for storage in ("raw", "typed")},
    "external data in many files": check_external,
    "several files of weights": check_shards,
    "one parameter under two names": check_tied,
    "adamw, dynamo": lambda w: check_optimizer(w, "dynamo", "adamw"),
    "adamw, TorchScript": lambda w: check_optimizer(w, "torchscript", "adamw"),
    "sgd with momentum": lambda w: check_optimizer(w, "dynamo", "sgd:momentum"),
    "a symbolic dimension": check_symbolic,
    "errors": check_errors,
    "strict, cells, TorchScript": lambda w: check_strict(w, Cells, rows, "torchscript"),
    "strict, cells, dynamo": lambda w: check_strict(w, Cells, rows, "dynamo"),
    "strict, weight norm and ties, TorchScript": lambda w: check_strict(w, Parametrized, rows, "torchscript"),
    "strict, weight norm and ties, dynamo": lambda w: check_strict(w, Parametrized, rows, "dynamo"),
    "strict, unused, dynamo": lambda w: check_strict(w, Unused, rows, "dynamo", ("never.weight", "never.bias", "count")),
    "strict, unused, shardc.export, dynamo": lambda w: check_strict(w, Unused, rows, "shardc.dynamo"),
    "strict, unused, shardc.export, TorchScript": lambda w: check_strict(w, Unused, rows, "shardc.torchscript"),
    "strict, BERT, shardc.export": lambda w: check_strict(w, Bert, tokens(101, 16), "shardc.dynamo"),
    "strict, BERT, TorchScript": lambda w: check_strict(w, Bert, tokens(101, 16), "torchscript"),
    "strict, BERT, dynamo": lambda w: check_strict(w, Bert, tokens(101, 16), "dynamo", ("model.cls.predictions.bias",)),
}


def main():
    shardc, folder, chosen = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(2)
    good, names = 0, chosen or list(CASES)
    for name in names:
        try:
            CASES[name](Work(shardc, folder / re.sub(r"\W+", "-", name)))
            good += 1
            print(f"{name}: ok", flush=True)
        except (Failed, RuntimeError) as e:
            print(f"{name}: FAILED {e}", flush=True)
    print(f"export: {good} of {len(names)} passed")
    sys.exit(good < len(names))


if __name__ == "__main__":
    main()
