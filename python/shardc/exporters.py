"""PyTorch's two exporters, called so that nothing of the module is folded, merged or lost."""
import contextlib
import logging
import os
import sys
import tempfile
import traceback
import warnings

import onnx
import torch

from .errors import ExportError
from .tracing import ROOT

EXPORTERS = ("dynamo", "torchscript")
DEFAULT_OPSET = {"dynamo": None, "torchscript": 17}
FLOATS = ["tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)"]


@contextlib.contextmanager
def silent():
    """Exporters talk of what the module's user cannot change; one of them prints its graph below Python's streams.

    Gives a list, which then has (place, text) of the warnings of TorchScript's tracer about the module's own code."""
    told = []

    def show(message, category, *_, **__):
        if issubclass(category, torch.jit.TracerWarning) and (place := calling(sys._getframe(1))):
            told.append((place, str(message)))

    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    disabled = logging.root.manager.disable
    with tempfile.TemporaryFile() as nowhere, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", torch.jit.TracerWarning)
        warnings.showwarning = show
        logging.disable(logging.WARNING)
        try:
            for stream in 1, 2:
                os.dup2(nowhere.fileno(), stream)
            yield told
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for stream, before in zip((1, 2), kept):
                os.dup2(before, stream)
                os.close(before)
            logging.disable(disabled)


def run_exporter(exporter, root, arguments, output_names, path, dynamic, opset):
    """Writes the file as the exporter makes it, weights perhaps in files beside it.  Returns notes."""
    try:
        return ran(exporter, root, arguments, output_names, path, dynamic, opset)
    except ExportError as e:
        hint = about_experts(root)
        if hint is None:
            raise
        raise ExportError(f"{e}\n{hint}") from e


def about_experts(root):
    """What to do about a mixture of experts in the module; None where there is none."""
    for name, module in root.named_modules():
        kind = type(module).__name__
        if any(word in kind for word in ("Experts", "MoE", "Moe")):
            return (f"{name.removeprefix(ROOT + '.')} ({kind}) looks like a mixture of experts: lists of tokens as long "
                    "as the router's choice makes them have no static shape. Give each expert a static capacity, or "
                    "compute all experts behind masks (docs/export.md, Mixtures of experts)")
    return None


def ran(exporter, root, arguments, output_names, path, dynamic, opset):
    how = with_dynamo if exporter == "dynamo" else with_torchscript
    before = sys.exc_info()[1]  # of a caller that tries one exporter after the other
    try:
        with silent() as seen:
            how(root, arguments, output_names, path, dynamic, opset)
        return traced(seen)
    except ExportError:
        raise
    except Exception as e:
        cause = found_cause(e, before)
        if cause is not None:
            raise cause from e
        decided = decides(e)
        if decided is not None:
            raise ExportError(about_decision(decided)) from e
        text, other = told(e), EXPORTERS[exporter == "dynamo"]
        way = next((way for word, way in WAYS if word in text), f'Try exporter="{other}", or change what it names.')
        raise ExportError(f"PyTorch's {exporter} exporter failed: {text}\n{way}") from e


# What the other exporter cannot write either: a word of the message, and what to do.
WAYS = (
    ("randperm", "Neither exporter writes a permutation: draw it outside of forward and give it as an input, or sort random "
                 "numbers, torch.rand(n).argsort()."),
    ("_M_range_check", "It does so for a packed sequence of which only the last state is read: unpack the outputs "
                       "(pad_packed_sequence) and gather the one at each length instead."),
)


TORCH = os.path.dirname(torch.__file__) + os.sep
BETWEEN = (os.path.dirname(__file__) + os.sep, warnings.__file__, TORCH + "_tensor.py", TORCH + "overrides.py")


def calling(frame):
    """file:line of the code that called an operation; None where that is PyTorch's own."""
    while frame and frame.f_code.co_filename.startswith(BETWEEN):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(TORCH):
        return None
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def traced(told):
    """The tracer's warnings as one note: what was taken out of tensors as Python values."""
    places = dict.fromkeys(f"{place} ({text.split(' might ')[0].strip()})" for place, text in told)
    if not places:
        return []
    return ["the graph keeps what these took out of tensors while TorchScript traced, as it was for the batch of the "
            f"export: {shortened(list(places))}"]


