"""Training steps on two single-thread ranks against one rank of two threads, and against PyTorch on gloo.

All train the same model on the same data with the same global batch; the losses of the first steps are compared
before any time counts.  First every configuration of PyTorch is tried once, then our strategies and the best of
fully_shard and of DDP alternate: a contender's figure is the median over rounds of its round's fastest step, the
ratio's range is over rounds.  Ratio above 1: the two ranks of the row are faster.

usage: python ranks.py SHARDC WORKDIR [--case NAME] [--rounds N] [--steps N] [--minutes M] [--json FILE]
"""
import argparse
import dataclasses
import json
import os
import pathlib
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import torch

import cases  # adds tests/parity to the path
import models
from contenders import KEEP_MEMORY, clean_environment

WORLD, WARMUP = 2, 2
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "oss")
ALONE = "1 rank x 2 threads"
TRIED = {"plain": ["fsdp", "ddp"],
         "keep_memory": ["fsdp", "fsdp-keep", "fsdp-one", "fsdp-foreach", "fsdp-keep-math", "fsdp-compile",
                         "fsdp-keep-compile", "ddp", "ddp-view", "ddp-view-static", "ddp-view-static-b100",
                         "ddp-view-static-b1000", "ddp-view-foreach", "ddp-view-compile"]}
LOSS_BOUND = 1e-4  # relative, between the losses of steps after the same updates


# ---- the machine ----

class Others:
    """How many processors other programs used while our own child ran."""

    def __enter__(self):
        self.begin = self.now()
        return self

    def now(self):
        busy = open("/proc/stat").readline().split()[1:9]
        ticks = sum(map(int, busy)) - int(busy[3]) - int(busy[4])
        mine = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
        used = sum(u.ru_utime + u.ru_stime for u in mine)
        return time.monotonic(), ticks / os.sysconf("SC_CLK_TCK") - used

    def __exit__(self, *_):
        end = self.now()
        self.processors = max(0, (end[1] - self.begin[1]) / max(end[0] - self.begin[0], 1e-3))


def machine():
    """Facts of the machine that decide the figures: shared memory in small pages has half the speed of large ones."""
    model = [s.split(":")[1].strip() for s in open("/proc/cpuinfo") if s.startswith("model name")]
    pages = pathlib.Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    return (f"{os.cpu_count()} x {model[0] if model else '?'}, large pages of shared memory: "
            f"{pages.read_text().strip() if pages.exists() else '?'}, load {os.getloadavg()[0]:.1f}")


def memory_of(pid):
    """(peak resident, proportional) megabytes of a process; (0, 0) when it has ended."""
    try:
        peak = [int(s.split()[1]) for s in open(f"/proc/{pid}/status") if s.startswith("VmHWM")]
        share = [int(s.split()[1]) for s in open(f"/proc/{pid}/smaps_rollup") if s.startswith("Pss:")]
    except OSError:
        return 0, 0
    return (peak or [0])[0] / 1000, (share or [0])[0] / 1000


def family(pid):
    """A process and all its descendants."""
    try:
        children = open(f"/proc/{pid}/task/{pid}/children").read().split()
    except OSError:
        return []
    return [pid, *(p for c in children for p in family(int(c)))]


# ---- ours ----

