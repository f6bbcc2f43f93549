"""Checks and timings on a GPU within a budget of seconds, ordered by what they tell: correctness, speed, the rest.

Part A: kernels, small models against recorded CPU losses, graphs; GPT-2 124M and ResNet-50 against PyTorch from the
same weights, one round of both beside it, every kernel of their steps.  Part B: a Llama of 1.2 billion parameters,
memory, a second round, profilers, 200 steps, a third round.  Part C: ranks, NCCL, faults, sanitizers.

A row goes to the end of rows.jsonl as soon as it is known, behind those of earlier calls: ok is true, false (FAILED),
or null where it was not done or only reports.  No check outlasts the budget, nor a limit of its own, but for the one
that --only names in full; what did not fit is a row that says so.  Exit status 1 when a check failed or none passed.

usage: ./run [--budget SECONDS] [--part A|B|C ..] [--only TEXT] [--out FOLDER] [--arch NAME] [--libs FOLDER ..]
"""
import argparse
import fcntl
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

from bench import Bench
from check import Check, Failed, Skipped
from faults import Faults
from kernels import Kernels
from machine import EMULATED, HERE, PATIENCE, Machine, OutOfTime, age, end_children, wants_gpu
from parity import Parity

LEAST = 3  # seconds: no check is started with less
RESERVE = PATIENCE + 1  # seconds of the budget that are kept for ending children, the last rows and the way out


def out_of_time(*_):
    raise OutOfTime


def limited(seconds, function, *args):
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return function(*args)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def say(text):
    """Prints a line.  Where nobody reads any more, the checks go on: rows are in the file."""
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")


