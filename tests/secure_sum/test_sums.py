"""Sums of every kind are exact, and what a party remembers of them is no more than it needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sums_in_memory import Reference, Run, draw, refuses

from fedkern_flwr.errors import FedKernError
from fedkern_flwr.secure_sum import CIPHERS, Encoding, PartyState
from fedkern_flwr.secure_sum import party as party_module

RINGS = (16, 32, 64)
ENCODINGS = [Encoding.circle(bits) for bits in RINGS]
ENCODINGS += [Encoding.fixed_point(8.0, bits) for bits in RINGS]
ENCODINGS += [Encoding.integers(100, bits) for bits in RINGS]
WHOLE = {"self_masks": False}
OPTIONS: list[Any] = [{}, WHOLE, {"receiver": 2}, {"receiver": 0, **WHOLE}]


@pytest.mark.promise("sums-exact")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda e: f"{e.kind}-{e.bits}")
def test_all_kinds_of_sums_are_exact(encoding: Encoding, options: Any) -> None:
    """A party may take part with zeros, or one number repeated: these are encoded once.

    Where there are self masks a party may be missing: its masks go, and f is that of all five.
    """
    run = Run(5, threshold=3, cipher=CIPHERS[len(options) % 2])
    rng = np.random.default_rng(0)
    values = {p: draw(encoding, 7, rng) for p in run.members}
    for same in (None, values[1][:1] * 0, values[1][:1]):
        if same is not None:
            values[1] = np.broadcast_to(same, 7)
        total = run.sum(values, encoding=encoding, **options)
        expected = Reference.total(encoding, 5, values.values())
        np.testing.assert_array_equal(total, expected)
        assert total.dtype == expected.dtype
        if same is None and options.get("self_masks", True):
            four = {p: values[p] for p in (0, 1, 2, 3)}
            total = run.sum(four, encoding=encoding, **options)
            np.testing.assert_array_equal(total, Reference.total(encoding, 5, four.values()))


def test_long_vectors_travel_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkern_flwr.secure_sum.encoding.CHUNK_BYTES", 1000)
    run = Run(3)
    values = {p: np.arange(1003) * (p + 1) for p in run.members}
    for options in ({}, {"receiver": 1}):
        encoding = Encoding.integers(10_000)
        running = run.order(1003, encoding, name=f"to {options}", **options)
        for p, vector in values.items():
            run.upload(running, p, vector)
        pieces = [part.size for part in run.transcript(running).uploads[0].masked]
        assert pieces == [125] * 8 + [3]
        run.unmask(running)
        assert run.result(running).tolist() == (6 * np.arange(1003)).tolist()


def test_values_are_overwritten_only_where_that_was_allowed() -> None:
    """The fast path may put the masked vector where the values were, and nowhere else."""
    run, encoding = Run(3), Encoding.fixed_point(4.0)
    running = run.order(3, encoding, self_masks=False)
    run.join()
    vectors = {p: np.array([0.5, 1.0, -2.0]) * p for p in range(3)}
    for p, vector in vectors.items():
        party, before = run.party(p), vector.copy()
        run.take(p, party.contribute(running.order, vector, overwrite=p > 0))
        run.keep(party)
        assert p or (vector == before).all()
    run.server.unmask_sections([running])
    np.testing.assert_array_equal(run.server.total(running), [1.5, 3.0, -6.0])


def test_partition_numbers_and_cohorts_are_any() -> None:
    run = Run([3, 17, 1000, 2**31 - 1], threshold=3)
    total = run.sum({p: np.array([k]) for k, p in enumerate(run.members)}, receiver=1000)
    assert total.tolist() == [6]
    run = Run(7, cohorts=[range(7), [0, 2, 4], [6, 5, 3, 1]])
    for cohort, members in ((0, range(7)), (1, (0, 2, 4)), (2, (1, 3, 5, 6)), (1, (0, 2, 4))):
        own = {p: np.array([10**p]) for p in members}
        total = run.sum(own, cohort=cohort, name=f"of cohort {cohort}")
        assert total.tolist() == [sum(10**p for p in members)]


def test_a_party_that_missed_sums_takes_part_again() -> None:
    """Numbers grow without it, and orders tell each party when it was last counted."""
    run = Run(4, threshold=3)
    for absent in (0, 0, 0, 1, 0, 2):
        present = [p for p in run.members if p != absent]
        assert run.sum({p: np.array([p]) for p in present}).tolist() == [6 - absent]
    running = run.order(1)
    counted = [run.server.sections(p, [running])[-1].counted for p in range(4)]
    assert counted == [6, 6, 5, 6]
    assert run.sum({p: np.array([p]) for p in run.members}).tolist() == [6]
    assert run.server.contributors == 4


@pytest.mark.parametrize("first", [2, 10**9])
def test_a_resumed_run_goes_on_with_new_numbers(first: int) -> None:
    """The roster says where they begin: fresh roots need not be turned there step by step."""
    run = Run(3)
    run.sum({p: np.array([p]) for p in run.members})
    progress = run.server.progress()
    assert progress["next"] == [[0, 2]]
    run = Run(3)
    run.server.go_on(progress | {"next": [[0, first]]})
    running = run.order(1)
    assert running.order.index == first
    run.join()
    party, one = run.party(0), np.array([1])
    for index in (first - 1, 2 * first + 1024):
        wrong = replace(running.order, index=index)
        refuses("FK-SUM-NUMBER", party.contribute, wrong, one, party=0)
    for p in run.members:
        run.upload(running, p, np.array([p]))
    run.unmask(running)
    assert run.result(running).tolist() == [3]


def test_the_roster_is_sent_until_a_party_has_answered() -> None:
    run = Run(3)
    running = run.order(1)
    for _ in range(2):
        assert run.server.sections(0, [running])[0] == run.server.roster
    run.upload(running, 0, [1])
    assert [m.phase for m in run.server.sections(0, [running])] == ["sum-order"]
    assert [m.phase for m in run.server.sections(1, [])] == ["sum-roster"]


# -- backups


@pytest.mark.parametrize("spool", [1, 1 << 24], ids=["on disk", "in memory"])
def test_backups_replace_seeds_of_the_silent(monkeypatch: pytest.MonkeyPatch, spool: int) -> None:
    """Without them a party that dies before it has uploaded, and one after, end the sum."""
    monkeypatch.setattr("fedkern_flwr.secure_sum.enclosed._SPOOL", spool)
    run = Run(20)
    for length in (1, 3_000):  # backups are 19 * (19 * 33 + 16) = 12 217 bytes per party
        running = run.filled(length, dead=[0, 1])
        assert running.backups == (length > 1)
        run.unmask(running, range(4, 20))
        run.recover(running, range(4, 18))
        if running.backups:
            assert (run.result(running) == sum(range(2, 20))).all()
        else:
            refuses("FK-SUM-SILENT", run.result, running)


def test_backups_are_shared_where_they_cost_no_more_than_the_vector() -> None:
    run = Run(20)
    for encoding, most in ((Encoding.integers(1), 12_217 // 8), (Encoding.circle(32), 3054)):
        assert not run.order(most, encoding).backups
        assert run.order(most + 1, encoding).backups
    assert not run.order(9999, receiver=0, self_masks=False).backups
    assert not Run(5, threshold=4).order(9999).backups  # nobody could be missing
    assert Run(5, threshold=3).order(9999).backups


# -- what is remembered

Secrets = dict[str, bytes]


def secrets_of(state: PartyState) -> Secrets:
    """All that belongs to open sums, and what leads to the next ones."""
    found = {f"root {c}-{j}": r for c, roots in state.roots.items() for j, r in roots.items()}
    for place, one in state.open.items():
        found |= {f"keys {place}-{j}": key for j, keys in one.keys.items() for key in keys}
        found |= {f"share {place}": one.own_share, f"pad {place}": one.pad}
    return {name: value for name, value in found.items() if value}


def check_absent(text: bytes | str, secrets: Secrets) -> None:
    """No secret stands in a text: as bytes, in hexadecimal, or as bytes are shown."""
    data = text.encode() if isinstance(text, str) else text
    for name, secret in secrets.items():
        for form in (secret, secret.hex().encode(), repr(secret)[2:-1].encode()):
            assert form not in data, f"there is the {name}"


def test_a_self_seed_is_never_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its shares are: the party itself could not open its own mask."""
    seen: Secrets = {}
    draw_bytes = party_module.secrets.token_bytes

    def token_bytes(size: int) -> bytes:
        value = draw_bytes(size)
        if size == 32:
            seen[f"seed {len(seen)}"] = value
        return value

    run = Run(4)
    running = run.order(3)
    run.join()
    monkeypatch.setattr(party_module.secrets, "token_bytes", token_bytes)
    run.upload(running, 1, [1, 2, 3])
    assert len(seen) == 1
    check_absent(run.states[1], seen)
    with pytest.raises(AssertionError, match="there is the"):  # negative control
        check_absent(run.states[1], secrets_of(run.party(1).state))


