"""Compile time: from a model to step.c, how it grows with the number of nodes, and the C compiler's share.

Times `shardc --emit=c` (no C compiler) on GPT-2 124M with external weights and on chains of blocks of 1,000 to
100,000 nodes, then gcc on the emitted step.c and fused.c of GPT-2.

usage: python compile.py SHARDC WORKDIR [--nodes 1000,10000,100000] [--json FILE]
"""
import argparse
import json
import pathlib
import resource
import subprocess
import time

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

import cases
import models


def chain(path, nodes):
    """Residual blocks of MatMul, Add, Relu, Add: four nodes and two parameters each."""
    width = 16
    graph_nodes, init, x = [], [], "x"
    for i in range(nodes // 4):
        w, b = f"block.{i}.weight", f"block.{i}.bias"
        init.append(helper.make_tensor(w, TensorProto.FLOAT, [width, width], np.full(width * width, 0.01, np.float32)))
        init.append(helper.make_tensor(b, TensorProto.FLOAT, [width], np.arange(width, dtype=np.float32) / (i + 1)))
        graph_nodes += [helper.make_node("MatMul", [x, w], [f"m{i}"], name=f"/block.{i}/MatMul"),
                        helper.make_node("Add", [f"m{i}", b], [f"a{i}"], name=f"/block.{i}/Add"),
                        helper.make_node("Relu", [f"a{i}"], [f"r{i}"], name=f"/block.{i}/Relu"),
                        helper.make_node("Add", [x, f"r{i}"], [f"x{i}"], name=f"/block.{i}/Add_1")]
        x = f"x{i}"
    graph = helper.make_graph(graph_nodes, "chain", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, width])],
                              [helper.make_tensor_value_info(x, TensorProto.FLOAT, [8, width])], init)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)


def timed(parts):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    subprocess.run([str(p) for p in parts], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - begin, after.ru_utime - before.ru_utime, after.ru_maxrss / 1024


def best(parts, repeats=3):
    return min(timed(parts) for _ in range(repeats))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("work")
    p.add_argument("--nodes", default="1000,10000,100000")
    p.add_argument("--json")
    args = p.parse_args()
    work = pathlib.Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    rows = []

    def row(case, seconds, limit):
        rows.append(dict(case=case, metric="seconds", ours=seconds, limit=limit))
        print(f"{case:34} {seconds:8.3f} s   (limit {limit})", flush=True)

    case = cases.CASES["gpt2-124m"]
    torch.manual_seed(0)
    models.export(case, case.build().train(), work / "gpt2.onnx", "dynamo")
    out = work / "gpt2.c"
    seconds, _, rss = best([args.shardc, work / "gpt2.onnx", "--emit=c", "-o", out, "--loss=cross_entropy"])
    row("GPT-2 124M to step.c", seconds, "1 s")
    print(f"{'':34} {rss:8.1f} MiB largest resident set so far")
    row("gcc -O1 step.c", best(["make", "-B", "-C", out, "step.o"], 1)[0], "10 s, both files")
    row("gcc -O3 fused.c", best(["make", "-B", "-C", out, "fused.o"], 1)[0], "10 s, both files")
    for n in map(int, args.nodes.split(",")):
        chain(work / "chain.onnx", n)
        seconds, _, _ = best([args.shardc, work / "chain.onnx", "--emit=c", "-o", work / "chain.c", "--loss=mse"], 1)
        row(f"chain of {n} nodes to step.c", seconds, "linear")
        print(f"{'':34} {seconds / n * 1e6:8.1f} us a node")
    if args.json:
        pathlib.Path(args.json).write_text("".join(json.dumps(r) + "\n" for r in rows))


main()
