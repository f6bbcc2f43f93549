"""The PyTorch side of the step benchmark: a process that times training steps when asked.

Reads lines "VARIANT STEPS" from standard input and answers each with the step times in milliseconds as one JSON
list.  Variants: eager, compile, and for images either of them with channels_last.  It computes in f32, or for the
cases of cases.HALF by bf16 autocast with f32 parameters; it uses as many threads as our program, and fused AdamW.
Nothing but the step is timed, by the wall clock, or with `processor` by the processor time of all its threads.

usage: python peers.py CASE THREADS [wall|processor]
"""
import json
import pathlib
import sys
import time

import torch
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "parity"))
import models  # noqa: E402
import cases  # noqa: E402

CLOCK = time.process_time if sys.argv[3:] == ["processor"] else time.perf_counter


class Step:
    def __init__(self, case, compiled, channels_last, half):
        torch.manual_seed(0)
        self.case, self.half = case, half
        self.module = case.build().train()
        self.x, self.labels = models.make_data(case, case.batch, 0)
        if channels_last:
            self.module = self.module.to(memory_format=torch.channels_last)
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        self.forward = torch.compile(self.loss) if compiled else self.loss
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-4, fused=True)

    def loss(self, x, labels):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.half):
            logits = self.module(x)
        logits = logits.float()
        return F.cross_entropy(logits.reshape(-1, self.case.classes), labels.reshape(-1))

    def __call__(self):
        begin = CLOCK()
        self.optimizer.zero_grad()
        self.forward(self.x, self.labels).backward()
        self.optimizer.step()
        return (CLOCK() - begin) * 1e3


def main():
    case, threads = cases.CASES[sys.argv[1]], int(sys.argv[2])
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")
    steps = {}
    for line in sys.stdin:
        variant, n = line.split()
        if variant not in steps:
            steps = {}  # one model at a time, so that it has all memory
            steps[variant] = Step(case, "compile" in variant, "channels_last" in variant, sys.argv[1] in cases.HALF)
            for _ in range(2):
                steps[variant]()
        print(json.dumps([steps[variant]() for _ in range(int(n))]), flush=True)


main()
