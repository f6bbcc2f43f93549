"""Checks a JSON plan of GPT-2 124M against closed forms written out from the model's shapes alone.

usage: closed_form.py PLAN.json"""
import json
import sys

LAYERS, WIDTH, VOCAB, CONTEXT = 12, 768, 50257, 1024


def up(n):
    return -(-n // 64) * 64


W = WIDTH
block = [W, W, W * 3 * W, 3 * W, W * W, W, W, W, W * 4 * W, 4 * W, 4 * W * W, W]
root = [VOCAB * W, CONTEXT * W, W, W]
plan = json.load(open(sys.argv[1]))
world, strategy, memory = plan["world"], plan["units"][0]["strategy"], plan["memory"]
split = {"full_shard": world, "shard_grad_op": world, "hybrid_shard": plan["shard_size"]}.get(strategy, 1)
whole = LAYERS * sum(map(up, block)) + sum(map(up, root))  # every shape is a multiple of 64: no gaps
assert whole == sum(block) * LAYERS + sum(root) == 124439808
shards = LAYERS * up(-(-sum(block) // split)) + up(-(-sum(root) // split))
want = {"parameters": 4 * shards, "elements": whole}
got = {"parameters": memory["parameters"], "elements": sum(u["elements"] for u in plan["units"])}
owned = strategy in ("oss", "sharded_ddp")
if owned:
    mine = sum(u["trainable"] for u in plan["units"] if u["owner"] == plan["rank"])
    want["states"], want["gradients"] = 8 * mine, None
else:
    want["states"] = 8 * shards
got["states"] = memory["optimizer states"]
if world == 1:  # those of the blocks lie among the activations; the root's, of embedding and head, outlive them
    want["gradients"], got["gradients"] = "at most the root's", memory["gradients"]
    if 0 <= memory["gradients"] <= 4 * sum(root):
        got["gradients"] = want["gradients"]
elif strategy in ("no_shard", "oss") or split == 1 and not owned:
    want["gradients"], got["gradients"] = 4 * whole, memory["gradients"]
want = {k: v for k, v in want.items() if v is not None}
sums = plan["step"]["sums"]
gathers = 2 * LAYERS - 1  # the last two blocks and the root once: nothing is gathered between forward and backward
counts = {"full_shard": {"all_gather": gathers, "reduce_scatter": LAYERS + 1},
          "shard_grad_op": {"all_gather": LAYERS + 1, "reduce_scatter": LAYERS + 1},
          "hybrid_shard": {"all_gather": gathers, "reduce_scatter": LAYERS + 1,
                           "all_reduce_shards": LAYERS + 1},
          "no_shard": {"all_reduce": LAYERS + 1}}.get(strategy)
if counts is None:
    n = len(plan["units"])
    counts = {"all_reduce" if strategy == "oss" else "reduce": n, "broadcast_flat": n}
for op, n in {**counts, "all_reduce_scalars": 1}.items():
    want[op], got[op] = n, sums[op]["count"]
if "all_gather" in counts:
    per_block, per_root = 4 * (split - 1) * up(-(-sum(block) // split)), 4 * (split - 1) * up(-(-sum(root) // split))
    want["gathered"] = (counts["all_gather"] - 1) * per_block + per_root
    want["scattered"] = LAYERS * per_block + per_root
    got["gathered"], got["scattered"] = sums["all_gather"]["bytes"], sums["reduce_scatter"]["bytes"]
if want != got:
    sys.exit(f"{strategy} at {world}: wanted {want}, got {got}")
