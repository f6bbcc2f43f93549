"""What the step benchmark trains: one step of each."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "parity"))
from models import Case, gpt2, resnet  # noqa: E402

CASES = {
    "gpt2-124m": Case(gpt2(), 4, (256,), 50257, tokens=True, optimize=True),
    "resnet50": Case(resnet("bottleneck", [3, 4, 6, 3], [256, 512, 1024, 2048], 1000), 8, (3, 224, 224), 1000,
                     batch_norm=True, image=True),
}
