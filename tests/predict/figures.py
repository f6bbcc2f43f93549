"""Published speeds of training: what was trained, on what, and how fast it was.

The configuration of a row is that of its source.  Rows whose `held` is False were looked at while the machine files and
the cost model were made; those whose `held` is True were chosen before any was predicted, and predicted once both stood
still.  `note` says what the source leaves open, and what its program does that a program of shardc does not.
"""
import dataclasses
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "sizes"))
from configs import LLAMA3, LLAMA3_8B, Model, gpt2, llama  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Figure:
    what: str           # the model and its batch, as in the table
    source: str
    machine: str        # a file of machines/
    world: int
    model: Model
    tokens: float       # a second and GPU, published
    remat: str = "none"  # none, block, or a policy in this folder
    options: tuple = ()
    accum: int = 1      # micro-batches of a step
    held: bool = True
    fused: bool = True  # by a compiler or by hand, as programs of shardc are
    note: str = ""


def of_batch(model, batch):
    return dataclasses.replace(model, batch=batch)


# ---- models ----

LLAMA2 = dict(vocab_size=32000, rope_theta=1e4)


def llama3_8b(tokens, batch):
    return of_batch(llama(tokens, 32, **LLAMA3_8B), batch)


def llama3_70b(tokens, batch):
    size = dict(hidden_size=8192, num_attention_heads=64, intermediate_size=28672, **LLAMA3)
    return of_batch(llama(tokens, 80, **size), batch)


# layers, width, heads, heads of keys, inner width
LLAMA2_SIZES = {"7B": (32, 4096, 32, 32, 11008), "13B": (40, 5120, 40, 40, 13824), "34B": (48, 8192, 64, 8, 22016),
                "70B": (80, 8192, 64, 8, 28672)}


def llama2(size, batch):
    layers, width, heads, key_heads, inner = LLAMA2_SIZES[size]
    return of_batch(llama(4096, layers, hidden_size=width, num_attention_heads=heads, num_key_value_heads=key_heads,
                          intermediate_size=inner, **LLAMA2), batch)


def gpt(layers, width, heads, vocabulary, tokens, batch):
    return of_batch(gpt2(tokens, layers, n_embd=width, n_head=heads, vocab_size=vocabulary, resid_pdrop=0, embd_pdrop=0,
                         attn_pdrop=0), batch)


# layers, width, heads; MPT is GPT-2 but for its name: learned positions, biases, tied embeddings
MPT = {"1b": (24, 2048, 16), "3b": (32, 2560, 20), "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56),
       "70b": (80, 8192, 64)}


def mpt(size, tokens, batch):
    return gpt(*MPT[size], 50368, tokens, batch)


# ---- figures ----

TITAN = "pytorch/torchtitan, benchmarks/llama3_h100_202412"
TITAN_A100 = "pytorch/torchtitan, docs/performance.md of 2024-11"
FOUNDRY = "mosaicml/llm-foundry, scripts/train/benchmarking"
KEMPNER = "KempnerInstitute/KempnerForge, benchmarks/mfu_scaling"
FMS = "foundation-model-stack/fms-fsdp, README"
SELECTIVE = "selective_op.json"
FIFTHS = "two_fifths.json"
TRITON = "attention of Triton"
CUDNN = "attention of cuDNN"  # all others are predicted with that of FlashAttention-2
HALF = ("--reduce-dtype=bf16",)
GRADS = ("--strategy=shard_grad_op",)
FP8 = ("--matmul-dtype=fp8",)
SCALING = "products of 8-bit floats; whether gathers are, too, is not said"


def foundry(size, gpu, world, batch, tokens, remat="none", accum=1, length=2048, **more):
    note = TRITON if gpu == "a100" or world < 128 else ""
    options = more.pop("options", ())
    if accum > 1:
        options += ("--accum=many", "--sync=every")
    machine = {"h100": "h100-8" if world == 8 else "h100-1024", "a100": "a100-8" if world == 8 else "a100-64"}[gpu]
    return Figure(f"MPT-{size}, {batch} x {length}", FOUNDRY, machine, world, mpt(size, length, batch), tokens, remat,
                  options, accum, fused=False, note=note, **more)


def fms(size, gpu, tokens, remat="none", held=True):
    machine, world = ("a100-128-400g", 128) if gpu == "a100" else ("h100-96-800g", 96)
    options = HALF + (("--strategy=hybrid_shard",) if size == "7B" else ())
    unsaid = ["kernels of early 2024, power limit not said"] if gpu == "h100" else []
    unsaid += ["recomputed blocks are taken from HFU / MFU"] if remat != "none" else []
    return Figure(f"Llama-2-{size}, 2 x 4096", FMS, machine, world, llama2(size, 2), tokens, remat, options, held=held,
                  note="; ".join(unsaid))


