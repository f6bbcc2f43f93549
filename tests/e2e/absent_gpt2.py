"""Writes GPT-2 of any size as ONNX with external weights that do not exist: nothing of its size is allocated.

usage: absent_gpt2.py LAYERS WIDTH HEADS FILE.onnx"""
import sys

import numpy
import onnx_ir as ir
import torch
import transformers as hf
from torch._subclasses import FakeTensorMode

CONTEXT = 1024


class Logits(torch.nn.Module):
    def __init__(self, model, positions):
        super().__init__()
        self.model = model
        self.register_buffer("position_ids", positions, persistent=False)

    def forward(self, x):
        return self.model(x, position_ids=self.position_ids, use_cache=False, return_dict=True).logits


def main(layers, width, heads, path):
    config = hf.GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=CONTEXT, embd_pdrop=0,
                           resid_pdrop=0, attn_pdrop=0, attn_implementation="sdpa")
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = Logits(hf.GPT2LMHeadModel(config), torch.arange(CONTEXT)[None])
        x = torch.zeros(1, CONTEXT, dtype=torch.int64)
        program = torch.onnx.export(model.eval(), (x,), dynamo=True, optimize=False, verbose=False,
                                    input_names=["x"], output_names=["logits"])
    at = 0
    for name, value in program.model.graph.initializers.items():
        t = value.const_value
        if t.dtype == ir.DataType.INT64:
            value.const_value = ir.tensor(numpy.arange(CONTEXT)[None], name=name)
            continue
        size = int(t.dtype.itemsize) * int(numpy.prod([int(d) for d in t.shape]))
        value.const_value = ir.ExternalTensor("absent.data", at, size, t.dtype, shape=t.shape, name=name)
        at += size
    ir.save(program.model, path)


main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
