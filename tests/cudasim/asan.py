"""CUDA programs under AddressSanitizer and UndefinedBehaviorSanitizer, in the emulation: it, the kernels, the runtime and
the emitted programs are all compiled with both.

  faults   kernels that leave an allocation by one element, or whose accesses are not aligned, are reported: so what this
           nvcc makes is watched; and no file of the library's kernels was built otherwise
  runs     small programs that touch each part of the runtime; nothing is reported and every step is there

The one idea: numbers are other tests' matter; here a program must only run, and say nothing.

usage: asan.py SHARDC WORKDIR [--only NAME,..]      SHARDC: in a folder where `make cudasim` was built with SANITIZE
"""
import math
import pathlib
import re
import subprocess

from train import ask, call, lines, main, soft

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 3
SPEAKS = re.compile(r"Sanitizer|runtime error:")
NCCL, SHM, PLAIN = ["--ranks=2", "--comm=nccl"], ["--ranks=2", "--comm=shm"], ["--cuda-graph=0"]
ADAMW, HALF = ["--optimizer=adamw", "--clip=2"], ["--param-dtype=bf16", "--reduce-dtype=bf16"]
CUDNN = ["--optimizer=adamw", "--param-dtype=bf16", "--attention=cudnn"]
# Model, options of shardc, and the flags of each run; "eval": with held-out samples; "resume": goes on from its end;
# "tune": with a file of products, which the first such run writes; NAME=WORD: in that environment.  Then, where a program
# is there for them, what its IR has and what its first run says.
PROGRAMS = {
    "gpt": ("gpt", [*ADAMW, "--wrap=each"],
            [["--clip-norm=0.5", "eval", "resume"], PLAIN, NCCL, [*NCCL, *PLAIN], SHM]),
    "gpt bf16": ("drop", ["--optimizer=adamw", "--dropout=on", *HALF], [[], NCCL, SHM]),
    "cnn": ("cnn", ["--optimizer=sgd:momentum", "--bn-sync=sync", "--wrap=each"], [["eval"], NCCL, [*SHM, *PLAIN]]),
    "cnn bf16": ("cnn", [*ADAMW, "--strategy=no_shard", "--param-dtype=bf16"], [PLAIN, NCCL]),
    "offload": ("gpt", [*ADAMW, "--offload=params", "--wrap=block"], [[], NCCL, SHM]),
    "accumulation": ("gpt", [*ADAMW, "--accum=many", "--sync=every"], [["--accum=2"], ["--accum=3", *NCCL]]),
    "pitch": ("wide", [*ADAMW, "--param-dtype=bf16"], [["eval"]], "width=1216"),
    "epilogues": ("heads", [*ADAMW, "--param-dtype=bf16", "--attention=cudnn", "--loss-chunk=8"], [["--print-plan"], NCCL],
                  'epilogue="gelu_grad"', "cudnn:attention_grad, engine 5"),
    "fp8": ("heads", [*ADAMW, "--param-dtype=bf16", "--matmul-dtype=fp8", "--bind=batch=4"], [[], [*NCCL, *PLAIN]],
            "matmul_f8"),
    "masks": ("padded", CUDNN, [["--print-plan"], PLAIN], " = attention_grad ", "cudnn:attention_grad with a mask, engine 5"),
    "masks of numbers": ("distant", CUDNN, [["--print-plan"]], " = attention_grad ",
                         "cudnn:attention_grad with a mask, engine 5"),
    "grouped": ("grouped", CUDNN, [["--print-plan"], ["CUDASIM_ARCH=100"]], "library=1", "cudnn:attention_grad, engine 5"),
    "rows": ("rows", [*ADAMW, "--param-dtype=bf16"], [[]], "reduce_sum"),
    "tuned": ("gpt", ["--optimizer=adamw"], [["tune"], ["tune", *PLAIN]], " = matmul ", "products were measured, 0 were known"),
    "a GPU of 12.0": ("heads", [*ADAMW, "--param-dtype=bf16", "--matmul-dtype=fp8", "--bind=batch=4"], [["CUDASIM_ARCH=120"]],
                      "matmul_f8"),
    "owners": ("gpt", ["--optimizer=adamw", "--strategy=oss", "--world=2"], [NCCL, [*SHM, *PLAIN]]),
}
FAULTS = r"""
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

static void launched(cudaError_t e, const char *) { if (e != cudaSuccess) exit(3); }

__global__ void fill(float *y, int n) { if ((int)threadIdx.x < n) y[threadIdx.x] = 1; }
__global__ void pair(float *y) { *(float2 *)(y + threadIdx.x) = {1, 2}; }

/* faults N: fills N of 33 numbers; N = 0: in pairs, one of which begins at an odd place */
int main(int, char **arg)
{
	float *y;
	cudaStream_t s;
	if (cudaMalloc(&y, 33 * sizeof *y) || cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking))
		return 3;
	if (atoi(arg[1]))
		LAUNCH(fill, 1, 64, 0, s, y, atoi(arg[1]));
	else
		LAUNCH(pair, 1, 2, 0, s, y);
	return cudaStreamSynchronize(s) != cudaSuccess;
}
"""


