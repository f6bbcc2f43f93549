"""Makes x_train.npy, labels_train.npy, x_test.npy and labels_test.npy from the 1,797 handwritten digits of the UCI set
that scikit-learn distributes: x is f32 [N,1,8,8] in 0..1, labels is i64 [N].  One digit in five is held out.

usage: python make_data.py     (needs scikit-learn)
"""
import numpy as np
from sklearn.datasets import load_digits


def main():
    digits = load_digits()
    x = (digits.images[:, None] / 16).astype(np.float32)
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(x))
    held_out, train = order[: len(x) // 5], order[len(x) // 5 :]
    for name, rows in (("train", train), ("test", held_out)):
        np.save(f"x_{name}.npy", x[rows])
        np.save(f"labels_{name}.npy", labels[rows])
        print(name, len(rows))


main()
