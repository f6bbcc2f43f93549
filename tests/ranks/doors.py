"""Strangers, floods, false hubs, insiders and changed messages against the control plane of 2 to 4 real ranks.

usage: doors.py DOOR SHARDC FOLDER [--seconds 600] [--seed N] [--scene NAME]..

Every scene starts ranks (tests/ranks/door.c, or a training program), does something to them, and checks that who was
to be left alone ended well, that joining took less than a second, that no rank died of a signal, and that no process
was killed but by its own run.  Scenes come in random order until the time is over, each at least once.  All traffic
is on the loopback and on local sockets.
"""
import argparse
import os
import pathlib
import random
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

from doors_protocol import (ACCEPT, BEAT, COMPARE, COMPARED, DOUBT, END, GATHER, GATHERED, HELLO, LEAVE, NAMES, RECORD,
                            REFUSE, ROW, SECRET, STOP, TABLE, TEXT, WELCOME, connect, join_as, peer)
from doors_report import check, count, counts, failures
from doors_strangers import Crowd, FalseHub, Relay, changed

LIMIT_MS = 1000      # for joining
ENDED_S = 25         # until a run that was hurt has ended, on a loaded machine
slowest = [0]


# ---- ranks ----

def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def local(at):
    return f"\0shardc-{os.geteuid()}-{at}"


class Ranks:
    """Door ranks of one run; away: those that are played otherwise; at: other ports for some ranks."""

    def __init__(self, size, at, how="network", secret=SECRET, rounds=60, away=(), ports=None):
        count("runs")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SHARDC_SECRET")}
        if secret:
            environment["SHARDC_SECRET"] = secret
        self.process = {}
        for r in range(size):
            if r in away:
                continue
            command = [str(door), str(r), str(size), f"127.0.0.1:{(ports or {}).get(r, at)}", str(rounds), how]
            self.process[r] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                               env=environment)

    def end(self, most=ENDED_S):
        """Exit codes and what was said; -9 of one that had to be killed here is said as "hangs"."""
        until, codes, text = time.monotonic() + most, {}, ""
        for r, p in self.process.items():
            try:
                said, _ = p.communicate(timeout=max(0.1, until - time.monotonic()))
                codes[r] = p.returncode
            except subprocess.TimeoutExpired:
                p.kill()
                said, codes[r] = p.communicate()[0], "hangs"
            text += said
        return codes, text

    def ends_well(self, what, limit=LIMIT_MS):
        codes, text = self.end()
        joined = [int(x) for x in re.findall(r"joined in (\d+) ms", text)]
        count("joins", len(joined))
        slowest[0] = max([slowest[0], *joined]) if limit == LIMIT_MS else slowest[0]
        check(all(c == 0 for c in codes.values()) and "error" not in text, f"{what}: exit codes {codes}", text)
        check(len(joined) == len(codes) and max(joined) < limit, f"{what}: joined in {joined} ms", text)

    def ends_somehow(self, what, words=None):
        codes, text = self.end()
        check(all(c in (0, 3) for c in codes.values()), f"{what}: exit codes {codes}", text)
        check(words is None or re.search(words, text), f"{what}: {words} is not said", text)
        check("internal error" not in text, what, text)


# ---- scenes ----

def record():
    """What a rank says in a good run."""
    at = port()
    relay = Relay(at)
    Ranks(2, at, rounds=10, ports={1: relay.port}).ends_well("a run through a relay")
    relay.close()
    check(len(relay.recorded) > 200, "nothing was recorded")
    return relay.recorded


def scene_crowd(rng):
    at = port()
    crowd = Crowd(at, rng.randrange(1 << 30), recorded=recorded)
    time.sleep(0.1)
    Ranks(rng.randrange(2, 5), at).ends_well("ranks in a crowd")
    crowd.stop()


