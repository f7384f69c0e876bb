"""How figures are written in tables."""

from __future__ import annotations

_HUGE = 1e5


def milli(value: float | None, digits: int = 2) -> str:
    """Return a figure in units of 1e-3."""
    return figure(None if value is None else 1e3 * value, digits)


def figure(value: float | None, form: int | str = 2) -> str:
    """Return a figure with fixed decimals, or in powers of ten when it is huge; or in a format."""
    if value is None:
        return "-"
    if isinstance(form, str):
        return format(value, form)
    return f"{value:.{form}f}" if abs(value) < _HUGE else f"{value:.1e}"


def megabytes(value: float) -> str:
    """Return bytes in MB (1e6)."""
    return f"{value / 1e6:.2f}"


def size(count: float) -> str:
    """Return bytes in the largest unit that they fill."""
    for unit, least in (("MB", 1e6), ("kB", 1e3)):
        if count >= least:
            return f"{count / least:.1f} {unit}"
    return f"{count:.0f} B"


def count(value: float) -> str:
    """Return a number of things; a mean of several such numbers with a decimal."""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.1f}"
