"""Who comes to a port beside the ranks: crowds of strangers, relays that change what goes through, false hubs."""
import os
import random
import signal
import socket
import struct
import threading
import time

from doors_protocol import (CHALLENGE, DOUBT, HELLO, LEAVE, SECRET, Link, connect, join_as, peer)
from doors_report import check, count

NOBODY = 65534


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
        """A process that connects as fast as it can and keeps two hundred connections; nobody's where possible."""
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


class Server:
    """Listens at a port of the loopback; what connects goes to `handle`, each in a thread of its own."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.handle, args=(s,), daemon=True).start()

    def close(self):
        self.listener.close()


class Relay(Server):
    """Between one rank and the hub; records what the rank says; change: of (direction, bytes so far, piece)."""

    def __init__(self, to, change=None):
        self.to, self.change, self.recorded = to, change or (lambda d, n, p: p), b""
        super().__init__()

    def handle(self, rank):
        try:
            hub = socket.create_connection(("127.0.0.1", self.to), 2)
        except OSError:
            rank.close()
            return
        hub.settimeout(None)
        threading.Thread(target=self.pump, args=(0, rank, hub), daemon=True).start()
        self.pump(1, hub, rank)

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


class FalseHub(Server):
    """Plays rank 0 for the ranks that come, then does what `act` does with the link to each; magic: how the challenges
    of this version begin."""

    def __init__(self, magic, size, secret, act, rank0=None):
        self.magic, self.size, self.secret, self.act, self.rank0 = magic, size, secret, act, rank0
        super().__init__()

    def handle(self, s):
        link = Link(s)
        try:
            challenge = self.magic + os.urandom(32)
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
