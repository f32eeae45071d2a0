"""MegEngine's client of the key-value store: any value, under any key, for all ranks."""

from __future__ import annotations

import pickle
from collections import defaultdict
from typing import Any, DefaultDict, Optional

from tutti import _core
from tutti.errors import InvalidArgument


class Client:
    """The key-value store that all ranks share: small things that a rank wants to tell others.

    Values are whatever can be pickled: numbers, strings, shapes, dtypes, NumPy arrays. get_client()
    gives the one of this process.
    """

    def __init__(self, communicator: _core.Communicator) -> None:
        self._store = _core.Store(communicator)
        self._uses: DefaultDict[str, int] = defaultdict(int)

    def user_set(self, key: str, val: Any) -> None:
        """Stores val under key, in the place of what was there."""
        self._store.set(key, pickle.dumps(val, pickle.HIGHEST_PROTOCOL))

    def user_get(self, key: str, timeout: Optional[float] = None) -> Any:
        """The value under key. Blocks until a rank has set it, at most `timeout` seconds (the
        communicator's, unless it is given)."""
        return pickle.loads(self._store.get(key, timeout))

    def user_pop(self, key: str, timeout: Optional[float] = None) -> Any:
        """As user_get(); then the key is gone."""
        return pickle.loads(self._store.pop(key, timeout))

    def bcast_val(self, val: Any, key: str, size: int) -> Any:
        """The val of one of `size` ranks, which all call this with the same key; the others pass
        None. They block until it has been set. The same key may be used again: the n-th calls of
        the ranks belong together."""
        if size < 1:
            raise InvalidArgument(f"size is {size}, but must be at least 1")
        name = f"bcast_val {self._uses[key]} {key}"
        self._uses[key] += 1
        if val is not None:
            if size > 1:
                self.user_set(name, val)
            return val
        val = self.user_get(name)
        if self._store.add(f"{name} taken", 1) == size - 1:  # nobody needs it any more
            self._store.pop(name)
            self._store.pop(f"{name} taken")
        return val
