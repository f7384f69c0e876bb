"""Who sees what of a run of HierarchicalSVM, in sentences for its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Seen = dict[str, list[str]]

_SIZES = "who belongs to which group, with how many rows and columns"
_DECLARED = (
    "what each user declares: bound of its labels; digests of the names of columns and classes; "
    "the fewest rows of its own and of all in a fold"
)
_PUBLIC = [_SIZES, _DECLARED]
_PSEUDONYMS = "pseudonyms of the rows, and which users hold them"
_MODELS = "the global model of each iteration"

#: A vertical split.
_COLUMNS: Seen = {
    "server_sees": [
        "objective and duality gap of each iteration",
        "outcomes on held-out rows",
        _PSEUDONYMS,
        *_PUBLIC,
    ],
    "agent_sees": [
        "means, variances and the model of its group's columns",
        "products of its group's columns with messages that it does not know",
    ],
    "owner_sees": [
        "inner products of all rows: the rows up to a rotation, once there are as many "
        "iterations as columns",
    ],
    "user_sees": [
        "means and variances of its group's columns, and the group's model",
        "messages at its rows, whose signs are at first the labels",
    ],
}
#: A run with a budget of privacy.
_PRIVATE: Seen = {
    "server_sees": [
        "sums of all users' gradients with noise, see budget",
        "outcomes on the held-out rows of all users together, with noise",
        *_PUBLIC,
    ],
    "user_sees": ["the model of each iteration"],
}


def seen_by(options: Mapping[str, Any], layers: bool) -> Seen:
    """Return what server, agents, users and label owner see; ``layers``: there are agents."""
    if options["partition"] == "vertical":
        return _COLUMNS
    if options["privacy_epsilon"] is not None:
        return _PRIVATE
    of_rbf = " and of the random features" if options["model"] == "rbf" else ""
    statistics = f"means and variances of the columns{of_rbf} over all users"
    outcomes = "outcomes on the held-out rows of all users together"
    server = [_MODELS, "the total loss of each class", statistics, outcomes, *_PUBLIC]
    if options["C"] is None:
        server.append("models of each C that is tried and each fold, and losses on the folds")
    if options["class_weight"]:
        server.append("how many rows of each class all users have together")
    if not layers:
        return {"server_sees": server, "user_sees": [_MODELS, statistics]}
    if options["lost_groups"] == "leave-out":
        server.append("about what the term of a group was that is left out, by difference")
    if options["staleness"]:
        server.append("how the terms of the groups change that advance together, two at least")
    return {
        "server_sees": server,
        "agent_sees": [
            "sum of its users' models with their duals, of their losses and of their "
            "distances: sums of gradients, which late in a run may be those of single rows",
            _MODELS,
        ],
        "user_sees": [
            "its group's and the global model of each iteration: its group's sum of gradients",
            statistics,
        ],
    }


def predictions_seen_by(partition: str, sums: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is seen in predictions with a saved model; ``sums`` are of the run."""
    if partition == "horizontal":
        return {
            "protocol": "predictions stay at the users",
            "server_sees": [_SIZES, "how many rows each user predicted"],
            "user_sees": ["the model"],
        }
    return {
        **sums,
        "server_sees": [_SIZES, _PSEUDONYMS, "how many rows were predicted"],
        "owner_sees": ["outputs of the new rows: a linear function of all columns"],
        "user_sees": ["means, variances and the model of its group's columns"],
    }
