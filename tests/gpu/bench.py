"""Steps on one GPU, and their memory: our programs and PyTorch (eager, torch.compile, fully_shard at one rank).

A round runs every contender once, each alone on the GPU, and is a row for each; rounds alternate, and report.py takes
medians over them.
All of PyTorch runs in processes of its own (peer.py), so that a check's time limit holds for it, too.
"""
import json
import math
import statistics
import sys
import threading

from check import Failed, Skipped
from machine import EMULATED, HERE, memory_used, steps

VARIANTS = ["eager", "compile", "fsdp"]
UNKNOWN = "not done: nvidia-smi does not say how much memory is in use"
SETTLE = 4  # our first steps, which are not counted: warm-up, capture, and the first replays


class Bench:
    def __init__(self, machine, cases, work, steps):
        self.machine, self.cases, self.work, self.steps = machine, cases, work, steps
        self.smoke = machine.arch == EMULATED  # PyTorch then runs on the CPU, and no figure means anything
        self.peers = ["eager"] if self.smoke else VARIANTS

    # ---- rows, in order ----

    def first(self, rows):
        """One round of each case, that of GPT-2 first; our other programs and fully_shard wait for the later rounds."""
        for name, case in self.cases.items():
            for who in () if case.get("alone") else ("ours", "tuned", *self.peers[:2]):
                rows.do("A", f"step {name} {who} 0", 150, self.step, name, who)

    def rounds(self, rows, numbers):
        """torch.compile compiles anew in each process, and a case that runs alone is slow to start: one round more has to
        do for them."""
        for r in numbers:
            peers = [p for p in self.peers if p != "compile" or r == 1]
            for name, case in self.cases.items():
                beside = [] if case.get("alone") else ["ours", "tuned", *peers]
                for who in [*beside[:2], *(case["also"] if beside or r == 1 else ()), *beside[2:]]:
                    rows.do("B", f"step {name} {who} {r}", 150, self.step, name, who)

    def memory(self, rows):
        """A case that runs alone is here for what it needs, and slow to start: its step is timed on the way."""
        for name in sorted(self.cases, key=lambda name: not self.cases[name].get("alone")):
            if self.cases[name].get("alone"):
                rows.do("B", f"step {name} ours 0", 150, self.step_and_memory, name)
            else:
                rows.do("B", f"memory {name}", 90, self.used, name)

    # ---- checks ----

    def peer(self, *parts, script="peer.py"):
        """The last JSON object among the lines that a process of PyTorch prints."""
        device = ["--device", "cpu"] if self.smoke else []
        status, text = self.machine.run([sys.executable, HERE / script, *parts, *device], plain=True)
        objects = [line for line in text.splitlines() if line.startswith("{")]
        if status != 0 or not objects:
            raise Failed(f"exit {status}: {text.strip()[-600:]}")
        return json.loads(objects[-1])

    def program(self, name, other=None):
        """A program of a case, and its samples."""
        folder = self.work / name
        if not (folder / "labels.npy").exists():
            folder.mkdir(exist_ok=True)
            self.peer("data", name, folder)
        return [self.machine.bin / (other or name), "--data", f"x={folder}/x.npy", "--data", f"labels={folder}/labels.npy"]

    def command(self, name, n, lr=1e-4, program=None):
        return [*self.program(name, program), "--steps", n, "--lr", lr, "--log", self.work / name / "log.jsonl"]

    def step(self, name, who):
        return self.told(name, who, self.peer(who, name, self.steps) if who in self.peers
                         else self.tuned(name) if who == "tuned"
                         else self.ours(name, other=self.cases[name]["also"].get(who)))

    def told(self, name, who, took):
        """What a step's row says: of ours, as it is, with what was expected."""
        if "error" in took:
            raise Skipped(took["error"])
        if took["loss"] is None or not math.isfinite(took["loss"]):
            raise Failed(f"the loss is {took['loss']}: its steps are not those of training")
        case, ms = self.cases[name], took["step_ms"]
        rate = case["items"] / ms * 1e3
        plan = dict(expected_ms=sum(op["expected_ms"] for op in case["ops"])) if who == "ours" else {}
        return f"{ms:.2f} ms, {rate:,.0f} a second", dict(case=name, who=who, per_second=rate, **plan, **took)

    def ours(self, name, *options, other=None, **env):
        """Milliseconds of a step, and the bytes that were allocated, which must be the plan's; other: of the case's "also"."""
        command = self.command(name, SETTLE + self.steps, program=other and other["program"])
        log = self.work / name / "log.jsonl"
        log.unlink(missing_ok=True)
        status, text = self.machine.run([*command, *options], **env)
        if status != 0:
            raise Failed(f"exit {status}: {text.strip()[-600:]}")
        rows, plan = steps(log), (other or self.cases[name])["bytes"]
        if rows[-1]["peak_bytes"] != plan:
            raise Failed(f"{rows[-1]['peak_bytes']} bytes were allocated, the plan is {plan}")
        return dict(step_ms=statistics.mean(r["step_ms"] for r in rows[SETTLE:]), loss=rows[-1]["loss"], allocated=plan)

    def tuned(self, name):
        """The same with --tune; products: of each, the microseconds of all that the library proposes, its first first."""
        path = self.work / name / "tune.txt"
        return dict(self.ours(name, "--tune", path), products=products(path))

    def watched(self, name):
        """A step's figures, and the bytes that nvidia-smi says a run uses, None where it says nothing.  The emulation
        counts what is allocated, to the byte."""
        report = self.work / name / "memory"
        report.unlink(missing_ok=True)
        before, most, over = memory_used(), [0], threading.Event()

        def watch():
            while not over.wait(0.2):
                most.append(memory_used())

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            took = self.ours(name, CUDASIM_REPORT=str(report))
        finally:
            over.set()
        watcher.join(1)  # not where the time is over
        if self.smoke:
            return took, int(report.read_text().split()[1])
        return took, max(most) - before if max(most) else None

    def beside_plan(self, name, used):
        plan = self.cases[name]["bytes"]
        if used < plan or (self.smoke and used > plan):
            raise Failed(f"{used} bytes were in use, the plan is {plan}")
        more = f"{(used - plan) / 2**30:.2f} more than the plan, which the driver and libraries have"
        return f"{used / 2**30:.2f} GiB in use, {more}", dict(memory=name, plan=plan, used=used)

    def used(self, name):
        _, used = self.watched(name)
        if used is None:
            raise Skipped(UNKNOWN)
        return self.beside_plan(name, used)

    def step_and_memory(self, name):
        took, used = self.watched(name)
        text, figures = self.told(name, "ours", took)
        try:
            more, memory = (UNKNOWN, {}) if used is None else self.beside_plan(name, used)
        except Failed as e:
            raise Failed(f"{text}; {e}")
        return f"{text}; {more}", {**figures, **memory}


def products(path):
    """What --tune has measured: of each product the microseconds of all that the library proposes, None of those that it
    could not run."""
    lines = [line.split(" = ") for line in path.read_text().splitlines()[1:]]
    timed = [(key, rest.split("us ")[1].split()) for key, rest in lines if "us " in rest]
    return [dict(product=key, us=[None if v == "-" else float(v) for v in us]) for key, us in timed]
