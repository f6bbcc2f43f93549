"""Strangers, floods, false hubs, insiders and changed messages against the control plane of 2 to 4 real ranks.

usage: doors.py DOOR SHARDC FOLDER [--seconds 600] [--seed N]

Every scene starts ranks (tests/ranks/door.c, or a training program), does something to them, and checks that who was
to be left alone ended well, that joining took less than a second, that no rank died of a signal, and that no process
was killed but by its own run.  Scenes come in random order until the time is over, each at least once.  All traffic is on the
loopback and on local sockets.
"""
import argparse
import hashlib
import hmac
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

HELLO, BEAT, GATHER, COMPARE, TEXT, NAMES, LEAVE, ACCEPT, REFUSE, WELCOME, TABLE, GATHERED, COMPARED, STOP, CHALLENGE, \
    DOUBT, END = range(17)
SECRET = "what the ranks of doors.py share"
PEER, ROW, RECORD = struct.Struct("<QQii64s"), 80, 64
LIMIT_MS = 1000      # for joining
ENDED_S = 25         # until a run that was hurt has ended, on a loaded machine
NOBODY = 65534

counts = {"scenes": 0, "runs": 0, "joins": 0, "connections": 0, "messages": 0}
slowest, failures = [0], []
lock = threading.Lock()


def count(what, n=1):
    with lock:
        counts[what] += n


def check(ok, what, text=""):
    if not ok:
        failures.append(what)
        print(f"doors: FAIL {what}\n{text[-3000:]}", flush=True)
    return ok


# ---- the protocol, written again ----

def rotate(x, n):
    return (x << n | x >> (64 - n)) & (1 << 64) - 1


def siphash(key, data):
    mask = (1 << 64) - 1
    k0, k1 = struct.unpack("<QQ", key)
    v = [k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d ^ 0xee, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573]

    def rounds(n):
        for _ in range(n):
            v[0] = v[0] + v[1] & mask
            v[2] = v[2] + v[3] & mask
            v[1] = rotate(v[1], 13) ^ v[0]
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = rotate(v[0], 32)
            v[2] = v[2] + v[1] & mask
            v[0] = v[0] + v[3] & mask
            v[1] = rotate(v[1], 17) ^ v[2]
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = rotate(v[2], 32)
    tail = len(data) % 8
    last = data[len(data) - tail:].ljust(7, b"\0") + bytes([len(data) & 255])
    for (m,) in struct.iter_unpack("<Q", data[:len(data) - tail] + last):
        v[3] ^= m
        rounds(2)
        v[0] ^= m
    v[2] ^= 0xee
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xdd
    rounds(4)
    return struct.pack("<QQ", first, v[0] ^ v[1] ^ v[2] ^ v[3])


def key_of(secret):
    purpose = b"shardc control plane 2\0"
    return hmac.digest((secret or "").encode(), purpose, "sha256")


def proof(secret, label, challenge, hello):
    return hmac.digest(key_of(secret), label + challenge + hello, "sha256")


class Link:
    """One end of a connection; mine, theirs: keys, once there are any."""

    def __init__(self, sock):
        self.sock, self.mine, self.theirs, self.sent = sock, None, None, 0
        sock.settimeout(10)

    def send(self, kind, payload=b"", bytes_said=None):
        head = struct.pack("<II", len(payload) if bytes_said is None else bytes_said, kind)
        tag = siphash(self.mine, struct.pack("<Q", self.sent) + head + payload) if self.mine else b""
        self.sent += 1
        self.sock.sendall(head + payload + tag)
        count("messages")

    def exactly(self, n):
        data = b""
        while len(data) < n:
            piece = self.sock.recv(n - len(data))
            if not piece:
                raise ConnectionError("closed")
            data += piece
        return data

    def receive(self):
        n, kind = struct.unpack("<II", self.exactly(8))
        payload = self.exactly(n)
        if self.theirs and kind != DOUBT:
            self.exactly(16)
        return kind, payload

    def keys(self, secret, challenge, hello, is_rank):
        both = proof(secret, b"has keys", challenge, hello)
        self.mine, self.theirs = (both[:16], both[16:]) if is_rank else (both[16:], both[:16])


