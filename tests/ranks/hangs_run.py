"""A rank that is stopped (SIGSTOP) or killed (SIGKILL) at random instants: the report names the rank, the
collective and its unit within the timeout, every exit is non-zero, no process and no shared memory is left.

usage: hangs_run.py TRAIN DATA-ARGUMENT... [--comm shm|mpi] [--count 50] [--ranks 3] [--seed 1]
"""
import argparse
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

TIMEOUT = 2          # of the program, in seconds
GRACE = 6            # beyond it, on a loaded machine, until every process is gone
AT = re.compile(r"#\d+ \w+( @\S+)?|outside of steps|computing")


def processes(marker):
    """Pids whose environment holds the marker, zombies left out: {pid: rank or None}."""
    found = {}
    for path in pathlib.Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            environment = (path / "environ").read_bytes()
            state = (path / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if marker.encode() in environment and state != "Z":
            rank = re.search(rb"(?:SHARDRT_RANK|OMPI_COMM_WORLD_RANK)=(\d+)", environment)
            found[int(path.name)] = int(rank.group(1)) if rank else None
    return found


def shared_memory():
    return set(os.listdir("/dev/shm"))


def start(args, marker, log):
    command = [args.train, *args.data, "--steps", "1000000", "--lr", "1e-4", "--threads", "1", "--timeout", str(TIMEOUT)]
    environment = dict(os.environ, SHARDC_HANG_TEST=marker)
    if args.comm == "mpi":
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-x", "SHARDC_HANG_TEST", "-n", str(args.ranks),
                   *command, "--comm", "mpi"]
    else:
        command += ["--ranks", str(args.ranks)]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def ranks_of(marker):
    return {rank: pid for pid, rank in processes(marker).items() if rank is not None}


def wait_for_training(args, marker, path):
    for _ in range(600):
        if len(ranks_of(marker)) == args.ranks and "step" in path.read_text():
            return
        time.sleep(0.05)
    raise SystemExit(f"the run did not start:\n{path.read_text()}")


def one(args, number, kind, rng):
    """Returns what is wrong, or None."""
    marker, before = f"hang-{os.getpid()}-{number}", shared_memory()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "log"
        with open(path, "w") as log:
            run = start(args, marker, log)
        try:
            wait_for_training(args, marker, path)
            time.sleep(rng.uniform(0.2, 1.2))
            victim = rng.randrange(args.ranks)
            os.kill(ranks_of(marker)[victim], kind)
            begin = time.time()
            try:
                code = run.wait(TIMEOUT + GRACE)
            except subprocess.TimeoutExpired:
                return f"rank {victim}: no end {TIMEOUT + GRACE} s after the signal:\n{path.read_text()[-1500:]}"
            took = time.time() - begin
            time.sleep(0.3)
            text, left = path.read_text(), processes(marker)
            report = [line for line in text.splitlines() if f"rank {victim}" in line and AT.search(line)]
            if not report:
                return f"rank {victim} is not named with what it was at:\n{text[-1500:]}"
            if code == 0:
                return f"rank {victim}: exit status 0"
            if left:
                return f"rank {victim}: processes are left: {left}"
            if shared_memory() - before:
                return f"rank {victim}: shared memory is left: {shared_memory() - before}"
            print(f"{kind.name} {number}: {took:.1f} s  {report[-1].strip()}", flush=True)
        finally:
            for pid in processes(marker):
                os.kill(pid, signal.SIGKILL)
            run.kill()
            run.wait()
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("train")
    parser.add_argument("data", nargs="+")
    parser.add_argument("--comm", choices=["shm", "mpi"], default="shm")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args, unknown = parser.parse_known_args()
    args.data += unknown
    rng, failed = random.Random(args.seed), 0
    for kind in (signal.SIGSTOP, signal.SIGKILL):
        for number in range(args.count):
            wrong = one(args, f"{kind.name}{number}", kind, rng)
            if wrong:
                failed += 1
                print(f"{kind.name} {number}: FAILED {wrong}", flush=True)
    print(f"hangs {args.comm}: {2 * args.count} runs, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
