"""Training steps of our binary against PyTorch, the two alternating in one run; where our step's time goes; memory.

In every round each contender has a turn of a few steps.  A contender's figure is the median over rounds of the fastest
step of a turn; a ratio is the median over rounds of that of the round, its range is over rounds.  Ratio above 1: we are
faster.  All configurations of PyTorch that were tried are printed, with the time or why there is none; the fastest is
the peer.  Model, weights, data, optimizer, loss and precision are the same on both sides: losses of the same steps are
compared, and a row in which they differ is an error.

Then come, of a run of ours that is not timed against others, the classes of ops beside their floors (split.py), and
memory: all that was resident of our process, and of PyTorch's what came to it since the model was built (peers.py).
That of the configuration that needs least is compared, also beyond parameters, gradients and AdamW's states, 16 bytes
for each parameter on both sides.

bf16 rows are measured where the processor has such units, or with --any-half.

--clock processor compares processor time instead, which other work on the machine disturbs less.  It is the sum of all
threads, waiting ones too, so it says nothing about how well threads share the work.

usage: python step.py SHARDC RATES WORKDIR [--only a,b] [--modes a,b] [--rounds N] [--steps N] [--threads N]
                      [--patience SECONDS] [--clock wall|processor] [--any-half] [--quick] --json FILE
Exit status: 0; 1: a program failed, or losses of a row differ; 2: usage.
"""
import argparse
import json
import os
import pathlib
import statistics
import time

import torch

import cases
import split
from contenders import MIB, MODES, Ours, Peer, PeerFailed, variants

STATE_BYTES = 16  # of a parameter: itself, its gradient and two moments in f32
LOSS_BOUND = {False: 1e-3, True: 2e-2}  # relative difference of losses, in f32 and with bf16 products
LATER = 2e-2  # of steps after the first: some models soon turn last bits into other losses (ResNet-50: 0.5%)
TRACED = 6  # steps, of which the fastest is split
FARTHEST = 6  # kernels that are printed
UNITS = ("avx512_bf16", "amx_bf16", "bf16")


def has_half_units():
    return any(set(s.split(":")[1].split()) & set(UNITS) for s in open("/proc/cpuinfo")
               if s.startswith(("flags", "Features")))


def available_mib():
    return next(int(s.split()[1]) for s in open("/proc/meminfo") if s.startswith("MemAvailable")) / 1024


# ---- rounds ----

class Entry:
    """What a contender did in all rounds; failed: why it has no more turns."""

    def __init__(self, who):
        self.who, self.rounds, self.losses, self.peak_mib, self.failed = who, [], [], 0, None

    def take_turn(self, steps):
        try:
            turn = self.who.turn(steps)
        except PeerFailed as why:
            self.failed = str(why)
            return
        self.rounds.append(min(turn.ms))
        self.losses = self.losses or turn.losses
        self.peak_mib = max(self.peak_mib, turn.peak_mib)

    @property
    def ms(self):
        return statistics.median(self.rounds)

    def ratios(self, ours):
        return [p / o for p, o in zip(self.rounds, ours.rounds)]

    def difference(self, ours):
        """The largest relative difference between losses of the same steps."""
        return max((abs(a - b) / abs(b) for a, b in zip(self.losses, ours.losses)), key=lambda d: (d != d, d))


def make_room(peers, turn, wanted_mib):
    """Peers keep their models while others have turns, as long as there is memory; the one whose turn is farthest away
    stops first."""
    for e in [*reversed(peers[turn + 1:]), *reversed(peers[:turn])]:
        if peers[turn].who.process or available_mib() >= wanted_mib:
            return
        e.who.stop()


def play(args, ours, peers, planned_mib):
    for _ in range(args.rounds):
        ours.take_turn(args.steps)
        for i, e in enumerate(peers):
            if not e.failed:
                make_room(peers, i, 1.3 * max(3 * planned_mib, *(p.peak_mib for p in peers)))
                e.take_turn(args.steps)
    for e in peers:
        e.who.stop()


# ---- tables ----

def show_contenders(ours, peers):
    print(f"  {'contender':45} {'ms':>9} {'ratio':>6} {'min..max':>11} {'last loss':>10} {'differs':>8} {'MiB':>7}")
    print(f"  {'shardc':45} {ours.ms:9.2f} {'':>6} {'':>11} {ours.losses[-1]:10.5f} {'':>8} {ours.peak_mib:7,.0f}")
    for e in peers:
        if e.failed:
            print(f"  {e.who.name:45} failed: {e.failed}")
            continue
        ratios = e.ratios(ours)
        spread = f"{min(ratios):.2f}..{max(ratios):.2f}"
        print(f"  {e.who.name:45} {e.ms:9.2f} {statistics.median(ratios):6.2f} {spread:>11} {e.losses[-1]:10.5f} "
              f"{e.difference(ours):8.1e} {e.peak_mib:7,.0f}", flush=True)