def scene_crowd_waits(rng):
    """The last rank comes when the crowd has been there for a second."""
    at, size = port(), rng.randrange(2, 5)
    first = Ranks(size, at, away=(size - 1,))
    crowd = Crowd(at, rng.randrange(1 << 30), recorded=recorded)
    time.sleep(1)
    last = Ranks(size, at, away=range(size - 1))
    last.ends_well("the last rank, in a crowd")
    crowd.stop()
    first.ends_well("ranks that waited in a crowd", 1 << 30)


def scene_local_crowd(rng):
    at = port()
    crowd = Crowd(local(at), rng.randrange(1 << 30), kinds=("flood", "idle", "slow", "noise", "wrong"))
    Ranks(rng.randrange(2, 5), at, how="local", secret=None).ends_well("ranks of one host in a crowd")
    crowd.stop()


def scene_few_files(rng):
    """Rank 0 has no descriptors left: it neither spins nor keeps ranks out."""
    at, kept = port(), []
    first = Ranks(2, at, away=(1,), rounds=30)
    pid = first.process[0].pid
    for _ in range(100):
        time.sleep(0.05)
        if any("socket" in os.readlink(f"/proc/{pid}/fd/{f}") for f in os.listdir(f"/proc/{pid}/fd")):
            break
    time.sleep(0.1)
    most = max(int(f) for f in os.listdir(f"/proc/{pid}/fd")) + rng.randrange(1, 12)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
    for _ in range(40):
        try:
            kept.append(connect(at))
        except OSError:
            break
    before = cpu(pid)
    time.sleep(0.6)
    used = cpu(pid) - before
    check(used < 0.3, f"rank 0 spins: it used the processor for {used} s of 0.6 s")
    Ranks(2, at, away=(0,), rounds=30).ends_well("a rank that comes when no descriptor is left")
    first.ends_well("a rank 0 of few descriptors", 1 << 30)
    for s in kept:
        s.close()


def cpu(pid):
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0


def scene_changed_wire(rng):
    """A relay that changes one byte: the run ends, or the rank joins another way, and nobody crashes."""
    at, where, way = port(), rng.randrange(3000), rng.randrange(2)

    def change(direction, n, piece):
        if direction != way or not n <= where < n + len(piece):
            return piece
        i = where - n
        return piece[:i] + bytes([piece[i] ^ 1 << rng.randrange(8)]) + piece[i + 1:]
    relay = Relay(at, change)
    Ranks(3, at, ports={1: relay.port}).ends_somehow(f"byte {where} of direction {way} is changed")
    relay.close()


def soon(act):
    """What act returns, once it does not fail; None after five seconds."""
    for _ in range(100):
        try:
            return act()
        except OSError:
            time.sleep(0.05)
    return None


def joined(*rank):
    return soon(lambda: join_as(*rank))


def extremes(rng, data):
    other = rng.choice([0, 1, 4, 8, 24, 63, 64, 65, 80, 300])
    return changed(rng, data) if rng.random() < 0.7 else rng.randbytes(other)


def scene_insider(rng):
    """A rank that knows the secret and sends what no rank sends."""
    at, size, sent = port(), rng.randrange(2, 5), []
    ranks = Ranks(size, at, away=(1,))
    right = {BEAT: bytes(RECORD), GATHER: bytes(512), COMPARE: bytes(24), TEXT: b"text", NAMES: b"a\0" + bytes(6),
             LEAVE: bytes(4), HELLO: bytes(152)}
    link, answer = joined(at, SECRET, 1, size), None
    try:
        answer = link.receive()[0] if link else None
        for _ in range(rng.randrange(1, 20) if answer == ACCEPT else 0):
            kind = rng.choice([*right, rng.randrange(40), 1 << 31])
            data = extremes(rng, right.get(kind, b""))
            sent.append((kind, data[:16]))
            link.send(kind, data, rng.choice([None] * 9 + [1 << 30]))
            time.sleep(rng.choice([0, 0, 0.02]))
    except OSError:
        pass
    if link:
        link.sock.close()
    check(answer == ACCEPT, f"an insider did not join: answered by message {answer}")
    ranks.ends_somehow(f"an insider sent {sent}", "error")


