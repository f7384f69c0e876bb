"""FedCG against everybody who takes part: what naive and chain give away, what secure leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attacked import KEY, UNIFORM, X, Y, p_uniform
from flwr.app import ConfigRecord, Context
from flwr.clientapp import ClientApp
from scipy.spatial.distance import cdist
from scipy.stats import ks_2samp, spearmanr

from fedkern_flwr.alignment import hash_ids
from fedkern_flwr.clients import HybridKernelClient
from fedkern_flwr.clients.fed_cg_paper import label_noise
from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.landmarks import (
    array_fingerprint,
    draw_landmarks,
    moment_sums,
    public_seed,
)
from fedkern_flwr.simulations import Fault, FaultPlan, InProcessGrid, Transcript
from fedkern_flwr.simulations.engines import FaultyGrid, RecordingGrid
from fedkern_flwr.simulations.engines.direct import as_client
from fedkern_flwr.simulations.lab.attacks.distances import distances_by_svd
from fedkern_flwr.simulations.lab.attacks.errors import relative_error
from fedkern_flwr.simulations.lab.attacks.hybrid import HybridRun
from fedkern_flwr.simulations.lab.attacks.hybrid_insiders import SERVER, Insiders, Matrix
from fedkern_flwr.simulations.lab.attacks.hybrid_matrix import Finding, Score, attack_matrix, score
from fedkern_flwr.simulations.lab.attacks.hybrid_rows import (
    gradient_of_others,
    gram_of_products,
    labels_of_residual,
    match_columns,
    row_of_gradient,
    rows_along_spread,
    rows_in_box,
)
from fedkern_flwr.simulations.lab.attacks.seen import MaskedVector
from fedkern_flwr.simulations.lab.attacks.trilateration import trilaterate
from fedkern_flwr.solvers.equations import pack_equations, unpack_equations
from fedkern_flwr.strategies import FedCG

EXACT = 1e-6  # relative error of an attack that succeeds
GUESS = 0.9  # of one that fails: relative to somebody who guesses the mean
NORMALS = 6.0
LANDMARKS = 20
COLUMNS = {"clinical": [0, 1], "genes": [4, 5, 9], "images": [8, 14], "texture": [21, 24]}
COLUMNS |= {"spread": [27, 16, 14], "shape": [7, 4], "single": [14]}
ALL_ATTACKS = {"trilateration", "secret widths", "svd", "quadric"}


PLAIN = {"sampling": "U", "tune": "off"}


@dataclass
class Clinic:
    """Hospitals with their own block, centres with a block each, rows matched by ids.

    ``patients`` are those of each hospital. ``seeded``: landmarks are the same in every run.
    ``unknown`` are left out at a centre, ``single`` are the partitions with allow_single, ``of``
    has more options of a partition's client.
    """

    patients: Sequence[np.ndarray]
    centres: Sequence[str] = ("genes", "images")
    seeded: bool = False
    held_out: float = 0.25
    protocol: str = "secure"
    single: Sequence[int] = ()
    unknown: dict[str, np.ndarray] = field(default_factory=dict)
    of: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def parties(self) -> int:
        return len(self.patients) + len(self.centres)

    def client_fn(self, context: Context) -> HybridKernelClient:
        k = int(context.node_config["partition-id"])
        block = "clinical"
        if k >= len(self.patients):
            block = self.centres[k - len(self.patients)]
        options: dict[str, Any] = {"alignment_key": KEY, "protocol": self.protocol, "block": block}
        if self.seeded:
            options["landmark_seed"] = public_seed(9, block)
        options |= {"allow_single": k in self.single, **self.of.get(k, {})}
        if k >= len(self.patients):
            known = np.setdiff1d(np.concatenate(self.patients), self.unknown.get(block, ()))
            ids = np.random.default_rng(k).permutation(known)
            return HybridKernelClient(context, features(ids, block), ids=ids, **options)
        ids = self.patients[k] if "ids_test" not in options else self.patients[k][:0]
        train, test = np.split(ids, [len(ids) - int(len(ids) * self.held_out)])
        options = {"classes": (0, 1), "ids": train, **options}
        if len(test):
            options |= {"x_test": features(test, block), "y_test": Y[test], "ids_test": test}
        return HybridKernelClient(context, features(train, block), Y[train], **options)


def features(patients: np.ndarray, block: str) -> np.ndarray:
    return X[np.ix_(patients, COLUMNS[block])]


def clinic(*sizes: int, **options: Any) -> Clinic:
    """Hospitals of these sizes."""
    order = np.random.default_rng(0).permutation(len(X))
    return Clinic(np.split(order[: sum(sizes)], np.cumsum(sizes)[:-1]), **options)


@dataclass
class Recorded:
    strategy: FedCG
    seen: HybridRun


def run(
    where: Clinic,
    strategy: FedCG,
    *,
    faults: Any = None,
    start: Callable[[Any], None] | None = None,
) -> Recorded:
    """Run a strategy; the server keeps all that reaches it, what comes late included."""
    insiders, transcript = Insiders(), Transcript()
    served = insiders.watch(where.client_fn)
    nodes = InProcessGrid(ClientApp(client_fn=lambda c: as_client(served(c))), where.parties)
    grid: Any = RecordingGrid(nodes, transcript)
    if faults is not None:
        grid = FaultyGrid(grid, faults)
    if start is None:
        strategy.start(grid, train_config=ConfigRecord({"seed": 0}))
    else:
        start(grid)
    return Recorded(strategy, HybridRun(transcript, insiders))


def fit(where: Clinic, faults: Any = None, **options: Any) -> Recorded:
    given = {"landmarks": 40, "gamma": 0.5, "protocol": where.protocol, **PLAIN, **options}
    return run(where, FedCG(**given), faults=faults)


def true_landmarks(seen: HybridRun, matrix: Matrix) -> np.ndarray:
    """Landmarks that a viewer of the secure protocol does not have."""
    holders = seen.holders(matrix.hospital)
    return np.hstack([seen.insiders.parties[holders[b]].landmarks for b in matrix.blocks])


def scores(seen: HybridRun, matrices: Iterable[Matrix]) -> Iterator[tuple[Matrix, Finding, Score]]:
    for matrix in matrices:
        for found in attack_matrix(matrix):
            yield matrix, found, score(found, seen.truth(matrix))


def assert_exact(seen: HybridRun, matrices: Sequence[Matrix], attacks: set[str]) -> None:
    """Every attack on every matrix is right, and the viewer knows that it is."""
    tried = set()
    for matrix, found, how in scores(seen, matrices):
        assert how.error < EXACT, (matrix.source, found.attack)
        assert how.correlation > 1.0 - EXACT, (matrix.source, found.attack)
        assert found.consistent, (matrix.source, found.attack)
        tried.add(found.attack)
    assert tried == attacks


# -- naive: the server has everything


@pytest.mark.parametrize("landmark_gamma", [False, True])
def test_naive_gives_the_server_every_feature_of_every_row(landmark_gamma: bool) -> None:
    """By trilateration; without landmarks or widths still all distances."""
    seen = fit(clinic(130, 130, 130, protocol="naive"), landmark_gamma=landmark_gamma).seen
    assert len(seen.settings.gammas) == (40 if landmark_gamma else 1)
    matrices = list(seen.matrices(SERVER))
    blocks = {(m.blocks, m.hospital) for m in matrices if m.source == "kernel block"}
    assert blocks == {((b,), h) for b in ("clinical", "genes", "images") for h in range(3)}
    products = [m for m in matrices if m.source == "product"]
    assert [m.blocks for m in products] == [("genes", "images", "clinical")] * 3
    assert_exact(seen, matrices, ALL_ATTACKS)


def test_naive_gives_the_server_all_labels_and_the_parties_nothing() -> None:
    seen = fit(clinic(60, 60, protocol="naive")).seen
    replies = [p for p in seen.messages if isinstance(p.message, wire.BlocksReply)]
    plain = {p.partition: p.message.targets for p in replies if p.message.targets.size}
    assert set(plain) == {0, 1}
    for hospital, targets in plain.items():
        np.testing.assert_array_equal(targets, seen.targets(hospital))
    for party in range(4):
        assert not list(seen.matrices(party))


def test_as_many_landmarks_as_features_give_no_features() -> None:
    """Negative control of the attacks: the server knows, too, that it has only a guess."""
    seen = fit(clinic(60, 60, protocol="naive"), landmarks=7).seen
    products = [m for m in seen.matrices(SERVER) if m.source == "product"]
    found = list(scores(seen, products))
    assert {f.attack for _, f, _ in found} == {"svd", "quadric"}
    assert not any(f.consistent for _, f, _ in found)
    assert min(how.error for *_, how in found) > 1e-3


# -- chain: all parties have each other's features, the server K^T K of each hospital and labels


def first_of_each(matrices: Iterable[Matrix]) -> list[Matrix]:
    """The first matrix of each source and hospital; the later ones say the same."""
    return list({(m.source, m.hospital): m for m in reversed(list(matrices))}.values())


@pytest.fixture(scope="module")
def chain() -> HybridRun:
    return fit(clinic(130, 130, 130, protocol="chain"), landmarks=10, gamma=2.0).seen


@pytest.mark.parametrize("hospital", [0, 1, 2])
def test_chain_gives_a_hospital_its_patients_features_at_all_centres(
    chain: HybridRun, hospital: int
) -> None:
    found = first_of_each(chain.matrices(hospital))
    sources = ["forth, product", "forth, evaluate"]
    assert {(m.source, m.blocks) for m in found} == {(s, ("genes", "images")) for s in sources}
    assert {m.hospital for m in found} == {hospital}
    assert_exact(chain, found, ALL_ATTACKS)


def test_chain_gives_a_centre_the_features_at_those_before_it(chain: HybridRun) -> None:
    found = [m for m in first_of_each(chain.matrices(4)) if m.source.startswith("forth")]
    assert {(m.blocks, m.hospital) for m in found} == {(("genes",), h) for h in range(3)}
    assert_exact(chain, found, ALL_ATTACKS)


@pytest.mark.parametrize(("centre", "blocks"), [(3, ("images", "clinical")), (4, ("clinical",))])
def test_chain_gives_a_centre_the_features_at_those_after_it(
    chain: HybridRun, centre: int, blocks: tuple[str, ...]
) -> None:
    """On the way back rows come times unknown numbers, which trilateration takes away.

    So nobody is better off for standing first in the chain.
    """
    found = [m for m in first_of_each(chain.matrices(centre)) if m.source.startswith("back")]
    assert {m.source for m in found} == {"back, start", "back, product"}
    assert {(m.blocks, m.hospital) for m in found} == {(blocks, h) for h in range(3)}
    assert_exact(chain, found, {"trilateration"})


def test_chain_gives_the_server_the_normal_matrix_of_each_hospital(chain: HybridRun) -> None:
    for hospital in range(3):
        directions, products = chain.products(hospital)
        kernel = chain.training_kernel(hospital)
        found = gram_of_products(directions, products)
        assert found is not None
        assert relative_error(found, kernel.T @ kernel) < EXACT
        assert gram_of_products(directions[:, :9], products[:, :9]) is None


def test_chain_gives_the_server_all_labels(chain: HybridRun) -> None:
    """The seed of the noise is public; without it U(0, 1) - y is below 1/2 just where y is 1."""
    residuals = chain.residuals()
    assert set(residuals) == {0, 1, 2}
    for hospital, residual in residuals.items():
        targets = chain.targets(hospital)
        assert (labels_of_residual(residual) == targets).all()
        noise = label_noise(chain.settings.public_seed, hospital, len(residual))
        np.testing.assert_allclose(labels_of_residual(residual, noise), targets, atol=1e-12)
        wrong = label_noise(chain.settings.public_seed + 1, hospital, len(residual))
        assert np.abs(labels_of_residual(residual, wrong) - targets).mean() > 0.2


def test_chain_seals_what_the_server_passes_on(chain: HybridRun) -> None:
    matrices = list(islice(chain.matrices(SERVER), 3))
    assert {m.source for m in matrices} == {"sealed hop"}
    for _, found, how in scores(chain, matrices):
        assert not found.consistent
        assert how.error > GUESS


def test_chain_gives_the_server_the_features_of_a_hospitals_only_patient() -> None:
    """K_h^T K_h p is then the patient's row of the kernel times a number."""
    where = clinic(80, 1, protocol="chain", held_out=0.0)
    seen = fit(where, landmarks=10, gamma=2.0).seen
    _, products = seen.products(1)
    blocks = list(seen.holders(1))
    landmarks = seen.public_landmarks(blocks)
    assert landmarks is not None
    nothing = np.zeros((10, 1))
    x, _, known = row_of_gradient(products[:, :1], landmarks, seen.settings.gammas, nothing)
    assert known
    np.testing.assert_allclose(x, seen.rows(1, blocks)[0], atol=1e-9)