class Rows:
    """Runs checks until the budget is over, and writes a row for each."""

    def __init__(self, args):
        self.end = time.monotonic() - age() + args.budget - RESERVE
        self.only, self.parts, self.count = args.only, args.part or ["A", "B", "C"], {True: 0, False: 0, None: 0}
        self.unwritten = 0
        try:
            args.out.mkdir(parents=True, exist_ok=True)
            self.file = open(args.out / "rows.jsonl", "a")
        except OSError as e:
            refuse(f"--out: {e.filename}: {e.strerror}")
        self.take(self.file)
        # Between calls: a line that a killed one did not end is ended.
        self.file.write("\n" * (self.file.tell() > 0))

    @staticmethod
    def take(file):
        """Two runs at once would measure each other; file systems without locks do without."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            refuse(f"--out: {file.name}: another run writes it")
        except OSError:
            pass

    def left(self):
        return self.end - time.monotonic()

    def write(self, **row):
        """A row that the disk does not take is printed, and written with a later one where there is room by then."""
        line = json.dumps(row)
        try:
            self.file.write(line + "\n")
            self.file.flush()
            if self.left() > 0:  # many rows behind the end would wait for the disk as often
                os.fsync(self.file.fileno())
        except OSError as e:
            self.unwritten += 1
            say(f"{HERE.name}: {self.file.name}: {e.strerror}: {line}")

    def wants(self, part, name):
        return part in self.parts and (not self.only or self.only in name)

    def do(self, part, name, limit, function, *args):
        """function returns what is to be said, or that and a dict of figures; limit is in seconds, and none of a check that
        alone is asked for."""
        if not self.wants(part, name):
            return
        begin, left = time.monotonic(), self.left()
        limit = left if name == self.only else min(limit, left)
        ok, detail, figures = self.outcome(limit, function, args) if left >= LEAST else (
            None, f"not done: {max(left, 0):.0f} s left", {})
        self.count[ok] += 1
        self.write(part=part, test=name, ok=ok, seconds=round(time.monotonic() - begin, 2), detail=detail, **figures)
        say(f"{({True: 'ok', False: 'FAILED', None: '-'})[ok]:6} {part} {name}: {detail}")

    def outcome(self, limit, function, args):
        try:
            told = limited(limit, function, *args)
            return True, *(told if isinstance(told, tuple) else (told, {}))
        except Failed as e:
            return False, str(e), {}
        except Skipped as e:
            return None, str(e), {}
        except OutOfTime as e:
            until = f"; until then: {e.said.strip()[-600:]}" if e.said else ""
            return None, f"not done: no end in {limit:.0f} s{until}", {}
        except Exception as e:  # a defect of one check must not cost the others
            return False, f"{type(e).__name__}: {e}", {}
        finally:
            end_children()


class Names:
    """Takes the place of Rows: lists the part and name of each check, and does none."""

    def __init__(self):
        self.listed = []

    def do(self, part, name, *_):
        self.listed.append((part, name))


def everything(rows, check, bench, rounds):
    parity, kernels, more = Parity(bench), Kernels(bench), range(1, rounds)
    check.correctness(rows)
    parity.first(rows)
    kernels.alone(rows)
    bench.first(rows)
    kernels.first(rows)
    check.graphs(rows)
    bench.memory(rows)
    bench.rounds(rows, more[:1])
    kernels.profiles(rows)
    parity.long(rows)
    bench.rounds(rows, more[1:])
    check.ranks(rows)
    Faults(check, bench).all(rows)
    check.sanitizers(rows)


def refuse(text):
    print(f"{HERE.name}: {text}", file=sys.stderr)
    sys.exit(2)


def refuse_no_checks(rows, *sides):
    """Ends where the flags select no check."""
    names = Names()
    everything(names, *sides)
    if not any(rows.wants(*check) for check in names.listed):
        listed = [f"  {part}: " + "; ".join(name for p, name in names.listed if p == part) for part in "ABC"]
        refuse("\n".join([f'--only: no check of part {" or ".join(rows.parts)} has "{rows.only}" in its name; there are',
                          *listed]))


def seconds(text):
    value = float(text)
    if not 0 < value <= 1e6:  # neither is true of NaN
        raise argparse.ArgumentTypeError(f"a number of seconds above 0 (at most 1e6) is expected, not {text}")
    return value


def count(text):
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"a whole number above 0 is expected, not {text}")
    return int(text)


def folder(text):
    if not pathlib.Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}")
    return text


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--budget", type=seconds, default=480, metavar="SECONDS", help="until all has ended (480)")
    p.add_argument("--part", action="append", choices=["A", "B", "C"], help="a part (default: all, in order)")
    p.add_argument("--only", help="checks whose name contains TEXT; one whose name it is may take all the time")
    p.add_argument("--out", type=pathlib.Path, default=HERE / "results", help="folder of rows.jsonl")
    p.add_argument("--rounds", type=count, default=3, help="of ours and PyTorch's, alternating")
    p.add_argument("--steps", type=count, default=20, help="timed steps of a round")
    p.add_argument("--arch", help="whose programs run (default: the GPU's)")
    p.add_argument("--libs", type=folder, action="extend", nargs="+", default=[], metavar="FOLDER",
                   help="where NVIDIA's libraries are")
    return p.parse_args()


def end_by_signal(number, _):
    sys.exit(128 + number)  # children end on the way out


def read_cases():
    """What kit.py wrote beside the programs."""
    missing = [name for name in ("cases.json", "bin/*") if not any(HERE.glob(name))]
    if missing:
        sys.exit(f"{HERE.name}: {HERE} has no {' and no '.join(missing)}: make gpu-kit makes a folder that has all")
    return json.loads((HERE / "cases.json").read_text())


def main():
    args, cases = arguments(), read_cases()
    signal.signal(signal.SIGALRM, out_of_time)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # below nohup it stays ignored
            signal.signal(number, end_by_signal)
    rows = Rows(args)
    machine = Machine(args.arch, args.libs, rows.left())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:  # what was left behind may write there
        check = Check(machine, cases["checks"], pathlib.Path(work))
        bench = Bench(machine, cases["benches"], pathlib.Path(work), args.steps)
        refuse_no_checks(rows, check, bench, args.rounds)
        rows.write(machine=machine.facts(), budget=args.budget)
        if not machine.gpus and rows.left() > 0:
            try:
                limited(rows.left(), wants_gpu, machine,
                        [[check.program(c), *check.flags(c, os.devnull, 1)] for c in check.cases])
            except OutOfTime:
                pass
            finally:
                end_children()
        everything(rows, check, bench, args.rounds)
    passed, failed, rest = (rows.count[ok] for ok in (True, False, None))
    say(f"gpu-kit: {passed} passed, {failed} failed, {rest} not done; {args.out / 'rows.jsonl'}"
        + (" (emulated: times mean nothing)" if machine.arch == EMULATED else ""))
    if rows.unwritten:
        say(f"gpu-kit: {rows.unwritten} times a row was not written, and is printed above")
    sys.exit(1 if failed or not passed or rows.unwritten else 0)


if __name__ == "__main__":
    main()
