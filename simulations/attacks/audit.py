"""Run the table of attacks, for ``fedkern audit``."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from typing import Any

from threadpoolctl import threadpool_limits

from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.privacy.accounting import check_accountant

from ..engines.simulate import quiet
from . import budgets, fdskl, fed_cg
from . import hierarchical_svm as svm
from . import pof_mkl as online
from . import secure_gram as gram
from .secure_gram import Matrix
from .seen import Attack, Run, Seen, Verdict, attack_on, both, together

#: The row that tries the sums with noise of all methods.
EPSILON = "lower bound of epsilon"


def _epsilon(noise: float) -> Run:
    return lambda seed, method=None: budgets.lower_bounds(seed, method, noise=noise)


_ACTIVE, _GIVEN, _RATING = "active party", "server, given landmarks", "server, one rating"
_NAIVE, _COLUMNS = (
    partial(fed_cg.printed, "naive"),
    "columns of two values, up to their order and 0/1",
)
_KNOWN = "whether a known row, or one more item of it, is in the sum"
_OTHERS = "inverses from which each client computes the sums of all others"
_GRADIENT = "of two hospitals each can compute K^T(K a - y) of the other"
_OWN = "distances between their own patients"
_NEAR = "distances between the rows of the others together"
_MEMBERS = "sums over the clients of a round"
_completion = both(fed_cg.completed, _NAIVE, fed_cg.default_run, by=_GIVEN)
_ratings = both(
    Matrix.rating, partial(gram.printed, users=80, items=36), gram.default_run, _RATING, _KNOWN
)
#: Attack -> the paper's protocol, and the default of the method.
RUNS: Mapping[str, tuple[Run, Run]] = {
    "gradient inversion": both(online.samples_found, online.plain_gradients, online.default_run),
    "joint inversion": both(online.rows_returned, online.whole_gradients, online.default_run),
    "membership in a sum": both(
        online.members_found, online.whole_gradients, online.default_run, admits=_MEMBERS
    ),
    "trilateration": both(fed_cg.rows_found, _NAIVE, fed_cg.default_run, by=_GIVEN),
    "completion of distances": (
        _completion[0],
        together(_completion[1], attack_on(fed_cg.default_run, fed_cg.unfolded, "hospital", _OWN)),
    ),
    "a hospital's gradient": (
        attack_on(partial(fed_cg.printed, "chain"), fed_cg.gradients_found),
        together(
            attack_on(fed_cg.default_run, fed_cg.gradients_found, "a hospital of 3"),
            attack_on(
                partial(fed_cg.default_run, hospitals=2),
                fed_cg.gradients_found,
                "a hospital of 2",
                _GRADIENT,
            ),
        ),
    ),
    "rows from phases": (
        attack_on(fdskl.printed, fdskl.rows_found, _ACTIVE),
        together(
            attack_on(fdskl.default_run, fdskl.rows_guessed, _ACTIVE),
            attack_on(
                fdskl.default_run, fdskl.distances_found, f"{_ACTIVE}, distances only", _NEAR
            ),
        ),
    ),
    "profiles from the matrix": both(
        Matrix.share_found,
        partial(gram.printed, users=40, items=60),
        gram.default_run,
        "server, all users",
    ),
    "users' vectors": (
        together(
            attack_on(int, lambda _, seed: svm.between_neighbours(seed), "two agents of the ring"),
            attack_on(int, lambda _, seed: svm.columns_guessed(seed), "agent, secure product"),
        ),
        together(
            attack_on(svm.horizontal, svm.models_read, "server, rows at users"),
            attack_on(svm.vertical, svm.outputs_read, "agent and server, columns at groups"),
        ),
    ),
    "binary columns from phases": both(
        fdskl.columns_found,
        partial(fdskl.printed, binary=True),
        partial(fdskl.default_run, binary=True),
        _ACTIVE,
        _COLUMNS,
    ),
    "binary columns from distances": both(
        fed_cg.columns_found,
        partial(_NAIVE, binary=True),
        partial(fed_cg.default_run, binary=True),
        admits=_COLUMNS,
        by="hospital",
    ),
    "a single rating": (
        _ratings[0],
        together(
            _ratings[1], attack_on(gram.default_run, Matrix.profile, "server, a profile", _KNOWN)
        ),
    ),
    "the others' sums": both(
        online.others_found,
        partial(online.ridge_run, secure=False),
        partial(online.ridge_run, secure=True),
        "client",
        _OTHERS,
    ),
    EPSILON: (_epsilon(0.25), _epsilon(1.0)),
}
_ROWS = tomllib.loads(files(__package__).joinpath("table.toml").read_text("utf-8"))["attack"]
#: All attacks.
ATTACKS = tuple(Attack(**row, runs=RUNS[row["name"]]) for row in _ROWS)
#: What can be audited; ``epsilon`` is the last row alone.
METHODS = (*dict.fromkeys(method for attack in ATTACKS for method in attack.methods), "epsilon")

Progress = Callable[[str, float, int], None]


@dataclass(frozen=True)
class Outcome:
    """What an attack recovered on the paper's protocol, and on the default."""

    attack: Attack
    paper: list[Seen]
    default: list[Seen]

    @property
    def verdicts(self) -> list[Verdict]:
        """Verdicts on the scores of the default."""
        return [self.attack.verdict(seen) for seen in self.default]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **{name: value for name, value in vars(self.attack).items() if name != "runs"},
            "paper": [{"viewer": seen.viewer, "score": seen.score} for seen in self.paper],
            "default": [
                {"viewer": s.viewer, "score": s.score, "verdict": v, "admits": s.admits}
                for s, v in zip(self.default, self.verdicts, strict=True)
            ],
        }


def attacks_on(method: str | None) -> list[Attack]:
    """Return the attacks on a method; all for None.

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
    """Run attacks on the paper's protocol and on the default.

    Parameters
    ----------
    method : str, optional
        Its name on the command line, or ``epsilon`` (default: all attacks).
    seed : int (default: 0)
        Of data, runs and attacks. Masks and noise have none.
    progress : callable
        Called with (description, steps so far, steps in all).

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
    with quiet(), threadpool_limits(1, "blas"):  # thousands of small matrices
        for number, attack in enumerate(attacks):
            progress(f"{attack.name}, the paper's protocol", 2 * number, 2 * len(attacks))
            paper = attack.runs[0](seed)
            if min(seen.score for seen in paper) <= attack.threshold:
                raise ProtocolError(
                    f"{attack.name} recovers nothing on {attack.protocol} with seed {seed}",
                    code="FK-ATTACK-VAIN",
                )
            progress(f"{attack.name}, the default", 2 * number + 1, 2 * len(attacks))
            found.append(Outcome(attack, paper, attack.runs[1](seed)))
    return found
