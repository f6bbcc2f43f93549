"""Memory is known before a run: what `shardc plan` says of a rank is what its program maps, to the byte.

Seeded configurations: models x strategies x units x prefetch x precision x recomputation x micro-batches x ranks.  Of
each steps are trained, and the memory of the rank that the plan is of, which is the one that needs most, is held against
the plan: the pages that it maps, counted by a preloaded library (tests/e2e/nomalloc.c), against the planned arenas in
whole pages; and where that is rank 0 also the bytes that the program counts itself (peak_bytes of its log).

usage: memory.py SHARDC WORKDIR [--count 200] [--seed 1] [--jobs 2]
  Fewer configurations are the first of more.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "ranks"))
import matrix  # noqa: E402
from matrix import B, OWNED, SCHEDULES, STRATEGIES, WRAPS, Failed, command, groups  # noqa: E402

DIGITS = HERE.parent.parent / "examples/digits"
matrix.COMPILE["digits"] = ["--loss=cross_entropy"]
MODELS = [*matrix.MODELS, "digits"]
PRECISIONS = {"f32": [], "bf16": ["--param-dtype=bf16", "--reduce-dtype=bf16"], "reduce": ["--reduce-dtype=f16"]}
SYNCS = {"one": [], "last": ["--accum=many"], "every": ["--accum=many", "--sync=every"]}
WORLDS = (1, 2, 3, 4)
RUNS = 2  # of a program: with other numbers of ranks, sizes of groups, or micro-batches
# One mapping that others read: the communicator's page and, of several ranks, these.
SHARED = ["parameters", "gradients", "sent copies"]


def draw(rng):
    """A program, and runs of it."""
    c = {"model": rng.choice(MODELS), "strategy": rng.choice(STRATEGIES), "wrap": rng.choice(list(WRAPS)),
         "prefetch": rng.choice(list(SCHEDULES)), "precision": rng.choice(list(PRECISIONS)), "sync": rng.choice(list(SYNCS))}
    c["sync"] = "one" if c["prefetch"].startswith("early") else c["sync"]  # updates in backward want one micro-batch
    worlds = [rng.choice(WORLDS)] if c["strategy"] in OWNED else WORLDS
    micros = (1,) if c["sync"] == "one" else (1, 2, 3)
    runs = [(w, s, a) for w in worlds for s in groups(c["strategy"], w) for a in micros]
    return c, rng.sample(runs, min(RUNS, len(runs)))


def options_of(c, world):
    return [f"--bind=batch={B}", f"--strategy={c['strategy']}", *WRAPS[c["wrap"]], *SCHEDULES[c["prefetch"]],
            *PRECISIONS[c["precision"]], *SYNCS[c["sync"]], *([f"--world={world}"] if c["strategy"] in OWNED else [])]


def pages(n):
    return -(-n // 4096) * 4096


def mapped_pages(rows, world, precision):
    """The bytes that a rank's arenas are in whole pages, at least and at most, where those in one mapping follow each
    other.  Of one rank's gradients the plan does not say which follow the activations and which have a mapping."""
    rows = dict(rows)
    rows.pop("total")
    if world == 1:
        least = pages(rows.pop("activations") + rows.pop("gradients")) + sum(map(pages, rows.values()))
        return least, least + 4096
    shared = SHARED + ["gathered"] * (precision == "bf16")  # peers read what a rank has cast
    together = sum(rows.pop(k) for k in [*shared, "communication"])
    return (pages(together) + sum(map(pages, rows.values())),) * 2


