"""Checks of what was proved without a GPU: kernels, small models against recorded CPU losses, ranks, sanitizers."""
import math
import re
import secrets
import socket
import subprocess

from machine import EMULATED, HERE, NCCL, OutOfTime, steps

# Whose graphs are tried in front of all speed: a cast of all weights, micro-batches, cuDNN's convolutions.
GRAPHS_FIRST = ("gpt-bf16", "gpt-accum", "resnet")
# Kernels' tests under compute-sanitizer, which makes them tens of times slower: our own kernels with shared memory.
SANITIZED = ("norm", "layer_norm_grad", "rms_norm_grad", "softmax_grad", "cross_entropy", "cross_entropy_grad",
             "gather_grad", "CUDA attention")


def distance(got, want):
    """|got - want| / |want|, of finite numbers of the same count; else infinite."""
    if len(got) != len(want) or not all(isinstance(x, float | int) and math.isfinite(x) for x in (*got, *want)):
        return math.inf
    return math.sqrt(sum((g - w) ** 2 for g, w in zip(got, want))) / (math.sqrt(sum(w * w for w in want)) or 1)


def failures(text):
    """Of what CUnit prints: the tests that failed, each with what it says."""
    tests = [part.partition(" ...") for part in re.split(r"^ *Test: ", text, flags=re.M)[1:]]
    return [f"{name}: {' '.join(' '.join(re.findall('^ +[0-9]+[.] (.*)', said, re.M)).split())[:200]}"
            for name, _, said in tests if re.search("FAILED$", said, re.M)]


class Failed(Exception):
    """A check that failed."""


class Skipped(Exception):
    """A check that cannot be done here, or whose outcome is reported without a verdict."""


