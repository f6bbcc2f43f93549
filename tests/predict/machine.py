"""Machine files as shardc reads them."""
import json
import pathlib


def members(path):
    """The members of a machine file, with those of the files that it is like."""
    path = pathlib.Path(path)
    own = json.loads(path.read_text())
    return {**(members(path.parent / own["like"]) if "like" in own else {}), **own}


def numbers(path):
    return {key: value[0] for key, value in members(path).items() if isinstance(value, list) and len(value) == 2}
