"""Checkpoints of GPT-2 124M with AdamW (1.5 GB): how fast they are written and read, and how much they slow steps down.

  save     the time until a save is complete, in a program that trains and is stopped while the others run.  Peers:
           `dd conv=fsync` of the same bytes into the same folder; torch.save and safetensors.torch.save_file of the
           same tensors, with fsync
  load     a program, from its start to its end, that resumes and runs no step.  Peers: `dd` of the same files,
           torch.load and safetensors.torch.load_file.  cold: the files are not in memory (posix_fadvise), warm: they
           are
  overlap  steps while saves run beside them, kind sharded at two ranks and full at one.  The time of a step in a run
           with --save-every 20, including its saves, against a run without saves; and the longest stall of a save
           against a copy of as many bytes by as many threads

The contenders alternate; figures are medians over rounds, ranges are over rounds.  Ratio above 1: we are faster.  A
virtual machine may get memory from its host only when it is touched, at a fraction of the disk's speed; therefore
memory is touched before each run, and the first round of saves is not counted.

usage: python checkpoint.py SHARDC WORKDIR [--case NAME] [--rounds N] [--only save,load,overlap] [--json FILE]
"""
import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time

import numpy as np
import safetensors.torch
import torch

import cases  # adds tests/parity to the path
import models
from contenders import clean_environment

EVERY, STEPS = 20, 40
KINDS = {1: "full", 2: "sharded"}  # the kind of checkpoint that is saved beside steps, by the number of ranks


