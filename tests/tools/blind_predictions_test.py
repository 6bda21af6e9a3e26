# SPDX-License-Identifier: Apache-2.0
"""What tools/blind_predictions.py draws, computes and refuses. Nothing is measured here."""
import collections
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import blind_plans
import blind_predictions
import blind_profiles
import blind_report
import measured_steps


class Draw(unittest.TestCase):
    def test_a_seed_draws_the_same_plans_again_and_another_seed_others(self):
        self.assertEqual(blind_plans.draw_plans(7, 32, 2), blind_plans.draw_plans(7, 32, 2))
        self.assertNotEqual(blind_plans.draw_plans(7, 32, 2), blind_plans.draw_plans(8, 32, 2))

    def test_values_of_a_factor_occur_equally_often_or_once_more(self):
        for count, ranks, seeds in ((32, 2, range(20)), (8, 4, range(20)), (3, 2, range(5))):
            for seed in seeds:
                rows, _ = blind_plans.draw_rows(seed, count, ranks)
                for factor, values in blind_plans.factors_of(ranks).items():
                    found = collections.Counter(row[factor] for row in rows)
                    least, rest = divmod(count, len(values))
                    expected = [least + 1] * rest + [least] * (len(values) - rest)
                    self.assertEqual(sorted((found[value] for value in values), reverse=True), expected, (seed, factor))

    def test_plans_differ_and_can_be_trained(self):
        for seed in range(20):
            rows, _ = blind_plans.draw_rows(seed, 32, 2)
            self.assertEqual(len({json.dumps(row) for row in rows}), 32)
            for plan in blind_plans.draw_plans(seed, 32, 2):
                keys = dict(one.split("=") for one in plan["sets"])
                micro_batches = int(keys.get("parallel.micro_batches", plan["text"].split(", ")[-1].split()[0]))
                ranks_of_stage = 2 // plan["stages"]
                self.assertEqual(int(keys["train.batch"]), plan["images_per_rank"] * ranks_of_stage * micro_batches)
                self.assertTrue(plan["stages"] == 1 or micro_batches > 1, plan)

    def test_interleaved_pipelines_have_a_micro_batch_for_each_stage(self):
        for seed in range(60):
            schedules = collections.Counter()
            for plan in blind_plans.draw_plans(seed, 16, 4):
                keys = dict(one.split("=") for one in plan["sets"])
                schedule = keys.get("parallel.schedule", "")
                schedules[schedule] += 1
                if schedule == "interleaved":
                    self.assertEqual(int(keys["parallel.micro_batches"]) % plan["stages"], 0, (seed, plan))
            counts = [schedules[name] for name in blind_plans.SCHEDULES]
            self.assertLessEqual(max(counts) - min(counts), 1, seed)

    def test_more_plans_than_there_are_is_refused(self):
        with self.assertRaisesRegex(blind_plans.Refused, "--count is 5000"):
            blind_plans.draw_plans(1, 5000, 2)


class SharedPasses(unittest.TestCase):
    def test_times_that_do_not_depend_on_the_transport_are_means(self):
        def profile(seconds):
            units = [{"kind": "block", "tensor": tensor, "batch": 1, "recompute": "none", "forward": seconds, "backward": 2 * seconds,
                      "spread": seconds} for tensor in (1, 2)]
            return {"units": units, "step_seconds": seconds, "links": [seconds], **{key: seconds for key in blind_profiles.OF_PASSES}}

        found = blind_profiles.with_shared_passes({"shared memory": profile(1.0), "TCP": profile(2.0), "throttled": profile(6.0)})
        forward = {transport: [unit["forward"] for unit in one["units"]] for transport, one in found.items()}
        self.assertEqual(forward, {"shared memory": [3.0, 1.0], "TCP": [3.0, 4.0], "throttled": [3.0, 4.0]})
        self.assertEqual(found["TCP"]["units"][0]["backward"], 6.0)
        self.assertEqual([found["TCP"][key] for key in ("links", "step_seconds", "unit_lag")], [[2.0], 2.0, 3.0])

    def test_profiles_of_earlier_versions_have_neither_lag_nor_slowdown(self):
        times = dict.fromkeys(blind_profiles.OF_PASSES, 1.0)
        del times["unit_lag"], times["busy_ranks_slowdown"]
        other = {**times, "unit_lag": 4.0, "busy_ranks_slowdown": 1.5}
        found = blind_profiles.with_shared_passes({"TCP": {"units": [], **times}, "throttled": {"units": [], **other}})
        self.assertEqual([found["TCP"][key] for key in ("unit_lag", "busy_ranks_slowdown")], [2.0, 1.25])


