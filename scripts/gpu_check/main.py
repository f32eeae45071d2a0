#!/usr/bin/env python3
"""Checks tutti on a machine with a GPU, from the folder that `make gpu-bundle` packed.

    gpu-check [--list] [--seconds 480] [--out gpu-check.tgz]

Runs tests and benchmarks in the order of their weight, each within a limit, all within --seconds;
then judges the figures that tutti is to reach, one by one. --list says all that without doing it.
The archive holds what every step printed, and result.json with all numbers; it is complete after
each step. Needs a driver, NCCL and cuBLAS; the last two are looked for in CUDA's folders and in
Python's packages, or named by TUTTI_NCCL_LIB and TUTTI_CUBLAS_LIB.

Status 0: every step that could run passed, and every figure that could be measured was met; 1: not;
77: there is no GPU.
"""

import argparse
import dataclasses
import json
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import results
import run
from machine import NO_GPU, Machine, NoGpu
from plan import SECONDS, plan
from targets import MISSED, NOT_MEASURED, judge, targets

PASS, FAIL, SKIP = "pass", "fail", "skip"


@dataclasses.dataclass
class Outcome:
    """What became of a step."""

    name: str
    result: str
    note: str = ""
    seconds: float = 0.0
    rows: tuple = ()


def lacking(step, machine):
    """Why this machine cannot run a step, or ""."""
    if len(machine.gpus) < step.gpus:
        return f"needs {step.gpus} GPUs"
    return machine.find(step.needs)[1] if step.needs else ""


def run_step(step, machine, folder, budget):
    """Runs one step, if this machine and the time allow it, and looks at what it left."""
    if why := lacking(step, machine):
        return Outcome(step.name, SKIP, why)
    limit = budget.limit(step.limit)
    if not limit:
        return Outcome(step.name, FAIL, "no time left")
    words = machine.words()
    if step.needs:
        words[step.needs], _ = machine.find(step.needs)
    command = [word.format_map(words) for word in step.command.split()]
    log = Path(folder, "logs", f"{step.name}.log")
    begin = time.monotonic()
    status, remark = run.run(command, machine.environment(step.ours(), step.shared), limit, log,
                             budget.grace)
    seconds = time.monotonic() - begin
    left = results.read(log, log.with_suffix(".json"), log.with_suffix(".xml"))
    run.shorten(log)
    # What the tests say tells more than the status that they end with.
    fault = step.check(step, left)
    if status is None:
        fault = f"longer than {limit:.0f} s"
    elif status != 0:
        fault = f"status {status}" + (f": {fault}" if fault else "")
    note = "; ".join(filter(None, (fault, remark)))
    return Outcome(step.name, FAIL if note else PASS, note, seconds, left.rows)


def say(line=""):
    print(line, flush=True)


def describe(machine):
    """What there is to do, for --list."""
    gpus = len(machine.gpus)
    say(f"On {', '.join(machine.gpus)}, in this order, within {SECONDS} s together, each within "
        "its own limit:")
    say()
    for step in plan(gpus):
        why = lacking(step, machine)
        skipped = f" (skipped: {why})" if why else ""
        say(f"  {step.name:<22} {step.limit:>3} s  {step.about}{skipped}")
    say()
    say("Then it judges, each met, missed, not measurable on one GPU, or not measured:")
    say()
    for target in targets(gpus):
        say(f"  {target.name:<22} {target.figure} (from {target.step})")


def table_line(outcome):
    line = f"{outcome.name:<22} {outcome.result:<5} {outcome.seconds:>5.0f} s  {outcome.note}"
    return line.rstrip()


def pack(folder, machine, outcomes, verdicts, archive):
    """The logs and result.json, as one archive that is whole or the one before."""
    result = {
        "gpus": machine.gpus, "nccl": machine.nccl, "cublas": machine.cublas,
        "python": machine.python_version,
        "steps": [dataclasses.asdict(outcome) for outcome in outcomes.values()],
        "targets": [dataclasses.asdict(verdict) for verdict in verdicts],
    }
    Path(folder, "logs/result.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    part = archive.with_name(archive.name + ".part")
    with tarfile.open(part, "w:gz") as tar:
        tar.add(f"{folder}/logs", "gpu-check")
    part.replace(archive)


def check(machine, folder, budget, archive):
    """Runs and judges; the exit status."""
    gpus = len(machine.gpus)
    steps = {step.name: step for step in plan(gpus)}
    for name in ("logs", "scratch"):
        Path(folder, name).mkdir()
    outcomes = {}
    verdicts = []
    for name, step in steps.items():
        outcomes[name] = run_step(step, machine, folder, budget)
        say(table_line(outcomes[name]))
        if outcomes[name].result == FAIL:
            log = Path(folder, "logs", f"{name}.log")
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            for line in lines[-8:]:
                say(f"    | {line[:160]}")
        verdicts = [judge(target, steps[target.step], outcomes.get(target.step), gpus)
                    for target in targets(gpus)]
        pack(folder, machine, outcomes, verdicts, archive)
    say()
    for outcome in outcomes.values():
        say(table_line(outcome))
    say()
    for verdict in verdicts:
        detail = f": {verdict.detail}" if verdict.detail else ""
        say(f"{verdict.name:<14} {verdict.verdict:<26} {verdict.figure}{detail}")
    skipped = {target.name for target in targets(gpus) if outcomes[target.step].result == SKIP}
    good = all(outcome.result != FAIL for outcome in outcomes.values()) and not any(
        verdict.verdict == MISSED or
        (verdict.verdict == NOT_MEASURED and verdict.name not in skipped) for verdict in verdicts)
    say()
    say(f"{'all passed' if good else 'NOT ALL PASSED'} in {budget.used():.0f} s; logs: {archive}")
    return 0 if good else 1


def main():
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(
        prog="gpu-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="say what it would do")
    parser.add_argument("--seconds", type=float, default=SECONDS,
                        help=f"for all steps together ({SECONDS})")
    parser.add_argument("--out", type=Path, default=root / "gpu-check.tgz",
                        help="the archive of logs")
    arguments = parser.parse_args()
    run.adopt()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("gpu-check: ended from outside"))
    budget = run.Budget(arguments.seconds)
    Path("/dev/shm").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(root, folder)
        try:
            machine.find_gpus()
        except (NoGpu, OSError, RuntimeError, subprocess.TimeoutExpired) as why:
            if not arguments.list:
                say(f"{why}no GPU" if isinstance(why, NoGpu) else f"gpu-check: {why}")
                return NO_GPU if isinstance(why, NoGpu) else 1
            machine.gpus = ["a GPU that is not here"]
        if arguments.list:
            describe(machine)
            return 0
        for name in machine.gpus:
            say(name)
        say(f"NCCL: {machine.nccl or 'not found'}; cuBLAS: {machine.cublas or 'not found'}")
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        return check(machine, folder, budget, arguments.out)


if __name__ == "__main__":
    sys.exit(main())