# -- secure: the server


@pytest.fixture(scope="module")
def secure() -> HybridRun:
    return fit(clinic(130, 130, 100), landmarks=LANDMARKS).seen


@pytest.fixture(scope="module")
def again() -> HybridRun:
    """Another run over the same patients."""
    return fit(clinic(130, 130, 100)).seen


@pytest.fixture(scope="module")
def late() -> HybridRun:
    """A run in which a reply came late, and was asked for again."""
    faults = FaultPlan([(1, "hybrid-equations", 3, Fault("vanished"))])
    return fit(clinic(130, 130, 100), faults).seen


class Noise(HybridRun):
    """The same run with fresh random numbers in the place of every masked vector."""

    def masked(self) -> Iterator[MaskedVector]:
        rng = np.random.default_rng(1)
        for vector in super().masked():
            ring = rng.integers(0, 2**64, vector.ring.shape, np.uint64)
            yield replace(vector, ring=ring)


class Bare(HybridRun):
    """The same run with all distances encoded, but under no mask."""

    def masked(self) -> Iterator[MaskedVector]:
        for vector in super().masked():
            kind, _, rest = vector.order.name.partition("/")
            if kind != "distances":
                continue
            hospital = int(rest.split("#")[0])
            holders = self.holders(hospital)
            blocks = [b for b, p in holders.items() if p != hospital]
            if not vector.delivered and vector.partition != hospital:
                blocks = [self.parties[vector.partition].block]
            ring = np.zeros_like(vector.ring)
            for block in blocks:
                landmarks = self.insiders.parties[holders[block]].landmarks
                own = cdist(self.rows(hospital, [block]), landmarks, "sqeuclidean").ravel()
                ring += vector.encoding.encode(own, len(vector.members), name="bare")
            yield replace(vector, ring=ring)