class Ours:
    """One model, exported for the batch of a rank and compiled for several strategies."""

    def __init__(self, args, ranks):
        case = dataclasses.replace(cases.CASES[args.case], batch=cases.CASES[args.case].batch // ranks)
        self.shardc, self.ranks, self.work = args.shardc, ranks, pathlib.Path(args.work) / f"{args.case}-{ranks}"
        self.extra = args.flags.split()
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        torch.manual_seed(0)
        models.export(case, case.build().train(), self.work / "model.onnx", "dynamo")
        x, labels = models.make_data(case, cases.RANK_SAMPLES, 0)
        np.save(self.work / "x.npy", x.numpy())
        np.save(self.work / "labels.npy", labels.numpy())

    def compile(self, strategy):
        subprocess.run([self.shardc, self.work / "model.onnx", "-o", self.work / strategy, "--loss=cross_entropy",
                        "--optimizer=adamw", "--remat=none", f"--strategy={strategy}", f"--world={self.ranks}"],
                       check=True, env=clean_environment(), stdout=subprocess.DEVNULL)

    def start(self, strategy, steps, stdout=subprocess.DEVNULL):
        self.log = self.work / f"{strategy}.jsonl"
        self.log.unlink(missing_ok=True)
        many = ["--ranks", self.ranks] if self.ranks > 1 else []
        parts = [self.work / strategy, "--data", f"x={self.work}/x.npy", "--data", f"labels={self.work}/labels.npy",
                 "--steps", steps + WARMUP, "--lr", 1e-4, "--threads", WORLD // self.ranks, "--log", self.log, *many,
                 *(self.extra if many else [])]
        return subprocess.Popen([str(p) for p in parts], env=clean_environment(), stdout=stdout,
                                stderr=subprocess.DEVNULL)

    def finish(self, process):
        if process.wait():
            sys.exit(f"ranks.py: {process.args} ended with status {process.returncode}")
        return [r for r in map(json.loads, open(self.log)) if "step_ms" in r]

    def run(self, strategy, steps):
        return self.finish(self.start(strategy, steps))

    def memory(self, strategy):
        """(planned, peak resident, proportional) megabytes of the largest rank, from a run that is not timed."""
        process, seen = self.start(strategy, 1), {}
        while process.poll() is None:
            for pid in family(process.pid):
                new, old = memory_of(pid), seen.get(pid, (0, 0))
                seen[pid] = (max(new[0], old[0]), max(new[1], old[1]))
            time.sleep(0.1)
        planned = self.finish(process)[-1]["peak_bytes"] / 1024000
        return planned, max(m[0] for m in seen.values()), max(m[1] for m in seen.values())


# ---- PyTorch ----

class Peers:
    """The processes of PyTorch, one for each rank, in one environment."""

    def __init__(self, args, memory):
        here = pathlib.Path(__file__).resolve().parent
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        environment = {**clean_environment(), **(KEEP_MEMORY if memory == "keep_memory" else {}),
                       "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                       "TORCHINDUCTOR_CACHE_DIR": str(pathlib.Path(args.work).resolve() / "inductor")}
        self.errors = open(pathlib.Path(args.work) / "peers.log", "a")
        self.ranks = [subprocess.Popen([sys.executable, str(here / "rank_peers.py"), args.case,
                                        str(cases.CASES[args.case].batch // WORLD), str(r), str(WORLD), str(port)],
                                       text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                       env=environment) for r in range(WORLD)]

    def ask(self, variant, steps, seconds):
        """The answers of the ranks, with the times of the slower one; None when a rank ended or took too long."""
        timer = threading.Timer(seconds, lambda: [p.kill() for p in self.ranks])
        timer.start()
        try:
            for p in self.ranks:
                p.stdin.write(f"{variant} {steps}\n")
                p.stdin.flush()
            said = [json.loads(p.stdout.readline()) for p in self.ranks]
        except (OSError, ValueError):
            [p.kill() for p in self.ranks]
            return None
        finally:
            timer.cancel()
        return dict(ms=[max(t) for t in zip(*(s["ms"] for s in said))], loss=said[0]["loss"],
                    peak_mb=max(s["peak_mb"] for s in said))

    def close(self):
        for p in self.ranks:
            p.stdin.close()
        for p in self.ranks:
            p.wait()
        self.errors.close()


def difference(losses, expected):
    n = min(len(losses), len(expected))
    return max(abs(a - b) / abs(b) for a, b in zip(losses[:n], expected[:n]))


def try_peers(args, expected):
    """The fastest step of each configuration, {(memory, variant): ms}; reports those that fail or whose losses differ."""
    found = {}
    for memory, variants in TRIED.items():
        pair = None
        for v in variants if not args.variants else [v for v in variants if v in args.variants.split(",")]:
            pair = pair or Peers(args, memory)
            said = pair.ask(v, args.steps, args.patience)
            if said is None:
                print(f"  PyTorch {v}, {memory}: FAILED, see {args.work}/peers.log", flush=True)
                pair = None
                continue
            error = difference(said["loss"], expected)
            print(f"  PyTorch {v}, {memory}: {min(said['ms']):.1f} ms, loss differs by {error:.1e}, "
                  f"load {os.getloadavg()[0]:.1f}", flush=True)
            if error <= LOSS_BOUND:
                found[memory, v] = min(said["ms"])
        if pair:
            pair.close()
    return found


# ---- rounds ----

@dataclasses.dataclass
class Contender:
    name: str
    run: callable  # steps -> dict(ms, loss, ...)
    rounds: list = dataclasses.field(default_factory=list)
    others: list = dataclasses.field(default_factory=list)
    comm: list = dataclasses.field(default_factory=list)  # (ms, exposed ms) of the fastest steps

    def round(self, steps, expected):
        with Others() as others:
            said = self.run(steps)
        error = difference(said["loss"], expected)
        if error > LOSS_BOUND:
            sys.exit(f"ranks.py: {self.name}: the loss differs by {error:.1e}")
        self.rounds.append(min(said["ms"]))
        if "comm" in said:
            self.others.append(others.processors)
            self.comm.append(said["comm"][said["ms"].index(min(said["ms"]))])


def ours_contender(name, ours, strategy):
    def run(steps):
        log = ours.run(strategy, steps)
        return dict(ms=[r["step_ms"] for r in log[WARMUP:]], loss=[r["loss"] for r in log],
                    comm=[(r["comm_ms"], r["exposed_comm_ms"]) for r in log[WARMUP:]])
    return Contender(name, run)


def peer_contender(args, pairs, memory, variant):
    pairs.append(Peers(args, memory))
    pair = pairs[-1]

    def run(steps):
        said = pair.ask(variant, steps, args.patience)
        if said is None:
            sys.exit(f"ranks.py: PyTorch {variant} failed, see {args.work}/peers.log")
        run.peak_mb = said["peak_mb"]
        return said
    return Contender(f"PyTorch {torch.__version__} {variant}, {memory}", run)


def row(args, case, ours, peer):
    ratios = [p / o for o, p in zip(ours.rounds, peer.rounds)]
    return dict(case=f"{args.case} {case}", metric="step_ms", ours=statistics.median(ours.rounds),
                peer=statistics.median(peer.rounds), peer_name=peer.name, ratio=statistics.median(ratios),
                ratio_min=min(ratios), ratio_max=max(ratios), rounds=len(ratios), machine=machine(), load=os.getloadavg()[0],
                other_processors=statistics.median(ours.others))


def memory_rows(args, ours, bests):
    rows = []
    for strategy in STRATEGIES:
        planned, peak, share = ours.memory(strategy)
        print(f"  memory per rank, {strategy}: planned {planned:.0f}, resident {peak:.0f} with peers' pages, "
              f"{share:.0f} with pages shared out (MB of 1,000 KiB)", flush=True)
        best = bests.get({"full_shard": "fsdp", "no_shard": "ddp"}.get(strategy))
        if best:
            rows.append(dict(case=f"{args.case} {strategy} x{WORLD}", metric="resident_mb", ours=peak,
                             peer=best.run.peak_mb, peer_name=best.name, ratio=best.run.peak_mb / peak,
                             ratio_min=best.run.peak_mb / peak, ratio_max=best.run.peak_mb / peak, planned=planned,
                             proportional_mb=share))
    return rows


def measure(args):
    begin = time.monotonic()
    print(f"  {machine()}", flush=True)
    one, two = Ours(args, 1), Ours(args, WORLD)
    one.compile("full_shard")
    for s in STRATEGIES:
        two.compile(s)
    expected = [r["loss"] for r in one.run("full_shard", args.steps)]
    found = {} if args.no_peers else try_peers(args, expected)
    pairs, bests = [], {}
    for kind in ("fsdp", "ddp"):
        mine = [k for k in found if k[1].startswith(kind)]
        if mine:
            bests[kind] = peer_contender(args, pairs, *min(mine, key=found.get))
    alone = ours_contender(ALONE, one, "full_shard")
    ranks = {s: ours_contender(s, two, s) for s in STRATEGIES}
    everyone, took = [alone, *ranks.values(), *bests.values()], 0
    for b in bests.values():
        b.run(1)  # builds the model; its losses begin here
    print(f"  prepared after {time.monotonic() - begin:.0f} s", flush=True)
    while len(alone.rounds) < args.rounds:
        if len(alone.rounds) >= 2 and time.monotonic() - begin + took > args.minutes * 60:
            break
        start = time.monotonic()
        for c in everyone:
            c.round(args.steps, expected)
        took = time.monotonic() - start
        print(f"  round {len(alone.rounds)}: {took:.0f} s, load {os.getloadavg()[0]:.1f}: "
              + ", ".join(f"{c.name.split(' ')[-2][:20] if c in bests.values() else c.name} {c.rounds[-1]:.0f}"
                          for c in everyone), flush=True)
    rows = [row(args, f"{s} x{WORLD} / one rank", c, alone) for s, c in ranks.items()]
    for s, kind in (("full_shard", "fsdp"), ("full_shard", "ddp"), ("no_shard", "ddp")):
        if kind in bests:
            rows.append(row(args, f"{s} x{WORLD} / {'fully_shard' if kind == 'fsdp' else 'DDP'}", ranks[s], bests[kind]))
    for c in (alone, *ranks.values()):
        ms, exposed = (statistics.median(t) for t in zip(*c.comm))
        print(f"  {c.name}: {statistics.median(c.rounds):.1f} ms, {one_batch(args) / statistics.median(c.rounds):.2f} "
              f"samples/s, in collectives {ms:.1f} ms, of them waited for {exposed:.1f} ms")
    rows += memory_rows(args, two, bests)
    for p in pairs:
        p.close()
    print(f"  all after {time.monotonic() - begin:.0f} s")
    return rows


def one_batch(args):
    return cases.CASES[args.case].batch * 1e3


def write(path, rows):
    """Replaces the rows of the same cases and metrics in the file and keeps those of other benchmarks."""
    path, new = pathlib.Path(path), {(r["case"], r["metric"]) for r in rows}
    old = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    kept = [r for r in old if (r["case"], r["metric"]) not in new]
    path.write_text("".join(json.dumps(r) + "\n" for r in kept + rows))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("work")
    p.add_argument("--case", default="gpt2-124m")
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--minutes", type=float, default=8.5, help="begin no round that would end later (2 are made)")
    p.add_argument("--patience", type=float, default=240, help="seconds that PyTorch may take for one answer")
    p.add_argument("--variants", default="", help="try these configurations of PyTorch only")
    p.add_argument("--no-peers", action="store_true")
    p.add_argument("--flags", default="", help="more flags for our ranks, as '--comm-threads 1'")
    p.add_argument("--json", required=True)
    args = p.parse_args()
    pathlib.Path(args.work).mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")  # the exporter warns that the model is in training mode
    rows = measure(args)
    wide = max(len(r["case"]) for r in rows)
    print(f"{'case':{wide}} | {'ours':>8} | {'peer':>8} | {'ratio':>5} | min..max")
    for r in rows:
        print(f"{r['case']:{wide}} | {r['ours']:8.1f} | {r['peer']:8.1f} | {r['ratio']:5.2f} | "
              f"{r['ratio_min']:.2f}..{r['ratio_max']:.2f}   {r['metric']}, {r['peer_name']}")
    write(args.json, rows)


if __name__ == "__main__":
    main()
