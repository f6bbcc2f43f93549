"""The step benchmark with tiny models: what it prints is whole, and a peer that fails is printed as such.

usage: python quick.py SHARDC RATES WORKDIR [TEST..]
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import unittest

STEP = pathlib.Path(__file__).resolve().parents[2] / "bench" / "step.py"
sys.path.insert(0, str(STEP.parent))
import cases  # noqa: E402
import step  # noqa: E402

CLASSES = ["products", "convolutions", "attention", "recurrences", "norms", "elementwise", "loss", "optimizer",
           "casts and reorders", "communication", "rest"]


def bench(*words, **environment):
    shardc, rates, work = sys.argv[1:4]
    json_file = pathlib.Path(work) / "rows.jsonl"
    json_file.parent.mkdir(parents=True, exist_ok=True)
    json_file.unlink(missing_ok=True)
    parts = [sys.executable, str(STEP), shardc, rates, work, "--quick", "--rounds", "1", "--steps", "2", "--json",
             str(json_file), *words]
    run = subprocess.run(parts, env={**os.environ, **environment}, capture_output=True, text=True)
    rows = [json.loads(line) for line in json_file.read_text().splitlines()] if json_file.exists() else []
    return run.returncode, run.stdout + run.stderr, rows


class Rows:
    """What any run prints and writes; `run` is that of a class, `name` its row."""

    def of(self, metric):
        return [r for r in self.rows if r["metric"] == metric]

    def test_status(self):
        self.assertEqual(self.status, 0, self.said)

    def test_classes_are_the_step(self):
        (r,) = self.of("split_ms")
        self.assertEqual(list(r["classes"]), CLASSES)
        self.assertAlmostEqual(sum(c["ms"] for c in r["classes"].values()), r["step"], 6)
        self.assertLess(abs(r["step"] - r["logged"]), 0.03 * r["logged"] + 0.05)
        for c in CLASSES:
            self.assertRegex(self.said, rf"(?m)^  {c} +[0-9.]+ +[0-9.]+% +[0-9.]+ +-?[0-9.]+% +[0-9]+$")
        for c in CLASSES:
            part = r["classes"][c]
            self.assertEqual((part["ms"] > 0, part["ops"] > 0), (c in self.busy, c in self.busy), c)
            self.assertEqual(part["floor"] > 0, c in self.busy - {"communication"}, c)

    def test_peers_agree(self):
        tried = [r for r in self.of("tried") if "failed" not in r]
        self.assertEqual([r["peer_name"] for r in tried], [f"PyTorch eager{how}" for how in self.eager])
        for r in tried:
            self.assertLess(r["loss_differs"], 1e-2 if "bf16" in r["case"] else 1e-5)
            self.assertGreater(min(r["rounds"]), 0)

    def test_time_and_memory(self):
        (time,), (memory,) = self.of("step_ms"), self.of("resident_mib")
        for r in (time, memory):
            self.assertLessEqual(r["ratio_min"], r["ratio"])
            self.assertLessEqual(r["ratio"], r["ratio_max"])
        self.assertGreater(memory["ours"], memory["planned"])


class Compiled(Rows, unittest.TestCase):
    """PyTorch's compiler has no C++ compiler here, and nothing from an earlier run."""
    busy = {"products", "attention", "norms", "elementwise", "loss", "optimizer", "communication", "rest"}
    eager = ["", ", memory kept"]

    @classmethod
    def setUpClass(cls):
        cls.status, cls.said, cls.rows = bench("--only", "gpt2-124m-bf16", "--any-half", "--modes", "eager,compile",
                                               CXX="/nonexistent", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")

    def test_peers_that_fail(self):
        failed = [r for r in self.of("tried") if "failed" in r]
        self.assertEqual([r["peer_name"] for r in failed], ["PyTorch compile", "PyTorch compile, memory kept"])
        for r in failed:
            self.assertIn(f"  {r['peer_name']:45} failed: exit 1: ", self.said)

    def test_rates(self):
        (rates,) = self.of("rates")
        self.assertEqual(set(rates["products"]), {"f32", "bf16"})
        self.assertTrue(all(rate > 0 for _, rate in rates["bandwidth"]))


class Images(Rows, unittest.TestCase):
    busy = {"convolutions", "norms", "elementwise", "loss", "optimizer", "casts and reorders", "communication", "rest"}
    eager = ["", ", memory kept", ", channels-last", ", channels-last, memory kept"]

    @classmethod
    def setUpClass(cls):
        cls.status, cls.said, cls.rows = bench("--only", "unet", "--modes", "eager")


class Refused(unittest.TestCase):
    def test_unknown_row(self):
        status, said, rows = bench("--only", "gpt3")
        self.assertEqual((status, rows), (2, []))
        self.assertIn("no row is called gpt3; rows: gpt2-124m, ", said)

    def test_unknown_mode(self):
        status, said, rows = bench("--modes", "lazy")
        self.assertEqual((status, rows), (2, []))
        self.assertIn("no mode is called lazy; modes: eager, compile, max-autotune", said)

    def test_losses_that_differ(self):
        """In the first step, by more than the dtype explains; in later ones; and those that are no numbers."""
        ours, same, first, later, nan = (step.Entry(None) for _ in range(5))
        ours.losses, same.losses, nan.losses = [2.0, 1.0], [2.0, 1.01], [2.0, math.nan]
        first.losses, later.losses = [2.005, 1.0], [2.0, 1.03]
        peers = [same, first, later, nan]
        self.assertEqual(step.differing(cases.rows(True)["mlp"], ours, peers), [first, later, nan])
        self.assertEqual(step.differing(cases.rows(True)["bert-base-bf16"], ours, peers), [later, nan])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
