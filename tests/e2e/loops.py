"""Models of tests/e2e/loops, and what PyTorch makes of them.

usage: loops.py models         writes KIND-T.onnx of batch 8 and KIND-T.half.onnx of batch 4, and their data
       loops.py train KIND T   trains KIND with PyTorch in f64, and writes KIND-T.safetensors
       loops.py refused        writes drop.onnx, grows.onnx and sorts.onnx, whose Scans cannot be loops
       loops.py lookup         writes lookup.onnx, whose Scan looks up rows of V by data, and its data; the last of
                               lookup.wrong.npy is no row
       loops.py differ A B     prints the largest difference of any tensor, relative to its largest element
"""
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file

SIZES = {"scan": (7, 2000), "loop": (6, 1500), "turned": (6, 1200)}
INPUTS, WIDTH, SAMPLES, STEPS, LR = 5, 16, 32, 4, 0.05


def weights(kind="scan", steps=1):
    draw = np.random.default_rng(3)
    shapes = {"W": (INPUTS, WIDTH), "U": (WIDTH, WIDTH), "V": (WIDTH, WIDTH), "b": (WIDTH,), "h0": (1, WIDTH)}
    made = {name: (draw.standard_normal(shape) * 0.25).astype("f4") for name, shape in shapes.items()}
    if kind == "turned":
        made["ramp"] = np.linspace(-1, 1, steps, dtype="f4").reshape(steps, 1)
    return made


def value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def cell(x):
    """h1 = tanh(x W + h U + b), c1 = c sigmoid(h1 V) + h1"""
    node = helper.make_node
    return [node("MatMul", [x, "W"], ["xw"]), node("MatMul", ["h", "U"], ["hu"]), node("Add", ["xw", "hu"], ["s"]),
            node("Add", ["s", "b"], ["sb"]), node("Tanh", ["sb"], ["h1"]), node("MatMul", ["h1", "V"], ["hv"]),
            node("Sigmoid", ["hv"], ["g"]), node("Mul", ["c", "g"], ["cg"]), node("Add", ["cg", "h1"], ["c1"])]


def body(kind, batch):
    """The body of a step: a Scan's (of two inputs, for `turned`), or a Loop's, which picks its row and counts."""
    node, wide = helper.make_node, [batch, WIDTH]
    states = [value("h", TensorProto.FLOAT, wide), value("c", TensorProto.FLOAT, wide)]
    out = [value("h1", TensorProto.FLOAT, wide), value("c1", TensorProto.FLOAT, wide)]
    stacked = [value("y", TensorProto.FLOAT, wide)]
    row = value("x", TensorProto.FLOAT, [batch, INPUTS])
    if kind == "scan":
        nodes = cell("x") + [node("Add", ["h1", "c1"], ["y"])]
        return helper.make_graph(nodes, "body", states + [row], out + stacked)
    if kind == "turned":  # the states change places
        nodes = [node("Sub", ["x", "z"], ["d"])] + cell("d") + [node("Mul", ["h1", "c1"], ["y"])]
        return helper.make_graph(nodes, "body", states + [row, value("z", TensorProto.FLOAT, [batch, INPUTS])],
                                 out[::-1] + stacked)
    nodes = [node("Gather", ["xt", "i"], ["x"], axis=0), node("Add", ["k", "one"], ["k1"]),
             node("Cast", ["k1"], ["kf"], to=TensorProto.FLOAT)] + cell("x") + [
             node("Div", ["c1", "kf"], ["y"]), node("Identity", ["go"], ["go1"])]
    number = [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, [])]
    return helper.make_graph(nodes, "body", number + states + [value("k", TensorProto.INT64, [])],
                             [value("go1", TensorProto.BOOL, [])] + out + [value("k1", TensorProto.INT64, [])] + stacked)


def model(kind, steps, batch, path):
    node = helper.make_node
    nodes = [node("Expand", ["h0", "shape"], ["hi"]), node("Neg", ["hi"], ["ci"])]
    if kind != "turned":
        nodes += [node("Transpose", ["in"], ["xt"], perm=[1, 0, 2])]
    if kind == "scan":
        nodes += [node("Scan", ["hi", "ci", "xt"], ["hT", "cT", "ys"], body=body(kind, batch), num_scan_inputs=1, name="/s")]
    elif kind == "turned":
        nodes += [node("Scan", ["hi", "ci", "in", "in"], ["hT", "cT", "ys"], body=body(kind, batch), num_scan_inputs=2,
                       scan_input_axes=[1, 1], scan_input_directions=[0, 1], scan_output_axes=[1],
                       scan_output_directions=[1], name="/s"), node("Mul", ["ys", "ramp"], ["yr"])]
    else:
        nodes += [node("Loop", ["T", "", "hi", "ci", "zero"], ["hT", "cT", "kT", "ys"], body=body(kind, batch), name="/l")]
    nodes += [node("ReduceMean", ["yr" if kind == "turned" else "ys"], ["m"], axes=[int(kind == "turned")], keepdims=0),
              node("Add", ["m", "cT"], ["n"]), node("Sub", ["n", "hT"], ["out"])]
    trained = weights(kind, steps)
    data = {"shape": np.array([batch, WIDTH]), "T": np.array(steps), "zero": np.array(0), "one": np.array(1)}
    used = {name for n in nodes for name in n.input} | ({"one"} if kind == "loop" else set())
    inits = [numpy_helper.from_array(v, k) for k, v in {**trained, **data}.items() if k in used or k in trained]
    graph = helper.make_graph(nodes, "g", [value("in", TensorProto.FLOAT, [batch, steps, INPUTS])],
                              [value("out", TensorProto.FLOAT, [batch, WIDTH])], inits)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def samples(steps):
    draw = np.random.default_rng(steps)
    return (draw.standard_normal((SAMPLES, steps, INPUTS)).astype("f4"), draw.standard_normal((SAMPLES, WIDTH)).astype("f4"))


