"""Known attacks against epsilon: what they recover without noise, and with a budget.

``FEDKERN_DATA=FOLDER python benchmarks/private_attacks.py [DRAWS]`` prints three tables and draws
``docs/images/privacy-attacks.png``.

* What can be proven of epsilon: ``fedkern audit epsilon`` with DRAWS releases, the interval of each
  row for itself.
* Attacks on what FedCG releases of breast cancer, from 100 features and four hospitals: the loss of
  the model on a row, of those learned from and of those held out (Yeom et al., 2018), with a model
  of 100 rows and of seven tenths; and the smallest eigenvalue of the matrix without a row, for
  whoever knows all rows but ten (``definiteness``). The exact sum is made in one place, noise of
  the library is added to it. Of ten splits and five draws: of a row that was learned from and one
  that was not, how much oftener the first looks more like it than the second.
* The joint inversion of sums of POF-MKL, whole gradients of one sample of each of ten clients, with
  noise for errors that are clipped to one: share of rows returned with a tenth of the effort of an
  audit, and how often the row behind the sum is told from nine others.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from private_accuracy import DELTA, FEATURES, HOSPITALS, LEAST_LAMBDA, load
from scipy.stats import norm

from fedkern_flwr.hybrid import fourier
from fedkern_flwr.privacy import Budget, NoisySum, plan_release, skellam
from fedkern_flwr.simulations import Transcript, simulate
from fedkern_flwr.simulations.lab.attacks.joint_inversion import Release, invert_release
from fedkern_flwr.simulations.lab.attacks.likelihood_ratio import shift_of_epsilon
from fedkern_flwr.simulations.lab.attacks.membership import area_under_curve, definiteness
from fedkern_flwr.simulations.lab.attacks.sum_membership import sum_membership
from fedkern_flwr.simulations.lab.attacks.transcripts import observe
from fedkern_flwr.simulations.lab.audits.budget_cases import CASES
from fedkern_flwr.simulations.lab.audits.budgets import Audited, audit_epsilon
from fedkern_flwr.simulations.lab.audits.released_sums import keep_sums, release_of, returned
from fedkern_flwr.simulations.methods.online_data import DataSettings, prepare
from fedkern_flwr.solvers.equations import pack_equations, unpack_equations
from fedkern_flwr.solvers.least_squares import solve_equations
from fedkern_flwr.strategies import POFMKL

EPSILONS = (math.inf, 8.0, 3.0, 1.0)
SPLITS, REPEATS, UNKNOWN = 10, 5, 10
CLIENTS, ROUNDS, LEAST = 10, 5, 7  # of the online run; how many of its clients open a sum
CHOICES, EFFORT = 10, 2e10
PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "privacy-attacks.png"
LOSSES = {100: "loss, 100 rows", 0: "loss, 478 rows"}
DEFINITE = f"definiteness, all rows known but {UNKNOWN}"


def noise(planned: NoisySum, parties: int, size: int) -> np.ndarray:
    """Return the noise of so many parties."""
    drawn = sum(skellam(planned.variance, size) for _ in range(parties))
    return np.asarray(drawn * 2.0**-planned.fraction)


def apart(members: np.ndarray, others: np.ndarray) -> float:
    """Return how much oftener a member has the higher score than the lower one."""
    return 2.0 * area_under_curve(members, others) - 1.0


def of_fed_cg() -> dict[tuple[str, float], float]:
    """Return (attack, epsilon) -> advantage."""
    x, y = load("breast_cancer_original")
    found: dict[tuple[str, float], list[float]] = defaultdict(list)
    for seed in range(SPLITS):
        rng = np.random.default_rng(seed)
        drawn = fourier.draw_block(
            rng.bytes(32), FEATURES // 2, x.shape[1], "rbf", 3.0 / x.shape[1]
        )
        z = fourier.features(fourier.block_phases(x, drawn))
        order = rng.permutation(len(x))
        for rows, name in LOSSES.items():
            count = rows or (7 * len(x)) // 10
            train, others = order[:count], order[count:]
            right = z[train].T @ y[train, None] * fourier.label_weight(1.0, 1)
            sums = pack_equations(z[train].T @ z[train], right)
            hidden, decoys = train[:UNKNOWN], others[:UNKNOWN]
            known = z[train[UNKNOWN:]].T @ z[train[UNKNOWN:]]
            for epsilon in EPSILONS:
                for _ in range(1 if math.isinf(epsilon) else REPEATS):
                    released, deviation = sums, 0.0
                    if math.isfinite(epsilon):
                        planned = fourier.equations_release(
                            Budget(epsilon, DELTA),
                            features=FEATURES,
                            outputs=1,
                            bound=1.0,
                            rows=[count // HOSPITALS] * HOSPITALS,
                        ).noise
                        deviation = planned.deviation(HOSPITALS)
                        released = sums + noise(planned, HOSPITALS, sums.size)
                    gram, products = unpack_equations(released, FEATURES, 1)
                    if rows == 0:
                        inside, outside = (
                            definiteness(gram - known, z[c]) for c in (hidden, decoys)
                        )
                        found[DEFINITE, epsilon].append(apart(inside, outside))
                    model = fitted(gram, products, deviation)
                    losses = (z @ model - y) ** 2
                    found[name, epsilon].append(apart(-losses[train], -losses[others]))
    return {key: float(np.mean(values)) for key, values in found.items()}


def fitted(gram: np.ndarray, products: np.ndarray, deviation: float) -> np.ndarray:
    """Return the model of FedCG."""
    penalty = LEAST_LAMBDA
    if deviation:
        gram, penalty = fourier.regularize(gram, penalty, deviation)
    return np.asarray(solve_equations(gram, products / fourier.label_weight(1.0, 1), penalty))[:, 0]


def online_sums() -> tuple[list[tuple[Release, np.ndarray]], np.ndarray]:
    """Return the sums of a run of POF-MKL with the rows behind them, and other rows."""
    streams = prepare(DataSettings("nyc-weather", clients=CLIENTS, rounds=ROUNDS + 20))
    strategy = POFMKL(
        secure=True, seed=0, samples_per_round=1, frequencies_per_round="all", kernels_per_round=51
    )
    released: list[Any] = []
    transcript = Transcript()
    keep_sums(strategy, released)
    simulate(strategy, streams.clients, CLIENTS, transcript=transcript, num_rounds=ROUNDS)
    requests = {seen.round: seen.request for seen in observe(transcript)}
    shards, found = streams.clients.shards, []
    for number, total in released:
        asked = requests[number]
        true = np.array([np.append(s.x[asked.step], s.y[asked.step]) for s in shards])
        found.append((release_of(asked, total, CLIENTS, true.shape[1] - 1), true))
    others = [np.column_stack([s.x[ROUNDS:], s.y[ROUNDS:]]) for s in shards]
    return found, np.concatenate(others)


def of_pof_mkl() -> dict[float, tuple[float, float]]:
    """Return epsilon -> share of rows returned, and of rows that are told from nine others."""
    sums, others = online_sums()
    rng, found = np.random.default_rng(0), {}
    for epsilon in EPSILONS:
        shares, told = [], []
        for release, true in sums:
            noisy = release
            if math.isfinite(epsilon):
                planned = plan_release(
                    "gradients",
                    Budget(epsilon, DELTA),
                    sensitivity=4.0 * math.sqrt(len(release.theta)) * release.scale,
                    length=release.total.size,
                    parties=CLIENTS,
                    least=LEAST,
                ).noise
                more = noise(planned, CLIENTS, release.total.size).reshape(release.total.shape)
                noisy = replace(release, total=release.total + more)
            labels = np.append(np.zeros(true.shape[1] - 1), 0.5 - release.middle)
            solved = invert_release(noisy, 0, budget=EFFORT)
            computed = np.column_stack([solved.x, solved.y]) + labels
            shares.append(returned(computed, true).mean())
            familiar, decoys = np.array_split(rng.permutation(others), 2)
            of_true, of_decoys = (
                sum_membership(noisy, familiar - labels, rows - labels) for rows in (true, decoys)
            )
            for score in of_true:
                told.append(score > rng.choice(of_decoys, CHOICES - 1, replace=False).max())
        found[epsilon] = float(np.mean(shares)), float(np.mean(told))
    return found


def draw(audits: list[Audited], attacks: dict[str, list[float]], best: list[float]) -> None:
    """Draw what attacks reach over epsilon, and what is proven over what is declared."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.0))
    places = range(len(EPSILONS))
    left.plot(places[1:], best[1:], "k--", label="best test, worst record: the bound")
    for name, values in attacks.items():
        left.plot(places, values, "o-", label=name)
    names = ["none" if math.isinf(e) else f"{e:g}" for e in EPSILONS]
    left.set_xticks(places, names)
    left.set(xlabel="epsilon", ylabel="told apart, or share of rows returned", ylim=(-0.05, 1.05))
    left.legend(frameon=False, fontsize=8)
    most = 1.1 * max(a.epsilon for a in audits)
    right.plot([0, most], [0, most], "k--", label="declared")
    for k, case in enumerate(CASES):
        own = [a for a in audits if a.case is case]
        declared = [a.epsilon for a in own]
        right.plot(declared, [a.gaussian for a in own], "o-", color=f"C{k}", label=case.title)
        right.plot(declared, [a.proven for a in own], "o:", color=f"C{k}", mfc="none")
    right.set(xlabel="epsilon declared", ylabel="epsilon proven, 95 %", xlim=(0, most))
    right.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    """Print the tables, draw the picture."""
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    audits = [audit_epsilon(case, e, draws=draws) for case in CASES for e in EPSILONS[:0:-1]]
    print(
        "| sum | declared | at most provable | proven | proven if normal |\n|---|---|---|---|---|"
    )
    for a in audits:
        bounds = f"{a.epsilon:g} | {a.reached:.2f} | {a.proven:.2f} | {a.gaussian:.2f}"
        print(f"| {a.case.title} | {bounds} |", flush=True)
    print("\n| attack | none | eps 8 | eps 3 | eps 1 |\n|---|---|---|---|---|")
    shifts = [shift_of_epsilon(audits[k].reached, DELTA) for k in range(len(EPSILONS) - 1)]
    best = [1.0, *(float(2.0 * norm.cdf(mu / math.sqrt(2.0)) - 1.0) for mu in reversed(shifts))]
    online = of_pof_mkl()
    found = of_fed_cg()
    attacks = {name: [found[name, e] for e in EPSILONS] for name in (*LOSSES.values(), DEFINITE)}
    attacks["joint inversion, rows returned"] = [online[e][0] for e in EPSILONS]
    shown = {"best test, worst record": best, **attacks}
    shown["row behind a sum, one of ten"] = [online[e][1] for e in EPSILONS]
    for name, values in shown.items():
        print(f"| {name} | {' | '.join(f'{value:.2f}' for value in values)} |")
    draw(audits, attacks, best)


if __name__ == "__main__":
    main()