def shortened(names, most=8):
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def found_cause(e, before):
    """An ExportError that an exporter has wrapped in an error of its own, and that is not of before."""
    seen = {id(before)}
    while e is not None and id(e) not in seen:
        if isinstance(e, ExportError):
            return e
        seen.add(id(e))
        e = e.__cause__ or e.__context__
    return None


def decides(e):
    """Of an exporter's error the cause, that a Python value was wanted of a tensor; None: it has another."""
    while e is not None:
        if "DataDependent" in type(e).__name__:
            return e
        e = e.__cause__
    return None


def about_decision(e):
    """What decided by a value of a tensor, where, and what to write instead."""
    frames = [frame for frame, _ in traceback.walk_tb(e.__traceback__)]
    if any(frame.f_code.co_name == "_detect_is_causal_mask" for frame in frames):
        return ("nn.Transformer looks into the mask that it is given to see whether it is causal, which no graph can hold: "
                "say it, is_causal=True or False (nn.Transformer: tgt_is_causal=, src_is_causal=)")
    places = [place for place in map(calling, frames) if place]
    return (f"forward decides by the value of a tensor{' in ' + places[-1] if places else ''}, as `if x.sum() > 0` does, "
            "which no graph can hold: write it with torch.where")


def told(e):
    """The beginning of the innermost cause: exporters print pages of advice and graphs around it."""
    seen = set()
    while e.__cause__ is not None and id(e) not in seen:
        seen.add(id(e))
        e = e.__cause__
    text = " ".join(str(e).split())
    return f"{type(e).__name__}: {text[:400]}{' ..' if len(text) > 400 else ''}"


def with_dynamo(root, arguments, output_names, path, dynamic, opset):
    try:
        import onnxscript
    except ImportError:
        raise ExportError('exporter="dynamo" needs the package onnxscript, the extra dynamo of this one: '
                          'pip install onnxscript, or use exporter="torchscript"') from None
    schema = onnx.defs.OpSchema(
        "StopGradient", "shardc", 1, inputs=[onnx.defs.OpSchema.FormalParameter("x", "T")],
        outputs=[onnx.defs.OpSchema.FormalParameter("y", "T")],
        type_constraints=[("T", FLOATS, "")])
    operator = onnxscript.values.Op(onnxscript.values.Opset("shardc", 1), "StopGradient", schema)

    def marker(x):
        return operator(x)

    shapes = None
    if dynamic:
        sizes = {}
        shapes = (tuple({axis: sizes.setdefault(size, torch.export.Dim(size)) for axis, size in
                         dynamic.get(name, {}).items()} or None for name in arguments.names),)
    program = torch.export.export(root, tuple(arguments.tensors), strict=False, dynamic_shapes=shapes)
    table = {torch.ops.shardc.stop_gradient.default: marker}
    more = {} if opset is None else {"opset_version": opset}
    result = torch.onnx.export(program, dynamo=True, optimize=False, verbose=False, input_names=arguments.names,
                               output_names=output_names, custom_translation_table=table, **more)
    result.save(str(path), external_data=True)


def with_torchscript(root, arguments, output_names, path, dynamic, opset):
    opset = opset or DEFAULT_OPSET["torchscript"]
    torch.onnx.register_custom_op_symbolic("shardc::stop_gradient", marker_node, opset)
    try:
        torch.onnx.export(root, tuple(arguments.tensors), str(path), dynamo=False, opset_version=opset,
                          training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False,
                          input_names=arguments.names, output_names=output_names, dynamic_axes=dynamic or None,
                          custom_opsets={"shardc": 1})
    finally:
        torch.onnx.unregister_custom_op_symbolic("shardc::stop_gradient", opset)


def marker_node(g, x):
    result = g.op("shardc::StopGradient", x)
    result.setType(x.type())
    return result
