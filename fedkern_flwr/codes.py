"""What error codes mean: the registry from which the page of troubleshooting is made."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

from .removed import AUDIT, REMOVED


class Cause(NamedTuple):
    """What an error code means.

    Attributes
    ----------
    cause : str
        What happened.
    remedy : str
        What to do.
    """

    cause: str
    remedy: str


def known_codes() -> Mapping[str, Mapping[str, Cause]]:
    """Return topic -> code -> cause and remedy, of all errors of the suite."""
    text = files(__package__).joinpath("codes.toml").read_text(encoding="utf-8")
    found = {
        topic: {code: Cause(*told) for code, told in rows.items()}
        for topic, rows in tomllib.loads(text).items()
    }
    removed = {
        f"FK-REMOVED-{AUDIT.code}": Cause("An option of `fedkern audit` went.", AUDIT.instead)
    }
    for rows in REMOVED.values():
        for name, row in rows.items():
            what = "A value" if row.values else "The option"
            of = "of the option " if row.values else ""
            told = Cause(f"{what} {of}`{name}` was removed.", row.instead)
            removed.setdefault(f"FK-REMOVED-{row.code}", told)
    return {**found, "Removed options": removed}
