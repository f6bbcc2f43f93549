"""Makes tokens_train.npy and tokens_val.npy (1-D u8, one byte a token) from the text of the Jargon File.

usage: python make_data.py jargon.txt        (Debian: package jargon-text, jargon.txt.gz)
"""
import sys
import unicodedata

import numpy as np

PLAIN = {"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u2014": "--", "\u2013": "-", "\u2026": "..."}


def ascii_text(path):
    text = open(path, encoding="utf-8").read()
    text = text[text.rindex("Welcome to the Jargon File"):]  # after the table of contents
    text = "".join(PLAIN.get(c, c) for c in text)
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").replace(b"\r", b"")


def main():
    tokens = np.frombuffer(ascii_text(sys.argv[1]), dtype=np.uint8)
    cut = len(tokens) * 9 // 10
    np.save("tokens_train.npy", tokens[:cut])
    np.save("tokens_val.npy", tokens[cut:])
    print(f"{cut} training tokens, {len(tokens) - cut} held out")


main()