@soft
def quiet(s, name, binary, model, *flags, says=""):
    """Runs a program to its end: no sanitizer reports anything."""
    more = [*(s.held[model] if "eval" in flags else []), *([f"--tune={s.root}/tune.txt"] if "tune" in flags else [])]
    env = dict(f.split("=") for f in flags if re.match("[A-Z]", f))
    log, out, said = s.run(binary, model, *more, *(f for f in flags if f.startswith("--")), steps=STEPS,
                           env={"CUDASIM_DEVICES": "2", **env})
    ask(not SPEAKS.search(said), name, said[-3000:])
    ask(says in said, name, f"does not say {says}", said[-3000:])
    losses = [r["loss"] for r in lines(log)]
    ask(len(losses) == STEPS and all(map(math.isfinite, losses)), name, f"losses {losses}, wanted {STEPS} finite ones")
    return out


@soft
def test_program(s, name):
    model, options, runs, *has = PROGRAMS[name]
    binary = s.build(True, model, *options)
    for text in has[:1]:
        ask(text in s.ir(model, *options), name, f"the IR is without {text}")
    for i, flags in enumerate(runs):
        says = has[1] if len(has) > 1 and i == 0 else ""
        out = quiet(s, f"{name} {' '.join(flags)}", binary, model, *flags, says=says)
        if out and "resume" in flags:
            quiet(s, f"{name}, resumed", binary, model, f"--resume={out}", f"--steps={2 * STEPS}")


@soft
def reported(s, binary, argument, text):
    p = subprocess.run([binary, argument], capture_output=True, text=True, timeout=60)
    ask((p.returncode != 0 and text in p.stderr) if text else p.returncode == 0 and not SPEAKS.search(p.stderr),
        f"faults {argument}", f"exit {p.returncode}, wanted {text or 'nothing'}", p.stderr[-2000:])


@soft
def instrumented(s, name):
    """Each file of CUDA kernels in the runtime's library calls AddressSanitizer."""
    archive = s.shardc.parent / "lib/cudasim/libshardrt.a"
    calls = {line.split(":")[1] for line in call(["nm", "-A", archive]).splitlines() if "__asan_report_" in line}
    kernels = {f"{p.stem}.o" for p in (HERE.parent.parent / "kernels/cuda").glob("*.cu")}
    ask(kernels and kernels <= calls, name, archive, "built without AddressSanitizer", sorted(kernels - calls))


def test_faults(s):
    source, binary = s.root / "faults.cu", s.root / "faults"
    source.write_text(FAULTS)
    nvcc = s.shardc.parent / "cudasim/nvcc"
    call([nvcc, "-std=c++20", "-O1", "-g", "-c", "-o", f"{binary}.o", source])
    call([nvcc, "-o", binary, f"{binary}.o"])
    reported(s, binary, "33", None)
    reported(s, binary, "34", "AddressSanitizer: ")
    reported(s, binary, "0", "runtime error: store to misaligned address")
    instrumented(s, "instrumented")


if __name__ == "__main__":
    main("asan.py", ["faults", *PROGRAMS], lambda s, name: test_faults(s) if name == "faults" else test_program(s, name))
