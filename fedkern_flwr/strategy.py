"""What all strategies share: nodes, exchanges, failures, checkpoints, Flower's interface."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from .errors import CheckpointError, CohortError, FedKernError, OptionError, RefusedError
from .exchange import Outcome, exchange
from .failure import Failure, count_failures
from .flower_compat import is_simulated
from .gather import gather_nodes
from .ledger import Ledger
from .options import Declared, UnknownOptionError, at_least, unknown_option
from .privacy import Budget
from .watch import Watch
from .wire import DescribeReply, check_parties
from .wire.describe import called

logger = logging.getLogger("fedkern_flwr")

Arrays = dict[str, NDArray[Any]]
Progress = Callable[[int, int, Mapping[str, float]], None]
_REFUSED = "RefusedError: "
#: Seconds for which nodes are awaited by default.
NODE_TIMEOUT = 120.0
_PATIENCE = Declared(NODE_TIMEOUT, above=0.0, name="node_timeout", type=float)
#: Errors after which a run goes on from its checkpoint, whatever a node advises that knows of none.
_RESUMED = ("FK-STATE-GONE", "FK-SUM-KEY-NONE", "FK-MESSAGE-SESSION", "FK-PARTIES-LOST")


class PhaseStrategy(Strategy):
    """Base class of the strategies: a run is a sequence of exchanges, one per phase.

    Parameters
    ----------
    seed : int, optional
        Seed of everything public and random. By default the run's seed
        (``train_config["seed"]``), else 0.
    min_clients : int (default: 1)
        The run stops, with its checkpoint, when fewer clients answer a round.
    max_missed : int (default: 10)
        A client that misses so many rounds in a row is left out of the rest of the run.
    node_timeout : float (default: 120.0)
        Seconds to wait for the nodes at the start, and for one that is away later.
    checkpoint : path, optional
        File for checkpoints; none are written without it.
    checkpoint_every : int (default: 50)
        Rounds from one checkpoint to the next.
    resume : bool (default: False)
        Go on from the checkpoint instead of starting anew.

    Raises
    ------
    OptionError
        An option cannot be used, or there is none of that name.

    Attributes
    ----------
    ledger_ : Ledger
        Exchanges, bytes, seconds and failures of the last run.
    parties_ : dict
        Node id -> description, sorted by partition.
    history_ : list of dict
        Metrics per round.
    metrics_ : dict
        Metrics of the finished run.
    left_out_ : list of int
        Partitions left out for missing too many rounds.
    stage : {"new", "running", "over", "failed"}
        How far the last run is; a model is of a run that goes on or is over.
    order_seed : int
        Seed of the order in which clients announce rows, -1 for one of the session.
    on_round : callable or None
        Called after each round with (rounds done, rounds in all, metrics of the round).
    figures : path or None
        In deployments: file for figures of the run, for Prometheus.
    watch : Watch or None
        In deployments: who is awaited, in the run at hand.
    """

    method: ClassVar[str] = ""
    title: ClassVar[str] = ""
    #: Options of base classes that this method fixes.
    fixed: ClassVar[frozenset[str]] = frozenset()
    #: Whether a simulated run leaves a model that predicts rows in one place.
    left_whole: ClassVar[bool] = False
    budget: Budget | None = None  # what a run may cost in privacy
    #: How its clients describe themselves.
    described: ClassVar[type[DescribeReply]] = DescribeReply

    def __new__(cls, *unnamed: Any, **options: Any) -> Self:
        """Refuse options without a name."""
        if unnamed:
            raise UnknownOptionError(
                f"{cls.__name__} takes options by name only",
                remedy="write name=value for each",
                code="FK-OPTION-NAME",
            )
        return super().__new__(cls)

    def __init__(
        self,
        *,
        seed: int | None = None,
        min_clients: int = 1,
        max_missed: int = 10,
        node_timeout: float = NODE_TIMEOUT,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 50,
        resume: bool = False,
        **unknown: Any,
    ) -> None:
        for name in unknown:
            raise unknown_option(type(self), name)
        at_least("min_clients", min_clients, 1)
        at_least("max_missed", max_missed, 1)
        at_least("checkpoint_every", checkpoint_every, 1)
        if resume and checkpoint is None:
            raise OptionError(
                "resume without a checkpoint",
                remedy="name the checkpoint file",
                code="FK-OPTION-PARTNER",
            )
        self.seed = seed
        self.min_clients = min_clients
        self.max_missed = max_missed
        self.node_timeout = _PATIENCE.check(node_timeout)
        self.checkpoint = Path(checkpoint) if checkpoint is not None else None
        self.checkpoint_every = checkpoint_every
        self.resume = resume
        self.on_round: Progress | None = None
        self.figures: str | Path | None = None
        self._reset()

    def _reset(self) -> None:
        self.ledger_ = Ledger()
        self.watch: Watch | None = None
        self.parties_: dict[int, DescribeReply] = {}
        self.history_: list[dict[str, Any]] = []
        self.metrics_: dict[str, Any] = {}
        self.left_out_: list[int] = []
        self._session = secrets.token_hex(8)
        self._nonces: dict[str, str] = {}  # of a run that is resumed
        self.order_seed = -1
        self._missed: dict[int, int] = {}
        self._last_missed: dict[int, int] = {}
        self.resumable = False  # whether this run has a checkpoint
        self.stage: Literal["new", "running", "over", "failed"] = "new"

    # -- what a method tells about itself

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model; a checkpoint must have the same."""
        return {"method": self.method}

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees, for the run's privacy ledger."""
        return {}

    def model(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the model of the last run as arrays and a JSON object.

        Raises
        ------
        OptionError
            There was no run, or it failed.
        """
        self.check_run()
        return self.learned()

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        """Return what :meth:`model` returns, of a run that goes on or is over."""
        return {}, {}

    def fitted(self, classes: Sequence[Any] = ()) -> Any:
        """Return the model of the last run, which predicts rows here, if the server has all of it.

        Parameters
        ----------
        classes : sequence (default: ())
            What the nodes call the classes, ascending; by default 0, 1, ...

        Returns
        -------
        ~fedkern_flwr.fitted.FittedModel
            Of features and labels as nodes hold them.

        Raises
        ------
        OptionError
            Parts of it stay with the parties, or there was no run.
        """
        ways = ["predict_at_nodes(grid, ...)"] * hasattr(self, "predict_at_nodes")
        ways += ["load_model of the folder of a simulated run"] * self.left_whole
        raise OptionError(
            f"parts of a model of {self.method} stay with the parties, the server cannot predict",
            remedy=f"use {', or '.join(ways)}" if ways else "see docs/predict.md for what nodes do",
            code="FK-MODEL-PARTS",
        )

    def predict(self, rows: Any) -> NDArray[Any]:
        """Return the class or the number of each row, see :meth:`fitted`."""
        return np.asarray(self.fitted().predict(rows))

    def predict_proba(self, rows: Any) -> NDArray[np.float64]:
        """Return the probability of each class, see :meth:`fitted`."""
        return np.asarray(self.fitted().predict_proba(rows))

    def check_run(self) -> None:
        """Refuse to give a model before a run, and after one that failed.

        Raises
        ------
        OptionError
        """
        if self.stage == "failed":
            raise OptionError(
                f"the last run of {self.method} failed and left no model",
                remedy="do what its error says, then start again or resume it",
                code="FK-MODEL-FAILED",
            )
        if self.stage == "new":
            raise OptionError(
                f"there is no model of {self.method} yet",
                remedy="start a run first",
                code="FK-MODEL-NONE",
            )

    def result(self) -> dict[str, Any]:
        """Return the result of the last run as plain values: figures, costs, who saw what."""
        ledger = self.ledger_
        found = {
            "method": self.method,
            "metrics": dict(self.metrics_),
            "history": list(self.history_),
            "exchanges": ledger.exchanges,
            "bytes_up": ledger.bytes_up,
            "bytes_down": ledger.bytes_down,
            "seconds": ledger.seconds,
            "survivors": len(self.active_nodes()),
            "failures": ledger.failures,
            "privacy": self.privacy(),
        }
        matched = self.matched()
        return {**found, "matched": matched} if matched else found

    def matched(self) -> dict[str, Any]:
        """Return whose rows were matched, in methods that match rows."""
        return {}

    def summary(self) -> None:
        """Log the configuration."""
        for name, value in self.options().items():
            logger.info("%s: %s", name, value)

    # -- exchanges

    def check_parties(self, parties: Sequence[Any]) -> None:
        """Refuse parties that do not fit together, of the class ``described``.

        Raises
        ------
        PartitionError, ProtocolError
        """
        check_parties(parties)

    def gather(self, grid: Grid, *, resume_round: int = 0, secure: bool = False) -> None:
        """Wait for the nodes, ask who they are; with ``secure`` they send keys for secure sums."""
        if not is_simulated(grid):
            figures = Path(self.figures) if self.figures else None
            self.watch = Watch(self.node_timeout, self.party, self.ledger_, figures)
        self.parties_ = gather_nodes(
            grid,
            session=self._session,
            method=self.method,
            resume_round=resume_round,
            min_clients=self.min_clients,
            timeout=self.node_timeout,
            ledger=self.ledger_,
            secure=secure,
            order_seed=self.order_seed,
            privacy="" if self.budget is None else self.budget.write(),
            nonces=self._nonces,
            reply=self.described,
            check=self.check_parties,
            watch=self.watch,
            say=logger.info if self.watch is None else self.watch.say,
            warn=logger.warning,
        )
        self._nonces = {str(p.partition): p.nonce for p in self.parties_.values()}
        for party in self.parties_.values():
            if not party.restored and party.partition not in self.left_out_:
                raise CheckpointError(
                    f"no private state saved for round {resume_round}",
                    remedy="give the client the state_dir of the run that broke off",
                    party=party.called,
                    phase="describe",
                    code="FK-STATE-GONE",
                )

    def active_nodes(self) -> list[int]:
        """Return the ids of the nodes that take part, by partition."""
        left_out = set(self.left_out_)
        return [n for n, party in self.parties_.items() if party.partition not in left_out]

    def party(self, node: int) -> str:
        """Return a node's name in messages, such as ``north (partition 0)``."""
        known = self.parties_.get(node)
        return f"node {node}" if known is None else known.called

    def called(self, partition: int) -> str:
        """Return the name of a party in messages."""
        names = {party.partition: party.called for party in self.parties_.values()}
        return names.get(partition, called(partition))

    def run_phase(
        self,
        grid: Grid,
        messages: Iterable[Message],
        *,
        phase: str,
        timeout: float,
        number: int,
        required: int | None = None,
        enough: Callable[[], bool] | None = None,
        idle: Iterable[int] = (),
        awaits: bool = True,
    ) -> Outcome:
        """Exchange messages; count who failed, leave out who fails too often.

        ``required`` is the least number of answers, by default ``min_clients``. Sections of secure
        sums are taken out of the replies as they arrive. In a deployment nodes that are away are
        awaited, unless it ``awaits`` nobody.

        Raises
        ------
        CohortError
            Fewer answered than required.
        RefusedError
            A node refuses an order before anything was summed.
        """
        outcome = exchange(
            grid,
            list(messages),
            phase=phase,
            timeout=timeout,
            ledger=self.ledger_,
            on_reply=self.on_reply(),
            enough=enough,
            idle=idle,
            watch=self.watch,
            awaits=awaits,
        )
        for node, failure in sorted(outcome.failures.items()):
            self.reject(node, failure, number)
            if failure.detail.startswith(_REFUSED) and not self.summed:
                told = failure.detail.removeprefix(_REFUSED)
                raise RefusedError(told, phase=phase, code="")  # that of the node
            if not outcome.replies:
                failure.raise_foreign(self.method, phase)
        self.require(len(outcome.replies), number, phase, outcome.failures, required)
        return outcome

    @property
    def summed(self) -> bool:
        """Whether a secure sum of this run has been opened."""
        return False

    def note_untold(self) -> None:
        """Say why there are no figures of held-out rows, though there are rows."""
        if any(party.test_rows for party in self.parties_.values()):
            logger.warning("nodes keep figures of held-out rows to themselves, by their policies")

    def on_reply(self) -> Callable[[int, Message], None] | None:
        """Return what is called with (node, reply) as a reply arrives; nothing by default."""
        return None

    def require(
        self,
        answers: int,
        number: int,
        phase: str,
        failures: Mapping[int, Failure] | None = None,
        required: int | None = None,
    ) -> None:
        """Stop the run when fewer than ``required`` (``min_clients``) gave a proper answer.

        Raises
        ------
        CohortError
        """
        least = self.min_clients if required is None else required
        if answers >= least:
            return
        raise self.broken(
            f"{answers} of {len(self.parties_)} clients answered round {number}, at least "
            f"{least} must{count_failures(failures)}",
            phase,
        )

    def broken(self, problem: str, phase: str) -> CohortError:
        """Return the error with which a run ends for want of clients."""
        remedy = "mend the clients and start again"
        if self.resumable:
            remedy = "mend the clients and resume from the checkpoint"
        return CohortError(problem, remedy=remedy, phase=phase, code="FK-PARTIES-LOST")

    def resumed(self, error: FedKernError) -> FedKernError:
        """Return the error with which a run ends; where a checkpoint helps, it says to resume."""
        if not self.resumable or error.code not in _RESUMED or "resume" in str(error):
            return error
        return type(error)(
            error.problem.partition("; ")[0],  # a node advises behind that to start again
            remedy="mend it and resume from the checkpoint",
            party=error.party,
            phase=error.phase,
            code=error.code,
        )

    def accept(self, node: int) -> None:
        """Note that a client gave a proper answer."""
        self._missed[self.parties_[node].partition] = 0

    def in_order(self, outcome: Outcome) -> list[Message]:
        """Return the replies sorted by partition, so that sums are reproducible."""
        return [outcome.replies[node] for node in self.parties_ if node in outcome.replies]

    def reject(self, node: int, failure: Failure, number: int) -> None:
        """Count that a client gave none, or one that could not be used."""
        partition = self.parties_[node].partition
        self.ledger_.add_failure(partition, str(failure))
        once = self._last_missed.get(partition) != number  # a round may have several exchanges
        missed = self._missed.get(partition, 0) + once
        self._missed[partition], self._last_missed[partition] = missed, number
        logger.info("%s, round %d: %s", self.party(node), number, failure)
        if missed >= self.max_missed and partition not in self.left_out_:
            self.left_out_.append(partition)
            logger.warning("%s is left out after %d rounds", self.party(node), missed)

    # -- checkpoints

    def progress(self) -> dict[str, Any]:
        """Return what a resumed run must know of the one that broke off."""
        return {
            "options": self.options(),
            "session": self._session,
            "nonces": self._nonces,
            "ledger": self.ledger_.to_dict(),
            "history": list(self.history_),
            "missed": {str(k): v for k, v in self._missed.items()},
            "left_out": list(self.left_out_),
        }

    def go_on(self, progress: Mapping[str, Any]) -> None:
        """Take up a run that broke off, before the nodes are gathered."""
        self.resumable = True
        self._session, self._nonces = progress["session"], progress.get("nonces", {})
        self.ledger_ = Ledger.from_dict(progress["ledger"])
        self.history_ = progress["history"]
        self._missed = {int(k): v for k, v in progress["missed"].items()}
        self.left_out_ = progress["left_out"]

    # -- Flower's rounds of training and evaluation: none unless a method has them

    def configure_train(self, *args: Any, **options: Any) -> Iterable[Message]:
        """Return no messages: the exchanges of this method are not rounds of training."""
        return []

    def aggregate_train(
        self, *args: Any, **options: Any
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return nothing: the exchanges of this method are not rounds of training."""
        return None, None

    def configure_evaluate(self, *args: Any, **options: Any) -> Iterable[Message]:
        """Return no messages: this method has no evaluation of its own."""
        return []

    def aggregate_evaluate(self, *args: Any, **options: Any) -> MetricRecord | None:
        """Return nothing: this method has no evaluation of its own."""
        return None
