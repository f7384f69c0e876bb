"""Parties of an align run; all that they and the server see of it, and what could be guessed."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from zoo import WAYS, Found, Sites, Table, everything, new_folder

import fedkern_flwr.clients.alignment as client_module
from fedkern_flwr.align import private_intersection
from fedkern_flwr.alignment import AlignmentTags, hash_ids
from fedkern_flwr.simulations import Transcript

IDS = [
    [f"patient {k}" for k in range(12)],
    [f"patient {k}" for k in range(20, 5, -1)],
    ["patient 7", "patient 9", "jürgen", *(f"patient {k}" for k in range(30, 34))],
]


def parties(ids: list[list[str]] = IDS, tests: Any = None, folder: Path | None = None) -> Sites:
    tables: list[Table] = [{"ids": list(own)} for own in ids]
    for table, held_out in zip(tables, tests or [[]] * len(ids), strict=True):
        table["ids_test"] = list(held_out)
    return Sites(WAYS["align"], folder or new_folder(), tables)


def path_of(sites: Sites, k: int) -> Path:
    return sites.folder / str(k) / "tags.npz"


def files(sites: Sites) -> list[AlignmentTags]:
    return [AlignmentTags.load(path_of(sites, k)) for k in range(len(sites))]


def check(found: Found) -> None:
    """What is reported, and what the files say, is what sets say."""
    for got, expected in found.oracle():
        assert got == expected


class Watch:
    """Notes all points, tags and secrets that the parties of a run ever hold."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.points: set[bytes] = set()
        self.secrets: set[bytes] = set()
        self.passed: list[set[bytes]] = []  # lists that somebody multiplies, before and after
        self.final: list[set[bytes]] = []  # points that tags are made of
        draw = private_intersection.Exponents.draw
        for name in ("blind_ids", "multiply_points", "finish_tags"):
            patch.setattr(client_module, name, getattr(self, name))

        def note_drawn() -> Any:
            drawn = draw()
            self.secrets.update((drawn.own, drawn.blind, drawn.rest))
            return drawn

        patch.setattr(client_module.Exponents, "draw", staticmethod(note_drawn))

    def note(self, data: bytes) -> set[bytes]:
        found = {data[k : k + 32] for k in range(0, len(data), 32)}
        self.points |= found
        return found

    def blind_ids(self, texts: Iterable[str], exponent: bytes) -> bytes:
        out = private_intersection.blind_ids(texts, exponent)
        self.note(out)
        return out

    def multiply_points(self, points: bytes, exponent: bytes) -> bytes:
        out = private_intersection.multiply_points(points, exponent)
        self.passed += [self.note(points), self.note(out)]
        return out

    def finish_tags(self, points: bytes, exponent: bytes, ids: int) -> list[bytes]:
        self.note(points)
        self.final.append(self.note(private_intersection.multiply_points(points, exponent)))
        tags = private_intersection.finish_tags(points, exponent, ids)
        self.secrets.update(tags)
        return tags


def guesses(ids: Iterable[str], session: str, transcript: Transcript) -> dict[str, set[bytes]]:
    """Return what a server could make of ids that it guesses: kind -> how byte strings begin."""
    public = [
        value
        for entry in transcript.entries(phase="describe", direction="up")
        for value in (entry.scalars["public_key"], str(entry.scalars["columns"]).encode())
    ]
    both = (*vars(private_intersection).values(), *vars(client_module).values())
    keys = [b"", bytes(16), bytes(32), session.encode(), bytes.fromhex(session), *public]
    keys += [value for value in both if isinstance(value, bytes)]
    keys += [b"fedkern-flwr alignment 1"]
    found: dict[str, set[bytes]] = {"id": set(), "hash": set(), "keyed hash": set(), "point": set()}
    for text in ids:
        name = text.encode()
        found["id"].add(name)
        found["point"].add(private_intersection.hash_to_curve(text))
        for key in keys:
            found["hash"] |= {hashlib.sha256(w).digest()[:8] for w in (key + name, name + key)}
            found["keyed hash"] |= {
                hmac.digest(key, name, "sha256")[:8],
                hmac.digest(name, key, "sha256")[:8],
                *(hash_ids([text], key, label)[0].tobytes() for label in (session, "", "align")),
            }
    return found


def seen(needles: Iterable[bytes], data: bytes) -> int:
    lower = data.lower()
    return sum(one in data or one.hex().encode() in lower for one in needles)


@dataclass
class Sight:
    """How much of what may not be seen was seen, and what the nodes keep."""

    guessed: dict[str, int]
    points: int
    secrets: int
    noted: Watch
    kept: bytes


def look(patch: pytest.MonkeyPatch) -> Sight:
    watch, transcript, sites = Watch(patch), Transcript(), parties()
    strategy = sites.fit(transcript=transcript).strategy
    data = everything(transcript)
    assert len(data) > 1000
    found = guesses({name for own in IDS for name in own}, strategy.session, transcript)
    guessed = {kind: seen(needles, data) for kind, needles in found.items()}
    records = (r for c in sites.contexts.values() for r in c.state.config_records.values())
    kept = (v if isinstance(v, bytes) else str(v).encode() for r in records for v in r.values())
    points, secrets = seen(watch.points, data), seen(watch.secrets, data)
    return Sight(guessed, points, secrets, watch, b"|".join(kept))
