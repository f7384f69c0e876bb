"""Archives that would become far more than they are: refused unread, on disk and in messages."""

from __future__ import annotations

import copy
import io
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Context, RecordDict
from flwr.compat.common.parameter import bytes_to_ndarray
from refusals import refused

from fedkern_flwr.alignment import AlignmentTags, read_alignment
from fedkern_flwr.checkpoint import load_arrays, pack_arrays, unpack_arrays
from fedkern_flwr.errors import CheckpointError, OptionError
from fedkern_flwr.model_file import load_model
from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.wire import PhaseMessage, array
from fedkern_flwr.wire.numpy_format import read_array

INFLATED = 64 * 2**20


def compressed() -> bytes:
    """64 MiB of zeros in 64 KiB."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, meta_json=np.zeros(2, np.uint8), zeros=np.zeros(INFLATED, np.uint8))
    assert len(buffer.getvalue()) < INFLATED / 500
    return buffer.getvalue()


def shared() -> bytes:
    """100 parts of 1 MiB that are the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("zeros.npy", bytes(2**20))
        (part,) = archive.filelist
        archive.filelist += [copy.copy(part) for _ in range(99)]
    return buffer.getvalue()


@dataclass(frozen=True)
class Rows(PhaseMessage):
    phase = "rows"
    rows: np.ndarray = array("rows")  # noqa: RUF009


BOMBS = {"compressed": compressed, "shared": shared}


@pytest.fixture(params=BOMBS)
def bomb(request: pytest.FixtureRequest) -> Iterator[bytes]:
    """Return a bomb; whoever reads it may not take a tenth of what would come of it."""
    data = BOMBS[request.param]()
    tracemalloc.start()
    try:
        yield data
        assert tracemalloc.get_traced_memory()[1] < INFLATED / 10
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("read", [unpack_arrays, KeptState.unpack])
def test_kept_states_are_not_inflated(read: Callable[[bytes], Any], bomb: bytes) -> None:
    with refused("FK-CHECKPOINT-DAMAGED"):
        read(bomb)


@pytest.mark.parametrize("read", [load_arrays, load_model, AlignmentTags.load, read_alignment])
def test_files_are_not_inflated(read: Callable[[Path], Any], bomb: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    path.write_bytes(bomb)
    with pytest.raises((CheckpointError, OptionError)):
        read(path)


def test_a_server_does_not_inflate_what_a_client_sends(bomb: bytes) -> None:
    for data in (bomb, np.lib.format.magic(1, 0) + bomb):
        with pytest.raises(ValueError, match="not an array"):
            read_array(Array("uint8", (INFLATED,), "numpy.ndarray", data))


def test_a_client_does_not_inflate_what_a_server_sends(bomb: bytes) -> None:
    class Client(PhaseClient):
        def handlers(self) -> dict[str, Any]:
            return {"rows": (Rows, lambda _: pytest.fail("it was read"))}

    context = Context(1, 1, {"partition-id": 0, "num-partitions": 2}, RecordDict(), {})
    given = bytes_to_ndarray(bomb)
    assert not isinstance(given, np.ndarray)  # Flower opens archives as they are
    with refused("FK-MESSAGE-FIELD"):
        Client(context).fit([given], Rows(np.zeros(0)).scalars())


def test_what_is_packed_is_read(tmp_path: Path) -> None:
    arrays, meta = unpack_arrays(pack_arrays({"a": np.arange(3.0), "b": np.zeros(0)}, {"c": 1}))
    np.testing.assert_array_equal(arrays["a"], np.arange(3.0))
    assert (arrays["b"].size, meta) == (0, {"c": 1})
