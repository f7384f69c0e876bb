"""How a family of methods makes whole models of runs, and predicts the rows of files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from fedkern_flwr.errors import CheckpointError, OptionError
from fedkern_flwr.fitted import FittedModel, load_model

from ...strategies import Method
from ..run.data import Prepared
from .new_rows import Config, Parts, Target, predict_file

P = TypeVar("P", bound=Prepared)


class Predicting(Generic[P]):
    """What a family knows of whole models.

    Attributes
    ----------
    unpredictable : (str, str)
        Why models predict no rows of a file, and what to do instead.
    left_out : str
        Why rows are not predicted.
    """

    unpredictable: ClassVar[tuple[str, str]] = (
        "models of {} do not predict the rows of a file",
        "load its model in Python with fedkern_flwr.model_file.load_model",
    )
    left_out: ClassVar[str] = "they lack a value"

    def whole_model(
        self, strategy: Method, prepared: P, config: Config, state_dir: Path, metrics: Config
    ) -> Parts | None:
        """Return what predicts rows in one place after a draw that is finished.

        ``config`` is that of the run, ``state_dir`` what its simulated nodes kept, ``metrics`` are
        those of the draw.
        """
        return None

    def why_unpredictable(self, config: Config) -> tuple[str, str] | None:
        """Return why a run's model predicts no rows of a file, and what to do; None if it does."""
        return self.unpredictable if type(self).whole_model is Predicting.whole_model else None

    def fitted(
        self,
        strategy: Method,
        prepared: P,
        config: Config,
        state_dir: Path,
        result: Mapping[str, Any],
    ) -> FittedModel | None:
        """Return the whole model of a draw with this result, if it has one."""
        if self.why_unpredictable(config):
            return None
        found = self.whole_model(strategy, prepared, config, state_dir, result["metrics"])
        if found is None:
            return None
        known = strategy.model()[1].get("calibration") or result.get("held_out", {}).get("fitted")
        return found.with_table(strategy.method, prepared.scaling_json(), config, known or ())

    def predict(
        self,
        folder: Path,
        config: Config,
        data: Any,
        id_column: str | None,
        out: Target,
        client: int | None = None,
        **dialect: Any,
    ) -> tuple[int, int]:
        """Predict the rows of a file with the model of a run; return (predicted, left out).

        Parameters
        ----------
        folder : Path
            Folder of the run.
        config : mapping
            The run's configuration.
        data : Path, or list of several
            Of parties. Rows with the columns of the training data; others are ignored, as is a
            label. Values beyond the training rows' range are clipped to it.
        id_column : str or None
            Column of record ids; by default the run's, if it is there, else row numbers.
        out : callable
            Returns the CSV file that is written: id, then the predicted class and the outputs, or
            the predicted value.
        client : int or None
            Of an online method: whose weights predict, by default the mean of all.
        **dialect
            How the file is written, see :func:`fedkern_flwr.tables.load_table`; what was said of
            the run's table by default.

        Raises
        ------
        OptionError
            The model does not predict new rows.
        TableError
            The file lacks a column of the model, or every row lacks a value.
        CheckpointError
            The folder has no model.
        """
        if why := self.why_unpredictable(config):
            problem, remedy = why
            raise OptionError(
                problem.format(config["method"]), remedy=remedy, code="FK-PREDICT-METHOD"
            )
        model = load_model(folder)
        if model.method != config["method"]:
            raise CheckpointError(
                f"{folder} is a run of {config['method']} with a model of {model.method}",
                remedy="bring back its files",
                code="FK-MODEL-OTHER",
            )
        if client is not None:
            model = model.of_client(client)
        return predict_file(model, data, id_column, out, **dialect)
