"""Saves that fail, checkpoints that are damaged, and signals, of all kinds, blocking and beside the steps.

  disks      no room, on all ranks or on one (a file size limit set while it runs, a small file system where mounts are
             allowed), no right to write, no folder any more: exit 3, said once, the earlier checkpoint stays
  damage     each file cut short or with a flipped bit: exit 1, the file is named, nothing is overwritten; --resume auto
             passes over what is not complete
  hangs      a disk that never answers, of one rank or of all: --timeout ends the run; one that is slow is waited for
  no-thread  no thread can be started for a save, for checksums, for signals: said, as other failures
  signals    SIGUSR1 saves and goes on, SIGTERM saves and ends, SIGKILL in the last save loses no more than it

usage: saves.py SHARDC WORK [--seed 1] [PART..]      examples/digits gives the model
"""
import argparse
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import crash

KINDS = ("full", "sharded", "local")
LONG = 1_000_000           # steps of a run that a signal or a failure ends


class Test:
    def __init__(self, args):
        self.work, self.rng = args.work, random.Random(args.seed)
        self.passed = self.failed = 0

    def check(self, what, ok, said=""):
        self.passed += bool(ok)
        self.failed += not ok
        if not ok:
            print(f"FAILED {what}\n{said[-1500:]}", flush=True)
        return ok

    def folder(self, name):
        path = self.work / name
        shutil.rmtree(path, ignore_errors=True)
        return path


class Run:
    """A run that says what it does; its lines are read while it goes on."""

    # env: of a rank that a launcher starts; fault: of tests/ranks/faults.c
    def __init__(self, test, *more, ranks=1, steps=LONG, env=None, fault=None):
        self.marker = f"saves-{os.getpid()}-{time.monotonic_ns()}-"
        self.out = test.work / f"out-{self.marker}"
        command = [test.work / "train", "--data", f"x={crash.EXAMPLE}/x_train.npy", "--data",
                   f"labels={crash.EXAMPLE}/labels_train.npy", "--shuffle", "5", "--threads", "1", "--steps",
                   str(steps)]
        command += [] if env else ["--ranks", str(ranks)]
        fault = dict(fault, LD_PRELOAD=str(faults(test))) if fault else {}
        reader, writer = os.pipe()   # no file: a limit of sizes is for what it saves
        self.copy = subprocess.Popen(["cat"], stdin=reader, stdout=open(self.out, "w"))
        self.process = subprocess.Popen([*command, *map(str, more)], stdout=writer, stderr=writer,
                                        env=dict(os.environ, SHARDC_CRASH_TEST=self.marker, **(env or {}), **fault))
        os.close(reader)
        os.close(writer)

    def said(self):
        return self.out.read_text()

    def wait_for(self, what, seconds=60):
        return crash.wait_until(what, seconds, self.process)

    def trains(self):
        return self.wait_for(lambda: re.search(r"^step \d", self.said(), re.M))

    def ranks(self):
        found = crash.processes(self.marker)
        pids = {rank: pid for pid, rank in found.items() if rank is not None}
        return [pids[rank] for rank in sorted(pids)] or [self.process.pid]

    def end(self):
        """Exit status; None: it did not end, and was killed."""
        try:
            code = self.process.wait(crash.GRACE)
        except subprocess.TimeoutExpired:
            code = None
        gone = crash.all_gone(self.marker) if code is not None else False
        crash.kill(crash.processes(self.marker))
        self.process.wait()
        self.copy.wait()
        return code if gone else None


def finish(test, *more, **how):
    run = Run(test, *more, **how)
    return run.end(), run.said()


def faults(test):
    library = test.work / "faults.so"
    if not library.exists():
        source = pathlib.Path(__file__).resolve().parent / "faults.c"
        subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"],
                       check=True)
    return library


def visible(save):
    return sorted(name for name in os.listdir(save) if name.startswith(("step-", ".step-")))


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def whole(save, kind, ranks):
    """The newest checkpoint's step, all being whole; else why not."""
    steps = crash.checkpoints(save)
    try:
        for step in steps:
            crash.check_whole(save / f"step-{step:08}", kind, ranks)
    except (ValueError, OSError, KeyError) as error:
        return str(error)
    return max(steps, default=0)


