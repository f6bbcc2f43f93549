"""Steps on one GPU: our programs and PyTorch (eager, torch.compile, fully_shard at one rank), alternating in one run.

A round runs every contender once, each alone on the GPU.  A contender's figure is the median over rounds, the range
of a ratio is over rounds, and the peer is the fastest configuration of PyTorch.  Ratio above 1: we are faster.  The
ceiling is the best rate of bf16 products that is measured here; MFU is the rate of 6N + 6LCT operations a token as a
fraction of it.  Rows are written as soon as they are known.

usage: ./run [--cases a,b] [--rounds N] [--steps N] [--json FILE] [--libs FOLDER ..] [--smoke]
"""
import argparse
import csv
import io
import json
import pathlib
import statistics
import sys
import tempfile

from machine import EMULATED, HERE, Machine, steps, wants_gpu, wants_torch

torch = wants_torch()
from gpu_models import gpt2_flops_per_token, make_data  # noqa: E402

VARIANTS = ["eager", "compile", "fsdp"]
SETTLE = 4  # our first steps, which are not counted: warm-up, capture, and the first replays


def ceiling(smoke):
    """TFLOP/s of bf16 products: the best, and those of the shapes of GPT-2 124M at 65,536 tokens."""
    shapes = {"8192 x 8192 x 8192": (8192, 8192, 8192), "65536 x 3072 x 768": (65536, 3072, 768),
              "65536 x 768 x 3072": (65536, 768, 3072), "65536 x 50257 x 768": (65536, 50257, 768),
              "65536 x 50304 x 768": (65536, 50304, 768)}
    if smoke:
        return {"none on a CPU": None}
    rates = {}
    for name, (m, n, k) in shapes.items():
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
        times = []
        for _ in range(12):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            a @ b
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        rates[name] = 2 * m * n * k / statistics.median(times[2:]) / 1e9
        del a, b
    torch.cuda.empty_cache()
    return rates


class Case:
    def __init__(self, machine, args, work, name, case):
        self.machine, self.args, self.name, self.case = machine, args, name, case
        self.work = work / name
        self.work.mkdir()
        self.tokens = name.startswith("gpt2")
        model = case["model"]
        self.sample = (model["length"],) if self.tokens else (3, case["image"], case["image"])
        classes = model["vocabulary"] if self.tokens else model["classes"]
        self.items = case["batch"] * (model["length"] if self.tokens else 1)
        make_data(self.work, self.sample, classes, self.tokens, 2 * case["batch"], 0)

    def command(self, n):
        return [self.machine.bin / self.name, "--data", f"x={self.work}/x.npy", "--data", f"labels={self.work}/labels.npy",
                "--steps", n, "--lr", 1e-4, "--log", self.work / "log.jsonl"]

    def ours(self):
        (self.work / "log.jsonl").unlink(missing_ok=True)
        status, text = self.machine.run(self.command(SETTLE + self.args.steps))
        if status != 0:
            return dict(error=f"exit {status}: {text.strip()[-300:]}")
        rows = steps(self.work / "log.jsonl")
        return dict(step_ms=statistics.mean(r["step_ms"] for r in rows[SETTLE:]), loss=rows[-1]["loss"],
                    allocated=rows[-1]["peak_bytes"])

    def peer(self, variant):
        parts = [sys.executable, HERE / "peer.py", self.name, variant, self.args.steps]
        status, text = self.machine.run(parts + (["--device", "cpu"] if self.args.smoke else []), plain=True)
        last = text.strip().splitlines()[-1:] or [""]
        if status != 0 or not last[0].startswith("{"):
            return dict(error=f"exit {status}: {text.strip()[-300:]}")
        return json.loads(last[0])

    def profile(self):
        """The time of each kernel of a step, measured by nsys, the longest first."""
        nsys = self.machine.tool("nsys")
        if not nsys:
            return "nsys is not installed: time by kernel was not measured"
        report = self.work / "report"
        status, text = self.machine.run([nsys, "profile", "-o", report, "--force-overwrite", "true", "--trace", "cuda",
                                         "--cuda-graph-trace", "node", *self.command(SETTLE + self.args.steps)])
        if status == 0:
            status, text = self.machine.run([nsys, "stats", "--report", "cuda_gpu_kern_sum", "--format", "csv",
                                             "--quiet", f"{report}.nsys-rep"])
        at = text.find("Time (%)")
        if status != 0 or at < 0:
            return f"nsys failed, exit {status}: {text.strip()[-300:]}"
        rows = list(csv.DictReader(io.StringIO(text[at:])))[:20]
        n = SETTLE + self.args.steps
        return [dict(kernel=r["Name"][:100], ms_per_step=float(r["Total Time (ns)"]) / 1e6 / n,
                     launches_per_step=int(r["Instances"]) / n, percent=float(r["Time (%)"])) for r in rows]

    def flops(self):
        m = self.case["model"]
        return gpt2_flops_per_token(m["layers"], m["width"], m["vocabulary"], m["length"]) if self.tokens else None


