"""Models of real sizes, and small ones of the same structure: numbers of their configurations."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Model:
    family: str         # a builder of models.py, a closed form of forms.py
    size: dict          # numbers of the configuration
    sample: tuple       # shape of one sample
    layers: dict        # scope of a stack of layers -> how many
    batch: int = 1

    @property
    def tokens(self):
        return len(self.sample) == 1


def llama(tokens, layers, **size):
    return Model("llama", size, (tokens,), {"model.model.layers": layers})


def qwen(tokens, layers, **size):
    return Model("qwen", size, (tokens,), {"model.model.layers": layers})


def gpt2(tokens, layers, **size):
    return Model("gpt2", size, (tokens,), {"model.transformer.h": layers})


def vit(image, layers, batch, **size):
    return Model("vit", size, (3, image, image), {"model.vit.layers": layers}, batch)


def resnet(image, depths, batch, **size):
    stacks = {f"model.resnet.encoder.stages.{i}.layers": n for i, n in enumerate(depths)}
    return Model("resnet", size, (3, image, image), stacks, batch)


LLAMA3 = dict(num_key_value_heads=8, vocab_size=128256, rope_theta=5e5)
LLAMA3_8B = dict(hidden_size=4096, num_attention_heads=32, intermediate_size=14336, **LLAMA3)
MODELS = {
    "llama3-8b": llama(8192, 32, **LLAMA3_8B),
    "llama3-70b": llama(8192, 80, hidden_size=8192, num_attention_heads=64, intermediate_size=28672, **LLAMA3),
    "llama3-405b": llama(8192, 126, hidden_size=16384, num_attention_heads=128, intermediate_size=53248, **LLAMA3),
    "llama-7b-128k": llama(131072, 32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=32,
                           intermediate_size=11008, vocab_size=32000, rope_theta=1e4),
    "llama3-8b-128k": llama(131072, 32, **LLAMA3_8B),
    "qwen2.5-7b": qwen(8192, 28, hidden_size=3584, num_attention_heads=28, num_key_value_heads=4,
                       intermediate_size=18944, vocab_size=152064, rope_theta=1e6),
    "gpt2-xl": gpt2(1024, 48, n_embd=1600, n_head=25, vocab_size=50257),
    "vit-g": vit(224, 40, 64, hidden_size=1408, num_attention_heads=16, intermediate_size=6144, patch_size=14,
                 num_labels=1000),
    "resnet-152": resnet(224, [3, 8, 36, 3], 128, embedding_size=64, hidden_sizes=[256, 512, 1024, 2048],
                         num_labels=1000),
}
