"""FDSKL streaming: doubly stochastic gradients, an iteration per exchange.

The exchange that brings the active parties the phases of one batch asks for those of the next.
With several active parties f is summed over them in between: an iteration then begins two exchanges
before it ends, and they overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .fdskl_steps import Steps
from .vertical_base import Need

if TYPE_CHECKING:
    from .fdskl import FDSKL


def iterate(
    run: FDSKL, steps: Steps, rounds: int, restored: tuple[Any, dict[str, Any]] | None
) -> None:
    """Run the iterations from where the checkpoint stands; evaluate on the way where asked to.

    Raises
    ------
    CohortError
        Somebody did not answer, ``attempts`` times in a row.
    """
    run.capacity = max(steps.upto(rounds).values())
    done = 0
    if restored:
        done = int(restored[1]["iteration"])
        run.metrics_ = restored[1]["metrics"]
        run.upto_, run.evaluated = steps.upto(done), np.array(restored[1]["evaluated"])
        run.regularization_ = run.chosen_regularization
    while done < rounds:
        kept = run.checkpoint_every if run.checkpoint is not None else None
        last = min(_next(done, kept), _next(done, run.evaluate_every), rounds)
        judged = last == rounds or (run.evaluate_every and not last % run.evaluate_every)
        tested = Need(steps.test_rows(), steps.upto(last)) if judged else None
        if not run.plan_.test_rows:
            tested = None
        _iterate(run, steps, done, last, rounds, tested)
        done = last
        run.upto_ = steps.upto(done)
        if judged:
            _judge(run, steps, done)
        evaluated = run.evaluated.tolist()
        state = {"iteration": done, "metrics": run.metrics_, "evaluated": evaluated}
        run.save("iterating", run.first_step, **state)


def _spent(run: FDSKL) -> NDArray[np.float64]:
    """Return the seconds and uploaded bytes of the run so far."""
    return np.array([run.ledger_.seconds, run.ledger_.bytes_up])


def _next(done: int, every: int | None) -> int:
    return done + every - done % every if every else 1 << 62


def _iterate(
    run: FDSKL, steps: Steps, done: int, last: int, rounds: int, tested: Need | None
) -> None:
    """Run iterations done + 1 to last; at the end the parties keep their state.

    The exchange that ends the last one may ask for the phases of the held-out rows.
    """
    lag = 1 if len(run.leaders) == 1 else 2
    for t in range(done + 1, last + lag + 1):
        finish = t - lag if t - lag > done else 0
        score = t - 1 if lag == 2 and done < t - 1 <= last else 0
        need, saving = None, t == last + lag
        if t <= last:
            need = steps.need(t, t)
        before = _spent(run)
        if saving:
            need = tested
        keeping = saving and (last == rounds or run.checkpoint is not None)
        if keeping:
            run.first_step = run.step + 1

        def again(first: int = max(t - lag, done + 1), newest: int = min(t - 1, last)) -> Need:
            return steps.need(first, newest)

        steps.advance(
            need,
            finish=finish,
            score=score,
            save_as=run.first_step if keeping else 0,
            again=again if t > done + 1 else None,
        )
        if saving and tested is not None:
            run.evaluated += _spent(run) - before
        if finish and run.on_round is not None:
            run.on_round(finish, rounds, {})


def _judge(run: FDSKL, steps: Steps, done: int) -> None:
    """Let the active parties predict their held-out rows; enter the metrics in the history."""
    run.regularization_ = run.chosen_regularization
    run.metrics_ = {"gamma": run.gamma_, "regularization": run.chosen_regularization}
    if not run.plan_.test_rows:
        return
    before = _spent(run)
    found = steps.judge(run.upto_)
    run.evaluated += _spent(run) - before
    run.metrics_ |= found
    if found:
        seconds, bytes_up = (_spent(run) - run.evaluated).tolist()
        error = found.get("test_rmse", 1.0 - found.get("test_accuracy", 1.0))
        spent = {"bytes_up": int(bytes_up), "seconds": seconds}
        run.history_.append({"round": done, **found, "test_error": error, **spent})
