"""Mods of Flower's beside ours: those that only look are shown messages that they can count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedkern_flwr.errors import OptionError

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]

#: They clip or add noise to what a node answers, which is masked or counted on by others.
_CHANGING = ("LocalDpMod", "fixedclipping_mod", "adaptiveclipping_mod")


class _Counted(ConfigRecord):
    """A record whose bytes can be counted where a value is empty, too."""

    def count_bytes(self) -> int:
        """Return the bytes of names and values."""
        values = (v if isinstance(v, list) else [v] for v in self.values())
        cells = [cell for cell_list in values for cell in cell_list]
        sizes = (
            len(c) if isinstance(c, (str, bytes)) else 1 if isinstance(c, bool) else 8
            for c in cells
        )
        return sum(map(len, self)) + sum(sizes)


def refuse_changing(mod: Mod) -> None:
    """Refuse a mod of Flower's that changes what a node answers.

    Raises
    ------
    OptionError
    """
    name = getattr(mod, "__name__", type(mod).__name__)
    if name in _CHANGING:
        raise OptionError(
            f"{name} changes what a node answers: the sums would be wrong",
            remedy="leave it out, or train with a strategy of Flower's and secure_aggregation_mod, "
            "behind which it may stand (docs/secure-aggregation.md)",
            code="FK-MOD-CHANGES",
        )


def counted(mod: Mod) -> Mod:
    """Return a mod that is shown our messages without what Flower cannot count.

    That are empty values, and Flower's own placeholder of an empty list of arrays.
    """

    def call(
        message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        give_back = _show(message)

        def inner(message: Message, context: Context) -> Message:
            nonlocal give_back
            give_back(message)
            reply = call_next(message, context)
            give_back = _show(reply)
            return reply

        reply = mod(message, context, inner)
        give_back(reply)
        return reply

    return call


def _show(message: Message) -> Callable[[Message], None]:
    """Put what can be counted into a message; return what puts the records back."""
    if not message.has_content():
        return lambda message: None
    real = dict(message.content)
    shown: dict[str, Any] = {name: _stand_in(record) for name, record in real.items()}
    message.content = RecordDict(shown)

    def give_back(message: Message) -> None:
        if message.has_content():
            kept = dict(message.content)
            same = {name: real[name] for name in real if kept.get(name) is shown[name]}
            message.content = RecordDict({**kept, **same})

    return give_back


def _stand_in(record: Any) -> Any:
    if isinstance(record, ConfigRecord):
        return _Counted(dict(record))
    if isinstance(record, ArrayRecord):
        return ArrayRecord({name: array for name, array in record.items() if array.data})
    return record