def connect(at):
    count("connections")
    if isinstance(at, str):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.settimeout(2)
        s.connect(at)
        return s
    return socket.create_connection(("127.0.0.1", at), 2)


def peer(rank, pid=None, name=b"elsewhere"):
    return PEER.pack(1, 2, os.getpid() if pid is None else pid, rank, name)


def hello_of(challenge, secret, rank, size, who=None):
    hello = challenge[:8] + os.urandom(16) + struct.pack("<ii", size, 0) + (who or peer(rank))
    return hello + proof(secret, b"is rank ", challenge, hello)


def join_as(at, secret, rank, size, who=None):
    """A rank that is no shardc; it knows the secret, or tries another."""
    link = Link(connect(at))
    kind, challenge = link.receive()
    assert kind == CHALLENGE
    hello = hello_of(challenge, secret, rank, size, who)
    link.send(HELLO, hello)
    link.keys(secret, challenge, hello, True)
    link.sent = 0
    return link


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


# ---- strangers ----

def garbage(rng):
    return rng.choice([
        rng.randbytes(rng.randrange(1, 600)),
        struct.pack("<II", 0xffffffff, rng.randrange(20)) + rng.randbytes(40),
        struct.pack("<II", rng.choice([0, 1, 152, 511, 512, 513, 1 << 20, 1 << 31]), HELLO) + rng.randbytes(300),
        struct.pack("<II", 4, LEAVE) + b"\0\0\0\0",
        struct.pack("<II", 0, rng.randrange(17)) * 20,
        b"GET / HTTP/1.1\r\n\r\n",
    ])


def changed(rng, data):
    """Bytes with some changed, lost, doubled or in another order."""
    data = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at, way = rng.randrange(max(len(data), 1)), rng.randrange(5)
        if way == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif way == 1:
            del data[at:]
        elif way == 2:
            data += data[at:at + 100]
        elif way == 3 and len(data) > 8:
            data[at:at + 4] = struct.pack("<i", rng.choice([-1, 0, 1, 2**31 - 1, -2**31]))
        else:
            data = data[at:] + data[:at]
    return bytes(data)


class Crowd:
    """Strangers of all kinds at one address, until told to stop."""

    def __init__(self, at, seed, recorded=b"", kinds=("flood", "idle", "slow", "noise", "wrong", "replay")):
        self.at, self.seed, self.recorded, self.over = at, seed, recorded, threading.Event()
        self.threads = [threading.Thread(target=getattr(self, k), args=(random.Random(f"{seed} {k}"),), daemon=True)
                        for k in kinds if k != "flood"]
        self.flooders = [self.start_flood()] if "flood" in kinds else []
        for t in self.threads:
            t.start()

    def start_flood(self):
        """A process that connects as fast as it can and keeps two hundred of its connections; nobody's where possible."""
        pid = os.fork()
        if pid:
            return pid
        if os.geteuid() == 0 and self.seed % 2:
            os.setuid(NOBODY)
        kept, until = [], time.monotonic() + 60
        while time.monotonic() < until and os.getppid() != 1:
            try:
                s = socket.socket(socket.AF_UNIX if isinstance(self.at, str) else socket.AF_INET)
                s.setblocking(False)
                s.connect_ex(self.at if isinstance(self.at, str) else ("127.0.0.1", self.at))
                kept.append(s)
                if len(kept) > 200:
                    kept.pop(0).close()
            except OSError:
                time.sleep(0.001)
        os._exit(0)

    def again(self, act, rng, pause):
        while not self.over.is_set():
            try:
                act(rng)
            except (OSError, AssertionError, struct.error):
                pass
            self.over.wait(pause)

    def idle(self, rng):
        kept = []

        def act(_):
            kept.append(connect(self.at))
            if len(kept) > 100:
                kept.pop(0).close()
        self.again(act, rng, 0.005)

    def slow(self, rng):
        def act(r):
            links = [connect(self.at) for _ in range(20)]
            for _ in range(10):
                for s in links:
                    s.send(r.randbytes(1))
                self.over.wait(0.2)
        self.again(act, rng, 0.01)

    def noise(self, rng):
        def act(r):
            with connect(self.at) as s:
                s.sendall(garbage(r))
                count("messages")
                s.settimeout(0.05)
                s.recv(100)
        self.again(act, rng, 0.005)

    def wrong(self, rng):
        """Hellos that are right but for the secret, and the hub's own challenge sent back."""
        def act(r):
            if r.random() < 0.2:
                with connect(self.at) as s:
                    s.sendall(s.recv(100))
                return
            link = join_as(self.at, r.choice([SECRET + "!", SECRET[1:], None]) if not isinstance(self.at, str) else
                           "a secret where there is none", r.randrange(4), r.randrange(5), peer(1, 1))
            try:
                kind, _ = link.receive()
                check(kind == DOUBT, f"a wrong secret is answered by message {kind}")
            finally:
                link.sock.close()
        self.again(act, rng, 0.01)

    def replay(self, rng):
        def act(r):
            with connect(self.at) as s:
                if not self.recorded:
                    return
                s.recv(100)
                s.sendall(self.recorded if r.random() < 0.3 else changed(r, self.recorded))
                s.settimeout(0.05)
                answer = s.recv(100)
                count("messages")
                kind = struct.unpack("<II", answer[:8])[1] if len(answer) >= 8 else -1
                check(kind in (-1, DOUBT), f"a recorded handshake is answered by message {kind}")
        self.again(act, rng, 0.01)

    def stop(self):
        self.over.set()
        for pid in self.flooders:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for t in self.threads:
            t.join()