class Bench:
    def __init__(self, args):
        self.shardc, self.case, self.rounds, self.rows = args.shardc, args.case, args.rounds, []
        self.work = pathlib.Path(args.work) / "checkpoint"
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        case = cases.CASES[self.case]
        x, labels = models.make_data(case, cases.RANK_SAMPLES, 0)
        np.save(self.work / "x.npy", x.numpy())
        np.save(self.work / "labels.npy", labels.numpy())
        for ranks in KINDS:
            part = dataclasses.replace(case, batch=case.batch // ranks)
            torch.manual_seed(0)
            models.export(part, part.build().train(), self.work / f"{ranks}.onnx", "dynamo")
            subprocess.run([self.shardc, self.work / f"{ranks}.onnx", "-o", self.work / f"train{ranks}",
                            "--loss=cross_entropy", "--optimizer=adamw"], check=True, env=clean_environment(),
                           stdout=subprocess.DEVNULL)
        self.saved = self.work / "saved"
        self.finish(self.start(1, "--steps", 1, "--save", self.saved))
        self.files = sorted((self.saved / "latest").resolve().glob("*.safetensors"))
        self.bytes = sum(f.stat().st_size for f in self.files)

    # ---- our programs ----

    def start(self, ranks, *flags):
        self.log = self.work / "log.jsonl"
        self.log.unlink(missing_ok=True)
        many = ["--ranks", ranks] if ranks > 1 else []
        parts = [self.work / f"train{ranks}", "--data", f"x={self.work}/x.npy", "--data", f"labels={self.work}/labels.npy",
                 "--lr", 1e-4, "--threads", max(os.cpu_count() // ranks, 1), "--log", self.log, *many, *flags]
        return subprocess.Popen([str(p) for p in parts], env=clean_environment(), stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)

    def finish(self, process):
        if process.wait():
            sys.exit(f"checkpoint.py: {process.args} ended with status {process.returncode}")
        return [r for r in map(json.loads, open(self.log)) if "step_ms" in r]

    def rows_with_saves(self):
        lines = self.log.read_text().splitlines(keepends=True)
        return [r for r in (json.loads(line) for line in lines if line.endswith("\n")) if r.get("save_ms")]

    def our_save(self, process):
        """Asks for a save by a signal; no step overlaps it."""
        seen = len(self.rows_with_saves())
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGUSR1)
        while len(self.rows_with_saves()) == seen:
            if process.poll() is not None:
                sys.exit(f"checkpoint.py: {process.args} ended with status {process.returncode}")
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        return self.rows_with_saves()[-1]["save_ms"] / 1e3

    # ---- peers ----

    def tensors(self):
        return [safetensors.torch.load_file(f) for f in self.files]

    def timed(self, run):
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    def forget(self):
        for f in self.work.rglob("*"):
            if f.is_file() and f.stat().st_size > 1 << 20:
                fd = os.open(f, os.O_RDONLY)
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)

    def touch(self):
        subprocess.run([sys.executable, "-c", f"import numpy; numpy.ones({4 * self.bytes // 8})"], check=True)

    def dd(self, paths, *flags):
        for source, to in paths:
            subprocess.run(["dd", f"if={source}", f"of={to}", "bs=16M", "status=none", *flags], check=True)

    def write_peers(self):
        tensors = self.tensors()
        out = [self.work / f"peer{i}" for i in range(len(self.files))]

        def synced(write):
            for t, path in zip(tensors, out):
                write(t, path)
                fd = os.open(path, os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)
        runs = {"dd": lambda: self.dd(zip(self.files, out), "conv=fsync"), "torch.save": lambda: synced(torch.save),
                "safetensors": lambda: synced(safetensors.torch.save_file)}
        return {name: lambda run=run: (self.timed(run), [p.unlink() for p in out])[0] for name, run in runs.items()}

    def read_peers(self):
        pickled = [self.work / f"pickled{i}" for i in range(len(self.files))]
        for t, path in zip(self.tensors(), pickled):
            torch.save(t, path)

        def copied(load, paths):  # a file that is only mapped has not been read
            for path in paths:
                for t in load(path).values():
                    t.clone()
        return {"dd": lambda: self.timed(lambda: self.dd([(f, "/dev/null") for f in self.files])),
                "torch.load": lambda: self.timed(lambda: copied(torch.load, pickled)),
                "safetensors": lambda: self.timed(lambda: copied(safetensors.torch.load_file, self.files)),
                "ours": lambda: self.timed(lambda: self.finish(self.start(1, "--resume", self.saved, "--steps", 1)))}

    # ---- the rows ----

    def compare(self, case, metric, seconds):
        """seconds: of each contender, a list over rounds."""
        for name in seconds:
            if name != "ours":
                ratios = [p / o for p, o in zip(seconds[name], seconds["ours"])]
                mid = {k: statistics.median(v) for k, v in seconds.items()}
                self.rows.append({"case": f"{case} / {name}", "metric": metric, "ours": round(mid["ours"], 4),
                                  "peer": round(mid[name], 4), "peer_name": name,
                                  "ratio": round(mid[name] / mid["ours"], 3), "ratio_min": round(min(ratios), 3),
                                  "ratio_max": round(max(ratios), 3), "rounds": len(ratios),
                                  "load": round(os.getloadavg()[0], 1)})
                print("{case} | {ours} | {peer} | {ratio} | {ratio_min}..{ratio_max}".format(**self.rows[-1]), flush=True)

    def alternate(self, runs, before, rounds):
        seconds = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                before()
                seconds[name].append(run())
        return seconds

    def save(self):
        def settle():
            self.dd([(f, "/dev/null") for f in self.files])
            self.touch()
        process = self.start(1, "--steps", 1000000, "--save", self.work / "asked", "--keep", 1)
        while not self.log.exists() or not self.log.read_text():
            time.sleep(0.01)
        seconds = self.alternate({**self.write_peers(), "ours": lambda: self.our_save(process)}, settle, self.rounds + 1)
        process.kill()
        process.wait()
        self.compare(f"{self.case} save {self.bytes >> 20} MiB", "seconds", {k: v[1:] for k, v in seconds.items()})

    def load(self):
        def cold():
            self.forget()
            self.touch()
        runs = self.read_peers()
        self.compare(f"{self.case} load cold", "seconds", self.alternate(runs, cold, self.rounds))
        self.compare(f"{self.case} load warm", "seconds", self.alternate(runs, self.touch, self.rounds))

    def overlap(self):
        for ranks, kind in KINDS.items():
            steps, stalls, copies = {"ours": [], "no saves": []}, [], []
            for _ in range(self.rounds):
                shutil.rmtree(self.work / "beside", ignore_errors=True)
                for name, flags in (("no saves", []), ("ours", ["--save-kind", kind, "--save-every", EVERY, "--save",
                                                                self.work / "beside", "--keep", 1])):
                    rows = self.finish(self.start(ranks, "--steps", STEPS + 2, *flags))[2:]
                    steps[name].append(sum(r["step_ms"] + r["save_ms"] for r in rows) / len(rows) / 1e3)
                    if flags:
                        stalls.append(max(r["save_ms"] for r in rows) / 1e3)
                copies.append(self.memcpy())
            self.compare(f"{self.case} step beside saves, {kind} x{ranks}", "seconds", steps)
            self.compare(f"{self.case} stall of a save, {kind} x{ranks}", "seconds", {"ours": stalls, "memcpy": copies})

    def memcpy(self):
        """Seconds to copy the bytes of all ranks' snapshots, by all cores, into pages that are already mapped."""
        a, b = (torch.ones(self.bytes // 4) for _ in range(2))
        return min(self.timed(lambda: b.copy_(a)) for _ in range(3))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("work")
    p.add_argument("--case", default="gpt2-124m-t64")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--only", default="save,load,overlap")
    p.add_argument("--json", type=pathlib.Path)
    args = p.parse_args()
    bench = Bench(args)
    for name in args.only.split(","):
        getattr(bench, name)()
    if args.json:
        old = args.json.read_text() if args.json.exists() else ""
        args.json.write_text(old + "".join(json.dumps(r) + "\n" for r in bench.rows))


if __name__ == "__main__":
    main()
