"""A model compiled by shardc and run: data in, losses and tensors out."""
import json
import os
import pathlib
import shutil
import subprocess

import numpy as np
import onnx
import torch

from .errors import CheckError

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I16": np.int16,
          "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_, "BF16": np.uint16}


def find_compiler(given=None):
    """The compiler: the argument, the variable SHARDC, the search path, or the tree that this package lies in."""
    tree = pathlib.Path(__file__).resolve().parents[2] / "build" / "shardc"
    for candidate in (given, os.environ.get("SHARDC"), shutil.which("shardc"), tree):
        if candidate and os.access(candidate, os.X_OK):
            return pathlib.Path(candidate).resolve()
        if candidate and candidate in (given, os.environ.get("SHARDC")):
            raise CheckError(f"{candidate} is no program")
    raise CheckError("shardc is not found: give shardc=, set SHARDC, or put it into PATH")


def read_safetensors(path):
    """{name: tensor} of a safetensors file."""
    raw = pathlib.Path(path).read_bytes()
    n = int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, entry in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = np.frombuffer(raw[8 + n + begin:8 + n + end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
        t = torch.from_numpy(values.copy())
        tensors[name] = t.view(torch.bfloat16) if entry["dtype"] == "BF16" else t
    return tensors


class Program:
    """A model's program in a folder.  const: names of inputs that are no samples; default: by their first axes."""

    def __init__(self, compiler, model, folder, limit=600, const=None):
        self.const = const
        self.compiler, self.model, self.folder, self.limit = compiler, pathlib.Path(model).resolve(), folder, limit
        graph = onnx.load(model, load_external_data=False).graph
        stored = {t.name for t in graph.initializer}
        self.inputs = [i for i in graph.input if i.name not in stored]
        self.outputs = [o.name for o in graph.output]
        self.said = ""

    def run(self, *parts):
        parts = [str(p) for p in parts]
        try:
            done = subprocess.run(parts, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder,
                                  timeout=self.limit)
        except subprocess.TimeoutExpired:
            raise CheckError(f"{' '.join(parts)}\ndid not end within {self.limit} s") from None
        if done.returncode:
            raise CheckError(f"{' '.join(parts)}\nexit {done.returncode}\n{done.stdout[-3000:]}")
        return done.stdout

    def flags(self, tensors):
        """--bind and --const: sizes of symbolic dimensions, inputs whose first axis is no batch."""
        sizes, flags = {}, []
        for info in self.inputs:
            t = tensors.get(info.name)
            dims = info.type.tensor_type.shape.dim
            for axis, dim in enumerate(dims if t is not None else []):
                if dim.dim_param:
                    sizes[dim.dim_param] = t.shape[axis]
        flags += [f"--bind={name}={size}" for name, size in sizes.items()]
        return flags + [f"--const={name}" for name in self.constants(tensors)]

    def constants(self, tensors):
        names = [i.name for i in self.inputs if i.name in tensors]
        if self.const is not None:
            unknown = [n for n in self.const if n not in names]
            if unknown:
                raise CheckError(f"const= names {', '.join(unknown)}; the inputs are {', '.join(names)}")
            return [n for n in names if n in self.const]
        batch = self.batch(tensors)
        return [n for n in names if not tensors[n].dim() or tensors[n].shape[0] != batch]

    def batch(self, tensors):
        """Samples: as many as labels, which are no input of the graph; as a first axis of free length has; as the first
        input's."""
        known = {i.name: i for i in self.inputs}
        labels = [t for n, t in tensors.items() if n not in known and t.dim()]
        free = [tensors[n] for n, i in known.items() if n in tensors and tensors[n].dim()
                and i.type.tensor_type.shape.dim[0].dim_param]
        others = [t for t in tensors.values() if t.dim()]
        return next((t.shape[0] for t in labels + free + others), None)

    def results(self, names, tensors):
        """{output of the file: tensor}; by name, or by order where the file has other names."""
        given = dict(zip(names, tensors))
        if set(self.outputs) <= set(names):
            return {n: given[n] for n in self.outputs}
        if len(self.outputs) != len(names):
            raise CheckError(f"the file's outputs are {', '.join(self.outputs)}, the module's {', '.join(names)}")
        return dict(zip(self.outputs, tensors))

    def compile(self, tensors, loss, *flags):
        self.said = self.run(self.compiler, self.model, "-o", self.folder / "train", f"--loss={loss}",
                             *self.flags(tensors), *flags)

    def ir(self, tensors, stop, *flags):
        return self.run(self.compiler, self.model, "--emit=ir", f"--stop-after={stop}", *self.flags(tensors), *flags)

    def train(self, tensors, steps, *flags):
        """(losses, model's tensors, optimizer's tensors) after `steps` steps in the file's order."""
        constants = self.constants(tensors)
        data = []
        for name, t in tensors.items():
            file = self.folder / f"data{len(data)}.npy"
            np.save(file, t.detach().cpu().contiguous().numpy())
            data += ["--const" if name in constants else "--data", f"{name}={file}"]
        save, log = self.folder / "save", self.folder / "log.jsonl"
        shutil.rmtree(save, ignore_errors=True)
        log.unlink(missing_ok=True)
        self.run(self.folder / "train", *data, "--steps", steps, "--save", save, "--log", log, *flags)
        losses = [r["loss"] for r in map(json.loads, log.read_text().splitlines()) if "loss" in r]
        state = save / "latest"
        return losses, read_safetensors(state / "model.safetensors"), read_safetensors(state / "optim.safetensors")
