"""Memory is known before a run: what `shardc plan` says of a rank is what its program maps, to the byte.

Seeded configurations: models x strategies x units x prefetch x precision x recomputation x micro-batches x ranks.  Of
each a step is trained, and rank 0's memory is held against the plan twice: the bytes that the program counts itself
(peak_bytes of its log), and the pages that it maps, counted by a preloaded library (tests/e2e/nomalloc.c), against the
planned arenas in whole pages.  A plan is of the rank that needs most: a configuration in which that is not rank 0 is
left out and another one drawn.

usage: memory.py SHARDC WORKDIR [--count 200] [--seed 1] [--jobs 2]
  Fewer configurations are the first of more.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys

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

    def measured(self, c, run, binary, name):
        """What rank 0 says that it has, and what it has mapped."""
        world, group, micros = run
        log, counts = self.root / f"{name}.jsonl", self.root / f"{name}.counts"
        args = [binary, *self.data[c["model"]], "--steps", 1, "--threads", 1, "--timeout", 60, "--log", log,
                *(["--ranks", world] if world > 1 else []), *(["--shard-size", group] if group else []),
                *(["--accum", micros] if c["sync"] != "one" else [])]
        ran = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=300,
                             env=dict(os.environ, LD_PRELOAD=str(self.library), NOMALLOC=str(counts)))
        if ran.returncode:
            raise Failed(f"{' '.join(str(a) for a in args)}\nexit {ran.returncode}\n{ran.stderr[-1500:]}")
        step = json.loads(log.read_text().splitlines()[0])
        got = [int(line.split()[1]) for line in counts.read_text().splitlines() if line.startswith("mapped")]
        return step["peak_bytes"], got[0]

    def case(self, number, c, runs):
        """A line for each run: (0 right, 1 wrong, None left out, text)."""
        lines = []
        for k, run in enumerate(runs):
            name = " ".join([*c.values(), f"W={run[0]}", *([f"S={run[1]}"] if run[1] else []), f"A={run[2]}"])
            try:
                rank, rows = self.plan(c, run)
                if rank:
                    lines.append((None, f"{name}: left out, the plan is of rank {rank}"))
                    continue
                least, most = mapped_pages(rows, run[0], c["precision"])
                binary = self.programs.build(c["model"], options_of(c, run[0]))[1]
                got = self.measured(c, run, binary, f"run{number}-{k}")
                off = got[0] - rows["total"], got[1] - min(max(got[1], least), most)
                lines.append((int(any(off)), f"{name}: {rows['total']} bytes, {least} in pages; off by {off[0]} and {off[1]}"))
            except (Failed, subprocess.TimeoutExpired, ValueError, OSError, LookupError) as e:
                lines.append((1, f"{name}: {e}"))
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
    done = wrong = left_out = number = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        while done < args.count:
            cases = [draw(rng) for _ in range(-(-(args.count - done) // RUNS))]
            futures = [pool.submit(test.case, number + i, *case) for i, case in enumerate(cases)]
            number += len(cases)
            for bad, text in (line for f in futures for line in f.result()):
                if done == args.count:
                    break
                done += bad is not None
                left_out += bad is None
                wrong += bool(bad)
                print(("FAILED " if bad else "") + text, flush=True)
    print(f"{done - wrong} of {done} configurations map what is planned, 0 bytes off; {left_out} left out")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
