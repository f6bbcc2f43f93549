"""Steps on one GPU: our programs and PyTorch (eager, torch.compile, fully_shard at one rank), alternating in one run.

A round runs every contender once, each alone on the GPU, and is a row for each; report.py takes medians over rounds.
All of PyTorch runs in processes of its own (peer.py), so that a check's time limit holds for it, too.
"""
import csv
import io
import json
import statistics
import sys

from check import Failed, Skipped
from machine import EMULATED, HERE, steps

VARIANTS = ["eager", "compile", "fsdp"]
SETTLE = 4  # our first steps, which are not counted: warm-up, capture, and the first replays


class Bench:
    def __init__(self, machine, cases, work, steps):
        self.machine, self.cases, self.work, self.steps = machine, cases, work, steps
        self.smoke = machine.arch == EMULATED  # PyTorch then runs on the CPU, and no figure means anything
        self.who = ["ours", "tuned", *(["eager"] if self.smoke else VARIANTS)]

    # ---- rows, in order ----

    def first(self, rows):
        """One round of each case, that of GPT-2 first; fully_shard waits for the later rounds."""
        rows.do("A", "ceilings", 60, self.ceilings)
        for name in self.cases:
            for who in self.who[:4]:
                rows.do("A", f"step {name} {who} 0", 150, self.step, name, who)

    def rounds(self, rows, n):
        for name in self.cases:
            for r in range(1, n):
                for who in self.who:
                    rows.do("B", f"step {name} {who} {r}", 150, self.step, name, who)

    def profiles(self, rows):
        for name in self.cases:
            rows.do("B", f"kernels {name}", 120, self.profile, name)

    # ---- checks ----

    def peer(self, *parts):
        """What a process of PyTorch prints as its last line, a JSON object."""
        device = ["--device", "cpu"] if self.smoke else []
        status, text = self.machine.run([sys.executable, HERE / "peer.py", *parts, *device], plain=True)
        last = text.strip().splitlines()[-1:] or [""]
        if status != 0 or not last[0].startswith("{"):
            raise Failed(f"exit {status}: {text.strip()[-600:]}")
        return json.loads(last[0])

    def ceilings(self):
        if self.smoke:
            raise Skipped("not done: ceilings want a GPU")
        rates = self.peer("ceilings")
        return "; ".join(f"{k} {v:.0f}" for k, v in rates.items()), dict(ceilings=rates)

    def command(self, name, n):
        folder = self.work / name
        if not (folder / "labels.npy").exists():
            folder.mkdir(exist_ok=True)
            self.peer("data", name, folder)
        return [self.machine.bin / name, "--data", f"x={folder}/x.npy", "--data", f"labels={folder}/labels.npy",
                "--steps", n, "--lr", 1e-4, "--log", folder / "log.jsonl"]

    def step(self, name, who):
        case = self.cases[name]
        figures = dict(case=name, who=who, **(self.ours(name) if who == "ours" else self.tuned(name) if who == "tuned"
                                              else self.peer(who, name, self.steps)))
        if "error" in figures:
            raise Skipped(figures["error"])
        rate = case["items"] / figures["step_ms"] * 1e3
        return f"{figures['step_ms']:.2f} ms, {rate:,.0f} a second", dict(figures, per_second=rate)

    def ours(self, name, *options):
        """Milliseconds of a step, and the bytes that were allocated, which must be the plan's."""
        command, log = self.command(name, SETTLE + self.steps), self.work / name / "log.jsonl"
        log.unlink(missing_ok=True)
        status, text = self.machine.run([*command, *options])
        if status != 0:
            raise Failed(f"exit {status}: {text.strip()[-600:]}")
        rows, plan = steps(log), self.cases[name]["bytes"]
        if rows[-1]["peak_bytes"] != plan:
            raise Failed(f"{rows[-1]['peak_bytes']} bytes were allocated, the plan is {plan}")
        return dict(step_ms=statistics.mean(r["step_ms"] for r in rows[SETTLE:]), loss=rows[-1]["loss"], allocated=plan)

    def tuned(self, name):
        """The same with --tune; products: of each, the microseconds of all that the library proposes, its first first."""
        path = self.work / name / "tune.txt"
        figures = self.ours(name, "--tune", path)
        lines = [line.split(" = ") for line in path.read_text().splitlines()[1:]]
        timed = [(key, rest.split("us ")[1].split()) for key, rest in lines if "us " in rest]
        return dict(figures, products=[dict(product=key, us=[float(v) for v in us if v != "-"]) for key, us in timed])

    def profile(self, name):
        """The time of each kernel of a step, measured by nsys, the longest first."""
        nsys = None if self.smoke else self.machine.tool("nsys")
        if not nsys:
            raise Skipped("not done: nsys is not installed" if not self.smoke else "not done: nsys wants a GPU")
        n, report = SETTLE + self.steps, self.work / name / "report"
        status, text = self.machine.run([nsys, "profile", "-o", report, "--force-overwrite", "true", "--trace", "cuda",
                                         "--cuda-graph-trace", "node", *self.command(name, n)])
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
