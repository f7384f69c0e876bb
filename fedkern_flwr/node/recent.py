"""What a node need not make again for the next message: Flower makes a client for each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

Made = tuple[NDArray[Any], ...]


class Recent:
    """Arrays by a key that determines them, in the memory of this process.

    Parameters
    ----------
    most : int
        Bytes that are kept; the arrays that were asked for last stay.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._made: OrderedDict[bytes, Made] = OrderedDict()

    def get(self, key: bytes, make: Callable[[], Made]) -> Made:
        """Return the arrays of a key, which nobody may change; make them if they are not kept."""
        found = self._made.pop(key, None)
        if found is None:
            found = make()
            for array in found:
                array.flags.writeable = False
        self._made[key] = found
        while sum(a.nbytes for made in list(self._made.values()) for a in made) > self.most:
            self._made.popitem(last=False)
        return found
