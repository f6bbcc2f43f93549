"""Where the time of a step goes: by class of op, beside the least that each class can take on this machine.

The step is the fastest of those that our binary's --trace has.  What its ops compute and move is what `shardc plan`
counts (predict/cost.h).  An op's floor is the longest of three parts that overlap: products at the rate of the fastest
large product, or convolution, of their type; bytes at the rate of the smallest cache, or memory, that holds as many;
exponentials at the rate of such a loop.  No kernel starts, waits or reads twice in it.  The rates are measured in the
run of the benchmark (micro/rates.c).
"""
import collections
import dataclasses
import json
import math
import os

import contenders
from classes import KINDS, class_of

# ---- rates ----

SPINS = "2000"  # for which threads wait before they sleep, as in training programs


def measure_rates(program, seconds, dtypes, threads):
    """seconds: for each rate."""
    environment = {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": SPINS}
    return json.loads(contenders.call([program, seconds, *dtypes], environment))


def machine_file(rates, path):
    """The rates as a machine file, which predictions want; the efficiencies are what the rates are already."""
    source = "bench/micro/rates.c"
    f32, half = (max(rates[what].get(d, rates[what]["f32"]) for what in ("products", "convolutions"))
                 for d in ("f32", "bf16"))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / os.cpu_count()
    numbers = {"ranks_per_host": os.cpu_count(), "memory": memory, "memory_bandwidth": rates["bandwidth"][-1][1],
               "flops.f32": f32, "flops.bf16": half, "flops.f16": half, "special": rates["special"],
               "efficiency.matmul": 1, "efficiency.conv": 1, "efficiency.attention": 1, "efficiency.attention_grad": 1,
               "latency.kernel": 0, "link.bandwidth": rates["bandwidth"][-1][1], "link.latency": 0}
    sourced = {key: [value, source] for key, value in numbers.items()}
    path.write_text(json.dumps({"name": "this machine", "device": "cpu", **sourced}))


def floor_ms(work, rates):
    """work: the args of an op of a predicted trace."""
    seconds = [work["moved"] / max(rate for size, rate in rates["bandwidth"] if size >= work["moved"] or
                                   size == rates["bandwidth"][-1][0]),
               work["special"] / rates["special"]]
    if work["flops"]:
        kind = "convolutions" if work["class"] == "conv" else "products"
        seconds.append(work["flops"] / rates[kind][work["dtype"]])
    return max(seconds) * 1e3


# ---- traces ----

def load(path):
    trace = json.loads(path.read_text())
    row = next(e["tid"] for e in trace["traceEvents"] if e["ph"] == "M" and e["args"].get("name") == "compute")
    return trace["otherData"]["program"], [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == row]


@dataclasses.dataclass
class Part:
    ms: float = 0
    floor: float = 0
    ops: int = 0

    def add(self, ms, floor):
        self.ms, self.floor, self.ops = self.ms + ms, self.floor + floor, self.ops + 1


@dataclasses.dataclass
class Split:
    number: int         # of the step in the run, from 1
    step_ms: float
    classes: dict       # {class: Part}, all of KINDS
    kernels: list       # (class, kernel, Part), what loses most first; of each op its shortest time in any step


def key_of(event):
    """The same op in other steps."""
    return event["name"], event["args"].get("op")


def split(work_dir, rates):
    program, measured = load(work_dir / "trace.json")
    planned, predicted = load(work_dir / "predicted.json")
    if program != planned:
        raise SystemExit(f"{work_dir}: the traced program is {program}, the planned one {planned}")
    works = {e["args"]["op"]: e["args"] for e in predicted if "kernel" in e["args"]}
    steps = collections.defaultdict(list)
    for e in measured:
        steps[e["args"]["step"]].append(e)
    number, step = min(steps.items(), key=lambda s: sum(e["dur"] for e in s[1]))
    least = collections.defaultdict(lambda: math.inf)
    for e in measured:
        least[key_of(e)] = min(least[key_of(e)], e["dur"])
    classes, kernels = {name: Part() for name in KINDS}, collections.defaultdict(Part)
    for e in step:
        work = works.get(e["args"].get("op"), {}) if e["cat"] not in ("issue", "wait", "host") else {}
        name, floor = class_of(e["cat"], work.get("class")), floor_ms(work, rates) if work else 0
        classes[name].add(e["dur"] / 1e3, floor)
        kernels[name, work.get("kernel", e["name"])].add(least[key_of(e)] / 1e3, floor)
    ordered = sorted(((c, k, p) for (c, k), p in kernels.items()), key=lambda r: r[2].floor - r[2].ms)
    return Split(number, sum(e["dur"] for e in step) / 1e3, classes, ordered)
