"""Models of real sizes as ONNX, from their configurations: no weight exists, nothing of their size is allocated.

PyTorch's exporter writes two layers of a model under fake tensors; further layers are copies of the second one, as the
exporter would have written them.  `--check` compares three layers made this way with three that were exported, for the
first model of each family.

usage: models.py DIRECTORY [--models a,b] [--check]
"""
import argparse
import itertools
import logging
import multiprocessing
import pathlib
import re
import sys
import time
import warnings

import numpy
import onnx_ir as ir
import torch
import transformers as hf
from torch._subclasses import FakeTensorMode
from transformers.initialization import no_init_weights

from configs import MODELS


class Logits(torch.nn.Module):
    """A Hugging Face model of one input that gives logits alone.

    Positions are given where the model takes them: the exporter cannot follow how it derives them."""

    def __init__(self, model, positions=0):
        super().__init__()
        self.model = model
        if positions:
            self.register_buffer("position_ids", torch.arange(positions)[None], persistent=False)

    def forward(self, x):
        extra = dict(position_ids=self.position_ids, use_cache=False) if hasattr(self, "position_ids") else {}
        return self.model(x, **extra, return_dict=True).logits


def llama(model, n, config=hf.LlamaConfig, build=hf.LlamaForCausalLM):
    size, (tokens,) = dict(model.size), model.sample
    rope = dict(rope_type="default", rope_theta=size.pop("rope_theta"))
    return Logits(build(config(num_hidden_layers=n, max_position_embeddings=tokens, attention_dropout=0,
                               rope_parameters=rope, **size)), tokens)


def qwen(model, n):
    return llama(model, n, hf.Qwen2Config, hf.Qwen2ForCausalLM)


def gpt2(model, n):
    (tokens,) = model.sample
    return Logits(hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=n, n_positions=tokens, **model.size)), tokens)


def vit(model, n):
    return Logits(hf.ViTForImageClassification(hf.ViTConfig(
        num_hidden_layers=n, image_size=model.sample[-1], hidden_dropout_prob=0, attention_probs_dropout_prob=0,
        **model.size)))


def resnet(model, n):
    return Logits(hf.ResNetForImageClassification(hf.ResNetConfig(depths=[n] * len(model.layers), **model.size)))


# (model, n) -> module of n layers in each of its stacks
BUILD = {"llama": llama, "qwen": qwen, "gpt2": gpt2, "vit": vit, "resnet": resnet}
DROPPED = ("namespace", "pkg.torch.onnx.stack_trace")  # nine tenths of a file, which shardc does not read
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"


# ---- export ----

def rotations(module):
    """Frequencies of rotary embeddings, by buffer: under fake tensors they were not computed."""
    for name, part in module.named_modules():
        if hasattr(part, "inv_freq"):
            yield f"{name}.inv_freq", type(part)(part.config).inv_freq.numpy()


def exported(model, layers):
    """The model with so many layers in each stack; its weights are external data of a file that does not exist."""
    with FakeTensorMode(allow_non_fake_inputs=True), no_init_weights():
        module = BUILD[model.family](model, layers).train()
        module.model.tie_weights()  # which goes with weights that are not initialised
        x = torch.zeros(model.batch, *model.sample, dtype=torch.int64 if model.tokens else torch.float32)
        program = torch.onnx.export(module, (x,), dynamo=True, optimize=False, verbose=False, input_names=["x"],
                                    output_names=["logits"]).model
    known = dict(rotations(module))
    if model.tokens:
        known["position_ids"] = numpy.arange(model.sample[0])[None]
    for name, value in program.graph.initializers.items():
        t = value.const_value
        value.const_value = ir.tensor(known[name], name=name) if name in known else absent(name, t.dtype, t.shape)
    for node in program.graph:
        for key in DROPPED:
            node.metadata_props.pop(key, None)
    return program


def absent(name, dtype, shape):
    size = int(dtype.itemsize * numpy.prod([int(d) for d in shape], dtype=numpy.int64))
    return ir.ExternalTensor("absent.data", 0, size, dtype, shape=shape, name=name)


# ---- layers ----

def is_in(node, scope):
    return f"'{scope}'" in node.metadata_props.get("pkg.torch.onnx.name_scopes", "")


def varying(graph):
    """Values that depend on the input or on weights; others may be shared by layers."""
    values = {*graph.inputs, *(v for v in graph.initializers.values() if isinstance(v.const_value, ir.ExternalTensor))}
    for node in graph:
        if node.op_type != "Shape" and not values.isdisjoint(node.inputs):
            values.update(node.outputs)
    return values