def of_one(seen: HybridRun) -> list[Matrix]:
    """What the server can make of the masks of a hospital's rows.

    Besides, it is given the true landmarks, which it does not have.
    """
    matrices = [m for m in seen.matrices(SERVER) if m.hospital == 0]
    assert len(matrices) == 12  # three uploads and a total, each read in three ways
    return [replace(m, landmarks=true_landmarks(seen, m)) for m in matrices]


def test_masked_distances_tell_the_server_no_more_than_random_numbers(secure: HybridRun) -> None:
    noise = Noise(secure.transcript, secure.insiders)
    found: dict[tuple[bool, str], list[Score]] = {}
    for seen in (secure, noise):
        for matrix, finding, how in scores(seen, of_one(seen)):
            assert not finding.consistent, (matrix.source, finding.attack)
            assert how.error > GUESS, (matrix.source, finding.attack)
            found.setdefault((seen is secure, finding.attack), []).append(how)
    for attack in ALL_ATTACKS:
        masked, random = ([*found[which, attack]] for which in (True, False))
        correlations = np.array([s.correlation for s in masked])
        assert abs(correlations.mean()) < 0.1
        assert np.abs(correlations).max() < 0.5
        assert ks_2samp(correlations, [s.correlation for s in random]).pvalue > 1e-6
        assert ks_2samp([s.error for s in masked], [s.error for s in random]).pvalue > 1e-6


def test_without_masks_the_same_vectors_give_everything_away(secure: HybridRun) -> None:
    """Positive control: it is the mask that protects, neither the layout nor the fixed point."""
    bare = Bare(secure.transcript, secure.insiders)
    matrices = [m for m in of_one(bare) if m.source.endswith("fixed point")]
    assert len(matrices) == 4
    assert_exact(bare, matrices, ALL_ATTACKS)


def test_a_transcript_without_the_uploads_is_refused() -> None:
    """Otherwise an audit would find nothing and say so."""
    done = fit(clinic(40, 40), landmarks=5).seen
    for way, message in done.transcript._messages:
        scalars = next(iter(message.content.config_records.values()))
        if way == "up" and scalars["phase"] == "hybrid-distances":
            del scalars["sections"]
            next(iter(message.content.array_records.values())).clear()
    with pytest.raises(ProtocolError, match="a reply without its masked vectors"):
        list(HybridRun(done.transcript, done.insiders).masked())
    with pytest.raises(ProtocolError, match="holds no run of FedCG"):
        HybridRun(Transcript(), Insiders())


def test_the_server_opens_sums_over_the_hospitals_and_nothing_else(secure: HybridRun) -> None:
    """K^T K and K^T y of all rows together, exactly; counts and histograms on held-out rows."""
    totals = {vector.order.name: total for vector, total in secure.opened()}
    assert set(totals) == {"equations", "outcomes"}
    kernels = [secure.training_kernel(h) for h in range(3)]
    targets = [secure.targets(h) for h in range(3)]
    own = [pack_equations(k.T @ k, k.T @ y) for k, y in zip(kernels, targets, strict=True)]
    np.testing.assert_allclose(totals["equations"], np.sum(own, axis=0), rtol=1e-10)
    matrix, histograms = totals["outcomes"][:4], totals["outcomes"][4:]
    assert matrix.sum() == histograms.sum() == 32 + 32 + 25
    assert len(histograms) == 4 * 32 <= 2 * 89
    for vector in secure.masked():
        if vector.order.name == "equations":
            for bare in own:
                seen = np.corrcoef(vector.read("fixed point"), bare)[0, 1]
                assert abs(seen) < NORMALS / np.sqrt(len(bare))


