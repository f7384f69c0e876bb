"""Which options of HierarchicalSVM do not go together, and which not with the groups there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedkern_flwr.errors import OptionError
from fedkern_flwr.groups import gradients

if TYPE_CHECKING:
    from .hierarchical_options import SVMOptions


def one_after_the_other(strategy: SVMOptions) -> bool:
    """Tell whether users can be asked only when the agents have answered, or there are none."""
    return (
        strategy.partition == "vertical"
        or strategy.architecture != "hierarchical"
        or strategy.consensus == "paper"
        or strategy.ring
        or strategy.staleness > 0
        or strategy.lost_groups == "leave-out"
    )


def check_together(strategy: SVMOptions) -> None:
    """Refuse options that do not go together."""
    vertical, layers = strategy.partition == "vertical", strategy.architecture == "hierarchical"
    paper, chain = strategy.consensus == "paper", strategy.architecture == "chain"
    leaves, grows = (
        strategy.lost_groups == "leave-out",
        strategy.rho_schedule in ("rising", "scaled"),
    )
    admm = ("rho", "sigma", "rho_schedule", "relaxation", "step_sizes")
    given = [n for n in (*admm, "features", "gamma") if getattr(strategy, n) is not None]
    for_agents = {
        "consensus paper": paper,
        "agent_topology ring": strategy.ring,
        "staleness": strategy.staleness > 0,
        "step_sizes": "step_sizes" in given,
        "sigma": "sigma" in given,
        "lost_groups leave-out": leaves,
    }
    rules = {
        f"{n} is for model rbf; add model rbf, or leave it out": strategy.kind != "rbf"
        for n in given
        if n not in admm
    }
    rules |= {
        f"{n} has no meaning in a vertical split; leave it out": vertical
        for n in given
        if n in admm
    }
    rules |= {
        "model rbf needs all columns of a row; use fdskl for vertical splits": vertical
        and strategy.kind == "rbf",
        f"architecture {strategy.architecture} is for horizontal splits; use architecture "
        "hierarchical": vertical and not layers,
        "consensus paper and agent_topology ring are for horizontal splits; leave them out: "
        "agents of a vertical split sum nothing among themselves": vertical
        and (paper or strategy.ring),
        "a vertical split needs every group in every iteration; leave staleness and "
        "lost_groups out": vertical and (strategy.staleness > 0 or leaves),
        "class_weight is for horizontal splits; leave it out": vertical
        and strategy.class_weight is not None,
        "product orthogonal is for vertical splits; use partition vertical": not vertical
        and strategy.product == "orthogonal",
    }
    rules |= {
        f"{name} needs agents; use architecture hierarchical": used and not layers
        for name, used in for_agents.items()
    }
    rules |= {
        "sigma has no meaning in consensus paper; leave it out": paper and "sigma" in given,
        "relaxation and a rho_schedule that grows have no meaning in a chain; leave them out": chain
        and ("relaxation" in given or grows),
        "rho and step_sizes are both given; give one of them": {"rho", "step_sizes"} <= set(given),
        "pipelined is for rows in groups that wait for each other, of consensus exact and pairwise "
        "masks; leave it out": bool(strategy.pipelined) and one_after_the_other(strategy),
        "groups that do not wait have no residuals in common; use another rho_schedule": (
            strategy.staleness > 0 and strategy.rho_schedule in ("balanced", "scaled")
        ),
    }
    for text, broken in rules.items():
        if broken:
            problem, _, remedy = text.partition("; ")
            raise OptionError(problem, remedy=remedy)


def check_private(strategy: SVMOptions) -> None:
    """Refuse what a run with a budget cannot have.

    Raises
    ------
    OptionError
    """
    admm = ("rho", "sigma", "rho_schedule", "relaxation", "step_sizes")
    given = [name for name in admm if getattr(strategy, name) is not None]
    rules = {
        "privacy_epsilon is for horizontal splits; of columns fed-cg with basis fourier keeps a "
        "budget": strategy.partition == "vertical",
        "privacy_epsilon is for one sum of all users; use architecture centralised, where no group "
        "needs noise of its own": strategy.architecture != "centralised",
        "privacy_epsilon is for losses whose derivatives are bounded; use model linear, rbf or "
        "logistic, or for numbers fed-cg with basis fourier": strategy.loss
        not in gradients.BOUNDED,
        "C is not chosen by the rows in a run with privacy_epsilon; give C, such as 1": strategy.C
        is None,
        "class_weight counts classes without noise; leave it out": strategy.class_weight
        is not None,
        "scale none has no meaning with privacy_epsilon; leave it out, columns are to lie in "
        "[0, 1]": strategy.scale == "none",
        f"{' and '.join(given)} are those of ADMM, privacy_epsilon takes steps of its own; leave "
        "them out": bool(given),
    }
    for text, broken in rules.items():
        if broken:
            problem, _, remedy = text.partition("; ")
            raise OptionError(problem, remedy=remedy)


def check_groups(strategy: SVMOptions, count: int) -> None:
    """Refuse options that do not go with so many groups."""
    if strategy.ring and count < 3:
        raise OptionError(
            f"a ring of {count} agents shows each the other's term",
            remedy="use at least 3 groups, or agent_topology pairwise",
        )
    if strategy.step_sizes is not None and len(strategy.step_sizes) != count:
        raise OptionError(
            f"{len(strategy.step_sizes)} step sizes for {count} groups",
            remedy="give each group one",
        )
    if strategy.lost_groups == "leave-out" and not strategy.ring and count < 3:
        raise OptionError(
            f"of {count} groups none can be left out: the total would be that of one",
            remedy="use lost_groups stop",
        )
