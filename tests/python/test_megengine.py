"""The scripts of MegEngine's document on distributed training, on PyTorch."""

import multiprocessing
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch", minversion="2.1")  # since when gradients have hooks

import launching
import seed_megengine

LIMIT = 100


def equal(first, second):
    return all((a == b).all() for a, b in zip(first, second))


def test_data_parallel_with_save_and_load(tmp_path):
    path = tmp_path / "net.pkl"
    (accuracy, first), (_, second) = seed_megengine.main(path, 20)
    assert accuracy > 0.9 and equal(first, second)
    again = seed_megengine.main(path, 0)  # goes on from the file, on all ranks
    assert equal(again[0][1], first) and equal(again[1][1], first)


def under_mpiexec(place, path):
    results = seed_megengine.main(path, 20)
    assert len(results) == 2 and equal(results[0][1], results[1][1]) and results[0][0] > 0.9
    return results[0][1]


def test_the_same_script_under_mpiexec(tmp_path):
    seen = launching.run(under_mpiexec, 2, "mpi", tmp_path / "net.pkl")
    assert equal(*seen)


SEVERAL = """if True:
    import sys
    from seed_megengine import main_on_one_machine
    rank_start, port, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    results = main_on_one_machine(4, 2, rank_start, "localhost", port, path)
    print([(round(accuracy, 2), [p.tolist() for p in net]) for accuracy, net in results])
    """


def test_several_machines_on_one(tmp_path):
    port = launching.free_ports(1)[0]
    here = pathlib.Path(__file__).parent
    programs = [subprocess.Popen([sys.executable, "-c", SEVERAL, str(first), str(port),
                                  str(tmp_path / "net.pkl")], cwd=here, stdout=subprocess.PIPE,
                                 text=True) for first in (0, 2)]
    outputs = [program.communicate(timeout=LIMIT)[0] for program in programs]
    results = [result for output in outputs for result in eval(output)]
    assert len(results) == 4 and all(net == results[0][1] for _, net in results)
    assert min(accuracy for accuracy, _ in results) > 0.85


def test_model_parallel():
    assert seed_megengine.model_parallel() == [[True, True]] * 2


def test_ones_own_multiprocessing(tmp_path):
    context = multiprocessing.get_context("spawn")
    queue, port = context.SimpleQueue(), launching.free_ports(1)[0]
    processes = [context.Process(target=seed_megengine.worker,
                                 args=(rank, 2, port, tmp_path / "net.pkl", queue))
                 for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT)
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted(queue.get()[0] for _ in range(2)) == [0, 1]


def test_the_walk_through(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (pathlib.Path(__file__).parents[2] / "docs" / "megengine.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 4
    names = {"__name__": "walk"}
    for block in blocks:
        exec(compile(block, "docs/megengine.md", "exec"), names)