class Output:
    def __init__(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.file = path, open(path, "w")

    def row(self, **row):
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()


def run_case(case, args, out, peak):
    who = ["ours", *(["eager"] if args.smoke else VARIANTS)]
    runs = {w: [] for w in who}
    for n in range(args.rounds):
        for w in who:
            result = case.ours() if w == "ours" else case.peer(w)
            out.row(case=case.name, round=n, who=w, **result)
            runs[w].append(result)
            print(f"  {case.name} round {n} {w}: {result.get('error') or '%.2f ms' % result['step_ms']}", flush=True)
    done = {w: r for w, r in runs.items() if all("step_ms" in x for x in r)}
    median = {w: statistics.median(x["step_ms"] for x in r) for w, r in done.items()}
    table = [[w, median[w], case.items / median[w] * 1e3, done[w][0].get("allocated"),
              case.flops() * case.items / median[w] / 1e9 / peak if peak and case.flops() else None] for w in median]
    peers = [w for w in median if w != "ours"]
    if "ours" in median and peers:
        best = min(peers, key=median.get)
        ratios = [p["step_ms"] / o["step_ms"] for o, p in zip(done["ours"], done[best])]
        out.row(case=f"{case.name}-gpu", metric="step_ms", ours=median["ours"], peer=median[best],
                peer_name=f"PyTorch {done[best][0]['torch']} {best}", ratio=median[best] / median["ours"],
                ratio_min=min(ratios), ratio_max=max(ratios))
    return table


def markdown(facts, rates, tables, kernels, cases):
    gpu = facts["gpus"][0] if facts["gpus"] else {"name": "no GPU"}
    text = [f"# Steps on {gpu['name']}", "", f"{facts['time']}; {json.dumps(gpu)}", "",
            "bf16 products of PyTorch, TFLOP/s: " + "; ".join(
                f"{k}: {v:.0f}" if v else k for k, v in rates.items())]
    for name, table in tables.items():
        text += ["", f"## {name}, batch {cases[name]['batch']}", "", "| who | ms a step | a second | GB | MFU |",
                 "| --- | --- | --- | --- | --- |"]
        for who, ms, rate, allocated, mfu in table:
            text.append(f"| {who} | {ms:.2f} | {rate:,.0f} | {f'{allocated / 1e9:.2f}' if allocated else '-'} | "
                        f"{f'{mfu:.3f}' if mfu else '-'} |")
        text += ["", f"Plan: {cases[name]['bytes'] / 1e9:.2f} GB."]
        if isinstance(kernels[name], str):
            text += ["", kernels[name]]
            continue
        text += ["", "| kernel | ms a step | launches a step | % |", "| --- | --- | --- | --- |"]
        text += [f"| `{k['kernel']}` | {k['ms_per_step']:.3f} | {k['launches_per_step']:.1f} | {k['percent']:.1f} |"
                 for k in kernels[name]]
    return "\n".join(text) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cases", default="gpt2-124m,resnet50")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--json", type=pathlib.Path, default=HERE / "results" / "bench.jsonl")
    p.add_argument("--libs", action="extend", nargs="+", default=[], metavar="FOLDER", help="where NVIDIA's libraries are")
    p.add_argument("--smoke", action="store_true",
                   help="emulated programs and PyTorch on the CPU, to try this script; its figures mean nothing")
    args = p.parse_args()
    known, names = json.loads((HERE / "cases.json").read_text()), args.cases.split(",")
    if unknown := [n for n in names if n not in known]:
        p.error(f"there is no case {', '.join(map(repr, unknown))}; there are {', '.join(known)}")
    cases = {n: known[n] for n in names}
    machine = Machine(EMULATED if args.smoke else None, args.libs)
    facts = dict(machine.facts(), torch=torch.__version__)
    tables, kernels = {}, {}
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        of = {name: Case(machine, args, work, name, c) for name, c in cases.items()}
        wants_gpu(machine, machine.bin / next(iter(of)), next(iter(of.values())).command(1)[1:])
        out = Output(args.json)
        out.row(machine=facts)
        rates = ceiling(args.smoke)
        out.row(products_tflops=rates)
        peak = max(rates.values()) if not args.smoke else None
        for name, case in of.items():
            tables[name] = run_case(case, args, out, peak)
            kernels[name] = case.profile()
            out.row(case=name, kernels=kernels[name])
    text = markdown(facts, rates, tables, kernels, cases)
    args.json.with_suffix(".md").write_text(text)
    print(text)
    print(f"gpu-bench: {args.json} and {args.json.with_suffix('.md')}: for bench/results/")
    sys.exit(0 if all("ours" in [r[0] for r in t] for t in tables.values()) else 1)


if __name__ == "__main__":
    main()