class Relay:
    """Between one rank and the hub; records what the rank says; change: of (direction, bytes so far, piece)."""

    def __init__(self, to, change=None):
        self.to, self.change, self.recorded = to, change or (lambda d, n, p: p), b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                rank, _ = self.listener.accept()
            except OSError:
                return
            try:
                hub = socket.create_connection(("127.0.0.1", self.to), 2)
            except OSError:
                rank.close()
                continue
            hub.settimeout(None)
            for d, a, b in ((0, rank, hub), (1, hub, rank)):
                threading.Thread(target=self.pump, args=(d, a, b), daemon=True).start()

    def pump(self, direction, a, b):
        n = 0
        try:
            while piece := a.recv(4096):
                if direction == 0 and len(self.recorded) < 4096:
                    self.recorded += piece
                b.sendall(self.change(direction, n, piece))
                n += len(piece)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()


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
    check(used < 0.3, f"rank 0 spins: {used} s of 0.6 s")
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


def extremes(rng, data):
    return changed(rng, data) if rng.random() < 0.7 else rng.randbytes(rng.choice([0, 1, 4, 8, 24, 63, 64, 65, 80, 300]))


def scene_insider(rng):
    """A rank that knows the secret and sends what no rank sends."""
    at, size, sent = port(), rng.randrange(2, 5), []
    ranks = Ranks(size, at, away=(1,))
    right = {BEAT: bytes(RECORD), GATHER: bytes(512), COMPARE: bytes(24), TEXT: b"text", NAMES: b"a\0" + bytes(6),
             LEAVE: bytes(4), HELLO: bytes(152)}
    link = None
    try:
        for _ in range(100):
            try:
                link = join_as(at, SECRET, 1, size)
                break
            except OSError:
                time.sleep(0.05)
        for _ in range(rng.randrange(1, 20)):
            kind = rng.choice([*right, rng.randrange(40), 1 << 31])
            data = extremes(rng, right.get(kind, b""))
            sent.append((kind, data[:16]))
            link.send(kind, data, rng.choice([None] * 9 + [1 << 30]))
            time.sleep(rng.choice([0, 0, 0.02]))
        link.sock.close()
    except (OSError, AttributeError):
        pass
    ranks.ends_somehow(f"an insider sent {sent}", "error" if link else None)