def test_open_sums_are_closed_by_number_and_cohort() -> None:
    run = Run(3, cohorts=[range(3), range(3)])
    run.join()
    party = run.party(1)
    sums = [run.order(1, name=f"{k}", cohort=k % 2) for k in range(6)]
    for running in sums:
        party.contribute(running.order, np.array([1]))
    assert set(party.state.open) == {(c, i) for c in (0, 1) for i in (1, 2, 3)}
    run.server.close(sums[0])
    run.server.close(sums[4])  # number 3 of cohort 0, while number 2 is open
    party.contribute(run.order(1, cohort=0).order, np.array([1]))
    assert set(party.state.open) == {(0, 2), (0, 3), (0, 4), (1, 1), (1, 2), (1, 3)}
    for k in (1, 2, 3, 5):
        run.server.close(sums[k])
    party.contribute(run.order(1, cohort=1).order, np.array([1]))
    assert set(party.state.open) == {(0, 2), (0, 3), (0, 4), (1, 4)}


def test_a_state_shows_no_secret() -> None:
    """Neither before the roster came, nor with sums that are open; it survives packing."""
    run = Run(5, cohorts=[range(5), [0, 1, 2]])
    states = [run.party(1).state]
    running = run.filled(2, name='a "name"', receiver=1)
    bare = run.order(2, receiver=1, self_masks=False, cohort=1, name="bare")
    run.contribute(bare, 1, [1, 2])
    run.unmask(running)
    states.append(run.party(1).state)
    for state in states:
        assert PartyState.unpack(state.pack()) == state
        check_absent(repr(state), secrets_of(state))
    assert states[-1].open[0, 1].alive  # the declared survivors are remembered
    assert sorted(states[-1].fixed) == ['a "name"', "bare"]  # and how sums were ordered


