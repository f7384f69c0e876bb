"""Budgets of privacy of online methods, and predictions with a model that was saved."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.errors import CohortError, OptionError, ProtocolError, TableError
from fedkern_flwr.method import Answers, Ask, PrivateMethod, Rounds, Steps
from fedkern_flwr.model_file import check_made_with, check_model
from fedkern_flwr.nodes import Arrays, logger
from fedkern_flwr.online import messages as wire
from fedkern_flwr.privacy import Release
from fedkern_flwr.wire import DescribeReply

from .online import Floats, OnlineStrategy

# -- what the online methods do with a budget of privacy: every message has noise of its own


class PrivateOnline(PrivateMethod, OnlineStrategy):
    """Base class of the online methods that keep a budget of privacy.

    A sample is in one message. So messages are about other rows, and a run costs a row what one of
    them costs; a party takes part in all of them. This holds as long as nothing that a client sends
    depends on its earlier samples: with a budget it tells no errors and chooses no kernels.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.budget is not None and self.secure is False:
            raise OptionError(
                "noise is added to secure sums, and secure is False",
                remedy="leave out secure=False, or privacy_epsilon",
                code="FK-BUDGET-PLAIN",
            )

    def takes_sums(self, grid: Grid) -> bool:
        """Tell whether a run takes secure sums: with a budget always."""
        return self.budget is not None or super().takes_sums(grid)

    # -- the noise

    @abstractmethod
    def plan_noise(self, **known: int) -> Release:
        """Return the noise of the sum of a message: each node derives the same.

        ``known`` are the messages of the run and the samples of the largest, the parties of a sum
        and the fewest over which it can be opened.
        """

    def noise(self) -> Release | None:
        """Return the noise of the sum of the message at hand; None without a budget."""
        if self.budget is None:
            return None
        assert self.sums is not None
        cohort = self.sums.membership.cohorts[0]
        parties = len(cohort.members)
        least = cohort.threshold if self.drop_outs else parties
        return self.plan_noise(**self._messages(), parties=parties, least=least)

    def _messages(self) -> dict[str, int]:
        """Return how many messages a run has, and the samples of a client in the largest."""
        stops = [self.stop(number) for number in range(self.planned + 1)]
        return {"messages": self.planned, "most": int(np.diff(stops).max())}

    def private_fields(self) -> dict[str, Any]:
        """Return what a request says of the noise, nothing without a budget."""
        if self.budget is None:
            return {}
        return dict(self._messages())

    @abstractmethod
    def gradients(self, total: Floats, answers: int) -> Floats:
        """Return what the method sums without a budget, of a sum over ``answers`` clients."""

    # -- messages

    def message_length(self) -> int:
        """Return how many numbers are summed: with a budget no statistics."""
        return super().message_length() if self.budget is None else self.sum_length()

    def _ask(self, *about: Any, **more: Any) -> Ask:
        found, release = super()._ask(*about, **more), self.noise()
        if release is None:
            return found
        terms = [replace(t, release=release) for t in found.sums]
        return replace(found, reply=wire.NoisyReply, sums=terms)

    def _learn(self, answers: Answers) -> int:
        release = self.noise()
        if release is None:
            return super()._learn(answers)
        total = answers.totals[wire.UPDATE_SUM]
        survivors = len(answers.contributors[wire.UPDATE_SUM])
        self._lost_rounds = 0
        self.noise_.note(release, survivors)
        # what a simulation reports; nodes tell nothing
        self._reports |= {p: one for p, one in answers.replies.items() if one.total_samples}
        self.step(self.gradients(total, survivors), survivors)
        return survivors

    def _evaluate(self) -> Steps:
        if self.budget is None:
            return (yield from super()._evaluate())
        if not self.simulated:
            logger.info("with a budget of privacy each client's errors stay in its own log")
        return {}

    def _check_error(self, samples: int, mse: float | None, before: float | None) -> None:
        if self.budget is None:  # else no error may decide: in a deployment none is known
            super()._check_error(samples, mse, before)

    # -- words

    @property
    def advice(self) -> str:
        """What to do where the mean of the labels predicts as well."""
        if self.budget is None:
            return super().advice
        return "use more clients or rows, fewer kernels, or a larger privacy_epsilon"

    def budget_report(self) -> dict[str, Any]:
        """Return the budget, what a message releases, and how messages add up."""
        found = super().budget_report()
        if found:
            parallel = self.privacy_unit == "row"
            rows = "each of other rows, so that a row pays for one" if parallel else "all add up"
            found["budget"]["messages"] = f"{len(self.history_)}, {rows}"
        return found

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees."""
        found = super().privacy()
        if self.budget is None:
            return found
        seen = [
            f"sums over the clients of a round, with noise: {self.sent_sums}; see budget",
            "which clients contributed to which sum",
            "number of rows, held-out rows and columns per client, digest of the column names",
        ]
        if self._reports:
            seen.append(
                "of a simulation each client's squared error, regret and largest loss so far: for "
                "its report, which is no release. No deployed node tells them"
            )
        return {**found, "sums": [], "server_sees": seen}


# -- predictions of held-out rows with a model that was saved, and what nodes kept of its run


class PredictingStrategy(OnlineStrategy):
    """Base class of the online methods whose nodes predict rows after a run."""

    #: Options by which a model and what belongs to it are made.
    of_models: ClassVar[tuple[str, ...]]
    #: What else a model says of itself.
    facts: ClassVar[tuple[str, ...]] = ("samples", "secure", "session", "columns", "dimension")
    predict_reply: ClassVar[type[wire.PredictReply]] = wire.PredictReply

    def _reset(self) -> None:
        super()._reset()
        self._predicting = False
        self._model: tuple[Arrays, dict[str, Any]] | None = None  # that predictions are made with

    @abstractmethod
    def model_shapes(
        self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes that the arrays of a model must have."""

    @abstractmethod
    def load_model_arrays(
        self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
    ) -> None:
        """Set what predictions are made with."""

    @abstractmethod
    def prediction(self, model: str) -> wire.StreamRequest:
        """Return the question for predictions with the model of a session."""

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the model, and what a prediction needs to know; the weights are the clients'."""
        return self._model or super().learned()

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees."""
        if not self._predicting:
            return super().privacy()
        return {
            "protocol": "predictions stay at the clients",
            "server_sees": [
                "number of rows and columns per client, digest of the column names",
                "how many rows each client predicted",
            ],
            "never_leaves_the_client": ["rows", "predictions", *self.kept],
        }

    def predict_at_nodes(
        self,
        grid: Grid,
        arrays: Mapping[str, NDArray[Any]],
        meta: Mapping[str, Any],
        *,
        timeout: float = 3600,
    ) -> None:
        """Have the clients predict their held-out rows with a model and weights of their own.

        A client uses what it kept after its last round of the run that made the model, and writes
        the predictions; only how many there are is sent.

        Parameters
        ----------
        grid : Grid
            Flower's grid, of any engine.
        arrays : mapping
            Arrays of the model, see :meth:`model`.
        meta : mapping
            What else belongs to the model.
        timeout : float (default: 3600)
            Seconds to wait for the replies.

        Raises
        ------
        CheckpointError
            The model is not one of this method or of these options.
        TableError
            The clients have other columns than the model, or no rows to predict.
        ProtocolError
            A client cannot predict its rows; the others have.
        CohortError
            Not all clients are there, or some did not answer.
        """
        own = self.options()
        check_model(self.method, arrays, meta, {}, self.facts)
        made = {name: own[name] for name in self.of_models if name != "seed"}
        check_made_with(type(self), made, meta)
        check_model(self.method, arrays, meta, self.model_shapes(arrays, meta))
        self.begin()
        self._predicting, self._model = True, (dict(arrays), dict(meta))
        self.num_rounds, self.run_seed = int(meta["samples"]), int(meta["seed"])
        self.load_model_arrays(arrays, meta)
        self.conduct(grid, self._predict, timeout=timeout)

    def takes_sums(self, grid: Grid) -> bool:
        """Tell whether a run takes secure sums: clients of secure runs take part in no others."""
        predicts = self._model[1] if self._model else None
        return bool(predicts["secure"]) if predicts else super().takes_sums(grid)

    def _predict(self, parties: Sequence[DescribeReply]) -> Rounds:
        assert self._model is not None
        meta = self._model[1]
        if (parties[0].columns, parties[0].features) != (meta["columns"], meta["dimension"]):
            raise TableError(
                "the clients have other columns than the model was learned from",
                remedy="bring the same columns in the same order",
                code="FK-COLUMNS-DIFFER",
            )
        request = self.prediction(str(meta["session"]))
        answers = yield Ask(request, reply=self.predict_reply, until="once", least=0)
        if answers.failures:
            partition, failure = min(answers.failures.items())
            all_failed = len(answers.failures)
            first = f"{all_failed} clients did not predict, first " if all_failed > 1 else ""
            if failure.told:
                raise ProtocolError(f"{first}{failure.told}", code="")  # that of the node
            raise CohortError(
                f"{first}partition {partition} did not predict: {failure}",
                remedy="mend it and predict again",
                code="FK-PARTIES-LOST",
            )
        samples = sum(reply.samples for reply in answers.replies.values())
        if not samples:
            raise TableError(
                "no client holds rows to predict",
                remedy="name test-data in the --node-config of those that shall predict",
                code="FK-TEST-NONE",
            )
        return {"predicted_rows": samples}

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> Self:
        """Return a strategy with the options of a model that was saved.

        Raises
        ------
        CheckpointError
            It is not a model of this method.
        """
        check_model(cls.method, {}, meta, {}, (*cls.of_models, *cls.facts))
        return cls(**{name: meta[name] for name in cls.of_models if name != "centre"}, **more)
