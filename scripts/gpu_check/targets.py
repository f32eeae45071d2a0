"""The figures that tutti is to reach on an H200, and whether it has."""

import dataclasses
from typing import Callable

import results

MET, MISSED, NOT_HERE, NOT_MEASURED = "met", "missed", "not measurable on one GPU", "not measured"

MANY, FEW = 64 << 20, 2 << 20  # elements
KERNELS = ("narrow_f16", "widen_f16", "narrow_bf16", "widen_bf16", "sgd_momentum")
TOP_KS = ("top_k_0.1pct", "top_k_1pct")
TIES = ("ties_mostly_zeros", "ties_one_value")
ALL_REDUCE_BYTES = (4, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)


class NotMeasured(Exception):
    """The figure is not there, and why."""


class Wrong(Exception):
    """What was measured gave a wrong result."""


@dataclasses.dataclass(frozen=True)
class Target:
    name: str
    figure: str
    step: str  # that measures it
    values: Callable[["Rows"], dict]  # what each number is of -> the number
    good: Callable[[float], bool]
    gpus: int = 1  # that it takes to measure it


@dataclasses.dataclass(frozen=True)
class Verdict:
    name: str
    figure: str
    verdict: str
    detail: str


class Rows:
    """A step's rows, of which only those count that were compared, on so many ranks."""

    def __init__(self, step, rows):
        self._step, self._rows = step, rows

    def peer(self, **keys):
        """The row of something that tutti is measured beside."""
        wanted = ", ".join(f"{key} {value}" for key, value in keys.items())
        for row in self._rows:
            if all(row.get(key) == value for key, value in keys.items()):
                if fault := results.wrong_ranks(self._step, row.get("world_size")):
                    raise NotMeasured(f"{wanted}: {fault}")
                return row
        raise NotMeasured(f"no row of {wanted}")

    def row(self, **keys):
        row = self.peer(**keys)
        if row.get("checked") is False:
            raise Wrong(f"{results.label(row)}: the result is wrong")
        if row.get("checked") is not True:
            raise NotMeasured(f"{results.label(row)}: nothing was compared")
        return row


def number(row, key):
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise NotMeasured(f"{results.label(row)}: {key} is {value}")
    return value


def of_kernels(names, elements, key):
    return lambda rows: {name: number(rows.row(kernel=name, n=elements), key) for name in names}


def beside_sort(rows):
    sort = number(rows.peer(kernel="cub_sort_pairs", n=MANY), "us")
    return {name: sort / number(rows.row(kernel=name, n=MANY), "us") for name in TOP_KS}


def all_reduces(rows):
    found = {size: rows.row(all_reduce_bytes=size) for size in ALL_REDUCE_BYTES}
    return {f"{size} B": row for size, row in found.items()}


def beside_nccl(rows):
    ratios = {}
    for size, row in all_reduces(rows).items():
        if row.get("gpus") != row.get("world_size"):
            raise NotMeasured(f"ranks: {row.get('world_size')}, but GPUs: {row.get('gpus')}")
        ratios[size] = number(row, "tutti_us") / number(row, "nccl_us")
    return ratios


def enqueueing(rows):
    return {size: number(row, "enqueue_us") for size, row in all_reduces(rows).items()}


def enqueueing_added(rows):
    return {size: number(row, "enqueue_added_us") for size, row in all_reduces(rows).items()}


def accuracy(rows):
    row = rows.peer(epoch=9, device="cuda", data="mnist")
    return {"epoch 10": number(row, "eval_accuracy")}


def naming(rows):
    return {"slowest rank": number(rows.row(bench="killed_rank", device="cuda"), "named_seconds")}


def targets(gpus):
    """What is judged on a machine with so many GPUs."""
    return [
        Target("kernels", "0.90 of a copy pass or more", "kernels",
               of_kernels(KERNELS, MANY, "of_copy"), lambda x: x >= 0.90),
        Target("top_k.passes", "top-K of 64 Mi in 3 read passes or less", "kernels",
               of_kernels(TOP_KS, MANY, "passes"), lambda x: x <= 3),
        Target("top_k.sort", "top-K of 64 Mi 10 times as fast as CUB's sort", "kernels",
               beside_sort, lambda x: x >= 10),
        Target("top_k.ties", "top-K of 64 Mi mostly zeros, or of one value, in 3 read passes or less",
               "kernels", of_kernels(TIES, MANY, "passes"), lambda x: x <= 3),
        Target("top_k.2Mi", "top-K of 2 Mi in 60 us or less", "kernels.2Mi",
               of_kernels(TOP_KS, FEW, "us"), lambda x: x <= 60),
        Target("all_reduce", "at most 1.05 of a bare blocking ncclAllReduce", "all_reduce.each",
               beside_nccl, lambda x: x <= 1.05, gpus=2),
        # Between ranks that share a GPU NCCL's own call takes longer than that.
        Target("enqueue", "10 us a call or less", "all_reduce.each",
               enqueueing, lambda x: x <= 10, gpus=2),
        Target("enqueue.added", "a call takes at most 5 us more than NCCL's own",
               "all_reduce.2" if gpus < 2 else "all_reduce.each",
               enqueueing_added, lambda x: x <= 5),
        Target("mnist", "0.9880 or more after ten epochs", "mnist",
               accuracy, lambda x: x >= 0.9880),
        Target("killed_rank", "named within 5 s", "killed_rank", naming, lambda x: x <= 5),
    ]


def judge(target, step, outcome, gpus):
    """A verdict from the rows of the step, which may be None."""
    verdict, detail = _judge(target, step, outcome, gpus)
    return Verdict(target.name, target.figure, verdict, detail)


def _judge(target, step, outcome, gpus):
    if gpus < target.gpus:
        return NOT_HERE, ""
    if outcome is None or not outcome.rows:
        return NOT_MEASURED, outcome and outcome.note or f"{target.step} did not run"
    try:
        values = target.values(Rows(step, outcome.rows))
    except NotMeasured as why:
        return NOT_MEASURED, str(why)
    except Wrong as why:
        return MISSED, str(why)
    detail = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
    return MET if all(map(target.good, values.values())) else MISSED, detail
