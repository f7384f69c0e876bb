"""What a test says of a refusal: its code, which stays when the sentence is mended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedkern_flwr.errors import FedKernError


@contextmanager
def refused(
    *codes: str, kind: type[FedKernError] = FedKernError
) -> Iterator[pytest.ExceptionInfo[FedKernError]]:
    """Expect an error of ours with one of these codes; the sentence is nobody's business."""
    assert codes
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code in codes, f"{caught.value!r} has another code than {codes}"


#: What a busy machine prints before a refusal: it takes over two seconds there to read a table.
SLOW = "reading the table"


def refuses(code: str, action: Callable[..., Any], /, *args: Any, **more: Any) -> FedKernError:
    """Return the error of ours, of one line, with which an action fails."""
    with refused(code) as caught:
        action(*args, **more)
    assert "\n" not in str(caught.value)
    return caught.value


def raises(kind: Any, action: Callable[..., Any], /, *args: Any, **more: Any) -> Any:
    """Return the error of some kind, which may be none of ours, with which an action fails."""
    with pytest.raises(kind) as caught:
        action(*args, **more)
    return caught


def complaint(*typed: str) -> str:
    """Return the one line with which the command line refuses; it must leave nothing behind."""
    from command_line import CommandLine  # which few tests load

    before = sorted(Path().iterdir())
    line = CommandLine(Path()).complaint(*typed)
    assert line.endswith("]"), line
    assert sorted(Path().iterdir()) == before
    return line
