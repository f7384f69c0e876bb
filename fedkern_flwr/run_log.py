"""Write checkpoints, so that an interrupted run can continue.

A checkpoint has the state that the method saved last, and all answers since then: the generator
gets these again, without an exchange. Methods that are ``confirmed`` log no answers; their
checkpoint waits until all clients have saved their state of the same round.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import __version__
from .checkpoint import VERSION, load_arrays, other_release, save_arrays
from .errors import CheckpointError
from .exchange import Save
from .nodes import Arrays, Nodes, logger
from .options import take_out
from .secure_sum import RunningSum
from .transport import Outcome

if TYPE_CHECKING:
    from .run import Program, RunRules


_PATIENCE = 30  # checkpoints that one may wait to be confirmed; clients keep a few more states

Answered = tuple[str, dict[str, Any]]  # name of the request, answers


class RunLog:
    """The checkpoints of a run, and the numbers of its exchanges.

    ``number`` is that of the current exchange; clients refuse one that they have answered.
    ``asked`` is the last exchange of which clients have a state. ``again`` are parties in a sum
    that was being opened at the interruption. ``replay`` are answers from before it, which are not
    requested again.
    """

    def __init__(self, program: Program, rules: RunRules, nodes: Nodes) -> None:
        self.program, self.rules, self.nodes = program, rules, nodes
        self.number = self.asked = 0
        self.again: list[int] = []
        self.replay: list[Answered] = []
        self._since: list[Answered] | None = []  # the last Save; None if it cannot be repeated
        self._written: tuple[Arrays, dict[str, Any]] = {}, {}  # the last checkpoint
        self._pending: tuple[int, Arrays, dict[str, Any], set[int]] | None = None
        self._unwritten = False  # whether the last checkpoint could not be written

    # -- going on

    def restore(self) -> tuple[Arrays, dict[str, Any]] | None:
        """Load the checkpoint of a run to resume.

        Raises
        ------
        CheckpointError
            It is missing, damaged, of another version or of a run with other options.
        """
        file = self.rules.checkpoint
        if not self.rules.resume or file is None:
            return None
        arrays, meta = load_arrays(file)
        if "options" in meta and meta.get("version") != VERSION:
            raise other_release(file, meta)
        made, own = meta.get("options"), self.program.options()
        if isinstance(made, dict):
            values = made != own  # or they are those of this strategy
            made = take_out(self.rules.method, made, known=own, values=values, level=logging.INFO)
        if made != own:
            raise CheckpointError(
                f"{file} belongs to a run with other options", code="FK-CHECKPOINT-OTHER"
            )
        self.nodes.go_on(meta)
        self.program.go_on(meta)
        return arrays, meta

    @staticmethod
    def round_of(restored: tuple[Arrays, dict[str, Any]] | None) -> int:
        """Return the round from which clients continue, 0 in a new run."""
        if restored is None:
            return 0
        kept = restored[1].get("kept")
        return int(restored[1]["round"] if kept is None else kept)

    def take_up(self, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        """Continue from a checkpoint.

        Raises
        ------
        CheckpointError
            The run was interrupted while a sum was opened. If it were repeated with other
            survivors, the difference of the sums would reveal single clients.
        """
        program, sums = self.program, self.nodes.sums
        if self.rules.confirmed:
            self.number = meta["round"]
            program.saved_, program.saved_meta_ = dict(arrays), dict(meta)
            if sums is not None:
                sums.go_on(meta["sums"])
            return
        opening, parties = meta.get("opening") or {}, self.nodes.parties.values()
        opened = max((party.opened for party in parties), default=0)
        if self.rules.opens_once:
            program.spent_ = {p.partition for p in parties if p.answered > int(meta["number"])}
            opened = 0
        self.again = list(opening.get("among", ()))
        known = opening["asked"] if self.again else int(meta["round"])
        if (opened > known and not self.rules.reopens) or meta["log"] is None:
            raise CheckpointError(
                "the run broke off while a sum was being opened, and it may not be summed again",
                code="FK-CHECKPOINT-OPENED",
            )
        answered = max((party.answered for party in parties), default=0)
        self.number, self.asked = max(int(meta["number"]), answered), int(meta["round"])
        program.saved_ = {k[2:]: v for k, v in arrays.items() if k.startswith("s/")}
        program.saved_meta_, program.kept_ = dict(meta["saved"]), meta["kept"]
        self.replay = [
            (name, {**{key: arrays[f"l/{i}/{key}"] for key in named}, **plain})
            for i, (name, named, plain) in enumerate(meta["log"])
        ]
        if sums is not None and meta["sums"]:
            sums.go_on(meta["sums"])

    def known(self, name: object) -> dict[str, Any]:
        """Return the next logged answer.

        Raises
        ------
        CheckpointError
            It belongs to another request.
        """
        known, value = self.replay.pop(0)
        if known != name:
            raise CheckpointError(
                "the checkpoint is one of another release of the method",
                remedy="start the run anew",
                code="FK-CHECKPOINT-VERSION",
            )
        if self._since is not None:
            self._since.append((known, value))
        return value

    # -- writing

    def note(self, name: str, value: dict[str, Any]) -> None:
        if self._since is not None:
            self._since.append((name, value))
            self._write()

    def lose(self) -> None:
        """Note that an answer was not logged, so that a ``Save`` is needed."""
        self._since = None

    def save(self, step: Save, outcome: Outcome) -> None:
        if self.rules.confirmed:
            sums = {} if self.nodes.sums is None else {"sums": self.nodes.sums.progress()}
            self._keep(dict(step.arrays), {**step.meta, **sums})
            self._confirm(outcome)
            return
        program = self.program
        program.saved_, program.saved_meta_ = dict(step.arrays), dict(step.meta)
        program.kept_ = step.kept
        self._since = []
        self._write()

    def mark(self, sums: Sequence[RunningSum]) -> None:
        """Note in the checkpoint whose sums are about to be opened: they may not be over others."""
        rules = self.rules
        if rules.checkpoint is None or rules.confirmed or rules.opens_once:
            return
        arrays, meta = self._written
        if not meta:
            meta = {"round": 0, "log": [], "saved": {}, "kept": None, "sums": {}, "number": 0}
        among = sorted({p for one in sums for p in one.uploaded})
        marked = {**meta, "opening": {"among": among, "asked": self.asked}}
        if self._since is None or len(sums) > 1:  # it cannot be repeated unchanged
            marked["log"] = None
        self._put(arrays, {**self._shared(), **marked})

    def _write(self) -> None:
        """Write the whole checkpoint again, atomically.

        Ledger, history and masks change with every entry. A method with a long log yields ``Save``,
        which empties it.
        """
        program, sums = self.program, self.nodes.sums
        if self.rules.checkpoint is None or self._since is None or self.replay:
            return
        arrays: Arrays = {f"s/{name}": value for name, value in program.saved_.items()}
        log = []
        for i, (name, value) in enumerate(self._since):
            own = {k: v for k, v in value.items() if isinstance(v, np.ndarray)}
            arrays |= {f"l/{i}/{key}": array for key, array in own.items()}
            log.append([name, [*own], {k: v for k, v in value.items() if k not in own}])
        meta = {
            "round": self.asked,
            "log": log,
            "saved": program.saved_meta_,
            "kept": program.kept_,
            "sums": sums.progress() if sums is not None else {},
            "number": self.number,
        }
        self._written = arrays, meta
        self._put(arrays, {**self._shared(), **meta})

    def _keep(self, arrays: Arrays, meta: dict[str, Any]) -> None:
        """Copy the state after the last exchange if a checkpoint is due.

        One is due every ``checkpoint_every`` rounds and after the last of ``planned``. The clients
        save their state in the same round. The copy is written when every client has answered that
        round or a later one, because only then can all return to it.
        """
        number, every = self.asked, self.rules.checkpoint_every
        last = number >= self.program.planned
        if self.rules.checkpoint is None or not (last or number % every == 0):
            return
        if self._pending and not last:
            if number - self._pending[0] < _PATIENCE * every:
                return
            logger.warning("checkpoint of round %d given up: not confirmed", self._pending[0])
        waiting = set(self.nodes.partitions())
        arrays = {name: array.copy() for name, array in arrays.items()}
        self._pending = (number, arrays, {**self._shared(), "round": number, **meta}, waiting)

    def _confirm(self, outcome: Outcome) -> None:
        if self._pending is None:
            return
        number, arrays, meta, waiting = self._pending
        waiting -= {self.nodes.parties[node].partition for node in outcome.replies}
        waiting -= set(self.nodes.left_out)
        if not waiting:
            self._put(arrays, meta)
            logger.info("checkpoint of round %d written", number)
            self._pending = None

    def _shared(self) -> dict[str, Any]:
        found = {**self.nodes.progress(), **self.program.progress()}
        options = self.program.options()
        return {"version": VERSION, "fedkern_flwr": __version__, "options": options, **found}

    def _put(self, arrays: Arrays, meta: dict[str, Any]) -> None:
        """Write the checkpoint; if that fails the run continues without one.

        An earlier checkpoint must then be deleted, because it does not know which sums are opened
        from now on.
        """
        file = self.rules.checkpoint
        assert file is not None
        try:
            save_arrays(file, arrays, meta)
            self._unwritten = False
        except OSError as error:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
            told = "%s cannot be written (%s): the run goes on, it cannot be resumed for now [%s]"
            if not self._unwritten:
                logger.warning(told, f"the checkpoint {file}", error.strerror, "FK-FILE-WRITE")
            self._unwritten = True
        self.nodes.resumable = not self._unwritten
