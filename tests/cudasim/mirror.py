"""Writes the calls by which the kernels' tests reach CUDA kernels: each takes the host's copies of tensors and gives the
kernel the device's (tests/cudasim/mirror.h).

The one idea: a prototype says it all.  A pointer to const is read, another one is written too; lists of sizes, values and
descriptors stay the host's, by the names and types that kernels/kernels.h gives them.

usage: mirror.py NAMES.h CALLS.c <PREPROCESSED      NAMES.h: included before all else by tests; CALLS.c: the calls
"""
import pathlib
import re
import sys

# What is the host's: names of lists of sizes and of values; types of descriptors and of texts.
HOST = {"dim", "xdim", "perm", "stride", "start", "step", "chunk", "value", "values"}
HOST_SIZES = {"before", "after"}  # of const int64_t
HOST_TYPES = re.compile(r"KPrim \*$|const K(?!Update)\w+ \*$|const char \*$")
# What computes on the host in CUDA programs, too.
ON_HOST = re.compile(r"k_(at|norm_join|fold|cast_wide|cast_f8_wide|copy_wide|cast_by_chance|init_\w+|pack_\w+|bad_take|cuda_\w+|prim_\w+)$")
PROTOTYPE = re.compile(r"\bvoid\s+(k_\w+)\s*\(([^;{}]*)\)\s*;")


def split(parameter):
    """Type and name; an array is a pointer."""
    parameter = re.sub(r"\[\d*\]$", "", array := parameter.strip())
    kind, name = re.fullmatch(r"(.*?)(\w+)", parameter, re.S).groups()
    return kind.strip() + (" *" if array.endswith("]") else ""), name


def is_host(kind, name):
    return (not kind.endswith("*") and not kind.endswith("*const")) or HOST_TYPES.match(kind) or name in HOST or (
        kind == "const int64_t *" and name in HOST_SIZES)


def given(call, kind, name):
    """The kernel's argument."""
    what = f'"{call}: {name}"'
    if is_host(kind, name):
        return name
    if kind == "const KUpdate *":
        return f"mirror_update({name}, {what})"
    if kind in ("const void *const *", "void *const *"):
        return f"mirror_list({name}, n, {str(kind[0] == 'v').lower()}, {what})"
    if kind.count("*") != 1:
        sys.exit(f"mirror.py: {call}: what is a {kind}?")
    return f"mirror_{'read' if kind.startswith('const ') else 'write'}({name}, {what})"


def call_of(name, parameters):
    head = f"void test_{name}({', '.join(f'{kind} {p}' for kind, p in parameters)})"
    lines = [f"{head};", head, "{"]
    for kind, p in parameters:
        new = given(name, kind, p)
        if new != p:
            lines.append(f"\t{kind} {p}_ = {new};")
    lines += ["\tmirror_hide();",
              f"\t{name}({', '.join(p if given(name, kind, p) == p else p + '_' for kind, p in parameters)});",
              "\tmirror_show();", "}"]
    return "\n".join(lines)


def main():
    found = {name: [split(p) for p in text.split(",")] for name, text in PROTOTYPE.findall(sys.stdin.read())
             if not ON_HOST.match(name)}
    if len(found) < 200:
        sys.exit(f"mirror.py: only {len(found)} kernels are declared")
    names, calls = map(pathlib.Path, sys.argv[1:])
    names.write_text("".join(f"#define {name} test_{name}\n" for name in found))
    calls.write_text("".join(f"#undef {name}\n" for name in found) +
                     '#include "kernels/cuda/cuda.h"\n#include "tests/cudasim/mirror.h"\n\n' +
                     "\n\n".join(call_of(*f) for f in found.items()) + "\n")


if __name__ == "__main__":
    main()
