"""Where the rows of a stream come from: files that grow, and lines that are none."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from refusals import refused

from fedkern_flwr.online.source import FileSource, Place

NAMES = ("a", "b", "c", "d")


def lines(x: np.ndarray, y: np.ndarray) -> Iterator[str]:
    for row, label in zip(x.tolist(), y.tolist(), strict=True):
        yield ",".join(map(repr, [*row, label])) + "\n"


HEAD = ",".join([*NAMES, "y"]) + "\n"


def write(path: Path, x: np.ndarray, y: np.ndarray) -> Path:
    path.write_text(HEAD + "".join(lines(x, y)))
    return path


def source(path: Path, **how: Any) -> FileSource:
    return FileSource(path, "y", **{"follow": False, **how})


def test_a_line_counts_when_it_has_its_end(tmp_path: Path) -> None:
    path, x, y = tmp_path / "s.csv", np.arange(12.0).reshape(3, 4), np.arange(3.0)
    text = HEAD + "".join(lines(x, y))
    place, taken = Place(), 0
    for size in range(len(text) + 1):
        path.write_text(text[:size])
        if size < len(HEAD):
            with refused("FK-STREAM-EMPTY"):
                source(path).names(0.0)
            continue
        assert source(path).names(0.0) == NAMES
        found = source(path).take(place, 1, 0.0)
        assert len(found.y) == (text[:size].count("\n") - 1 - taken)
        if len(found.y):
            np.testing.assert_array_equal(found.x, x[taken : taken + 1])
            taken, place = taken + 1, found.place
    assert taken == 3
    assert not found.skipped


def test_rows_are_waited_for_and_no_longer_than_that(tmp_path: Path) -> None:
    path = write(tmp_path / "s.csv", np.zeros((1, 4)), np.zeros(1))

    def later() -> None:
        time.sleep(0.3)
        with path.open("a") as file:
            file.write("1,1,1,1,1\n")

    writer = threading.Thread(target=later)
    writer.start()
    found = source(path, follow=True).take(Place(), 2, 20.0)
    writer.join()
    assert found.y.tolist() == [0.0, 1.0]
    began = time.monotonic()
    few = source(path, follow=True).take(found.place, 1, 0.3)
    assert 0.3 <= time.monotonic() - began < 5.0
    assert (len(few.y), few.ended) == (0, False)
    assert source(path).take(found.place, 1, 0.0).ended


def test_other_marks_and_separators(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text('time;a;"b, c";y\n07:00;1,5;true;2\n07:10;-;0;2\n07:20;2;false;-3,25\n')
    found = source(path, id_column="time", decimal=",", na="-").take(Place(), 9, 0.0)
    assert found.x.tolist() == [[1.5, 1.0], [2.0, 0.0]]
    assert (found.y.tolist(), found.ids) == ([2.0, -3.25], ["07:00", "07:20"])
    with path.open("a") as file:
        file.write("07:30;1;1;1\n07:30;2;0;2\n;3;1;3\n")
    more = source(path, id_column="time", decimal=",").take(found.place, 9, 0.0)
    assert (more.ids, more.y.tolist(), more.skipped.total()) == (["07:30"], [1.0], 2)
    some = source(path, id_column="time", decimal=",", columns=("b, c",))
    assert some.take(Place(), 1, 0.0).x.tolist() == [[1.0]]
    with refused("FK-COLUMN-MISSING"):
        source(path, columns=("z",)).names(0.0)


def test_another_file_in_its_place_is_read_from_its_beginning(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "s.csv"
    x = rng.random((6, 4))
    write(path, x[:4], np.arange(4.0))
    found = source(path).take(Place(), 3, 0.0)
    write(path, x[4:], np.arange(2.0))
    other = source(path).take(found.place, 9, 0.0)
    assert other.anew
    np.testing.assert_array_equal(other.x, x[4:])
    assert not source(path).take(other.place, 1, 0.0).anew
