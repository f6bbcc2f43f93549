"""tests/e2e/library.py: what examples/library/train.py's Model does beyond training: full parameters as arrays of
numpy, hyper-parameters, checkpoints, errors.

usage: library.py LIBRARY-FOLDER DIGITS-FOLDER SAVE-FOLDER
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../examples/library"))
import train as library  # noqa: E402

folder, data, save = sys.argv[1:]
x, labels = np.load(data + "/x_train.npy"), np.load(data + "/labels_train.npy")
m = library.Model(folder, "--threads=1", "--lr=1e-2")
B = m.rows()


def refused(code, text, function, *args, **kw):
    try:
        function(*args, **kw)
    except library.ModelError as e:
        assert e.code == code and text in str(e), (e.code, str(e))
        return
    raise AssertionError("not refused: " + text)


m.step(x=x[:B], labels=labels[:B])
refused(1, "the array is f64", m.step, x=x[:B].astype("float64"), labels=labels[:B])
refused(1, "there is no input", m.step, y=x[:B], labels=labels[:B])
refused(2, "unknown flag", library.Model, folder, "--lrr=1")
assert m.get("lr") == 0.01
m.set("lr", 0.5)
assert m.step(x=x[:B], labels=labels[:B]).lr == 0.5

before = m.evaluate(x=x[:50], labels=labels[:50]).loss
full = m.full(library.WRITEBACK)
saved = {k: v.copy() for k, v in full.items()}
for v in full.values():
    v += np.ones_like(v)
m.full_end()
assert m.evaluate(x=x[:50], labels=labels[:50]).loss != before
for k, v in m.full(library.WRITEBACK).items():
    assert np.array_equal(v, saved[k] + np.ones_like(v)), k
    v[...] = saved[k]
m.full_end()
assert m.evaluate(x=x[:50], labels=labels[:50]).loss == before
m.save(save)
want = [m.step(x=x[i:i + B], labels=labels[i:i + B]).loss for i in range(3)]
other = library.Model(folder, "--threads=1", "--resume=" + save)
assert other.get("lr") == 0.5, "what was set is in the checkpoint"
assert [other.step(x=x[i:i + B], labels=labels[i:i + B]).loss for i in range(3)] == want
m.load(save)
assert [m.step(x=x[i:i + B], labels=labels[i:i + B]).loss for i in range(3)] == want
m.close()
other.close()