def forward(torch, kind, w, x):
    h = w["h0"].expand(x.shape[0], WIDTH)
    c, ys, n = -h, [], x.shape[1]
    for t in range(n):
        step = x[:, t] - x[:, n - 1 - t] if kind == "turned" else x[:, t]
        h = torch.tanh(step @ w["W"] + h @ w["U"] + w["b"])
        c = c * torch.sigmoid(h @ w["V"]) + h
        ys.append(h + c if kind == "scan" else h * c if kind == "turned" else c / (t + 1))
        if kind == "turned":
            h, c = c, h
    ys = torch.stack(ys, 1)
    if kind == "turned":
        ys = ys.flip(1) * w["ramp"]
    return ys.mean(1) + c - h


def train(kind, steps):
    import torch  # the other commands do without what takes seconds to load
    torch.set_num_threads(1)
    w = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in weights(kind, steps).items()}
    x, y = (torch.tensor(v, dtype=torch.float64) for v in samples(steps))
    descent = torch.optim.SGD(w.values(), lr=LR)
    for k in range(STEPS):
        part = slice(8 * k, 8 * k + 8)
        descent.zero_grad()
        torch.nn.functional.mse_loss(forward(torch, kind, w, x[part]), y[part]).backward()
        descent.step()
    save_file({k: v.detach().numpy() for k, v in w.items()}, f"{kind}-{steps}.safetensors")


def refused():
    node, wide = helper.make_node, [4, WIDTH]
    half = numpy_helper.from_array(np.array(0.5, "f4"), "half")
    steps = {"drop": ([node("Dropout", ["h", "half", "yes"], ["d"], name="d"), node("Add", ["d", "x"], ["h1"])], 3),
             "grows": ([node("Concat", ["h", "x"], ["h1"], axis=1)], 2),
             "sorts": ([node("CumSum", ["h", "axis"], ["d"], name="d"), node("Add", ["d", "x"], ["h1"])], 40000)}
    for name, (nodes, n) in steps.items():
        body = helper.make_graph(nodes, "body", [value("h", TensorProto.FLOAT, None), value("x", TensorProto.FLOAT, wide)],
                                 [value("h1", TensorProto.FLOAT, None)])
        nodes = [node("Expand", ["w", "shape"], ["wx"]), node("Expand", ["in", "all"], ["xs"]),
                 node("Scan", ["wx", "xs"], ["out"], body=body, num_scan_inputs=1, name=name)]
        data = {"shape": np.array(wide), "all": np.array([n] + wide), "axis": np.array(1), "yes": np.array(True)}
        inits = [numpy_helper.from_array(v, k) for k, v in data.items()] + [half]
        inits.append(numpy_helper.from_array(weights()["h0"], "w"))
        out = [4, WIDTH * (n + 1)] if name == "grows" else wide
        graph = helper.make_graph(nodes, "g", [value("in", TensorProto.FLOAT, wide)], [value("out", TensorProto.FLOAT, out)],
                                  inits)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), name + ".onnx")


def lookup(steps=7):
    node, wide, draw = helper.make_node, [8, WIDTH], np.random.default_rng(5)
    body = helper.make_graph([node("Gather", ["V", "id"], ["row"], name="look"), node("Add", ["h", "row"], ["s"]),
                              node("Tanh", ["s"], ["h1"])],
                             "body", [value("h", TensorProto.FLOAT, wide), value("id", TensorProto.INT64, [8])],
                             [value("h1", TensorProto.FLOAT, wide)])
    nodes = [node("Transpose", ["id"], ["ids"], perm=[1, 0]), node("MatMul", ["in", "W"], ["first"]),
             node("Scan", ["first", "ids"], ["out"], body=body, num_scan_inputs=1, name="walk")]
    trained = {k: v for k, v in weights().items() if k in ("W", "V")}
    graph = helper.make_graph(nodes, "g", [value("in", TensorProto.FLOAT, [8, INPUTS]), value("id", TensorProto.INT64, [8, steps])],
                              [value("out", TensorProto.FLOAT, wide)], [numpy_helper.from_array(v, k) for k, v in trained.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "lookup.onnx")
    np.save("lookup.x.npy", draw.standard_normal((SAMPLES, INPUTS)).astype("f4"))
    np.save("lookup.y.npy", draw.standard_normal((SAMPLES, WIDTH)).astype("f4"))
    ids = draw.integers(-WIDTH, WIDTH, (SAMPLES, steps))
    np.save("lookup.id.npy", ids)
    ids[-1, -1] = WIDTH
    np.save("lookup.wrong.npy", ids)


if __name__ == "__main__":
    if sys.argv[1] == "models":
        for kind, lengths in SIZES.items():
            for steps in lengths:
                model(kind, steps, 8, f"{kind}-{steps}.onnx")
                model(kind, steps, 4, f"{kind}-{steps}.half.onnx")
                for name, v in zip("xy", samples(steps)):
                    np.save(f"{kind}-{steps}.{name}.npy", v)
    elif sys.argv[1] == "refused":
        refused()
    elif sys.argv[1] == "lookup":
        lookup()
    elif sys.argv[1] == "train":
        train(sys.argv[2], int(sys.argv[3]))
    else:
        a, b = load_file(sys.argv[2]), load_file(sys.argv[3])
        assert set(a) == set(b) and len(a) >= 2
        print("%.3g" % max(np.abs(a[k] - b[k].reshape(a[k].shape)).max() / np.abs(a[k]).max() for k in a))
