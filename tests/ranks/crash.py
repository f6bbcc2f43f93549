"""Training that is killed (SIGKILL) at random instants while it saves and while it trains: one rank, all ranks, or the
parent of the ranks.

After each kill the test looks for itself which checkpoints are whole, then `--resume auto` must continue from the
newest, with losses equal in every digit to those of a run that nobody killed, and with no more steps lost than saves
promise: a save that steps wait for is there as soon as a later step is logged, of saves beside the steps all but the
last.  Every folder that has the name of a checkpoint must be whole at any instant; after the next save no folder of
a killed save is left, after a kill no process.

usage: crash.py SHARDC WORK [--count 36] [--seed 1]      examples/digits gives the model
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
import zlib

from hangs_run import processes

LAST = 160                 # the step at which a run ends, killed or not
KILLS, FRESH = 4, 110      # after so many kills, or past this step, the next run begins anew, with other flags
GRACE = 30                 # seconds for the processes to end after a kill, on a loaded machine
SORTS = [(ranks, kind) for ranks in (3, 1, 2) for kind in ("sharded", "full", "local")]
EXAMPLE = pathlib.Path(__file__).resolve().parent.parent.parent / "examples" / "digits"
NEVER, TRAINING, BEGUN, FILE, STATE, RENAMED = "start", "training", "folder", "file", "state", "rename"


# ---- checkpoints, read without shardc ----

def tensors_are_whole(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    meta = header.pop("__metadata__")
    elements = memoryview(data)[8 + length:]
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        if f"{zlib.crc32(elements[begin:end]):08x}" != meta["crc32:" + name]:
            raise ValueError(f"{path}: {name} has another checksum")
    if max(t["data_offsets"][1] for t in header.values()) != len(elements):
        raise ValueError(f"{path}: another length")


def files_of(kind, ranks):
    sections = ["model", "optim"] + (["buffers-rank"] if ranks > 1 else [])
    if kind == "full":
        return {f"{s}.safetensors" for s in sections} | {"state.json"}
    names = {f"{s}-{r + 1:05}-of-{ranks:05}.safetensors" for s in sections for r in range(ranks)}
    return names | {"state.json", "index.json"}


def check_whole(folder, kind, ranks):
    state = json.loads((folder / "state.json").read_text())
    if state["step"] != int(folder.name[5:]) or state["layout"]["kind"] != kind:
        raise ValueError(f"{folder}: its state.json is of step {state['step']}, kind {state['layout']['kind']}")
    names = {p.name for p in folder.iterdir()}
    if names != files_of(kind, ranks):
        raise ValueError(f"{folder}: it holds {sorted(names)}")
    for name in names:
        if name.endswith(".safetensors"):
            tensors_are_whole(folder / name)


def checkpoints(save):
    """Steps of the folders that are named as checkpoints are."""
    return sorted(int(name[5:]) for name in os.listdir(save) if name.startswith("step-")) if save.exists() else []


# ---- processes ----

def wait_until(what, seconds, alive):
    """Whether it came true before the run ended, or the time did."""
    end = time.time() + seconds
    while time.time() < end:
        if what():
            return True
        if alive.poll() is not None:
            return False
        time.sleep(0.0002)
    return False


# ---- one run ----

class Chain:
    """A folder, and the flags of all runs that save in it."""

    def __init__(self, work, rng, number):
        self.save = work / f"save-{number}"
        self.ranks, self.kind = SORTS[number % len(SORTS)]
        self.every = rng.randint(1, 3)
        self.keep = rng.randint(2, 3)
        self.beside = self.kind != "full" or self.ranks == 1
        self.kills = 0

    def flags(self):
        return ["--save", self.save, "--save-kind", self.kind, "--keep", self.keep, "--resume", "auto"]

    def __str__(self):
        return f"{self.ranks} rank(s) {self.kind} --save-every {self.every} --keep {self.keep}"


def command(args, ranks, *more):
    return [args.work / "train", "--data", f"x={EXAMPLE}/x_train.npy", "--data", f"labels={EXAMPLE}/labels_train.npy",
            "--shuffle", "5", "--threads", "1", "--ranks", str(ranks), "--steps", str(LAST), *map(str, more)]


def losses(path):
    """{step: text of the loss}; the last line may be torn."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line, parse_float=str)
        except json.JSONDecodeError:
            continue
        found[record["step"]] = record["loss"]
    return found