def show_split(parts):
    print(f"  of a step of {parts.step_ms:.2f} ms:")
    print(f"  {'class':20} {'ms':>9} {'share':>6} {'floor':>9} {'lost':>6} {'ops':>5}")
    for name, p in parts.classes.items():
        print(f"  {name:20} {p.ms:9.2f} {p.ms / parts.step_ms:6.1%} {p.floor:9.2f} "
              f"{(p.ms - p.floor) / parts.step_ms:6.1%} {p.ops:5}")
    whole = sum(p.floor for p in parts.classes.values())
    print(f"  {'all':20} {parts.step_ms:9.2f} {1:6.1%} {whole:9.2f} {1 - whole / parts.step_ms:6.1%} "
          f"{sum(p.ops for p in parts.classes.values()):5}")
    print("  farthest from their floors, each op in the step in which it was shortest:")
    for name, kernel, p in parts.kernels[:FARTHEST]:
        print(f"  {p.ms:9.2f} ms, floor {p.floor:8.2f}, {p.ops:4} ops: {name}: {kernel[:120]}", flush=True)


def show_memory(m):
    beyond = f"{m['ours_beyond'] / m['peer_beyond']:.2f}" if m["peer_beyond"] > 0 else "no ratio"
    print(f"  memory, MiB: ours {m['ours']:,.0f} (planned {m['planned']:,.0f}), {m['peer_name']} {m['peer']:,.0f}: "
          f"{m['ours'] / m['peer']:.2f} of it; beyond {m['states']:,.0f} of parameters, gradients and states "
          f"{m['ours_beyond']:,.0f} and {m['peer_beyond']:,.0f}: {beyond}", flush=True)


# ---- rows of the JSON file ----

def time_row(args, row, ours, best):
    ratios = best.ratios(ours)
    metric = "step_ms" if args.clock == "wall" else "step_processor_ms"
    autocast = ", bf16 autocast" if row.half else ""
    return dict(case=row.name, metric=metric, threads=args.threads, ours=ours.ms, peer=best.ms,
                peer_name=f"PyTorch {torch.__version__} {best.who.variant}{autocast}", ratio=statistics.median(ratios),
                ratio_min=min(ratios), ratio_max=max(ratios), rounds=len(ratios), load=os.getloadavg()[0])


def tried_rows(row, ours, peers):
    return [dict(case=row.name, metric="tried", peer_name=e.who.name, failed=e.failed) if e.failed else
            dict(case=row.name, metric="tried", peer_name=e.who.name, peer=e.ms, rounds=e.rounds, peak_mib=e.peak_mib,
                 loss=e.losses[-1], loss_differs=e.difference(ours)) for e in peers]


def split_row(row, ours, parts):
    logged = ours.who.logged()[parts.number - 1]["step_ms"]
    return dict(case=row.name, metric="split_ms", step=parts.step_ms, logged=logged,
                classes={name: dict(ms=p.ms, floor=p.floor, ops=p.ops) for name, p in parts.classes.items()})


def memory_row(row, ours, peers, planned_mib):
    least = min(peers, key=lambda e: e.peak_mib)
    states = STATE_BYTES * sum(p.numel() for p in row.case.build().parameters()) / MIB
    ratio = least.peak_mib / ours.peak_mib
    return dict(case=row.name, metric="resident_mib", ours=ours.peak_mib, peer=least.peak_mib, peer_name=least.who.name,
                ratio=ratio, ratio_min=ratio, ratio_max=ratio, planned=planned_mib, states=states,
                ours_beyond=ours.peak_mib - states, peer_beyond=least.peak_mib - states)


def differing(row, ours, peers):
    """The peers whose losses differ: in the first step, before any update, by more than the bound, or in later ones by
    more than LATER."""
    bound = LOSS_BOUND[row.half]
    return [e for e in peers if not (abs(e.losses[0] / ours.losses[0] - 1) <= bound and e.difference(ours) <= LATER)]


