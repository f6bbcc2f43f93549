"""What the GPU kit needs of the machine: its GPU, NVIDIA's libraries, programs that are run and timed.

The one idea: a folder of the kit holds what few machines have; cuBLAS, cuDNN and NCCL, 1.8 GB, come from the CUDA
toolkit or the packages that PyTorch installs beside itself, and a missing one is said before anything runs.
"""
import datetime
import glob
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
LIBRARIES = {"libcublasLt.so.13": "cuBLAS 13: the CUDA Toolkit 13, or pip install nvidia-cublas",
             "libcudnn.so.9": "cuDNN 9: pip install nvidia-cudnn-cu13"}
NCCL = "libnccl.so.2"
# An emulation (make cudasim) brings its own.
EMULATED = "cudasim"
SMI = 30  # seconds that nvidia-smi may take: checks tell more than it does
PATIENCE = 2  # seconds that killed processes have to go: a driver that hangs holds them for ever


class OutOfTime(Exception):
    """The time of a check is over; said: what the process had printed that was waited for."""

    said = ""


def folders(more):
    """Where NVIDIA's libraries may be, in the order of search."""
    places = [pathlib.Path(p) for p in more]
    for root in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path}:
        places += map(pathlib.Path, sorted(glob.glob(f"{root}/nvidia/*/lib")))
        places.append(pathlib.Path(root) / "torch" / "lib")
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), *sorted(glob.glob("/usr/local/cuda*"))[::-1]]
    host = platform.machine()
    target = f"targets/{'sbsa' if host == 'aarch64' else host}-linux/lib"
    places += [pathlib.Path(h) / lib for h in homes if h for lib in ("lib64", "lib", target)]
    places += [pathlib.Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    places += map(pathlib.Path, (f"/usr/lib/{host}-linux-gnu", "/usr/lib64"))
    return places


def find_libraries(more):
    """{name: folder} of what was found."""
    places = folders(more)
    return {name: next((p for p in places if os.path.exists(p / name)), None) for name in [*LIBRARIES, NCCL]}


class Machine:
    def __init__(self, arch, libraries, seconds):
        """seconds: how long nvidia-smi may take, at most SMI."""
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # all programs count GPUs as nvidia-smi does
        self.found = find_libraries(libraries)
        self.gpus = gpus_seen(min(seconds, SMI))
        self.arch = arch or self.choose()
        self.bin = HERE / "bin" / self.arch
        if not self.bin.is_dir():
            sys.exit(f"{HERE.name}: there are no programs for {self.arch} here; there are for "
                     f"{', '.join(sorted(p.name for p in (HERE / 'bin').iterdir()))}")
        missing = [f"  {name}: {hint}" for name, hint in LIBRARIES.items() if not self.found[name]]
        if missing and self.arch != EMULATED:
            sys.exit("\n".join([f"{HERE.name}: libraries are missing (--libs=FOLDER names where they are):", *missing]))
        # What was there stays: in some containers the driver is found by it alone.
        paths = dict.fromkeys([str(HERE / "lib"), *(str(p) for p in self.found.values() if p),
                               *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))])
        # With a spin count programs do not execute themselves once more, which tools that look into them would miss.
        self.env = {"GOMP_SPINCOUNT": "2000", **os.environ, "LD_LIBRARY_PATH": ":".join(paths), "SHARDRT_LIB": str(self.bin)}

    def choose(self):
        """The arch in the folder for the GPU; otherwise any, whose program then says what is missing."""
        there = sorted(p.name for p in (HERE / "bin").iterdir())
        if not self.gpus:
            return there[-1]
        major, minor = self.gpus[0]["compute_cap"].split(".")
        return next((a for a in (f"sm_{major}{minor}a", f"sm_{major}{minor}") if a in there), there[-1])

    def facts(self):
        return dict(gpus=self.gpus, arch=self.arch, python=platform.python_version(), time=str(
            datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)),
            libraries={k: str(v) if v else None for k, v in self.found.items()})

    def run(self, parts, plain=False, **env):
        """Exit status and what was printed.  plain: no program of ours.

        It is a group of its own, of which nothing is left.  A file takes what it prints: that is there, too, where the
        time is over, and no process that keeps a pipe open is waited for.
        """
        with tempfile.TemporaryFile("w+", errors="replace") as out:
            child = subprocess.Popen([str(p) for p in parts], env={**(os.environ if plain else self.env), **env},
                                     stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                child.wait()
            except OutOfTime as e:
                end(child.pid)
                e.said = whole(out)
                raise
            end(child.pid)
            return child.returncode, whole(out) or no_room()

    def tool(self, name):
        """A tool of the CUDA toolkit, on PATH or beside nvcc."""
        homes = [os.environ.get("CUDA_HOME", ""), *sorted(glob.glob("/usr/local/cuda*"))[::-1]]
        return shutil.which(name) or next((p for h in homes if h for p in [shutil.which(f"{h}/bin/{name}")] if p), None)


def no_room():
    """What there is to say of a program that printed nothing, where what it prints has no room."""
    folder = tempfile.gettempdir()
    return "" if shutil.disk_usage(folder).free else f"{folder} is full (TMPDIR names another folder)"


def whole(file):
    file.seek(0)
    return file.read()


def end(pid):
    """Kills a process, and its group where it leads one."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
            return
        except ProcessLookupError:
            pass


def stat_of(pid):
    """State and parent of a process; of one that is gone a dead one."""
    try:
        state, parent = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        return state, int(parent)
    except OSError:
        return "X", 0


def children(pid):
    """By what every process says of its parent: not every kernel lists children."""
    return [int(p.name) for p in pathlib.Path("/proc").glob("[0-9]*") if stat_of(p.name)[1] == pid]


def age():
    """Seconds since this process began, interpreter and imports included; 0 where the system says what cannot be."""
    try:
        ticks = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return 0
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
    return seconds if 0 <= seconds <= 60 else 0


def lives(pid):
    return stat_of(pid)[0] not in "ZX"


def reaped(pid):
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # a thread that waited for it was first
        return True


def end_children():
    """Kills what was started here and has not ended; what does not go is left behind."""
    left, until = children(os.getpid()), time.monotonic() + PATIENCE
    for pid in left:
        end(pid)
    while (left := [pid for pid in left if not reaped(pid)]) and time.monotonic() < until:
        time.sleep(0.01)


def nvidia_smi(wanted, gpus, seconds):
    """Its lines, with what is wanted of some GPUs ("": of all); none where it fails or does not end in time.  One that a
    driver holds is not waited for."""
    command = ["nvidia-smi", "--query-gpu=" + ",".join(wanted), "--format=csv,noheader", *(["-i", gpus] if gpus else [])]
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        try:
            child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, start_new_session=True)
        except OSError:
            return []
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end(child.pid)
        return [line for line in whole(out).splitlines() if line.strip()] if status == 0 else []


def visible():
    """The GPUs that programs see, by the numbers or names that nvidia-smi takes, too; "": all."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")


