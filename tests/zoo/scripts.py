"""Runs the scripts of docs/models.md, one section after another: its blocks in their order, python and sh.

usage: python scripts.py SHARDC WORKDIR [SECTION..]"""
import os
import pathlib
import re
import subprocess
import sys
import warnings

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "python"))


def sections(text):
    """(title, [(language, code)]) of those that have code."""
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        blocks = re.findall(r"^```(python|sh)\n(.*?)^```", part, re.M | re.S)
        if blocks:
            yield part.splitlines()[0], blocks


def run(title, blocks, folder):
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    subprocess.run(["rm", "-rf", "ckpt", "train", "trained.safetensors"], check=True)
    names = {}
    for language, code in blocks:
        if language == "python":
            exec(compile(code, title, "exec"), names)
        else:
            done = subprocess.run(["sh", "-e", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  check=False)
            if done.returncode:
                raise RuntimeError(done.stdout[-3000:])


def main():
    shardc, work = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    os.environ["PATH"] = f"{shardc.parent}:{os.environ['PATH']}"
    warnings.simplefilter("ignore")
    count = failed = 0
    for title, blocks in sections((HERE.parents[1] / "docs/models.md").read_text()):
        if sys.argv[3:] and title not in sys.argv[3:]:
            continue
        count += 1
        try:
            run(title, blocks, work / title.replace(" ", "-"))
        except Exception as e:
            failed += 1
            print(f"FAIL {title}: {type(e).__name__}: {e}")
    print(f"scripts of docs/models.md: {count - failed} of {count} passed")
    sys.exit(failed > 0 or not count)


if __name__ == "__main__":
    main()
