"""What tests of several hosts, and the benchmark on them, do themselves; part of cluster_test.py."""
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import cluster
import cluster_faults

BENCH = Path(__file__).absolute().parents[2] / "benchmarks" / "cluster_bench.py"


def test_hosts_that_fail_half_way_leave_nothing(*_):
    class Failing(cluster.Cluster):
        def plug(self, name, number):
            super().plug(name, number)
            if name == "node1":
                raise InterruptedError

    hosts = Failing(2, 1)
    try:
        with hosts:
            assert False, "must not come here"
    except InterruptedError:
        pass
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"{hosts.prefix}-" not in left, left
    assert not os.path.exists(hosts.directory)


def test_sigterm_leaves_no_hosts(mpiexec, program, _):
    def spaces(pid):
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
        return [line for line in listed.stdout.splitlines() if line.startswith(f"tutti-{pid}-")]

    faults = subprocess.Popen([sys.executable, cluster_faults.__file__, mpiexec, program,
                               "--trials", "4"], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 20
    while len(spaces(faults.pid)) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    assert spaces(faults.pid), "it has made no hosts"
    faults.terminate()
    assert faults.wait(20) == 143
    assert not spaces(faults.pid), spaces(faults.pid)


def test_a_benchmark_that_hangs_is_ended(mpiexec, *_):
    ended = subprocess.run([sys.executable, str(BENCH), "--mpiexec", mpiexec, "--bench",
                            shutil.which("sleep"), "--layouts", "2x1", "--limit", "3", "1000"],
                           capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1, ended
    assert "2x1: the benchmark has not ended within 3 s" in ended.stderr, ended.stderr


def test_connections_are_controlled_as_the_benchmark_is_told(mpiexec, *_):
    """The sockets of all hosts, and those alone."""
    shows = ("import socket; print(socket.socket().getsockopt(socket.IPPROTO_TCP, "
             "socket.TCP_CONGESTION, 16).rstrip(b'\\0').decode())")
    command = [sys.executable, str(BENCH), "--mpiexec", mpiexec, "--bench", sys.executable, "--layouts",
               "2x1", "--limit", "20", "-c", shows]

    def shown(*options):
        ended = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=60)
        # Two ranks' lines can come as one, and their ends after it.
        return ended.returncode, "".join(ended.stdout.split()), ended.stderr

    code, names, said = shown()
    own = names[:len(names) // 2]
    assert code == 0 and own and names == own * 2, (code, names, said)
    other = next((name for name in cluster.congestion_controls() if name != own), own)
    code, names, said = shown("--congestion", other)
    assert code == 0 and names == other * 2, (code, names, said)
    code, _, said = shown("--congestion", "nope")
    assert code == 2 and "invalid choice: 'nope'" in said, (code, said)


def test_the_judge_of_faults(*_):
    """On made-up stories: of all ranks, half a second after the fault, the same by all survivors."""
    def complaints(number, named, ended=(), when=1500000000, part=None):
        trial = cluster_faults.Trial(1, number)
        texts = [f"lost {when} 0 {named} 0,1,2,3 {named} its process has ended"] * 4
        if part is not None:  # somebody loses the victim there first
            texts[(trial.victim + 1) % 4] = f"lost {when} 0 {named} {part} {named} did not answer"
        return trial, cluster_faults.judge(trial, texts, 1.0, dict.fromkeys(range(4), 0), set(ended))[0]

    in_turn, found = complaints(6, "")
    assert (in_turn.fault, in_turn.hosts, in_turn.slots) == ("kill a host's ranks in turn", 2, 2)
    assert found
    first = in_turn.node * 2
    assert not complaints(6, f"{first}")[1] and not complaints(6, f"{first},{first + 1}")[1]
    assert complaints(6, f"{first + 1}")[1], "the first victim is missing"
    killed, _ = complaints(0, "")
    assert killed.fault == "kill a rank"
    other = (killed.victim + 1) % 4
    assert not complaints(0, f"{killed.victim}")[1] and complaints(0, f"{other}")[1]
    assert not complaints(0, f"{other}", ended=[other])[1]
    stopped, _ = complaints(4, "")
    assert stopped.fault == "stop a rank"
    late = int((1 + 2 * stopped.deadline + 0.5) * 1e9)
    name, part = f"{stopped.victim}", f"{stopped.victim},{(stopped.victim + 1) % 4}"
    assert complaints(4, name, when=late)[1] and not complaints(4, name, when=late, part=part)[1]
    assert complaints(4, name, when=late + 10**9, part=part)[1]
    late = int((1 + 2 * killed.deadline + 0.5) * 1e9)
    part = f"{killed.victim},{other}"
    assert complaints(0, f"{killed.victim}", when=late, part=part)[1], "the dead do not compute"
    process = subprocess.Popen(["sleep", "60"])
    assert cluster_faults.is_alive(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not cluster_faults.is_alive(process.pid), "it has ended, and nobody has taken note"
    process.wait()
    assert not cluster_faults.is_alive(process.pid)


def test_whom_open_mpi_has_ended_is_known_by_its_last_words(*_):
    """And not by messages that it survives, nor where memory was gone."""
    where = "[node1][[58791,1],0][../../../../../../opal/mca/btl/tcp/"
    fatal = "[node1:01234] ../../../../../../ompi/mca/pml/ob1/pml_ob1_sendreq.c:190 FATAL\n"
    reset = f"{where}btl_tcp_frag.c:242:mca_btl_tcp_frag_recv] mca_btl_tcp_frag_recv: readv failed: Connection reset\n"
    refused = f"{where}btl_tcp_endpoint.c:1065:mca_btl_tcp_endpoint_send_handler] invalid connection state (2)\n"
    gone = f"{where}btl_tcp_frag.c:128:mca_btl_tcp_frag_send] mca_btl_tcp_frag_send: writev error (0x7f, 8)\n\tBad address(1)\n\n"
    gave_up = cluster_faults.open_mpi_gave_up
    assert gave_up(fatal) and gave_up(reset + fatal) and gave_up(refused + fatal)
    assert gave_up("[node1:01234] TCP ACK is neither SUCCESS nor ERR (something bad has probably happened)\n")
    assert not gave_up("") and not gave_up(reset) and not gave_up(refused) and not gave_up(gone + fatal)
    assert not gave_up(reset + "tutti error: pml_ob1_sendreq.c\n")


TESTS = (test_hosts_that_fail_half_way_leave_nothing,
         test_sigterm_leaves_no_hosts,
         test_a_benchmark_that_hangs_is_ended,
         test_connections_are_controlled_as_the_benchmark_is_told,
         test_the_judge_of_faults,
         test_whom_open_mpi_has_ended_is_known_by_its_last_words)
