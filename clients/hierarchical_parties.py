"""Computations of HierarchicalSVM parties: users with rows, agents, the label owner.

They get the table and the node's record of the run. Messages, sums and seals are in
:class:`~fedkern_flwr.clients.SVMClient`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import (
    FOLDS,
    MOST_TRIED,
    Coordinates,
    Floats,
    next_group_center,
    norms,
    part_of,
    relax,
)
from fedkern_flwr.groups.linear_model import from_digits, model_columns, model_rows
from fedkern_flwr.guard import check_size, refusal
from fedkern_flwr.node.state import KeptState, Recent
from fedkern_flwr.solvers.dual_subspace import LabelOwner, objective
from fedkern_flwr.solvers.local_solvers import balanced_weights, solve_local, total_loss

from .table_client import PartyTable

#: What a user stores per output.
_STACKED = ("model", "dual", "counted", "rho", "sigma", "memory", "group_center", "group_dual")
_COORDINATES = ("mean", "deviation", "ridge")
_OF_ROWS = ("features", "gamma", "feature_seed")
_RECENT = Recent(1 << 28)


class UserRows:
    """Computations of a user with its rows.

    While C is tried, outputs are those of :mod:`fedkern_flwr.groups.consensus`: each learns from
    the other folds, and its loss is that of the fold. ``run`` identifies run and node for cached
    results; ``deal`` returns the fold of each row.
    """

    def __init__(
        self,
        table: PartyTable,
        kept: KeptState,
        run: tuple[Any, ...],
        deal: Callable[[], NDArray[np.intp]],
    ) -> None:
        self.table, self.kept, self.run, self.deal = table, kept, run, deal

    # -- what is tried

    @property
    def trying(self) -> bool:
        own = self.kept.settings
        return own.get("folds", 0) > 0 and "chosen" not in own

    @property
    def trials(self) -> int:
        own = self.kept.settings
        return int(own.get("folds", 0)) * len(own.get("tried", ()))

    @property
    def outputs(self) -> int:
        return int(self.table.y.shape[1]) * (self.trials if self.trying else 1)

    @property
    def shape(self) -> tuple[int, int]:
        return self.outputs, len(self.kept.arrays["ridge"])

    def choose(self, chosen: int) -> None:
        """Continue with one of the tried C, which is then fixed (ProtocolError)."""
        own, found = self.kept.settings, self.kept.arrays
        if chosen == own.get("chosen", -1):
            return
        check_chosen(chosen, len(own["tried"]) if self.trying else 0)
        own["chosen"], own["c"] = chosen, own["tried"][chosen]
        found |= {name: self._chosen_of(found[name]) for name in _STACKED if name in found}

    def _chosen_of(self, stacked: Floats) -> Floats:
        own = self.kept.settings
        return part_of(stacked, own["folds"], len(own["tried"]), own["chosen"])

    @cached_property
    def _dealt(self) -> NDArray[np.intp]:
        return self.deal()

    def _held_out(self, fold: int) -> NDArray[np.bool_]:
        return np.asarray(self._dealt == fold)

    @property
    def _folds(self) -> int:
        return int(self.kept.settings["folds"]) if self.trying else 1

    @property
    def spread(self) -> float:
        """Factor by which numbers about some folds could be spread over all rows.

        Numbers about the rows outside each of several folds can be spread over all rows.
        """
        if not self.trying:
            return 1.0
        fewest = min(int((~self._held_out(k)).sum()) for k in range(self._folds))
        return max(1.0, len(self.table.y) / (self._folds * max(1, fewest)))

    # -- rows

    def features_of(self, x: Floats) -> Floats:
        own, found = self.kept.settings, self.kept.arrays
        if "raw_mean" in found:
            x = (x - found["raw_mean"]) / found["raw_deviation"]
        return model_rows(x, int(own["features"]), own["gamma"], int(own["feature_seed"]))

    def rows_of(self, x: Floats) -> Floats:
        found = self.kept.arrays
        return Coordinates(found["mean"], found["deviation"], True).rows(self.features_of(x))

    @cached_property
    def learned(self) -> tuple[Floats, Floats | None]:
        """The training rows in the coordinates of the run, (n, d + 1).

        And their inner products, (n, n), if the local problem uses them. Random features are
        expensive: those of the last messages are cached.
        """
        own = self.kept.settings

        def make() -> tuple[Floats, ...]:
            rows = self.rows_of(self.table.x)
            used = own.get("loss") == "hinge" and len(rows) < rows.shape[1]
            return (rows, rows @ rows.T) if used else (rows,)

        settings = {name: own[name] for name in _OF_ROWS}
        if settings["features"]:
            text = repr((*self.run, self.table.digest(), settings))
            key = hashlib.sha256(text.encode())
            for name in ("raw_mean", "raw_deviation", "mean", "deviation"):
                key.update(self.kept.arrays.get(name, np.zeros(0)).tobytes())
            rows, *gram = _RECENT.get(key.digest(), make)
        else:
            rows, *gram = make()
        return rows, gram[0] if gram else None

    # -- an iteration

    def take_coordinates(self, request: wire.SolveRequest) -> None:
        """Take the first iteration's coordinates, and the chosen C.

        Raises
        ------
        ProtocolError, RefusedError
        """
        found, outputs = self.kept.arrays, self.table.y.shape[1]
        self.choose(request.chosen)
        if request.rho.shape != (self.outputs, 1) or len(request.shares) not in (0, outputs):
            raise ProtocolError(
                "penalties or weights are not those of its classes", code="FK-MESSAGE-SHAPE"
            )
        if request.mean.size:
            self._check_shares(request.shares)
            found |= {name: getattr(request, name) for name in (*_COORDINATES, "shares")}
        width = model_columns(self.table.features, int(self.kept.settings.get("features", 0)))
        if not all(len(found.get(name, ())) >= width for name in _COORDINATES):
            raise ProtocolError(
                "the coordinates of the run are missing or have another number of columns",
                remedy="run the same release on both sides, and resume from a checkpoint",
                code="FK-MESSAGE-SHAPE",
            )

    def _check_shares(self, shares: Floats) -> None:
        """Refuse impossible or changed class weights.

        With a made-up share a user's rows could outweigh all others' in a sum. The check reveals
        something about labels, so it is done for the first shares only.
        """
        fits, rows = self.kept.pin("shares", shares.tolist()), self.kept.settings["rows"]
        if shares.size:
            positive = (self.table.y > 0.0).sum(0)
            least, most = positive - 0.5, rows - len(self.table.y) + positive + 0.5
            fits = fits and bool(((least <= shares * rows) & (shares * rows <= most)).all())
        if not fits:
            raise refusal("weights of classes that its rows contradict", code="FK-WEIGHTS-COUNTS")

    def make_center(
        self, request: wire.StepWithAgentRequest, total: Floats, users: int, *, just: bool
    ) -> Floats:
        """Compute the last iteration's center from the group's ``total``; at first zero.

        If C has ``just`` been chosen, the total still covers all candidates.
        """
        found = self.kept.arrays
        made = dual = np.zeros(self.shape)
        if request.round > 1:
            if total.size != made.size * (self.trials if just else 1):
                raise ProtocolError(
                    "the sum of its group has another length", code="FK-MESSAGE-SHAPE"
                )
            total = total.reshape(-1, made.shape[1])
            made, dual = next_group_center(
                self._chosen_of(total) if just else total,
                users,
                request.judged,
                (found["group_center"], found["group_dual"] * (found["sigma"] / request.sigma)),
                found["rho"],
                request.sigma,
                request.relaxation,
            )
        found["group_center"] = made
        found["group_dual"] = dual * (request.sigma / request.next_sigma)
        found["sigma"] = request.next_sigma
        return made

    def step(self, request: wire.LocalRequest | wire.StepWithAgentRequest, center: Floats) -> None:
        found, own, rho = self.kept.arrays, self.kept.settings, request.rho
        dual, primal = np.zeros(self.shape), np.zeros(len(center))
        if "model" in found:
            primal = norms(found["model"] - center)
            dual = (found["dual"] + found["counted"] - center) * (found["rho"] / rho)
        model = self._solve(center - dual, np.broadcast_to(rho, self.shape))
        counted = relax(model, center, request.relaxation)
        found |= {"model": model, "dual": dual, "counted": counted, "rho": rho}
        pull = rho[:, 0] * norms(dual) / own["rows"]
        statistics = [*self.losses(request.judged), *primal, *pull]
        found["vector"] = np.concatenate([(counted + dual).ravel(), statistics])

    def _solve(self, target: Floats, penalty: Floats) -> Floats:
        own, (rows, gram), y = self.kept.settings, self.learned, self.table.y
        hinge, classes = own["loss"] == "hinge", y.shape[1]
        blank = np.zeros((len(target), len(y) if hinge else 0))
        cold, models = hinge and "memory" not in self.kept.arrays, []
        memory = blank if cold else self.kept.arrays.get("memory", blank)
        each, kept = len(target) // self._folds, list[Floats]()
        tried = own["tried"] if self.trying else [own["c"]]
        for fold in range(self._folds):
            seen = ~self._held_out(fold) if self.trying else np.ones(len(y), np.bool_)
            part = rows if seen.all() else rows[seen]
            among = gram if gram is None or seen.all() else gram[np.ix_(seen, seen)]
            for output in range(fold * each, (fold + 1) * each):
                k, weights = output % classes, self._weights(output % classes)
                c, before = tried[output // classes % len(tried)], output - classes
                starts = memory[output : output + (not cold)]
                if hinge and before >= fold * each:  # the duals of two C are nearly proportional
                    near = kept[before] * (c / tried[before // classes % len(tried)])
                    starts = np.stack([near] if cold else [*starts, near])
                model, found = solve_local(
                    own["loss"],
                    part,
                    y[seen, k],
                    target[output],
                    penalty[output],
                    c,
                    starts[:, seen] if hinge else starts[0],
                    None if weights is None else weights[seen],
                    among,
                )
                models.append(model)
                if hinge:
                    found, short = np.zeros(len(y)), found
                    found[seen] = short
                kept.append(found)
        self.kept.arrays["memory"] = np.stack(kept)
        return np.stack(models)

    def losses(self, model: Floats) -> Floats:
        """Return each output's sum of losses per row of the run, 0 without a model."""
        own, y = self.kept.settings, self.table.y
        if not model.size:
            return np.zeros(self.outputs)
        if len(model) != self.outputs:
            raise ProtocolError(
                "the models to be judged are not those of its classes", code="FK-MESSAGE-SHAPE"
            )
        found, totals = self.learned[0] @ model.T, []
        each = len(model) // self._folds
        for output in range(len(model)):
            k = output % y.shape[1]
            rows = self._held_out(output // each) if self.trying else slice(None)
            weights = self._weights(k)
            share = None if weights is None else weights[rows]
            totals.append(total_loss(own["loss"], found[rows, output], y[rows, k], share))
        return np.asarray(np.array(totals) / own["rows"])

    def _weights(self, output: int) -> Floats | None:
        shares = self.kept.arrays["shares"]
        if not shares.size:
            return None
        return balanced_weights(self.table.y[:, output], float(shares[output]))


def check_chosen(chosen: int, tried: int) -> None:
    """Raise ProtocolError for a C that was not tried."""
    if not 0 <= chosen < tried:
        raise ProtocolError(
            "the C to go on with is none that was tried, or another than before",
            code="FK-ORDER-CHANGED",
        )


def check_trials(tried: Floats, folds: int) -> None:
    """Raise RefusedError for too many C or invalid folds."""
    few = 1 <= folds <= FOLDS and 2 <= len(tried) <= MOST_TRIED
    fits = few and bool(((tried > 0.0) & (tried < np.inf)).all())
    if (tried.size or folds) and not fits:
        raise refusal(
            f"to try other than 2 to {MOST_TRIED} C in 1 to {FOLDS} folds", code="FK-TUNE-MANY"
        )


# -- agents


def make_term(kept: KeptState, request: wire.CombineRequest, total: Floats) -> None:
    """Complete a group's iteration with its users' ``total``, if any (ProtocolError)."""
    found, shape = kept.arrays, (request.outputs, request.width)
    check_size(*shape)
    penalties = request.rho.shape, request.sigma.shape, request.next_sigma.shape
    if set(penalties) != {(request.outputs, 1)}:
        raise ProtocolError("penalties are not those of the outputs", code="FK-MESSAGE-SHAPE")
    found.setdefault("center", np.zeros(shape))
    found.setdefault("dual", np.zeros(shape))
    found.setdefault("statistics", np.zeros(wire.AGENT_STATISTICS * request.outputs))
    found.setdefault("sigma", request.sigma)
    just = request.chosen != kept.settings.setdefault("chosen", -1)
    if just:
        _choose(kept, request)
    if request.advance:
        _advance(kept, request, total, just=just)
    found["dual"] = found["dual"] * (found["sigma"] / request.next_sigma)
    found["sigma"] = request.next_sigma
    term = found["center"] + found["dual"]
    found["term"] = np.concatenate([term.ravel(), found["statistics"]])


def _choose(kept: KeptState, request: wire.CombineRequest) -> None:
    found, own = kept.arrays, kept.settings
    check_chosen(request.chosen, request.tried if own["chosen"] < 0 < request.folds else 0)
    own["chosen"] = request.chosen
    for name in ("center", "dual", "sigma"):
        if len(found[name]) == request.outputs * request.folds * request.tried:
            found[name] = _chosen_of(found[name], request)


def _chosen_of(stacked: Floats, request: wire.CombineRequest) -> Floats:
    return part_of(stacked, request.folds, request.tried, request.chosen)


def _advance(kept: KeptState, request: wire.CombineRequest, total: Floats, *, just: bool) -> None:
    """Complete an iteration; if C has ``just`` been chosen, the total covers all candidates."""
    found, own = kept.arrays, kept.settings
    outputs = request.outputs * (request.folds * request.tried if just else 1)
    models = outputs * request.width
    if total.size != models + wire.USER_STATISTICS * outputs:
        raise ProtocolError("the sum of its group has another length", code="FK-MESSAGE-SHAPE")
    sums = total[:models].reshape(outputs, request.width)
    statistics = total[models:].reshape(wire.USER_STATISTICS, outputs)
    if just:
        sums = _chosen_of(sums, request)
        statistics = _chosen_of(statistics.T, request).T
    loss, primal, pull = statistics
    before, users = found["center"], len(request.users)
    dual = found["dual"] * (found["sigma"] / request.sigma)
    center, found["dual"] = next_group_center(
        sums,
        users,
        request.center,
        (before, dual),
        request.rho,
        request.sigma,
        request.relaxation,
    )
    stiff = (request.rho * users + request.sigma)[:, 0]
    found["center"], found["sigma"] = center, request.sigma
    found["statistics"] = np.concatenate(
        [
            loss,
            primal + norms(center - request.center),
            users * norms(center) + norms(request.center),
            stiff * norms(center - before),
            pull,
        ]
    )
    own["iteration"] = int(own.get("iteration", 0)) + 1


def open_block(kept: KeptState, request: wire.BlockRequest, total: Floats) -> None:
    found = kept.arrays
    if request.kind == "columns":
        mean, square = from_digits(total).reshape(2, -1)
        fitted = Coordinates.fit(mean, square, standardised=True)
        deviation = fitted.deviation if request.standardised else np.ones(len(mean))
        found["opened"] = found["coordinates"] = np.stack([fitted.mean, deviation])
    else:
        found["opened"] = total * (request.rows if request.kind == "model" else 1.0)


# -- the label owner


def lead(
    kept: KeptState,
    request: wire.OwnerRequest,
    y: Floats,
    held: NDArray[np.intp],
    outputs: Floats | None,
) -> None:
    """Solve in the subspace of the messages so far, and make the next message.

    ``y`` are the table's labels, ``held`` the table rows of the plan, ``outputs`` those of the last
    weights, if any.

    Raises
    ------
    OptionError
        The labels do not fit the loss.
    """
    own, found = kept.settings, kept.arrays
    order = np.argsort(held)  # table order: a repeated run then has the same messages
    rows = held[order]
    leader = LabelOwner(own["loss"], y[rows], own["c"], 0, numbers=rows)
    if "sent" in found:
        leader.unpack(found)
    if outputs is not None:
        leader.receive(outputs[order] * own["rows"])
    known = bool(np.isfinite(leader.bound).all())
    gap, value = float(leader.gap.sum()), float(leader.objective.sum())
    finished = request.kind == "last" or (known and gap <= request.tolerance * value)
    message = leader.model_message() if finished else leader.next_message()
    found |= {**leader.pack(), "bias": leader.bias, "message": message[np.argsort(order)]}
    bound = float(leader.bound.sum()) if known else 0.0
    own |= {"model": finished, "objective": value, "bound": bound}


def final_objective(kept: KeptState, outputs: Floats, targets: Floats) -> float:
    own, found = kept.settings, kept.arrays
    squares = ((outputs - found["bias"]) * found["message"]).sum(0)  # |X^T m|^2
    return float(
        sum(
            objective(own["loss"], float(squares[k]), outputs[:, k], targets[:, k], own["c"])
            for k in range(targets.shape[1])
        )
    )
