#!/usr/bin/env python3
"""Checks on made-up results how a run on a GPU is judged: judging_test.py FOLDER, gpu-check's."""

import copy
import unittest

import made_up
import plan
import results
import run
import targets
from main import Outcome

STEPS = {gpus: {step.name: step for step in plan.plan(gpus)} for gpus in (1, 2, 8)}


def judged(rows, gpus):
    """Each target's verdict, from the rows of the steps."""
    return {target.name: targets.judge(
        target, STEPS[gpus][target.step],
        Outcome(target.step, "pass", rows=rows[target.step]) if target.step in rows else None, gpus)
        for target in targets.targets(gpus)}


def verdicts(rows, gpus):
    return {name: verdict.verdict for name, verdict in judged(rows, gpus).items()}


class Targets(unittest.TestCase):
    def test_all_are_met_on_several_gpus(self):
        for gpus in (2, 8):
            found = verdicts(made_up.rows_of_steps(gpus), gpus)
            self.assertEqual(set(found.values()), {targets.MET}, found)

    def test_on_one_gpu_what_takes_two_is_said_to_be_not_measurable(self):
        found = verdicts(made_up.rows_of_steps(1), 1)
        for name in ("all_reduce", "enqueue"):
            self.assertEqual(found.pop(name), targets.NOT_HERE)
        self.assertEqual(set(found.values()), {targets.MET}, found)

    def test_a_number_beyond_its_bound_misses_that_target_alone(self):
        for target, step, index, change in (
                ("kernels", "kernels", {"kernel": "sgd_momentum"}, {"of_copy": 0.899}),
                ("top_k.passes", "kernels", {"kernel": "top_k_1pct"}, {"passes": 3.01}),
                ("top_k.ties", "kernels", {"kernel": "ties_one_value"}, {"passes": 3.01}),
                ("top_k.sort", "kernels", {"kernel": "cub_sort_pairs"}, {"us": 549.0}),
                ("top_k.2Mi", "kernels.2Mi", {"kernel": "top_k_0.1pct"}, {"us": 60.1}),
                ("all_reduce", "all_reduce.each", {"all_reduce_bytes": 1024}, {"tutti_us": 21.1}),
                ("enqueue", "all_reduce.each", {"all_reduce_bytes": 4}, {"enqueue_us": 10.1}),
                ("enqueue.added", "all_reduce.each", {"all_reduce_bytes": 4}, {"enqueue_added_us": 5.1}),
                ("mnist", "mnist", {"epoch": 9}, {"eval_accuracy": 0.9879}),
                ("killed_rank", "killed_rank", {}, {"named_seconds": 5.1}),
                ("killed_rank", "killed_rank", {}, {"named_seconds": float("nan")})):
            rows = made_up.rows_of_steps(2)
            next(row for row in rows[step] if index.items() <= row.items()).update(change)
            found = verdicts(rows, 2)
            self.assertEqual(found.pop(target), targets.MISSED, change)
            self.assertEqual(set(found.values()), {targets.MET}, change)

    def test_each_bound_itself_is_good(self):
        for step, index, change in (
                ("kernels", {"kernel": "sgd_momentum"}, {"of_copy": 0.9}),
                ("kernels", {"kernel": "top_k_1pct"}, {"passes": 3.0}),
                ("kernels", {"kernel": "cub_sort_pairs"}, {"us": 550.0}),
                ("kernels.2Mi", {"kernel": "top_k_0.1pct"}, {"us": 60.0}),
                ("all_reduce.each", {"all_reduce_bytes": 1024}, {"tutti_us": 21.0}),
                ("all_reduce.each", {"all_reduce_bytes": 4}, {"enqueue_us": 10.0}),
                ("all_reduce.each", {"all_reduce_bytes": 4}, {"enqueue_added_us": 5.0}),
                ("mnist", {"epoch": 9}, {"eval_accuracy": 0.988}),
                ("killed_rank", {}, {"named_seconds": 5.0})):
            rows = made_up.rows_of_steps(2)
            next(row for row in rows[step] if index.items() <= row.items()).update(change)
            self.assertEqual(set(verdicts(rows, 2).values()), {targets.MET}, change)

    def test_a_step_that_left_nothing_measures_nothing(self):
        whole = made_up.rows_of_steps(2)
        for step in whole:
            without = {name: rows for name, rows in whole.items() if name != step}
            for rows in (without, {**whole, step: []}):
                found = verdicts(rows, 2)
                for target in targets.targets(2):
                    self.assertEqual(found[target.name], targets.NOT_MEASURED if target.step == step
                                     else targets.MET, (step, target.name))

    def test_each_row_that_is_missing_is_named(self):
        for step, rows in made_up.rows_of_steps(2).items():
            for i, row in enumerate(rows):
                if row.get("kernel") in ("copy", "read") or row.get("epoch", 9) != 9:
                    continue
                if row.get("n") == made_up.FEW and row["kernel"] not in targets.TOP_KS:
                    continue
                fewer = {**made_up.rows_of_steps(2), step: rows[:i] + rows[i + 1:]}
                missing = [verdict for verdict in judged(fewer, 2).values()
                           if verdict.verdict == targets.NOT_MEASURED]
                used = step in {target.step for target in targets.targets(2)}
                self.assertEqual(bool(missing), used, row)
                if len(rows) > 1:
                    for verdict in missing:
                        self.assertIn("no row of", verdict.detail)

    def test_a_wrong_number_of_ranks_measures_nothing(self):
        for step, target in (("all_reduce.each", "all_reduce"), ("all_reduce.each", "enqueue"),
                             ("all_reduce.each", "enqueue.added"),
                             ("mnist", "mnist"), ("killed_rank", "killed_rank")):
            for size in (1, None):
                rows = made_up.rows_of_steps(2)
                for row in rows[step]:
                    row["world_size"] = size
                verdict = judged(rows, 2)[target]
                self.assertEqual(verdict.verdict, targets.NOT_MEASURED)
                self.assertIn(f"world_size is {size}, not", verdict.detail)

    def test_ranks_that_share_a_gpu_say_nothing_of_the_speed_of_all_reduce(self):
        rows = made_up.rows_of_steps(2)
        for row in rows["all_reduce.each"]:
            row["gpus"] = 1
        verdict = judged(rows, 2)["all_reduce"]
        self.assertEqual(verdict.verdict, targets.NOT_MEASURED)
        self.assertEqual(verdict.detail, "ranks: 2, but GPUs: 1")

    def test_what_was_not_compared_is_not_measured_and_what_is_wrong_misses(self):
        for step, target in (("kernels", "kernels"), ("kernels", "top_k.passes"),
                             ("kernels", "top_k.sort"), ("kernels.2Mi", "top_k.2Mi"),
                             ("all_reduce.each", "all_reduce"), ("killed_rank", "killed_rank")):
            for checked, expected in ((False, targets.MISSED), (None, targets.NOT_MEASURED)):
                rows = copy.deepcopy(made_up.rows_of_steps(2))
                for row in rows[step]:
                    if "checked" in row:
                        row["checked"] = checked
                self.assertEqual(verdicts(rows, 2)[target], expected, (target, checked))

    def test_what_is_no_number_is_not_measured(self):
        for value in (None, "fast", True):
            rows = made_up.rows_of_steps(2)
            rows["killed_rank"][0]["named_seconds"] = value
            self.assertEqual(verdicts(rows, 2)["killed_rank"], targets.NOT_MEASURED)