def gpus_seen(seconds):
    """What is known of each GPU that programs see.  Other lines, such as warnings, are not of a GPU."""
    ask = ["name", "compute_cap", "memory.total", "driver_version", "clocks.max.sm", "power.limit"]
    told = [dict(zip(ask, map(str.strip, line.split(",")))) for line in nvidia_smi(ask, visible(), seconds)]
    return [gpu for gpu in told if len(gpu) == len(ask) and re.fullmatch("[0-9]+[.][0-9]+", gpu["compute_cap"])]


def memory_used():
    """Bytes of memory in use of the GPU that a program of one rank takes; 0 where nobody says."""
    lines = nvidia_smi(["memory.used"], visible().split(",")[0], 20)
    try:
        return int(lines[0].split()[0]) << 20
    except (ValueError, IndexError):
        return 0


def steps(path):
    """The lines of a log that are steps."""
    with open(path) as f:
        return [r for r in map(json.loads, f) if "step_ms" in r]


def wants_gpu(machine, commands):
    """Ends with the words of the last program where none of them runs at all.  Where nvidia-smi names a GPU nobody
    asks: whatever is wrong, other rows say what is not."""
    for parts in commands:
        status, text = machine.run(parts)
        if status == 0:
            return
    sys.exit(f"{HERE.name}: no program runs here; {parts[0].name} says:\n{text.strip()}")
