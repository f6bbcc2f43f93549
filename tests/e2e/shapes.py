"""Samples of several lengths, against PyTorch: programs with a plan for each of several sizes (--bind seq=16,32), and
documents that are packed into rows.

PyTorch trains in f64 on the same samples one by one, without padding, in the order that docs/shapes.md states; losses of
every step must agree: of models of both exporters, on one rank and two, with micro-batches, with another number of ranks
after a resume, through the library, and held-out ones.  Memory equals that of the largest size alone.  What is wrong in
sizes, lengths and samples is refused by name.  Rows of several documents train as each document alone.

usage: python tests/e2e/shapes.py SHARDC WORKDIR [CASE..]
       python tests/e2e/shapes.py --example DIR          the model and the data of docs/shapes.md
"""
import ctypes
import json
import pathlib
import shutil
import subprocess
import sys
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

V, D, HEADS, LONGEST, N, SIZES, ROUND = 50, 32, 2, 32, 60, (16, 32), 8
LR, STEPS, BOUND = 1e-2, 18, 2e-6


class Failed(Exception):
    pass


def want(true, what):
    if not true:
        raise Failed(what)


# ---- models ----

class Block(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x, mask=None):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, -1).transpose(1, 2) for y in self.qkv(self.n1(x)).split(D, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Causal(nn.Module):
    """A language model whose positions come from a buffer, of which each size folds its own part."""
    inputs = {"ids": {0: "batch", 1: "seq"}}

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(LONGEST, D)
        self.blocks = nn.ModuleList([Block(True), Block(True)])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)
        self.register_buffer("at", torch.arange(LONGEST))
        self.register_buffer("waves", torch.sin(torch.arange(LONGEST)[:, None] / 3.0 ** torch.arange(D)))

    def forward(self, ids):
        t = ids.shape[1]
        x = self.tokens(ids) + self.places(self.at[:t]) + self.waves[:t]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Masked(nn.Module):
    """An encoder that sees all positions that its mask has, and one label for each of them."""
    inputs = {"ids": {0: "batch", 1: "seq"}, "attention_mask": {0: "batch", 1: "seq"}}

    def __init__(self):
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(V, D), nn.ModuleList([Block(False)])
        self.head = nn.Linear(D, V)

    def forward(self, ids, attention_mask):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, attention_mask[:, None, None, :].bool())
        return self.head(x)


class Blind(Masked):
    """The same without its mask: padding changes what it computes."""
    inputs = {"ids": {0: "batch", 1: "seq"}}

    def forward(self, ids):
        return self.head(self.blocks[0](self.tokens(ids)))


class Convolution(nn.Module):
    """Reads two positions behind the end of a sample."""
    inputs = Blind.inputs

    def __init__(self):
        super().__init__()
        self.tokens, self.conv, self.head = nn.Embedding(V, D), nn.Conv1d(D, D, 5, padding=2), nn.Linear(D, V)

    def forward(self, ids):
        return self.head(self.conv(self.tokens(ids).transpose(1, 2)).transpose(1, 2))


class Normed(nn.Module):
    """Its batch norm would mix padding in, and may be used only with statistics that stay as they are."""
    inputs = Blind.inputs

    def __init__(self):
        super().__init__()
        self.tokens, self.norm, self.head = nn.Embedding(V, D), nn.BatchNorm1d(D), nn.Linear(D, V)
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, ids):
        return self.head(self.norm(self.tokens(ids).transpose(1, 2)).transpose(1, 2))


class Packed(Causal):
    """Several documents in a row: which one a token is of, and where in it, are inputs; its mask is of both."""
    inputs = {"ids": {0: "batch", 1: "seq"}, "document_ids": {0: "batch", 1: "seq"}, "position_ids": {0: "batch", 1: "seq"}}

    def mask(self, document_ids, position_ids):
        t = document_ids.shape[1]
        earlier = torch.ones(t, t, dtype=torch.bool).tril()
        return ((document_ids[:, :, None] == document_ids[:, None, :]) & earlier)[:, None]

    def forward(self, ids, document_ids, position_ids):
        x, mask = self.tokens(ids) + self.places(position_ids), self.mask(document_ids, position_ids)
        for block in self.blocks:
            block.causal = False
            x = block(x, mask)
        return self.head(self.norm(x))


