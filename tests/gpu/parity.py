"""Models of real size against PyTorch: the same weights, samples and optimizer, step by step.

Our program saves what it starts from, which PyTorch's process loads (peer.py steps); then both train.  Losses and
gradient norms lie side by side in the row.  PyTorch computes by autocast, whose parameters are f32: ours are rounded to
bf16 beside f32 masters, so the two round in different places and agree to some parts in a thousand.
"""
from check import Failed, Skipped, distance
from machine import steps

BAR = 2e-2  # norm-relative, of losses
MOVED = 0.25  # of the way that PyTorch's losses went, the most that ours may be away from them: without steps it is 1
NORMS = 0.1  # norm-relative, of gradient norms: steps amplify rounding, most in batch norms of random images


class Parity:
    def __init__(self, bench):
        self.bench, self.machine, self.work = bench, bench.machine, bench.work
        self.cases = {name: case for name, case in bench.cases.items() if not case.get("alone")}

    def first(self, rows):
        self.all(rows, "A", 0, 120)

    def long(self, rows):
        self.all(rows, "B", 1, 240)

    def all(self, rows, part, which, limit):
        for name, case in self.cases.items():
            n = case["compare"][which]
            rows.do(part, f"against PyTorch {name} {n}", limit, self.compare, name, n)

    def ours(self, name, n, lr, *flags):
        command, log = self.bench.command(name, n, lr), self.work / name / "log.jsonl"
        log.unlink(missing_ok=True)
        status, text = self.machine.run([*command, *flags])
        if status != 0:
            raise Failed(f"exit {status}: {text.strip()[-600:]}")
        return steps(log)

    def start(self, name):
        """The file of the weights that the program starts from: a step whose rate is 0 leaves them as they are."""
        folder = self.work / name
        path = folder / "model.safetensors"
        if not path.exists():
            self.ours(name, 1, 0, "--save", folder / "start")
            path.symlink_to(folder / "start" / "latest" / "model.safetensors")
        return folder

    def compare(self, name, n):
        folder, lr = self.start(name), self.cases[name]["lr"]
        rows = self.ours(name, n, lr)
        want = self.bench.peer("steps", name, n, "--folder", folder)
        if "error" in want:
            raise Skipped(want["error"])
        loss, norm = ([r[key] for r in rows] for key in ("loss", "grad_norm"))
        away, norms = distance(loss, want["loss"]), distance(norm, want["grad_norm"])
        way = distance([w - want["loss"][0] for w in want["loss"]], [0] * n)
        moved = distance(loss, want["loss"]) * distance(want["loss"], [0] * n) / way
        text = f"losses {away:.1e}, which is {moved:.1e} of their way, gradient norms {norms:.1e} from PyTorch's"
        if away > BAR or moved > MOVED or norms > NORMS:
            raise Failed(f"{text}; the bars are {BAR}, {MOVED} and {NORMS}: losses {brief(loss)}, PyTorch's "
                         f"{brief(want['loss'])}; norms {brief(norm)}, PyTorch's {brief(want['grad_norm'])}")
        return text, dict(compared=name, steps=n, ours=dict(loss=loss, grad_norm=norm), pytorch=want)


def brief(numbers):
    return " ".join("-" if x is None else f"{x:.4g}" for x in numbers[:: max(len(numbers) // 8, 1)])
