"""Predictions of held-out rows with a model that was saved, and what nodes kept of its run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.errors import CohortError, ProtocolError, TableError
from fedkern_flwr.method import Ask, Rounds
from fedkern_flwr.model_file import check_made_with, check_model
from fedkern_flwr.nodes import Arrays
from fedkern_flwr.online import messages as wire
from fedkern_flwr.wire import DescribeReply

from .online import OnlineStrategy


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
