"""What a module holds: its tensors with names, kinds and ties, the modules whose behaviour depends on the mode;
and a context that gives all of it back as it was."""
import contextlib
import dataclasses

import torch
from torch import nn

from .errors import ExportError


@dataclasses.dataclass
class Held:
    """A tensor of a module under its first name."""
    name: str
    kind: str                       # parameter, buffer or constant
    tensor: torch.Tensor
    persistent: bool = True         # state_dict has it
    aliases: list = dataclasses.field(default_factory=list)


def tensors_of(module):
    """Every parameter, buffer and other tensor attribute once, in the framework's order."""
    held, by_id = [], {}

    def add(name, kind, tensor, persistent):
        known = by_id.get(id(tensor))
        if known is None:
            by_id[id(tensor)] = Held(name, kind, tensor, persistent)
            held.append(by_id[id(tensor)])
        elif name != known.name:
            known.aliases.append(name)

    for name, p in module.named_parameters(remove_duplicate=False):
        add(name, "parameter", p, True)
    for prefix, m in module.named_modules(remove_duplicate=False):
        for name, b in m._buffers.items():
            if b is not None:
                add(join(prefix, name), "buffer", b, name not in m._non_persistent_buffers_set)
    for prefix, m in module.named_modules(remove_duplicate=False):
        for name, value in vars(m).items():
            if isinstance(value, torch.Tensor) and value.grad_fn is None:
                add(join(prefix, name), "constant", value, False)
    return held


def join(prefix, name):
    return f"{prefix}.{name}" if prefix else name


NORMS = (nn.modules.batchnorm._NormBase,)
DROPOUTS = (nn.modules.dropout._DropoutNd,)


def dropout_of(module):
    """The rate of a module that drops values by itself, else 0."""
    if isinstance(module, DROPOUTS):
        return float(module.p)
    rates = [v for k, v in vars(module).items() if "drop" in k.lower() and isinstance(v, float)]
    return max(rates, default=0.0)


def modules_of(module):
    """name -> {class, training} of those whose behaviour depends on the mode, or whose mode is not the root's."""
    found = {}
    for name, m in module.named_modules(remove_duplicate=False):
        rate = dropout_of(m)
        if isinstance(m, NORMS) or isinstance(m, DROPOUTS) or rate > 0 or m.training != module.training:
            found[name] = {"class": type(m).__name__, "training": m.training}
            if rate > 0:
                found[name]["dropout"] = rate
    return found


def described(held, training, exporter, modules, used):
    """The metadata of the model; used: names of the initializers that the file has."""
    tensors = []
    for h in held:
        entry = {"name": h.name, "kind": h.kind, "shape": list(h.tensor.shape),
                 "dtype": str(h.tensor.dtype).removeprefix("torch."),
                 "requires_grad": h.kind == "parameter" and h.tensor.requires_grad}
        if h.kind == "buffer":
            entry["persistent"] = h.persistent
        entry["aliases"] = h.aliases
        entry["initializer"] = h.name if h.name in used else None
        tensors.append(entry)
    return {"format": 1, "torch": torch.__version__.split("+")[0], "exporter": exporter, "training": training,
            "modules": modules, "tensors": tensors}


# ---- what cannot be exported ----

def refuse(module, held):
    """Raises for what no graph can hold."""
    problems = []
    for h in held:
        t = h.tensor
        if h.kind == "parameter" and isinstance(t, nn.parameter.UninitializedTensorMixin):
            problems.append(f"{h.name} has no shape yet (a lazy module): call the module once before exporting it")
        elif t.is_meta:
            problems.append(f"{h.name} is on the meta device and holds no values: load the weights first")
        elif h.kind != "constant" and t.is_complex():
            problems.append(f"{h.kind} {h.name} is complex: keep torch.view_as_real of it and compute with the parts")
        elif h.kind != "constant" and t.layout is not torch.strided:
            problems.append(f"{h.kind} {h.name} is {t.layout}: make it dense")
        if h.kind == "parameter" and (t._backward_hooks or t._post_accumulate_grad_hooks):
            problems.append(f"parameter {h.name} has a backward hook, which a graph cannot hold: remove it, or scale "
                            "the rate of this parameter with --param-group")
    problems += shared_memory(held)
    for name, m in module.named_modules():
        if m._backward_hooks or m._backward_pre_hooks:
            problems.append(f"module {name or '(root)'} has a backward hook, which a graph cannot hold: remove it")
        if isinstance(m, torch.jit.ScriptModule):
            problems.append(f"module {name or '(root)'} is a ScriptModule: give the nn.Module that it was made from")
    if problems:
        raise ExportError("; ".join(problems))


def shared_memory(held):
    """Parameters that overlap without being one: an update of one would be an update of the other."""
    first, problems = {}, []
    for h in held:
        if h.kind != "parameter" or isinstance(h.tensor, nn.parameter.UninitializedTensorMixin) or not h.tensor.numel():
            continue
        place = (h.tensor.device, h.tensor.data_ptr())
        if h.tensor.is_meta or not place[1]:
            continue
        other = first.setdefault(place, h.name)
        if other != h.name:
            problems.append(f"parameters {other} and {h.name} share memory but are two: tie them by assigning the "
                            "same nn.Parameter to both, or give one a clone()")
    return problems


