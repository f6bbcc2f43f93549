"""Kernels: alone (micro, --time-ops, PyTorch's attention), and each of a step, by events, by ncu and by nsys.

What an op computes and moves is in cases.json, as shardc predicted it, so that a time becomes a rate.
"""
import collections
import csv
import io
import json
import re
import statistics

from bench import SETTLE, products
from check import Failed, Skipped

CEILINGS = ("square product", "copy by the driver")  # of micro
SERIES, SMOKE = 30, 4  # seconds of --time-ops; under emulation
TRACED = 5  # steps of a traced run, the last three of which are recorded
# Of ncu, which has them by one pass: with more it would run each kernel again, and save and restore memory in between.
METRICS = {"ms": "gpu__time_duration.sum", "bytes": "dram__bytes.sum"}
SUMMED = ("flops", "moved", "least_ms", "expected_ms")  # of ops
NOT_OPS = ("issue", "wait", "host")  # slices of the row of computing that no kernel makes


class Kernels:
    def __init__(self, bench):
        self.bench, self.machine, self.work, self.cases = bench, bench.machine, bench.work, bench.cases
        self.both = [name for name, case in self.cases.items() if not case.get("alone")]

    # ---- rows, in order ----

    def alone(self, rows):
        rows.do("A", "ceilings", 60, self.ceilings)
        rows.do("A", "products alone", 60, self.micro)

    def first(self, rows):
        for name in self.both:
            rows.do("A", f"kernels of {name}", 90, self.traced, name)
        if any("heads" in case["model"] for case in self.cases.values()):
            rows.do("A", "PyTorch's attention", 90, self.attention)
        for name in self.both:
            rows.do("A", f"kernels alone, {name}", 120, self.timed, name)

    def profiles(self, rows):
        for name in self.cases:
            if name not in self.both:
                rows.do("B", f"kernels of {name}", 120, self.traced, name)
        for name in self.both:
            rows.do("B", f"ncu {name}", 180, self.ncu, name)
        for name in self.both:
            rows.do("B", f"nsys {name}", 120, self.nsys, name)

    # ---- alone ----

    def ceilings(self):
        rates = self.bench.peer("ceilings", script="peer_kernels.py")
        return "; ".join(f"{k} {v:.0f}" for k, v in rates.items()), dict(ceilings=rates)

    def micro(self):
        """What kernels reach that run alone; the square product and the copy are ceilings, too."""
        status, text = self.machine.run([self.machine.bin / "micro", *(["tiny"] if self.bench.smoke else [])])
        alone = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        if status != 0 or not alone:
            raise Failed(f"exit {status}: {text.strip()[-600:]}")
        for a in alone:
            a["us"] = [float(v) for v in a.get("us", "").split() if v != "-"]
        rates = {f"{a['name']}, {a['unit']}": a["rate"] for a in alone if a["name"] in CEILINGS}
        return "; ".join(f"{a['name']} {a['rate']:.0f} {a['unit']}" for a in alone), dict(alone=alone, ceilings=rates)

    def timed(self, name):
        """Each kernel of a step alone, in series, by the program itself, whose products take the quickest algorithms."""
        case, path, tune = self.cases[name], self.work / name / "times.jsonl", self.work / name / "times.txt"
        for file in (path, tune):
            file.unlink(missing_ok=True)
        status, text = self.machine.run([*self.bench.program(name), "--time-ops", path, "--tune", tune,
                                         "--time-budget", SMOKE if self.bench.smoke else SERIES])
        if status != 0:
            raise Failed(f"exit {status}: {text.strip()[-600:]}")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        if rows[0]["program"] != case["program"]:
            raise Failed(f"the program is {rows[0]['program']}; cases.json is of {case['program']}")
        timed = [r for r in rows if "kernel" in r]
        wanted = collections.Counter(op["kernel"] for op in case["ops"])
        found = {r["kernel"]: r["count"] for r in timed}
        wrong = [kernel for kernel in {**wanted, **found} if wanted[kernel] != found.get(kernel, 0)]
        if wrong:
            raise Failed(f"{len(wrong)} of {len(wanted)} kernels have no series, or another count: {wrong[:5]}")
        ceilings = {f"{r['ceiling']} of {r['size']} {r['dtype']}, {r['unit']}": r["rate"] for r in rows if "ceiling" in r}
        ms = sum(r["count"] * r["ms"] for r in timed)
        return (f"{ms:.2f} ms a step in {len(timed)} kernels, alone; "
                + "; ".join(f"{what} {rate:.0f}" for what, rate in ceilings.items()),
                dict(case=name, timed=timed, ceilings=ceilings, products=products(tune)))

    def attention(self):
        told = self.bench.peer("attention", script="peer_kernels.py")
        if not any("forward_ms" in took for backends in told.values() for took in backends.values()):
            raise Failed(f"no back end of PyTorch takes it: {told}")

        def text(took):
            return took.get("refused") or f"{took['forward_ms']:.2f} + {took['backward_ms']:.2f} ms"

        words = [f"{case} {how} {text(took)}" for case, backends in told.items() for how, took in backends.items()]
        return "; ".join(words), dict(attention=told)

    # ---- in a step ----

    def traced(self, name):
        """Milliseconds of each op of a step, called one by one between events; ops of one kernel and shape together."""
        case, path = self.cases[name], self.work / name / "trace.json"
        path.unlink(missing_ok=True)
        command = self.bench.command(name, TRACED)
        status, text = self.machine.run([*command, "--trace", path, "--trace-steps", f"3:{TRACED}"])
        if status != 0:
            raise Failed(f"exit {status}: {text.strip()[-600:]}")
        trace = json.loads(path.read_text())
        if trace["otherData"]["program"] != case["program"]:
            raise Failed(f"the program is {trace['otherData']['program']}; cases.json is of {case['program']}")
        took = {}
        for e in trace["traceEvents"]:
            if e["ph"] == "X" and e["tid"] == 0 and e["cat"] not in NOT_OPS:
                took.setdefault(e["args"]["op"], []).append(e["dur"] / 1e3)
        lacks = [op["op"] for op in case["ops"] if op["op"] not in took]
        if lacks:
            raise Failed(f"{len(lacks)} of {len(case['ops'])} ops have no time: {lacks[:10]}")
        groups = grouped(case["ops"], {op: statistics.median(ms) for op, ms in took.items()})
        ms, expected = (sum(g[key] for g in groups) for key in ("ms", "expected_ms"))
        return f"{ms:.2f} ms in {len(took)} ops, {expected:.2f} expected", dict(case=name, traced=groups)

    def ncu(self, name):
        """One step by ncu at the clocks as they are: the time and the bytes of memory of each kernel."""
        tool = self.machine.tool("ncu")
        if not tool:
            raise Skipped("not done: ncu is not installed (it is part of the CUDA Toolkit)")
        log = self.work / name / "ncu.csv"
        log.unlink(missing_ok=True)
        options = ["--clock-control", "none", "--cache-control", "none", "--csv", "--page", "raw", "--print-units", "base"]
        status, text = self.machine.run([tool, *options, "--log-file", log, "--metrics", ",".join(METRICS.values()),
                                         *self.bench.command(name, 1)])
        told = log.read_text(errors="replace") if log.exists() else text
        if "ERR_NVGPUCTRPERM" in told + text:
            raise Skipped("not done: ncu may not read the GPU's counters here (ERR_NVGPUCTRPERM): root may permit it")
        at = told.find('"ID"')
        if status != 0 or at < 0:
            raise Skipped(f"not done: ncu, exit {status}: {(told + text).strip()[-300:]}")
        rows = list(csv.DictReader(io.StringIO(told[at:])))[1:]  # the first has the units
        kernels = summed(rows)
        return f"{sum(k['ms'] for k in kernels):.2f} ms in {len(rows)} kernels", dict(case=name, counters=kernels[:60])

    def nsys(self, name):
        """The time of each kernel of a step, measured by nsys in graphs, the longest first."""
        nsys = self.machine.tool("nsys")
        if not nsys:
            raise Skipped("not done: nsys is not installed")
        n, report = SETTLE + self.bench.steps, self.work / name / "report"
        status, text = self.machine.run([nsys, "profile", "-o", report, "--force-overwrite", "true", "--trace", "cuda",
                                         "--cuda-graph-trace", "node", *self.bench.command(name, n)])
        if status == 0:
            status, text = self.machine.run([nsys, "stats", "--report", "cuda_gpu_kern_sum", "--format", "csv",
                                             "--quiet", f"{report}.nsys-rep"])
        at = text.find("Time (%)")
        if status != 0 or at < 0:
            raise Skipped(f"not done: nsys, exit {status}: {text.strip()[-300:]}")
        kernels = [dict(kernel=r["Name"][:100], ms_per_step=float(r["Total Time (ns)"]) / 1e6 / n,
                        launches_per_step=int(r["Instances"]) / n, percent=float(r["Time (%)"]))
                   for r in csv.DictReader(io.StringIO(text[at:]))]
        return f"{sum(k['ms_per_step'] for k in kernels):.2f} ms in kernels", dict(case=name, kernels=kernels[:40])


