"""The control plane's protocol (runtime/plane/private.h), written again: keys, links, a rank that is no shardc."""
import hmac
import os
import socket
import struct

from doors_report import count

HELLO, BEAT, GATHER, COMPARE, TEXT, NAMES, LEAVE, ACCEPT, REFUSE, LATER, WELCOME, TABLE, GATHERED, COMPARED, STOP, \
    CHALLENGE, DOUBT, END = range(18)
SECRET = "what the ranks of doors.py share"
PEER, ROW, RECORD = struct.Struct("<QQii64s"), 80, 64


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
