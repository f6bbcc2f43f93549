"""Runs a command; fails above so many seconds of processors' time or MiB of resident memory.

The seconds are those of a processor that does the yardstick, a fixed piece of work of this process, in YARD seconds.
Work beside it empties the caches and stretches both: a run above the limit is held against the slower of the yardsticks
before and behind it, and of up to three runs the first one within the limits ends it.

usage: limited.py SECONDS MIB COMMAND..."""
import os
import subprocess
import sys
import time

YARD = 0.13


def yardstick():
    """Seconds of the processor for strings, allocations and lookups that go past the caches, as a compiler has them."""
    begin = time.process_time()
    names = {f"value.{i * 7919 % 100003}": [i] for i in range(100000)}
    total = sum(names[f"value.{i}"][0] for i in range(0, 100000, 2) if f"value.{i}" in names)
    assert total > 0
    return time.process_time() - begin


limit, most, command = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
slower = 1
for _ in range(3):
    before = yardstick()
    process = subprocess.Popen(command)
    _, status, used = os.wait4(process.pid, 0)
    seconds, mib = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    slower = max(1, max(before, yardstick()) / YARD)
    if status or mib > most or seconds <= limit * slower:
        break
if status or mib > most or seconds > limit * slower:
    sys.exit(f"status {os.waitstatus_to_exitcode(status)}, {seconds:.2f} s where the yardstick takes {slower:.2f} times "
             f"its {YARD} s, {mib:.0f} MiB")
