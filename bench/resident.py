"""Runs a program and writes the largest resident set that it had, in KiB, to a file.

The figure of a child begins with the size of the process that it was forked from, so this one stays small.

usage: python -S resident.py FILE PROGRAM [ARGUMENT]..      exits as the program does
"""
import os
import sys

program = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, used = os.wait4(program, 0)
with open(sys.argv[1], "w") as f:
    f.write(str(used.ru_maxrss))
sys.exit(os.waitstatus_to_exitcode(status) & 255)
