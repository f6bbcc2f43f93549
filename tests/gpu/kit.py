"""Makes the folder of the GPU kit: what a machine needs that has a GPU, its driver, NVIDIA's libraries and PyTorch.

It has every kernel's tests; small models, each with the losses that a CPU program had, recorded here; GPT-2 124M,
ResNet-50 and a Llama of 1.2 billion parameters, ours, with what each of their kernels computes and moves, and
PyTorch's side as source.  Weights are random numbers made by each program (--init=random), so the
folder holds none; runtimes that few machines have lie in lib/.  The folder serves the one arch it was made for; arch
`cudasim` runs the same under emulation.  OUT.tar.xz is the folder, packed, of at most 40 MB.

usage: kit.py SHARDC OUT [--arch sm_90a] [--nvcc PATH] [--tiny] [--program NAME]
"""
import argparse
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile

import numpy
import onnx_ir
import torch
from torch._subclasses import FakeTensorMode

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "bench")]
from classes import class_of  # noqa: E402
from gpu_models import GPT2, ResNet, build, make_data, sample_of  # noqa: E402

TINY = dict(layers=2, width=64, heads=4, vocabulary=301, length=40)
LOSS = ["--loss=cross_entropy", "--init=random:1"]
ADAMW = ["--optimizer=adamw"]
BF16 = ["--param-dtype=bf16"]
CARRIED = ["libgomp.so.1", "libcunit.so.1", "libjansson.so.4", "libdeflate.so.0"]  # all but one for the kernels' tests
EXAMPLES = ROOT / "examples"
TOKENS = ["--tokens", "data/text/tokens.npy"]
LIMIT = 40_000_000  # bytes of the packed folder
F32, HALF = 1e-5, 2e-2  # norm-relative, of losses; of gradient norms ten times that


def pair(name):
    return ["--data", f"x=data/{name}/x.npy", "--data", f"labels=data/{name}/labels.npy"]


def gpt(name, flags, bar, run=(), optimizer=ADAMW, **more):
    return dict(name=name, model="gpt", flags=LOSS + optimizer + flags, data=pair("gpt"), run=[*run], bar=bar, steps=6,
                **more)


# ranks: also run as two ranks; sanitize: also under compute-sanitizer
CHECKS = [
    dict(name="digits", model="digits", flags=LOSS + ADAMW + ["--bind", "batch=32"], data=pair("digits"), run=[],
         bar=F32, steps=8, sanitize=True),
    dict(name="digits-checked", model="digits", flags=LOSS + ADAMW + ["--bind", "batch=32", "--check-nan"],
         data=pair("digits"), run=[], bar=F32, steps=8),
    dict(name="text", model="text", flags=LOSS + ADAMW + ["--bind", "batch=2"], data=TOKENS, run=[], bar=F32, steps=3),
    gpt("gpt", ["--clip=2"], F32, ["--clip-norm", "0.5"], ranks=True, sanitize=True),
    gpt("gpt-bf16", [*BF16, "--reduce-dtype=bf16"], HALF, ranks=True, sanitize=True),
    gpt("gpt-f16", ["--param-dtype=f16", "--loss-scale=dynamic"], HALF, ["--on-nan", "skip"]),
    gpt("gpt-accum", ["--accum=many"], F32, ["--accum", "3"], ranks=True),
    gpt("gpt-lion", ["--remat=block", "--strategy=shard_grad_op"], F32, optimizer=["--optimizer=lion"], ranks=True),
    # one step: what follows amplifies rounding a hundredfold, between CPU runs of one and two threads, too
    dict(name="resnet", model="resnet", flags=[*LOSS, "--optimizer=sgd:momentum"], data=pair("resnet"), run=[], bar=F32,
         steps=1, ranks=True),
]
MODELS = {  # builder, batch, one sample's shape, classes, tokens, samples, seed of the data
    "gpt": (lambda: GPT2(**TINY), 2, (40,), 301, True, 64, 0),
    # rounding moves a relu's input by 5e-6, and one that changes sides moves the gradient by 2e-2: this seed's inputs,
    # and the largest values under each place of the max pool, are 1.7e-5 and more from where that happens
    "resnet": (lambda: ResNet((1, 1, 1, 1), 8, 10), 4, (3, 64, 64), 10, False, 32, 122),
}
# What bench.py reads: our flags, the model's sizes.  compare: how many steps are held against PyTorch's, and again
# later; lr: their rate, which for ResNet-50 is low: at 1e-4 and more rounding moves losses by percents within four steps
# (PyTorch's f32 and bf16 differ as much).  alone: PyTorch does not run it.  also: other programs of the model, by more
# flags, whose steps are measured beside it.
ALSO = {"own attention": ["--attention=own"], "cuDNN's attention": ["--attention=cudnn"],
        "fp8": ["--matmul-dtype=fp8"]}