@pytest.mark.parametrize("tune", ["folds", "gcv"])
def test_where_the_width_is_chosen_the_server_opens_sums_of_each_and_a_mean(tune: str) -> None:
    """Documented: of each width and fold, over all hospitals, and the mean distance."""
    policy = NodePolicy.of_simulations(allow_small_sums=True)
    where = clinic(60, 50, of={k: {"policy": policy} for k in range(4)})
    found = fit(where, tune=tune, gamma=None)
    seen, tuned = found.seen, found.strategy.tuned_
    totals = {vector.order.name: total for vector, total in seen.opened()}
    assert set(totals) == {"mean distance", "equations", "outcomes"}
    assert totals["mean distance"].shape == (1,)
    assert len(totals["equations"]) == tuned["numbers"]
    assert len(tuned["gammas"]) > 1
    kernels = [seen.training_kernel(h) for h in range(2)]
    gram = np.sum([k.T @ k for k in kernels], axis=0)
    np.testing.assert_allclose(seen.equations(totals["equations"])[0], gram, rtol=1e-9)
    for vector in seen.masked():
        if vector.order.name == "equations":
            own = kernels[vector.partition].T @ kernels[vector.partition]
            shown = seen.equations(vector.read("fixed point"))[0]
            assert abs(np.corrcoef(shown.ravel(), own.ravel())[0, 1]) < 0.2


def test_counts_of_one_hospitals_held_out_rows_are_not_asked_for() -> None:
    """The others' zeros would not hide them: which patients a model fails is a hospital's own."""
    seen = fit(clinic(60, 3, 3)).seen  # a quarter of three is none
    assert [p.test_rows for p in seen.parties.values()] == [15, 0, 0, 0, 0]
    assert {vector.order.name for vector, _ in seen.opened()} == {"equations"}
    assert not any(v.order.name == "outcomes" for v in seen.masked())


def test_the_sum_of_normal_matrices_gives_the_server_no_row(secure: HybridRun) -> None:
    """K^T K fixes K but for a rotation of its rows: roots of it trilaterate to no patient.

    Not even with the landmarks, which the server has not.
    """
    total = next(t for v, t in secure.opened() if v.order.name == "equations")
    gram, _ = unpack_equations(total, LANDMARKS, 1)
    weights, vectors = np.linalg.eigh(gram)
    root = np.abs(vectors * np.sqrt(np.maximum(weights, 0.0))).T[-10:]
    blocks = list(secure.holders(0))
    landmarks = np.hstack(
        [secure.insiders.parties[p].landmarks for p in secure.holders(0).values()]
    )
    exponents = -np.log(np.maximum(root / root.max(axis=1, keepdims=True), 1e-12))
    matrix = Matrix(
        SERVER, "root", 0, 0, tuple(blocks), exponents, secure.settings.gammas, landmarks, True
    )
    (found,) = attack_matrix(matrix)
    assert not found.consistent
    assert found.rows is not None
    patients = np.vstack([secure.rows(h, blocks) for h in range(3)])
    random = np.random.default_rng(0).random((200, patients.shape[1]))
    nearest = cdist(found.rows, patients).min(axis=1)
    assert np.median(nearest) > np.median(cdist(random, patients).min(axis=1))


# -- secure: centres and hospitals


@pytest.mark.parametrize("centre", [3, 4])
def test_a_centre_learns_which_rows_are_whose_and_nothing_else(
    secure: HybridRun, centre: int
) -> None:
    assert not list(secure.matrices(centre))
    assert not secure.insiders.parties[centre].totals
    for passed in secure.messages:
        if passed.partition == centre and not passed.up:
            message = passed.message
            floats = [a for a in message.arrays() if a.dtype.kind == "f" and a.size]
            assert all(a is message.gammas for a in floats)
            assert {s.phase for s in passed.sections} <= {"sum-roster", "sum-order"}


@pytest.mark.parametrize("landmark_gamma", [False, True])
def test_a_hospital_has_the_distances_among_its_own_patients_and_sees_no_others(
    again: HybridRun, landmark_gamma: bool
) -> None:
    """Documented: its kernel is distances of its patients at the centres, and the closed form
    needs no landmarks.
    """
    seen = fit(clinic(130, 130, 100), landmark_gamma=True).seen if landmark_gamma else again
    for hospital in range(3):
        (total,) = seen.matrices(hospital)
        assert (total.hospital, total.blocks) == (hospital, ("genes", "images"))
        assert total.landmarks is None
        assert_exact(seen, [total], {"svd", "quadric"})


@pytest.mark.parametrize("hospital", [0, 2])
def test_a_hospital_cannot_trilaterate_as_it_has_not_the_centres_landmarks(
    secure: HybridRun, hospital: int
) -> None:
    (total,) = secure.matrices(hospital)
    shapes = [(b, np.tile([0.0, 1.0], (len(COLUMNS[b]), 1))) for b in total.blocks]
    own = secure.insiders.parties[hospital].seed
    guesses = [
        np.hstack([draw_landmarks(own, LANDMARKS, ranges) for _, ranges in shapes]),
        np.hstack([draw_landmarks(public_seed(0, b), LANDMARKS, r) for b, r in shapes]),
    ]
    for landmarks in guesses:
        for _, found, how in scores(secure, [replace(total, landmarks=landmarks)]):
            if found.rows is not None:
                assert not found.consistent
                assert how.error > GUESS
    right = replace(total, landmarks=true_landmarks(secure, total))  # the same with the landmarks
    assert_exact(secure, [right], ALL_ATTACKS)


def test_only_the_holders_of_a_block_have_its_landmarks(
    secure: HybridRun, again: HybridRun
) -> None:
    """Three hospitals share theirs by sealed messages; all is drawn anew in the next run."""
    for seen in (secure, again):
        seeds = [seen.insiders.parties[p].seed for p in range(5)]
        assert seeds[0] == seeds[1] == seeds[2]
        assert len({seeds[0], seeds[3], seeds[4]}) == 3
        assert seen.settings.public_seed == -1
        assert all(len(seed) == 32 for seed in seeds)
    assert secure.insiders.parties[3].seed != again.insiders.parties[3].seed
    assert secure.insiders.parties[0].seed != again.insiders.parties[0].seed
    seen = sent_bytes(secure)
    for party in secure.insiders.parties.values():
        assert party.seed[:8] not in seen
        assert party.seed[-8:] not in seen
        assert party.landmarks[0, :1].tobytes() not in seen


