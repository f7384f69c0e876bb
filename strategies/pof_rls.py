"""POF-RLS: personalised online federated learning with second-order experts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError
from fedkern_flwr.method import PrivateMethod, option
from fedkern_flwr.nodes import Arrays
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online import ridge
from fedkern_flwr.online.learning import CENTRE
from fedkern_flwr.online.private import steadied

from . import online
from .online import Floats, OnlineStrategy

_UNKNOWN = 2.0  # default width if no sums give the distance of rows: for the unit ball


class POFRLS(OnlineStrategy, PrivateMethod):
    """Personalised online federated kernel learning by recursive ridge regression.

    The clients sum products of their features, from which the server has the ridge regression of
    all rows so far, on raw columns and on random Fourier features of a few kernels. Between two
    messages a client updates these regressions with its own new rows, and trains others on its rows
    alone. It predicts with a mixture of all, whose weights never leave it.

    Parameters
    ----------
    **common
        Options that the class declares, and those of ``Method``.

    Attributes
    ----------
    plan_ : Plan
        Which message sums what.
    width_ : float
        Width of the first kernel, 0 until it is known.

    Notes
    -----
    A message takes as many samples as all before it, up to ``samples_per_round``; the first is as
    short as :func:`~fedkern_flwr.online.ridge.plan` allows.
    """

    method = "pof-rls"
    title = "POF-RLS"
    left_whole = True
    reply_class = wire.RidgeReply
    evaluate_reply = wire.RidgeEvaluateReply
    predict_reply = wire.RidgePredictReply
    of_models = (
        "kernels",
        "features",
        "regularization",
        "forgetting",
        "experts",
        "seed",
        "centre",
    )
    model_facts = (*OnlineStrategy.model_facts, "summed", "shared")
    fixed = OnlineStrategy.fixed | {"step_size"}
    in_sums = "products of features and labels, and statistics"
    sent_sums = "products of features and labels"
    to_clients = "the model, with inverses from which each client computes the sums of all others"
    kept = ("weights over the learners", "learners of its own rows")

    kernels: int = option(1, "Gaussian kernels, of widths a power of two apart.", least=0)
    features: int = option(
        20,
        "Random frequencies per kernel, D, within the release limits.",
        least=1,
    )
    width: float | None = option(
        None,
        "Width of the first kernel (default: from distances of rows, or 2).",
        above=0.0,
    )
    regularization: float = option(
        1e-3, "Penalty lambda on the squared norm of the coefficients.", above=0.0
    )
    forgetting: float = option(
        0.98,
        "Share of the past kept per sample; 1 forgets nothing.",
        above=0.0,
        most=1.0,
    )
    experts: ridge.Experts = option(
        "all",
        "Learners that are mixed: global or local, on columns or kernels.",
    )
    up: int | None = option(
        None,
        "Most numbers from a client in a message; fewer are then summed.",
        least=1,
    )
    down: int | None = option(
        None,
        "Most numbers to a client in a message; fewer are then summed.",
        least=1,
    )

    def _reset(self) -> None:
        super()._reset()
        self.plan_ = ridge.Plan()
        self.width_ = 0.0
        self._raw, self._kernels = np.zeros((0, 0)), np.zeros((0, 0, 0))
        self._begun = False
        self._variances = np.zeros(0)  # of the noise on totals without and with forgetting
        self._solutions: list[tuple[int, Floats]] = []  # for raw columns, for features

    def derived(self) -> dict[str, Any]:
        return {"centre": CENTRE}

    # -- the plan of a run

    def plan_release(self, dimension: int) -> None:
        each = hidden = math.inf
        if self.sums is not None:
            each, hidden = self.unknowns_of_samples(dimension), self.hidden_rows()
        given, columns, several = self.samples_per_round, dimension + 1, 1 + (self.forgetting < 1.0)
        private = self.budget is not None  # noise limits the release, and each message has its own
        if private:
            each, hidden = math.inf, math.inf
            given = ridge.MOST_SAMPLES if given == "auto" else given
            self._variances = np.zeros(several)
        counted = any(party.counting != "off" for party in self.parties_.values())
        share = self.share if given == "auto" else 1.0
        self.plan_ = ridge.plan(
            self.num_rounds,
            each * share if counted else math.inf,
            given=None if given == "auto" else given,
            columns=columns if self.experts in ("all", "global", "global-ridge") else 0,
            kernels=self.kernels if self.experts in ("all", "global", "global-kernels") else 0,
            features=self.features,
            fixed=wire.STATISTICS,
            up=self.up or math.inf,
            down=(self.down or math.inf) / several,
            known=self.width is not None or private,
            steady=private,
            hidden=hidden if counted else math.inf,
            fewest=self.fewest if given == "auto" and self.sums and not private else 1,
        )
        nothing = not self.plan_.raw and not self.plan_.features
        if nothing and (self.up or self.down) and not self.experts.startswith("local"):
            least = min(ridge.numbers(columns), ridge.numbers(2)) + wire.STATISTICS
            raise OptionError(
                f"up={self.up} and down={self.down} leave room for nothing that all learn from",
                remedy=f"allow {least} numbers up and {2 * several} down, or use experts='local'",
                code="FK-RIDGE-ROOM",
            )
        if self.experts.startswith("global") and nothing:
            raise OptionError(
                f"nothing may be summed that {self.experts!r} learners could learn from",
                remedy="use experts='all', more samples per round, or fewer features",
                code="FK-RIDGE-GLOBAL",
            )
        self._batch = max(np.diff([0, *self.plan_.stops]).tolist())
        self._raw = np.zeros((several, ridge.numbers(columns) if self.plan_.raw else 0))
        kernels = self.plan_.kernels if self.plan_.features else 0
        self._kernels = np.zeros((kernels, several, ridge.numbers(2 * self.plan_.features)))
        self.width_ = self.width or (0.0 if self.plan_.raw and not private else _UNKNOWN)
        self._solve()
        if self.sums is None or private:
            return
        plan, numbers, found = self.plan_, 0, list[tuple[int, float]]()
        raw = self._raw.shape[1] + wire.STATISTICS
        some = len(self._kernels) * self._kernels.shape[2]
        self.note_windows(
            f"{plan.stops[0]} to {self._batch} samples per message, raw columns "
            f"{'summed' if plan.raw else 'not summed'}, {plan.features} of {self.features} "
            "frequencies",
            each * plan.stops[0],
        )
        for before, start, stop, sums in zip(
            (0, *plan.stops), plan.starts, plan.stops, plan.sums, strict=False
        ):
            numbers = raw + sums * some + (numbers if start < before else 0)
            found.append((numbers, each * (stop - start)))
        self.note_release(dimension, *max(found, key=lambda one: one[0] / max(1.0, one[1])))

    def exchanges(self) -> int:
        return len(self.plan_.stops)

    def stop(self, number: int) -> int:
        return self.plan_.stops[number - 1] if number else 0

    # -- messages

    def request(self, stream: dict[str, Any]) -> wire.RidgeRequest:
        message = stream["round"] - 1
        sums = self.plan_.sums[message] and self.width_ > 0.0
        fields = {**self._fields(), "sums": sums, "window": self.plan_.starts[message]}
        return wire.RidgeRequest(**stream, **fields)

    def evaluation(self, **stream: Any) -> wire.RidgeEvaluateRequest:
        return wire.RidgeEvaluateRequest(**stream, window=0, **self._fields(0))

    def _fields(self, most: float | None = None) -> dict[str, Any]:
        """Return the global learners, with as many inverses as ``most`` numbers hold."""
        left, inverses = self.down or math.inf if most is None else most, 0
        left -= sum(one[..., 0].size * features for features, one in self._solutions)
        for features, one in self._solutions:
            left -= one[..., features:].size
            inverses += left >= 0
        cut = [
            one if k < inverses else one[..., -features:]
            for k, (features, one) in enumerate(self._solutions)
        ]
        return {
            "experts": self.experts,
            "kernels": self.kernels,
            "features": self.features,
            "bandwidths": self._bandwidths(),
            "seed": self.run_seed,
            "regularization": self.regularization,
            "forgetting": self.forgetting,
            "centre": CENTRE,
            "raw": bool(self.plan_.raw),
            "summed": self.plan_.features,
            "shared": self.plan_.kernels,
            "sums": self.request_ is not None and self.request_.sums,
            "begun": self._begun,
            "inverses": inverses,
            "starts": np.concatenate([np.zeros(0), *(one.ravel() for one in cut)]),
        }

    def _bandwidths(self) -> bytes:
        return ridge.widths(self.kernels, self.width_) if self.width_ else b""

    def _solve(self) -> None:
        wanted = list[tuple[int, Floats]]()
        if self.plan_.raw:
            wanted.append((self._dimension + 1, self._raw))
        wanted += [(2 * self.plan_.features, self._kernels)] if self._begun else []
        self._solutions = []
        for features, totals in wanted:
            if self._variances.any():
                parts = np.moveaxis(totals, -2, 0)
                deviations = np.sqrt(self._variances)
                steady = [
                    steadied(one, features, float(d))
                    for one, d in zip(parts, deviations, strict=True)
                ]
                totals = np.stack(steady, axis=-2)
            self._solutions.append((features, ridge.solve(totals, features, self.regularization)))

    # -- a budget of privacy

    def gradients(self, total: Floats, answers: int) -> Floats:
        """Return the sums in their units without a budget; note the noise of the totals."""
        noise, samples = self.noise(), self.request_.samples
        assert noise is not None
        kept = np.array([1.0, self.forgetting ** (2 * samples)])[: len(self._variances)]
        self._variances = kept * self._variances + noise.noise.deviation(answers) ** 2
        return total * wire.ridge_scale(samples)

    # -- state

    def step(self, total: Floats, answers: int) -> None:
        """Add a message's sums to the discounted earlier ones."""
        first, stop = self.request_.rows()
        samples, rows = self.request_.samples, stop - first
        kept = [np.array([1.0, self.forgetting**n]) for n in (samples, rows)]
        raw, rest = np.split(total, [self._raw.shape[1]])
        several = len(self._raw)
        raw = raw / wire.ridge_scale(samples)
        self._raw = kept[0][:several, None] * self._raw + raw
        if self.plan_.raw and not self.width_:
            self.width_ = 2.0 * ridge.distance(self._raw[0], self._dimension + 1) or _UNKNOWN
        if rest.size:
            rest = rest.reshape(len(self._kernels), 1, -1) / wire.ridge_scale(rows)
            self._kernels = kept[1][:several, None] * self._kernels + rest
            self._begun = True
        self._solve()

    def sent(self) -> list[NDArray[Any]]:
        """Return all sums, from which a run can start; clients get the derived model."""
        return list(self.server_state().values())

    def model_arrays(self) -> Arrays:
        """Return the coefficients of the global learners, with the bandwidths of the features.

        ``raw`` is there if raw columns were summed, ``kernels`` if features were (not if the only
        messages with them were lost).
        """
        arrays = {
            "kernels" if one.ndim == 3 else "raw": one[..., -features:].reshape(-1, features)
            for features, one in self._solutions
        }
        arrays["bandwidths"] = np.frombuffer(self._bandwidths(), "<f8")
        return {name: one for name, one in arrays.items() if one.size}

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        arrays, meta = super().learned()
        return arrays, {**meta, "summed": self.plan_.features, "shared": self.plan_.kernels}

    def server_state(self) -> Arrays:
        facts = np.array([self.width_, float(self._begun), *self._variances])
        return {"sums": np.concatenate([facts, self._raw.ravel(), self._kernels.ravel()])}

    def load_server_state(self, arrays: Arrays) -> None:
        (width, begun, *noise), rest = np.split(arrays["sums"], [2 + len(self._variances)])
        self._variances = np.array(noise)
        raw, kernels = np.split(rest, [self._raw.size])
        self.width_, self._begun = float(width), bool(begun)
        self._raw = raw.reshape(self._raw.shape).copy()
        self._kernels = kernels.reshape(self._kernels.shape).copy()
        self._solve()

    # -- predictions with a saved model

    predict_at_nodes = online.predict_at_nodes

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> Self:
        """Return a strategy with the options of a saved model."""
        return cls(**online.options_of(cls, meta), **more)

    def model_shapes(
        self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        several = 1 + (self.forgetting < 1.0)
        shapes = {
            "raw": (several, int(meta["dimension"]) + 1),
            "kernels": (several * int(meta["shared"]), 2 * int(meta["summed"])),
            "bandwidths": (self.kernels,),
        }
        return {name: shape for name, shape in shapes.items() if name in arrays}

    def load_model_arrays(
        self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
    ) -> None:
        raw, summed, shared = arrays.get("raw"), int(meta["summed"]), int(meta["shared"])
        self.plan_ = ridge.Plan(raw=int(raw is not None), features=summed, kernels=shared)
        self.width_ = float(arrays["bandwidths"][0]) if "bandwidths" in arrays else 0.0
        self._begun = "kernels" in arrays
        self._solutions = [] if raw is None else [(raw.shape[-1], np.asarray(raw))]
        if self._begun:
            kernels = np.asarray(arrays["kernels"]).reshape(shared, -1, 2 * summed)
            self._solutions.append((2 * summed, kernels))

    def prediction(self, model: str) -> wire.RidgePredictRequest:
        return wire.RidgePredictRequest(model=model, window=0, **self._fields(0))
