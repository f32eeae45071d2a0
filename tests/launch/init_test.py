#!/usr/bin/env python3
"""A launcher that is process 1, as in a container: it adopts whatever loses its parent, and of signals
from inside gets those alone that it catches."""

import signal
import subprocess

from job import TUTTI, JobTest, main

AS_INIT = ["unshare", "--pid", "--fork", "--mount-proc"]
# Each rank leaves a child in a session of its own, and one whose parent has ended.
FAMILY = "setsid sleep 1000 &\n(setsid sleep 1000 &)\n"


class AsInit(JobTest):
    def setUp(self):
        super().setUp()
        if subprocess.run([*AS_INIT, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("no PID namespaces here, which need root")

    def run_as_init(self, text):
        command = [*AS_INIT, TUTTI, "run", "-n", "2", str(self.script(text))]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=30,
                              check=False,  # some shells have what runs in the background ignore Ctrl-C
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def test_the_end_of_ranks_is_the_command_s(self):
        for rank_one, code in (("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)):
            with self.subTest(rank_one=rank_one):
                wait = "sleep 1000" if code else "exit 0"
                result = self.run_as_init(f'{FAMILY}[ "$TUTTI_RANK" = 1 ] && {rank_one}; {wait}')
                self.assertEqual(result.returncode, code, result.stderr)

    def test_a_signal_ends_the_ranks(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number.name):
                result = self.run_as_init(f'[ "$TUTTI_RANK" = 1 ] && kill -{int(number)} 1; sleep 1000')
                self.assertEqual(result.returncode, 128 + number, result.stderr)
                self.assertIn(f"ended by {number.name}", result.stderr)

    def test_ctrl_z_does_not_stop_it(self):
        result = self.run_as_init('[ "$TUTTI_RANK" = 1 ] && kill -TSTP 1; exit 0')
        self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    main()
