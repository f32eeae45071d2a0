#!/usr/bin/env python3
"""Checks the sources against the layers of docs/design.md: check_layers.py ROOT."""

import re
import sys
from collections import Counter, defaultdict

from sources import report, source_files

# The public headers of each layer. A header includes its own layer or a lower one.
LAYERS = [
    {
        "error.hpp",
        "dtype.hpp",
        "interrupt.hpp",
        "log.hpp",
        "output_file.hpp",
        "reduce.hpp",
        "sparse.hpp",
    },
    {"device.hpp", "select.hpp"},
    {"unique_id.hpp", "call.hpp", "message.hpp", "transport.hpp"},
    {"communicator.hpp", "launch.hpp", "mpi.hpp", "store.hpp", "timeline.hpp"},
    {"adagrad.hpp", "adam.hpp", "compressor.hpp", "gradient.hpp", "optimizer.hpp", "step_statistics.hpp"},
    {"bucket_average.hpp", "dist_opt.hpp", "dist_options.hpp"},
    {
        "ps/checkpoint.hpp",
        "ps/dense.hpp",
        "ps/fleet.hpp",
        "ps/mode.hpp",
        "ps/server.hpp",
        "ps/table.hpp",
        "ps/worker.hpp",
    },
]
LAYER_OF = {f"tutti/{name}": number for number, names in enumerate(LAYERS) for name in names}

# The highest layer that a folder of src/ may use.
FOLDER_LAYERS = {"base": 0, "launch": 2, "device": 1, "comm": 3, "opt": 5, "ps": 6}
# So many files of its own a folder of src/ may have.
MOST_FILES = 40

# Folders that face a vendor or an instruction set, and may compile conditionally.
TRANSPORT_FOLDERS = ("comm/shm/", "comm/mpi/", "comm/nccl/")
BACKEND_FOLDERS = TRANSPORT_FOLDERS + ("device/cpu/", "device/cuda/")
# Headers of a transport are for itself and for the folders that choose or compose transports.
TRANSPORTS = TRANSPORT_FOLDERS + ("comm/hosts/",)
COMPOSERS = ("comm/communicator/", "comm/hosts/", "ps/")
# The folder of MPI, without those below it, and where a caller's MPI_Comm is taken.
KNOW_MPI = re.compile(r"comm/(mpi/[^/]+|communicator/from_mpi\.cpp)")

# The launcher is a program of its own, which stands on what is below and nothing else of the library.
LAUNCHER = "launch/"
LAUNCHER_USES = (LAUNCHER, "base/")
LAUNCHER_HEADERS = LAYERS[0] | {"unique_id.hpp"}

# After a loss MPI_Finalize would wait for ever, and a forked child that cannot become its program has
# nothing else to do: there alone the process is ended.
END_THE_PROCESS = ("src/comm/mpi/lifecycle.cpp", "src/launch/process/process.cpp")

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
CONDITIONAL = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b")
# A call with an argument of what is named abort is a member of ours.
PROCESS_END = re.compile(
    r"(?<![\w:.>])(?:::|std::)?((?:_?exit|_Exit|quick_exit)(?=\s*\()|(?:abort|terminate)(?=\s*\(\s*\)))"
)
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def without_comments(text, strings):
    """The text with its comments, and its strings unless `strings`, blanked; lines stay in place."""

    def blank(match):
        token = match.group()
        keep = strings and token.startswith('"')
        return token if keep else "\n" * token.count("\n") or " "

    return COMMENT_OR_STRING.sub(blank, text)


def highest_layer(path):
    """The highest layer that the file may include; None for a file that has no place."""
    if path.startswith("include/"):
        return LAYER_OF.get(path.removeprefix("include/"))
    return FOLDER_LAYERS.get(path.removeprefix("src/").split("/")[0])


