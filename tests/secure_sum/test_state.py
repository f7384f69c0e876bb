"""What a party remembers: enough to go on from bytes, and nothing of what is closed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sums_in_memory import Run

from fedkern_flwr.errors import FedKernError
from fedkern_flwr.secure_sum import Party, PartyState
from fedkern_flwr.secure_sum import party as party_module
from fedkern_flwr.secure_sum.keys import next_root, pair_label, sum_keys, sum_label

Secrets = dict[str, bytes]


def secrets_of(state: PartyState, number: int) -> Secrets:
    """All that belongs to one open sum."""
    opened = state.open[0, number]
    found = {f"mask key with {j}": mask for j, (mask, _) in opened.keys.items()}
    found |= {f"relay key with {j}": relay for j, (_, relay) in opened.keys.items()}
    found |= {"own share": opened.own_share, "pad": opened.pad}
    return {name: value for name, value in found.items() if value}


def roots_of(state: PartyState) -> Secrets:
    return {f"root {c}-{j}": r for c, roots in state.roots.items() for j, r in roots.items()}


def forms(secret: bytes) -> list[bytes]:
    """How bytes may stand in a packed state."""
    number = int.from_bytes(secret, "little"), int.from_bytes(secret, "big")
    return [
        secret,
        secret.hex().encode(),
        secret.hex().upper().encode(),
        json.dumps(list(secret)).encode(),
        *(str(n).encode() for n in number),
    ]


def check_forgotten(packed: bytes, secrets: Secrets) -> None:
    """None of the secrets is in the packed state, nor does one of its roots lead to them."""
    for name, secret in secrets.items():
        assert len(secret) >= 32
        for form in forms(secret):
            assert form not in packed, f"the state still holds the {name}"


def check_no_way_back(packed: bytes, secrets: Secrets, steps: int = 30) -> None:
    """No root in the state gives a secret of an earlier sum, stepped as often as you like."""
    state = PartyState.unpack(packed)
    known = set(secrets.values())
    for cohort, roots in state.roots.items():
        for other, root in roots.items():
            for step in range(steps):
                pair = pair_label(1, other)
                for index in range(steps if step == 0 else 3):
                    label = sum_label(state.session, cohort, index, "gradient")
                    derived = {root, *sum_keys(root, label, pair)}
                    assert not derived & known, f"a root leads to a secret with {other}"
                root = next_root(root)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Everything 32 bytes long that parties draw: self seeds and pads."""
    seen: list[bytes] = []
    draw = party_module.secrets.token_bytes

    def token_bytes(size: int) -> bytes:
        value = draw(size)
        if size == 32:
            seen.append(value)
        return value

    monkeypatch.setattr(party_module.secrets, "token_bytes", token_bytes)
    return seen


@pytest.mark.parametrize(
    "options",
    [{}, {"receiver": 1}, {"receiver": 0}, {"receiver": 1, "self_masks": False}],
    ids=["server", "own receiver", "other receiver", "no self masks"],
)
def test_a_closed_sum_leaves_nothing_behind(drawn: list[bytes], options: dict[str, Any]) -> None:
    """Party 1 looks at its state after every message of two sums."""
    run = Run(5, threshold=4)
    run.join()
    before = roots_of(run.party(1).state)
    running = run.order(3, **options)
    drawn.clear()
    run.upload(running, 1, [1, 2, 3])
    own = {f"seed drawn {k}": value for k, value in enumerate(drawn)}
    assert len(own) == int(options.get("self_masks", True)) + int(options.get("receiver") == 1)
    secrets = secrets_of(run.party(1).state, 1)
    assert len(secrets) == 8 + len(own)
    for name, secret in secrets.items():  # negative control: while it is open they are there
        with pytest.raises(AssertionError, match="the state still holds the"):
            check_forgotten(run.states[1], {name: secret})
    others = [0, 2, 3, 4] if options.get("self_masks") is False else [0, 2, 3]
    for p in others:
        run.upload(running, p, [1, 2, 3])
    run.unmask(running, [p for p in run.members if p != 3])
    run.recover(running, [p for p in run.members if p != 3])
    if running.complete:
        run.result(running)
    run.server.close(running)
    later = run.order(1, name="later")
    assert later.order.open_from == 2
    run.contribute(later, 1, [1])
    gone = {f"{name} of sum 1": secret for name, secret in (secrets | before).items()}
    gone |= {name: value for name, value in own.items() if value not in secrets.values()}
    check_forgotten(run.states[1], gone)
    check_no_way_back(run.states[1], gone)
    assert list(run.party(1).state.open) == [(0, 2)]


def test_a_self_seed_is_never_stored(drawn: list[bytes]) -> None:
    """Only its shares are: the party itself could not open its own mask."""
    run = Run(4)
    running = run.order(3)
    run.join()
    drawn.clear()
    run.upload(running, 1, [1, 2, 3])
    (seed,) = drawn
    check_forgotten(run.states[1], {"self seed": seed})


def test_roots_lead_forward_only() -> None:
    run = Run(4)
    run.join()
    seen: Secrets = {}
    for number in range(1, 6):
        seen |= {
            f"{name} before sum {number}": r for name, r in roots_of(run.party(1).state).items()
        }
        run.contribute(run.order(1), 1, [1])
        check_forgotten(run.states[1], seen)
        check_no_way_back(run.states[1], seen)