FIGURES = [
    # looked at while the model was made
    Figure("Llama-3-8B, 2 x 8192", TITAN, "h100-500w-128", 8, llama3_8b(8192, 2), 6667, SELECTIVE, held=False),
    Figure("Llama-3-8B, 1 x 8192", "pytorch/torchtitan#1881", "h100-500w-128", 8, llama3_8b(8192, 1), 7227, SELECTIVE,
           held=False, fused=False),
    Figure("Llama-3-8B, 2 x 4096", "pytorch/pytorch#179937", "h100-8", 8, llama3_8b(4096, 2), 9369, SELECTIVE,
           held=False, note="what is recomputed and the power limit are not said"),
    Figure("Llama-2-70B, 2 x 4096", "MaxText, NVIDIA's container", "h100-64", 64, llama2("70B", 2), 1036, "block",
           held=False, note=f"{CUDNN}; what is recomputed is not said"),
    Figure("GPT-2 124M, 64 x 1024", "karpathy/llm.c#481", "a100-8", 8, gpt(12, 768, 12, 50304, 1024, 64), 218453,
           options=GRADS + HALF, held=False, note="kernels written by hand"),
    foundry("7b", "h100", 8, 6, 10643, held=False),
    foundry("7b", "a100", 8, 6, 4641, accum=2, held=False),
    foundry("3b", "a100", 8, 10, 10811, accum=2, held=False),
    fms("7B", "a100", 4550, held=False),
    fms("7B", "h100", 9600, held=False),
    Figure("Llama-3-8B, 4 x 4096", KEMPNER, "h200-8", 1, llama3_8b(4096, 4), 10471, "block", ("--accum=many",), 2,
           held=False),
    # held out
    fms("13B", "a100", 2150, FIFTHS),
    fms("34B", "a100", 820, "block"),
    fms("70B", "a100", 410, "block"),
    fms("13B", "h100", 4850, FIFTHS),
    fms("34B", "h100", 1830, "block"),
    fms("70B", "h100", 890, "block"),
    Figure("Llama-3-8B, 1 x 8192", "pytorch/ao, docs/source/workflows/training.md", "h100-500w-128", 8,
           llama3_8b(8192, 1), 6150, SELECTIVE, note="the card is the one of roofline_utils.py there"),
    Figure("Llama-3-8B, 2 x 8192", TITAN, "h100-500w-128", 128, llama3_8b(8192, 2), 6514, SELECTIVE),
    Figure("Llama-3-8B, 2 x 8192", TITAN, "h100-500w-128", 8, llama3_8b(8192, 2), 8532, SELECTIVE, FP8, note=SCALING),
    Figure("Llama-3-8B, 2 x 8192", TITAN, "h100-500w-128", 128, llama3_8b(8192, 2), 8380, SELECTIVE, FP8, note=SCALING),
    Figure("Llama-3-8B, 2 x 8192", TITAN, "h100-500w-128", 8, llama3_8b(8192, 2), 5762, SELECTIVE, fused=False),
    Figure("Llama-3-8B, 2 x 8192", TITAN, "h100-500w-128", 128, llama3_8b(8192, 2), 5605, SELECTIVE, fused=False),
    Figure("Llama-2-13B, 2 x 4096", TITAN_A100, "a100-64", 64, llama2("13B", 2), 2162, fused=False),
    Figure("Llama-2-13B, 2 x 4096", TITAN_A100, "a100-64", 64, llama2("13B", 2), 1904, SELECTIVE, fused=False),
    Figure("Llama-2-70B, 2 x 4096", TITAN_A100, "a100-64", 64, llama2("70B", 2), 353, "block", fused=False),
    Figure("Llama-3-8B, 1 x 8192", TITAN_A100, "a100-64", 64, llama3_8b(8192, 1), 2973, SELECTIVE, fused=False),
    Figure("Llama-3-70B, 1 x 8192", TITAN_A100, "a100-64", 64, llama3_70b(8192, 1), 331, "block", fused=False),
    foundry("1b", "h100", 8, 14, 45455),
    foundry("3b", "h100", 16, 10, 24142, accum=3),
    foundry("13b", "h100", 8, 2, 4792),
    foundry("30b", "h100", 32, 14, 2308, "block", accum=3),
    foundry("7b", "h100", 8, 8, 6935, "block", accum=2, length=8192),
    foundry("7b", "h100", 128, 6, 10475),
    foundry("13b", "h100", 128, 16, 5080, "block"),
    foundry("70b", "h100", 128, 8, 1058, "block"),
    foundry("30b", "h100", 512, 8, 2115, "block"),
    foundry("1b", "h100", 512, 12, 39837, options=GRADS),
    foundry("1b", "a100", 8, 14, 20513, accum=4),
    foundry("13b", "a100", 8, 2, 2262, accum=3),
    foundry("30b", "a100", 8, 3, 916, "block", accum=21),
    foundry("7b", "a100", 8, 8, 3206, "block", accum=2, length=8192),
    foundry("70b", "a100", 64, 8, 410, "block", accum=4, options=HALF),
    Figure("Llama-3-8B, 4 x 4096", KEMPNER, "h200-8", 2, llama3_8b(4096, 4), 9364, "block",
           ("--accum=many", "--sync=every"), 2, note="four GPUs of a host; when gradients are reduced is not said"),
    Figure("Llama-3-8B, 4 x 4096", KEMPNER, "h200-8", 4, llama3_8b(4096, 4), 9746, "block",
           ("--accum=many", "--sync=every"), 2, note="four GPUs of a host; when gradients are reduced is not said"),
    Figure("GPT-2 1558M, 16 x 1024", "karpathy/llm.c#677", "h100-8", 8, gpt(48, 1600, 25, 50304, 1024, 16), 46811,
           options=GRADS + HALF + ("--accum=many",), accum=8, note=f"kernels written by hand; {CUDNN}"),
    Figure("GPT-2 124M, 64 x 1024", "KellerJordan/modded-nanogpt, README: llm.c", "h100-8", 8,
           gpt(12, 768, 12, 50304, 1024, 64), 463000, options=GRADS + HALF,
           note="kernels written by hand; 10 billion tokens in 45 minutes, with validation"),
]
QUICK = [f for f in FIGURES if f.model in (llama3_8b(4096, 4), llama3_8b(8192, 2), llama2("7B", 2))]
