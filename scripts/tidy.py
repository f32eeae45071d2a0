#!/usr/bin/env python3
"""Runs clang-tidy on all sources that a build compiles: tidy.py BUILD. BUILD/compile_commands.json says how.

Reading headers is most of what clang-tidy does. So sources that are compiled alike, in whatever program of a unity
build or each a program, are checked several at a time; and each once, though two programs may have it. Where names of
two sources clash, which nothing forbids in two programs, one goes by another; where that fails, or anything is found,
the sources of the batch are checked one by one, and why is told."""

import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

BATCH = 16
# What tells nothing of a source to clang-tidy: how GCC is to compile it, and what the build includes to read it once.
SAYS_NOTHING = re.compile(r"-O\d|-g|-f(PIC|visibility=hidden|no-omit-frame-pointer)|-D\w+_EXPORTS|-Winvalid-pch")
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
    """How a unit is compiled, as far as clang-tidy minds, without its file and the object."""
    words = shlex.split(entry["command"])
    for option in ("-o", "-c", "-include"):
        if option in words:
            at = words.index(option)
            del words[at : at + 2]
    return [word for word in words if not SAYS_NOTHING.fullmatch(word)]


def units_of(build: Path) -> list[Unit]:
    """All sources in batches. What the build compiles alone stays alone, for it has a reason; but for programs that are
    one source each, whose names are their own."""
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
        if "/Unity/" in file or "/benchmarks/" in file:
            for source in new:
                alike.setdefault((kind_of(source), *command_of(entry)), []).append(source)
        else:
            alone += [Unit([source], command_of(entry), folder, included=False) for source in new]
    together = [
        Unit(batch, command, folder) for (_, *command), sources in alike.items() for batch in batches_of(sources)
    ]
    return sorted(together + alone, key=Unit.size, reverse=True)


def kind_of(source: str) -> str:
    """The folder of tests or benchmarks that it is from, whose headers have words of their own."""
    found = re.search(r"/(tests/\w+|benchmarks)/", source)
    return found[0] if found else ""


def batches_of(sources: list[str]) -> list[list[str]]:
    """The sources in batches, each in the first with all of which it can be in one file."""
    batches: list[list[str]] = []
    for source in sources:
        for batch in batches:
            if len(batch) < BATCH and all(go_together(source, one) for one in batch):
                batch.append(source)
                break
        else:
            batches.append([source])
    return batches


def go_together(one: str, other: str) -> bool:
    """Whether what each defines of the other's words can go by another name."""
    return can_be_renamed(one, clashes_of(one, [other])) and can_be_renamed(other, clashes_of(other, [one]))


def clashes_of(source: str, others: list[str]) -> set[str]:
    """What it defines and others define, too, or use, who have something else of that name from a header."""
    own = names_of(source)
    mine = own - declared_for(source)
    return {name for other in others for name in (own & names_of(other)) | (mine & words_of(other))}


@cache
def declared_for(source: str) -> frozenset[str]:
    """What is declared by the headers that it includes of its folder, or of one around it."""
    found = re.findall(r'^#include "(.*)"', text_of(source), re.MULTILINE)
    files = [folder / name for name in found for folder in list(Path(source).parents)[:4]]
    return frozenset().union(*(names_of(str(file)) for file in files if file.is_file()))


def can_be_renamed(source: str, names: set[str]) -> bool:
    """Whether they are no names of tests, and none is in a class or another namespace, too."""
    return not any("." in name or re.search(rf"(\.|->|::){name}\b", text_of(source)) for name in names)


@cache
def text_of(source: str) -> str:
    return Path(source).read_text(encoding="utf-8")


@cache
def words_of(source: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text_of(source)))


@cache
def names_of(source: str) -> frozenset[str]:
    """What a source may define in its namespaces, whose content is not indented: more rather than less. Nothing of
    those of the library, whose names differ anyway (tests/build/unity_test.py), nor what its header declares."""
    names = {"main"} if has_main(source) else set()
    if not re.search(r"/(tests|benchmarks)/", source):
        return frozenset(names)
    for line in text_of(source).splitlines():
        line = line.removeprefix("[[maybe_unused]] ").removeprefix("::")
        if test := re.match(r"[A-Z_]+\((\w+), (\w+)\)", line):  # TEST() and the like
            names.add(f"{test[1]}.{test[2]}")
        elif type_ := re.match(r"(?:class|struct|enum|enum class|using) (\w+)( : .*)?( \{| =|;)", line):
            names.add(type_[1])
        elif re.match(r"\w", line) and not re.match(r"(namespace|template|using|class|struct|enum)\b", line):
            names.update(re.findall(r"^[^(={]*?[ &*>](\w+)(?=[({;\[]| =)", line))
    header = Path(source).with_suffix(".hpp")
    return frozenset(names - words_of(str(header)) if str(header) != source and header.exists() else names)


def has_main(source: str) -> bool:
    """Whether it is that of a program."""
    return re.search(r"^int main\(", text_of(source), re.MULTILINE) is not None


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
    """A file that includes them. What others define or use, too, gets a number: by a macro, before which all headers
    have been read. Of the names of main() .clang-tidy knows."""
    text = ""
    headers: list[str] = []
    for number, source in enumerate(sources):
        clashes = sorted(clashes_of(source, sources[:number] + sources[number + 1 :]))
        text += "".join(f"#define {name} {name}{number}\n" for name in clashes)
        text += f'#include "{source}"\n'
        text += "".join(f"#undef {name}\n" for name in clashes)
        headers += headers_of(source) if clashes else []
    file.write_text("".join(dict.fromkeys(headers)) + text, encoding="utf-8")
    return file


def headers_of(source: str) -> list[str]:
    """The lines that include what a source includes in any case."""
    lines, depth = [], 0
    for line in text_of(source).splitlines():
        depth += bool(re.match("#if", line)) - bool(re.match("#endif", line))
        if depth == 0 and (found := re.match(r'#include (<.*>|"(.*)")', line)):
            beside = Path(source).parent / (found[2] or ".")
            lines.append(f'#include "{beside}"\n' if beside.is_file() else f"{found[0]}\n")
    return lines


def tidy(folder: Path, file: Path) -> tuple[bool, str]:
    """Whether nothing was found in a file, and what was."""
    run = subprocess.run(["clang-tidy", "--quiet", "-p", folder, file], capture_output=True, text=True)
    return run.returncode == 0, run.stdout + COUNT.sub("", run.stderr)


def check(folder: Path, files: list[Path]) -> bool:
    """Prints what is found in a unit; whether nothing was. Of several sources, what is found in each alone counts."""
    good, found = tidy(folder, files[0])
    if not good and len(files) > 1:
        reason = re.search(r"^.*(error|warning): .*", found, re.MULTILINE)
        print(f"clang-tidy: one by one, since of several is told: {reason[0] if reason else files[0]}", flush=True)
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