class Layer:
    """Layer 1 of a stack, and how it becomes layer k.  Layers pass one value on."""

    def __init__(self, graph, scope):
        self.graph, self.scope = graph, scope
        before, self.nodes = ([n for n in graph if is_in(n, f"{scope}.{k}")] for k in (0, 1))
        values, mine = varying(graph), set(self.nodes)
        (self.entry,) = {v for n in self.nodes for v in n.inputs if v in values and v.producer() in before} \
            or {v for n in self.nodes for v in n.inputs if v in values and v.producer() and v.producer() not in mine}
        (self.result,) = {v for n in self.nodes for v in n.outputs if v in values and {*v.consumers()} - mine}
        self.readers = [(u.node, u.idx) for u in self.result.uses() if u.node not in mine]
        made = (re.match(r"%(\w+)", n.metadata_props["pkg.torch.onnx.fx_node"]) for n in self.nodes)
        self.names = re.compile("%(" + "|".join({m[1] for m in made if m}) + r")\b")

    def text(self, s, k):
        """What a text about layer 1 says about layer k."""
        old, new = f"{self.scope}.1", f"{self.scope}.{k}"
        s = s.replace(old + ".", new + ".").replace(old + "'", new + "'")
        return s.replace(old.replace(".", "_") + "_", new.replace(".", "_") + "_")

    def parameter(self, value, k):
        name = self.text(value.name, k) if value.name in self.graph.initializers else value.name
        if name == value.name:
            return value
        if name not in self.graph.initializers:
            t = value.const_value
            self.graph.register_initializer(ir.Value(
                name=name, type=value.type, shape=value.shape, const_value=absent(name, t.dtype, t.shape),
                metadata_props={key: self.text(s, k) for key, s in value.metadata_props.items()}))
        return self.graph.initializers[name]

    def copied(self, node, k, now):
        """now: what layer k reads and makes in place of what layer 1 does; gets the results."""
        inputs = [v and (now.get(v) or self.parameter(v, k)) for v in node.inputs]
        outputs = [ir.Value(name=f"layer{k}_{v.name}", type=v.type, shape=v.shape) for v in node.outputs]
        now.update(zip(node.outputs, outputs))
        props = {key: self.names.sub(rf"%layer{k}_\1", self.text(s, k)) for key, s in node.metadata_props.items()}
        return ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), outputs=outputs,
                       name=f"layer{k}_{node.name}", metadata_props=props)

    def repeat(self, count):
        last, result = self.nodes[-1], self.result
        for k in range(2, count):
            now = {self.entry: result}
            nodes = [self.copied(n, k, now) for n in self.nodes]
            self.graph.insert_after(last, nodes)
            last, result = nodes[-1], now[self.result]
        for node, i in self.readers:
            node.replace_input_with(i, result)
        signature = []
        for mine, lines in itertools.groupby(self.graph.metadata_props[SIGNATURE].split("\n"), self.is_mine):
            lines = list(lines)
            signature += [self.text(s, k) for k in range(1, count) for s in lines] if mine else lines
        self.graph.metadata_props[SIGNATURE] = "\n".join(signature)

    def is_mine(self, line):
        return f"'{self.scope}.1." in line


def made(two, layers):
    """two: what was exported with two layers; layers: scope of a stack -> number of its layers, two or more."""
    program = two.clone()
    for scope, n in layers.items():
        Layer(program.graph, scope).repeat(n)
    return program


def save(program, path):
    at = 0
    for value in program.graph.initializers.values():
        t = value.const_value
        if isinstance(t, ir.ExternalTensor):
            value.const_value = ir.ExternalTensor(t.location, at, t.length, t.dtype, shape=t.shape, name=value.name)
            at += t.length
    ir.save(program, path)


# ---- check ----

def described(program):
    """The program up to the names of its values and nodes."""
    graph, number = program.graph, {}
    for v in [*graph.inputs, None]:
        number[v] = len(number)
    rows = []
    for node in graph:
        inputs = [v.name if v is not None and v.name in graph.initializers else number[v] for v in node.inputs]
        for v in node.outputs:
            number[v] = len(number)
        target = re.search(r"\[target=[^]]*\]", node.metadata_props.get("pkg.torch.onnx.fx_node", ""))
        attributes = [(a.name, a.value.numpy().tolist() if a.type == ir.AttributeType.TENSOR else a.value)
                      for a in node.attributes.values()]
        rows.append((node.op_type, attributes, inputs, [(v.type, v.shape) for v in node.outputs],
                     node.metadata_props["pkg.torch.onnx.name_scopes"].rpartition(",")[0], target and target[0]))
    weights = sorted((n, str(v.const_value.dtype), str(v.shape)) for n, v in graph.initializers.items())
    signature = [re.sub(r"^\w+: ", "", line) for line in graph.metadata_props[SIGNATURE].split("\n")]
    return rows, weights, signature, [number[v] for v in graph.outputs]


def differs(model, two):
    """Where three layers that were made differ from three that were exported; None: nowhere."""
    ours, theirs = described(made(two, dict.fromkeys(model.layers, 3))), described(exported(model, 3))
    for what, a, b in zip(("nodes", "weights", "signature", "outputs"), ours, theirs):
        if a != b:
            i = next((i for i, pair in enumerate(zip(a, b)) if pair[0] != pair[1]), min(len(a), len(b)))
            return f"{what} differ at {i} of {len(a)} and {len(b)}: made {a[i:i + 1]}, exported {b[i:i + 1]}"
    return None


def write(job):
    """(directory, name, check): writes a model; returns a sentence where it is not what the exporter would write."""
    directory, name, check = job
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    begin, model = time.time(), MODELS[name]
    two = exported(model, 2)
    wrong = differs(model, two) if check else None
    save(made(two, model.layers), directory / f"{name}.onnx")
    print(f"{name}: {time.time() - begin:.1f} s", flush=True)
    return f"{name}: {wrong}" if wrong else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    names = args.models.split(",")
    families = [MODELS[name].family for name in names]
    checks = [args.check and family not in families[:i] for i, family in enumerate(families)]
    with multiprocessing.Pool(2) as pool:
        wrong = pool.map(write, zip([args.directory] * len(names), names, checks), 1)
    sys.exit("\n".join(filter(None, wrong)) or 0)


if __name__ == "__main__":
    main()
