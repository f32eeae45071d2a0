#!/usr/bin/env python3
"""Runs clang-tidy on all sources that a build compiles: tidy.py BUILD. BUILD/compile_commands.json says how.

Reading headers is most of what clang-tidy does. So sources that are compiled alike, in whatever program of a unity
build, are checked several at a time; and each once, though two programs may have it. Where names of two sources clash,
which nothing forbids in two programs, those of that batch are checked one by one, and the clash is told."""

import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

BATCH = 16
# clang-tidy counts the warnings that it left out of system headers; nobody wants to know.
COUNT = re.compile(r"^\d+ warnings?( and \d+ errors?)? generated\.\n", re.MULTILINE)


@dataclass
class Unit:
    """Sources that are compiled alike, and together."""

    sources: list[str]
    command: list[str]  # but for what is compiled, and into what
    folder: str
    included: bool = True  # by another file, as a unity build has them: .clang-tidy says what is told of such

    def entry(self, file: Path) -> dict[str, object]:
        """Of compile_commands.json, where these sources are one file."""
        return {"directory": self.folder, "file": str(file), "arguments": [*self.command, "-c", str(file)]}

    def size(self) -> int:
        """What tells which of them takes long."""
        return sum(os.path.getsize(source) for source in self.sources)


def sources_of(file: str) -> list[str]:
    """The sources that a unit of a unity build includes, or the one that it is."""
    if "/Unity/" not in file:
        return [file]
    return re.findall(r'^#include "(.*)"', Path(file).read_text(encoding="utf-8"), re.MULTILINE)


def command_of(entry: dict[str, str]) -> list[str]:
    """How a unit is compiled, without its file and the object."""
    words = shlex.split(entry["command"])
    for option in ("-o", "-c"):
        at = words.index(option)
        del words[at : at + 2]
    return words


def units_of(build: Path) -> list[Unit]:
    """All sources in batches. What the build compiles alone stays alone: it has a reason."""
    alike: dict[tuple[str, ...], list[str]] = {}
    alone: list[Unit] = []
    seen: set[str] = set()
    folder = str(build)
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        file = entry["file"]
        if not file.endswith((".cpp", ".cxx")) or file.endswith(".hxx.cxx"):  # CUDA; a precompiled header
            continue
        folder = entry["directory"]
        new = [source for source in sources_of(file) if source not in seen]
        seen.update(new)
        if "/Unity/" in file:
            for source in new:
                alike.setdefault((kind_of(source), *command_of(entry)), []).append(source)
        else:
            alone += [Unit([source], command_of(entry), folder, included=False) for source in new]
    together = []
    for (_, *command), sources in alike.items():
        with_main = [source for source in sources if has_main(source)]
        alone += [Unit([source], command, folder) for source in with_main]
        sources = [source for source in sources if source not in with_main]
        together += [Unit(batch, command, folder) for batch in batches_of(sources)]
    return sorted(together + alone, key=Unit.size, reverse=True)


def kind_of(source: str) -> str:
    """The folder of tests that it is from, whose headers have words of their own."""
    found = re.search(r"/tests/\w+/", source)
    return found[0] if found else ""


def batches_of(sources: list[str]) -> list[list[str]]:
    """The sources in batches, each in the first where none has defined what it defines."""
    batches: list[tuple[list[str], set[str]]] = []
    for source in sources:
        names = names_of(source)
        for batch, taken in batches:
            if len(batch) < BATCH and not names & taken:
                batch.append(source)
                taken |= names
                break
        else:
            batches.append(([source], names))
    return [batch for batch, _ in batches]


def names_of(source: str) -> set[str]:
    """What a source may define in its namespaces, whose content is not indented: more rather than less. Nothing of
    those of the library, whose names differ anyway (tests/build/unity_test.py)."""
    names: set[str] = set()
    if not re.search(r"/(tests|benchmarks)/", source):
        return names
    for line in Path(source).read_text(encoding="utf-8").splitlines():
        if test := re.match(r"[A-Z_]+\((\w+), (\w+)\)", line):  # TEST() and the like
            names.add(f"{test[1]}.{test[2]}")
        elif type_ := re.match(r"(?:class|struct|enum|enum class|using) (\w+)( : .*)?( \{| =|;)", line):
            names.add(type_[1])
        elif re.match(r"\w", line) and not re.match(r"(namespace|template|using|class|struct|enum)\b", line):
            names.update(re.findall(r"^[^(={]*?[ &*>](\w+)(?=[({;\[]| =)", line))
    return names


def has_main(source: str) -> bool:
    """Whether it is that of a program, of which there is one in a file."""
    return re.search(r"^int main\(", Path(source).read_text(encoding="utf-8"), re.MULTILINE) is not None


def write_units(units: list[Unit], folder: Path) -> list[list[Path]]:
    """The file of each unit, and then of each of its sources; and compile_commands.json of all."""
    folder.mkdir(parents=True, exist_ok=True)
    files, entries = [], []
    for number, unit in enumerate(units):
        files.append([write_file(unit.sources, folder / f"{number}.cpp")] if unit.included else [Path(unit.sources[0])])
        if len(unit.sources) > 1:
            files[-1] += [write_file([one], folder / f"{number}_{at}.cpp") for at, one in enumerate(unit.sources)]
        entries += [unit.entry(file) for file in files[-1]]
    (folder / "compile_commands.json").write_text(json.dumps(entries, indent=1), encoding="utf-8")
    return files


def write_file(sources: list[str], file: Path) -> Path:
    """A file that includes them."""
    file.write_text("".join(f'#include "{source}"\n' for source in sources), encoding="utf-8")
    return file


def tidy(folder: Path, file: Path) -> tuple[bool, str]:
    """Whether nothing was found in a file, and what was."""
    run = subprocess.run(["clang-tidy", "--quiet", "-p", folder, file], capture_output=True, text=True)
    return run.returncode == 0, run.stdout + COUNT.sub("", run.stderr)


def check(folder: Path, files: list[Path]) -> bool:
    """Prints what is found in a unit; whether nothing was."""
    good, found = tidy(folder, files[0])
    if "[clang-diagnostic-error" in found and len(files) > 1:
        clash = re.search(r"^.*\[clang-diagnostic-error", found, re.MULTILINE)
        print(f"clang-tidy: one by one, since names clash: {clash[0] if clash else files[0]}]", flush=True)
        results = [tidy(folder, file) for file in files[1:]]
        good, found = all(each for each, _ in results), "".join(text for _, text in results)
    print(found, end="", flush=True)
    return good


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    units = units_of(build)
    folder = build / "batches"
    files = write_units(units, folder)
    print(f"clang-tidy: {sum(len(unit.sources) for unit in units)} files in {len(units)} batches", flush=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda unit: check(folder, unit), files))
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