def grouped(ops, took):
    """Sums over the ops of a kernel, the longest first; last what nothing is expected of (constants, scalars)."""
    groups = {}
    for op in ops:
        names = {key: op[key] for key in ("kernel", "class")}
        g = groups.setdefault(op["kernel"], dict(names, calls=0, ms=0, **dict.fromkeys(SUMMED, 0)))
        for key, more in dict(calls=1, ms=took[op["op"]], **{key: op[key] for key in SUMMED}).items():
            g[key] += more
    known = {op["op"] for op in ops}
    other = [ms for op, ms in took.items() if op not in known]
    return sorted(groups.values(), key=lambda g: -g["ms"]) + [
        {"kernel": "other", "class": "other", "calls": len(other), "ms": sum(other), **dict.fromkeys(SUMMED, 0)}]


def summed(rows):
    """ncu's rows, a launch each, by kernel."""
    kernels = {}
    for r in rows:
        value = {key: float(re.sub(r"[^\d.eE+-]", "", r[metric]) or 0) for key, metric in METRICS.items()}
        name = r["Kernel Name"][:100]
        k = kernels.setdefault(name, dict(kernel=name, launches=0, ms=0, bytes=0))
        for key, more in dict(launches=1, ms=value["ms"] / 1e6, bytes=value["bytes"]).items():  # ncu tells nanoseconds
            k[key] += more
    return sorted(kernels.values(), key=lambda k: -k["ms"])
