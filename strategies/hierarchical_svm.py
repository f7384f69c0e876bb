"""HierarchicalSVM: linear and kernel classifiers from users in groups, each with an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedkern_flwr.errors import CheckpointError
from fedkern_flwr.fitted import FittedModel
from fedkern_flwr.groups.consensus import Floats
from fedkern_flwr.groups.gradients import GRADIENT_SUM, ITERATIONS
from fedkern_flwr.method import PrivateMethod, Round, Rounds
from fedkern_flwr.model_file import check_made_with, check_model
from fedkern_flwr.nodes import Arrays, logger
from fedkern_flwr.options import at_least, declared
from fedkern_flwr.progress import part
from fedkern_flwr.reporting import iterations_ended
from fedkern_flwr.wire import DescribeReply

from .hierarchical_loop import GroupRounds
from .hierarchical_options import MORE_ROUNDS
from .hierarchical_private import PrivateRounds
from .hierarchical_rows import shapes_of
from .hierarchical_vertical import ColumnRounds

_RESIDUALS = ("primal", "dual")
_VERTICAL = "the split is vertical"
#: Options that determine who predicts, and the attributes that hold them.
_OF_MODELS = {"partition": "partition", "model": "kind"}
_SIZES = "who belongs to which group, with how many rows and columns"
_DECLARED = (
    "what each user declares: bound of its labels; digests of the names of columns and classes; "
    "the fewest rows of its own and of all in a fold"
)


class HierarchicalSVM(GroupRounds, PrivateRounds, ColumnRounds):
    """HierarchicalSVM: linear and kernel classifiers from users in groups, each with an agent.

    Minimises 1/2 |w|^2 + C sum_n loss(y_n, w^T x_n + b) over the rows of all users. In a horizontal
    split by consensus ADMM in two layers, see :mod:`fedkern_flwr.groups.consensus`: users solve
    their part of the problem, agents open the sums of their groups and nobody else does, the server
    makes the global model from the agents' masked sum. Without agents the server makes it from the
    masked sum of all users. Both take an exchange an iteration. A vertical split takes two, by
    :mod:`fedkern_flwr.solvers.dual_subspace`.

    Flower's ``initial_arrays`` are not used: ADMM starts at zero. ``num_rounds`` (200) are its most
    iterations, fewer where the nodes' release limits allow fewer. The result has the weights and
    biases of a horizontal split.

    Parameters
    ----------
    **options
        See :class:`~fedkern_flwr.strategies.hierarchical_options.SVMOptions`.

    Attributes
    ----------
    groups_ : tuple of Group
        Who belongs to which group.
    row_plan_ : RowPlan
        Of vertical splits: which rows belong together.
    trace_ : list of (float, int, ndarray)
        Seconds since the start, iterations of the slowest group and global model, for each of the
        agents' totals.
    coefficients_ : ndarray, shape (k, d + 1)
        The model in the coordinates of the run.
    outputs_, classes_, label_bound_
        What the labels are.
    predicting : str
        Of predictions: session of the run that made the model.

    References
    ----------
    Jia, Guo and Fang, "Efficient Privacy-Preserving Machine Learning in Hierarchical Distributed
    System", IEEE TNSE 2019.
    """

    # -- what a method tells about itself

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the model for columns as they are; in a vertical split its parts stay behind."""
        meta = {
            **self.options(),
            "C": self.C_,
            "columns": self.columns_,
            "features": self.frequencies,
            "gamma": self.chosen_gamma,
            "feature_seed": self.run_seed,
            "outputs": self.outputs_,
            "classes": self.classes_,
            "session": self.predicting or self.session,
            "tables": self._tables(),
            "calibration": self.calibration_numbers(),
        }
        return dict(self.model_), meta

    def fitted(self, classes: Sequence[Any] = ()) -> FittedModel:
        """Return the model of a horizontal split, for columns as nodes hold them."""
        if self.partition == "vertical":
            found: FittedModel = super().fitted(classes)  # which says why not
            return found
        return FittedModel.of_server(self.method, "linear", *self.model(), classes or self.classes_)

    def _tables(self) -> dict[str, list[Any]]:
        """Return names and number of the columns of each group, and what the labels are."""
        tables: dict[str, list[Any]] = {}
        for group in self.groups_:
            first = self.party_of(group.users[0])
            number = str(group.number) if self.partition == "vertical" else "all"
            tables.setdefault(number, [first.columns, first.features])
        if labelled := next((p for p in self.described_parties() if p.outputs), None):
            tables["labels"] = [labelled.labels, labelled.label_bound]
        return tables

    def privacy(self) -> dict[str, Any]:
        """Return what is seen by whom."""
        sums = self.sums_privacy()
        cohorts = sums.get("cohorts", [])
        agents = self.lost_groups == "leave-out"  # whose sum may lack some
        for cohort in cohorts[: len(cohorts) - agents]:
            cohort["threshold"] = cohort.pop("parties")
            cohort["parties"] = cohort["threshold"]
            del cohort["shares_to_open"]
        if self.predicting:
            return _predictions_seen_by(self.partition, sums)
        found = {**sums, **self._seen_by(), **self.budget_report()}
        for one in found["budget"]["releases"] if "budget" in found else ():
            if one["release"] == GRADIENT_SUM:  # one of so many
                one["times"] = self.num_rounds
        return found

    def _seen_by(self) -> dict[str, Any]:
        """Return what server, agents and users see."""
        if self.partition == "vertical":
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
        if self.budget is not None:
            return {
                "server_sees": [
                    "sums of all users' gradients with noise, see budget",
                    "outcomes on the held-out rows of all users together, with noise",
                    _SIZES,
                    _DECLARED,
                ],
                "user_sees": ["the model of each iteration"],
            }
        of_rbf = " and of the random features" if self.kind == "rbf" else ""
        statistics = f"means and variances of the columns{of_rbf} over all users"
        server = [
            "the global model of each iteration",
            "the total loss of each class",
            statistics,
            "outcomes on the held-out rows of all users together",
            _SIZES,
            _DECLARED,
        ]
        if self.C is None:
            server.append("models of each C that is tried and each fold, and losses on the folds")
        if self.class_weight:
            server.append("how many rows of each class all users have together")
        if not self.layers:
            return {
                "server_sees": server,
                "user_sees": ["the global model of each iteration", statistics],
            }
        found = {
            "server_sees": server,
            "agent_sees": [
                "sum of its users' models with their duals, of their losses and of their "
                "distances: sums of gradients, which late in a run may be those of single rows",
                "the global model of each iteration",
            ],
            "user_sees": [
                "its group's and the global model of each iteration: its group's sum of gradients",
                statistics,
            ],
        }
        if self.lost_groups == "leave-out":
            server.append("about what the term of a group was that is left out, by difference")
        if self.staleness:
            server.append("how the terms of the groups change that advance together, two at least")
        return found

    def matched(self) -> dict[str, Any]:
        """Return who is in which group, and how many rows were left out."""
        groups = {
            str(group.number): {"users": list(group.users), "agent": group.agent}
            for group in self.groups_
        }
        dropped = self.row_plan_.dropped
        return {"groups": groups, "dropped_rows": dropped} if dropped else {"groups": groups}

    def summary(self) -> None:
        """Log the configuration, and what it gives away."""
        if self.predicting:
            return
        if self.lost_groups == "leave-out":
            logger.warning(
                "lost_groups leave-out shows the server about what a lost group had contributed"
            )
        super().summary()

    # -- a run

    def begin(self, config: ConfigRecord | None = None) -> None:
        """Forget the last run; take the seed of the next."""
        super().begin(config)
        at_least("seed", self.run_seed, 0)

    def start(self, *arguments: Any, **named: Any) -> Result:
        """Run the method; with a budget in fewer iterations, unless it is told how many."""
        if self.budget is not None and len(arguments) < 3 and named.get("num_rounds") is None:
            named["num_rounds"] = ITERATIONS
        return super().start(*arguments, **named)

    def rounds(self, parties: Sequence[DescribeReply]) -> Rounds:
        """Fit the model and judge it on held-out rows."""
        known = self.saved_meta_
        if self.partition == "vertical":
            self.plan_iterations()
        elif self.budget is None:
            self.take_sizes(known["trials"]) if known else self.plan_sizes()
        self.planned = self.num_rounds
        if known:
            if known["nodes"] != self.nodes_digest():
                raise CheckpointError(
                    f"the nodes are not those of the run of {self.checkpoint}",
                    remedy="bring back the nodes and tables of that run, or start anew",
                    code="FK-CHECKPOINT-PARTIES",
                )
            self.step, self.last_saved = int(self.kept_ or 0), int(known["done"])
        yield Round(0)  # progress is that of iterations
        if self.partition == "vertical":
            self.tuned_ = (
                {} if self.C is not None else {"C": 1.0, "by": "nothing", "why": _VERTICAL}
            )
            with part("train"):
                return dict((yield from self.column_rounds()))
        if self.budget is not None:
            with part("train"):
                found = yield from self.private_rounds()
            with part("judge"):
                judged = yield from self.judge_with_noise(found.model)
            self._take_model(found.model)
            return {**judged, **iterations_ended(self.num_rounds, True, "", MORE_ROUNDS)}
        if not known:
            self.plan_trials(self.shape_[1])
            yield from self.measure_columns()
        with part("train"):
            found = yield from self.group_rounds() if self.layers else self.central_rounds()
        last = self.history_[-1]["round"] if self.history_ else 0
        lost = {user for g in self.groups_ if g.number in found.lost for user in g.users}
        model = found.model
        with part("judge"):
            judged = yield from self.judge_left(model, lost) if lost else self.judge(model)
        self._take_model(model)
        left_out = {"groups_left_out": len(found.lost)} if found.lost else {}
        row = self.history_[-1] if self.history_ else {}
        apart = ", ".join(f"{name} residual {row[name]:.1e}" for name in _RESIDUALS if name in row)
        ended = self.note_end(last, converged=found.converged, apart=apart)
        return {**judged, **ended, **left_out}

    def _take_model(self, model: Floats) -> None:
        weights, bias = self.coordinates.model(model)
        self.coefficients_ = model
        self.model_ = {"weights": weights, "bias": bias, **self.raw_arrays()}

    # -- predictions with a model that was saved

    def predict_at_nodes(
        self,
        grid: Grid,
        arrays: Mapping[str, NDArray[Any]],
        meta: Mapping[str, Any],
        *,
        timeout: float = 3600,
    ) -> None:
        """Have held-out rows predicted with a model that was saved.

        Users of a horizontal split get the model and predict their own rows. In a vertical split
        agents and label owner take up their parts of the model, which they kept; the label owner
        gets the outputs of its rows. Nothing but their number is sent to the server.

        Parameters
        ----------
        grid : Grid
            Flower's grid, of any engine.
        arrays : mapping
            Arrays of the model, see :meth:`model`.
        meta : mapping
            What else belongs to the model.
        timeout : float (default: 3600)
            Seconds to wait for the replies of one exchange.

        Raises
        ------
        CheckpointError
            The model is not one of this method, of these options or of these nodes.
        CohortError, ProtocolError, TableError, OptionError
            See :meth:`start`.
        """
        check_model(self.method, arrays, meta, shapes_of(meta))
        own = {name: getattr(self, held) for name, held in _OF_MODELS.items()}
        check_made_with(type(self), own, meta)
        self.begin()
        self.predicting = str(meta["session"])
        self.run_seed, self.model_ = int(meta["seed"]), dict(arrays)

        def rounds(parties: Sequence[DescribeReply]) -> Rounds:
            if meta["tables"] != self._tables():
                raise CheckpointError(
                    "the nodes have other columns, groups or classes than the model was made with",
                    remedy="bring back the tables and groups of that run",
                    code="FK-MODEL-PARTIES",
                )
            if self.partition == "vertical":
                samples = yield from self.predict_columns(
                    self.predicting, meta.get("calibration", ())
                )
            else:
                samples = yield from self.predict_at_users(arrays, meta)
            return {"predicted_rows": samples}

        self.conduct(grid, rounds, timeout=timeout)

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> HierarchicalSVM:
        """Return a strategy with the options of a model that was saved.

        Raises
        ------
        CheckpointError
            It is not a model of this method.
        """
        numbers = ("outputs", "columns", "features", "gamma", "seed", "feature_seed")
        check_model(cls.method, {}, meta, {}, (*_OF_MODELS, *numbers, "session", "tables"))
        chosen = {name: meta[name] for name in _OF_MODELS}
        if meta.get("architecture") == "centralised":  # whatever groups the nodes name
            chosen["architecture"] = "centralised"
        if meta.get("privacy_epsilon") is not None:
            chosen |= {n: meta[n] for n in ("C", *declared(PrivateMethod)) if n in meta}
        if meta["model"] == "rbf":
            chosen |= {"features": meta["features"], "gamma": meta["gamma"]}
        return cls(**chosen, **more)


def _predictions_seen_by(partition: str, sums: dict[str, Any]) -> dict[str, Any]:
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