def sent_bytes(seen: HybridRun) -> bytes:
    """All bytes that passed, and all text."""
    parts = []
    for entry in seen.transcript.entries():
        parts += [array.tobytes() for array in entry.arrays]
        scalars = entry.scalars.values()
        parts += [v if isinstance(v, bytes) else str(v).encode() for v in scalars]
    return b"|".join(parts)


@pytest.fixture
def straight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Landmarks with a coordinate per feature, as they are before they are turned."""
    monkeypatch.setattr("fedkern_flwr.hybrid.landmarks._turn", lambda points, rng: points)


def shown(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """How well each feature is told, but for its direction and a constant: a correlation."""
    pairs = zip(match_columns(found, truth).T, truth.T, strict=True)
    return np.array([abs(np.corrcoef(a, b)[0, 1]) for a, b in pairs])


@pytest.mark.parametrize("turned", [False, True])
def test_landmarks_on_a_box_show_a_hospital_the_axes_of_the_features_unless_they_are_turned(
    turned: bool, request: pytest.FixtureRequest
) -> None:
    """Why landmarks are turned: not distances only, but the features of its own patients at the
    centres, each to 3 % of its range, but for their names and directions. What is left are the axes
    of the turned boxes: distances at each centre.
    """
    if not turned:
        request.getfixturevalue("straight")
    seen = fit(clinic(200, 60, seeded=True), landmarks=100).seen
    (total,) = seen.matrices(0)
    truth = seen.truth(total)
    found = match_columns(rows_in_box(total.distances), truth)
    error, guess = np.abs(found - truth).mean(), np.abs(truth - truth.mean(axis=0)).mean()
    assert error > guess if turned else error < 0.03
    told = shown(found, truth)
    assert told.mean() < 0.9 if turned else told.min() > 0.98
    if turned:
        assert shown(rows_along_spread(total.distances), truth).mean() < 0.9


@pytest.mark.parametrize("turned", [False, True])
def test_normal_landmarks_show_the_axes_by_their_deviations_unless_they_are_turned(
    turned: bool, request: pytest.FixtureRequest
) -> None:
    """Of features whose deviations are far apart: 0.23 to 0.08."""
    if not turned:
        request.getfixturevalue("straight")
    where = clinic(200, 60, seeded=True, centres=("spread", "shape"))
    seen = fit(where, landmarks=200, sampling="N").seen
    (total,) = seen.matrices(0)
    told = shown(rows_along_spread(total.distances), seen.truth(total)).mean()
    assert told < 0.9 if turned else told > 0.95
    if turned:
        assert shown(rows_in_box(total.distances), seen.truth(total)).mean() < 0.9


def test_landmarks_of_a_covariance_show_its_principal_axes_and_no_others() -> None:
    """Documented: those are the features where these are not correlated and far apart."""
    where = clinic(200, 60, seeded=True, centres=("spread", "shape"))
    seen = fit(where, landmarks=200, sampling="auto").seen
    (total,) = seen.matrices(0)
    truth = seen.truth(total)
    assert shown(rows_along_spread(total.distances), truth).mean() < 0.9
    assert shown(rows_in_box(total.distances), truth).mean() < 0.9
    turns = [np.linalg.svd(part - part.mean(axis=0))[2].T for part in (truth[:, :3], truth[:, 3:])]
    principal = np.hstack([truth[:, :3] @ turns[0], truth[:, 3:] @ turns[1]])
    assert shown(rows_along_spread(total.distances), principal).mean() > 0.75


def test_the_only_feature_of_a_centre_is_shown_to_a_hospital() -> None:
    """Documented: nothing can be turned there, and its axis is one of the independent ones."""
    seen = fit(clinic(200, 60, seeded=True, centres=("genes", "single")), landmarks=100).seen
    (total,) = seen.matrices(0)
    assert total.blocks == ("genes", "single")
    found = shown(rows_in_box(total.distances), seen.truth(total))
    assert found[3] > 0.98
    assert found[:3].mean() < 0.95


def test_landmarks_of_a_law_without_axes_do_not_show_them() -> None:
    """Control, and two remedies: a box that is turned, and a normal law of one deviation, leave
    distances only. The latter also where a centre has a single feature.
    """
    rng = np.random.default_rng(0)
    x = X[:200, [4, 5, 9, 8, 14]]
    turn = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    box = rng.random((100, 5)) - 0.5
    laws = {"box": box, "turned": box @ turn, "normal": rng.standard_normal((100, 5)) / 12**0.5}
    errors = {}
    for name, w in laws.items():
        found = rows_in_box(cdist(x, 0.5 + w, "sqeuclidean"))
        errors[name] = np.abs(match_columns(found, x) - x).mean()
    assert errors["box"] < 0.03
    guess = np.abs(x - x.mean(axis=0)).mean()
    assert min(errors["turned"], errors["normal"]) > 0.8 * guess


def test_a_single_centre_is_shown_to_the_hospital_only_where_both_sides_allow_it() -> None:
    alone = {"centres": ("genes",), "held_out": 0.0}
    with pytest.raises(OptionError, match="known to one centre only"):
        fit(clinic(60, 60, **alone))
    with pytest.raises(ProtocolError, match="it does not allow that"):
        fit(clinic(60, 60, **alone), allow_single=True, attempts=1)
    seen = fit(clinic(60, 60, single=(0, 1, 2), **alone), allow_single=True).seen
    for hospital in (0, 1):
        (total,) = seen.matrices(hospital)
        assert total.blocks == ("genes",)
        w = true_landmarks(seen, total)
        np.testing.assert_allclose(total.distances, cdist(seen.truth(total), w, "sqeuclidean"))
        assert_exact(seen, [total], {"svd", "quadric"})


def test_a_single_hospital_shows_the_server_its_normal_equations_only_where_both_allow_it() -> None:
    with pytest.raises(OptionError, match="there is one hospital"):
        fit(clinic(60))
    with pytest.raises(ProtocolError, match="would be shown to the server"):
        fit(clinic(60), allow_single=True, attempts=1)
    seen = fit(clinic(60, single=(0,)), allow_single=True).seen
    (reply,) = [p.message for p in seen.messages if isinstance(p.message, wire.EquationsReply)]
    kernel = seen.training_kernel(0)
    own = pack_equations(kernel.T @ kernel, kernel.T @ seen.targets(0))
    np.testing.assert_allclose(reply.plain[0], own, rtol=1e-9)
    for _, found, _ in scores(seen, list(islice(seen.matrices(SERVER), 3))):
        assert not found.consistent  # the distances are masked all the same


# -- secure: what the model itself tells


def others(seen: HybridRun, strategy: FedCG, hospital: int = 0) -> np.ndarray:
    """What a hospital computes of the others from its own table and the model."""
    return gradient_of_others(
        seen.training_kernel(hospital),
        seen.targets(hospital),
        strategy.coefficients_,
        strategy.regularization_,
    )


def test_of_two_hospitals_one_with_a_single_patient_is_read_off_the_model() -> None:
    """Documented: the model solves the equations of both, so one knows K^T (K a - y) of the other.

    Of one patient that is a row of the kernel times a number. Its features follow from the
    landmarks of the common block, and its label.
    """
    done = fit(clinic(150, 1, centres=(), held_out=0.0, seeded=True))
    seen, model = done.seen, done.strategy.coefficients_
    gradient = others(seen, done.strategy)
    kernel = seen.training_kernel(1)
    assert relative_error(gradient, kernel.T @ (kernel @ model - seen.targets(1))) < EXACT
    landmarks = seen.insiders.parties[0].landmarks
    x, target, known = row_of_gradient(gradient, landmarks, seen.settings.gammas, model)
    assert known
    np.testing.assert_allclose(x, seen.rows(1, ["clinical"])[0], atol=1e-8)
    assert target == pytest.approx(seen.targets(1).item(), abs=1e-6)


def test_that_patients_features_at_the_centres_follow_up_to_a_motion() -> None:
    """The hospital has the centres' landmarks in the frame of its own patients' distances."""
    done = fit(clinic(150, 1, held_out=0.0, seeded=True))
    seen = done.seen
    (total,) = seen.matrices(0)
    distances = distances_by_svd(total.distances).distances
    centred = distances - distances.mean(axis=0)
    values, vectors = np.linalg.eigh((centred - centred.mean(axis=1, keepdims=True)) / -2.0)
    own = vectors[:, -5:] * np.sqrt(values[-5:])
    landmarks = np.hstack([seen.insiders.parties[0].landmarks, trilaterate(total.distances.T, own)])
    x, target, known = row_of_gradient(
        others(seen, done.strategy), landmarks, seen.settings.gammas, done.strategy.coefficients_
    )
    assert known
    np.testing.assert_allclose(x[:2], seen.rows(1, ["clinical"])[0], atol=1e-7)
    truth = cdist(seen.rows(1, total.blocks), seen.rows(0, total.blocks), "sqeuclidean")
    np.testing.assert_allclose(cdist(x[None, 2:], own, "sqeuclidean"), truth, atol=1e-6)
    assert target == pytest.approx(seen.targets(1).item(), abs=1e-5)


def test_of_three_hospitals_the_model_tells_one_the_sum_of_the_others() -> None:
    done = fit(clinic(120, 20, 1, centres=(), held_out=0.0, seeded=True))
    seen, model = done.seen, done.strategy.coefficients_
    expected = sum(
        k.T @ (k @ model - seen.targets(h))
        for h, k in ((h, seen.training_kernel(h)) for h in (1, 2))
    )
    gradient = others(seen, done.strategy)
    assert relative_error(gradient, expected) < EXACT
    landmarks = seen.insiders.parties[0].landmarks
    x, _, known = row_of_gradient(gradient, landmarks, seen.settings.gammas, model)
    assert not known
    assert np.abs(x - seen.rows(2, ["clinical"])[0]).max() > 0.01


# -- secure: other options


def test_conjugate_gradients_release_the_same_normal_matrix() -> None:
    """Documented: directions that span the space give K^T K of all rows together, no hospital's."""
    seen = fit(clinic(130, 130, 100), solver="cg", preconditioner_rank=40).seen
    assert {v.order.name for v in seen.masked()} >= {"product"}
    directions, products = [], []
    for vector, total in seen.opened():
        if vector.order.name == "product":
            p = vector.request.directions
            directions.append(p)
            products.append(total[len(total) - p.size :].reshape(p.shape))
    found = gram_of_products(np.hstack(directions), np.hstack(products))
    kernels = np.vstack([seen.training_kernel(h) for h in range(3)])
    assert found is not None
    assert relative_error(found, kernels.T @ kernels) < EXACT
    assert min(p_uniform(v.ring) for v in seen.masked() if v.ring.size > 200) > UNIFORM