class Sample(unittest.TestCase):
    class Training:
        """Steps take 1 s, 2 s, ...; those of the first calls were slowed."""
        name = "1"

        def __init__(self, slowed):
            self.calls, self.slowed = 0, slowed

        def steps(self, count):
            self.calls += 1
            return [float(self.calls)] * count, self.calls <= self.slowed

    def test_what_was_slowed_is_taken_again(self):
        found = measured_steps.sample(self.Training(slowed=2), 2)
        self.assertEqual((found["seconds"], found["slowed"], found["attempts"]), ([3.0, 3.0], False, 3))

    def test_without_patience_the_first_counts(self):
        found = measured_steps.sample(self.Training(slowed=2), 2, patience=0)
        self.assertEqual((found["seconds"], found["slowed"], found["attempts"]), ([1.0, 1.0], True, 1))

    def test_where_nothing_was_looked_at_the_sample_does_not_say_slowed(self):
        training = self.Training(slowed=0)
        with unittest.mock.patch.object(training, "steps", return_value=([1.0], None)):
            self.assertNotIn("slowed", measured_steps.sample(training, 1))

    def test_for_a_while(self):
        found = measured_steps.sample(self.Training(slowed=10**9), 1, patience=0.01)
        self.assertTrue(found["slowed"])
        self.assertEqual(found["seconds"], [float(found["attempts"])])

    def test_the_report_says_how_many_were_slowed(self):
        self.assertEqual(blind_predictions.slowed_text([{"slowed": True}, {"slowed": False}, {}]),
                         " While something else slowed a core: 50.0% of the samples.")
        self.assertEqual(blind_predictions.slowed_text([{}]), "")


class Report(unittest.TestCase):
    def test_a_ratio_is_to_the_mean_of_the_references_around_it(self):
        def sample(of, name, *seconds):
            return {"kind": "sample", "of": of, "name": name, "seconds": seconds}
        records = [{"kind": "begin"}, sample("before", "r", 1.0), sample("plan", "1", 2.0, 4.0), sample("after", "r", 2.0),
                   sample("plan", "2", 3.0), sample("after", "r", 4.0), sample("before", "q", 10.0), sample("plan", "1", 5.0),
                   sample("after", "q", 10.0), {"kind": "memory"}]
        self.assertEqual(blind_report.ratios_of(records), {"1": [2.0, 0.5], "2": [1.0]})

    def test_bootstrap_interval_of_known_data(self):
        self.assertEqual(blind_report.bootstrap([2.0] * 9), (2.0, 2.0))
        # The mean of n values with variance s^2 has the standard error s / sqrt(n): here 1 / 20.
        values = [1.0, -1.0] * 200
        low, high = blind_report.bootstrap(values, statistic=lambda drawn: sum(drawn) / len(drawn))
        self.assertAlmostEqual(low, -1.96 / 20, delta=0.01)
        self.assertAlmostEqual(high, 1.96 / 20, delta=0.01)

    def test_peaks_of_stages_are_those_of_their_largest_rank(self):
        self.assertEqual(blind_report.stage_peaks([1, 5, 3, 2], 2), [5, 3])
        self.assertEqual(blind_report.stage_peaks([1, 5, 3, 2], 1), [5])

    def test_limits(self):
        def met(errors, memory_errors):
            return [met for *_, met in blind_report.judged(errors, memory_errors)]
        self.assertEqual(met([0.03, -0.03] * 16, [0.04, -0.04]), [True] * 5)
        self.assertEqual(met([0.031, -0.031] * 16, [0.041, -0.041]), [False, True, True, False, True])
        self.assertEqual(met([0.08] * 3 + [0.0] * 29, [0.0]), [True] * 5)
        self.assertEqual(met([0.08] * 4 + [0.0] * 28, [0.0]), [True, False, True, True, True])
        self.assertEqual(met([-0.151] + [0.0] * 31, [0.0]), [True, True, False, True, True])
        self.assertEqual(met([0.0], [-0.05, 0.0]), [True] * 4 + [False])  # measured / predicted is 1.053

    def test_ranks_that_share_cores_have_no_limits(self):
        for cores, code, text in ((4, 1, "| largest error of step time | 50.00% | at most 15% | not met |"), (2, 0, "No limits are set")):
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                self.assertEqual(blind_predictions.print_limits(4, cores, [0.5], [0.0]), code)
            self.assertIn(text, said.getvalue())


