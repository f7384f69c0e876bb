"""What a party has in common with others once it knows the roster: roots of masks, and secrets."""

from __future__ import annotations

from collections.abc import Collection

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ..errors import SumError
from .keys import pair_label, pair_root, pair_secret
from .membership import Cohort, Membership


def derive_pairs(
    members: Membership,
    partition: int,
    private: X25519PrivateKey,
    *,
    secrets: bool,
    partners: Collection[int],
) -> tuple[list[tuple[Cohort, dict[int, bytes]]], dict[int, bytes]]:
    """Agree on secrets with all neighbours of a party.

    Parameters
    ----------
    members : Membership
        The roster of the run.
    partition : int
        The party.
    private : X25519PrivateKey
        Its key of the run.
    secrets : bool
        Whether the method uses secrets of pairs.
    partners : collection of int
        Parties with whom it needs such a secret though they are no neighbours.

    Returns
    -------
    (list of (Cohort, dict), dict)
        Per cohort of the party, neighbour -> root of the first sum; neighbour or partner -> secret.

    Raises
    ------
    SumError
        A public key is not valid.
    """
    derived: list[tuple[Cohort, dict[int, bytes]]] = []
    found: dict[int, bytes] = {}
    for cohort in members.cohorts:
        if partition not in cohort.members:
            continue
        neighbours = cohort.neighbours[partition]
        further = set(partners) & set(cohort.members) - {partition, *neighbours}
        roots = {}
        for other in [*neighbours, *sorted(further)]:
            public, pair = members.keys[other], pair_label(partition, other)
            try:
                if other not in further:
                    roots[other] = pair_root(
                        private, public, digest=members.digest, cohort=cohort.number, pair=pair
                    )
                if secrets and other not in found:
                    found[other] = pair_secret(private, public, digest=members.digest, pair=pair)
            except ValueError:
                raise SumError("its public key is not valid", party=f"partition {other}") from None
        derived.append((cohort, roots))
    return derived, found
