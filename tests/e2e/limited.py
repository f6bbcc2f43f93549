"""Runs a command; fails above so many seconds of wall time or MiB of resident memory.

usage: limited.py SECONDS MIB COMMAND..."""
import resource
import subprocess
import sys
import time

begin = time.time()
status = subprocess.run(sys.argv[3:]).returncode
seconds = time.time() - begin
mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
if status or seconds > float(sys.argv[1]) or mib > float(sys.argv[2]):
    sys.exit(f"status {status}, {seconds:.2f} s, {mib:.0f} MiB")