# ---- disks ----

def limit(pids, size):
    for pid in pids:
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


def check_failed(test, what, run, save, kind, ranks, text):
    code, said = run.end(), run.said()
    ok = code == 3 and said.count(text) == 1 and said.count("error:") == 1
    test.check(f"{what}: exit {code}, wanted 3 and one \"{text}\"", ok, said)
    newest = whole(save, kind, ranks)
    latest = os.readlink(save / "latest")
    ok = isinstance(newest, int) and newest > 0 and latest == f"step-{newest:08}"
    test.check(f"{what}: newest whole {newest}, latest {latest}", ok, said)
    if "Read-only" not in text:   # there nothing can be removed
        test.check(f"{what}: left {visible(save)}", not any(name[0] == "." for name in visible(save)), said)


def fails(test, what, kind, ranks, beside, break_it, text, save=None, fault=None):
    """A run with a checkpoint, whose next save fails."""
    save = save or test.folder("failing")
    every = ["--save-every", "1"] if beside else []
    flags = ["--save", save, "--save-kind", kind, "--keep", 2]
    code, said = finish(test, *flags, ranks=ranks, steps=2)
    test.check(f"{what}: the first run", code == 0, said)
    run = Run(test, *flags, *every, "--resume", "auto", ranks=ranks, fault=fault)
    test.check(f"{what}: it trains", run.trains(), run.said())
    break_it(run, save)
    if not beside:
        os.kill(run.process.pid, signal.SIGTERM)
    check_failed(test, what, run, save, kind, ranks, text)


def no_room(test):
    for kind in KINDS:
        for ranks in (1, 2):
            for beside in (False, True):
                size = test.rng.choice([0, 1000, 100_000])
                fails(test, f"{kind} of {ranks}, beside {beside}, files of at most {size}", kind, ranks, beside,
                      lambda run, save: limit(run.ranks(), size), "could not be written: File too large")


def no_room_for_one(test):
    for kind in KINDS:
        for rank in range(3):
            def break_it(run, save):
                limit([run.ranks()[rank]], 1000)
            fails(test, f"{kind} of 3, no room for rank {rank}", kind, 3, kind != "full" or rank == 1, break_it,
                  "could not be written: File too large")


def mounted(test, name, size):
    """A small file system; None where it cannot be."""
    path = test.folder(name)
    path.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], capture_output=True)
    return path if mount.returncode == 0 else None


def small_disk(test, kind, beside, path):
    what, save = f"{kind} of 2, beside {beside}", path / "run"
    fails(test, f"{what}, a full disk", kind, 2, beside, lambda run, save: fill(run, path),
          "could not be written: No space left on device", save)
    shutil.rmtree(save)
    (path / "ballast").unlink()
    fails(test, f"{what}, a read-only disk", kind, 2, beside, lambda run, save: read_only(path),
          "could not be written: Read-only file system", save)
    subprocess.run(["mount", "-o", "remount,rw", path], check=True)
    code, said = finish(test, "--save", save, "--save-kind", kind, "--resume", "auto", ranks=2, steps=20)
    there = visible(save)
    ok = code == 0 and there[-1] == "step-00000020" and not any(name[0] == "." for name in there)
    test.check(f"{what}, the disk is writable again: exit {code}, {there}", ok, said)


def file_systems(test):
    for kind in KINDS:
        for beside in (False, True):
            path = mounted(test, "disk", "4m")
            if not path:
                print("saves: no mounts here, small and read-only file systems were not tried")
                return
            try:
                small_disk(test, kind, beside, path)
            finally:
                subprocess.run(["umount", "-l", path], check=True)


def fill(run, path):
    """Takes all room, and a thread goes on until the run ends: each checkpoint that it removes would leave enough for
    the next one."""
    ballast = open(path / "ballast", "wb", buffering=0)

    def take():
        try:
            while ballast.write(bytes(4096)):
                pass
        except OSError:
            pass

    def go_on():
        while run.process.poll() is None:
            take()
            time.sleep(0.001)
        ballast.close()
    take()
    threading.Thread(target=go_on, daemon=True).start()


