"""Runs a command; fails above so many seconds of processors' time, which other work on the machine does not stretch,
or MiB of resident memory.

usage: limited.py SECONDS MIB COMMAND..."""
import resource
import subprocess
import sys

status = subprocess.run(sys.argv[3:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
seconds, mib = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
if status or seconds > float(sys.argv[1]) or mib > float(sys.argv[2]):
    sys.exit(f"status {status}, {seconds:.2f} s, {mib:.0f} MiB")
