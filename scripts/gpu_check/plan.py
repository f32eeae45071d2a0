"""What gpu-check runs, in which order, and for how long at most."""

import dataclasses
from typing import Callable, Optional

import results

# What matters first: the tests of what everything else stands on, then what a target needs, then
# Python, then the rest, as far as the time goes.
SECONDS = 480
ACCURACY = 0.97  # what two epochs of any mode reach
MODES = {
    "fp32": "", "fp16": "", "bf16": "", "partialUpdate": "",
    "sparseTopK": "--spars 0.01", "sparseThreshold": "--spars 0.02",
}


@dataclasses.dataclass(frozen=True)
class Step:
    """A program that is run and whose output is looked at."""

    name: str
    limit: int  # seconds
    about: str
    command: str  # words; those in braces are Machine's
    check: Callable[["Step", results.Results], str]  # what is wrong with the output, or ""
    ranks: int = 0  # that each row, or each test that notes one, must have; 0: it has no ranks
    gpus: int = 1  # that the machine must have
    shared: bool = False  # the ranks share GPU 0
    needs: Optional[str] = None  # what Machine must find

    def ours(self):
        """Whether the program is of the bundle, not of the machine."""
        return self.command.startswith(("{bin}/", "{mpirun} "))


def layout(ranks, shared):
    """How many ranks there are, and where."""
    if ranks == 1:
        return "1 rank"
    return f"{ranks} ranks " + ("on one GPU" if shared else "with a GPU each")


def gpu_ranks(name, limit, ranks, filter="*", **options):
    return Step(name, limit, f"collectives and DistOpt, {layout(ranks, 'shared' in options)}",
                f"{{mpirun}} -n {ranks} {{bin}}/gpu_ranks_test --gtest_filter={filter} "
                f"--gtest_output=xml:{{logs}}/{name}.xml", results.tested, ranks, **options)


def all_reduce(name, limit, ranks, **options):
    return Step(name, limit,
                f"all_reduce beside bare calls of NCCL, {layout(ranks, 'shared' in options)}",
                f"{{mpirun}} -n {ranks} {{bin}}/gpu_allreduce_bench --seconds 0.5",
                results.compared, ranks, **options)


def mnist(name, limit, ranks, mode, epochs, **options):
    return Step(name, limit,
                f"MNIST in mode {mode}, {epochs} epochs, {layout(ranks, 'shared' in options)}",
                f"{{bin}}/mnist_dist --ranks {ranks} --device cuda --epochs {epochs} "
                f"--data-dir {{mnist}} --json {{logs}}/{name}.json "
                f"--dist-option {mode} {MODES[mode]}",
                results.learned(epochs, ACCURACY), ranks, needs="mnist", **options)


def python_tests(package, limit, part="", about="the Python package on arrays of"):
    name = f"python.{package}{part}"
    return Step(name, limit, f"{about} {package}",
                f"{{{package}}} -m pytest -q -rs -p no:cacheprovider "
                f"--junitxml={{logs}}/{name}.xml {{python_tests}}/test_gpu_{package}{part}.py",
                results.tested, ranks=2, shared=True, needs=package)


def sanitizer(tool):
    name = f"sanitizer.{tool}"
    return Step(name, 60, f"kernels under compute-sanitizer, {tool}",
                f"{{sanitizer}} --tool {tool} --error-exitcode 1 {{bin}}/gpu_tests "
                f"--gtest_filter=GpuKernels.*:GpuSelect.*-*Millions* "
                f"--gtest_output=xml:{{logs}}/{name}.xml", results.tested, needs="sanitizer")


def plan(gpus):
    """The steps on a machine with so many GPUs, in their order."""
    each = max(gpus, 2)
    apart = min(gpus, 2)  # ranks that share no GPU, which would be slow in the long training
    possible = "*" if gpus > 1 else "-*OfAnotherGpu*"
    return [
        Step("nvidia_smi", 5, "the driver", "{nvidia_smi}", results.anything, needs="nvidia_smi"),
        Step("gpu_tests", 35, "kernels and streams of GPU 0, collectives of one rank",
             "{bin}/gpu_tests --gtest_output=xml:{logs}/gpu_tests.xml", results.tested),
        gpu_ranks("gpu_ranks.2", 60, 2, possible, shared=True),
        Step("gpu_network", 15, "the example's network, through cuBLAS, beside the CPU's",
             "{bin}/unit_tests --gtest_filter=GpuNetwork.*-*WithoutAGpu* "
             "--gtest_output=xml:{logs}/gpu_network.xml", results.tested),
        Step("kernels", 60, "kernels at 64 Mi elements, beside a copy, a read pass and CUB's sort",
             "{bin}/gpu_kernels_bench --out {scratch}", results.compared),
        Step("kernels.2Mi", 15, "the same at 2 Mi elements",
             "{bin}/gpu_kernels_bench --n 2097152 --runs 51", results.compared),
        Step("killed_rank", 30, "how soon a killed rank is named, 3 ranks",
             "{bin}/killed_rank_bench --ranks 3 --device cuda", results.compared, 3,
             shared=gpus < 3),
        gpu_ranks("gpu_ranks.each", 40, each, gpus=2),
        all_reduce("all_reduce.each", 30, each, gpus=2),
        all_reduce("all_reduce.2", 40, 2, shared=True),
        mnist("mnist", 60, apart, "fp32", 10),
        python_tests("torch", 45),
        python_tests("cupy", 40),
        python_tests("torch", 45, "_backend", "torch.distributed over tutti, of"),
        gpu_ranks("gpu_ranks.1", 30, 1, possible, shared=True),
        gpu_ranks("gpu_ranks.4", 60, 4, possible, shared=True),
        Step("torch_topk", 60, "torch.topk on what `kernels` selected from",
             "{any_torch} {bin}/topk_vs_torch.py {scratch}", results.compared, needs="any_torch"),
        *(mnist(f"mnist.{mode}", 30, 2, mode, 2, shared=True) for mode in MODES),
        sanitizer("memcheck"),
        sanitizer("racecheck"),
        Step("unit_tests", 60, "what one process can test, on a machine with a GPU",
             "{bin}/unit_tests --gtest_brief=1 --gtest_output=xml:{logs}/unit_tests.xml",
             results.tested_mostly),
    ]
