"""What a test says of a refusal: its code, which stays when the sentence is mended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
