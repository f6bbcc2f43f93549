"""Closed forms of what a plan holds and sends, from the shapes of a model alone.

A form knows a model's units by the names of their parameters, so it holds however the plan wraps what is not a block;
how often a unit is gathered, and how many flat gradients live at once, is said here and not taken from the plan.
"""
import dataclasses

GIB = 2 ** 30


def up(n, to=64):
    return -(-n // to) * to


@dataclasses.dataclass(frozen=True)
class Block:
    shapes: list        # of its parameters
    kept: dict          # what backward reads of it: name -> bytes; the first is the block's input
    passing: dict       # remat -> bytes that live beside it while its backward is at its peak
    tiled: tuple = ()   # of what is kept, that which exists by tiles alone where it is recomputed: in passing

    @property
    def input(self):
        return next(iter(self.kept.values()))

    def bytes(self, remat):
        """Recomputed norms are made once more where backward reads them last."""
        return sum(n for what, n in self.kept.items()
                   if remat == "none" or not (what.startswith("norm") or what in self.tiled))


@dataclasses.dataclass(frozen=True)
class Form:
    blocks: list        # in forward order
    first: dict         # parameters that forward reads before the blocks: end of the name -> shape
    last: dict          # after the blocks
    held: int           # bytes that live through forward and backward of the blocks, beside what blocks keep
    loss: int           # bytes that live beside what is kept while the loss's gradient is computed
    inputs: int         # bytes of the micro-batch
    workspace: int      # bytes of the largest scratch of a kernel
    moves: dict         # casts, transposes and copies of a block: remat -> kind -> how many


def numel(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def activations(form, remat):
    """Bytes at the peak of backward: what blocks before keep, or their inputs alone, beside one block's backward."""
    before, peak = form.held, form.loss
    for block in form.blocks:
        peak = max(peak, before + block.bytes(remat) + block.passing[remat])
        before += block.input if remat == "block" else block.bytes(remat)
    return max(peak, before + form.loss)


# ---- transformers: d width, f hidden width, t tokens of a micro-batch, 2 bytes each; statistics are f32 ----

def moves(**counts):
    return {"none": counts, "block": counts}


MIB, ROWS = 2 ** 20, 4096  # rows of a block of logits where they are wide
PRODUCT, CAP = 32 * MIB, 64 * MIB  # what a product of cuBLASLt may use; what --workspace gives by default


def chunked(t, vocab):
    return 2 * t * vocab > 256 * MIB


def aligned(n):
    """Rows of logits begin at multiples of 64 elements."""
    return -(-n // 64) * 64


def logits(t, vocab):
    """The elements of a row of whole logits; 0: they exist by blocks."""
    return 0 if chunked(t, vocab) else vocab if vocab % 8 == 0 else aligned(vocab)


def workspace(t, d, vocab):
    """The loss head's: a block of logits, its log-sum-exps, two f64 partial sums a row, a product.  The embedding's
    gradient: two arrays of 64-bit keys to sort by, and for each 32 tokens two rows in f32."""
    head = 2 * ROWS * aligned(vocab) + 4 * ROWS + 2 * 8 * t + PRODUCT if chunked(t, vocab) else 0
    embedding = 2 * 8 * t + t // 32 * 2 * 4 * d
    return max(PRODUCT, head, embedding)


def tile(t, row):
    """Rows of a tile of an inner value of `row` bytes a token; None: it is whole, since it has no more than 1 GiB.
    Else tiles have at most 512 MiB or 4,096 rows, and are as few as that allows."""
    if t * row <= GIB:
        return None
    tiles = -(-t // max(4096, 512 * MIB // row))
    return up(-(-t // tiles), 128) if tiles > 1 else None


def mlp_passing(t, d, inner, gradient):
    """What lives beside a block while the gradient of its MLP is computed; inner, gradient: bytes a token of what goes
    into the loop and of the gradient that comes to it, over which the loop writes the gradients of both.  By tiles the
    gradient of the input is whole already, and a tile has both; what is kept is in no tile, but its gradient is."""
    def beside(rows):
        return 2 * 2 * t * d + (inner + gradient) * rows if rows else 2 * t * d + gradient * t
    return {"none": beside(tile(t, gradient)), "block": beside(tile(t, inner))}


def attention_kept(t, d, kv, heads):
    return {"q": 2 * t * d, "k": 2 * t * kv, "v": 2 * t * kv, "attention": 2 * t * d, "log-sum-exp": 4 * t * heads}


def llama(model, bias=False):
    s, t = model.size, model.sample[0]
    d, f, heads, vocab = s["hidden_size"], s["intermediate_size"], s["num_attention_heads"], s["vocab_size"]
    kv = d // heads * s["num_key_value_heads"]
    shapes = [(d,), (d, d), (kv, d), (kv, d), (d, d), (d,), (f, d), (f, d), (d, f)] + bias * [(d,), (kv,), (kv,)]
    kept = {"input": 2 * t * d, "norm 1": 2 * t * d, **attention_kept(t, d, kv, heads), "sum": 2 * t * d,
            "norm 2": 2 * t * d, "gate": 2 * t * f, "up": 2 * t * f, "statistics": 2 * 4 * t}
    (layers,) = model.layers.values()
    block = Block(shapes, kept, mlp_passing(t, d, 2 * 2 * f, 2 * f), ("gate", "up") if tile(t, 2 * 2 * f) else ())
    return Form([block] * layers, {"embed_tokens.weight": (vocab, d)},
                {"norm.weight": (d,), "lm_head.weight": (vocab, d)},
                2 * t * d // heads, 2 * t * (3 * d + logits(t, vocab)), 8 * t,
                workspace(t, d, vocab),
                # to 16 bits: the sum of q's, k's and v's products where biases lie between their weights (else they are
                # one, as gate and up are, which rounds its result itself)
                moves(cast=1) if bias else moves())


def qwen(model):
    return llama(model, bias=True)


def gelu_block(t, d, f, heads, shapes, by_products=False):
    """by_products: products compute the GELU, whose result is kept then."""
    kept = {"input": 2 * t * d, "norm 1": 2 * t * d, **attention_kept(t, d, d, heads), "sum": 2 * t * d,
            "norm 2": 2 * t * d, "gelu's input": 2 * t * f, "gelu": 2 * t * f * by_products, "statistics": 4 * 4 * t}
    return Block(shapes, kept, mlp_passing(t, d, 2 * f, 2 * f), ("gelu's input",) if tile(t, 2 * f) else ())


def gpt2(model):
    t, d, heads, vocab = model.sample[0], model.size["n_embd"], model.size["n_head"], model.size["vocab_size"]
    f = 4 * d
    shapes = [(d,), (d,), (d, 3 * d), (3 * d,), (d, d), (d,), (d,), (d,), (d, f), (f,), (f, d), (d,)]
    (layers,) = model.layers.values()
    return Form([gelu_block(t, d, f, heads, shapes, True)] * layers,
                {"lm_head.weight": (vocab, d), "wpe.weight": (t, d)},
                {"ln_f.weight": (d,), "ln_f.bias": (d,)}, 0,
                2 * t * (3 * d + logits(t, vocab)), 8 * t, workspace(t, d, vocab),
                moves())


def vit(model):
    s, image, batch = model.size, model.sample[-1], model.batch
    d, f, heads, patch = s["hidden_size"], s["intermediate_size"], s["num_attention_heads"], s["patch_size"]
    t, pixels = batch * ((image // patch) ** 2 + 1), batch * 3 * image ** 2
    shapes = [(d,), (d,), *[(d, d), (d,)] * 4, (d,), (d,), (f, d), (f,), (d, f), (d,)]
    (layers,) = model.layers.values()
    return Form([gelu_block(t, d, f, heads, shapes)] * layers, {
        "cls_token": (1, 1, d), "projection.weight": (d, 3, patch, patch), "projection.bias": (d,),
        "position_embeddings": (1, t // batch, d)}, {"layernorm.weight": (d,), "layernorm.bias": (d,),
        "classifier.weight": (1000, d), "classifier.bias": (1000,)}, 2 * pixels, 2 * t * 3 * d,
                4 * pixels + 8 * batch, CAP,
                moves(cast=1))  # to 16 bits: the sum of q's, k's and v's products


# ---- ResNet: bottlenecks of three convolutions, channels-last; results and what relus give are 16-bit ----

def bottleneck(batch, size, stride, cin, mid, out):
    """A block whose input has size x size pixels; the second convolution has the stride."""
    small, shortcut = size // stride, cin != out
    convs = [(mid, cin, 1, 1), (mid, mid, 3, 3), (out, mid, 1, 1)] + shortcut * [(out, cin, 1, 1)]
    norms = [(c,) for c in (mid, mid, out, *shortcut * (out,)) for _ in range(2)]
    pixels = {"input": size ** 2 * cin, "conv 1, relu 1": 2 * size ** 2 * mid, "conv 2, relu 2": 2 * small ** 2 * mid,
              "conv 3": small ** 2 * out, "shortcut": shortcut * small ** 2 * out}
    kept = {name: 2 * batch * n for name, n in pixels.items()}
    passing = 3 * 2 * batch * small ** 2 * out
    return Block(convs + norms, kept, {"none": passing, "block": passing})


def resnet(model):
    batch, size, channels, blocks = model.batch, model.sample[-1] // 4, 64, []
    for stage, depth in enumerate(model.layers.values()):
        for layer in range(depth):
            stride = 2 if stage and not layer else 1
            blocks.append(bottleneck(batch, size, stride, channels, 64 << stage, 256 << stage))
            size, channels = size // stride, 256 << stage
    stem = batch * (model.sample[-1] // 2) ** 2 * 64
    pixels = batch * 3 * model.sample[-1] ** 2
    held = {"conv and relu": 2 * 2 * stem, "indices of max_pool": 4 * stem // 4, "pixels": 2 * pixels}
    return Form(blocks,
                {"convolution.weight": (64, 3, 7, 7), "normalization.weight": (64,), "normalization.bias": (64,)},
                {"classifier.1.weight": (1000, channels), "classifier.1.bias": (1000,)}, sum(held.values()), 0,
                4 * pixels + 8 * batch, CAP,
                {"none": {}, "block": {"copy": 6}})  # running statistics, before they are written


FORMS = {"llama": llama, "qwen": qwen, "gpt2": gpt2, "vit": vit, "resnet": resnet}