class Check:
    def __init__(self, machine, cases, work):
        self.machine, self.cases, self.work, self.kernels_passed = machine, cases, work, False

    def program(self, case):
        return self.machine.bin / case["name"]

    def flags(self, case, log, steps=None):
        data = [f"{HERE}/{p}" if p.startswith("data/") else p.replace("=data/", f"={HERE}/data/") for p in case["data"]]
        return [*data, "--steps", steps or case["steps"], *case["run"], "--log", log, "--threads", 2]

    def train(self, case, *flags, until=None, **env):
        """Log lines of a run of so many steps, or of the case's."""
        log = self.work / "log.jsonl"
        log.unlink(missing_ok=True)
        status, text = self.machine.run([self.program(case), *self.flags(case, log, until), *flags], **env)
        if status != 0:
            raise Failed(f"exit {status}: {text.strip()[-600:]}")
        return steps(log)

    def same_as_cpu(self, case, rows, ranks):
        want = case["losses"][str(ranks)]
        away = distance([r["loss"] for r in rows], want["loss"])
        norms = distance([r["grad_norm"] for r in rows], want["grad_norm"])
        text = f"losses {away:.1e}, gradient norms {norms:.1e} from the CPU's"
        if away > case["bar"] or norms > 10 * case["bar"]:
            raise Failed(f"{text}; the bar is {case['bar']:.0e}: {[r['loss'] for r in rows]}, wanted {want['loss']}")
        return text

    # ---- checks ----

    def kernels(self, *flags):
        """Kernels run while the tests go on, or with --blocking one by one, which says at whose call a fault is."""
        if self.machine.arch == EMULATED:
            raise Skipped("not done: under emulation they are the suite kernels of tests/cudasim/run")
        try:
            status, text = self.machine.run([self.machine.bin / "kernels", *flags])
        except OutOfTime as e:
            if failures(e.said):
                raise Failed(f"no end in time: {'; '.join(failures(e.said)[:20])}")
            raise
        if status != 0:
            raise Failed(f"exit {status}: {'; '.join(failures(text)[:20]) or text.strip()[-600:]}")
        if not re.search("passed$", text, re.M):
            raise Failed(f"no test passed: {text.strip()[-600:]}")
        self.kernels_passed = True
        served = "".join(f"; {line.strip()}" for line in re.findall(r"^ +(cuDNN .*?)(?:passed)?$", text, re.M))
        return f"{len(re.findall(r'passed$', text, re.M))} tests passed{served}"

    def call_by_call(self):
        if self.kernels_passed:
            raise Skipped("not wanted: they have passed")
        return self.kernels("--blocking")

    def losses(self, case):
        rows = self.train(case)
        text = self.same_as_cpu(case, rows, 1)
        if rows[-1]["peak_bytes"] != case["bytes"]:
            raise Failed(f"{rows[-1]['peak_bytes']} bytes were allocated, the plan is {case['bytes']}")
        return f"{text}; {case['bytes']} bytes allocated as planned"

    def graph(self, case):
        def bits(flag):
            return [(r["loss"], r["grad_norm"]) for r in self.train(case, f"--cuda-graph={flag}")]
        replayed = bits(1)
        if replayed != bits(0):
            raise Failed("with and without a graph losses differ")
        if replayed != bits(1):
            raise Failed("two runs differ")
        return "graph or none, run after run: the same numbers"

    def has_nccl(self):
        if not self.machine.found[NCCL] and self.machine.arch != EMULATED:
            raise Skipped(f"there is no {NCCL} here")

    def one_rank_over_nccl(self, case):
        """A communicator of one rank, which enters no transport: the library loads, takes our calls and our memory, and is
        captured; what a rank sends to itself changes no bit."""
        self.has_nccl()
        def bits(*flags):
            return [(r["loss"], r["grad_norm"], r["peak_bytes"]) for r in self.train(case, *flags)]
        alone = bits()
        for graph in (1, 0):
            if bits("--comm=nccl", f"--cuda-graph={graph}") != alone:
                raise Failed(f"with and without NCCL numbers differ, --cuda-graph={graph}")
        return "NCCL or none, graph or none: the same numbers and bytes"

    def two_ranks(self, case):
        return self.same_as_cpu(case, self.train(case, "--ranks", 2, "--comm", "shm"), 2)

    def nccl(self, case):
        self.has_nccl()
        if len(self.machine.gpus) < 2 and self.machine.arch != EMULATED:
            raise Skipped("one GPU, so NCCL's collectives are tried below only")
        return self.same_as_cpu(case, self.train(case, "--ranks", 2, "--comm", "nccl", CUDASIM_DEVICES="2"), 2)

    def nccl_on_one(self, case):
        """Two ranks on one GPU, which NCCL takes for ranks of two hosts: their numbers are the CPU's."""
        self.has_nccl()
        told = [self.same_as_cpu(case, self.two_hosts(case, graph), 2) for graph in (1, 0)]
        return f"with graphs {told[0]}; without {told[1]}"

    def two_hosts(self, case, graph):
        """Log lines.  Where NCCL does not run that way on a GPU, this is reported; the emulated one has to, and what has
        made a step has not been refused."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        log = self.work / "log.jsonl"
        log.unlink(missing_ok=True)
        gpu = self.machine.env.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        common = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                  "MASTER_PORT": str(port), "SHARDC_SECRET": secrets.token_hex(), "CUDA_VISIBLE_DEVICES": gpu,
                  "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
        parts = [self.program(case), *self.flags(case, log), "--comm=nccl", f"--cuda-graph={graph}", "--timeout", 60]
        ranks = [subprocess.Popen([str(p) for p in parts], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env={**self.machine.env, **common, "RANK": str(r), "NCCL_HOSTID": f"host-{r}"})
                 for r in (0, 1)]
        try:
            said = [r.communicate(timeout=180)[0].strip() for r in ranks]
        except subprocess.TimeoutExpired:
            said = ["no end in 180 s"]
        finally:
            for r in ranks:
                r.kill()
        codes = [r.wait() for r in ranks]
        if not any(codes):
            return steps(log)
        begun = log.exists() and steps(log)
        refused = Skipped if self.machine.arch != EMULATED and "NCCL" in "".join(said) and not begun else Failed
        raise refused(f"--cuda-graph={graph}: exit {codes}: " + " | ".join(text[-300:] for text in said))

    def sanitizer(self, tool, parts):
        """compute-sanitizer's verdict on one command; what it has found counts where there is no end, too."""
        if self.machine.arch == EMULATED:
            raise Skipped("not done: compute-sanitizer wants a GPU")
        program = self.machine.tool("compute-sanitizer")
        if not program:
            raise Skipped("not done: compute-sanitizer is not installed (it is part of the CUDA Toolkit)")
        log = self.work / "sanitizer.log"
        log.unlink(missing_ok=True)
        options = ["--target-processes", "all", "--error-exitcode", 99, "--print-limit", 5, "--log-file", log]
        try:
            status, text = self.machine.run([program, "--tool", tool, *options, *parts])
        except OutOfTime as e:
            status, text = None, e.said
        told = [line.strip("= ") for line in log.read_text().splitlines() if line.strip("= ")] if log.exists() else []
        found = [line for line in told if not re.match("COMPUTE-SANITIZER|(ERROR|RACECHECK) SUMMARY: 0 ", line)]
        if status is None and not found:
            raise Skipped("not done: no end in time, and nothing was found until then")
        counts = re.findall("^(?:ERROR|RACECHECK) SUMMARY: ([0-9]+) ", "\n".join(told), re.M)
        if status != 0 or {*counts} != {"0"}:  # without a count it has not looked until the end
            raise Failed(f"{'no end in time' if status is None else f'exit {status}'}: "
                         + ("; ".join(found) or text.strip()[-600:] or "it says nothing")[:800])
        return told[-1]

    # ---- rows, in order ----

    def correctness(self, rows):
        rows.do("A", "kernel tests", 240, self.kernels)
        rows.do("A", "kernel tests, call by call", 240, self.call_by_call)
        for case in self.cases:
            rows.do("A", f"losses {case['name']}", 60, self.losses, case)
        self.graphs(rows, first=True)

    def graphs(self, rows, first=False):
        """Three of them come first; the others, runs of the same kind, behind what tells of speed."""
        for case in self.cases:
            if (case["name"] in GRAPHS_FIRST) == first:
                rows.do("A", f"graph {case['name']}", 60, self.graph, case)

    def ranks(self, rows):
        shared = [c for c in self.cases if "2" in c["losses"]]
        for case in shared:
            rows.do("C", f"two ranks over shm {case['name']}", 60, self.two_ranks, case)
        for case in shared[:1]:
            rows.do("C", "one rank over NCCL", 60, self.one_rank_over_nccl, case)
        for case in shared:
            rows.do("C", f"two ranks over NCCL {case['name']}", 60, self.nccl, case)
        for case in shared[:1]:
            rows.do("C", "NCCL on one GPU", 200, self.nccl_on_one, case)

    def sanitizers(self, rows):
        for tool in ("memcheck", "racecheck"):
            for case in self.cases:
                if case["sanitize"]:
                    parts = [self.program(case), *self.flags(case, self.work / "log.jsonl")]
                    rows.do("C", f"{tool} {case['name']}", 300, self.sanitizer, tool, parts)
            rows.do("C", f"{tool} kernels", 300, self.sanitizer, tool, [self.machine.bin / "kernels", *SANITIZED])
