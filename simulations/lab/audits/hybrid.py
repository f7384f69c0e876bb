"""FedCG against its server and its parties."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError
from fedkern_flwr.hybrid import messages as wire

from ..attacks.hybrid import HybridRun
from ..attacks.hybrid_insiders import SERVER, Insiders, Matrix
from ..attacks.hybrid_matrix import attack_matrix
from ..attacks.hybrid_rows import gradient_of_others, gram_of_products
from ..attacks.membership import membership_of_folds
from ..attacks.seen import MaskedVector
from .evidence import Sheet, Subject, two_kinds
from .plan import Plan, Recorded, Variant

Floats = NDArray[np.float64]

_NAMES = {
    "trilateration": "trilateration",
    "secret widths": "secret widths",
    "svd": "SVD distances",
    "quadric": "quadric distances",
}
_OTHER_READINGS = ("as fraction", "as doubles")
_OWN = "distances among its own patients"
_EQUATIONS = "equations"


def inspect(run: Recorded, sheet: Sheet) -> None:
    """Attack what the server, a hospital and a centre can write down of the patients."""
    seen = HybridRun(run.transcript, run.watcher)
    by_server = first_of_each(seen.matrices(SERVER))
    attack(seen, by_server, "server", "a party's patients", sheet)
    hospitals = len(seen.hospitals)
    for viewer in range(len(seen.parties)):
        own = first_of_each(seen.matrices(viewer))
        if viewer < hospitals:
            if seen.protocol == "chain":
                attack(seen, own, "hospital", "its patients at centres", sheet, mine=True)
            else:
                attack(seen, own, "hospital", "", sheet, mine=True)
        else:
            others = [m for m in by_server if seen.parties[viewer].block not in m.blocks]
            who = "centre" if own else "centre and server together"
            attack(seen, own or others, who, "patients at other parties", sheet)
    labels(seen, sheet)
    normal_matrices(seen, sheet)
    if seen.protocol == "secure":
        learned_from(seen, sheet)
    if hospitals == 2 and seen.settings.kernel == "rbf":
        gradients(run, seen, sheet)


def first_of_each(matrices: Iterable[Matrix]) -> list[Matrix]:
    """Return the first matrix of each source, hospital and set of blocks; later ones say no more.

    Masked vectors are read as the numbers that they would be without masks.
    """
    found: dict[tuple[str, int, tuple[str, ...], int], Matrix] = {}
    for matrix in matrices:
        key = (matrix.source, matrix.hospital, matrix.blocks, matrix.start)
        if "evaluate" not in matrix.source and not matrix.source.endswith(_OTHER_READINGS):
            found.setdefault(key, matrix)
    return list(found.values())


def attack(
    seen: HybridRun,
    matrices: Iterable[Matrix],
    viewer: str,
    target: str,
    sheet: Sheet,
    *,
    mine: bool = False,
) -> None:
    """Try all attacks on matrices; whoever lacks the landmarks is given them.

    With ``mine`` the viewer is a hospital and the patients are its own, whose distances it may
    know. Where it does not know the landmarks they are not given to it: with them, these distances
    would be the features.
    """
    for matrix in matrices:
        known = matrix.landmarks is not None
        if not known and not mine:
            matrix = replace(matrix, landmarks=true_landmarks(seen, matrix))
        truth = seen.truth(matrix)
        for found in attack_matrix(matrix):
            name = _NAMES[found.attack]
            if found.rows is not None:
                sheet.rows(Subject(name, viewer, f"features of {target}"), found.rows, truth)
            elif mine:
                sheet.distances(Subject(name, viewer, _OWN, True), found.distances, truth)
            else:
                subject = Subject(name, viewer, f"distances of {target}")
                sheet.distances(subject, found.distances, truth)


def true_landmarks(seen: HybridRun, matrix: Matrix) -> Floats:
    """Return the landmarks of a matrix, which its viewer does not have."""
    holders = seen.holders(matrix.hospital)
    return np.hstack([seen.insiders.parties[holders[b]].landmarks for b in matrix.blocks])


def labels(seen: HybridRun, sheet: Sheet) -> None:
    """Tell labels: in plain, by the residual of a chain, or by the first numbers of a mask."""
    subject = Subject("labels", "server", "labels of a hospital's patients")
    scores = dict(_scores(seen))
    for hospital in seen.hospitals:
        kind = two_kinds(seen.targets(hospital)[:, 0])
        guess = scores.get(hospital)
        if guess is not None:
            guess = np.pad(guess[: len(kind)], (0, max(0, len(kind) - len(guess))))
        sheet.order(subject, guess, kind)


def _scores(seen: HybridRun) -> Iterator[tuple[int, Floats]]:
    for passed in seen.messages:
        if isinstance(passed.message, wire.BlocksReply) and passed.message.targets.size:
            yield passed.partition, passed.message.targets[:, 0]
    for hospital, residual in seen.residuals().items():
        yield hospital, -residual[:, 0]
    if seen.protocol == "secure":
        for vector in masked_equations(seen):
            yield vector.partition, vector.read("fixed point")


def masked_equations(seen: HybridRun) -> list[MaskedVector]:
    """Return the masked normal equations, or products, of each hospital."""
    found = {
        vector.partition: vector
        for vector in seen.masked()
        if vector.order.name in (_EQUATIONS, "product") and not vector.delivered
    }
    return [found[h] for h in sorted(found) if h in seen.hospitals]


def normal_matrices(seen: HybridRun, sheet: Sheet) -> None:
    """Compute K_h^T K_h of a single hospital."""
    subject = Subject("normal matrix", "server", "K^T K of one hospital")
    m = seen.settings.landmarks
    upper = np.triu_indices(m)
    for hospital in seen.hospitals:
        kernel = seen.training_kernel(hospital)
        found = normal_matrix(seen, hospital)
        if found is None:
            found = np.full((m, m), np.nan)
        sheet.values(subject, found[upper][:, None], (kernel.T @ kernel)[upper][:, None])


def normal_matrix(seen: HybridRun, hospital: int) -> Floats | None:
    """Return K_h^T K_h of a hospital as the server has it, or what it has in its place."""
    if seen.protocol == "chain":
        directions, products = seen.products(hospital)
        found = gram_of_products(directions, products) if directions.size else None
        if found is None and directions.size:  # what is in the span of the directions
            found = np.asarray(np.linalg.lstsq(directions.T, products.T, rcond=None)[0], np.float64)
        return found
    if seen.protocol == "naive":
        for matrix in seen.matrices(SERVER):
            if matrix.source == "product" and matrix.hospital == hospital:
                kernel = np.exp(-matrix.exponents)[: len(seen.targets(hospital))]
                return np.asarray(kernel.T @ kernel)
        return None
    for vector in masked_equations(seen):
        if vector.partition == hospital and vector.order.name == _EQUATIONS:
            return seen.equations(vector.read("fixed point"))[0]
    return None


def learned_from(seen: HybridRun, sheet: Sheet) -> None:
    """Tell another hospital's training rows from its held-out ones.

    The server has K^T K, of each fold if the width was chosen by folds; to the hospital go the
    kernels of rows whose prediction it asks for.
    """
    subject = Subject(
        "membership", "server and hospital together", "patients that others learned from", True
    )
    trained = {h: seen.training_kernel(h) for h in seen.hospitals}
    folds = {h: seen.folds(h) for h in seen.hospitals}
    parts = [
        [trained[h][folds[h] == f] for h in seen.hospitals]
        for f in range(1 + max(f.max(initial=0) for f in folds.values()))
    ]
    grams = np.array([np.sum([k.T @ k for k in part], axis=0) for part in parts])
    for viewer, other in zip(seen.hospitals, seen.hospitals[1:], strict=False):
        candidates = seen.kernel(other)
        own, familiar = trained[viewer], seen.kernel(viewer)
        found = membership_of_folds(grams, own, folds[viewer], familiar, candidates)
        sheet.order(subject, found, np.arange(len(candidates)) < len(trained[other]))


def gradients(run: Recorded, seen: HybridRun, sheet: Sheet) -> None:
    """Compute what the model of two hospitals tells one of the other's sum."""
    model, subject = run.strategy.coefficients_, "K^T (K a - y) of the other hospital"
    for hospital, other in ((0, 1), (1, 0)):
        found = gradient_of_others(
            seen.training_kernel(hospital),
            seen.targets(hospital),
            model,
            run.strategy.regularization_,
        )
        kernel = seen.training_kernel(other)
        true = kernel.T @ (kernel @ model - seen.targets(other))
        sheet.values(Subject("gradient of the model", "hospital", subject, True), found, true)


_SERVER_HAS_ALL = (
    "SVD distances",
    "labels",
    "normal matrix",
    "quadric distances",
    "secret widths",
    "trilateration",
)


def _complete(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Refuse what the attacks do not know.

    Raises
    ------
    OptionError
    """
    if values["kernel"] != "rbf":
        raise OptionError(
            f"the attacks are on the Gaussian kernel, not on {values['kernel']}",
            remedy="audit with --kernel rbf",
        )
    return values


PLAN = Plan(
    methods=("fed-cg",),
    inspect=inspect,
    variants=(
        Variant("fed-cg"),
        Variant("fed-cg", {"protocol": "naive"}, _SERVER_HAS_ALL),
        Variant("fed-cg", {"protocol": "chain"}, _SERVER_HAS_ALL),
    ),
    defaults={"landmarks": 40, "scaling": "range"},
    why="40 landmarks: more than a block has features, so that every attack can be tried, few "
    "enough that hundreds of masked matrices take seconds.",
    watcher=Insiders,
    complete=_complete,
    hidden=("reconstruction",),
)
