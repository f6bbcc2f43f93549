#!/usr/bin/env python3
"""Policies that --wrap=auto finds, beside policies by hand, as their programs run on this machine.

usage: tests/predict/searched.py SHARDC DIR [--rounds N] [--models A,B] [--machine FILE.json]

For each policy by hand the search has the memory that its plan takes, and what it finds is compared with that policy:
it may need no more memory, and must be as fast, but for noise.  A rank for each core; all programs of a model share the
machine in slices (slices.py), a round is a slice of each, of which the middle half of the steps counts, and what counts is the
ratio of both in a round.  How noisy a row is, its own rounds say: a policy by hand is faster where so many rounds say so as
equal programs do in at most LUCK of all rows, and where the median does by more than NOISE.  --machine: a file of an earlier
run; else this machine is calibrated first, with the ops of the models.  It ends with 1 when a policy by hand is faster or
needs less memory."""
import argparse
import contextlib
import math
import pathlib
import signal
import statistics
import sys

from workloads import Program, Training, calibrate, cores_of, ids_of, plan, words_of

NOISE = 0.01  # what is no difference to a user
LUCK = 0.006
MODELS = "gpt2,llama,vit,resnet18,mlp"
HAND = ["--wrap=block", "--wrap=each", "--wrap=none", "--wrap=size:100000", "--wrap=block --strategy=shard_grad_op",
        "--wrap=none --strategy=no_shard", "--wrap=block --forward-prefetch=0 --backward-prefetch=none",
        "--wrap=block --remat=block"]


def found(shardc, words, machine, ranks, limit):
    """The options that the search finds within a limit."""
    return plan(shardc, [*words, "--wrap=auto", f"--memory-limit={limit}"], machine, ranks)["search"]["options"]


class Contest:
    """One model: its policies by hand, and for each what the search found in its place."""

    def __init__(self, shardc, folder, machine, name, ranks):
        self.shardc, self.folder, self.name, self.ranks = shardc, folder, name, ranks
        self.words, self.programs, self.pairs = words_of(name, False, folder), {}, []
        for hand in HAND:
            limit = plan(shardc, [*self.words, *hand.split()], machine, ranks)["memory"]["total"]
            options = found(shardc, self.words, machine, ranks, limit)
            took = plan(shardc, [*self.words, *options], machine, ranks)["memory"]["total"]
            self.pairs.append((hand, " ".join(options), limit, took, self.program(hand.split()), self.program(options)))

    def program(self, options):
        key = tuple(sorted(options))
        if key not in self.programs:
            folder = self.folder / f"searched-{self.name}" / str(len(self.programs))
            self.programs[key] = Program(self.shardc, folder, self.words, options, ids_of(self.name), self.ranks)
        return self.programs[key]

    def measure(self, rounds, cores):
        """[ms of each round] by program."""
        with contextlib.ExitStack() as stack:
            trainings = {p: Training(p, self.ranks, cores, stack) for p in self.programs.values()}
            for _ in range(rounds):
                for t in trainings.values():
                    t.slice()
            return {p: t.end() for p, t in trainings.items()}


def is_slower(ratios):
    """Whether more rounds than luck explains, and the median, say so."""
    n, said = len(ratios), sum(r > 1 for r in ratios)
    luck = sum(math.comb(n, k) for k in range(said, n + 1)) / 2 ** n
    return statistics.median(ratios) > 1 + NOISE and luck <= LUCK


def show(contest, times):
    print(f"{contest.name}, {contest.ranks} ranks")
    print(f"  {'by hand':58} {'ms':>8} {'MiB':>7} {'searched ms':>12} {'MiB':>7}  ratio (range)     searched options")
    good = True
    for hand, options, limit, took, ours, theirs in contest.pairs:
        ratios = [b / a for a, b in zip(times[ours], times[theirs])]
        ratio = statistics.median(ratios)
        kept = not is_slower(ratios) and took <= limit
        good = good and kept
        print(f"  {hand:58} {statistics.median(times[ours]):8.2f} {limit / 2**20:7.1f} "
              f"{statistics.median(times[theirs]):12.2f} {took / 2**20:7.1f}  {ratio:5.3f} ({min(ratios):.3f}-{max(ratios):.3f}) "
              f"{'' if kept else 'SLOWER '}{options}", flush=True)
    return good


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shardc", type=pathlib.Path)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--rounds", type=int, default=24)
    p.add_argument("--models", default=MODELS)
    p.add_argument("--machine", type=pathlib.Path)
    o = p.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("stopped"))  # ends what it has stopped, as Ctrl-C does
    shardc, folder, names = o.shardc.resolve(), o.folder.resolve(), o.models.split(",")
    folder.mkdir(parents=True, exist_ok=True)
    machine = o.machine or folder / "machine.json"
    if not o.machine:
        machine.unlink(missing_ok=True)
        calibrate(shardc, folder, machine, names)
    cores = cores_of(machine)
    good = True
    for name in names:
        contest = Contest(shardc, folder, machine, name, cores)
        good = show(contest, contest.measure(o.rounds, cores)) and good
    sys.exit(not good)


main()