@pytest.mark.parametrize("turned", [True, False])
def test_the_penalty_of_the_function_shows_the_server_distances_between_landmarks_only(
    turned: bool, request: pytest.FixtureRequest
) -> None:
    """No patient enters them. Of the landmarks they show all but the motion that turning hides."""
    if not turned:
        request.getfixturevalue("straight")
    seen = fit(clinic(60, 60, seeded=True), penalty="rkhs", landmarks=200).seen
    totals = {vector.order.name: total for vector, total in seen.opened()}
    assert set(totals) == {"landmark pairs", "equations", "outcomes"}
    holders = seen.holders(0).values()
    landmarks = np.hstack([seen.insiders.parties[p].landmarks for p in holders])
    square = cdist(landmarks, landmarks, "sqeuclidean")
    pairs = square[np.triu_indices(200, 1)]
    np.testing.assert_allclose(totals["landmark pairs"], pairs, atol=1e-9)
    square[np.triu_indices(200, 1)] = totals["landmark pairs"]
    square = np.triu(square, 1)
    found = match_columns(rows_in_box(square + square.T), landmarks)
    assert (np.abs(found - landmarks).mean() < 0.05) == (not turned)
    assert (shown(found, landmarks).min() > 0.95) == (not turned)
    single = [
        cdist(p.landmarks, p.landmarks, "sqeuclidean") for p in seen.insiders.parties.values()
    ]
    for vector in seen.masked():
        if vector.order.name == "landmark pairs":
            assert p_uniform(vector.ring) > UNIFORM
            for own in single:
                told = np.corrcoef(vector.read("fixed point"), own[np.triu_indices(200, 1)])[0, 1]
                assert abs(told) < NORMALS / np.sqrt(len(pairs))