def read_only(path):
    """The system refuses while a file is open for writing, so this tries until it falls between two saves."""
    for _ in range(2000):
        if subprocess.run(["mount", "-o", "remount,ro", path], capture_output=True).returncode == 0:
            return
    raise SystemExit(f"{path} could not be made read-only")


def gone(test):
    """The folder is taken away: saves go on in a new one, or say that there is none."""
    for kind in KINDS:
        save = test.folder("gone")
        run = Run(test, "--save", save, "--save-kind", kind, "--keep", 2, ranks=2)
        run.trains()
        shutil.rmtree(save)
        os.kill(run.process.pid, signal.SIGUSR1)
        there = run.wait_for(lambda: (save / "latest").exists())
        os.kill(run.process.pid, signal.SIGTERM)
        code = run.end()
        newest = whole(save, kind, 2)
        test.check(f"{kind}: a folder that is gone is made anew: exit {code}, newest {newest}",
                   there and code == 0 and isinstance(newest, int) and newest > 0, run.said())
        for beside in (False, True):
            moved = test.folder("moved")
            save = test.folder("gone")
            flags = ["--save", save, "--save-kind", kind, "--keep", 2] + (["--save-every", 1] if beside else [])
            run = Run(test, *flags, ranks=2)
            run.trains()
            run.wait_for(lambda: not beside or (save / "latest").exists())
            save.rename(moved)
            save.write_text("")
            if not beside:
                os.kill(run.process.pid, signal.SIGTERM)
            code, said = run.end(), run.said()
            save.unlink(missing_ok=True)
            test.check(f"{kind}, beside {beside}: a file in the folder's place: exit {code}",
                       code == 3 and said.count("error:") == 1, said)
            newest = whole(moved, kind, 2)
            test.check(f"{kind}, beside {beside}: what was moved away: {newest}", isinstance(newest, int), said)


# ---- hangs ----

def hangs(test):
    """Of saves beside the steps and of waited ones; a rank that hangs alone, and all that do."""
    for kind in KINDS:
        for fault in ({"FAULT_RANK": "1"}, {"FAULT_RANK": "0"}, {}):
            save = test.folder("hangs")
            run = Run(test, "--save", save, "--save-kind", kind, "--save-every", 2, "--timeout", 2, ranks=2,
                      fault=dict(fault, FAULT="hang"))
            check_hang(test, f"{kind}: a disk of {fault or 'all ranks'} hangs", run)
            test.check(f"{kind}: nothing of it looks like a checkpoint", crash.checkpoints(save) == [], run.said())
    save = test.folder("hangs")
    finish(test, "--save", save, ranks=2, steps=2)
    for fault in ({"FAULT_RANK": "1"}, {}):
        run = Run(test, "--resume", save, "--timeout", 2, ranks=2, fault=dict(fault, FAULT="read"))
        check_hang(test, f"a disk of {fault or 'all ranks'} hangs while checksums are verified", run)
    slow(test)


def check_hang(test, what, run):
    begin = time.time()
    code, said = run.end(), run.said()
    ok = code == 3 and said.count("the run is ended") == 1 and "files of a checkpoint" in said
    test.check(f"{what}: exit {code} after {time.time() - begin:.0f} s", ok, said)


def slow(test):
    """Each sync ends within --timeout, but all syncs of a save take longer than that."""
    for kind in ("full", "sharded"):
        save = test.folder("slow")
        code, said = finish(test, "--save", save, "--save-kind", kind, "--save-every", 1, "--timeout", 2, ranks=2,
                            steps=1, fault={"FAULT": "slow"})
        test.check(f"{kind}: a slow disk is waited for: exit {code}", code == 0 and whole(save, kind, 2) == 1, said)