class Steps(unittest.TestCase):
    def fault(self, name, rows=(), suites="", gpus=2):
        step = STEPS[gpus][name]
        return step.check(step, made_up.left(rows, suites))

    def test_rows(self):
        for name, rows in made_up.rows_of_steps(2).items():
            self.assertEqual(self.fault(name, rows), "", name)
        self.assertEqual(self.fault("kernels"), "nothing was measured")
        self.assertEqual(self.fault("kernels", made_up.kernels(1)[:2]), "nothing was compared")
        wrong = made_up.kernels(1)
        for value in (False, None):
            wrong[-2]["checked"] = value
            self.assertEqual(self.fault("kernels", wrong), "ties_one_value: the result is wrong")
        self.assertEqual(self.fault("all_reduce.2", made_up.all_reduce(1, 1)),
                         "4 bytes: world_size is 1, not 2")
        self.assertEqual(self.fault("killed_rank", [{"bench": "killed_rank", "checked": True}]),
                         "killed_rank: world_size is None, not 3")

    def test_epochs(self):
        self.assertEqual(self.fault("mnist.fp16", made_up.mnist(2, 2)), "")
        self.assertEqual(self.fault("mnist.fp16", made_up.mnist(1, 2)), "world_size is 1, not 2")
        self.assertEqual(self.fault("mnist", made_up.mnist(2, 9)), "9 epochs instead of 10")
        self.assertEqual(self.fault("mnist"), "0 epochs instead of 10")
        for change, message in (({"device": "cpu"}, "device is cpu, not cuda"),
                                ({"data": "generated"}, "data is generated, not mnist"),
                                ({"eval_accuracy": 0.96}, "accuracy 0.96 is below 0.97"),
                                ({"eval_accuracy": None}, "accuracy None is below 0.97")):
            rows = made_up.mnist(2, 2)
            rows[1].update(change)
            self.assertEqual(self.fault("mnist.fp16", rows), message)

    def test_tests(self):
        self.assertEqual(self.fault("gpu_tests", suites=made_up.suite()), "")
        self.assertEqual(self.fault("gpu_ranks.2", suites=made_up.suite(2)), "")
        self.assertEqual(self.fault("gpu_ranks.2", suites=made_up.suite(1)),
                         "world_size is 1, not 2")
        self.assertEqual(self.fault("gpu_ranks.2", suites=made_up.suite()),
                         "no test noted its world_size")
        self.assertEqual(self.fault("gpu_tests"), "nothing was tested: no test was run")
        self.assertEqual(self.fault("gpu_tests", suites="<testsuites><tests"),
                         "nothing was tested: no test was run")
        self.assertEqual(self.fault("gpu_tests", suites=made_up.suite(failed=True)),
                         "Gpu.Sums failed")
        for name in ("gpu_tests", "python.torch"):
            self.assertEqual(self.fault(name, suites=made_up.suite(skipped="no GPU")),
                             "nothing was tested by Gpu.Sums: no GPU")
        self.assertEqual(
            self.fault("gpu_tests", suites=made_up.suite(skipped="gpu_test.hpp:60&#x0A;no GPU")),
            "nothing was tested by Gpu.Sums: no GPU")
        both = made_up.suite().replace("</testsuites>", "") + made_up.suite(
            skipped="{}").replace("<testsuites>", "")
        self.assertEqual(self.fault("unit_tests", suites=both.format("a core too few")), "")
        self.assertIn("Gpu.Sums skipped itself",
                      self.fault("unit_tests", suites=both.format("no GPU: nothing was tested")))

    def test_a_line_that_was_cut_off_is_no_row(self):
        self.assertEqual(results.row_of('{"kernel": "copy", "n": 1}'), {"kernel": "copy", "n": 1})
        for line in ('{"kernel": "co', "", "copy", '"copy"', "[1]"):
            self.assertIsNone(results.row_of(line))


class Time(unittest.TestCase):
    def test_what_matters_has_room_even_if_every_step_takes_its_limit(self):
        for gpus, steps in STEPS.items():
            judged_by = {target.step for target in targets.targets(gpus)}
            judged_by |= {"python.torch", "python.cupy"}
            self.assertLessEqual(judged_by, set(steps))
            self.assertEqual(len(steps), len(plan.plan(gpus)), "names differ")
            needed = list(steps)[:max(map(list(steps).index, judged_by)) + 1]
            total = sum(steps[name].limit for name in needed if steps[name].gpus <= gpus)
            self.assertLessEqual(total + run.GRACE, plan.SECONDS, needed)

    def test_the_limits_of_all_steps_together_stay_within_the_budget(self):
        clock = [100.0]
        budget = run.Budget(480, clock=lambda: clock[0])
        given = []
        for _ in range(30):
            given.append(budget.limit(60))
            clock[0] += given[-1]
        self.assertEqual(given[:8], [60] * 7 + [55])
        self.assertEqual(set(given[8:]), {0})
        self.assertEqual(budget.used() + run.GRACE, 480)


if __name__ == "__main__":
    unittest.main(argv=["judging_test.py", "--verbose"])
