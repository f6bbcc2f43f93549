"""The models that the benchmarks of training steps train; `batch` is that of all ranks together."""
import pathlib
import sys

from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "parity"))
from models import Case, LanguageModel, gpt2, mobilenet, resnet  # noqa: E402

CASES = {
    "gpt2-124m": Case(gpt2(), 4, (256,), 50257, tokens=True, optimize=True),
    "resnet50": Case(resnet("bottleneck", [3, 4, 6, 3], [256, 512, 1024, 2048], 1000), 8, (3, 224, 224), 1000,
                     batch_norm=True, image=True),
    "mobilenetv2": Case(mobilenet(1000, 224), 8, (3, 224, 224), 1000, batch_norm=True, image=True),
    "lstm": Case(lambda: LanguageModel(nn.LSTM(512, 512, 2, batch_first=True), 10000, 512), 32, (64,), 10000,
                 tokens=True),
}
STEP_CASES = list(CASES)

# cases with 16-bit products and f32 masters, and our flags for them; PyTorch uses autocast
HALF = {"gpt2-124m-bf16": ["--param-dtype=bf16"], "resnet50-bf16": ["--param-dtype=bf16"],
        "mobilenetv2-bf16": ["--param-dtype=bf16"]}
CASES.update({name: CASES[name.removesuffix("-bf16")] for name in HALF})
STEP_CASES += ["gpt2-124m-bf16"]

# for ranks.py: short sequences, so that little computation hides communication; the last one only tries the script
CASES["gpt2-124m-t64"] = Case(gpt2(), 4, (64,), 50257, tokens=True, optimize=True)
CASES["gpt2-tiny"] = Case(gpt2(n_layer=2, n_embd=96, n_head=3, vocab_size=301, n_positions=40), 4, (40,), 301,
                          tokens=True)
RANK_SAMPLES = 64  # in the data of ranks.py