def test_errors_hold_no_values_and_no_keys() -> None:
    """Whatever is raised while a party works: neither data nor secrets in its text."""
    run = Run(5, threshold=4)
    running = run.order(2, receiver=2)
    secret = np.array([987654, 123456])
    for p in range(4):
        run.upload(running, p, secret)
    party, fresh = run.party(0), replace(running.order, index=2)
    hidden = secrets_of(party.state) | {str(n): str(n).encode() for n in secret}

    def provoke(action: Any, *arguments: Any) -> None:
        with pytest.raises(FedKernError) as caught:
            action(*arguments)
        error = caught.value
        assert error.__cause__ is None
        assert error.__suppress_context__ or error.__context__ is None
        check_absent(f"{error} {error!r} {error.args} {vars(error)}", hidden)

    changes = ({"bound": 10.0}, {"length": 3}, {"index": 1}, {"receiver": 9}, {"bits": 16})
    for bad in changes:
        provoke(run.party(0).contribute, replace(fresh, **bad), secret)
    provoke(run.party(0).contribute, fresh, secret + 0.5)
    request = run.unmask_request(running, 0)
    for wrong in ({"shares": b"x" * len(request.shares)}, {"alive": b"\x07"}, {"dead": b"\x00"}):
        provoke(party.unmask, replace(request, **wrong))


def test_the_server_forgets_a_closed_sum() -> None:
    run = Run(5, threshold=3)
    running = run.filled(2, dead=[4], backups=True)
    run.unmask(running, range(3))
    run.recover(running)
    kept = (running._shares, running._seeds, running._pair_shares)
    assert all(kept)
    run.result(running)
    assert not any(kept)
    assert not running.uploaded
    assert running._vector.size == 0
    assert running.enclosed.spool.closed
    assert run.server._open == {}
