"""FDSKL one-shot: the active party gets the phases of all rows at once and trains alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedkern_flwr.phase_training import MULTIPLES, REGULARIZATIONS
from fedkern_flwr.wire import vertical as wire

from .fdskl_steps import Steps
from .vertical_base import LostStateError, Need

if TYPE_CHECKING:
    from .fdskl import FDSKL

_EXCHANGES = 4  # describe, phases, training, farewell


def train_once(run: FDSKL, steps: Steps, restored: tuple[Any, dict[str, Any]] | None) -> None:
    """Collect the phases, have the active party train, note what it chose and how good it is.

    Raises
    ------
    CohortError
        Somebody did not answer, ``attempts`` times in a row.
    """
    owner, run.capacity = run.plan_.actives[0], run.features
    run.upto_ = {owner: run.features}
    if restored and restored[1]["stage"] == "trained":
        run.metrics_, run.multiple_ = restored[1]["metrics"], int(restored[1]["multiple"])
        run.regularization_ = float(run.metrics_["regularization"])
        return
    need = Need(np.arange(run.plan_.total), run.upto_)
    run.first_step = run.first_step or run.step + 1
    _say(run, 1)
    steps.advance(need, save_as=run.first_step)
    run.save("begun", run.first_step)
    _say(run, 2)
    reply = _train(run, steps, owner, need)
    run.multiple_, run.regularization_ = reply.multiple, reply.regularization
    factor = reply.multiple if run.kernel == "laplacian" else reply.multiple**2
    run.metrics_ = {"gamma": run.gamma_ * factor, "regularization": reply.regularization}
    if reply.score >= 0.0:
        run.metrics_["validation_score"] = reply.score
    found = steps.metrics([reply.counts])
    run.metrics_ |= found
    if found:
        run.history_.append({"round": 1, **found})
    run.save("trained", run.first_step, metrics=run.metrics_, multiple=run.multiple_)
    _say(run, 3)


def _train(run: FDSKL, steps: Steps, owner: int, need: Need) -> wire.TrainReply:
    plan = run.plan_
    train, test = plan.train[owner], plan.test[owner]
    for _ in range(run.attempts):
        run.next_step()
        request = wire.TrainRequest(
            **run.step_fields(owner, run.first_step),
            loss=run.chosen_loss,
            seed=run.run_seed,
            count=run.counting,
            multiples=np.array(MULTIPLES if run.gamma is None else (1,), np.int32),
            regularizations=np.array(
                REGULARIZATIONS if run.regularization is None else (run.regularization,)
            ),
            rows=run.positions(owner, np.arange(train.start, train.stop)),
            tests=run.positions(owner, np.arange(test.start, test.stop)),
        )
        try:
            replies = run.ask_parties(steps.grid, {owner: request}, wire.TrainReply, steps.timeout)
        except LostStateError:
            run.forget_phases()
            steps.advance(need, save_as=run.first_step)
            continue
        if owner in replies:
            reply: wire.TrainReply = replies[owner]
            return reply
    raise run.gave_up(wire.TrainReply.phase)


def _say(run: FDSKL, done: int) -> None:
    if run.on_round is not None:
        run.on_round(done, _EXCHANGES, {})