def aim(args, chain, run, rng, log):
    """Waits for the instant; returns its name, None if the run ended before."""
    where = rng.choice([NEVER, TRAINING, BEGUN, BEGUN, FILE, FILE, STATE, RENAMED])
    if where == NEVER:
        time.sleep(rng.uniform(0, 0.5))
        return where if run.poll() is None else None
    if not wait_until(lambda: log.exists() and log.stat().st_size, 60, run):
        return None
    if where == TRAINING:
        time.sleep(rng.uniform(0, 0.1))
        return where if run.poll() is None else None
    for _ in range(rng.randint(0, 4)):
        wait_until(lambda now=checkpoints(chain.save): checkpoints(chain.save) != now, 5, run)
    hit = wait_until(event(chain, where, rng), 5, run)
    time.sleep(rng.choice([0, rng.uniform(0, 0.002), rng.uniform(0, 0.01)]))
    return where if hit and run.poll() is None else None


def event(chain, where, rng):
    if where == RENAMED:
        return lambda now=checkpoints(chain.save): checkpoints(chain.save) != now
    known = sorted(files_of(chain.kind, chain.ranks) - {"state.json"})
    name = {FILE: rng.choice(known), STATE: "state.json"}.get(where)

    def seen():
        for folder in os.listdir(chain.save) if chain.save.exists() else []:
            if folder.startswith(".step-") and (not name or (chain.save / folder / name).exists()):
                return True
        return False
    return seen


def choose(rng, marker, run):
    """Pids to kill: of the ranks one, or all; the parent; or everything."""
    found = processes(marker)
    ranks = sorted(pid for pid, rank in found.items() if rank is not None)
    if not ranks:
        return "the process", [run.pid]
    what = rng.choice(["a rank", "a rank", "all ranks", "the parent", "everything"])
    return what, {"a rank": [rng.choice(ranks)], "all ranks": ranks, "the parent": [run.pid],
                  "everything": [run.pid, *ranks]}[what]


def kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def all_gone(marker):
    end = time.time() + GRACE
    while processes(marker) and time.time() < end:
        time.sleep(0.01)
    return not processes(marker)


def promised(chain, first, logged, seen):
    """The step that a resume may not fall behind: `first` is where the run began, `logged` its last line."""
    saved = (logged - 1) // chain.every * chain.every if logged else 0
    saved -= chain.every if chain.beside else 0
    return max([first, saved, *seen])


def one(args, chain, rng, number, reference):
    """Kills a run.  Returns (at what, whom: both None if it ended before; what is wrong or None)."""
    marker, log = f"crash-{os.getpid()}-{number}-", args.work / f"log-{number}"
    first = max(checkpoints(chain.save), default=0)
    out = args.work / "out"
    with open(out, "w") as said:
        run = subprocess.Popen(command(args, chain.ranks, *chain.flags(), "--save-every", chain.every, "--log", log),
                               stdout=said, stderr=subprocess.STDOUT, env=dict(os.environ, SHARDC_CRASH_TEST=marker))
    try:
        where = aim(args, chain, run, rng, log)
        what, pids = choose(rng, marker, run) if where else (None, [])
        seen = [int(os.readlink(chain.save / "latest")[5:])] if (chain.save / "latest").is_symlink() else []
        kill(pids)
        try:
            code = run.wait(GRACE)
        except subprocess.TimeoutExpired:
            return where, what, f"no end {GRACE} s after {what} was killed"
        if not all_gone(marker):
            return where, what, f"{what} was killed, processes are left: {processes(marker)}"
        steps = losses(log)
        if not where and (code or LAST not in steps and first != LAST):
            return where, what, f"exit {code} of a run that nobody killed"
        return where, what, judge(chain, first, steps, seen, reference)
    finally:
        kill([*processes(marker), *([run.pid] if run.poll() is None else [])])
        run.wait()
        log.unlink(missing_ok=True)


