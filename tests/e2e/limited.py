"""Runs a command; fails above so many seconds of processors' time or MiB of resident memory.

Work beside it empties the caches and stretches this time, too: of up to three runs the quickest counts, and the first
one within the limits ends it.

usage: limited.py SECONDS MIB COMMAND..."""
import os
import subprocess
import sys

limit, most, command = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
for _ in range(3):
    process = subprocess.Popen(command)
    _, status, used = os.wait4(process.pid, 0)
    seconds, mib = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    if status or mib > most or seconds <= limit:
        break
if status or seconds > limit or mib > most:
    sys.exit(f"status {os.waitstatus_to_exitcode(status)}, {seconds:.2f} s, {mib:.0f} MiB")