WITHOUT_FP8 = ["sm_80"]
IN_MEMORY = ["--remat=none", "--offload=none"]  # of that Llama, which is large enough for fp8 to pay
LLAMA = dict(kind="llama", flags=[*BF16, "--remat=block", "--offload=optim"], alone=True,
             also={"in memory": IN_MEMORY, "in memory, fp8": [*IN_MEMORY, "--matmul-dtype=fp8"]})
BENCHES = {
    "gpt2-124m": dict(kind="gpt2", model=dict(layers=12, width=768, heads=12, vocabulary=50257, length=1024), batch=64,
                      flags=BF16, lr=3e-4, compare=[20, 200], also=ALSO),
    "resnet50": dict(kind="resnet", model=dict(depths=[3, 4, 6, 3], planes=64, classes=1000), batch=128, image=224,
                     flags=BF16, lr=3e-5, compare=[20, 200]),
    "llama-1b": dict(LLAMA, model=dict(layers=16, width=2048, heads=32, kv_heads=8, inner=8192, vocabulary=128256,
                                       length=2048), batch=4),
}
TINY_BENCHES = {
    "gpt2-124m": dict(kind="gpt2", model=TINY, batch=2, flags=BF16, lr=3e-4, compare=[6, 8], also=ALSO),
    "resnet50": dict(kind="resnet", model=dict(depths=[1, 1, 1, 1], planes=8, classes=10), batch=4, image=64,
                     flags=BF16, lr=1e-4, compare=[6, 8]),
    "llama-1b": dict(LLAMA, model=dict(TINY, kv_heads=2, inner=128), batch=2),
}
MACHINE = ROOT / "machines/h200-8.json"  # whose times of kernels are expected
PRODUCTS, BYTES = 790e12, 4.3e12  # a second: the best square product and copy that are expected of an H200


