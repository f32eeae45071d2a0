"""What scripts of Fluid have around their graph: places, an executor, the programs of a start."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, NoReturn, Optional

from tutti.errors import InvalidArgument
from tutti._checks import flag, whole
from tutti._log import logger


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
        self._ran: Dict[int, Any] = {}  # by identity
        self._errors: List[Exception] = []  # of close()
        self._telling = threading.Lock()

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
        if hasattr(program, "stop"):
            self._ran.setdefault(id(program), program)
        program.run(*arguments)

    def close(self) -> None:
        """Ends the trainers' programs that it has run: all stop(), and the first error is raised, to one
        of the threads that call it. What Ctrl-C leaves of that is for the next call."""
        for key, program in list(self._ran.items()):
            try:
                program.stop()
            except Exception as error:
                with self._telling:
                    self._errors.append(error)
            self._ran.pop(key, None)
        with self._telling:
            errors, self._errors = self._errors, []
        if errors:
            raise errors[0]


def default_startup_program() -> Nothing:
    """Nothing that would have to be run."""
    return Nothing()


class DefaultProgram:
    """Fluid's default main program, of which each process has one: what transpile() was told last,
    as its trainer runs it."""

    def __init__(self) -> None:
        self._job: Any = None

    def become(self, job: Any) -> None:
        """Of another DistributeTranspiler, from which this gets the trainer's program when it is used."""
        self._job = job

    def _transpiled(self) -> Any:
        if self._job is None:
            raise InvalidArgument("default_main_program has nothing to run: transpile(trainer_id, "
                                  "ps.Program(parameters, embeddings, optimizer), ...) comes first")
        return self._job

    def trainer(self) -> Any:
        """The trainer's program. Raises InvalidArgument before transpile()."""
        return self._transpiled().get_trainer_program()

    def run(self, gradients: Any = None) -> None:
        """A step."""
        self.trainer().run(gradients)

    def stop(self) -> None:
        """Pushes what is left, and leaves; a trainer that has not joined does nothing."""
        trainer = self._transpiled().trainer
        if trainer is not None:
            trainer.stop()


_default = DefaultProgram()


def default_main_program() -> DefaultProgram:
    """What the trainer of the last transpile() runs: exe.run(default_main_program(), gradients)."""
    return _default


class ParallelExecutor:
    """Fluid's: run(gradients) is a step of a trainer's program, by default default_main_program()'s.

    use_cuda, loss_name: where the model computes, and what its loss is called; nothing here looks at
    either. num_trainers, trainer_id: those that transpile() was told, if they are given.
    """

    def __init__(self, use_cuda: bool = False, loss_name: Optional[str] = None,
                 main_program: Any = None, *, num_trainers: Optional[int] = None,
                 trainer_id: Optional[int] = None) -> None:
        flag("use_cuda", use_cuda)
        program = default_main_program() if main_program is None else main_program
        self._program = program.trainer() if isinstance(program, DefaultProgram) else program
        if not hasattr(self._program, "trainer_num"):
            raise InvalidArgument(f"main_program is {main_program!r}, but must be what "
                                  "t.get_trainer_program() of a DistributeTranspiler gives, or None")
        for name, given, told in (("num_trainers", num_trainers, self._program.trainer_num),
                                  ("trainer_id", trainer_id, self._program.trainer_id)):
            if given is not None and given != told:
                raise InvalidArgument(f"{name} is {given!r}, but transpile() was told {told}")

    def run(self, gradients: Any = None, *, feed: Any = None, fetch_list: Any = None) -> None:
        """A step, with the gradients of the batch; feed and fetch_list are refused, as Executor does."""
        Executor().run(self._program, gradients, feed=feed, fetch_list=fetch_list)

    def close(self) -> None:
        """Pushes what is left, and leaves."""
        self._program.stop()


def _does_nothing(name: str, reason: str) -> Callable[..., None]:
    """Something of Fluid's that a script may call, and that has nothing to do here."""
    said: List[bool] = []

    def pass_by(*_arguments: Any, **_options: Any) -> None:
        if not said:
            said.append(True)
            logger.warning("%s does nothing: %s", name, reason)
    pass_by.__name__ = pass_by.__qualname__ = name
    pass_by.__doc__ = f"Does nothing, and says so once: {reason}."
    return pass_by


_NO_GRAPH = "there is no graph whose memory could be used again"
memory_optimize = _does_nothing("memory_optimize", _NO_GRAPH)
release_memory = _does_nothing("release_memory", _NO_GRAPH)


def CompiledProgram(*_arguments: Any, **_options: Any) -> NoReturn:  # noqa: N802 - Fluid's name
    """Refused: there is no graph to compile."""
    raise InvalidArgument(
        "CompiledProgram: there is no graph. program = t.get_trainer_program() has joined the others, "
        "and program(gradients) is a step; with fleet, exe.run(fleet.main_program, gradients)")
