"""The one table of attacks, and what ``fedkern audit`` makes of it."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from typing import Any

from threadpoolctl import threadpool_limits

from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.privacy.accounting import check_accountant

from . import budgets, fdskl, fed_cg, hierarchical_svm, pof_mkl, secure_gram
from .seen import Attack, Run, Seen, Verdict

#: The row that tries the sums with noise of all methods.
EPSILON = "lower bound of epsilon"
#: Attack -> what recovers on the paper's protocol, and on the default of the method.
RUNS: Mapping[str, tuple[Run, Run]] = {
    "gradient inversion": (pof_mkl.invert_plain, pof_mkl.invert_masked),
    "joint inversion": (pof_mkl.invert_whole, pof_mkl.invert_default),
    "membership in a sum": (pof_mkl.members_of_whole, pof_mkl.members_of_default),
    "trilateration": (fed_cg.trilaterate_naive, fed_cg.trilaterate_masked),
    "completion of distances": (fed_cg.complete_naive, fed_cg.complete_default),
    "a hospital's gradient": (fed_cg.gradients_of_chain, fed_cg.gradients_of_default),
    "rows from phases": (fdskl.on_paper, fdskl.on_default),
    "profiles from the matrix": (secure_gram.on_paper, secure_gram.on_default),
    "users' vectors": (hierarchical_svm.on_paper, hierarchical_svm.on_default),
    "binary columns from phases": (fdskl.columns_on_paper, fdskl.columns_on_default),
    "binary columns from distances": (fed_cg.columns_of_naive, fed_cg.columns_of_default),
    "a single rating": (secure_gram.ratings_on_paper, secure_gram.ratings_on_default),
    "the others' sums": (pof_mkl.others_on_plain, pof_mkl.others_on_default),
    EPSILON: (budgets.on_less_noise, budgets.lower_bounds),
}
_ROWS = tomllib.loads(files(__package__).joinpath("table.toml").read_text("utf-8"))["attack"]
#: All attacks.
ATTACKS = tuple(Attack(**row, runs=RUNS[row["name"]]) for row in _ROWS)
#: What can be audited; ``epsilon`` is the last row alone.
METHODS = (*dict.fromkeys(method for attack in ATTACKS for method in attack.methods), "epsilon")

Progress = Callable[[str, float, int], None]


@dataclass(frozen=True)
class Outcome:
    """What an attack recovered.

    Attributes
    ----------
    attack : Attack
    paper, default : list of Seen
        On the paper's protocol, and on the default of the method.
    """

    attack: Attack
    paper: list[Seen]
    default: list[Seen]

    @property
    def verdicts(self) -> list[Verdict]:
        """What each score on the default means."""
        return [self.attack.verdict(seen) for seen in self.default]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            **{name: value for name, value in vars(self.attack).items() if name != "runs"},
            "paper": [{"viewer": seen.viewer, "score": seen.score} for seen in self.paper],
            "default": [
                {"viewer": s.viewer, "score": s.score, "verdict": v, "admits": s.admits}
                for s, v in zip(self.default, self.verdicts, strict=True)
            ],
        }


def attacks_on(method: str | None) -> list[Attack]:
    """Return the attacks on a method, or all of them.

    Raises
    ------
    OptionError
        There are none.
    """
    if method is None:
        return list(ATTACKS)
    if method == "epsilon":
        return [ATTACKS[-1]]
    found = [attack for attack in ATTACKS if method in attack.methods]
    if not found:
        raise OptionError(
            f"no attack is on {method}",
            remedy=f"use one of {', '.join(METHODS)}",
            code="FK-ATTACK-METHOD",
        )
    if found[-1].name == EPSILON:
        paper, default = (partial(run, method=method) for run in found[-1].runs)
        found[-1] = replace(found[-1], runs=(paper, default))
    return found


def audit(
    method: str | None = None,
    seed: int = 0,
    progress: Progress = lambda label, done, total: None,
) -> list[Outcome]:
    """Try the attacks on a method, or all, on the paper's protocol and on the default.

    Parameters
    ----------
    method : str, optional
        As the command line calls it, or ``epsilon``.
    seed : int (default: 0)
        Of data, runs and attacks. Masks and noise have none.
    progress : callable
        Called with (what is done, steps so far, steps in all).

    Raises
    ------
    OptionError
        There is no attack on the method.
    ProtocolError
        An attack does not succeed where it must.
    FedKernError
        A run broke down.
    """
    attacks, found = attacks_on(method), list[Outcome]()
    if attacks[-1].name == EPSILON:
        check_accountant()
    with silence(), threadpool_limits(1, "blas"):  # thousands of small matrices
        for number, attack in enumerate(attacks):
            progress(f"{attack.name}, the paper's protocol", 2 * number, 2 * len(attacks))
            paper = attack.runs[0](seed)
            if min(seen.score for seen in paper) <= attack.threshold:
                raise ProtocolError(
                    f"{attack.name} recovers nothing on {attack.protocol} with seed {seed}",
                    remedy="its failure on the default would say nothing: use another seed",
                    code="FK-ATTACK-VAIN",
                )
            progress(f"{attack.name}, the default", 2 * number + 1, 2 * len(attacks))
            found.append(Outcome(attack, paper, attack.runs[1](seed)))
    return found


@contextmanager
def silence() -> Iterator[None]:
    """Log nothing of runs over rows that are made up."""
    loggers = [logging.getLogger(name) for name in ("fedkern_flwr", "flwr")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
