# SPDX-License-Identifier: Apache-2.0
"""What tools/choice_sweep.py lists and computes. Nothing is measured here."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import choice_sweep


def measured(ratios, mebibytes):
    return {"ratios": ratios, "bytes": mebibytes * 2**20}


class Plans(unittest.TestCase):
    def test_at_most_48_different_plans_of_the_same_images(self):
        for setting in choice_sweep.SETTINGS.values():
            plans = choice_sweep.named_plans(setting)
            self.assertLessEqual(len(plans), 48)
            self.assertEqual(len({str(plan["sets"] + [plan["images_per_rank"]]) for plan in plans.values()}), len(plans))
            for name, plan in plans.items():
                micro_batches = int(name.split(", m ")[1])
                self.assertEqual(plan["images_per_rank"] * (choice_sweep.RANKS // plan["stages"]) * micro_batches, setting["images"], name)

    def test_kinds_of_layouts_are_all_there(self):
        text = " ".join(choice_sweep.named_plans(choice_sweep.SETTINGS["S/16, 900 MiB, shared memory"]))
        for kind in ("replicate", "zero1", "zero2", "zero3", "tensor 2", "gpipe", "1f1b", "interleaved", "recompute", "6 blocks"):
            self.assertIn(kind, text)


class Results(unittest.TestCase):
    def test_the_fastest_keep_the_memory(self):
        found = {"searched": measured([1.0], 90), "a": measured([0.5, 9.0, 0.6], 101), "b": measured([1.2, 1.3, 1.1], 100),
                 **{name: measured([1.0 + i], 50) for i, name in enumerate("cdefg")}}
        self.assertEqual(choice_sweep.fastest({"memory": "100MiB"}, found), ["c", "b", "d", "e", "f"])

    def test_searched_plan_beside_the_best(self):
        # The best takes 0.8 of the searched plan's time, so the searched one is 25 % behind.
        best, behind, (low, high) = choice_sweep.judged({"searched": measured([1.0], 1), "a": measured([0.8] * 15, 1), "b": measured([0.9] * 15, 1)})
        self.assertEqual(best, "a")
        for value in (behind, low, high):
            self.assertAlmostEqual(value, 0.25)

    def test_a_report_without_measurements_is_refused(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(choice_sweep.main(["report", "--output", folder]), 2)
        self.assertIn("is not measured yet", said.getvalue())


if __name__ == "__main__":
    unittest.main()