def judge(chain, first, steps, seen, reference):
    """What is wrong with what a run logged and left behind."""
    if steps and min(steps) != first + 1:
        return f"step {min(steps)} came first, the newest checkpoint was of step {first}"
    for step, loss in steps.items():
        if loss != reference[chain.ranks][step]:
            return f"step {step}: loss {loss}, {reference[chain.ranks][step]} without kills"
    there = checkpoints(chain.save)
    try:
        for step in there:
            check_whole(chain.save / f"step-{step:08}", chain.kind, chain.ranks)
    except (ValueError, OSError, KeyError) as error:
        return f"not whole: {error}"
    least = promised(chain, first, max(steps, default=0), seen)
    if max(there, default=0) < least:
        return f"checkpoints of steps {there}, one of step {least} was promised"
    return None


def left_behind(chain):
    return [name for name in os.listdir(chain.save) if name.startswith(".step-")] if chain.save.exists() else []


def end_chain(args, chain, reference):
    """The rest of the run, in peace: it ends where the one that nobody killed did."""
    log = args.work / "log-end"
    first = max(checkpoints(chain.save), default=0)
    run = subprocess.run(command(args, chain.ranks, *chain.flags(), "--log", log), stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True)
    steps = losses(log)
    log.unlink(missing_ok=True)
    if run.returncode or max(steps, default=first) != LAST:
        return f"the last run: exit {run.returncode} after step {max(steps, default=first)}:\n{run.stdout[-1500:]}"
    if left_behind(chain):
        return f"left behind: {left_behind(chain)}"
    if not len(checkpoints(chain.save)) <= chain.keep:
        return f"{checkpoints(chain.save)} with --keep {chain.keep}"
    return judge(chain, first, steps, [LAST], reference)


class Tally:
    """How many kills there were of each sort."""

    def __init__(self):
        self.counts = {"at": {}, "of": {}, "saving": {}}

    def add(self, *sorts):
        for count, sort in zip(self.counts.values(), sorts):
            count[sort] = count.get(sort, 0) + 1

    def say(self):
        for what, count in self.counts.items():
            print(f"killed {what}: " + ", ".join(f"{sort} {n}" for sort, n in sorted(count.items())))


def compile_example(args):
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    subprocess.run([args.shardc, EXAMPLE / "digits.onnx", "-o", args.work / "train", "--loss=cross_entropy", "--bind",
                    "batch=2", "--optimizer=adamw", "-O0"], check=True, stdout=subprocess.DEVNULL)


def losses_in_peace(args):
    """Of each number of ranks, when nobody kills."""
    reference = {}
    for ranks in (1, 2, 3):
        log = args.work / f"reference-{ranks}"
        subprocess.run(command(args, ranks, "--log", log), check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        reference[ranks] = losses(log)
    return reference


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=36)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.work = args.work.resolve()
    compile_example(args)
    reference, rng = losses_in_peace(args), random.Random(args.seed)
    total = {"kills": 0, "failed": 0, "cut off": 0, "folders": 0}
    tally, chain, number = Tally(), None, 0

    def report(text, wrong):
        total["failed"] += bool(wrong)
        if wrong:
            print(f"{text} ({chain}): FAILED {wrong}\n{(args.work / 'out').read_text()[-1500:]}", flush=True)

    while total["kills"] < args.count:
        if not chain:
            total["folders"] += 1
            chain = Chain(args.work, rng, total["folders"])
        number += 1
        where, what, wrong = one(args, chain, rng, number, reference)
        if where:
            total["kills"] += 1
            chain.kills += 1
            total["cut off"] += bool(left_behind(chain))
            tally.add(where, what, f"{chain.kind} of {chain.ranks}")
        report(f"run {number}, {what} killed at {where}", wrong)
        if wrong or chain.kills == KILLS or max(checkpoints(chain.save), default=0) > FRESH:
            report(f"folder {total['folders']}", end_chain(args, chain, reference))
            shutil.rmtree(chain.save, ignore_errors=True)
            chain = None
    tally.say()
    print(f"crash: {total['kills']} kills in {total['folders']} folders, {total['cut off']} of them cut off a save, "
          f"{total['failed']} failed")
    sys.exit(1 if total["failed"] else 0)


if __name__ == "__main__":
    main()
