"""What a node reads from its own disk: secrets, classes, rows that lack nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.node_files import check_predictions, read_classes, read_secret, whole_rows
from fedkern_flwr.tables.table import Table

NAN = np.nan


def test_a_secret_is_read_from_hexadecimal(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("ab" * 32 + "\n")
    assert read_secret(path, "the key") == b"\xab" * 32
    assert read_secret(None, "the key") is None


@pytest.mark.parametrize("text", ["zz", "abc", "\x00"])
def test_what_is_no_secret_is_refused_and_not_quoted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    with pytest.raises(OptionError, match="the file of the key cannot be read; put 64") as error:
        read_secret(path, "the key")
    assert text not in str(error.value)
    with pytest.raises(OptionError, match="cannot be read"):
        read_secret(tmp_path / "none", "the key")


@pytest.mark.parametrize(
    ("text", "names"),
    [("", ()), ("1, 0", ("1", "0")), ("yes,no,", ("no", "yes")), ("2,ten", ("2", "ten"))],
)
def test_classes_are_numbers_or_sorted_text(text: str, names: tuple[str, ...]) -> None:
    assert read_classes(text) == names


def table() -> Table:
    """Return four rows: whole, without a cell, without a label, without an id."""
    return Table(
        np.array([[1.0], [NAN], [3.0], [4.0]]),
        np.array([1.0, 1.0, NAN, 0.0]),
        ("a",),
        ids=np.array(["p", "q", "r", ""]),
    )


@pytest.mark.parametrize(("labels", "kept"), [(True, ["p"]), (False, ["p", "r"])])
def test_rows_that_lack_something_are_left_out(labels: bool, kept: list[str]) -> None:
    found = whole_rows(table(), "site.csv", "drop-row", labels=labels)
    assert found.ids is not None
    assert found.ids.tolist() == kept


def test_rows_that_lack_something_are_refused() -> None:
    with pytest.raises(TableError, match=r"^3 rows of site.csv lack a value, a label or an id; "):
        whole_rows(table(), "/data/site.csv", "error", labels=True)
    with pytest.raises(TableError, match=r"^2 rows of site.csv lack a value or an id; "):
        whole_rows(table(), "/data/site.csv", "error", labels=False)
    empty = table().take([1, 3])
    with pytest.raises(TableError, match=r"^every row of site.csv lacks a value or an id; fill"):
        whole_rows(empty, "site.csv", "drop-row", labels=False)
    with pytest.raises(OptionError, match="missing is 'neutral'"):
        whole_rows(table(), "site.csv", "neutral", labels=False)


def test_rows_that_are_known_by_their_place_are_never_left_out() -> None:
    with pytest.raises(TableError, match=r"^2 rows of site.csv lack .* known by their place; "):
        whole_rows(table(), "site.csv", "drop-row", labels=False, numbered=True)
    whole = table().take([0, 2])
    assert whole_rows(whole, "site.csv", "drop-row", labels=False, numbered=True) is whole


def test_a_table_without_features_or_gaps_stays_as_it_is() -> None:
    bare = Table(np.zeros((2, 0)), np.array([0.0, 1.0]), (), ids=np.array(["p", "q"]))
    assert whole_rows(bare, "labels.csv", "error", labels=True) is bare


def test_a_node_that_predicts_names_a_file() -> None:
    check_predictions({"test-data": "new.csv"}, predicting=False)
    check_predictions({"data": "site.csv"}, predicting=True)
    check_predictions({"test-data": "new.csv", "predictions": "out.csv"}, predicting=True)
    with pytest.raises(OptionError, match="there is nowhere to write the predictions; name"):
        check_predictions({"test-data": "new.csv"}, predicting=True)