def no_thread(test):
    for kind, ranks, rank in (("full", 1, None), ("sharded", 3, "1"), ("local", 2, "0")):
        now = test.work / "fault-now"
        now.unlink(missing_ok=True)
        fault = {"FAULT": "thread", "FAULT_ONCE": str(now), **({"FAULT_RANK": rank} if rank else {})}
        fails(test, f"{kind} of {ranks}, no thread", kind, ranks, True, lambda run, save: now.touch(),
              "the thread that writes it could not be started: Resource temporarily unavailable", fault=fault)
    save = test.folder("no-thread")
    finish(test, "--save", save, steps=2)
    for after, wanted, text in ((0, 3, "takes signals could not be started"),
                                (1, 1, "verifies its checksums could not be started")):
        code, said = finish(test, "--resume", save, steps=3, fault={"FAULT": "thread", "FAULT_AFTER": str(after)})
        test.check(f"no thread after {after}: exit {code}", code == wanted and said.count(text) == 1, said)


# ---- damage ----

def flip(data, at, bit):
    data = bytearray(data)
    data[at] ^= 1 << bit
    return bytes(data)


def damages(test, name, data):
    """(what, changed bytes, whether headers alone tell)"""
    rng = test.rng
    for n in {rng.randrange(8), rng.randrange(8, len(data))}:
        yield f"cut to {n} of {len(data)} bytes", data[:n], True
    if name.endswith(".json"):
        for _ in range(4):   # by the name "crc32" it is known that there is a checksum
            at, bit = rng.choice([*range(5), *range(10, len(data))]), rng.randrange(8)
            yield f"bit {bit} of byte {at}", flip(data, at, bit), True
        return
    length = int.from_bytes(data[:8], "little")
    at, bit = rng.randrange(8), rng.randrange(8)
    yield f"bit {bit} of byte {at}, in the length", flip(data, at, bit), True
    text = data[8:8 + length].rstrip()
    at, bit = 8 + text.index(b'"data_offsets"') + 3, rng.randrange(5)
    yield f"bit {bit} of byte {at}, in the header", flip(data, at, bit), True
    at, bit = rng.randrange(8 + length, len(data)), rng.randrange(8)
    yield f"bit {bit} of byte {at}, in the elements", flip(data, at, bit), False


def damage(test):
    for kind, ranks in (("full", 1), ("sharded", 2), ("local", 2)):
        good = test.folder("good")
        flags = ["--save-kind", kind]
        code, said = finish(test, "--save", good, "--save-every", 1, *flags, ranks=ranks, steps=2)
        test.check(f"{kind}: two checkpoints", code == 0 and whole(good, kind, ranks) == 2, said)
        names = sorted(crash.files_of(kind, ranks))
        for name in names:
            data = (good / "step-00000002" / name).read_bytes()
            for what, changed, not_complete in damages(test, name, data):
                damaged(test, f"{kind}: {name}, {what}", good, name, changed, not_complete, flags, ranks)


def damaged(test, what, good, name, changed, not_complete, flags, ranks):
    bad = test.folder("bad")
    shutil.copytree(good, bad, symlinks=True)
    (bad / "step-00000002" / name).write_bytes(changed)
    before = contents(bad)
    code, said = finish(test, "--resume", bad / "step-00000002", "--save", bad, *flags, ranks=ranks, steps=2)
    test.check(f"{what}: exit {code}, wanted 1 and the file's name", code == 1 and name in said, said)
    test.check(f"{what}: nothing is overwritten", contents(bad) == before, said)
    if test.rng.random() > 0.3:
        return
    code, said = finish(test, "--resume", "auto", "--save", bad, *flags, ranks=ranks, steps=2)
    if not_complete:
        newest = whole(bad, flags[1], ranks)
        ok = code == 0 and said.count("passed over") == 1 and name in said and newest == 2
        test.check(f"{what}: passed over: exit {code}, newest {newest}", ok, said)
    else:
        test.check(f"{what}: --resume auto: exit {code}", code == 1 and name in said and contents(bad) == before, said)


# ---- signals ----

def user_signal(test):
    """SIGUSR1 to the parent or to any rank: a save, then steps go on; SIGTERM: a save, then the end."""
    for kind in KINDS:
        for ranks in (1, 3):
            for every in (0, 7):
                one_signal(test, kind, ranks, every)
        launched(test, kind)