def include_fault(path, included, root):
    """What is wrong with one include of one file, or None."""
    own = path.removeprefix("src/")
    if included == "mpi.h":
        if path != "include/tutti/mpi.hpp" and not KNOW_MPI.fullmatch(own):
            return "only tutti/mpi.hpp and src/comm/mpi/, not its folders, include mpi.h"
    elif included.startswith("tutti/"):
        if included not in LAYER_OF:
            return f"{included} is in no layer"
        if LAYER_OF[included] > highest_layer(path):
            return f"{included} is of a higher layer"
        if own.startswith(LAUNCHER) and included.removeprefix("tutti/") not in LAUNCHER_HEADERS:
            return f"launch/ includes no {included}"
        if included == "tutti/mpi.hpp" and not KNOW_MPI.fullmatch(own):
            return "only comm/mpi/ and from_mpi.cpp include tutti/mpi.hpp, which includes mpi.h"
    elif (root / "src" / included).exists():
        if path.startswith("include/"):
            return f"a public header includes the private {included}"
        if own.startswith(LAUNCHER) and not included.startswith(LAUNCHER_USES):
            return f"launch/ includes no {included}"
        if included.startswith(LAUNCHER) and not own.startswith(LAUNCHER):
            return "only launch/ includes launch/"
        if highest_layer(f"src/{included}") > highest_layer(path):
            return f"{included} is of a higher layer"
        for transport in TRANSPORTS:
            if included.startswith(transport) and not own.startswith((transport, *COMPOSERS)):
                return f"only comm/communicator/, comm/hosts/ and ps/ include {transport}"
    elif ((root / path).parent / included).is_file():
        return f"{included} is not named from src/"
    return None


def check_file(root, path):
    """Yields (line number, fault) for one file; `path` is relative to `root`."""
    if highest_layer(path) is None:
        yield 1, "this file is in no layer"
        return
    text = (root / path).read_text(encoding="utf-8")
    backend = path.removeprefix("src/").startswith(BACKEND_FOLDERS)
    for number, line in enumerate(without_comments(text, strings=True).splitlines(), 1):
        if match := INCLUDE.match(line):
            if fault := include_fault(path, match.group(1), root):
                yield number, fault
        elif CONDITIONAL.match(line) and not backend:
            yield number, "conditional compilation outside the backend folders"
    if path.startswith("src/") and path not in END_THE_PROCESS:
        for number, line in enumerate(without_comments(text, strings=False).splitlines(), 1):
            if match := PROCESS_END.search(line):
                yield number, f"the library never calls {match.group(1)}"


def folder_graph(root, files):
    """For each folder of src/ those that its files include, and where: {from: {to: file}}."""
    graph = defaultdict(dict)
    for path in files:
        own = path.rpartition("/")[0]
        text = without_comments((root / path).read_text(encoding="utf-8"), strings=True)
        for line in text.splitlines():
            if not (match := INCLUDE.match(line)) or not (root / "src" / match.group(1)).exists():
                continue
            other = f"src/{match.group(1)}".rpartition("/")[0]
            if other != own:
                graph[own].setdefault(other, path)
    return graph


def find_cycle(graph):
    """Folders of which each includes the next and the last the first; empty if there is none."""
    done = set()

    def search(way):
        for other in graph.get(way[-1], {}):
            if other in way:
                return way[way.index(other) :]
            if other not in done and (cycle := search([*way, other])):
                return cycle
        done.add(way[-1])
        return []

    return next((cycle for folder in list(graph) if (cycle := search([folder]))), [])


def check_folders(root, files):
    """Yields what is wrong with the folders of src/: too many files, or a cycle among them."""
    sizes = Counter(path.rpartition("/")[0] for path in files)
    for folder, size in sizes.items():
        if size > MOST_FILES:
            yield f"{folder}:1: this folder has {size} files, more than {MOST_FILES}"
    graph = folder_graph(root, files)
    if cycle := find_cycle(graph):
        pairs = zip(cycle, cycle[1:] + cycle[:1])
        steps = ", ".join(f"{graph[one][other]} includes {other}" for one, other in pairs)
        yield f"{cycle[0]}:1: these folders form a cycle: {steps}"


def check_tree(root):
    """All faults of the tree as lines of text, and how many files were read."""
    files = source_files(root, ("include", "src"))
    faults = [
        f"{path}:{number}: {fault}" for path in files for number, fault in check_file(root, path)
    ]
    faults += check_folders(root, [path for path in files if path.startswith("src/")])
    return faults, len(files)


if __name__ == "__main__":
    sys.exit(report(check_tree, "files"))