class Restarts(Packed):
    """As transformers has it: documents begin where positions do not go up by one, and positions are compared."""
    inputs = {"ids": {0: "batch", 1: "seq"}, "position_ids": {0: "batch", 1: "seq"}}

    def mask(self, document_ids, position_ids):
        before = torch.cat([position_ids[:, :1] - 1, position_ids[:, :-1]], 1)
        number = (position_ids - before != 1).long().cumsum(-1)
        earlier = position_ids[:, None, :] <= position_ids[:, :, None]
        return ((number[:, :, None] == number[:, None, :]) & earlier)[:, None]

    def forward(self, ids, position_ids):
        return super().forward(ids, None, position_ids)


class Next(Causal):
    """Predicts each next token, so that labels are one shorter than ids, whose lengths count for both."""

    def forward(self, ids):
        return super().forward(ids)[:, :-1]


class Pair(nn.Module):
    """Source and target have lengths of their own."""
    inputs = {"src": {0: "batch", 1: "s"}, "src_mask": {0: "batch", 1: "s"}, "tgt": {0: "batch", 1: "t"}}

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Embedding(V, D), nn.Embedding(V, D), nn.Linear(D, V)

    def forward(self, src, src_mask, tgt):
        x, y = self.a(src), self.b(tgt)
        return self.head(y + F.scaled_dot_product_attention(y, x, x, attn_mask=src_mask[:, None, :] > 0))