class FalseHub:
    """Plays rank 0 for the ranks that come, then does what `act` does with the link to each."""

    def __init__(self, size, secret, act, rank0=None):
        self.size, self.secret, self.act, self.rank0 = size, secret, act, rank0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.play, args=(Link(s),), daemon=True).start()

    def play(self, link):
        try:
            challenge = magic + os.urandom(16)
            link.send(CHALLENGE, challenge)
            kind, hello = link.receive()
            assert kind == HELLO
            link.keys(self.secret, challenge, hello, False)
            link.sent = 0
            self.act(self, link)
        except (OSError, AssertionError, struct.error):
            pass
        link.sock.close()

    def peers(self):
        return b"".join(self.rank0 if r == 0 and self.rank0 else peer(r) for r in range(self.size))

    def close(self):
        self.listener.close()


def scene_false_hub(rng):
    """It knows the secret, and says what no hub says."""
    size, sent = rng.randrange(2, 5), []
    right = {WELCOME: None, TABLE: bytes(ROW * size), GATHERED: bytes(512 * size), COMPARED: b"\1", TEXT: b"", STOP: b"\2\0\0\0",
             END: struct.pack("<ii", 3, 1), ACCEPT: b"", REFUSE: b"why \x1b[31m not", DOUBT: b"no"}

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
    hub = FalseHub(size, SECRET, act)
    ranks = Ranks(size, hub.port, away=range(0, size, 2) if size > 2 else (0,))
    codes, text = ranks.end()
    hub.close()
    check(all(c in (0, 3) for c in codes.values()), f"a false hub sent {sent}: exit codes {codes}", text)
    check("\x1b" not in text and "internal error" not in text, f"a false hub sent {sent}", text)


def scene_hub_without_secret(rng):
    """What listens at the address does not know the secret: not a word of it is believed, and the real rank 0 is found."""
    at = port()
    hub = FalseHub(2, "another secret, as long as it", lambda h, link: (link.send(ACCEPT), link.send(WELCOME, h.peers())))
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
            hub = FalseHub(2, None, lambda h, link: (link.send(ACCEPT), link.send(WELCOME, h.peers()), done.wait(15)),
                           rank0=peer(0, other.pid, socket.gethostname().encode()))
            ranks = Ranks(2, hub.port, secret=None, away=(0,))
            ranks.ends_somehow("a hub that hangs", "rank 0 gives no sign of life")
            done.set()
            hub.close()
        else:
            at, link = port(), None
            ranks = Ranks(2, at, secret=None, away=(1,))
            for _ in range(100):
                try:
                    link = join_as(at, None, 1, 2, peer(1, other.pid, socket.gethostname().encode()))
                    break
                except OSError:
                    time.sleep(0.05)
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
        subprocess.run([shardc, text / "text.onnx", "-o", program, "--loss=cross_entropy", "--bind", "batch=2", "-O0"], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
            lines = [x.split() for t in ("tcp", "tcp6") for x in pathlib.Path(f"/proc/{pid}/net/{t}").read_text().splitlines()]
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


def main():
    global door, shardc, folder, root, recorded, magic
    p = argparse.ArgumentParser()
    p.add_argument("door", type=pathlib.Path)
    p.add_argument("shardc", type=pathlib.Path)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--scene", action="append", help="only scenes of these names")
    args = p.parse_args()
    door, shardc, root = args.door.resolve(), args.shardc.resolve(), pathlib.Path(__file__).resolve().parents[2]
    folder = args.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begin, rng = time.monotonic(), random.Random(args.seed)
    recorded, magic = record(), b""
    at = port()
    ranks = Ranks(2, at, away=(1,))
    while not magic:
        try:
            with connect(at) as s:
                magic = s.recv(100)[8:16]
        except OSError:
            time.sleep(0.02)
    Ranks(2, at, away=(0,)).ends_well("the first run")
    ranks.ends_well("the first run", 1 << 30)
    scenes = {k[6:]: v for k, v in globals().items() if k.startswith("scene_") and (not args.scene or k[6:] in args.scene)}
    if args.seconds < 60 and not args.scene:
        del scenes["mpi"] # mpirun takes long to start and to stop
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