def mapped(counts):
    """The bytes of a file of nomalloc.c; None: it is not there, or not whole."""
    rows = re.findall(r"^mapped (\d+)\n", counts.read_text() if counts.exists() else "", re.MULTILINE)
    return int(rows[0]) if rows else None


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Test:
    def __init__(self, args):
        self.root = pathlib.Path(args.workdir).resolve()
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        self.programs = matrix.Programs(pathlib.Path(args.shardc).resolve(), self.root)
        matrix.export_models(self.root)
        shutil.copy(DIGITS / "digits.onnx", self.root)
        self.library = self.root / "nomalloc.so"
        command(["cc", "-O1", "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-shared", "-o", self.library,
                 HERE.parent / "e2e/nomalloc.c", "-ldl"])
        samples = max(WORLDS) * 3  # of the most micro-batches
        self.data = {m: matrix.make_data(m, samples, self.root)[2] for m in matrix.MODELS}
        self.data["digits"] = ["--data", f"x={DIGITS}/x_train.npy", "--data", f"labels={DIGITS}/labels_train.npy"]

    def plan(self, c, run):
        """The planned rows of a rank, and which rank that is."""
        world, group, micros = run
        options = [o for o in options_of(c, world) if "--world" not in o]
        more = [f"--shard-size={group}"] if group else []
        plan = json.loads(command([self.programs.shardc, "plan", self.root / f"{c['model']}.onnx",
                                   *matrix.COMPILE[c["model"]], *options, *more, f"--world={world}", "--format=json"]))
        if c["sync"] == "one":
            return plan["rank"], plan["memory"]
        of = plan["micro_batches"][str(micros)]
        return of["rank"], {k: n for k, n in of.items() if k != "rank"}

    def training(self, c, run, binary, log):
        """The command of a rank, without how many steps and ranks there are."""
        group, micros = run[1:]
        args = [binary, *self.data[c["model"]], "--threads", 1, "--timeout", 60, "--log", log,
                *(["--shard-size", group] if group else []), *(["--accum", micros] if c["sync"] != "one" else [])]
        return [str(a) for a in args]

    def measured(self, c, run, binary, name):
        """What rank 0 says that it has, and what it has mapped."""
        world, log, counts = run[0], self.root / f"{name}.jsonl", self.root / f"{name}.counts"
        args = [*self.training(c, run, binary, log), "--steps", "1", *(["--ranks", str(world)] if world > 1 else [])]
        ran = subprocess.run(args, capture_output=True, text=True, timeout=300,
                             env=dict(os.environ, LD_PRELOAD=str(self.library), NOMALLOC=str(counts)))
        if ran.returncode:
            raise Failed(f"{' '.join(args)}\nexit {ran.returncode}\n{ran.stderr[-1500:]}")
        return json.loads(log.read_text().splitlines()[0])["peak_bytes"], mapped(counts)

    def mapped_by(self, rank, c, run, binary, name):
        """What another rank has mapped once a step is logged."""
        world, log, counts = run[0], self.root / f"{name}.jsonl", self.root / f"{name}.counts"
        args = [*self.training(c, run, binary, log), "--steps", "1000000"]
        launcher = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        watched = {"LD_PRELOAD": self.library, "NOMALLOC_NOW": counts}
        ranks = [subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, **{
            k: str(v) for k, v in {**launcher, "RANK": r, "LOCAL_RANK": r, **(watched if r == rank else {})}.items()}})
            for r in range(world)]
        last, asked = time.time() + 300, False
        while time.time() < last and all(p.poll() is None for p in ranks) and not mapped(counts):
            if not asked and log.exists() and log.stat().st_size:
                ranks[rank].send_signal(signal.SIGRTMIN)
                asked = True
            time.sleep(0.02)
        for p in ranks:
            p.kill()
        said = "".join(p.communicate()[1] for p in ranks)
        if not mapped(counts):
            raise Failed(f"{' '.join(args)}\nrank {rank} of {world} wrote no {counts}\n{said[-1500:]}")
        return mapped(counts)

    def case(self, number, c, runs):
        """A line for each run: whether it is wrong, of which rank the plan is, text."""
        lines = []
        for k, run in enumerate(runs):
            name = " ".join([*c.values(), f"W={run[0]}", *([f"S={run[1]}"] if run[1] else []), f"A={run[2]}"])
            try:
                rank, rows = self.plan(c, run)
                least, most = mapped_pages(rows, run[0], c["precision"])
                binary = self.programs.build(c["model"], options_of(c, run[0]))[1]
                if rank:
                    own, got = rows["total"], self.mapped_by(rank, c, run, binary, f"run{number}-{k}")
                else:
                    own, got = self.measured(c, run, binary, f"run{number}-{k}")
                off = own - rows["total"], got - min(max(got, least), most)
                lines.append((any(off), rank, f"{name}: {rows['total']} bytes of rank {rank}, {least} in pages; off by "
                                              f"{off[0]} and {off[1]}"))
            except (Failed, subprocess.TimeoutExpired, ValueError, OSError, LookupError) as e:
                lines.append((True, 0, f"{name}: {e}"))
        return lines


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("workdir")
    p.add_argument("--count", type=int, default=200)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--jobs", type=int, default=2)
    args = p.parse_args()
    test, rng = Test(args), random.Random(args.seed)
    done = wrong = others = number = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        while done < args.count:
            cases = [draw(rng) for _ in range(-(-(args.count - done) // RUNS))]
            futures = [pool.submit(test.case, number + i, *case) for i, case in enumerate(cases)]
            number += len(cases)
            for bad, rank, text in (line for f in futures for line in f.result()):
                if done == args.count:
                    break
                done += 1
                others += rank > 0
                wrong += bad
                print(("FAILED " if bad else "") + text, flush=True)
    print(f"{done - wrong} of {done} configurations map what is planned, 0 bytes off; {others} are of other ranks than 0")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