def test_a_fingerprint_of_given_landmarks_can_be_guessed_where_they_are_few() -> None:
    """Documented, of sampling P: a digest without a key, here of rows with one binary feature."""
    given = np.array([[0.0], [1.0], [1.0], [0.0], [1.0], [1.0], [1.0], [0.0]])
    sent = array_fingerprint(given, "session", "sex")
    guesses = [np.array(bits, float)[:, None] for bits in product((0, 1), repeat=8)]
    found = [g for g in guesses if array_fingerprint(g, "session", "sex") == sent]
    assert len(found) == 1
    np.testing.assert_array_equal(found[0], given)


def test_normal_landmarks_show_the_server_the_moments_of_shared_blocks() -> None:
    """Documented: of the hospitals together; a centre's own moments stay with it."""
    where = clinic(130, 130, 100)
    seen = fit(where, sampling="N").seen
    totals = {vector.order.name: total for vector, total in seen.opened()}
    assert set(totals) == {"moments/clinical", "equations", "outcomes"}
    train = np.concatenate([p[: len(p) - len(p) // 4] for p in where.patients])
    ranges = np.tile([0.0, 1.0], (2, 1))
    expected = moment_sums(X[np.ix_(train, COLUMNS["clinical"])], ranges)
    np.testing.assert_allclose(totals["moments/clinical"], expected, rtol=1e-9)


def test_of_two_holders_of_a_block_each_has_the_moments_of_the_other() -> None:
    """Documented, with a warning: of two patients mean and deviation are the features."""
    where = clinic(100, 2, centres=(), held_out=0.0)
    seen = fit(where, sampling="N").seen
    request = next(
        p.message
        for p in seen.messages
        if p.partition == 0 and isinstance(p.message, wire.DistancesRequest)
    )
    ranges = np.tile([0.0, 1.0], (2, 1))
    other = request.moments - moment_sums(seen.rows(0, ["clinical"]), ranges)
    mean = other[1:3] / other[0]
    deviation = np.sqrt(np.maximum(other[3:] / other[0] - mean**2, 0.0))
    found = np.sort(np.stack([mean - deviation, mean + deviation]), axis=0)
    assert other[0] == pytest.approx(2.0)
    np.testing.assert_allclose(found, np.sort(seen.rows(1, ["clinical"]), axis=0), atol=1e-6)


# -- masks: uniform, in all subsets, in every retry


def by_sum(seen: HybridRun) -> dict[tuple[int, int], list[MaskedVector]]:
    out: dict[tuple[int, int], list[MaskedVector]] = {}
    for vector in seen.masked():
        if not vector.delivered:
            out.setdefault((vector.order.cohort, vector.order.index), []).append(vector)
    return out


def added(vectors: Iterable[MaskedVector]) -> np.ndarray:
    return np.sum([v.ring for v in vectors], axis=0, dtype=np.uint64)


def test_masked_vectors_are_uniform_alone_and_in_every_sum_of_some(secure: HybridRun) -> None:
    tested = 0
    for vectors in by_sum(secure).values():
        receiver, parties = vectors[0].order.receiver, len(vectors)
        if vectors[0].ring.size < 200:
            continue
        for many in range(1, parties + 1):
            for some in combinations(vectors, many):
                if many < parties or receiver >= 0:  # all of a receiver's sum: under its pad
                    assert p_uniform(added(some)) > UNIFORM
                    tested += 1
    assert tested == 3 * 7 + 6
    for vector in secure.masked():
        if vector.delivered:
            assert p_uniform(vector.ring) > UNIFORM


LOST = [
    FaultPlan([(0, "hybrid-distances", 2, Fault("vanished"))]),
    FaultPlan([(3, "hybrid-distances", 2, Fault("vanished"))]),
    FaultPlan([(4, "hybrid-distances", 2, Fault("error"))]),
]


@pytest.mark.parametrize("faults", LOST, ids=["hospital", "centre", "centre did not hear"])
def test_a_sum_of_distances_that_is_repeated_has_fresh_masks_and_a_fresh_pad(faults: Any) -> None:
    """The late vector as well: the server can add up the first attempt, and has pads only."""
    done = fit(clinic(130, 130, 100), faults)
    attempts: dict[str, list[list[MaskedVector]]] = {}
    for vectors in by_sum(done.seen).values():
        if vectors[0].order.name.startswith("distances"):
            attempts.setdefault(vectors[0].order.name, []).append(vectors)
    repeated = {name: tries for name, tries in attempts.items() if len(tries) > 1}
    assert repeated
    for first, second in repeated.values():
        for mine in first:
            for other in second:
                assert p_uniform(other.ring - mine.ring) > UNIFORM
        assert p_uniform(added(second) - added(first)) > UNIFORM
        for many in range(1, len(first)):
            for some in combinations(first, many):
                rest = [v for v in second if v.partition not in {s.partition for s in some}]
                assert p_uniform(added([*some, *rest])) > UNIFORM  # no mixture of attempts opens


def test_a_late_vector_opens_a_sum_that_says_what_the_repeated_one_said(late: HybridRun) -> None:
    first, second = (t for v, t in late.opened() if v.order.name == "equations")
    np.testing.assert_array_equal(first, second)
    tries = [v for v in by_sum(late).values() if v[0].order.name == "equations"]
    for mine, again in zip(*tries, strict=True):
        assert mine.partition == again.partition
        assert p_uniform(again.ring - mine.ring) > UNIFORM


def test_a_total_that_is_delivered_again_is_the_same(secure: HybridRun, late: HybridRun) -> None:
    """A reply that was lost: the pad is not used for anything else."""
    delivered = [v for v in late.masked() if v.delivered and v.partition == 1]
    assert len(delivered) == 2
    np.testing.assert_array_equal(delivered[0].ring, delivered[1].ring)
    assert len([v for v in secure.masked() if v.delivered and v.partition == 1]) == 1


# -- predictions


def predict_twice(
    tmp_path: Path, second: dict[str, np.ndarray], **options: Any
) -> tuple[HybridRun, HybridRun]:
    """Fit with all patients, predict with all, predict again where centres lack some."""
    where = clinic(100, 100, centres=("genes", "images", "texture"), held_out=0.5)
    where.of = {k: {"state_dir": tmp_path / str(k)} for k in range(where.parties)}
    fitted = fit(where, **options).strategy
    arrays, meta = fitted.model()
    seen = []
    for unknown in ({}, second):
        where.unknown = unknown
        strategy = FedCG.of_model(meta)
        done = run(
            where, strategy, start=lambda grid, s=strategy: s.predict_at_nodes(grid, arrays, meta)
        )
        seen.append(done.seen)
    return seen[0], seen[1]


def test_two_runs_of_predictions_tell_the_server_nothing_by_their_difference(
    tmp_path: Path,
) -> None:
    """The hospitals get the same totals again; not even the pseudonyms are the same."""
    first, second = predict_twice(tmp_path, {})
    for one, other in zip(first.masked(), second.masked(), strict=True):
        assert (one.order.name, one.partition) == (other.order.name, other.partition)
        assert p_uniform(other.ring - one.ring) > UNIFORM
    assert not list(first.opened())
    assert not set(first.parties[0].ids.ravel()) & set(second.parties[0].ids.ravel())
    for hospital in (0, 1):
        (a,), (b,) = first.matrices(hospital), second.matrices(hospital)
        sort = [np.lexsort(m.distances.T[:3]) for m in (a, b)]
        np.testing.assert_allclose(a.distances[sort[0]], b.distances[sort[1]], atol=1e-12)


def test_patients_whom_a_centre_forgot_show_its_distances_to_a_hospital_that_predicts_again(
    tmp_path: Path,
) -> None:
    """What remains of missing="neutral": two totals that differ by one centre's distances."""
    where = clinic(100, 100)
    first, second = predict_twice(tmp_path, {"texture": where.patients[0]}, missing="neutral")
    (a,), (b,) = first.matrices(0), second.matrices(0)
    ids = [seen.insiders.parties[0].client.table for seen in (first, second)]
    order = [
        np.argsort(table.order(seen.session, KEY)[seen.positions[0, 0]])
        for table, seen in zip(ids, (first, second), strict=True)
    ]
    difference = a.distances[order[0]] - b.distances[order[1]]
    texture = first.rows(0, ["texture"])[order[0]]
    found = distances_by_svd(np.maximum(difference, 0.0))
    assert found.consistent
    assert relative_error(found.distances, cdist(texture, texture, "sqeuclidean")) < EXACT


# -- ids


def test_pseudonyms_of_two_runs_cannot_be_linked(secure: HybridRun, again: HybridRun) -> None:
    assert secure.session != again.session
    for party in range(5):
        one, other = secure.parties[party].ids, again.parties[party].ids
        assert one.shape == other.shape
        assert not set(one.ravel().tolist()) & set(other.ravel().tolist())
        table = secure.insiders.parties[party].client.table
        places = [
            np.argsort(table.order(seen.session, KEY)[: table.rows]) for seen in (secure, again)
        ]
        assert abs(spearmanr(*places).statistic) < NORMALS / np.sqrt(table.rows)
        assert abs(spearmanr(places[0], np.arange(table.rows)).statistic) < NORMALS / np.sqrt(
            table.rows
        )


def test_the_server_cannot_test_an_id_but_whoever_has_the_key_can(secure: HybridRun) -> None:
    announced = {tuple(row) for row in secure.parties[0].ids.tolist()}
    patients = clinic(130, 130, 100).patients[0]
    known = [
        secure.session.encode(),
        bytes(32),
        b"",
        *(p.public_key for p in secure.parties.values()),
    ]
    for key in known:
        for session in (secure.session, ""):
            guessed = {tuple(row) for row in hash_ids(patients, key, session).tolist()}
            assert not guessed & announced
    with_key = {tuple(row) for row in hash_ids(patients, KEY, secure.session).tolist()}
    assert with_key == announced
    strangers = hash_ids(np.arange(10_000, 10_100), KEY, secure.session)
    assert not {tuple(row) for row in strangers.tolist()} & announced


def test_the_server_learns_which_rows_belong_together(secure: HybridRun) -> None:
    """Documented: the size of every overlap, and who is a patient of which hospital."""
    for hospital in range(3):
        own = {tuple(row) for row in secure.parties[hospital].ids.tolist()}
        for centre in (3, 4):
            assert own <= {tuple(row) for row in secure.parties[centre].ids.tolist()}


# -- what the server of the protocol could refuse


def test_a_hospital_without_training_rows_hides_no_other() -> None:
    """The sum over two hospitals of which one has no training rows is the other's alone."""
    with pytest.raises(OptionError):
        fit(clinic(60, 60, centres=(), of={1: held_out_only(60)}))


def held_out_only(many: int) -> dict[str, Any]:
    ids = clinic(60, many).patients[1]
    return {"x_test": features(ids, "clinical"), "y_test": Y[ids], "ids_test": ids}


def test_a_centre_that_does_not_allow_it_is_never_alone_with_a_row() -> None:
    """With missing="neutral" the other centre adds nothing for the rows that it does not hold."""
    patients = clinic(60, 60).patients[0]
    where = clinic(60, 60, held_out=0.0, unknown={"images": patients[:50]})
    with pytest.raises(ProtocolError):
        fit(where, allow_single=True, missing="neutral", attempts=1)


def test_a_run_is_not_resumed_with_other_patients(tmp_path: Path) -> None:
    """The direction at which it broke off comes again: the products differ by the patients."""
    where = clinic(60, 60, centres=(), held_out=0.0)
    where.of = {k: {"state_dir": tmp_path / str(k)} for k in (0, 1)}
    options = {
        "solver": "cg",
        "preconditioner_rank": 0,
        "checkpoint": tmp_path / "checkpoint.npz",
        "attempts": 2,
    }
    strategy = FedCG(landmarks=10, gamma=1.0, **options)
    broken = FaultPlan([(1, "hybrid-product", n, Fault("vanished")) for n in range(6, 20)])
    with pytest.raises(Exception, match="resume from the checkpoint"):
        run(where, strategy, faults=broken)
    replaced = where.patients[1].copy()
    replaced[0] = np.setdiff1d(np.arange(len(X)), np.concatenate(where.patients))[0]
    where.patients = [where.patients[0], replaced]
    with pytest.raises(Exception, match=r"rows|table"):
        run(where, FedCG(landmarks=10, gamma=1.0, **options, resume=True))
