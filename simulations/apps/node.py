"""Build the client of a node from its configuration, for every app.

An app lists the keys that its client takes as they are, and reads others. Modules that a deployed
node does not need are not imported here: every message starts a process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ConfigRecord, Context

from fedkern_flwr.alignment import read_alignment
from fedkern_flwr.checkpoint import run_name
from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.guard.policy import as_simulated, is_simulated, node_policy
from fedkern_flwr.node.client import Client
from fedkern_flwr.node.guarded import node_number
from fedkern_flwr.node_config import (
    check_predictions,
    claim_folder,
    read_classes,
    read_secret,
    whole_rows,
)
from fedkern_flwr.options import take_out_of_client
from fedkern_flwr.tables.dialect import DIALECT
from fedkern_flwr.tables.table import Table, no_such

if TYPE_CHECKING:
    from fedkern_flwr.frozen_files import FrozenTable

MakeClient = Callable[[Context], Client]

#: Keys that the clients of all methods take.
_COMMON = ("state-dir", "identity-key", "trusted-keys", "policy")
#: Record of a node's state: the run at hand and its frozen table.
_FROZEN = "fedkern-frozen"
#: How the values of some keys are read; the others are taken as they are.
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "alignment-key": read_alignment,
    "landmark-seed": partial(read_secret, name="the landmark seed"),
    "frequency-seed": partial(read_secret, name="the frequency seed"),
    "category-key": partial(read_secret, name="the category key"),
    "classes": lambda text: read_classes(str(text)) or None,
    "label-bound": float,
    "top": int,
    "results": Path,
}


class Node:
    """A deployed node and its files.

    Parameters
    ----------
    context : Context
        The node's.
    own_table : callable
        Reads a file of the node, see ``own_table.py`` of the app.
    keys : sequence of str
        Keys of the configuration that its client takes as arguments of the same name.
    freezes : bool (default: True)
        Whether a node with a ``state-dir`` answers from frozen copies of its files.

    Attributes
    ----------
    config, run : dict
        The configuration of the node, and that of the run.
    frozen : FrozenTable or None
        The copies, once a table was read.
    """

    def __init__(
        self,
        context: Context,
        own_table: Callable[..., Any],
        keys: Sequence[str],
        *,
        freezes: bool = True,
    ) -> None:
        self.config: dict[str, Any] = dict(context.node_config)
        self.run: dict[str, Any] = dict(context.run_config)
        self.own_table, self.keys, self.context = own_table, keys, context
        self.frozen: FrozenTable | None = None
        self._named = not freezes
        if "state-dir" in self.config and not is_simulated(context):
            claim_folder(Path(str(self.config["state-dir"])), self._partition)

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the client from the configuration.

        Raises
        ------
        OptionError
            A file cannot be read.
        """
        given = {key: self.config[key] for key in self.keys if key in self.config}
        return {
            key.replace("-", "_"): _READERS[key](value) if key in _READERS else value
            for key, value in given.items()
        }

    def need(self, key: str, lacks: str, remedy: str) -> Any:
        """Return the value of a required key.

        Raises
        ------
        OptionError
        """
        if key not in self.config:
            raise OptionError(f"this node has no {lacks}", remedy=remedy, code="FK-NODE-KEY")
        return self.config[key]

    def role(self, *roles: str) -> str:
        """Return the role of the node.

        Raises
        ------
        OptionError
            It has none, or another one.
        """
        role = str(self.config.get("role"))
        if role not in roles:
            words = [f'role="{name}"' for name in roles]
            raise OptionError(
                "this node has no role", remedy=f"add {' or '.join(words)}", code="FK-NODE-ROLE"
            )
        return role

    def check_predictions(self) -> None:
        """Refuse to predict test data with a saved model without a file for the result.

        Raises
        ------
        OptionError
        """
        check_predictions(self.config, predicting=bool(self.run["predict"]))

    def table(self, key: str = "data", **how: Any) -> Any:
        """Read a table; None without held-out rows.

        Parameters
        ----------
        key : str
            ``data``, or ``test-data``, which may lack labels.
        **how
            See :func:`fedkern_flwr.tables.load_table`.

        Raises
        ------
        TableError, OptionError
        """
        self._freeze()
        frozen = None if self.frozen is None or self._predicts else self.frozen
        if key == "test-data":
            how["labelled"] = False
            if key not in self.config and (frozen is None or frozen.files[1] is None):
                return None
        needed = key if key in self.config or frozen is None else "data"  # a fifth of the data
        path = self.need(needed, "table", "name it in --node-config as data")
        how["label"] = self.config.get("label-column", self.config.get("label"))
        how["id_column"] = self.config.get("id-column")
        if "classes" in self.keys:
            how["classes"] = read_classes(str(self.config.get("classes", "")))
        how |= {key: str(self.config[key]) for key in DIALECT if key in self.config}
        if "=" in str(self.config.get("classes", "")):  # labels and their classes
            how["class_of"] = str(self.config["classes"])
        if frozen is not None:
            kind = int(key == "test-data")
            path = frozen.files[kind]
            if path is None:
                return None
            if path.suffix.lower() in (".csv", ".tsv"):
                how |= {"sep": frozen.seps[kind], "header": True}
        return _read(self.own_table, str(path), tuple(sorted(how.items())))

    @property
    def _predicts(self) -> bool:
        """Whether the run predicts: new rows may be in any file, and enter no sum."""
        return bool(self.run.get("predict"))

    def _freeze(self) -> None:
        """Find the frozen table of the run; only at a new run changes of the files may take effect.

        A prediction reads the files as they are.
        """
        if self._named or not self.config.keys() >= {"state-dir", "data"}:
            return
        self._named = True
        run = run_name(self.context)
        if run is None or is_simulated(self.context):
            return
        from fedkern_flwr.frozen_files import FrozenFiles, NodeFiles

        policy = node_policy(self.config.get("policy"), self.context)
        folder, partition = Path(str(self.config["state-dir"])), self._partition
        files = FrozenFiles(folder, partition, policy)
        kept = self.context.state.get(_FROZEN)
        if isinstance(kept, ConfigRecord) and kept["run"] == run:
            self.frozen = files.load(str(kept["table"]))
            return
        if self._predicts:
            self.frozen = files.unfrozen(NodeFiles.of(self.config))
        elif files.may_begin():
            resumed = bool(self.run.get("resume"))
            self.frozen = files.open_run(run, NodeFiles.of(self.config), resumed=resumed)
            if self.frozen is not None:
                record = ConfigRecord({"run": run, "table": self.frozen.name})
                self.context.state[_FROZEN] = record

    @property
    def _partition(self) -> int:
        return node_number(self.context, "partition-id")

    def rows(self, table: Table, held: Table | None, *names: str) -> dict[str, Any]:
        """Return :func:`rows`, with their indices in the node's freeze."""
        found = rows(table, held, *names)
        if self.frozen is None or table.places is None:
            if not self._named and "state-dir" in self.config and not is_simulated(self.context):
                count = table.rows + (0 if held is None else held.rows)
                found["frozen"] = np.full(count, -1, np.int64)  # in no block: they enter no sum
            return found
        test = None if held is None else held.places
        return {**found, "frozen": self.frozen.frozen(table.places, test)}

    def tables(self, **how: Any) -> tuple[Table, Table | None]:
        """Read the table and held-out rows with the same columns.

        Raises
        ------
        TableError, OptionError
        """
        return _alike(self.table(**how), self.table("test-data", **how))

    def encoded(self, *, common: bool = False, **how: Any) -> tuple[Table, Table | None]:
        """Read the tables of a block and encode them.

        The app ``ranges`` writes the file ``encoder`` where several nodes hold the block. Where
        only this node does, and the encoder need not be ``common``, the first run that trains fits
        it to all rows of ``data``. It stays at the node. With a privacy budget it must be the
        ``result.json`` of a summary with a budget.

        Raises
        ------
        TableError, OptionError
        """
        from fedkern_flwr.encoding.encoder import KeptEncoder

        if "ranges" in self.config:
            problem = "this node has ranges and an encoder of its own"
            raise OptionError(problem, code="FK-OPTION-BOTH")
        path = Path(self.config["encoder"])
        # the options of a method of one's own are a text
        private = self.run.get("privacy-epsilon") or "privacy_epsilon" in self.run.get(
            "options", ""
        )
        if common or private or self.run["predict"] or self.run["resume"] or path.exists():
            kept = KeptEncoder.read(path)
            if private:
                kept.check_noise()
            kinds = kept.encoder.kinds
            if kept.epsilon:  # it has columns of other blocks as well
                kinds = {name: kind for name, kind in kinds.items() if kind == "category"}
            table = self.table(**how, kinds=tuple(kinds.items()))
            kept = kept.within(table) if kept.epsilon else kept
        else:
            table = self.table(**how, kinds=())
            if not table.columns:
                return table, self.table("test-data", **how)
            kept = KeptEncoder.fit(path, table)
        held = self.table("test-data", **how, kinds=tuple(kept.encoder.kinds.items()))
        return tuple(  # type: ignore[return-value]
            part and replace(kept.apply(part), columns=kept.names) for part in (table, held)
        )

    @property
    def named(self) -> list[str]:
        """Columns that are read as text."""
        text = str(self.config.get("categories", ""))
        return [one.strip() for one in text.split(",") if one]

    def check_named(self, table: Table) -> None:
        """Refuse names of text columns that the table does not have.

        Raises
        ------
        TableError
        """
        for name in self.named:
            if name not in table.columns:
                raise no_such("feature column", name, "the table", table.columns)

    def unencoded(self, **how: Any) -> tuple[Table, Table | None]:
        """Read tables for a common encoder, text and gaps as they are.

        Columns in ``categories`` are always text.

        Raises
        ------
        TableError, OptionError
        """
        table = self.table(**how, kinds=tuple((name, "category") for name in self.named))
        self.check_named(table)
        kinds = tuple((name, table.kinds.get(name, "number")) for name in table.columns)
        return _alike(table, self.table("test-data", **how, kinds=kinds))

    def whole(self, table: Table, key: str = "data", **how: bool) -> Table:
        """Return the rows without missing cells, see :func:`whole_rows`."""
        path = self.config.get(key, self.config["data"])
        return whole_rows(table, path, self.run["missing"], **how)