class Regression(nn.Module):
    inputs = {"x": {0: "batch", 1: "seq"}}

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, D), nn.Linear(D, 1)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def export(model, args, path, dynamo):
    names = list(model.inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            torch.onnx.export(model, args, path, dynamo=True, optimize=False, input_names=names, output_names=["logits"],
                              dynamic_shapes=tuple(model.inputs.values()), verbose=False)
        else:
            torch.onnx.export(model, args, path, dynamo=False, input_names=names, output_names=["logits"],
                              dynamic_axes=model.inputs, opset_version=17)


# ---- data ----

def samples(rng, longest=LONGEST):
    lengths = rng.integers(3, longest + 1, N)
    ids, labels = np.zeros((N, longest), np.int64), np.zeros((N, longest), np.int64)
    for i, n in enumerate(lengths):
        ids[i, :n], labels[i, :n] = rng.integers(0, V, n), rng.integers(0, V, n)
        ids[i, n:] = labels[i, n:] = V + 7  # nobody may read it: no row of the table has this number
    labels[1, :2] = -100
    return ids, labels, lengths


def order(lengths, epochs, sizes=SIZES, bucket=4096):
    """docs/shapes.md: by size in pools, rising and falling in turn."""
    out, size, number = [], np.searchsorted(sizes, lengths), 0
    for _ in range(epochs):
        for begin in range(0, len(lengths), bucket):
            pool = np.arange(begin, min(begin + bucket, len(lengths)))
            out += list(pool[np.argsort(size[pool] if number % 2 == 0 else -size[pool], kind="stable")])
            number += 1
    return out


def reference(model, forward, labels, lengths, at, steps=STEPS):
    """Losses of AdamW in f64, sample by sample and without padding."""
    model = model.double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    out = []
    for step in range(steps):
        total, count = 0, 0
        for i in at[step * ROUND:(step + 1) * ROUND]:
            y = torch.tensor(labels[i:i + 1, :lengths[i]])
            total = total + F.cross_entropy(forward(model, i)[0], y[0], reduction="sum")
            count += int((y != -100).sum())
        loss = total / count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


# ---- runs ----

class Case:
    def __init__(self, shardc, folder):
        self.shardc, self.folder = shardc, folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def run(self, *command, fails=None, says=None):
        done = subprocess.run([str(c) for c in command], cwd=self.folder, capture_output=True, text=True)
        text = done.stdout + done.stderr
        want((done.returncode == fails) if fails else done.returncode == 0, f"{command}: exit {done.returncode}\n{text}")
        want(says is None or says in text, f"{command}: does not say \"{says}\":\n{text}")
        want("Sanitizer" not in text and "internal error" not in text, text)
        return text

    def save(self, **arrays):
        for name, x in arrays.items():
            np.save(self.folder / f"{name}.npy", x)

    def compile(self, model, out, *options, batch=ROUND, bind=("seq=16,32",), **expect):
        return self.run(self.shardc, model, "-o", out, "--loss=cross_entropy", "--optimizer=adamw", "--bind",
                        f"batch={batch}", *[f"--bind={b}" for b in bind], *options, **expect)

    def train(self, program, log, *flags, steps=STEPS, **expect):
        return self.run(f"./{program}", "--steps", steps, "--lr", LR, "--log", log, "--threads", 1, *flags, **expect)

    def log(self, name, key="loss"):
        rows = [json.loads(line) for line in (self.folder / name).read_text().splitlines()]
        return [r[key] for r in rows if key in r]

    def compare(self, name, wanted):
        got = self.log(name)
        want(len(got) == len(wanted), f"{name}: {len(got)} steps, wanted {len(wanted)}")
        worst = max(abs(a - b) / abs(b) for a, b in zip(got, wanted))
        want(worst < BOUND, f"{name}: losses differ by {worst:.2g} from PyTorch's: {got} {wanted}")


DATA = ("--data", "ids=ids.npy", "--data", "labels=labels.npy", "--lengths", "lengths.npy")


def causal(c, dynamo):
    """One rank, two, micro-batches, resumed with other ranks, smaller pools: PyTorch's losses."""
    torch.manual_seed(0)
    model, (ids, labels, lengths) = Causal(), samples(np.random.default_rng(0))
    c.save(ids=ids, labels=labels, lengths=lengths)
    export(model, (torch.zeros(4, 16, dtype=torch.int64),), c.folder / "model.onnx", dynamo)
    state = {k: v.clone() for k, v in model.state_dict().items()}

    def forward(m, i):
        return m(torch.tensor(ids[i:i + 1, :lengths[i]]))

    wanted = reference(model, forward, labels, lengths, order(lengths, 4))
    c.compile("model.onnx", "one", says='input "ids" of short samples is filled up with 0')
    c.compile("model.onnx", "half", batch=ROUND // 2)
    c.compile("model.onnx", "many", "--accum=many", batch=ROUND // 4)
    c.train("one", "one.jsonl", *DATA)
    c.train("half", "two.jsonl", *DATA, "--ranks", 2)
    c.train("many", "many.jsonl", *DATA, "--accum", 2, "--ranks", 2)
    c.train("half", "on.jsonl", *DATA, "--ranks", 2, "--save", "ckpt", steps=7)
    c.train("one", "on.jsonl", *DATA, "--resume", "ckpt")
    for name in ("one", "two", "many", "on"):
        c.compare(f"{name}.jsonl", wanted)
    want(set(c.log("one.jsonl", "size")) == {"seq=16", "seq=32"}, "both sizes are used")
    want(c.log("two.jsonl", "size") == c.log("one.jsonl", "size"), "ranks run at the sizes of one rank")
    model.load_state_dict(state)
    c.train("one", "pools.jsonl", *DATA, "--bucket", 20)
    c.compare("pools.jsonl", reference(model, forward, labels, lengths, order(lengths, 4, bucket=20)))
    model.load_state_dict(state)
    c.train("one", "file.jsonl", *DATA, "--bucket", 1)
    c.compare("file.jsonl", reference(model, forward, labels, lengths, list(range(N)) * 4))
    shuffled(c)
    memory(c)
    held_out(c, model.double(), state, forward, labels, lengths)


def shuffled(c):
    """The order by seed is that of one rank at two, and a resumed run goes on in it."""
    flags = (*DATA, "--shuffle", 5, "--bucket", 16)
    c.train("one", "s1.jsonl", *flags)
    c.train("half", "s2.jsonl", *flags, "--ranks", 2)
    c.train("half", "s3.jsonl", *flags, "--ranks", 2, "--save", "other", steps=9)
    c.train("one", "s3.jsonl", *DATA, "--resume", "other")
    for name in ("s2.jsonl", "s3.jsonl"):
        c.compare(name, c.log("s1.jsonl"))
    want(c.log("s1.jsonl") != c.log("one.jsonl"), "--shuffle changes the order")


def memory(c):
    """Bytes are those of the largest size, but for data that each size has of its own."""
    def total(*bind):
        plan = c.run(c.shardc, "plan", "model.onnx", "--loss=cross_entropy", "--bind=batch=8", *bind, "--format=json")
        return json.loads(plan[plan.index("{"):plan.rindex("}") + 1])

    both, large, small = total("--bind=seq=16,32"), total("--bind=seq=32"), total("--bind=seq=16")
    for key in ("activations", "gradients", "parameters", "optimizer states", "inputs"):
        want(both["memory"][key] == large["memory"][key], f"{key}: {both['memory'][key]}, {large['memory'][key]}")
    want([s["size"] for s in both["sizes"]] == ["seq=16", "seq=32"], both["sizes"])
    want(both["sizes"][0]["activations"] == small["memory"]["activations"], "the smaller size is planned as it is alone")
    want(0 <= both["memory"]["total"] - large["memory"]["total"] <= 16 * D * 4 + 4096, "only constants come on top")


def held_out(c, model, state, forward, labels, lengths):
    """An evaluation, with a last round that is not full, counts each label once."""
    flags = ("--eval-data", "ids=ids.npy", "--eval-data", "labels=labels.npy", "--eval-lengths", "lengths.npy")
    c.train("half", "eval.jsonl", *DATA, *flags, "--ranks", 2, steps=3)
    weights = c.train("half", "eval1.jsonl", *DATA, *flags, "--save", "at3", steps=3) and "at3"
    c.run(c.shardc, "ckpt", "export", weights, "--onnx", "model.onnx", "-o", "at3.safetensors")
    from safetensors.torch import load_file
    model.load_state_dict({**state, **load_file(c.folder / "at3.safetensors")})
    total = count = 0
    for i in range(N):
        y = torch.tensor(labels[i, :lengths[i]])
        total += F.cross_entropy(forward(model.double(), i)[0], y, reduction="sum").item()
        count += int((y != -100).sum())
    got = c.log("eval1.jsonl", "eval_loss")[-1]
    want(abs(got - total / count) < BOUND * total / count, f"held-out loss {got}, PyTorch's {total / count}")
    want(len(c.log("eval.jsonl", "eval_loss")) == 1, "two ranks evaluate, too")


def shorter(c, dynamo):
    """Labels that are always one shorter than ids: lengths are those of ids, the first input, in whatever order flags stand."""
    torch.manual_seed(0)
    model, (ids, labels, lengths) = Next(), samples(np.random.default_rng(0))
    c.save(ids=ids, labels=labels[:, 1:], lengths=lengths)
    export(model, (torch.zeros(4, 16, dtype=torch.int64),), c.folder / "model.onnx", dynamo)
    wanted = reference(model, lambda m, i: m(torch.tensor(ids[i:i + 1, :lengths[i]])), labels[:, 1:], lengths - 1,
                       order(lengths, 4))
    c.compile("model.onnx", "train")
    c.train("train", "ids.jsonl", *DATA)
    c.train("train", "labels.jsonl", *DATA[2:4], *DATA[:2], *DATA[4:])
    for name in ("ids", "labels"):
        c.compare(f"{name}.jsonl", wanted)


def masked(c, dynamo):
    """An encoder with a mask is filled up with 0; without one, the program says that padding changes the loss."""
    torch.manual_seed(1)
    model, (ids, labels, lengths) = Masked(), samples(np.random.default_rng(1))
    c.save(ids=ids, labels=labels, lengths=lengths, mask=np.ones_like(ids))
    one = torch.ones(4, 16, dtype=torch.int64)
    export(model, (one, one.clone()), c.folder / "model.onnx", dynamo)
    c.compile("model.onnx", "train", says='"attention_mask" of short samples is filled up with 0: by its name')
    wanted = reference(model, lambda m, i: m(torch.tensor(ids[i:i + 1, :lengths[i]]), torch.ones(1, lengths[i]).long()),
                       labels, lengths, order(lengths, 4))
    said = c.train("train", "log.jsonl", *DATA, "--data", "attention_mask=mask.npy")
    want("padding changes the loss" not in said, said)
    c.compare("log.jsonl", wanted)
    export(Blind(), (one,), c.folder / "blind.onnx", dynamo)
    c.compile("blind.onnx", "blind")
    c.train("blind", "blind.jsonl", *DATA, steps=2, says="padding changes the loss: the same samples give")
    export(Convolution(), (one,), c.folder / "conv.onnx", dynamo)
    c.compile("conv.onnx", "conv")
    c.train("conv", "conv.jsonl", *DATA, steps=2, says="padding changes the loss: the same samples give")


def frozen(c, dynamo):
    """Norms that --bn=frozen:REGEX freezes are frozen at every size."""
    torch.manual_seed(2)
    model, (ids, labels, lengths) = Normed().eval(), samples(np.random.default_rng(2))
    c.save(ids=ids, labels=labels, lengths=lengths)
    export(model, (torch.zeros(4, 16, dtype=torch.int64),), c.folder / "model.onnx", dynamo)
    c.compile("model.onnx", "train", "--bn=frozen:norm")
    wanted = reference(model, lambda m, i: m(torch.tensor(ids[i:i + 1, :lengths[i]])), labels, lengths, order(lengths, 4))
    c.train("train", "log.jsonl", *DATA)
    c.compare("log.jsonl", wanted)


def pack(ids, labels, lengths):
    """Rows of LONGEST tokens with whole documents one behind the other; rows end with a document of padding."""
    rows, row = [], []
    for i, n in enumerate(lengths):
        if sum(lengths[j] for j in row) + n > LONGEST:
            rows.append(row)
            row = []
        row.append(i)
    rows = rows[:len(rows) // 8 * 8]
    out = [np.zeros((len(rows), LONGEST), np.int64) for _ in range(4)]
    out[1][:] = -100
    for r, row in enumerate(rows):
        at = 0
        for d, i in enumerate(row):
            n = lengths[i]
            for x, values in zip(out, (ids[i, :n], labels[i, :n], d, np.arange(n))):
                x[r, at:at + n] = values
            at += n
        out[2][r, at:], out[3][r, at:] = len(row), np.arange(LONGEST - at)
    return rows, out


def packed(c, dynamo):
    """Documents in a row train as each alone does, and no mask of queries and keys is in memory."""
    rng = np.random.default_rng(3)
    ids, labels, _ = samples(rng)
    lengths = rng.integers(3, 20, N)
    ids, labels = ids % V, np.where(labels > V, 1, labels)
    rows, (x, y, documents, positions) = pack(ids, labels, lengths)
    c.save(x=x, y=y, documents=documents, positions=positions)
    one = torch.arange(16).expand(4, 16)
    for kind in (Packed, Restarts):
        torch.manual_seed(3)
        model = kind()
        export(model, tuple(one.clone() for _ in model.inputs), c.folder / "model.onnx", dynamo)
        c.compile("model.onnx", "train", bind=(f"seq={LONGEST}",))
        plan = c.run(c.shardc, "plan", "model.onnx", "--loss=cross_entropy", "--bind=batch=8", f"--bind=seq={LONGEST}")
        want("masks that are kept" not in plan, plan)
        files = {"ids": "x", "document_ids": "documents", "position_ids": "positions"}
        data = [f for name in model.inputs for f in ("--data", f"{name}={files[name]}.npy")]
        c.train("train", "log.jsonl", *data, "--data", "labels=y.npy", steps=len(rows) // 8 * 2)
        want(max(map(len, rows)) > 2, "several documents a row")
        c.compare("log.jsonl", alone(model, ids, labels, lengths, rows * 2))


def alone(model, ids, labels, lengths, rows):
    """Losses of AdamW in f64 over the documents of eight rows a step, each by itself."""
    model = model.double()
    optimizer, out = torch.optim.AdamW(model.parameters(), lr=LR), []
    for step in range(len(rows) // 8):
        total, count = 0, 0
        for i in [i for row in rows[step * 8:step * 8 + 8] for i in row]:
            n = lengths[i]
            at, y = torch.arange(n)[None], torch.tensor(labels[i, :n])
            inputs = {"ids": torch.tensor(ids[i:i + 1, :n]), "document_ids": at * 0, "position_ids": at}
            total = total + F.cross_entropy(model(*[inputs[k] for k in model.inputs])[0], y, reduction="sum")
            count += int((y != -100).sum())
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        out.append((total / count).item())
    return out


def pair(c, dynamo):
    """Two dimensions: the k-th sizes belong together, and each input has lengths of its own."""
    torch.manual_seed(2)
    rng = np.random.default_rng(2)
    src, _, ls = samples(rng)
    tgt, labels, lt = samples(rng, 16)
    model = Pair()
    c.save(src=src, mask=np.ones_like(src), tgt=tgt, labels=labels, ls=ls, lt=lt)
    one = torch.ones(2, 16, dtype=torch.int64)
    export(model, (one, one.clone(), one[:, :8].clone()), c.folder / "model.onnx", dynamo)
    bind, mask = ("s=16,32", "t=8,16"), "--pad=src_mask=0"
    c.compile("model.onnx", "train", bind=bind, fails=1, says="give --pad NAME=VALUE")
    c.compile("model.onnx", "train", mask, bind=("s=16,32", "t=4,8,16"), fails=1, says="so give as many")
    c.compile("model.onnx", "train", mask, bind=bind)
    data = [f for name, file in (("src", "src"), ("src_mask", "mask"), ("tgt", "tgt"), ("labels", "labels"))
            for f in ("--data", f"{name}={file}.npy")]
    lengths = [f for name, file in (("src", "ls"), ("src_mask", "ls"), ("tgt", "lt"), ("labels", "lt"))
               for f in ("--lengths", f"{name}={file}.npy")]
    c.train("train", "log.jsonl", *data, "--lengths", "ls.npy", fails=1, says="say whose lengths these are")
    c.train("train", "log.jsonl", *data, *lengths[:-2], fails=1, says='input "labels" has no lengths')
    c.train("train", "log.jsonl", *data, *lengths)
    at = order(np.where((ls <= 16) & (lt <= 8), 1, 20), 4)
    c.compare("log.jsonl", reference(model, lambda m, i: m(torch.tensor(src[i:i + 1, :ls[i]]), torch.ones(1, ls[i]).long(),
                                                           torch.tensor(tgt[i:i + 1, :lt[i]])), labels, lt, at))


def library(c, dynamo):
    """A step of the library takes arrays of any length and runs at the smallest size that they fit in."""
    torch.manual_seed(0)
    model, (ids, labels, lengths) = Causal(), samples(np.random.default_rng(0))
    export(model, (torch.zeros(4, 16, dtype=torch.int64),), c.folder / "model.onnx", dynamo)
    c.compile("model.onnx", "lib", "--emit=lib")
    lib = ctypes.CDLL(str(c.folder / "lib/libmodel.so"))
    lib.model_error.restype = ctypes.c_char_p
    handle = ctypes.c_void_p()
    options = (ctypes.c_char_p * 3)(b"--lr=0.01", b"--threads=1", None)
    want(lib.model_create(options, ctypes.byref(handle)) == 0, "model_create")

    class Array(ctypes.Structure):
        _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p), ("rank", ctypes.c_int),
                    ("shape", ctypes.POINTER(ctypes.c_int64)), ("data", ctypes.c_void_p)]

    class Result(ctypes.Structure):
        _fields_ = [(k, ctypes.c_double) for k in ("loss", "grad_norm", "lr", "accuracy")] + \
            [("step", ctypes.c_int64), ("skipped", ctypes.c_int)]

    def step(call, x, y):
        made, result = [], Result()
        for name, a in ((b"ids", x), (b"labels", y)):
            a = np.ascontiguousarray(a)
            made.append((Array(name, b"i64", 2, (ctypes.c_int64 * 2)(*a.shape), a.ctypes.data), a))
        arrays = (Array * 2)(*[m[0] for m in made])
        return call(handle, arrays, 2, ctypes.byref(result)), result.loss

    at, got, longest = order(lengths, 4), [], []
    for k in range(STEPS):
        batch = at[k * ROUND:(k + 1) * ROUND]
        n = max(lengths[batch])
        x, y = ids[batch, :n].copy(), labels[batch, :n].copy()
        for row, i in enumerate(batch):
            x[row, lengths[i]:], y[row, lengths[i]:] = 0, -100
        longest.append(n)
        code, loss = step(lib.model_step, x, y)
        want(code == 0, lib.model_error(handle))
        got.append(loss)
    want(min(longest) < 16 and max(longest) > 16, "both sizes are used")
    code, held = step(lib.model_evaluate, ids[:ROUND, :3], labels[:ROUND, :3])
    want(code == 0 and held > 0, lib.model_error(handle))
    code, _ = step(lib.model_step, np.zeros((ROUND, 33), np.int64), np.zeros((ROUND, 33), np.int64))
    want(code == 1 and b"largest size" in lib.model_error(handle), lib.model_error(handle))
    lib.model_destroy(handle)
    wanted = reference(model, lambda m, i: m(torch.tensor(ids[i:i + 1, :lengths[i]])), labels, lengths, at)
    worst = max(abs(a - b) / b for a, b in zip(got, wanted))
    want(worst < BOUND, f"losses differ by {worst:.2g} from PyTorch's")


def cuda(c, dynamo):
    """The CUDA program, emulated, with graphs for each size: micro-batches, two ranks, an evaluation."""
    torch.manual_seed(0)
    model, (ids, labels, lengths) = Causal(), samples(np.random.default_rng(0))
    c.save(ids=ids, labels=labels, lengths=lengths)
    export(model, (torch.zeros(4, 16, dtype=torch.int64),), c.folder / "model.onnx", dynamo)
    sim = ("--target=cuda", "--arch=cudasim", f"--nvcc={c.shardc.parent}/cudasim/nvcc")
    wanted = reference(model, lambda m, i: m(torch.tensor(ids[i:i + 1, :lengths[i]])), labels, lengths, order(lengths, 4), 14)
    c.compile("model.onnx", "one", *sim)
    c.compile("model.onnx", "many", "--accum=many", *sim, batch=ROUND // 4)
    c.compile("model.onnx", "cpu")
    held = ("--eval-data", "ids=ids.npy", "--eval-data", "labels=labels.npy", "--eval-lengths", "lengths.npy")
    c.train("one", "one.jsonl", *DATA, *held, steps=14)
    c.train("cpu", "cpu.jsonl", *DATA, *held, steps=14)
    c.train("many", "many.jsonl", *DATA, "--accum", 2, "--ranks", 2, "--comm", "shm", steps=14)
    for name in ("one", "cpu", "many"):
        c.compare(f"{name}.jsonl", wanted)
    a, b = (c.log(f"{name}.jsonl", "eval_loss")[-1] for name in ("one", "cpu"))
    want(abs(a - b) < 1e-5, f"held-out losses {a} and {b}")


def refused(c, dynamo):
    """Sizes, lengths and samples that are wrong."""
    ids, labels, lengths = samples(np.random.default_rng(0))
    c.save(ids=ids, labels=labels, lengths=lengths)
    export(Causal(), (torch.zeros(4, 16, dtype=torch.int64),), c.folder / "model.onnx", dynamo)
    for bind, text in (("seq=16,16", "16 is there twice"), ("seq=32,16", "sizes stand in rising order"),
                       ("seq=0,16", "a size is at least 1"), ("seq=16,", "is no DIM=N,N"), ("seq=16,x", "is no DIM=N,N"),
                       ("seq=" + ",".join(str(n) for n in range(1, 18)), "of at most 16 sizes"),
                       ("batch=4,8", "the dimension counts samples")):
        rest = ("--bind=batch=8",) if bind.startswith("seq") else ("--bind=seq=16",)
        c.run(c.shardc, "model.onnx", "-o", "no", "--loss=cross_entropy", f"--bind={bind}", *rest, fails=1, says=text)
    c.compile("model.onnx", "no", "--emit=ir", fails=1, says="IR is that of one size")
    c.compile("model.onnx", "no", "--schedule-out=no.sched", fails=1, says="a schedule is that of one size")
    c.compile("model.onnx", "no", "--pad=labels=x", fails=1, says="is no number of type i64")
    for pad in ("1e30", "nan", "1.5", "9007199254740993"):
        c.compile("model.onnx", "no", f"--pad=ids={pad}", fails=1, says="is no number of type i64")
    c.compile("model.onnx", "no", "--pad=ids=1", "--pad=ids=2", fails=1, says='input "ids" is given twice, 1 and 2')
    c.compile("model.onnx", "no", f"--input-shape=ids={ROUND}x16", fails=1, says="--bind seq=16,32: leave one of them out")
    c.compile("model.onnx", "no", f"--input-shape=ids={ROUND}x32", fails=1, says="--bind seq=16,32: leave one of them out")
    c.compile("model.onnx", "no", "--pad=nobody=0", fails=1, says="the name of an input that has samples")
    export(Regression(), (torch.zeros(4, 16, 4),), c.folder / "regression.onnx", dynamo)
    c.run(c.shardc, "regression.onnx", "-o", "no", "--loss=mse", "--bind=batch=8", "--bind=seq=16,32", "--pad=x=0",
          "--pad=target=0", fails=1, says="the loss counts every element of it")
    want(not (c.folder / "no").exists(), "nothing is written")
    c.compile("model.onnx", "train")
    c.compile("model.onnx", "small", bind=("seq=8,16",))
    c.compile("model.onnx", "single", bind=("seq=32",))
    c.train("small", "log", *DATA, fails=1, says=f"sample {int(np.argmax(lengths > 16))} has {lengths[lengths > 16][0]} "
            'elements of input "ids", more than the largest size, seq=16, takes (16)')
    c.train("single", "log", *DATA, fails=1, says="this program has one size")
    for name, wrong, text in (("zero", np.where(np.arange(N) == 9, 0, lengths), "sample 9 has 0 elements"),
                              ("far", np.where(np.arange(N) == 9, 33, lengths), "sample 9 has 33 elements"),
                              ("few", lengths[1:], "one for each of the 60 samples"),
                              ("float", lengths.astype(np.float32), "lengths are i64 or i32"),
                              ("flat", lengths[:, None], "lengths are i64 or i32")):
        c.save(**{name: wrong})
        c.train("train", "log", *DATA[:-1], f"{name}.npy", fails=1, says=text)
    c.train("train", "log", *DATA[:-1], "ids=lengths.npy", "--lengths", "ids=far.npy", fails=1, says="has two files of lengths")
    c.train("train", "log", *DATA[:-1], "ids=lengths.npy", fails=1, says='input "labels" has no lengths')
    c.train("train", "log", *DATA, "--bucket", 0, fails=2, says="--bucket needs at least 1")
    c.train("train", "log", *DATA[:-2], "--bucket", 9, fails=2, says="--bucket needs --lengths")
    c.save(short=ids[:, :9], shorter=labels[:, :9])
    c.train("train", "short.jsonl", "--data", "ids=short.npy", "--data", "labels=short.npy", steps=1, fails=1,
            says="no --lengths: samples are as long as rows of their files and take size seq=16")
    c.train("train", "short.jsonl", "--data", "ids=short.npy", "--data", "labels=shorter.npy", steps=1, fails=1,
            says="outside an axis of 50")


CASES = {f.__name__: f for f in (causal, shorter, masked, frozen, packed, pair, library, refused)}
ASKED = {"cuda": cuda}  # wants the emulation (make cudasim)


def example(folder):
    torch.manual_seed(0)
    export(Causal(), (torch.zeros(4, 16, dtype=torch.int64),), folder / "lm.onnx", False)
    for name, x in zip(("ids", "labels", "lengths"), samples(np.random.default_rng(0))):
        np.save(folder / f"{name}.npy", x)


def main():
    if sys.argv[1] == "--example":
        return example(pathlib.Path(sys.argv[2]))
    shardc, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    torch.set_num_threads(1)
    failed, count = 0, 0
    for name in sys.argv[3:] or CASES:
        for dynamo in (False, True) if name in ("causal", "packed") else (name == "masked",):
            count += 1
            try:
                {**CASES, **ASKED}[name](Case(shardc, folder / name), dynamo)
            except Failed as e:
                failed += 1
                print(f"FAIL {name}{' by dynamo' if dynamo else ''}: {e}")
    print(f"shapes: {count - failed} of {count} passed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
