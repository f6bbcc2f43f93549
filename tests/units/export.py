"""Exports a model with random weights by both exporters, and once more with every name taken away.

usage: export.py FOLDER MODEL ...; writes FOLDER/MODEL.{dynamo,torchscript,stripped}.onnx
"""
import pathlib
import sys
import warnings

import onnx
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "parity"))
import models  # noqa: E402

CASES = dict(models.CASES)
# twelve layers, as GPT-2 has, with its ties; narrow, so that the export takes seconds
CASES["gpt2"] = models.Case(models.gpt2(n_layer=12, n_embd=48, n_head=3, vocab_size=301, n_positions=40), 4, (40,),
                            301, tokens=True)


def strip(model):
    """Takes away all that tells where a node or an initializer comes from."""
    kept = {v.name for v in [*model.graph.input, *model.graph.output]} | {""}
    names = {}

    def rename(name):
        return name if name in kept else names.setdefault(name, f"v{len(names)}")

    for node in model.graph.node:
        node.name = ""
        node.doc_string = ""
        del node.metadata_props[:]
        node.input[:] = [rename(x) for x in node.input]
        node.output[:] = [rename(x) for x in node.output]
    for tensor in model.graph.initializer:
        tensor.name = rename(tensor.name)
    del model.graph.value_info[:]
    del model.graph.metadata_props[:]
    del model.metadata_props[:]
    return model


def main(folder, *names):
    warnings.filterwarnings("ignore")
    for name in names:
        case = CASES[name]
        torch.manual_seed(0)
        module = case.build().train(case.batch_norm)
        for exporter in ("dynamo", "torchscript"):
            models.export(case, module, folder / f"{name}.{exporter}.onnx", exporter)
        if not case.batch_norm:
            onnx.save(strip(onnx.load(folder / f"{name}.torchscript.onnx")), folder / f"{name}.stripped.onnx")


main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