def asked(run):
    return re.findall(r"asked by a signal: saves after step (\d+)", run.said())


def one_signal(test, kind, ranks, every):
    save = test.folder("signals")
    flags = ["--save", save, "--save-kind", kind, "--keep", 3] + (["--save-every", every] if every else [])
    run = Run(test, *flags, ranks=ranks)
    run.trains()
    what = f"{kind} of {ranks}, --save-every {every}"
    victims = [run.process.pid, *(run.ranks() if ranks > 1 else [])]
    for n, pid in enumerate(victims):
        os.kill(pid, signal.SIGUSR1)
        test.check(f"{what}: SIGUSR1 {n} saves", run.wait_for(lambda: len(asked(run)) == n + 1), run.said())
    end_by_term(test, what, run, [run.process.pid], save, kind, ranks)


def end_by_term(test, what, run, pids, save, kind, ranks):
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    code, newest = run.end(), whole(save, kind, ranks)
    stopped = re.search(r"stopped by \w+ after step (\d+); saved in", run.said())
    ok = code == 0 and stopped and newest == int(stopped.group(1)) and not any(n[0] == "." for n in visible(save))
    test.check(f"{what}: SIGTERM: exit {code}, newest {newest}, {visible(save)}", ok, run.said())


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def launched(test, kind):
    """Ranks that a launcher started, by torchrun's variables."""
    save, port = test.folder("signals"), free_port()
    flags = ["--save", save, "--save-kind", kind, "--keep", 3]
    runs = [Run(test, *flags, env={"RANK": str(r), "WORLD_SIZE": "2", "LOCAL_RANK": str(r), "LOCAL_WORLD_SIZE": "2",
                                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}) for r in range(2)]
    runs[0].trains()
    for n in (0, 1):
        os.kill(runs[n].process.pid, signal.SIGUSR1)
        test.check(f"{kind}: SIGUSR1 to launched rank {n}", runs[0].wait_for(lambda: len(asked(runs[0])) == n + 1),
                   runs[0].said())
    os.kill(runs[1].process.pid, signal.SIGTERM)
    other = runs[1].end()
    test.check(f"{kind}: the other launched rank: exit {other}", other == 0, runs[1].said())
    end_by_term(test, f"{kind}, launched", runs[0], [], save, kind, 2)


def last_save(test):
    """SIGKILL while the last save is written: one from the beginning, one behind a whole checkpoint."""
    for kind in KINDS:
        for ranks in (1, 2):
            save = test.folder("last")
            flags = ["--save", save, "--save-kind", kind, "--resume", "auto"]
            for steps in (3, 5):
                known = crash.checkpoints(save)
                run = Run(test, *flags, ranks=ranks, steps=steps)
                run.wait_for(lambda: save.exists() and any(name.startswith(".step-") for name in os.listdir(save)))
                crash.kill(run.ranks())
                run.end()
                newest = whole(save, kind, ranks)
                test.check(f"{kind} of {ranks}: killed in the last save: {newest}", newest in (*known, 0, steps),
                           run.said())
                code, said = finish(test, *flags, ranks=ranks, steps=steps)
                test.check(f"{kind} of {ranks}: again: exit {code}, {visible(save)}", code == 0 and
                           whole(save, kind, ranks) == steps and not any(n[0] == "." for n in visible(save)), said)


PARTS = {"no-room": no_room, "no-room-for-one": no_room_for_one, "file-systems": file_systems, "gone": gone,
         "hangs": hangs, "no-thread": no_thread, "damage": damage, "signals": user_signal, "last-save": last_save}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    args = parser.parse_args()
    args.work = args.work.resolve()
    crash.compile_example(args)
    test, begin = Test(args), time.time()
    for part in args.parts:
        PARTS[part](test)
        print(f"{part}: {test.passed} passed, {test.failed} failed so far, {time.time() - begin:.0f} s", flush=True)
    print(f"saves: {test.passed} of {test.passed + test.failed} passed")
    sys.exit(1 if test.failed else 0)


if __name__ == "__main__":
    main()