class Seal(unittest.TestCase):
    def run_verb(self, *words):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            code = blind_predictions.main([str(word) for word in words])
        return code, errors.getvalue()

    def test_predictions_that_changed_or_came_late_are_refused(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            plans, predictions, seal = folder / "plans.json", folder / "predictions.json", folder / "predictions.sha256"
            self.assertEqual(self.run_verb("draw", "--seed", 1, "--output", plans)[0], 0)
            self.assertIn("exists already", self.run_verb("draw", "--seed", 1, "--output", plans)[1])

            def refusal():
                code, text = self.run_verb("measure", "--plans", plans)
                self.assertEqual((code, text.count("\n")), (2, 1), text)
                return text

            def write(date):
                blind_predictions.write(predictions, {"date": date, "plans_sha256": blind_predictions.digest(plans), "program": "none"})
                seal.write_text(blind_predictions.digest(predictions) + "\n")

            self.assertIn("expected what predict has written", refusal())
            write("2999-01-01T00:00:00+00:00")
            self.assertIn("is of 2999-01-01T00:00:00+00:00, after a measurement", refusal())
            write("2020-01-01T00:00:00+00:00")
            blind_predictions.sealed_predictions(folder, plans)
            predictions.write_text(predictions.read_text() + "\n")
            self.assertIn("was changed after predict wrote it", refusal())
            write("2020-01-01T00:00:00+00:00")
            begin = {"kind": "begin", "group": 0, "attempt": "a", "date": "2021-01-01T00:00:00+00:00", "predictions_sha256": "other"}
            (folder / "measurements.jsonl").write_text(json.dumps(begin) + "\n")
            self.assertIn("belongs to other predictions (other)", refusal())
            self.assertIn("expected predictions before any measurement", self.run_verb("predict", "--plans", plans)[1])
            plans.write_text(plans.read_text() + " ")
            self.assertIn("was changed after the predictions", refusal())

    def test_only_complete_groups_count(self):
        with tempfile.TemporaryDirectory() as name:
            records = [{"kind": kind, "group": group, "attempt": attempt}
                       for kind, group, attempt in (("begin", 0, "a"), ("sample", 0, "a"), ("begin", 0, "b"), ("sample", 0, "b"),
                                                    ("complete", 0, "b"), ("begin", 1, "c"), ("sample", 1, "c"))]
            text = "".join(json.dumps(record) + "\n" for record in records) + '{"kind": "sam'
            (pathlib.Path(name) / "measurements.jsonl").write_text(text)
            found = [(record["kind"], record["attempt"]) for record in blind_predictions.records_of(pathlib.Path(name))]
            self.assertEqual(found, [("begin", "a"), ("begin", "b"), ("sample", "b"), ("complete", "b"), ("begin", "c")])

    def test_a_plan_and_its_reference_are_of_one_profile(self):
        references = blind_plans.references(2)
        for plan in blind_plans.draw_plans(3, 32, 2):
            reference = references[blind_predictions.reference_key(plan)]
            self.assertEqual((reference["model"], reference["transport"]), (plan["model"], plan["transport"]))

    def test_identical_plans_come_first_and_every_plan_once(self):
        plans = {"references": blind_plans.references(2), "plans": blind_plans.draw_plans(3, 32, 2)}
        groups = blind_predictions.groups_of(plans, 8, "seed")
        self.assertEqual([len(group) for group in groups], [6, 6, 8, 8, 8, 8])
        self.assertEqual(sorted(run["name"] for group in groups[2:] for run in group), sorted(plan["name"] for plan in plans["plans"]))
        self.assertTrue(all(run["name"].startswith("identical") for group in groups[:2] for run in group))
        self.assertNotEqual([run["name"] for run in groups[2]], [run["name"] for run in blind_predictions.groups_of(plans, 8, "other")[2]])


if __name__ == "__main__":
    unittest.main()
