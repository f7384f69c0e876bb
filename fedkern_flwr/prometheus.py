"""Figures in Prometheus' text format, for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .checkpoint import write_atomically

_READABLE = 0o644  # the collector is another user; there are counts in it

#: Name, type, meaning, and the value; or samples: what stands behind the name, and the value.
Family = tuple[str, str, str, float | list[tuple[str, float]]]


def write_figures(file: Path, prefix: str, families: Iterable[Family]) -> None:
    """Write families; a reader sees the file before or after, never a part.

    Parameters
    ----------
    file : Path
        Replaced as a whole; its name must end with ``.prom`` for the collector.
    prefix : str
        How all names begin.
    families : iterable of tuple
        Name, type, meaning, and value or samples of each.
    """
    lines = []
    for name, kind, text, samples in families:
        full = f"{prefix}_{name}"
        lines.append(f"# HELP {full} {text}\n# TYPE {full} {kind}\n")
        every = samples if isinstance(samples, list) else [("", samples)]
        lines += [f"{full}{rest} {float(value):.15g}\n" for rest, value in every]
    new = file.with_name(f"{file.name}.new")
    write_atomically(new, "".join(lines).encode())
    new.chmod(_READABLE)
    new.replace(file)
