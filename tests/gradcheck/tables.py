"""The frontend's tables of operators, read from their text."""
import pathlib
import re
import subprocess

FRONTEND = pathlib.Path(__file__).resolve().parent.parent.parent / "frontend"


def operator_rows():
    """(section, name with its domain, since, until) for each row of onnx_ops.def, in order"""
    section, words = "", {}
    for line in (FRONTEND / "onnx_ops.def").read_text().splitlines():
        title = re.match(r"/\* ---- (.*?)(?: \(.*)? ---- \*/$", line)
        section = title[1] if title else section
        define = re.match(r'#define (\w+) +"([\w.]*)"', line)
        if define:
            words[define[1]] = define[2]
        row = re.match(r'ONNX_\w+\((?:("[\w.]*"|\w+), *)?(\w+), *(\d+), *(\d+),', line)
        if row:
            domain = words[row[1]] if row[1] in words else (row[1] or "").strip('"')
            yield section, f"{domain}.{row[2]}" if domain else row[2], int(row[3]), int(row[4])


def operators():
    return {name for _, name, _, _ in operator_rows()}


def refused_rows():
    """(name with its domain, why) for each row of onnx_refused.def; "*" stands for the rest of a domain"""
    table = FRONTEND / "onnx_refused.def"
    if not table.exists():
        return
    text = subprocess.run(["cc", "-E", "-P", "-xc", "-DREFUSED(domain,op,why)=ROW domain |op| why @@",
                           "-DREFUSED_DOMAIN(domain,why)=ROW domain |*| why @@", str(table)],
                          capture_output=True, text=True, check=True).stdout
    for domain, op, why in re.findall(r'ROW *"(.*?)" *\|(.*?)\|(.*?)@@', text, re.S):
        parts = re.findall(r'"((?:[^"\\]|\\.)*)"', why)
        yield f"{domain}.{op.strip()}" if domain else op.strip(), "".join(parts).replace('\\"', '"')
