"""Models that onnxruntime's transformers optimizer has rewritten train as they did before: five steps of AdamW, whose
losses may differ by 2e-5.

usage: python optimised.py SHARDC [MODEL..]      of bert, gpt2, llama, vit; default: all
The last line is "N models, N failed".
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import torch
import transformers as hf
from onnxruntime.transformers import optimizer

BATCH, ROWS, SAMPLES, HEADS, HIDDEN, TOLERANCE = 4, 16, 20, 4, 32, 2e-5
SMALL = dict(hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=64)
OFF = dict(hidden_dropout_prob=0., attention_probs_dropout_prob=0.)


class Logits(torch.nn.Module):
    def __init__(self, model, names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *args):
        return self.model(**dict(zip(self.names, args))).logits


def tokens():
    return torch.randint(0, 100, (SAMPLES, ROWS))


def ones():
    return torch.ones(SAMPLES, ROWS, dtype=torch.int64)


def bert():
    config = hf.BertConfig(vocab_size=100, max_position_embeddings=32, num_labels=3, **SMALL, **OFF)
    inputs = dict(input_ids=tokens(), attention_mask=ones(), token_type_ids=torch.randint(0, 2, (SAMPLES, ROWS)))
    return hf.BertForSequenceClassification(config), inputs, torch.randint(0, 3, (SAMPLES,)), "bert"


def gpt2():
    config = hf.GPT2Config(vocab_size=100, n_embd=HIDDEN, n_layer=2, n_head=HEADS, n_positions=32, use_cache=False,
                           resid_pdrop=0., embd_pdrop=0., attn_pdrop=0.)
    return hf.GPT2LMHeadModel(config), dict(input_ids=tokens(), attention_mask=ones()), tokens(), "gpt2"


def llama():
    config = hf.LlamaConfig(vocab_size=100, num_key_value_heads=2, max_position_embeddings=32, use_cache=False, **SMALL)
    return hf.LlamaForCausalLM(config), dict(input_ids=tokens(), attention_mask=ones()), tokens(), "gpt2"


def vit():
    config = hf.ViTConfig(image_size=16, patch_size=4, num_labels=5, **SMALL, **OFF)
    return hf.ViTForImageClassification(config), dict(pixel_values=torch.randn(SAMPLES, 3, 16, 16)), torch.randint(
        0, 5, (SAMPLES,)), "vit"


MODELS = dict(bert=bert, gpt2=gpt2, llama=llama, vit=vit)


def losses_of(shardc, path, names, folder):
    subprocess.run([shardc, path, "-o", folder / "train", "--loss=cross_entropy", "--arch=native"], check=True,
                   capture_output=True)
    data = [f"--data={k}={folder / k}.npy" for k in [*names, "labels"]]
    log = folder / f"{path.stem}.jsonl"
    subprocess.run([folder / "train", *data, "--steps=5", "--lr=1e-3", f"--log={log}"], check=True, capture_output=True)
    return [r["loss"] for r in map(json.loads, log.read_text().splitlines()) if "loss" in r][:5]


def try_model(shardc, name, folder):
    torch.manual_seed(0)
    model, inputs, labels, kind = MODELS[name]()
    model.config._attn_implementation = "eager"  # the form that the optimizer knows
    with torch.no_grad():
        for p in model.parameters():  # equal tensors would be merged
            p.add_(0.02 * torch.randn_like(p))
    for k, v in dict(**inputs, labels=labels).items():
        np.save(folder / f"{k}.npy", v.numpy())
    path = folder / "model.onnx"
    args = tuple(v[:BATCH] for v in inputs.values())
    torch.onnx.export(Logits(model, list(inputs)), args, path, input_names=list(inputs), output_names=["logits"],
                      dynamo=False, opset_version=17)
    made = optimizer.optimize_model(str(path), model_type=kind, num_heads=HEADS, hidden_size=HIDDEN, opt_level=0)
    made.save_model_to_file(str(folder / "optimised.onnx"))
    fused = {n.op_type for n in onnx.load(folder / "optimised.onnx").graph.node if n.domain == "com.microsoft"}
    was, now = (losses_of(shardc, folder / f, inputs, folder) for f in ("model.onnx", "optimised.onnx"))
    error = max(abs(a - b) for a, b in zip(was, now))
    print(f"{name:6} {sorted(fused)}: {' '.join(f'{x:.6f}' for x in now)}, differ by {error:.1g}")
    return len(now) == 5 and fused and error <= TOLERANCE


def main():
    shardc, *names = sys.argv[1:]
    failed = 0
    for name in names or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            failed += not try_model(shardc, name, pathlib.Path(folder))
    print(f"{len(names or MODELS)} models, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