def scene_false_hub(rng):
    """It knows the secret, and says what no hub says."""
    size, sent = rng.randrange(2, 5), []
    right = {WELCOME: None, TABLE: bytes(ROW * size), GATHERED: bytes(512 * size), COMPARED: b"\1", TEXT: b"",
             STOP: b"\2\0\0\0", END: struct.pack("<ii", 3, 1), ACCEPT: b"", REFUSE: b"why \x1b[31m not", DOUBT: b"no"}

    def act(hub, link):
        right[WELCOME] = hub.peers()
        if rng.random() < 0.9:
            link.send(ACCEPT)
        if rng.random() < 0.7:
            link.send(WELCOME, right[WELCOME])
        for _ in range(rng.randrange(1, 30)):
            kind = rng.choice([*right, TABLE, TABLE, WELCOME, rng.randrange(40)])
            data = right.get(kind, b"")
            data = data if rng.random() < 0.2 else extremes(rng, data)
            sent.append((kind, len(data)))
            link.send(kind, data, rng.choice([None] * 19 + [1 << 30]))
            time.sleep(rng.choice([0, 0, 0.02]))
    hub = FalseHub(magic, size, SECRET, act)
    ranks = Ranks(size, hub.port, away=range(0, size, 2) if size > 2 else (0,))
    codes, text = ranks.end()
    hub.close()
    check(all(c in (0, 3) for c in codes.values()), f"a false hub sent {sent}: exit codes {codes}", text)
    check("\x1b" not in text and "internal error" not in text, f"a false hub sent {sent}", text)


def scene_hub_without_secret(rng):
    """What listens at the address does not know the secret: not a word of it is believed, and the real rank 0 is
    found."""
    at = port()
    hub = FalseHub(magic, 2, "another secret, as long as it",
                   lambda h, link: (link.send(ACCEPT), link.send(WELCOME, h.peers())))
    relayed = Relay(at)
    relayed.to = hub.port
    ranks = Ranks(2, at, ports={1: relayed.port}, rounds=20)
    time.sleep(0.5)
    relayed.to = at
    codes, text = ranks.end()
    check(all(c == 0 for c in codes.values()), f"a hub without the secret: exit codes {codes}", text)
    relayed.close()
    hub.close()


def victim():
    return subprocess.Popen(["sleep", "60"])


def scene_victims(rng):
    """A rank, and a hub, that say to be another process and then hang: that process lives."""
    for as_hub in (False, True):
        other = victim()
        if as_hub:
            done = threading.Event()
            hub = FalseHub(magic, 2, None,
                           lambda h, link: (link.send(ACCEPT), link.send(WELCOME, h.peers()), done.wait(15)),
                           rank0=peer(0, other.pid, socket.gethostname().encode()))
            ranks = Ranks(2, hub.port, secret=None, away=(0,))
            ranks.ends_somehow("a hub that hangs", "rank 0 gives no sign of life")
            done.set()
            hub.close()
        else:
            at = port()
            ranks = Ranks(2, at, secret=None, away=(1,))
            link = joined(at, None, 1, 2, peer(1, other.pid, socket.gethostname().encode()))
            ranks.ends_somehow("a rank that hangs", "rank 1 gives no sign of life")
            if link:
                link.sock.close()
        check(other.poll() is None, f"a process was killed because a {'hub' if as_hub else 'rank'} had its number")
        other.kill()
        other.wait()


