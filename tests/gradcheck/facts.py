"""What an operator becomes in the IR, and which types it takes, found by compiling its first cases.

A type is taken when a model whose P operands are inputs of this type compiles to a program, and the standard's schema
allows it there."""
import re
import subprocess

import onnx
from onnx import TensorProto, helper

import case as cases_of

# names of base/dtypes.def, and the standard's
TYPES = {"f32": "float", "f64": "double", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
         "i16": "int16", "i8": "int8", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "bool": "bool"}


SOURCES = ("const", "param", "input", "read", "write")


def model_of(c, type_name):
    """The case with its P operands as inputs of a type; the loss is the sum of all results times a parameter."""
    kind = getattr(TensorProto, TYPES[type_name].upper())
    nodes, constants, inputs = [], [], []
    for name, array in c.data.items():
        operand = cases_of.operand(c, name).kind
        if operand == "C":
            constants.append(onnx.numpy_helper.from_array(array, name))
        else:
            inputs.append(helper.make_tensor_value_info(name, kind, array.shape) if operand == "P"
                          else cases_of.value_info(name, array))
    nodes += c.nodes
    constants.append(onnx.numpy_helper.from_array(cases_of.np.ones(1, "f4"), "w"))
    for i in range(c.results):
        nodes += [helper.make_node("Cast", [f"y{i}"], [f"y{i}.f"], to=TensorProto.FLOAT),
                  helper.make_node("Mul", [f"y{i}.f", "w"], [f"y{i}.p"]),
                  helper.make_node("ReduceSum", [f"y{i}.p"], [f"y{i}.s"], keepdims=0)]
    nodes.append(helper.make_node("Sum", [f"y{i}.s" for i in range(c.results)], ["total"]))
    return cases_of.make_model(c.opset, nodes, constants, inputs, [])


def allowed(c):
    """The types that the schema of the operator allows for its first P operand; None where there is no schema."""
    domain, _, op = c.op.rpartition(".")
    own = [n for n in c.nodes if n.op_type == op]
    at = [i for i, name in enumerate(own[0].input) if name in c.data and cases_of.operand(c, name).kind == "P"]
    try:
        schema = onnx.defs.get_schema(op, c.opset if not domain else 1, domain)
    except onnx.onnx_cpp2py_export.defs.SchemaError:
        return None
    if not at or not schema.inputs:
        return None
    types = schema.inputs[min(at[0], len(schema.inputs) - 1)].types
    return [t for t, name in TYPES.items() if f"tensor({name})" in types]


def compiles(shardc, c, folder, type_name, *flags):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(model_of(c, type_name).SerializeToString())
    (folder / "trained").write_text("w\n")
    consts = [f"--const={n}" for n in c.data if cases_of.operand(c, n).kind != "C"]
    done = subprocess.run([shardc, folder / "model.onnx", "-o", folder / "c", "--emit=c", "--loss=output:loss",
                           f"--trainable={folder}/trained", *consts, *flags], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{c.name} of {type_name}: shardc ended with {done.returncode}: {done.stderr[-300:]}")
    return done.returncode == 0


def becomes(shardc, c, folder):
    """The ops of the IR that come from nodes of this operator, in the order in which they are first met."""
    consts = [f"--const={n}" for n in c.data if cases_of.operand(c, n).kind != "C"]
    done = subprocess.run([shardc, folder / "model.onnx", "--emit=ir", "--stop-after=init", *consts],
                          capture_output=True, text=True)
    op = c.op.rpartition(".")[2]
    mine = set(re.findall(rf'^    (\d+) = "[^"]*":"{op}"', done.stdout, re.M))
    ops = re.findall(r"^    (?:%.* = )?(\w+) .*loc\((\d+)\)$", done.stdout, re.M)
    return [text for text, loc in ops if loc in mine and text not in SOURCES]


def facts(shardc, some, folder):
    """Of an operator by its cases: ops of the IR, types, and whether CUDA takes it."""
    varies = [c for c in some if c.trained()][:3]
    types = []
    for t in TYPES:
        legal = [c for c in varies if allowed(c) is None or t in allowed(c)]
        if any(compiles(shardc, c, folder / f"{c.name}-{t}", t) for c in legal):
            types.append(t)
    first, ops = types[0] if types else "f32", []
    for c in some:
        compiles(shardc, c, folder / c.name, first)
        ops += becomes(shardc, c, folder / c.name)
    cuda = any(compiles(shardc, c, folder / f"{c.name}-cuda", first, "--target=cuda",
                        "--arch=sm_90a") for c in some[:3])
    return dict(becomes=list(dict.fromkeys(ops)), types=types, cuda=cuda)
