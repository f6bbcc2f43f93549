"""tests/e2e/ckpt.py: a checkpoint of any kind read by docs/checkpoints.md alone, with the safetensors library, against
one of kind full.

usage: ckpt.py DIR FULL      prints how many tensors are equal; exit status 1 where one is not"""
import json
import sys
import zlib
from pathlib import Path

import numpy
from safetensors import safe_open
from safetensors.numpy import load_file


def read_files(folder):
    """Every file's tensors, by the library; checksums and alignment as the page says."""
    files = {}
    for path in sorted(folder.glob("*.safetensors")):
        files[path.name] = load_file(path)
        with safe_open(path, "numpy") as f:
            meta = f.metadata()
        assert meta["format"] == "pt", path
        raw = path.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        assert start % 64 == 0, path
        header = json.loads(raw[8:start])
        for name, tensor in files[path.name].items():
            assert meta["crc32:" + name] == "%08x" % zlib.crc32(tensor.tobytes()), (path, name)
            begin, end = header[name]["data_offsets"]
            assert begin % (64 if (end - begin) % 64 == 0 else tensor.itemsize) == 0, (path, name)
    return files


def read_tensors(folder):
    """{section: {name: array}}"""
    layout = json.loads((folder / "state.json").read_text())["layout"]
    kind, files = layout["kind"], read_files(folder)
    if kind == "full":
        assert sorted(layout.get("files", files)) == sorted(files), folder
        return {name.removesuffix(".safetensors"): tensors for name, tensors in files.items()}
    assert "files" not in layout, folder
    index = json.loads((folder / "index.json").read_text())
    assert index["format"] == 1 and index["kind"] == kind
    dtypes = {"F32": numpy.float32, "I64": numpy.int64}
    out = {}
    for section, tensors in index["tensors"].items():
        for name, t in tensors.items():
            whole, end = numpy.empty(int(numpy.prod(t["shape"])), dtypes[t["dtype"]]), 0
            for file, tensor, at, first, n in sorted(t["pieces"], key=lambda p: p[3]):
                assert file.startswith(section + "-") and first == end, (name, file, first)
                assert kind == "local" or (tensor == name and at == 0), name
                assert files[file][tensor].ndim == 1 and at + n <= files[file][tensor].size, name
                whole[first:first + n] = files[file][tensor][at:at + n]
                end += n
            assert end == whole.size, name
            out.setdefault(section, {})[name] = whole.reshape(t["shape"])
    return out


folder, full = Path(sys.argv[1]), Path(sys.argv[2])
mine, wanted = read_tensors(folder), read_tensors(full)
if "buffers-rank" not in mine:
    wanted.pop("buffers-rank", None)
bad = [f"{section}: {set(tensors) ^ set(mine.get(section, {}))}" for section, tensors in wanted.items()
       if set(tensors) != set(mine.get(section, {}))]
for section, tensors in wanted.items():
    for name, t in tensors.items():
        m = mine.get(section, {}).get(name, t)
        if m.shape != t.shape or m.dtype != t.dtype or m.tobytes() != t.tobytes():
            bad.append(name)
print(sum(map(len, wanted.values())) - len(bad), "tensors equal", *bad)
sys.exit(bool(bad))
