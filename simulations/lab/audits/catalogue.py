"""The attacks in words, for reports: what each knows, computes and means."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Attack:
    """An attack in words.

    Attributes
    ----------
    knows : str
        What it starts from.
    computes : str
        What it does with it.
    means : str
        What success would mean.
    default : str
        What stands against it in the default, and what the attack is then given instead.
    source : str
        Where it is from.
    remains : str
        What is documented to remain; empty if nothing is.
    """

    knows: str
    computes: str
    means: str
    default: str
    source: str
    remains: str = ""


def _read() -> Mapping[str, Attack]:
    """Read the texts; what several attacks have in common is written once."""
    text = files(__package__).joinpath("catalogue.toml").read_text("utf-8")
    known = tomllib.loads(text)
    return {
        name: Attack(**{key: value.format(**known["shared"]) for key, value in words.items()})
        for name, words in known["attacks"].items()
    }


ATTACKS: Mapping[str, Attack] = _read()
