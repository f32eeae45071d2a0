"""Names for annotations."""

from __future__ import annotations

from typing import Any, Callable, Dict, TypedDict

import numpy
import numpy.typing as npt

# Whatever has the buffer protocol, __array_interface__, __cuda_array_interface__ or DLPack; no type
# says that.
Array = Any

Emit = Callable[[Array, Array], None]


class State(TypedDict):
    """An optimiser's state: arrays over the flat space of all parameters, and numbers."""

    arrays: Dict[str, npt.NDArray[numpy.float32]]
    numbers: Dict[str, float]