def _alike(table: Table, held: Table | None) -> tuple[Table, Table | None]:
    """Refuse held-out rows with other columns.

    Raises
    ------
    TableError
    """
    if held is not None and held.columns != table.columns:
        raise TableError(
            "the test data does not have the columns of the data, in this order",
            code="FK-COLUMNS-DIFFER",
        )
    return table, held


@lru_cache  # of this module: a client that Ray sends to its workers has no cache of its own
def _read(own_table: Callable[..., Any], path: str, how: tuple[tuple[str, Any], ...]) -> Any:
    given = dict(how)
    if "kinds" in given:
        given["kinds"] = dict(given["kinds"])
    return own_table(path, **given)


def rows(table: Table, held: Table | None, *names: str) -> dict[str, Any]:
    """Return ``x``, ``y`` or ``ids`` of a table and of held-out rows as arguments of a client."""
    found = {name: getattr(table, name) for name in names}
    if "x" in names:
        found["columns"] = table.columns
    if held is not None:
        found |= {f"{name}_test": getattr(held, name) for name in names}
    return found


def client_maker(
    client: Callable[..., Client],
    arguments: Callable[[Node], dict[str, Any]],
    own_table: Callable[..., Any],
    *,
    keys: Sequence[str],
    simulated: MakeClient | str,
    freezes: bool = True,
) -> MakeClient:
    """Return a function that builds the client of a node; Flower calls it for every message.

    Parameters
    ----------
    client : callable
        The client's class.
    arguments : callable
        Returns further arguments, from the node's files.
    own_table : callable
        Reads one of them; a process reads each once.
    keys : sequence of str
        Keys of the node's configuration that are arguments of the client.
    simulated : callable or str
        Builds the client of a node without table and role; or the method with public data for it.
    freezes : bool (default: True)
        Whether the node answers from frozen copies of its files.
    """
    every = (*keys, *_COMMON)

    def make_client(context: Context) -> Client:
        if context.node_config.keys() & {"data", "role", "stream"}:
            node = Node(context, own_table, every, freezes=freezes)
            named = {key.replace("-", "_"): value for key, value in node.config.items()}
            known = [key.replace("-", "_") for key in keys]
            take_out_of_client(client, named, known=known, place="node")
            own = arguments(node)
            return client(context, **{**node.settings(), **own})
        run = context.run_config
        if not run.get("data", run.get("rows")):
            raise OptionError(
                "this node has no table",
                remedy="name it in --node-config as data",
                code="FK-NODE-KEY",
            )
        if not isinstance(simulated, str):
            return simulated(as_simulated(context))
        from .simulated import simulated_client

        return simulated_client(simulated, as_simulated(context))

    return make_client
