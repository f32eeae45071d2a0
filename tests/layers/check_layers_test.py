#!/usr/bin/env python3
"""Checks check_layers.py: each planted fault must be found, and sound files must pass."""

import tempfile
import unittest
from pathlib import Path

from check_layers import check_tree

SOUND = {
    "include/tutti/mpi.hpp": '#include <mpi.h>\n#include "tutti/communicator.hpp"\n',
    "include/tutti/communicator.hpp": '#include "tutti/transport.hpp"\n',
    "include/tutti/transport.hpp": '#include "tutti/unique_id.hpp"\n#include <vector>\n',
    "src/comm/mpi/mpi_transport.hpp": "#include <mpi.h>\n",
    "src/comm/mpi/lifecycle.cpp": "void f() { std::_Exit(1); }\n",
    "src/launch/process/process.cpp": '#include "base/log.hpp"\n#include "tutti/unique_id.hpp"\n'
    "void f() { ::_exit(127); }\n",
    "src/comm/shm/segment.hpp": "#ifdef __x86_64__\n#endif\n",
    "src/comm/communicator/backends.cpp": '#include "comm/shm/segment.hpp"\n',
    "src/comm/hosts/transport.hpp": '#include "comm/shm/segment.hpp"\n#include <memory>\n',
    "src/comm/hosts/memory/grid.hpp": "",
    "src/base/log.hpp": "",
    "src/opt/sgd.cpp": '#include "tutti/optimizer.hpp"\n#include "base/log.hpp"\n'
    "// exit(1) and\n/* abort(),\n #if 1 */ const char* text = \"exit(\"; void on_exit(int);\n"
    "void f() { transport->abort(text); }\nvoid T::abort(std::string_view reason) {}\n",
}

HEADERS = {"src/opt/bucket.hpp": "", "src/comm/split.hpp": "", "src/launch/plan.hpp": ""}

# Each: a file, its text, and what the checker has to say of it.
FAULTS = [
    ("include/tutti/device.hpp", '#include "tutti/transport.hpp"\n', "higher layer"),
    ("include/tutti/compressor.hpp", '#include "tutti/dist_opt.hpp"\n', "higher layer"),
    ("include/tutti/device.hpp", '#include "tutti/new.hpp"\n', "in no layer"),
    ("include/tutti/new.hpp", "", "in no layer"),
    ("include/tutti/device.hpp", "#include <mpi.h>\n", "mpi.h"),
    ("include/tutti/device.hpp", '#include "base/log.hpp"\n', "private"),
    ("include/tutti/device.hpp", "#if defined(X)\n#endif\n", "conditional"),
    ("src/opt/reducer.cpp", '#include "mpi.h"\n', "mpi.h"),
    ("src/opt/reducer.cpp", '#include "tutti/mpi.hpp"\n', "mpi.h"),
    ("src/opt/reducer.cpp", '#include "comm/shm/segment.hpp"\n', "only comm/communicator/"),
    ("src/opt/reducer.cpp", '#include "comm/hosts/transport.hpp"\n', "only comm/communicator/"),
    ("src/opt/reducer.cpp", "  #  ifdef X\n#endif\n", "conditional"),
    ("src/opt/reducer.cpp", "void f() { std::abort(); }\n", "never calls abort"),
    ("src/comm/shm/x.cpp", "void f() { ::_exit(1); }\n", "never calls _exit"),
    ("src/comm/shm/x.cpp", '#include "segment.hpp"\n', "not named from src/"),
    ("src/comm/mpi/x.cpp", '#include "comm/shm/segment.hpp"\n', "only comm/communicator/"),
    ("src/comm/mpi/sockets/x.cpp", "#include <mpi.h>\n", "not its folders"),
    ("src/comm/x.cpp", '#include "tutti/optimizer.hpp"\n', "higher layer"),
    ("src/comm/x.cpp", '#include "opt/bucket.hpp"\n', "higher layer"),
    ("src/device/x.cpp", '#include "tutti/transport.hpp"\n', "higher layer"),
    ("src/device/x.cpp", '#include "comm/split.hpp"\n', "higher layer"),
    ("src/launch/x.cpp", '#include "tutti/transport.hpp"\n', "launch/ includes no tutti/transport.hpp"),
    ("src/launch/x.cpp", '#include "comm/split.hpp"\n', "launch/ includes no comm/split.hpp"),
    ("src/launch/x.cpp", "void f() { std::abort(); }\n", "never calls abort"),
    ("src/comm/x.cpp", '#include "launch/plan.hpp"\n', "only launch/ includes launch/"),
    ("src/stray.cpp", "", "in no layer"),
]


def check(files):
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        return check_tree(root)


class CheckLayersTest(unittest.TestCase):
    def test_sound_tree_passes(self):
        self.assertEqual(check(SOUND), ([], len(SOUND)))

    def test_cycles_of_folders_are_found(self):
        packet = {"src/comm/sparse/packet.hpp": '#include "comm/split.hpp"\n'}
        split = {"src/comm/split.hpp": '#include "comm/call/call.hpp"\n'}
        call = {"src/comm/call/call.hpp": '#include "comm/sparse/packet.hpp"\n'}
        self.assertEqual(check({**SOUND, **packet, "src/comm/split.hpp": ""})[0], [])
        self.assertEqual(
            check({**SOUND, **packet, **split, **call})[0],
            [
                "src/comm/call:1: these folders form a cycle: "
                "src/comm/call/call.hpp includes src/comm/sparse, "
                "src/comm/sparse/packet.hpp includes src/comm, "
                "src/comm/split.hpp includes src/comm/call"
            ],
        )

    def test_crowded_folders_are_found(self):
        crowd = {f"src/comm/shm/x{i}.cpp": "" for i in range(39)}
        self.assertEqual(check({**SOUND, **crowd})[0], [])
        fault = "src/comm/shm:1: this folder has 41 files, more than 40"
        self.assertEqual(check({**SOUND, **crowd, "src/comm/shm/x.cpp": ""})[0], [fault])

    def test_planted_faults_are_found(self):
        for path, text, expected in FAULTS:
            with self.subTest(path=path, text=text):
                faults, _ = check({**SOUND, **HEADERS, path: text})
                self.assertEqual(len(faults), 1, faults)
                self.assertTrue(faults[0].startswith(f"{path}:1: "), faults)
                self.assertIn(expected, faults[0])


if __name__ == "__main__":
    unittest.main(argv=["check_layers_test"])
