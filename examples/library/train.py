"""examples/library/train.py: trains the digits example from Python, with ctypes and numpy and nothing else.

    shardc examples/digits/digits.onnx --emit=lib -o build/digitslib --loss=cross_entropy --bind batch=32
    python examples/library/train.py build/digitslib examples/digits 20 --lr=1e-3

Prints the loss of each step, equal to the last digit to those of the binary, then the held-out loss and accuracy.
"""
import ctypes as C
import os
import sys

import numpy as np


class Array(C.Structure):
    _fields_ = [("name", C.c_char_p), ("dtype", C.c_char_p), ("rank", C.c_int), ("shape", C.POINTER(C.c_int64)),
                ("data", C.c_void_p)]


class Result(C.Structure):
    _fields_ = [("loss", C.c_double), ("grad_norm", C.c_double), ("lr", C.c_double), ("accuracy", C.c_double),
                ("step", C.c_int64), ("skipped", C.c_int)]


class Tensor(C.Structure):
    _fields_ = [("name", C.c_char_p), ("kind", C.c_char_p), ("dtype", C.c_char_p), ("unit", C.c_char_p),
                ("rank", C.c_int), ("shape", C.c_int64 * 8), ("trainable", C.c_int), ("samples", C.c_int)]


DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "uint16", "i64": "int64", "i32": "int32",
          "i16": "int16", "i8": "int8", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "bool": "bool"}
NAMES = {np.dtype(numpy): name for name, numpy in DTYPES.items() if name != "bf16"}
WRITEBACK, RANK0 = 1, 2


class ModelError(RuntimeError):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class Model:
    """The model of libmodel.so in `folder`; options are those of the training binary, such as "--lr=1e-3"."""

    def __init__(self, folder, *options):
        lib = self.lib = C.CDLL(os.path.join(os.path.abspath(folder), "libmodel.so"))
        self.at = C.c_void_p()
        lib.model_error.restype = C.c_char_p
        lib.model_full.restype = C.c_void_p
        for name in "rank", "world", "rows", "steps", "bytes":
            getattr(lib, "model_" + name).restype = C.c_int64
            setattr(self, name, lambda f=getattr(lib, "model_" + name): f(self.at))
        texts = (C.c_char_p * (len(options) + 1))(*[o.encode() for o in options], None)
        code = lib.model_create(texts, C.byref(self.at))
        if code:
            text = self.error()
            self.close()
            raise ModelError(code, text)

    def error(self):
        return self.lib.model_error(self.at).decode()

    def check(self, code):
        if code:
            raise ModelError(code, self.error())

    def close(self):
        if self.at:
            self.lib.model_destroy(self.at)
        self.at = C.c_void_p()

    def tensors(self):
        t, i = Tensor(), 0
        while self.lib.model_get_tensor(self.at, i, C.byref(t)):
            yield t.name.decode(), t.kind.decode(), t.dtype.decode(), tuple(t.shape[:t.rank])
            i += 1

    def call(self, function, arrays):
        """numpy keeps the arrays; they are read during the call only."""
        keep = {k: np.ascontiguousarray(v) for k, v in arrays.items()}
        shapes = [(C.c_int64 * v.ndim)(*v.shape) for v in keep.values()]
        rows = (Array * len(keep))(*[Array(k.encode(), NAMES[v.dtype].encode(), v.ndim, s, v.ctypes.data)
                                     for (k, v), s in zip(keep.items(), shapes)])
        result = Result()
        self.check(function(self.at, rows, len(keep), C.byref(result)))
        return result

    def step(self, **arrays):
        return self.call(self.lib.model_step, arrays)

    def evaluate(self, **arrays):
        return self.call(self.lib.model_evaluate, arrays)

    def get(self, name):
        value = C.c_double()
        self.check(self.lib.model_get_number(self.at, name.encode(), C.byref(value)))
        return value.value

    def set(self, name, value):
        self.check(self.lib.model_set_number(self.at, name.encode(), C.c_double(value)))

    def full(self, flags=0):
        """Name -> array of every parameter and buffer.  The arrays are views of the library's copies and end with full_end."""
        self.check(self.lib.model_full_begin(self.at, flags))
        found = {}
        for name, kind, dtype, shape in self.tensors():
            at = self.lib.model_full(self.at, name.encode()) if kind in ("param", "buffer") else None
            if at:
                kind = np.dtype(DTYPES[dtype])
                n = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
                found[name] = np.frombuffer((C.c_char * n).from_address(at), kind).reshape(shape)
        return found

    def full_end(self):
        self.check(self.lib.model_full_end(self.at))

    def save(self, folder):
        self.check(self.lib.model_save(self.at, folder.encode()))

    def load(self, folder):
        self.check(self.lib.model_load(self.at, folder.encode()))


def main(folder, data, steps, *options):
    model = Model(folder, *options)
    x, labels, x_test, labels_test = (np.load(os.path.join(data, n + ".npy"))
                                      for n in ("x_train", "labels_train", "x_test", "labels_test"))
    rows, world, rank = model.rows(), model.world(), model.rank()
    for step in range(int(steps)):
        at = (np.arange(rows) + (step * world + rank) * rows) % len(x)
        result = model.step(x=x[at], labels=labels[at])
        if rank == 0:
            print(result.step, "%.9g" % result.loss)
    result = model.evaluate(x=x_test, labels=labels_test)
    if rank == 0:
        print("eval", "%.9g" % result.loss, "%.9g" % result.accuracy)
    model.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