def call(*parts, **more):
    done = subprocess.run([str(p) for p in parts], capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, parts))}\nexit {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


def export(module, path, shape, tokens):
    example = torch.zeros(shape, dtype=torch.int64 if tokens else torch.float32)
    torch.onnx.export(module.train(), (example,), dynamo=True, optimize=False, verbose=False, input_names=["x"],
                      output_names=["logits"]).save(path)


def export_absent(case, path):
    """The same of a case whose weights exist nowhere, and which has no other initializers."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        module = build(case).train()
        x = torch.zeros(case["batch"], *sample_of(case), dtype=torch.int64)
        program = torch.onnx.export(module, (x,), dynamo=True, optimize=False, verbose=False, input_names=["x"],
                                    output_names=["logits"]).model
    for name, value in program.graph.initializers.items():
        t = value.const_value
        size = int(t.dtype.itemsize * numpy.prod(t.shape.numpy()))
        value.const_value = onnx_ir.ExternalTensor("absent.data", 0, size, t.dtype, shape=t.shape, name=name)
    onnx_ir.save(program, path)


def with_others(flags, more):
    """The flags, those of the same name replaced."""
    names = {m.split("=")[0] for m in more}
    return [f for f in flags if f.split("=")[0] not in names] + more


def gpu_of(arch):
    """The flags that plan for a GPU; under emulation it is the usual one."""
    return ["--target=cuda", *([] if arch == "cudasim" else [f"--arch={arch}"])]


def planned(shardc, model, flags, machine, work):
    """Of the step that the flags make: its hash, and of each op that computes what the plan says."""
    trace = work / "trace.json"
    trace.unlink(missing_ok=True)
    call(shardc, "plan", model, *flags, f"--machine={machine}", f"--trace={trace}")
    told = json.loads(trace.read_text())
    return told["otherData"]["program"], [planned_op(e) for e in told["traceEvents"] if "kernel" in e.get("args", {})]


def planned_op(event):
    """least_ms: of its products or its bytes, what takes longer, at the ceilings, and added_ms both; expected_ms: shardc's
    prediction.  Tensor cores multiply numbers of 8 bits twice as fast."""
    a = event["args"]
    flops, moved, kind = a["flops"], a["moved"], class_of(event["cat"], a.get("class"))
    parts = [1e3 * flops / (PRODUCTS * (2 if a.get("dtype") == "e4m3" else 1)), 1e3 * moved / BYTES]
    return {"op": a["op"], "kernel": a["kernel"], "class": kind, "flops": flops, "moved": moved,
            "least_ms": max(parts), "added_ms": sum(parts), "expected_ms": event["dur"] / 1e3}


def kinds_of(data, at):
    """The kinds of the entries of a fat binary that begins at a place, 1: PTX, 2: code.  Other bytes may begin as one does:
    sizes are not to be trusted.

    It has a head (magic, version, the head's size, that of all entries), then entries, each of them a kind, a version, the
    sizes of its head and of what follows.
    """
    head, entry = struct.Struct("<IHHQ"), struct.Struct("<HHIQ")
    end = at + head.size + head.unpack_from(data, at)[3] if at + head.size <= len(data) else 0
    at += head.size
    while at + entry.size <= min(end, len(data)):
        kind, _, *sizes = entry.unpack_from(data, at)
        yield kind
        at += max(sum(sizes), entry.size)


def holds_ptx(program):
    """Whether a program has text beside code, which a driver compiles for later GPUs."""
    data, at, magic = program.read_bytes(), -1, struct.pack("<IHH", 0xBA55ED50, 1, 16)
    while (at := data.find(magic, at + 1)) >= 0:
        if 1 in kinds_of(data, at):
            return True
    return False


class Kit:
    def __init__(self, args, work):
        self.shardc, self.out, self.work, self.args = pathlib.Path(args.shardc).resolve(), args.out, work, args
        shutil.rmtree(self.out, ignore_errors=True)
        self.bin = self.out / "bin" / args.arch
        for folder in (self.out / "lib", self.bin):
            folder.mkdir(parents=True)

    def compile(self, model, name, flags):
        """Makes a program; returns the plan's bytes of device memory."""
        nvcc = self.args.nvcc or (self.shardc.parent / "cudasim" / "nvcc" if self.args.arch == "cudasim" else "nvcc")
        call(self.shardc, model, "-o", self.bin / name, "--target=cuda", f"--arch={self.args.arch}", f"--nvcc={nvcc}",
             *flags)
        shutil.rmtree(self.bin / f"{name}.c.d")
        plan = json.loads(call(self.shardc, "plan", model, *gpu_of(self.args.arch), "--format=json", *flags))
        return plan["memory"]["total"]

    def carry(self):
        """What programs need besides NVIDIA's libraries and what PyTorch needs itself, and every kernel's tests."""
        for name in CARRIED:
            path = call("cc", f"-print-file-name={name}").strip()
            shutil.copy(os.path.realpath(path), self.out / "lib" / name)
        built = self.shardc.parent / "lib" / self.args.arch
        if (built / "libshardrt_nccl.so").exists():
            shutil.copy(built / "libshardrt_nccl.so", self.bin)
        sim = self.args.arch == "cudasim"
        if not sim:
            shutil.copy(built / "kernel-tests", self.bin / "kernels")
        shutil.copy((self.shardc.parent / "cudasim" if sim else built) / "micro", self.bin)

    def sources(self):
        for path in HERE.glob("*.py"):
            if path.name != "kit.py":
                shutil.copy(path, self.out)
        shutil.copy(ROOT / "bench/gpu/report.py", self.out / "report.py")
        run = self.out / "run"
        run.write_text('#!/bin/sh\n# run.py --help says more\nexec "${PYTHON:-python3}" "$(dirname "$0")/run.py" "$@"\n')
        run.chmod(0o755)

    def pack(self):
        """Prints the size of the folder, packed; more than a lent machine takes is an error, and so is PTX for one arch.

        Programs are the same runtime but for a few hundred KB, which a dictionary of 64 MB (preset 9) sees."""
        for program in self.bin.iterdir() if self.args.arch.endswith("a") else ():
            if holds_ptx(program):
                sys.exit(f"kit: {program} holds PTX: code for {self.args.arch} alone is expected")
        packed = self.out.with_name(f"{self.out.name}.tar.xz")
        with tarfile.open(packed, "w:xz", preset=9) as tar:
            tar.add(self.out, self.out.name)
        size = packed.stat().st_size
        print(f"kit: {packed}: {size / 1e6:.1f} MB; unpack it on a machine with a GPU and start ./run there")
        if size > LIMIT:
            sys.exit(f"kit: {packed} has {size} bytes; at most {LIMIT} are expected")


def check(kit):
    """Small models with what CPU programs of the same flags record."""
    data = kit.out / "data"
    models = {"digits": EXAMPLES / "digits/digits.onnx", "text": EXAMPLES / "text/text.onnx"}
    for name, (build, batch, sample, classes, tokens, n, seed) in MODELS.items():
        torch.manual_seed(0)
        models[name] = kit.work / f"{name}.onnx"
        export(build(), models[name], (batch, *sample), tokens)
        (data / name).mkdir(parents=True)
        make_data(data / name, sample, classes, tokens, n, seed)
    for name, files in (("digits", {"x_train.npy": "x.npy", "labels_train.npy": "labels.npy"}),
                        ("text", {"tokens_val.npy": "tokens.npy"})):
        (data / name).mkdir()
        for old, new in files.items():
            shutil.copy(EXAMPLES / name / old, data / name / new)
    cases = []
    for c in (c for c in CHECKS if kit.args.program in (None, c["name"])):
        case = {k: c[k] for k in ("name", "data", "run", "bar", "steps")}
        case["sanitize"] = c.get("sanitize", False)
        case["bytes"] = kit.compile(models[c["model"]], c["name"], c["flags"])
        case["losses"] = {w: record(kit, models[c["model"]], c, w) for w in ([1, 2] if c.get("ranks") else [1])}
        cases.append(case)
        print(f"kit: {c['name']}: {case['losses'][1]['loss']}", flush=True)
    return cases


def record(kit, model, c, ranks):
    """What a CPU program of the same flags says, on one or two ranks."""
    program, log = kit.work / f"cpu-{c['name']}", kit.work / "log"
    if not program.exists():
        call(kit.shardc, model, "-o", program, *c["flags"])
    call(program, *c["data"], "--steps", c["steps"], *c["run"], "--log", log, "--ranks", ranks, cwd=kit.out)
    rows = [r for r in map(json.loads, open(log)) if "step_ms" in r]
    log.unlink()
    return {k: [r[k] for r in rows] for k in ("loss", "grad_norm")}


def bench(kit):
    """Models of real size, which run beside PyTorch's."""
    benches = {name: case for name, case in (TINY_BENCHES if kit.args.tiny else BENCHES).items()
               if kit.args.program in (None, name)}
    for name, case in benches.items():
        torch.manual_seed(0)
        b = benches[name] = dict(case)
        tokens, path, flags = "vocabulary" in b["model"], kit.work / name, LOSS + ADAMW + b["flags"]
        path.mkdir()
        if b.get("alone"):
            export_absent(b, path / "model.onnx")
        else:
            export(build(b), path / "model.onnx", (b["batch"], *sample_of(b)), tokens)
        b["bytes"] = kit.compile(path / "model.onnx", name, flags)
        b["also"] = {who: dict(program=f"{name}-{i}", bytes=kit.compile(path / "model.onnx", f"{name}-{i}",
                                                                              with_others(flags, more)))
                     for i, (who, more) in enumerate(b.get("also", {}).items())
                     if "--matmul-dtype=fp8" not in more or kit.args.arch not in WITHOUT_FP8}
        b["program"], b["ops"] = planned(kit.shardc, path / "model.onnx", [*gpu_of(kit.args.arch), *flags], MACHINE,
                                         kit.work)
        b["items"] = b["batch"] * (b["model"]["length"] if tokens else 1)
        print(f"kit: {name}: plan {b['bytes'] / 2**30:.2f} GiB", flush=True)
    return benches


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shardc")
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--arch", default="sm_90a")
    p.add_argument("--nvcc")
    p.add_argument("--tiny", action="store_true", help="models of a few thousand parameters, to try the scripts")
    p.add_argument("--program", choices=[*(c["name"] for c in CHECKS), *BENCHES], metavar="NAME", help="the only one to make, to try this script in little time")
    args = p.parse_args()
    if not pathlib.Path(args.shardc).is_file():
        p.error(f"there is no {args.shardc}")
    args.out = args.out.resolve()
    with tempfile.TemporaryDirectory() as work:
        kit = Kit(args, pathlib.Path(work))
        cases = dict(checks=check(kit), benches=bench(kit))
        (kit.out / "cases.json").write_text(json.dumps(cases, indent=1))
        kit.carry()
        kit.sources()
        kit.pack()


if __name__ == "__main__":
    main()
