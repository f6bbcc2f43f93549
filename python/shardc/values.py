"""Arguments and results of a module as flat lists of tensors with names.

Both exporters are given a module that takes and returns tensors alone: what else is among the arguments is a
constant of the export, and what else is among the results is left out and reported."""
import dataclasses
import inspect

import torch
from torch.utils import _pytree as pytree

from .errors import ExportError


@dataclasses.dataclass
class Arguments:
    """A call of a module, taken apart."""
    tensors: list        # in the order of the graph's inputs
    names: list          # of the graph's inputs
    leaves: list         # all leaves; a tensor's place holds its index in `tensors`, as a Slot
    spec: object         # how leaves make up (args, kwargs)

    def call(self, module, tensors):
        leaves = [tensors[leaf.index] if isinstance(leaf, Slot) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return module(*args, **kwargs)


@dataclasses.dataclass(frozen=True)
class Slot:
    index: int


def arguments_of(module, args, kwargs, names=None):
    """args: a tensor, a tuple or list of positional arguments, or a mapping of keyword arguments."""
    if isinstance(args, torch.Tensor):
        args = (args,)
    if hasattr(args, "keys"):
        args, kwargs = (), {**{k: args[k] for k in args.keys()}, **(kwargs or {})}
    if not isinstance(args, (tuple, list)):
        raise ExportError(f"args is a {type(args).__name__}: give a tensor, a tuple of positional arguments, or a "
                          "mapping of keyword arguments")
    bound = (tuple(args), dict(kwargs or {}))
    paths, spec = pytree.tree_flatten_with_path(bound)
    result = Arguments([], [], [], spec)
    positional = positional_names(module)
    for path, leaf in paths:
        if isinstance(leaf, torch.Tensor):
            result.leaves.append(Slot(len(result.tensors)))
            result.tensors.append(checked_input(leaf, argument_name(path, positional)))
            result.names.append(argument_name(path, positional))
        else:
            result.leaves.append(leaf)
    if names is not None:
        if len(names) != len(result.tensors):
            raise ExportError(f"input_names has {len(names)} names, the call has {len(result.tensors)} tensors: "
                              f"{', '.join(result.names)}")
        result.names = list(names)
    if len(set(result.names)) != len(result.names):
        raise ExportError(f"inputs have equal names: {', '.join(result.names)}; give input_names=")
    return result


def checked_input(tensor, name):
    if tensor.is_complex():
        raise ExportError(f"input {name} is complex: pass torch.view_as_real of it, and view_as_complex is not needed "
                          "where forward computes with the two parts")
    if tensor.layout is not torch.strided:
        raise ExportError(f"input {name} is {tensor.layout}: pass a dense tensor")
    return tensor.detach()


def positional_names(module):
    kinds = inspect.Parameter
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]


def argument_name(path, positional):
    """`hidden_states`, or `memory.0` of a tuple argument."""
    root, first, *rest = path
    if root.idx == 0 and first.idx < len(positional):
        parts = [positional[first.idx]]
    else:
        parts = [f"args.{first.idx}"] if root.idx == 0 else [str(first.key)]
    return ".".join(parts + [key_of(k) for k in rest])


def key_of(key):
    for attribute in ("idx", "key", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key).strip(".[]'\"")


@dataclasses.dataclass
class Results:
    tensors: list
    names: list
    left_out: list       # "path (type)" of what is no tensor


def results_of(value, only=None):
    """The tensors of what a module returned; of a mapping or dataclass by their keys.

    only: names of those that are wanted."""
    found, left_out = [], []
    collect(value, "", found, left_out, 0)
    names = [name for name, _ in found]
    if only is not None:
        missing = [name for name in only if name not in names]
        if missing:
            raise ExportError(f"outputs= names {', '.join(missing)}; forward returns {', '.join(names) or 'nothing'}")
        found = [(name, dict(found)[name]) for name in only]
    if not found:
        raise ExportError("forward returns no tensor of floats" if not left_out else
                          f"forward returns no tensor but {', '.join(left_out)}: return the logits or the loss")
    return Results([t for _, t in found], [n for n, _ in found], left_out)


def collect(value, path, found, left_out, depth):
    name = path or "output"
    if isinstance(value, torch.Tensor):
        found.append((name, value))
    elif value is None:
        return
    elif isinstance(value, dict) or hasattr(value, "keys"):
        for key in value.keys():
            collect(value[key], join(path, key), found, left_out, depth + 1)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            collect(getattr(value, field.name), join(path, field.name), found, left_out, depth + 1)
    elif isinstance(value, (tuple, list)):
        fields = getattr(value, "_fields", None) or [str(i) for i in range(len(value))]
        if len(value) == 1 and not path:
            fields = [""]
        for key, item in zip(fields, value):
            collect(item, join(path or ("output" if key.isdigit() else ""), key), found, left_out, depth + 1)
    else:
        left_out.append(f"{name} ({type(value).__name__})")


def join(path, key):
    return f"{path}.{key}".strip(".")
