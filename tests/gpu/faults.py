"""What goes wrong on machines, done on purpose: a rank is killed, an input is no number, the GPU's memory is taken.

Each must end as docs/training.md says, in time, and say what is the matter and what to do."""
import os
import pathlib
import signal
import subprocess
import sys
import time

from check import Failed
from machine import EMULATED, HERE, children, end, lives, steps

EVERY = 3  # steps from save to save
MOST = 1000  # steps of the run that is killed: where nobody is left to kill it, it ends
MORE = 4  # steps after a resumption, which must have the numbers of a run that was not interrupted
LEFT = 2 << 30  # bytes of the GPU's memory that are left to a program whose plan is larger


class Faults:
    def __init__(self, check, bench):
        self.check, self.bench, self.machine, self.work = check, bench, check.machine, check.work
        self.cases = {c["name"]: c for c in check.cases}

    def all(self, rows):
        """A kit may have been made of one program, to try its scripts."""
        if "gpt" in self.cases:
            rows.do("C", "a rank is killed", 120, self.killed, self.cases["gpt"])
        if "digits-checked" in self.cases:
            rows.do("C", "an input is no number", 60, self.no_number, self.cases["digits-checked"])
        if "gpt2-124m" in self.bench.cases:
            rows.do("C", "memory is taken", 90, self.taken, "gpt2-124m")

    # ---- a rank ----

    def interrupted(self, case, save):
        """Kills rank 1 of 2 some steps behind a save; returns what the run said."""
        log = self.work / "log.jsonl"
        log.unlink(missing_ok=True)
        flags = ["--ranks", 2, "--comm", "shm", "--save", save, "--save-every", EVERY, "--keep", 2, "--timeout", 20]
        parts = [self.check.program(case), *self.check.flags(case, log, MOST), *flags]
        run = subprocess.Popen([str(p) for p in parts], env=self.machine.env, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, errors="replace", start_new_session=True)
        while run.poll() is None and not (log.exists() and len(log.read_text().splitlines()) > EVERY + 1):
            time.sleep(0.02)
        ranks = children(run.pid)
        if len(ranks) != 2:
            end(run.pid)
            raise Failed(f"it has no two ranks: {run.communicate()[0].strip()[-600:]}")
        os.kill(ranks[1], signal.SIGKILL)
        begin, text = time.monotonic(), run.communicate(timeout=60)[0]
        left = [pid for pid in ranks if lives(pid)]
        if run.returncode == 0 or left or "rank 1" not in text:
            raise Failed(f"exit {run.returncode}, {len(left)} ranks are left: {text.strip()[-600:]}")
        return time.monotonic() - begin

    def killed(self, case):
        save = self.work / "killed"
        seconds = self.interrupted(case, save)
        at = int(os.readlink(save / "latest").rpartition("-")[2])
        two = ["--ranks", 2, "--comm", "shm"]
        whole, again = (self.check.train(case, *two, *more, until=at + MORE) for more in ([], ["--resume", save]))
        want, got = ([(r["step"], r["loss"], r["grad_norm"]) for r in rows][-MORE:] for rows in (whole, again))
        if got != want:
            raise Failed(f"resumed from step {at} it has {got}; a run that was not interrupted has {want}")
        return f"all ended after {seconds:.1f} s; resumed from step {at} with the same numbers"

    # ---- an input ----

    def no_number(self, case):
        """A NaN in an image of step 3 is found, and named, by a program with --check-nan."""
        step, batch, floats = 3, 32, 64
        data = bytearray((HERE / "data/digits/x.npy").read_bytes())
        at = len(data) % (floats * 4) + ((step - 1) * batch + 5) * floats * 4  # of the image's first number
        data[at:at + 4] = b"\0\0\xc0\x7f"
        (self.work / "x.npy").write_bytes(data)
        flags = self.check.flags(case, self.work / "log.jsonl")
        flags = [f"x={self.work}/x.npy" if str(f).startswith("x=") else f for f in flags]
        status, text = self.machine.run([self.check.program(case), *flags])
        want = f"step {step}, rank 0: the first is NaN in element [5,0,0,0] of "
        if status != 3 or want not in text or 'input "x"' not in text:
            raise Failed(f'exit {status}, wanted 3 and "{want} .. input x": {text.strip()[-600:]}')
        return next(line for line in text.splitlines() if want in line)[:300]

    # ---- memory ----

    def taken(self, name):
        """A program that does not fit beside what another one holds says so before it allocates, and what to do."""
        command = self.bench.command(name, 1)
        plan = self.bench.cases[name]["bytes"]
        if self.machine.arch == EMULATED:
            status, text = self.machine.run(command, CUDASIM_MEMORY=str(plan // 2))
        else:
            holder = subprocess.Popen([sys.executable, HERE / "peer.py", "hold", str(LEFT)], text=True,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
            try:
                held = holder.stdout.readline()
                if not held.startswith("{"):
                    raise Failed("PyTorch holds no memory; it said why above")
                status, text = self.machine.run(command)
            finally:
                end(holder.pid)  # end_children waits for it
        want = [f"the plan is {plan} bytes of device memory", "most of them", "compile for a smaller batch"]
        if status != 3 or not all(w in text for w in want):
            raise Failed(f"exit {status}, wanted 3 and {want}: {text.strip()[-600:]}")
        return text.strip().splitlines()[-1][:300]