# ---- as it was ----

@dataclasses.dataclass
class Before:
    """A parameter as it was."""
    name: str
    parameter: nn.Parameter
    value: torch.Tensor
    version: int
    gradient: torch.Tensor
    wanted: bool

    def give_back(self):
        p = self.parameter
        if p.requires_grad != self.wanted:
            p.requires_grad_(self.wanted)
        p.grad = self.gradient
        if not equal(p, self.value):
            with torch.no_grad():
                p.copy_(self.value)


def version(tensor):
    return 0 if tensor.is_inference() else tensor._version


def parameters_before(module):
    return [Before(name, p, p.detach().clone(), version(p), p.grad, p.requires_grad)
            for name, p in module.named_parameters()
            if not p.is_meta and not isinstance(p, nn.parameter.UninitializedTensorMixin)]


@contextlib.contextmanager
def unchanged(module):
    """Whatever happens inside, the module's modes, tensors, gradients and attributes and the random state are as they
    were.

    Gives the parameters as they were, as list of Before."""
    parameters = parameters_before(module)
    with attributes_unchanged(module):
        try:
            yield parameters
        finally:
            for before in parameters:
                before.give_back()


@contextlib.contextmanager
def attributes_unchanged(module):
    """As `unchanged`, but for what parameters hold, which may be large."""
    tables = ("_parameters", "_buffers", "_modules")
    saved = [(m, dict(vars(m)), {k: dict(vars(m)[k]) for k in tables}) for m in module.modules()]
    buffers = [(b, b.detach().clone()) for b in module.buffers() if not b.is_meta]
    random = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(random)
        for m, attributes, held in saved:
            vars(m).clear()
            vars(m).update(attributes)
            for key, table in held.items():
                vars(m)[key].clear()
                vars(m)[key].update(table)
        with torch.no_grad():
            for b, value in buffers:
                if not equal(b, value):
                    b.copy_(value)


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def refuse_changes(module, parameters, before):
    """Raises for what a forward changed: parameters, and buffers but for the statistics of batch norms, which a
    program keeps itself.  parameters: as list of Before; before: {name: what a buffer held}."""
    now, kept, problems = dict(module.named_buffers()), set(), changed_parameters(module, parameters)
    changed = [name for name, value in before.items() if name not in now or not equal(now[name], value)]
    for prefix, m in module.named_modules():
        own = {join(prefix, name) for name in STATISTICS}
        if not isinstance(m, NORMS) or not own & set(changed):
            continue
        kept |= own
        what = f"module {prefix or '(root)'} ({type(m).__name__})"
        if not isinstance(m, nn.modules.batchnorm._BatchNorm):
            problems.append(f"{what} keeps running statistics, which a program does of batch norms alone: build it with "
                            "track_running_stats=False, or put it into eval mode")
        elif m.momentum is None:
            problems.append(f"{what} has momentum=None, a running average over all steps, and ONNX has a fixed factor "
                            "alone: set its momentum to a number, as 0.1")
    others = [name for name in changed if name not in kept]
    if others:
        problems.append(f"forward changes buffer {', '.join(others)}, and a program changes the statistics of batch "
                        "norms alone: put that module into eval mode where this stops it, or update the buffer outside "
                        "of forward")
    if problems:
        raise ExportError("; ".join(problems))


def changed_parameters(module, parameters):
    now = dict(module.named_parameters())
    changed = [b.name for b in parameters if now.get(b.name) is not b.parameter or version(b.parameter) != b.version
               or not equal(b.parameter, b.value)]
    if not changed:
        return []
    return [f"forward changes parameter {', '.join(changed)}, which a program's update alone does: compute a new "
            "value of it, as w = w.clamp(-1, 1), or change it outside of forward"]


def equal(a, b):
    """Whether two tensors hold the same; a NaN is one."""
    a, b = a.detach(), b.detach()
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | (a != a) & (b != b)).all())


def copied_buffers(module):
    return {name: b.detach().clone() for name, b in module.named_buffers()}


@contextlib.contextmanager
def last_bits_moved(module, seed):
    """Every number of a parameter is one unit in the last place larger or smaller inside."""
    generator = torch.Generator().manual_seed(seed)
    saved = [(p, p.detach().clone()) for p in module.parameters() if p.is_floating_point()]
    try:
        with torch.no_grad():
            for p, value in saved:
                p.copy_(moved(value, generator))
        yield generator
    finally:
        with torch.no_grad():
            for p, value in saved:
                p.copy_(value)


def moved(t, generator):
    """t, its numbers a last bit larger or smaller."""
    if not t.is_floating_point():
        return t.clone()
    sign = torch.randint(0, 2, t.shape, generator=generator).to(t.device, t.dtype) * 2 - 1
    return t * (1 + sign * torch.finfo(t.dtype).eps)
