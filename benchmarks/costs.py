"""What the methods cost: exchanges and bytes by formula, exactly as the ledger counts them.

An array costs its bytes and a header of 128. Not counted, by ledger and formulas alike, are the
names, numbers and sealed texts among the scalars of a message. Formulas hold where nobody drops out
and no message exceeds 256 MB; beyond, rows travel in parts, an exchange each.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fedkern_flwr.gram.plan import counts_encoding, matrix_encoding
from fedkern_flwr.groups.digits import DIGITS
from fedkern_flwr.judging.counts import Yardstick, bins_of
from fedkern_flwr.secure_sum.graph import default_threshold, degree, share_threshold

HEADER = 128  # bytes of an array in NumPy's format
IN_ROSTER = 4 + 32 + 64 + 16  # bytes per party: number, key, signature or zeros, counts of rows
SHARE, SEALED_SHARE, COMMITMENT, TAG = 33, 49, 16, 16  # bytes
GRID = 6  # multiples of the width and regularizations that FDSKL chooses from


@dataclass(frozen=True)
class Role:
    """What a party of a role costs.

    Attributes
    ----------
    parties : int
    up, down : float
        Bytes of one of them.
    """

    parties: int
    up: float
    down: float


@dataclass(frozen=True)
class Cost:
    """What a run costs.

    Attributes
    ----------
    exchanges : int
    roles : dict
        Name of a role -> its :class:`Role`.
    exact : bool
        False where bytes depend on random draws: then they are expectations.
    """

    exchanges: int
    roles: dict[str, Role]
    exact: bool = True

    def up(self) -> float:
        """Return the bytes that all parties send."""
        return sum(role.parties * role.up for role in self.roles.values())

    def down(self) -> float:
        """Return the bytes that all parties get."""
        return sum(role.parties * role.down for role in self.roles.values())


def arrays(*sizes: float) -> float:
    """Return the bytes of arrays of so many bytes each."""
    return sum(HEADER + size for size in sizes)


def digests(parties: int) -> float:
    """Return the bytes (up) of a sum of a whole cohort beside the vector: a digest per mask."""
    return COMMITMENT * degree(parties)


def recoverable_sum(parties: int, vector: float) -> tuple[float, float]:
    """Return bytes (up, down) of a sum that survives drop-outs, beside the vector itself.

    With k neighbours: sealed shares and commitments with the vector; then bit sets and the
    neighbours' shares down, opened shares up. Where enough neighbours are left to hold them, shares
    of the seeds of all pairs travel too, unless that would be more than the vector.
    """
    k = degree(parties)
    up = SEALED_SHARE * k + COMMITMENT * (k + 1) + SHARE * (k + 1)
    backups = k * (SHARE * k + TAG)
    if k > share_threshold(parties, default_threshold(parties)) and backups <= vector:
        up += backups
    return up, 2 * ceil(parties / 8) + SEALED_SHARE * k


def pof_mkl(*, clients: int, rounds: int, batch: int, kernels: int, features: int, chosen: int,
            secure: bool) -> Cost:  # fmt: skip
    """POF-MKL: N clients, T samples each, B per message, D features, M of the kernels chosen."""
    messages, width = max(1, rounds // batch), 2 * features
    model = arrays(4 * kernels * width)
    if not secure:
        gradient = arrays(4 * chosen, 4 * chosen * width)
        return Cost(1 + messages, {"client": Role(clients, messages * gradient, messages * model)})
    vector = 8 * (kernels * width + 6)
    more_up, more_down = recoverable_sum(clients, vector)
    up = messages * (arrays(vector) + more_up)
    down = messages * (model + more_down) + IN_ROSTER * clients
    return Cost(2 + 2 * messages, {"client": Role(clients, up, down)})


def fed_cg(*, hospitals: int, centres: int, rows: int, landmarks: int, outputs: int = 1) -> Cost:
    """FedCG with secure sums of normal equations: n rows in all, m landmarks, k outputs."""
    m, k, own = landmarks, outputs, rows / hospitals
    among, distances = digests(hospitals), digests(centres + 1)
    roster = IN_ROSTER * (hospitals + centres)
    hospital = Role(
        hospitals,
        up=arrays(16 * own, 8 * m * own, 8 * (m * (m + 1) / 2 + m * k), 8 * 4)
        + distances
        + 2 * among,
        down=arrays(*[4] * 4, 8, 0, 0, 4 * own, 8 * m * own, 8 * m * k, *[0] * 7) + roster,
    )
    centre = Role(
        centres,
        up=arrays(16 * rows) + hospitals * (arrays(8 * m * own) + distances),
        down=arrays(*[4 * hospitals] * 4, 8, 0, 0) + hospitals * arrays(4 * own) + roster,
    )
    return Cost(5, {"hospital": hospital, "centre": centre})


def fdskl(*, parties: int, rows: int, tests: int, features: int) -> Cost:
    """FDSKL one-shot with 16-bit phases: q parties, n rows, R directions."""
    known = rows + tests
    phases = arrays(2 * known * features)
    up = arrays(16 * known) + phases + digests(parties)
    down = arrays(4, 4, 4 * known, 4 * known, 4, 0, 0) + IN_ROSTER * parties
    grid = arrays(4 * GRID, 8 * GRID, 4 * rows, 4 * tests)
    histograms = Yardstick(classes=2, outputs=1, bins=bins_of(tests, classes=2)).length - 4
    return Cost(
        3,
        {
            "active": Role(1, up + arrays(8 * (4 + histograms)), down + grid + phases),
            "passive": Role(parties - 1, up, down),
        },
    )


def fdskl_streaming(*, parties: int, rows: int, tests: int, directions: int, batch: int,
                    rounds: int) -> Cost:  # fmt: skip
    """FDSKL streaming: T iterations of B random rows and r new directions; a phase travels once.

    A row that was last drawn in iteration t has t r phases: its expectation is summed over rows.
    """
    p = batch / rows
    last = rounds - (1 - p) * (1 - (1 - p) ** rounds) / p
    learned, held_out = 2 * directions * rows * last, 2 * directions * tests * rounds
    sums = (rounds + 1) * HEADER + learned + held_out
    up = arrays(16 * (rows + tests)) + sums + (rounds + 1) * digests(parties)
    step = 2 * arrays(4) + arrays(4, 0, 0)
    down = rounds * (step + 2 * arrays(4 * batch)) + step + 2 * arrays(4 * tests)
    down += IN_ROSTER * parties
    more = rounds * 4 * batch + sums + arrays(4, 4, 4 * tests)
    return Cost(
        rounds + 4,
        {
            "active": Role(1, up + arrays(8 * 4), down + more),
            "passive": Role(parties - 1, up, down),
        },
        exact=False,
    )


def secure_gram(*, nodes: int, users: int, items: int, drop_outs: bool) -> Cost:
    """Secure Gram of counts with a minimal support: n nodes of so many users, J items."""
    up, down = _release(nodes, users, items, drop_outs)
    return Cost(6 if drop_outs else 4, {"node": Role(nodes, up, down)})


def fed_cfk(*, nodes: int, users: int, items: int, drop_outs: bool) -> Cost:
    """FedCFK: Secure Gram, then the matrix to every node, and a sum of metrics."""
    up, down = _release(nodes, users, items, drop_outs)
    more_up, more_down = recoverable_sum(nodes, 8 * 7) if drop_outs else (0.0, 0.0)
    size = matrix_encoding(nodes, users, 1.0, 0).dtype.itemsize
    up += arrays(8 * 7) + (more_up or digests(nodes))
    down += more_down
    down += arrays(4 * items, 0, 8 * items, size * items, 0, size * items * (items + 1) / 2)
    return Cost(8 if drop_outs else 5, {"node": Role(nodes, up, down)})


def _release(nodes: int, users: int, items: int, drop_outs: bool) -> tuple[float, float]:
    """Return bytes (up, down) of a node for item counts and the packed matrix."""
    count = counts_encoding(nodes, users).dtype.itemsize
    size = matrix_encoding(nodes, users, 1.0, 0).dtype.itemsize
    vectors = count * items, size * items * (items + 1) / 2
    up, down = arrays(*vectors), arrays(4 * items) + IN_ROSTER * nodes
    if not drop_outs:
        up += 2 * digests(nodes)
    for vector in vectors if drop_outs else ():
        more_up, more_down = recoverable_sum(nodes, vector)
        up, down = up + more_up, down + more_down
    return up, down


def horizontal_svm(*, users: int, groups: int, columns: int, iterations: int,
                   outputs: int = 1) -> Cost:  # fmt: skip
    """HierarchicalSVM by rows: U users in S groups of equal size, d columns, I iterations."""
    size, each = 8 * outputs * (columns + 1), 8 * outputs
    roster, ours = IN_ROSTER * (users + groups), 4 * users / groups
    group = digests(users // groups + 1)
    user = Role(
        users,
        up=arrays(0, 8 * 2 * columns * DIGITS, 8 * 5)
        + 2 * digests(users)
        + (iterations + 1) * (arrays(size + 3 * each) + group),
        down=arrays(4, 0, 0, 0)
        + roster
        + arrays(0, 8 * columns, 8 * columns, 8 * (columns + 1), 0)
        + iterations * arrays(0, size, 0, 0, size)
        + (iterations + 1) * arrays(each, 0, each, each)  # penalties and weights
        + arrays(size),
    )
    agent = Role(
        groups,
        up=arrays(0)
        + (iterations + 1) * (arrays(size + 3 * each, size + 5 * each) + group + digests(groups)),
        down=roster
        + (iterations + 2) * arrays(ours, size, each, each, each)
        + (iterations + 1) * arrays(size + 3 * each),
    )
    return Cost(iterations + 5, {"user": user, "agent": agent})


def vertical_svm(*, groups: int, users: int, rows: int, columns: int, iterations: int,
                 outputs: int = 1) -> Cost:  # fmt: skip
    """HierarchicalSVM by columns: S groups with U users each, who hold n / U rows of d / S columns.

    Each of the I iterations adds an output of the model and a product; one of each goes before.
    """
    k, block, own = outputs, columns / groups, rows / users
    parties = groups * users + groups + 1
    roster, ours = IN_ROSTER * parties, arrays(4 * users)
    first, product = arrays(16 * block * DIGITS), arrays(8 * k * block)
    total = arrays(8 * k * rows)
    in_group = (iterations + 3) * digests(users + 1)
    masked = (iterations + 1) * (total + digests(groups * users + 1))
    user = Role(
        groups * users,
        up=arrays(16 * own) + first + (iterations + 2) * product + in_group + masked,
        down=arrays(4 * own, 4 * own) + roster,
    )
    agent = Role(
        groups,
        up=arrays(0) + first + (iterations + 2) * product + in_group,
        down=roster + ours + first + (iterations + 2) * (ours + product),
    )
    for_users = (28 + 8 * k * own) * groups * users  # sealed for each
    owner = Role(
        1,
        up=arrays(16 * rows) + (iterations + 2) * arrays(for_users, 0) + arrays(0, 0) + masked,
        down=arrays(4 * rows, *[4 * groups * users] * 2, 4 * groups * rows)
        + roster
        + arrays(*[0] * 4)
        + (iterations + 1) * (arrays(*[0] * 4) + total),
    )
    return Cost(2 * iterations + 9, {"user": user, "agent": agent, "owner": owner})
