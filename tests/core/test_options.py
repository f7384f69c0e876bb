"""Options that are declared once: checked, documented, shown on the command line."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.errors import OptionError
from fedkern_flwr.method import Method, option
from fedkern_flwr.options import declared
from fedkern_flwr.simulations.run.options import options


class Declares(Method):
    """A method with options."""

    method, title = "declares", "Declares"

    count: int = option(2, "How many.", least=1, most=9)
    width: float | None = option(None, "How wide.", above=0.0, below=4.0)
    kind: Literal["a", "b"] = option("a", "Which.")
    size: int | Literal["auto"] = option("auto", "What size.", least=1)
    loud: bool = option(False, "Whether to say it.", of_model=False)

    def rounds(self, parties: Any) -> Any:
        """Ask nothing."""
        yield from ()


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.floats(-1.0, 5.0) | st.sampled_from([float("nan"), float("inf")]),
    st.sampled_from(["a", "b", "c", "auto", ""]),
)


def right(name: str, value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return {
        "count": type(value) is int and 1 <= value <= 9,
        "width": value is None or (number and 0.0 < value < 4.0),
        "kind": value in ("a", "b"),
        "size": value == "auto" or (type(value) is int and value >= 1),
        "loud": isinstance(value, bool),
    }[name]


@given(name=st.sampled_from(["count", "width", "kind", "size", "loud"]), value=VALUES)
def test_values_are_taken_or_refused_in_one_line(name: str, value: Any) -> None:
    if right(name, value):
        found = getattr(Declares(**{name: value}), name)
        assert found == value
        assert not (name == "width" and isinstance(found, int))
        return
    with pytest.raises(OptionError, match=rf"^{name} is .*; (use|choose) ") as error:
        Declares(**{name: value})
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


def test_options_are_stated_once_and_found_everywhere() -> None:
    made = Declares(count=3, threshold=4)
    assert made.threshold == 4
    assert made.options() == {
        "method": "declares",
        "count": 3,
        "width": None,
        "kind": "a",
        "size": "auto",
        "seed": 0,
    }
    shown = {o.name: o for o in options(Declares)}
    assert list(shown)[:5] == list(declared(Declares)) == ["count", "width", "kind", "size", "loud"]
    assert shown["count"].default == 2
    assert shown["kind"].help == "Which."
    assert shown["threshold"].default is None
    assert "count : int (default: 2)\n        How many." in (Declares.__doc__ or "")
    with pytest.raises(TypeError, match="unknown"):
        Declares(unknown=1)


@pytest.mark.parametrize(("name", "kind"), [("rows", list), ("seed", int), ("x", int | list)])
def test_options_that_cannot_be_are_refused_where_they_are_declared(name: str, kind: Any) -> None:
    with pytest.raises(TypeError, match=f"Bad cannot have an option {name} of type"):
        type("Bad", (Declares,), {name: option(0), "__annotations__": {name: kind}})


def test_a_subclass_may_declare_another_default() -> None:
    class Other(Declares):
        count: int = option(5, "How many.", least=4)

    assert (Other().count, Declares().count) == (5, 2)
    with pytest.raises(OptionError, match="at least 4"):
        Other(count=2)
