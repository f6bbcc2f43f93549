"""The PyTorch side of the step benchmark: a process that trains a model, some steps whenever it is asked.

Reads numbers of steps from standard input, one a line, and answers each with one line of JSON:
  ms        of each of these steps: by the wall clock, or the processor time of all threads
  losses    of all steps since the process began; the first WARM of them are not timed
  peak_mib  how much more memory was resident at once during these steps than before the model was built: weights,
            gradients and states, what allocators keep, and what PyTorch's compiler has left; not PyTorch itself, nor
            what was read of its libraries meanwhile
The batches are those of our program, in its order.  It computes in f32, or by bf16 autocast with f32 parameters, and
updates with the fused AdamW.

With --endless it reads nothing: it trains until it is ended, and prints the milliseconds of each step, one a line.

usage: python peers.py ROW MODE LAYOUT [--quick] [--threads N] [--clock wall|processor] [--endless]
MODE: eager, compile (torch.compile as it is), max-autotune.  LAYOUT: plain, or channels_last for images.
"""
import argparse
import gc
import json
import os
import sys
import time

import torch
from torch.nn import functional as F

import cases  # adds tests/parity to the path
import models

WARM, BATCHES = 2, 4
CLOCK = {"wall": time.perf_counter, "processor": time.process_time}
COMPILE = {"eager": lambda f: f, "compile": torch.compile,
           "max-autotune": lambda f: torch.compile(f, mode="max-autotune")}


def resident_mib(field):
    """RssAnon, RssFile: memory, and pages of files such as libraries; VmHWM: both, at most since reset_peak."""
    return next(int(s.split()[1]) for s in open("/proc/self/status") if s.startswith(field)) / 1024


def reset_peak():
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")


def cross_entropy(case, logits, labels):
    if not case.dense:
        logits, labels = logits.reshape(-1, case.classes), labels.reshape(-1)
    return F.cross_entropy(logits, labels)


def use_once(small):
    """What a first step needs at any size is PyTorch itself: modules, threads, code."""
    x, labels = models.make_data(small, small.batch, 0)
    module = small.build().train()
    cross_entropy(small, module(x), labels).backward()
    torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True).step()
    gc.collect()


class Training:
    def __init__(self, row, mode, channels_last, clock):
        self.case, self.half, self.clock = row.case, row.half, CLOCK[clock]
        x, labels = models.make_data(self.case, self.case.batch * BATCHES, 0)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        self.batches = list(zip(x.split(self.case.batch), labels.split(self.case.batch)))
        use_once(cases.QUICK[row.name.removesuffix(cases.HALF_SUFFIX)])
        self.before = resident_mib("RssAnon")
        torch.manual_seed(0)
        self.module = self.case.build().train()
        if channels_last:
            self.module = self.module.to(memory_format=torch.channels_last)
        self.forward = COMPILE[mode](self.loss)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-4, fused=True)
        self.losses = []

    def loss(self, x, labels):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.half):
            logits = self.module(x)
        return cross_entropy(self.case, logits.float(), labels)

    def step(self):
        x, labels = self.batches[len(self.losses) % BATCHES]
        begin = self.clock()
        self.optimizer.zero_grad()
        loss = self.forward(x, labels)
        loss.backward()
        self.optimizer.step()
        ms = (self.clock() - begin) * 1e3
        self.losses.append(loss.item())
        return ms

    def answer(self, steps):
        while len(self.losses) < WARM:
            self.step()
        gc.collect()
        reset_peak()
        ms = [self.step() for _ in range(steps)]
        return dict(ms=ms, losses=self.losses, peak_mib=resident_mib("VmHWM") - resident_mib("RssFile") - self.before)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("row")
    p.add_argument("mode", choices=COMPILE)
    p.add_argument("layout", choices=("plain", "channels_last"))
    p.add_argument("--quick", action="store_true")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--clock", choices=CLOCK, default="wall")
    p.add_argument("--endless", action="store_true")
    args = p.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("highest")
    training = Training(cases.rows(args.quick)[args.row], args.mode, args.layout == "channels_last", args.clock)
    while args.endless:
        print(training.step(), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(training.answer(int(line))), file=answers, flush=True)


main()