@pytest.mark.parametrize("broken", ["no ratchet", "nothing is closed"])
def test_a_state_that_remembers_is_noticed(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """Negative control: a party that keeps its roots, or its sums."""
    if broken == "no ratchet":
        monkeypatch.setattr(party_module, "next_root", lambda root: root)
    else:
        monkeypatch.setattr(PartyState, "close", lambda *_: None)
    run = Run(4)
    run.join()
    before = roots_of(run.party(1).state)
    running = run.order(1)
    run.contribute(running, 1, [1])
    secrets = secrets_of(run.party(1).state, 1) | before
    run.server.close(running)
    run.contribute(run.order(1), 1, [1])
    with pytest.raises(AssertionError, match="the state still holds the"):
        check_forgotten(run.states[1], secrets)
    if broken == "no ratchet":
        monkeypatch.undo()
        with pytest.raises(AssertionError, match="a root leads to a secret"):
            check_no_way_back(run.states[1], secrets)


def test_the_private_key_is_erased_when_the_roster_has_come() -> None:
    run = Run(4, cohorts=[range(4), range(3)])
    private = run.party(1).state.private
    with pytest.raises(AssertionError, match="the state still holds the private key"):
        check_forgotten(run.states[1], {"private key": private})  # negative control
    run.join()
    check_forgotten(run.states[1], {"private key": private})
    run.contribute(run.order(1), 1, [1])
    check_forgotten(run.states[1], {"private key": private})
    run.join()  # the same roster once more
    check_forgotten(run.states[1], {"private key": private})


def test_the_private_key_alone_would_open_everything() -> None:
    """Negative control: with a key that was not erased all roots come back."""
    run = Run(3)
    party = run.party(1)
    again = Party(1, PartyState.unpack(run.states[1]))
    for p in (party, again):
        p.join(run.server.roster)
    assert party.state.roots == again.state.roots


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


def test_the_state_survives_packing() -> None:
    run = Run(5, cohorts=[range(5), [0, 1, 2]], threshold=None)
    states = [run.party(1).state]
    run.join()
    states.append(run.party(1).state)
    running = run.order(2, name='a "name"', receiver=1)
    for p in run.members:
        run.upload(running, p, [1, 2])
    bare = run.order(2, receiver=1, self_masks=False, cohort=1, name="bare")
    run.contribute(bare, 1, [1, 2])
    states.append(run.party(1).state)
    run.unmask(running)
    states.append(run.party(1).state)
    for state in states:
        packed = state.pack()
        again = PartyState.unpack(packed)
        assert again == state
        assert again.pack() == packed
    assert len({state.pack() for state in states}) == len(states)
    assert states[-1].open[0, 1].alive  # the declared survivors are remembered
    assert sorted(states[-1].fixed) == ['a "name"', "bare"]  # and how sums were ordered


def test_errors_hold_no_values_and_no_keys() -> None:
    """Whatever is raised while a party works: neither data nor secrets in its text."""
    run = Run(5, threshold=4)
    run.join()
    running = run.order(2, receiver=2)
    secret = np.array([987654, 123456])
    for p in range(4):
        run.upload(running, p, secret)
    request = run.unmask_request(running, 0)
    party = run.party(0)
    state = party.state
    hidden = {**secrets_of(state, 1), **roots_of(state)}
    texts = []

    def provoke(action: Any, *arguments: Any) -> None:
        with pytest.raises(FedKernError) as caught:
            action(*arguments)
        error = caught.value
        texts.append(f"{error} {error!r} {error.args} {vars(error)}")
        assert error.__cause__ is None
        assert error.__suppress_context__ or error.__context__ is None

    change = running.order.__class__
    fresh = {**vars(running.order), "index": 2}
    for bad in ({"bound": 10.0}, {"length": 3}, {"index": 1}, {"receiver": 9}, {"bits": 16}):
        provoke(run.party(0).contribute, change(**{**fresh, **bad}), secret)
    provoke(run.party(0).contribute, change(**fresh), secret + 0.5)
    unmask = type(request)
    for bad in ({"shares": b"x" * len(request.shares)}, {"alive": b"\x07"}, {"dead": b"\x00"}):
        provoke(party.unmask, unmask(**{**vars(request), **bad}))
    assert len(texts) == 9
    for text in texts:
        assert "\\n" not in text
        assert not any(number in text for number in ("987654", "123456"))
        check_forgotten(text.encode(), hidden)
    with pytest.raises(AssertionError):  # negative control
        check_forgotten(repr(state).encode() + state.pack(), hidden)


def test_the_state_does_not_show_its_secrets() -> None:
    run = Run(3)
    state = run.party(1).state
    assert repr(state.private)[2:-1] not in repr(state)
    run.contribute(run.order(1), 1, [1])
    state = run.party(1).state
    for secret in (*secrets_of(state, 1).values(), *roots_of(state).values()):
        assert repr(secret)[2:-1] not in repr(state)


def test_the_server_forgets_a_closed_sum() -> None:
    run = Run(5, threshold=3)
    running = run.order(2, backups=True)
    for p in range(4):
        run.upload(running, p, [1, 2])
    run.unmask(running, range(3))
    run.recover(running)
    assert running._shares
    assert running._seeds
    assert running._pair_shares
    run.result(running)
    for kept in (running._shares, running._seeds, running._pair_shares, running.uploaded):
        assert not kept
    assert running._vector.size == 0
    assert running.enclosed.spool.closed
    assert run.server._open == {}
