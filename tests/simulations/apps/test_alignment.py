"""Tables in Parquet, CSV and NPZ whose shuffled ids overlap in part: what is joined and seen."""

from __future__ import annotations

import csv
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from app_sites import Site

from fedkern_flwr.alignment import hash_ids
from fedkern_flwr.hybrid.landmarks import draw_landmarks
from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations.engines import RecordingGrid, Transcript

ROWS, LANDMARKS, SECRET = 90, 12, "c3" * 32
SEEDS = {"clinical": bytes([1]) * 32, "proteins": bytes([2]) * 32, "genes": bytes([3]) * 32}
#: Which patients each party has: only some are known to all three kinds.
HELD = {
    "north.parquet": range(45),
    "south.csv": range(45, 80),
    "proteins.parquet": range(10, ROWS),
    "genes.csv": [k for k in range(ROWS) if k % 5],
}
COLUMNS = {"north.parquet": "ab", "south.csv": "ab", "proteins.parquet": "cd", "genes.csv": "ef"}


def write(path: Path, names: list[str], cells: list[list[Any]]) -> None:
    """Write a table, as Parquet or CSV."""
    if path.suffix == ".parquet":
        pq.write_table(
            pa.table(dict(zip(names, map(list, zip(*cells, strict=True)), strict=True))), path
        )
        return
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *cells])


class Hospitals(Site):
    """Two hospitals and two centres; the model and what the server saw."""

    app = "fed_cg"
    config = {  # noqa: RUF012
        **{"landmarks": LANDMARKS, "missing": "drop-row", "allow_single": True},
        **{"sampling": "U", "tune": "off"},
    }

    def build(self, rng: np.random.Generator) -> None:
        self.x = rng.random((ROWS, 6))
        self.y = np.where(self.x.sum(axis=1) > 3.0, 1.0, 0.0)
        self.ids = [f"patient-{k:04d}" for k in rng.permutation(9000)[:ROWS]]
        (self.folder / "key").write_text(SECRET)
        for block, seed in SEEDS.items():
            (self.folder / f"{block}.seed").write_text(seed.hex())
        for number, (name, held) in enumerate(HELD.items()):
            hospital, order = number < 2, rng.permutation(list(held))
            own = COLUMNS[name]
            places = ["abcdef".index(c) for c in own]
            cells = [
                [self.ids[k], *self.x[k, places].tolist(), *([self.y[k]] if hospital else [])]
                for k in order
            ]
            write(self.folder / name, ["who", *own, *(["ill"] if hospital else [])], cells)
            block = "clinical" if hospital else name.partition(".")[0]
            labels = {"label_column": "ill", "classes": "0,1"} if hospital else {}
            self.add(
                role="hospital" if hospital else "centre",
                block=block,
                data=self.folder / name,
                id_column="who",
                alignment_key=self.folder / "key",
                landmark_seed=self.folder / f"{block}.seed",
                allow_single=True,
                **labels,
            )

    def seen(self) -> tuple[dict[str, Any], Transcript]:
        """Run the app; return its result and the server's transcript."""
        told, transcript = self.folder / "result.json", Transcript()
        self.run(
            result=told,
            model=self.folder / "m.npz",
            wrap=lambda grid: RecordingGrid(grid, transcript),
        )
        return json.loads(told.read_text()), transcript

    def known_to_all(self) -> list[int]:
        """Return the patients of a hospital whom both centres know."""
        return sorted(set(range(80)) & set(HELD["proteins.parquet"]) & set(HELD["genes.csv"]))

    def coefficients(self) -> np.ndarray[Any, Any]:
        """Return the solution of a single owner of these patients."""
        rows = self.known_to_all()
        ranges = np.array([[0.0, 1.0]] * 2)
        landmarks = np.hstack([draw_landmarks(s, LANDMARKS, ranges) for s in SEEDS.values()])
        gaps = ((self.x[rows][:, None] - landmarks[None]) ** 2).sum(axis=2)
        k, y = np.exp(-gaps / 6), np.where(self.y[rows] == 1.0, 1.0, -1.0)
        found: np.ndarray[Any, Any] = np.linalg.solve(k.T @ k + 1e-3 * np.eye(LANDMARKS), k.T @ y)
        return found


def everything(transcript: Transcript) -> tuple[bytes, str]:
    """Return all that the server sent and got, and the name of the session."""
    parts, session = [], ""
    for entry in transcript.entries():
        session = str(entry.scalars.get("session", session))
        parts += [array.tobytes() for array in entry.arrays]
        parts += [v if isinstance(v, bytes) else str(v).encode() for v in entry.scalars.values()]
    return b"\0".join(parts), session


def guesses(name: str, session: str) -> Iterator[bytes]:
    """Yield what somebody without the parties' key can make of an id."""
    yield name.encode()
    for algorithm in ("sha256", "sha1", "md5"):
        yield hashlib.new(algorithm, name.encode()).digest()[:8]  # cut off as well
        yield hashlib.new(algorithm, name.encode()).hexdigest()[:16].encode()
    for key in (b"", bytes(16), bytes(32), session.encode(), b"fedkern-flwr ids"):
        yield hmac.digest(key, name.encode(), "sha256")[:8]
        yield hash_ids([name], key, session).tobytes()


@pytest.fixture
def hospitals(tmp_path: Path, import_app: Callable[..., SimpleNamespace]) -> Hospitals:
    return Hospitals(tmp_path, import_app)


def test_rows_are_joined_and_counted(hospitals: Hospitals, tmp_path: Path) -> None:
    result, _ = hospitals.seen()
    known = hospitals.known_to_all()
    wards, matched = result["matched"]["hospitals"], result["matched"]
    for ward, held in (("0", range(45)), ("1", range(45, 80))):
        joined = len(set(known) & set(held))
        assert wards[ward]["training_rows"] == joined
        assert wards[ward]["dropped_rows"] == len(held) - joined
    assert 0 < len(known) < 80
    # patients 80 to 89 are at no hospital
    assert matched["rows_no_hospital_knows"] == {"2": 10, "3": 8}
    arrays, _ = load_model(tmp_path / "m.npz", "fed-cg")
    np.testing.assert_allclose(arrays["coefficients"][:, 0], hospitals.coefficients(), atol=1e-7)


def test_no_id_and_no_guessable_hash_of_one_is_seen(hospitals: Hospitals) -> None:
    seen, session = everything(hospitals.seen()[1])
    assert session
    assert len(seen) > 10_000
    for name in hospitals.ids:
        assert not any(guess in seen for guess in guesses(name, session))
    # the pseudonyms are there: whoever has the parties' key finds them
    joined = [hospitals.ids[k] for k in hospitals.known_to_all()]
    assert all(hash_ids([n], bytes.fromhex(SECRET), session).tobytes() in seen for n in joined)


def test_with_a_key_that_can_be_guessed_every_id_is_found(hospitals: Hospitals) -> None:
    (hospitals.folder / "key").write_text("00" * 32)
    seen, session = everything(hospitals.seen()[1])
    found = [n for n in hospitals.ids if any(guess in seen for guess in guesses(n, session))]
    assert len(found) == len(set().union(*map(set, HELD.values())))