def training_program():
    program = folder / "train"
    text = root / "examples" / "text"
    if not program.exists():
        subprocess.run([shardc, text / "text.onnx", "-o", program, "--loss=cross_entropy", "--bind", "batch=2", "-O0"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return [str(program), "--tokens", str(text / "tokens_train.npy"), "--threads", "1"]


def scene_training(rng):
    """A training program, its ranks started by a launcher's variables, in a local crowd."""
    at, size, command = port(), 2, training_program()
    crowd = Crowd(local(at), rng.randrange(1 << 30), kinds=("flood", "idle", "slow", "noise", "wrong"))
    ranks = [subprocess.Popen([*command, "--steps", "5"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=dict(os.environ, RANK=str(r), WORLD_SIZE=str(size), LOCAL_RANK=str(r),
                                       LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(at)))
             for r in range(size)]
    text = "".join(p.communicate(timeout=60)[0] for p in ranks)
    check(all(p.returncode == 0 for p in ranks) and "trained to step 5" in text, "training in a crowd", text)
    crowd.stop()


def hub_port(program):
    """Where rank 0 of an mpirun listens for ranks: of its ports the one that sends a challenge."""
    for pid in (p for p in os.listdir("/proc") if p.isdigit()):
        try:
            if os.readlink(f"/proc/{pid}/exe") != program:
                continue
            sockets = {os.readlink(f"/proc/{pid}/fd/{f}") for f in os.listdir(f"/proc/{pid}/fd")}
            tables = [pathlib.Path(f"/proc/{pid}/net/{t}").read_text() for t in ("tcp", "tcp6")]
            lines = [x.split() for table in tables for x in table.splitlines()]
        except OSError:
            continue
        for line in lines:
            if line[3] != "0A" or f"socket:[{line[9]}]" not in sockets:
                continue
            at = int(line[1].rsplit(":", 1)[1], 16)
            try:
                with connect(at) as s:
                    s.settimeout(0.5)
                    if s.recv(100)[8:16] == magic:
                        return at
            except OSError:
                pass
    return 0


def scene_mpi(rng):
    """A training program of mpirun: strangers at its port, which is open on all addresses."""
    if not shutil.which("mpirun") or not (pathlib.Path(shardc).parent / "lib/native/libshardrt_mpi.so").exists():
        return
    command = training_program()
    run = subprocess.Popen(["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "3", *command, "--steps", "150"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    at = 0
    for _ in range(100):
        at = at or hub_port(command[0])
        if at or run.poll() is not None:
            break
        time.sleep(0.05)
    crowd = Crowd(at, rng.randrange(1 << 30), recorded=recorded) if at else None
    text = run.communicate(timeout=120)[0]
    check(run.returncode == 0 and "trained to step 150" in text, "mpirun in a crowd", text)
    if crowd:
        crowd.stop()
    check(at, "the hub's port of mpirun was not found", text)


def magic_of(at):
    """How the challenges of the hub at this port begin."""
    with connect(at) as s:
        return s.recv(100)[8:16]


def main():
    global door, shardc, folder, root, recorded, magic
    scenes = {k[6:]: v for k, v in globals().items() if k.startswith("scene_")}
    p = argparse.ArgumentParser()
    p.add_argument("door", type=pathlib.Path)
    p.add_argument("shardc", type=pathlib.Path)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--scene", action="append", choices=sorted(scenes), metavar="NAME", help="only these: " +
                   ", ".join(sorted(scenes)))
    args = p.parse_args()
    door, shardc, root = args.door.resolve(), args.shardc.resolve(), pathlib.Path(__file__).resolve().parents[2]
    folder = args.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begin, rng = time.monotonic(), random.Random(args.seed)
    recorded = record()
    at = port()
    ranks = Ranks(2, at, away=(1,))
    magic = soon(lambda: magic_of(at))
    if not magic:
        sys.exit(f"doors: rank 0 sends no challenge: {ranks.end(1)}")
    Ranks(2, at, away=(0,)).ends_well("the first run")
    ranks.ends_well("the first run", 1 << 30)
    if args.seconds < 60 and not args.scene:
        del scenes["mpi"]  # mpirun takes long to start and to stop
    scenes = {name: scenes[name] for name in args.scene or scenes}
    left = list(scenes)
    while left or time.monotonic() - begin < args.seconds:
        name = left.pop() if left else rng.choice([s for s in scenes if s not in ("mpi", "victims")] or list(scenes))
        scenes[name](rng)
        count("scenes")
        if len(failures) > 10:
            break
    print(f"doors: {time.monotonic() - begin:.0f} s, " + ", ".join(f"{n} {k}" for k, n in counts.items()) +
          f", slowest join {slowest[0]} ms, {len(failures)} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