def run_row(args, row, rates):
    """All rows of the JSON file, and the names of the peers whose losses differ."""
    begin = time.monotonic()
    ours, peers = Entry(Ours(args, row)), [Entry(Peer(args, row, v)) for v in variants(row.case, args.modes)]
    plan = ours.who.plan(args.machine)
    planned_mib = plan["memory"]["total"] / MIB
    play(args, ours, peers, planned_mib)
    ours.peak_mib = ours.who.traced(TRACED)
    batch, load = "x".join(map(str, [row.case.batch, *row.case.sample])), os.getloadavg()[0]
    print(f"{row.name}: {'bf16' if row.half else 'f32'}, batch {batch}, {args.threads} threads, {args.rounds} rounds "
          f"of {args.steps} steps, {args.clock} time, load {load:.1f}, took {time.monotonic() - begin:.0f} s")
    show_contenders(ours, peers)
    parts = split.split(ours.who.work, rates)
    show_split(parts)
    rows = [*tried_rows(row, ours, peers), split_row(row, ours, parts)]
    finished = [e for e in peers if not e.failed]
    if finished:
        best = min(finished, key=lambda e: e.ms)
        rows += [time_row(args, row, ours, best), memory_row(row, ours, finished, planned_mib)]
        show_memory(rows[-1])
    return rows, [e.who.name for e in differing(row, ours, finished)]


def choose(args, parser):
    known = cases.rows(args.quick)
    names = args.only.split(",") if args.only else list(known)
    unknown = [n for n in names if n not in known]
    if unknown:
        parser.error(f"--only: no row is called {', '.join(unknown)}; rows: {', '.join(known)}")
    return [known[n] for n in names]


def options():
    p = argparse.ArgumentParser()
    p.add_argument("shardc")
    p.add_argument("rates", help="what bench/micro/build makes of rates.c")
    p.add_argument("work", type=pathlib.Path)
    p.add_argument("--only", help="rows, by comma; all unless given")
    p.add_argument("--rounds", type=int, help="5 unless given, 2 with --quick")
    p.add_argument("--steps", type=int, default=3, help="of a turn")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--modes", default=",".join(MODES), help="of PyTorch, by comma")
    p.add_argument("--patience", type=float, default=900,
                   help="seconds that a peer has for an answer, compiling included")
    p.add_argument("--clock", choices=("wall", "processor"), default="wall")
    p.add_argument("--any-half", action="store_true", help="bf16 rows even if the processor has no such units")
    p.add_argument("--quick", action="store_true", help="tiny models, to try the benchmark")
    p.add_argument("--json", required=True)
    args = p.parse_args()
    args.modes = args.modes.split(",")
    unknown = [m for m in args.modes if m not in MODES]
    if unknown:
        p.error(f"--modes: no mode is called {', '.join(unknown)}; modes: {', '.join(MODES)}")
    if min(args.steps, args.threads, args.rounds or 1) < 1:
        p.error("--rounds, --steps and --threads are at least 1")
    args.rounds = args.rounds or (2 if args.quick else 5)
    return args, choose(args, p)


def main():
    args, chosen = options()
    args.work.mkdir(parents=True, exist_ok=True)
    half = args.any_half or has_half_units()
    dtypes = ["f32", "bf16"] if half else ["f32"]
    rates = split.measure_rates(args.rates, 0.02 if args.quick else 0.5, dtypes, args.threads)
    print(f"rates, {args.threads} threads: {json.dumps(rates)}", flush=True)
    args.machine = args.work / "machine.json"
    split.machine_file(rates, args.machine)
    rows, wrong = [dict(case="rates", metric="rates", **rates)], []
    for row in chosen:
        if row.half and not half:
            why = "not measured: this processor has no bf16 units (avx512_bf16, amx_bf16)"
            print(f"{row.name}: {why}")
            rows.append(dict(case=row.name, metric="tried", failed=why))
        else:
            found, differ = run_row(args, row, rates)
            rows += found
            wrong += [f"{row.name}: losses of {name} differ from ours by more than {LOSS_BOUND[row.half]} in the first "
                      f"step, or {LATER} in a later one"
                      for name in differ]
        with open(args.json, "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
    show_rows(args, rows)
    if wrong:
        raise SystemExit("\n".join(wrong))


def show_rows(args, rows):
    unit = "wall ms" if args.clock == "wall" else "processor ms"
    units = f"{unit}, {args.threads} threads; memory: MiB"
    print(f"{'case':17} | {'ours':>9} | {'peer':>9} | {'ratio':>5} | min..max   ({units})")
    for r in rows:
        if "ratio" in r:
            what = "" if r["metric"].startswith("step") else "memory, "
            print(f"{r['case']:17} | {r['ours']:9.1f} | {r['peer']:9.1f} | {r['ratio']:5.2f} | "
                  f"{r['ratio_min']:.2f}..{r['ratio_max']:.2f}   {what}{r['peer_name']}")


if __name__ == "__main__":
    main()
