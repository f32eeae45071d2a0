"""What a step left behind, and whether it shows anything: lines of JSON, or JUnit's XML."""

import dataclasses
import json
import xml.etree.ElementTree


@dataclasses.dataclass(frozen=True)
class Case:
    """A test that was run, or skipped itself."""

    name: str
    failed: bool = False
    skipped: str = ""  # why
    world_size: str = ""


@dataclasses.dataclass(frozen=True)
class Results:
    rows: tuple = ()  # objects of JSON
    cases: tuple = ()


def read(log, rows_file, suites_file):
    """Everything that a step wrote: rows among its output or in a file, and tests in a file."""
    rows = [row for path in (log, rows_file) if path.exists()
            for row in map(row_of, path.read_text(errors="replace").splitlines()) if row]
    return Results(tuple(rows), tuple(cases_of(suites_file)) if suites_file.exists() else ())


def row_of(line):
    """The object that a line is, or None."""
    if not line.startswith("{"):
        return None
    try:
        return json.loads(line)
    except ValueError:  # cut off, where the program was killed
        return None


def cases_of(path):
    """The tests in a file as GoogleTest and pytest write it."""
    try:
        root = xml.etree.ElementTree.parse(path).getroot()
    except xml.etree.ElementTree.ParseError:  # the program was killed
        return
    for case in root.iter("testcase"):
        if case.get("status") == "notrun":
            continue
        skipped = case.find("skipped")
        sizes = [entry.get("value") for entry in case.iter("property")
                 if entry.get("name") == "world_size"]
        yield Case(f"{case.get('classname')}.{case.get('name')}",
                   case.find("failure") is not None or case.find("error") is not None,
                   "" if skipped is None else reason_of(skipped),
                   sizes[0] if sizes else "")


def reason_of(skipped):
    """Why a test skipped itself. GoogleTest says on a line before where it did."""
    return (skipped.get("message") or "for no reason").splitlines()[-1]


def label(row):
    """What a row is of."""
    if "all_reduce_bytes" in row:
        return f"{row['all_reduce_bytes']} bytes"
    return str(row.get("kernel") or row.get("bench") or row)


def wrong_ranks(step, world_size):
    """The complaint about a number of ranks, or ""."""
    if step.ranks in (0, world_size):
        return ""
    return f"world_size is {world_size}, not {step.ranks}"


def anything(step, results):
    """Nothing is wrong with what is only looked at by people."""
    return ""


def compared(step, results):
    """What is wrong with rows of which some were compared with a result that is known."""
    if not results.rows:
        return "nothing was measured"
    for row in results.rows:
        if fault := wrong_ranks(step, row.get("world_size")):
            return f"{label(row)}: {fault}"
        if row.get("checked", True) is not True:
            return f"{label(row)}: the result is wrong"
    return "" if any("checked" in row for row in results.rows) else "nothing was compared"


def learned(epochs, accuracy):
    """The same for rows of epochs, the last of which must have reached an accuracy."""
    def check(step, results):
        for row in results.rows:
            if fault := wrong_ranks(step, row.get("world_size")):
                return fault
            for key, expected in (("device", "cuda"), ("data", "mnist")):
                if row.get(key) != expected:
                    return f"{key} is {row.get(key)}, not {expected}"
        if [row.get("epoch") for row in results.rows] != list(range(epochs)):
            return f"{len(results.rows)} epochs instead of {epochs}"
        reached = results.rows[-1].get("eval_accuracy")
        return "" if (reached or 0) >= accuracy else f"accuracy {reached} is below {accuracy}"
    return check


def tested_mostly(step, results):
    """What is wrong with tests of which some may have nothing to do on this machine."""
    done = [case for case in results.cases if not case.skipped]
    if not done:
        why = results.cases[0].skipped if results.cases else "no test was run"
        return f"nothing was tested: {why}"
    for case in results.cases:
        if case.failed:
            return f"{case.name} failed"
        if "nothing was tested" in case.skipped:
            return f"{case.name} skipped itself: {case.skipped}"
    sizes = {case.world_size for case in done if case.world_size}
    if step.ranks and not sizes:
        return "no test noted its world_size"
    return next(filter(None, (wrong_ranks(step, int(size)) for size in sorted(sizes))), "")


def tested(step, results):
    """What is wrong with tests all of which have something to do."""
    for case in results.cases:
        if case.skipped:
            return f"nothing was tested by {case.name}: {case.skipped}"
    return tested_mostly(step, results)
