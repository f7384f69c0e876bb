"""Tags by multi-party exponentiation: equal where ids are, on the curve, nothing improper."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkern_flwr.align.private_intersection import (
    POINT_BYTES,
    Exponents,
    blind_ids,
    finish_tags,
    hash_to_curve,
    multiply_points,
    on_curve,
)
from fedkern_flwr.errors import ProtocolError

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
BASE = (9).to_bytes(32, "little")


def legendre(u: int) -> int:
    """The definition, by Euler's criterion."""
    value = pow((u**3 + 486662 * u * u + u) % P, (P - 1) // 2, P)
    return -1 if value == P - 1 else value


def points_of(data: bytes) -> list[bytes]:
    return [data[k : k + POINT_BYTES] for k in range(0, len(data), POINT_BYTES)]


def ring(tables: list[list[str]]) -> list[dict[str, bytes]]:
    """The protocol without messages: id -> tag, at each party."""
    drawn = [Exponents.draw() for _ in tables]
    out = []
    for owner, ids in enumerate(tables):
        mine = drawn[owner]
        order = mine.order(ids)
        points = blind_ids([ids[k] for k in order], mine.blind)
        for step in range(1, len(tables)):
            points = multiply_points(points, drawn[(owner + step) % len(tables)].own)
        tags = finish_tags(points, mine.rest, len(ids))
        out.append({ids[k]: tag for k, tag in zip(order, tags, strict=True)})
    return out


tables = st.lists(
    st.lists(st.text(max_size=3) | st.sampled_from("abcde"), unique=True, max_size=5),
    min_size=2,
    max_size=4,
)


@settings(max_examples=40)
@given(tables=tables)
def test_tags_are_equal_where_ids_are(tables: list[list[str]]) -> None:
    found = ring(tables)
    for ids, tags in zip(tables, found, strict=True):
        assert set(tags) == set(ids)
        for other in found:
            for name, tag in tags.items():
                assert [n for n, t in other.items() if t == tag] == [name] * (name in other)


def test_tags_of_two_runs_have_nothing_in_common() -> None:
    tables = [["a", "b"], ["b", "c"]]
    one, other = ({t for tags in ring(tables) for t in tags.values()} for _ in range(2))
    assert len(one) == len(other) == 3
    assert not one & other


# -- points


def test_ids_are_hashed_to_points_of_the_curve() -> None:
    found = [int.from_bytes(hash_to_curve(str(k)), "little") for k in range(300)]
    assert all(u < P and legendre(u) == 1 for u in found)
    assert len(set(found)) == 300
    bits = np.unpackbits(np.frombuffer(b"".join(map(hash_to_curve, "abcdefghij" * 5)), np.uint8))
    assert 0.4 < bits.mean() < 0.6


def test_a_hash_to_any_number_is_on_the_curve_half_of_the_time() -> None:
    """Negative control, and why it matters: the side survives multiplication by any exponent."""
    naive = [hashlib.sha256(b"naive %d" % k).digest()[:31] + b"\0" for k in range(300)]
    sides = [legendre(int.from_bytes(point, "little")) for point in naive]
    assert 100 < sides.count(1) < 200
    assert set(sides) == {1, -1}
    key = X25519PrivateKey.generate()
    blinded = [key.exchange(X25519PublicKey.from_public_bytes(point)) for point in naive]
    assert [legendre(int.from_bytes(point, "little")) for point in blinded] == sides
    proper = points_of(blind_ids(map(str, range(300)), Exponents.draw().blind))
    assert {legendre(int.from_bytes(point, "little")) for point in proper} == {1}


@given(u=st.integers(0, P - 1) | st.integers(0, 50))
def test_the_quick_symbol_is_that_of_legendre(u: int) -> None:
    assert on_curve(u) == (legendre(u) == 1)


def test_the_text_of_an_id_decides_its_point() -> None:
    names = ["", "a", "A", " a", "a ", "é", "e\u0301", "ab", "1", "01", "\0", "日本", "💊"]
    assert len({hash_to_curve(name) for name in names}) == len(names)
    assert hash_to_curve("日本") == hash_to_curve("日" + "本")


def ladder(scalar: int, u: int) -> int | None:
    """Any multiple of a point in plain numbers (RFC 7748, section 5); None at infinity."""
    x2, z2, x3, z3 = 1, 0, u, 1
    for bit in f"{scalar:b}":
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        x3, z3 = pow(d * a + c * b, 2, P), u * pow(d * a - c * b, 2, P) % P
        aa, bb = a * a % P, b * b % P
        x2, z2 = aa * bb % P, (aa - bb) * (aa + 121665 * (aa - bb)) % P
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
    return None if z2 == 0 else x2 * pow(z2, -1, P) % P


def test_what_leaves_a_party_lies_in_the_group_of_prime_order() -> None:
    drawn = Exponents.draw()
    hashed = [int.from_bytes(hash_to_curve(str(k)), "little") for k in range(20)]
    blinded = points_of(blind_ids(map(str, range(20)), drawn.blind))
    scalar = int.from_bytes(drawn.blind, "little")
    for u, point in zip(hashed, blinded, strict=True):
        assert ladder(scalar, u) == int.from_bytes(point, "little")
        assert ladder(ORDER, int.from_bytes(point, "little")) is None
    outside = [u for u in hashed if ladder(ORDER, u) is not None]
    assert len(outside) > 10  # negative control: seven of eight points have a part of small order


# -- exponents


def test_blinding_comes_off_exactly() -> None:
    points = b"".join(hash_to_curve(str(k)) for k in range(5))
    for _ in range(20):
        drawn = Exponents.draw()
        for scalar in (drawn.own, drawn.blind, drawn.rest):
            assert scalar[0] & 7 == 0
            assert scalar[31] >> 6 == 1
        assert len({drawn.own, drawn.blind, drawn.rest}) == 3
        both = multiply_points(multiply_points(points, drawn.blind), drawn.rest)
        assert both == multiply_points(points, drawn.own)
        assert Exponents.unpack(drawn.pack()) == drawn


def test_secrets_do_not_show_in_text() -> None:
    drawn = Exponents.draw()
    assert "own" not in repr(drawn)
    assert drawn.fingerprint == Exponents.unpack(drawn.pack()).fingerprint
    assert drawn.fingerprint != Exponents.draw().fingerprint
    assert len(drawn.fingerprint) == 16


def test_lists_are_sent_in_a_secret_order() -> None:
    ids = [str(k) for k in range(200)]
    drawn, others = Exponents.draw(), Exponents.draw()
    order = drawn.order(ids)
    assert sorted(order) == list(range(200))
    assert order == drawn.order(ids)
    assert order != others.order(ids)
    assert abs(np.corrcoef(order, np.arange(200))[0, 1]) < 0.3
    turned = ids[::-1]
    assert [ids[k] for k in order] == [turned[k] for k in drawn.order(turned)]


# -- what another party may send


def order_eight() -> int:
    """A point of order 8 of the curve: RFC 7748's list of small order."""
    return 325606250916557431795983626356110631294008115727848805560023387167927233504


LOW = [0, 1, order_eight(), P - 1]
IMPROPER: dict[str, Callable[[], bytes]] = {
    "on the twist": lambda: (2).to_bytes(32, "little"),
    "zero": lambda: bytes(32),
    "one": lambda: (1).to_bytes(32, "little"),
    "order eight": lambda: order_eight().to_bytes(32, "little"),
    "minus one": lambda: (P - 1).to_bytes(32, "little"),
    "not reduced": lambda: (P + 9).to_bytes(32, "little"),
    "top bit": lambda: (9 + 2**255).to_bytes(32, "little"),
    "all bits": lambda: b"\xff" * 32,
}


@pytest.mark.parametrize("name", IMPROPER)
def test_improper_points_are_refused(name: str) -> None:
    exponent = Exponents.draw()
    good = multiply_points(BASE, exponent.own)
    with pytest.raises(ProtocolError, match=r"is (not a point of the curve|a point of low order)"):
        multiply_points(good + IMPROPER[name](), exponent.own)
    with pytest.raises(ProtocolError):
        finish_tags(good + IMPROPER[name](), exponent.rest, 2)


def test_points_of_low_order_on_the_curve_are_noticed_as_such() -> None:
    """The check of the side alone would not do."""
    exponent, on = Exponents.draw(), [u for u in LOW if legendre(u) == 1]
    assert on
    for u in on:
        with pytest.raises(ProtocolError, match="low order"):
            multiply_points(u.to_bytes(32, "little"), exponent.own)


def test_lists_that_do_not_fit_are_refused() -> None:
    exponent = Exponents.draw()
    points = blind_ids(["a", "b"], exponent.blind)
    assert len(finish_tags(points, exponent.rest, 2)) == 2
    with pytest.raises(ProtocolError, match="is no list of points"):
        multiply_points(points[:-1], exponent.own)
    with pytest.raises(ProtocolError, match="another length"):
        finish_tags(points, exponent.rest, 3)
    with pytest.raises(ProtocolError, match="points twice"):
        finish_tags(points[:32] * 2, exponent.rest, 2)
    assert multiply_points(b"", exponent.own) == b""
    assert finish_tags(b"", exponent.rest, 0) == []
