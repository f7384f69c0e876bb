"""What a run of HierarchicalSVM shows to whom, and what its paper modes give away."""

from __future__ import annotations

from typing import Any

from .hierarchical_options import SVMOptions

_SIZES = "who belongs to which group, with how many rows and columns"
_DECLARED = (
    "what each user declares: bound of its labels; digests of the names of columns and classes; "
    "the fewest rows of its own and of all in a fold"
)


def seen_by(strategy: SVMOptions) -> dict[str, Any]:
    """Return what server, agents and users see."""
    if strategy.partition == "vertical":
        return {
            "server_sees": [
                "objective and duality gap of each iteration",
                "outcomes on held-out rows",
                "pseudonyms of the rows, and which users hold them",
                _SIZES,
                _DECLARED,
            ],
            "agent_sees": [
                "means, variances and the model of its group's columns",
                "products of its group's columns with messages that it does not know"
                if strategy.product == "local"
                else "the messages, whose signs are at first the labels, and vectors orthogonal to "
                "its users' columns",
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
    if strategy.budget is not None:
        return {
            "server_sees": [
                "sums of all users' gradients with noise, see budget",
                "outcomes on the held-out rows of all users together, with noise",
                _SIZES,
                _DECLARED,
            ],
            "user_sees": ["the model of each iteration"],
        }
    of_rbf = " and of the random features" if strategy.kind == "rbf" else ""
    statistics = f"means and variances of the columns{of_rbf} over all users"
    server = [
        "the global model of each iteration",
        "the total loss of each class",
        statistics,
        "outcomes on the held-out rows of all users together",
        _SIZES,
        _DECLARED,
    ]
    if strategy.C is None:
        server.append("models of each C that is tried and each fold, and losses on the folds")
    if strategy.class_weight:
        server.append("how many rows of each class all users have together")
    if strategy.architecture == "chain":
        return {
            "server_sees": server,
            "user_sees": [
                "its two neighbours' models of each iteration",
                "the mean of all models",
                statistics,
            ],
        }
    if strategy.architecture == "centralised":
        return {
            "server_sees": server,
            "user_sees": ["the global model of each iteration", statistics],
        }
    found = {
        "server_sees": server,
        "agent_sees": [
            "sum of its users' models with their duals, of their losses and of their distances: "
            "sums of gradients, which late in a run may be those of single rows",
            "the global model of each iteration",
        ],
        "user_sees": [
            "its group's and the global model of each iteration: its group's sum of gradients",
            statistics,
        ],
    }
    if strategy.lost_groups == "leave-out":
        server.append("about what the term of a group was that is left out, by difference")
    if strategy.staleness:
        server.append("how the terms of the groups change that advance together, two at least")
    if strategy.ring:
        found["agent_sees"].append("with its second neighbour: the term of the agent between them")
    return found


def predictions_seen_by(partition: str, sums: dict[str, Any]) -> dict[str, Any]:
    """Return what is seen when rows are predicted with a saved model."""
    if partition == "horizontal":
        return {
            "protocol": "predictions stay at the users",
            "server_sees": [_SIZES, "how many rows each user predicted"],
            "user_sees": ["the model"],
        }
    return {
        **sums,
        "server_sees": [
            _SIZES,
            "pseudonyms of the rows, and which users hold them",
            "how many rows were predicted",
        ],
        "owner_sees": ["outputs of the new rows: a linear function of all columns"],
        "user_sees": ["means, variances and the model of its group's columns"],
    }


def warnings_of(strategy: SVMOptions) -> list[str]:
    """Return what the chosen modes give away, a line each."""
    found = []
    if strategy.consensus == "paper":
        found.append(
            "consensus paper does not reach the pooled optimum, the less so the more groups there "
            "are; use consensus exact for results"
        )
    if strategy.architecture == "chain":
        found.append("architecture chain shows every user's model to its neighbours")
    if strategy.ring:
        found.append(
            "agent_topology ring lets two agents together see the term of the one between them, "
            "and shows terms of agents that drop out; use pairwise where agents may collude"
        )
    if strategy.product == "orthogonal":
        found.append(
            "product orthogonal lets an agent test guesses of a user's columns and see the labels, "
            "and shows users most of the multiplier; use product local"
        )
    if strategy.lost_groups == "leave-out" and not strategy.ring:
        found.append(
            "lost_groups leave-out shows the server about what a lost group had contributed"
        )
    return found
