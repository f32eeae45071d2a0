"""What scripts of Fluid have around their graph: places, an executor, the programs of a start."""

from __future__ import annotations

from typing import Any, Callable, List, NoReturn

from tutti.errors import InvalidArgument
from tutti._checks import whole


class CPUPlace:
    """The CPU."""

    def __repr__(self) -> str:
        return "CPUPlace()"


class CUDAPlace:
    """A GPU, on which a model may compute; its rows are looked up in the CPU's memory, and travel.
    Tables themselves, and so servers, are on the CPU."""

    def __init__(self, id: int = 0) -> None:  # noqa: A002 - Fluid's name
        self.id = whole("id", id, 0, 2**31 - 1)

    def __repr__(self) -> str:
        return f"CUDAPlace({self.id})"


class Nothing:
    """A program that has nothing to do: parameters begin with trainer 0's values."""

    def run(self) -> None:
        pass


class Executor:
    """Fluid's, which runs programs: exe.run(program). place: where the model computes, at which
    nothing here looks but a server, whose tables lie in the CPU's memory."""

    def __init__(self, place: Any = None) -> None:
        self.place = place
        self._ran: List[Any] = []

    def run(self, program: Any = None, *arguments: Any, feed: Any = None, fetch_list: Any = None) -> None:
        """program.run(); of a trainer's program with the gradients of a step."""
        for name, value in (("feed", feed), ("fetch_list", fetch_list)):
            if value is not None:
                raise InvalidArgument(f"{name} is given, but there is no graph for it: compute the "
                                      "gradients of the batch, and exe.run(program, gradients)")
        if not hasattr(program, "run"):
            raise InvalidArgument(f"program is {program!r}, but must be fleet.main_program, "
                                  "fleet.startup_program, or one of a DistributeTranspiler's")
        if getattr(program, "serves", False) and isinstance(self.place, CUDAPlace):
            raise InvalidArgument(f"place is {self.place!r}, but a server's tables lie in the CPU's "
                                  "memory: it must be CPUPlace()")
        # Even if run() fails: the program may have joined the others before.
        if hasattr(program, "stop") and program not in self._ran:
            self._ran.append(program)
        program.run(*arguments)

    def close(self) -> None:
        """Ends the trainers' programs that it has run: all stop(), and the first error is raised."""
        ran, self._ran = self._ran, []
        errors: List[Exception] = []
        for program in ran:
            try:
                program.stop()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def default_startup_program() -> Nothing:
    """Nothing that would have to be run."""
    return Nothing()


def _without_a_graph(name: str, instead: str) -> Callable[..., NoReturn]:
    """Something of Fluid's that has no meaning here, and says so."""
    def refuse(*_arguments: Any, **_options: Any) -> NoReturn:
        raise InvalidArgument(f"{name}: there is no graph. {instead}")
    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Refused: {instead}"
    return refuse


_STEP = ("program = t.get_trainer_program() has joined the others, and program(gradients) is a step; "
         "with fleet, exe.run(fleet.main_program, gradients)")
ParallelExecutor = _without_a_graph("ParallelExecutor", _STEP)
CompiledProgram = _without_a_graph("CompiledProgram", _STEP)
default_main_program = _without_a_graph(
    "default_main_program", "What is trained is a ps.Program(parameters, embeddings, optimizer), or "
    "what optimizer.minimize(parameters, embeddings) is told")
memory_optimize = _without_a_graph("memory_optimize", "Leave it out")
release_memory = _without_a_graph("release_memory", "Leave it out")
