"""What the programs of a bundle would print on a GPU where all is well."""

import sys

sys.path.insert(0, sys.argv[1])

import results
import targets

MANY, FEW = targets.MANY, targets.FEW


def kernels(elements):
    rows = [{"kernel": name, "n": elements, "us": 100.0, "of_copy": 1.0, "passes": 1.0}
            for name in ("copy", "read")]
    rows += [{"kernel": name, "n": elements, "us": 100.0, "of_copy": 0.95, "passes": 1.2,
              "checked": True} for name in targets.KERNELS]
    rows += [{"kernel": name, "n": elements, "us": 55.0, "of_copy": 0.3, "passes": 2.5,
              "checked": True} for name in targets.TOP_KS + targets.TIES]
    return rows + [{"kernel": "cub_sort_pairs", "n": elements, "us": 6000.0, "of_copy": 0.01,
                    "passes": 100.0}]


def all_reduce(ranks, gpus):
    return [{"all_reduce_bytes": size, "world_size": ranks, "gpus": gpus, "tutti_us": 20.4,
             "nccl_us": 20.0, "enqueue_us": 8.0, "enqueue_added_us": 2.0, "checked": True}
            for size in targets.ALL_REDUCE_BYTES]


def mnist(ranks, epochs):
    return [{"epoch": epoch, "eval_accuracy": 0.98 + epoch / 1000, "world_size": ranks,
             "device": "cuda", "data": "mnist"} for epoch in range(epochs)]


def killed_rank():
    return [{"bench": "killed_rank", "device": "cuda", "world_size": 3, "named_seconds": 0.2,
             "ended_seconds": 0.3, "checked": True}]


def suite(world_size=None, failed=False, skipped=None):
    """A file of JUnit's with one test."""
    inside = "" if world_size is None else (
        f'<properties><property name="world_size" value="{world_size}"/></properties>')
    inside += '<failure message="no"/>' if failed else ""
    inside += f'<skipped message="{skipped}"/>' if skipped else ""
    return (f'<testsuites><testsuite><testcase name="Sums" status="run" classname="Gpu">{inside}'
            '</testcase></testsuite></testsuites>')


def rows_of_steps(gpus):
    """The rows of the steps that targets are judged by."""
    rows = {"kernels": kernels(MANY), "kernels.2Mi": kernels(FEW), "killed_rank": killed_rank(),
            "all_reduce.2": all_reduce(2, 1), "mnist": mnist(min(gpus, 2), 10)}
    if gpus > 1:
        rows["all_reduce.each"] = all_reduce(gpus, gpus)
    return rows


def left(rows=(), suites=""):
    """The results of a step that left these."""
    import pathlib
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "suites.xml")
        if suites:
            file.write_text(suites, encoding="utf-8")
        return results.Results(tuple(rows), results.read(file, file, file).cases)
