"""Options that this release no longer has, and what a user does instead.

One dictionary serves every door: the constructors of strategies and clients, the configuration of a
node and of an app, the command line, the folder, the checkpoint and the model of an earlier run. An
option at its old default is dropped with a note. Any other value ends the program with the sentence
of its row and a code that stays. The rows go in the release after this one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import OptionError

logger = logging.getLogger(__name__)

_PAPERS = "fedkern_flwr.simulations.papers"
_BOUND = 2.0**20  # the bound of a column's values where nothing was said


class RemovedOptionError(OptionError):
    """The option, or this value of it, was removed."""


@dataclass(frozen=True)
class Removed:
    """An option that went, or values of an option that stays.

    Attributes
    ----------
    code : str
        What the error prints in brackets at its end.
    instead : str
        What a user does now, in one sentence without a full stop.
    defaults : tuple
        The old defaults, which change nothing and are dropped.
    values : tuple
        The values that went, of an option that stays; empty where the whole option went.
    places : str
        Where it was: ``run`` (strategy, command, app, model, checkpoint), ``client`` (argument of
        the client), ``node`` (key of the node's configuration) and ``model`` (what a run adds to
        its model).
    """

    code: str
    instead: str
    defaults: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()
    places: str = "run"

    @property
    def switch(self) -> bool:
        """Whether it was true or false."""
        return any(isinstance(default, bool) for default in self.defaults)

    def refusal(self, name: str, value: Any) -> RemovedOptionError:
        """Return the error of a value that means something this release does not do."""
        shown = f"={value!r}" if isinstance(value, (str, float)) else ""  # no data, no secret
        return RemovedOptionError(
            f"{name}{shown} was removed",
            remedy=self.instead,
            code=f"FK-REMOVED-{self.code}",
        )


def _encoders(default: Any, places: str = "run", *more: Any) -> Removed:
    return Removed(
        "ENCODERS",
        "run the app `ranges` before, and name the file it writes as `encoder` in each node's "
        "configuration",
        (default, *more),
        places=places,
    )


_MERGE = Removed(
    "MERGE",
    "leave it out, each row is then summed once; "
    f"{_PAPERS}.secure_gram has the maximum of the paper's section 3.1",
    ("disjoint",),
    places="run client node",
)
_PRODUCT = Removed(
    "PRODUCT",
    "leave it out, the multiplier then goes to the user; "
    f"{_PAPERS}.hierarchical_svm has the product of the paper's section 3.3",
    ("local",),
    places="run client node",
)

#: Method -> name of the option -> what there is to say.
REMOVED: Mapping[str, Mapping[str, Removed]] = {
    "fed-cg": {
        "common_encoders": _encoders(False),
        "encode": _encoders(False, "client node"),
        "value_bound": _encoders(None, "run client node", _BOUND),
        "encoder_scaling": _encoders("auto"),
        "encoder_categories": _encoders("auto"),
        "kinds": _encoders(None, "client"),
        "categories": _encoders(None, "client"),
        "categories_test": _encoders(None, "client"),
        "category_key": _encoders(b"", "client", None),
        "encoders": _encoders({}, "model"),
        "protocol": Removed(
            "PROTOCOL",
            f"use secure sums, which are the default; {_PAPERS}.fedcg has the paper's protocols",
            ("secure",),
            places="run client node",
        ),
        "sampling": Removed(
            "SAMPLING",
            "use U, N or C; where all rows may be in one place, "
            f"{_PAPERS}.fedcg takes training rows as landmarks",
            values=("P",),
        ),
        "reconstruction": Removed(
            "RECONSTRUCTION",
            "leave it out; `fedkern compare fed-cg-figure8` and `fedkern audit fed-cg` attack the "
            "paper's protocol",
            (False,),
        ),
        "landmarks": Removed(
            "LANDMARKS",
            "leave it out, nodes draw their landmarks; "
            f"{_PAPERS}.fedcg takes landmarks that were chosen elsewhere",
            (None,),
            places="client",
        ),
    },
    "fdskl": {
        "topology": Removed(
            "TOPOLOGY",
            "use the star, which is the default; "
            f"{_PAPERS}.fdskl adds up over the paper's two trees",
            ("star",),
            places="run client node",
        ),
        "frequencies": Removed(
            "FREQUENCIES",
            "leave it out, each party then draws its own frequencies; "
            f"{_PAPERS}.fdskl draws them all from one seed",
            ("private",),
            places="run client node",
        ),
    },
    "hierarchical-svm": {
        "architecture": Removed(
            "CHAIN",
            "use architecture hierarchical or centralised; "
            f"{_PAPERS}.hierarchical_svm has the chain of users",
            values=("chain",),
        ),
        "agent_topology": Removed(
            "RING",
            "leave it out, the agents' terms are then summed with pairwise masks; "
            f"{_PAPERS}.hierarchical_svm has the ring",
            ("pairwise",),
        ),
        "consensus": Removed(
            "CONSENSUS",
            "leave it out, the run then reaches the optimum of the pooled rows; "
            f"{_PAPERS}.hierarchical_svm has the paper's equation 11",
            ("exact",),
        ),
        "product": _PRODUCT,
        "pipelined": Removed(
            "PIPELINED",
            "leave it out, there is one form of an iteration now, and the model is the same",
            (None, "auto", True, False),
        ),
    },
    "secure-gram": {"merge": _MERGE},
    "fed-cfk": {
        "merge": _MERGE,
        "request": Removed(
            "REQUEST",
            "leave it out, a user's node then asks for all items; "
            f"{_PAPERS}.secure_gram has the noisy requests of the paper's section 3.2",
            ("full",),
            places="run client node",
        ),
        "noise_seed": Removed(
            "REQUEST", "leave it out, there are no noisy requests", (None,), places="client"
        ),
    },
}
#: Options of ``fedkern audit``, which attacks the papers' protocols and the defaults.
AUDIT = Removed(
    "AUDIT",
    "leave it out, an audit has the options of no method; what a run shows is in its result.json, "
    "under privacy",
)
#: Client -> method whose rows are the client's.
CLIENTS = {
    "HybridKernelClient": "fed-cg",
    "VerticalKernelClient": "fdskl",
    "SVMClient": "hierarchical-svm",
    "GramClient": "fed-cfk",
}


def gone(method: str, place: str = "run", known: Collection[str] = ()) -> dict[str, Removed]:
    """Return the options of a method that went altogether and are not among those known."""
    return {
        name: row
        for name, row in REMOVED.get(method, {}).items()
        if not row.values and place in row.places.split() and name not in known
    }


def take_out(
    method: str,
    options: Mapping[str, Any],
    *,
    known: Collection[str] = (),
    place: str = "run",
    values: bool = True,
    level: int = logging.WARNING,
) -> dict[str, Any]:
    """Return options without those that went.

    Parameters
    ----------
    method : str
        Name of the method, such as ``"fed-cg"``.
    options : mapping
        Name of the option, with underscores, -> value.
    known : collection of str (default: ())
        Options that there are: what is said of them here is about something else of that name.
    place : {"run", "client", "node", "model"} (default: "run")
        What the options are of.
    values : bool (default: True)
        Whether to refuse values that went of options that stay.
    level : int (default: logging.WARNING)
        Of the note about those that are dropped; lower for what nobody wrote, as in a file.

    Raises
    ------
    RemovedOptionError
        One has another value than its old default.
    """
    rows, absent = REMOVED.get(method, {}), gone(method, place, known)
    left, dropped = {}, []
    for name, value in options.items():
        row = rows.get(name)
        if values and row is not None and place in row.places.split() and value in row.values:
            raise row.refusal(name, value)
        if row is None or name not in absent:
            left[name] = value
        elif not any(_same(value, default) for default in row.defaults):
            raise row.refusal(name, value)
        else:
            dropped.append(name)
    if dropped:
        logger.log(
            level,
            "removed options at their old defaults are ignored, leave them out: %s",
            ", ".join(dropped),
        )
    return left


def take_out_of_client(
    client: object,
    options: Mapping[str, Any],
    *,
    known: Collection[str] = (),
    place: str = "client",
) -> dict[str, Any]:
    """Return arguments of a client, or keys of its node's configuration, without those that went.

    Raises
    ------
    RemovedOptionError
        One has another value than its old default.
    """
    kinds = getattr(client, "__mro__", ())  # a function that makes a client has none
    method = next((CLIENTS[c.__name__] for c in kinds if c.__name__ in CLIENTS), "")
    return take_out(method, options, known=known, place=place)


def removed_value(name: str, value: Any) -> RemovedOptionError | None:
    """Return the error of a value that went, whatever the method; None of one that never was."""
    for rows in REMOVED.values():
        if name in rows and value in rows[name].values:
            return rows[name].refusal(name, value)
    return None


def _same(value: Any, default: Any) -> bool:
    """Tell whether a value, perhaps one that was typed, is a default."""
    if isinstance(default, bool) or isinstance(value, bool):
        return value is default or str(value).lower() == str(default).lower()
    if isinstance(value, str) and isinstance(default, float):
        try:
            return float(value) == default
        except ValueError:
            return False
    return type(value) in (type(default), int) and bool(value == default)
