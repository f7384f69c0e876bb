"""Write the files of a deployed node from the arguments of a simulated client."""

from __future__ import annotations

import csv
import io
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from fedkern_flwr.checkpoint import make_private_folder, write_atomically
from fedkern_flwr.guard.policy import NodePolicy, toml, write_policy
from fedkern_flwr.labels import name_classes
from fedkern_flwr.node_config import read_classes

NodeConfig = dict[str, str | int | float | bool]

_SECRETS = ("alignment_key", "landmark_seed", "frequency_seed")
_SECRET_BYTES = 32
_PLAIN = ("role", "group", "block", "label_bound", "allow_single")
_ID, _LABEL = "id", "label"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Secrets:
    """Draw the secrets of all nodes of a deployment from the operating system.

    Those of simulated nodes follow from the seed of the run, which is public.
    """

    def __init__(self) -> None:
        self._drawn: dict[tuple[str, str], bytes] = {}

    def replace(self, partition: int, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a client with random secrets.

        The alignment key is common to all nodes, a landmark seed to the holders of a block, a
        frequency seed is a node's own.
        """
        shared_by = {"alignment_key": "all", "landmark_seed": f"block {own.get('block')}"}
        found = dict(own)
        for name in _SECRETS:
            if own.get(name) is not None:
                place = name, shared_by.get(name, f"node {partition}")
                if place not in self._drawn:
                    self._drawn[place] = secrets.token_bytes(_SECRET_BYTES)
                found[name] = self._drawn[place]
        return found


def write_node(
    folder: Path,
    partition: int,
    partitions: int,
    own: Mapping[str, Any],
    policy: NodePolicy | None = None,
) -> NodeConfig:
    """Write a node's table, secrets, policy and folders; return its configuration.

    Numbers are written so that they are read back bit for bit.

    Parameters
    ----------
    folder : Path
        The node's own folder, private to this user.
    partition, partitions : int
        Number of the node, and of all nodes.
    own : mapping
        Arguments of its client; ``id_name`` and ``label_name`` are names of columns.
    policy : NodePolicy, optional
        Its policy (default: the defaults).
    """
    make_private_folder(folder)
    config: NodeConfig = {"partition-id": partition, "num-partitions": partitions}
    config["state-dir"] = str(folder / "state")
    rules = folder / "policy.toml"
    write_atomically(rules, write_policy(policy or NodePolicy()).encode(), private=True)
    config["policy"] = str(rules)
    if own.get("results"):  # a folder for files that the client writes
        config["results"] = str(folder / own["results"])
    if sparse.issparse(own.get("x")):
        config |= _write_ratings(folder, own)
    elif any(own.get(name) is not None for name in ("x", "y", "ids")):
        config |= _write_tables(folder, own)
    for name in _SECRETS:
        if own.get(name) is not None:
            path = folder / name.replace("_", "-")
            write_atomically(path, own[name].hex().encode(), private=True)
            config[path.name] = str(path)
    for name in _PLAIN:
        if own.get(name) is not None:
            config[name.replace("_", "-")] = own[name]
    return config


def read_secrets(folder: Path) -> dict[str, bytes]:
    """Return the secrets that :func:`write_node` wrote into a node's folder."""
    files = {name: folder / name.replace("_", "-") for name in _SECRETS}
    return {name: bytes.fromhex(f.read_text()) for name, f in files.items() if f.is_file()}


def toml_lines(values: Mapping[str, Any]) -> str:
    """Return plain values as lines of TOML."""
    return "".join(f"{name} = {toml(value)}\n" for name, value in values.items())


def _write_tables(folder: Path, own: Mapping[str, Any]) -> NodeConfig:
    """Write ``data.csv`` and, if rows are held out, ``test-data.csv``."""
    found = NodeConfig(data=str(folder / "data.csv"))
    labelled = own.get("y") is not None
    usual = own.get("id_name") or _ID, own.get("label_name") or _LABEL
    identity, label = (_free(name, own.get("columns") or ()) for name in usual)
    _write_table(folder / "data.csv", own, "", identity, label if labelled else "")
    tests = next((own[n] for n in ("x_test", "ids_test", "y_test") if own.get(n) is not None), ())
    if len(tests):
        _write_table(folder / "test-data.csv", own, "_test", identity, label if labelled else "")
        found["test-data"] = str(folder / "test-data.csv")
        if labelled:
            found["predictions"] = str(folder / "predictions.csv")
    if own.get("ids") is not None:
        found["id-column"] = identity
    if labelled:
        found["label-column"] = label
    named = [name for name, kind in (own.get("kinds") or {}).items() if kind == "category"]
    if named and not any("," in name or name != name.strip() for name in named):
        found["categories"] = ",".join(named)  # cells of digits would be read as numbers
    if own.get("classes"):
        found["classes"] = ",".join(_class_names(own["classes"]))
    return found


def _class_names(classes: Sequence[float | str]) -> tuple[str, ...]:
    """Return the names of classes in a node's files: numbers where names have commas."""
    names, labels = name_classes(classes)
    return names if read_classes(",".join(names)) == names else name_classes(labels)[0]


def _write_table(path: Path, own: Mapping[str, Any], part: str, identity: str, label: str) -> None:
    x, y, ids = (own.get(f"{name}{part}") for name in ("x", "y", "ids"))
    columns: list[tuple[str, Sequence[str]]] = []
    if ids is not None:
        columns.append((identity, [str(i) for i in ids]))
    if x is not None:
        names = own.get("columns") or tuple(map(str, range(np.shape(x)[1])))
        for name, values in zip(names, np.asarray(x).T, strict=True):
            kind = (own.get("kinds") or {}).get(name, "number")
            words = (own.get("categories") or {}).get(name, ())
            columns.append((name, _cells(values, kind, words)))
    if y is not None and label:
        columns.append((label, _labels(y, own.get("classes") or ())))
    write_atomically(path, _csv(columns), private=True)


def _labels(y: Any, classes: Sequence[float | str]) -> list[str]:
    """Write labels, those of named classes by their names."""
    names = dict(zip(name_classes(classes)[1], _class_names(classes), strict=True))
    return [names.get(label, cell) for label, cell in zip(y, _numbers(y), strict=True)]


def _free(name: str, taken: Sequence[str]) -> str:
    """Return a name for a column that no feature has."""
    while name in taken:
        name += "_"
    return name


def _write_ratings(folder: Path, own: Mapping[str, Any]) -> NodeConfig:
    """Write ``ratings.csv``, ``catalogue.txt`` and, if any are held out, ``test-data.csv``."""
    found = NodeConfig(
        data=str(folder / "ratings.csv"),
        catalogue=str(folder / "catalogue.txt"),
        recommendations=str(folder / "recommendations.csv"),
    )
    write_atomically(folder / "catalogue.txt", "".join(f"{i}\n" for i in own["items"]).encode())
    _write_pairs(folder / "ratings.csv", own["x"], own)
    if own.get("x_test") is not None:
        found["test-data"] = str(folder / "test-data.csv")
        _write_pairs(folder / "test-data.csv", own["x_test"], own)
    return found


def _write_pairs(path: Path, matrix: Any, own: Mapping[str, Any]) -> None:
    pairs = sparse.coo_array(matrix)
    users = [str(own["users"][k]) for k in pairs.coords[0]]
    items = [str(own["items"][k]) for k in pairs.coords[1]]
    write_atomically(path, _csv([("user", users), ("item", items)]), private=True)


def _numbers(values: Any) -> list[str]:
    """Write numbers so that they are read back bit for bit; NaN as an empty cell."""
    return ["" if v != v else repr(v) for v in np.asarray(values, np.float64).tolist()]


def _cells(values: Any, kind: str, words: Sequence[str]) -> list[str]:
    """Write a column: categories by their names, booleans and dates as text."""
    if kind == "number":
        return _numbers(values)

    def text(value: float) -> str:
        if kind == "date":
            return (_EPOCH + timedelta(seconds=value)).isoformat()
        return words[int(value)] if kind == "category" else str(bool(value)).lower()

    return ["" if v != v else text(v) for v in np.asarray(values, np.float64).tolist()]


def _csv(columns: Sequence[tuple[str, Sequence[str]]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([name for name, _ in columns])
    writer.writerows(zip(*(cells for _, cells in columns), strict=True))
    return text.getvalue().encode()
