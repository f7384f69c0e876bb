"""HierarchicalSVM against everybody who takes part: what sums hide, and what they show.

Attacks that succeed on a paper's mode fail on the default, or are what remains by design and is
documented; each has a control that shows that the test could fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from attacked import KEY, UNIFORM, p_uniform
from flwr.app import Context

from fedkern_flwr.clients import SVMClient
from fedkern_flwr.errors import CohortError, OptionError, ProtocolError
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.digits import DIGITS
from fedkern_flwr.groups.members import DEFAULT_BOUND
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.seeding import uniform
from fedkern_flwr.simulations import Transcript, simulate
from fedkern_flwr.simulations.engines.faults import Delivery, Fault
from fedkern_flwr.simulations.lab.attacks.gram_rows import rows_by_known, rows_up_to_rotation
from fedkern_flwr.simulations.lab.attacks.groups import SVMRun
from fedkern_flwr.simulations.lab.attacks.groups_inference import (
    changes,
    columns_in_span,
    fit_of,
    gradients_of_chain_end,
    gram_of_outputs,
    label_of_gradient,
    labels_of_message,
    lone_rows,
    outside_span,
    row_of_gradient,
    rows_found,
    sums_of_centers,
)
from fedkern_flwr.simulations.lab.attacks.groups_insiders import SVMInsiders
from fedkern_flwr.strategies import HierarchicalSVM

EXACT, ROUNDED = 1e-9, 1e-6
FIXED: dict[str, Any] = {"rho": 2.0, "tolerance": 1e-12}  # so that runs are as long as asked for
#: Rows of users, and the group of each.
PAIRS: tuple[tuple[int, ...], tuple[int, ...]] = ((10,) * 4, (0, 0, 1, 1))
THREES: tuple[tuple[int, ...], tuple[int, ...]] = ((1, 1, 1, 12, 12, 12), (0, 0, 0, 1, 1, 1))
FOUR_GROUPS: tuple[tuple[int, ...], tuple[int, ...]] = ((5,) * 8, (0, 0, 1, 1, 2, 2, 3, 3))


def table(rows: int, columns: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    score = x @ rng.normal(size=columns) + rng.normal(size=rows)
    return x, np.where(score > 0.0, 1.0, -1.0)


def serve(
    sizes: tuple[int, ...], groups: tuple[int, ...], columns: int, seed: int, single: bool
) -> Callable[[Context], SVMClient]:
    x, y = table(sum(sizes), columns, seed)
    ends = np.cumsum([0, *sizes])

    def client_fn(context: Context) -> SVMClient:
        k = int(context.node_config["partition-id"])
        if k >= len(sizes):
            return SVMClient(context, role="agent", group=k - len(sizes), allow_single=single)
        mine = slice(ends[k], ends[k + 1])
        own: dict[str, Any] = {"group": groups[k], "classes": [-1, 1], "allow_single": single}
        return SVMClient(context, x[mine], y[mine], **own)

    return client_fn


def run(
    split: tuple[tuple[int, ...], tuple[int, ...]],
    *,
    columns: int = 4,
    seed: int = 1,
    rounds: int = 12,
    single: bool = False,
    faults: Any = None,
    **options: Any,
) -> SVMRun:
    """Run a horizontal split and record it."""
    sizes, groups = split
    flat = options.get("architecture", "hierarchical") != "hierarchical"
    nodes = len(sizes) + (0 if flat else len(set(groups)))
    insiders, transcript = SVMInsiders(), Transcript()
    simulate(
        HierarchicalSVM(allow_single=single, **{**FIXED, **options}),
        insiders.watch(serve(sizes, groups, columns, seed, single)),
        nodes,
        num_rounds=rounds,
        transcript=transcript,
        faults=faults,
    )
    return SVMRun(transcript, insiders)


def same(one: list[np.ndarray], other: list[np.ndarray], tolerance: float = EXACT) -> bool:
    pairs = list(zip(one, other, strict=False))
    assert len(pairs) > 2
    return all(np.abs(a - b).max() < tolerance for a, b in pairs)


def term_of(seen: SVMRun, group: int, tick: int) -> np.ndarray:
    """The term z_i + s_i of an agent at a tick: the truth."""
    kept = dict(seen.insiders.parties[seen.agents[group]].steps)[tick]
    return np.asarray(kept["term"][: kept["center"].size])


@cache
def usual() -> SVMRun:
    """Two groups of three users; those of the first have a row each."""
    return run(THREES)


@cache
def in_turn() -> SVMRun:
    """The same, agents asked after the users."""
    return run(THREES, pipelined=False)


@cache
def long() -> SVMRun:
    return run(PAIRS, rounds=40)


# -- what travels is uniform, and fresh in every run; of other modes see test_audit_of_runs.py

MODES: dict[str, tuple[tuple[tuple[int, ...], tuple[int, ...]], dict[str, Any]]] = {
    "two groups": (PAIRS, {}),
    "leave-out": (FOUR_GROUPS, {"lost_groups": "leave-out"}),
    "ring": (FOUR_GROUPS, {"agent_topology": "ring"}),
    "chain": (((10,) * 4, (0, 0, 0, 0)), {"architecture": "chain"}),
}


@pytest.mark.parametrize("mode", MODES)
def test_server_and_agents_are_sent_uniform_numbers(mode: str) -> None:
    split, options = MODES[mode]
    one, other = (run(split, columns=24, rounds=6, **options) for _ in range(2))
    vectors = [list(seen.masked()) for seen in (one, other)]
    for delivered in (False, True):
        rings = [[v.ring for v in found if v.delivered == delivered] for found in vectors]
        assert bool(rings[0]) == (not delivered or bool(one.agents))
        if rings[0]:
            assert p_uniform(np.concatenate(rings[0])) > UNIFORM
            pairs = zip(*rings, strict=False)  # the same values under other masks
            fresh = [a - b for a, b in pairs if a.size == b.size]
            assert p_uniform(np.concatenate(fresh)) > UNIFORM
    for agent in one.agents.values():
        received, sent = one.ring(agent)
        assert bool(received) == (mode == "ring")
        if received:
            assert p_uniform(np.concatenate(received)) > UNIFORM
            assert p_uniform(np.concatenate(sent)) > UNIFORM


def test_masked_vectors_tell_nothing_about_rows() -> None:
    """Inversion of what the server was sent, read as numbers in all ways."""
    seen = run(((1, 10, 10, 10), (0, 0, 1, 1)))
    every = seen.rows(0, 1, 2, 3)
    for vector in seen.masked():
        if vector.order.name.partition("#")[0] in (wire.GROUP_SUM, wire.AGENTS_SUM):
            for reading in ("fixed point", "fraction", "doubles"):
                bare = np.nan_to_num(vector.read(reading)[None, :5])  # type: ignore[arg-type]
                assert not rows_found([bare], every)
    assert rows_found(seen.own_gradients(0), every) == {0}  # control: of a vector without masks


# -- everybody has the sums of gradients


@pytest.mark.parametrize("pipelined", [True, False])
def test_agent_users_and_server_compute_the_sums_of_gradients(pipelined: bool) -> None:
    seen = usual() if pipelined else in_turn()
    own = {user: seen.own_gradients(user) for group in seen.groups.values() for user in group}
    for group, users in seen.groups.items():
        truth = [sum(parts) for parts in zip(*(own[user] for user in users), strict=True)]
        assert same(seen.by_agent(group), truth, ROUNDED)  # type: ignore[arg-type]
        for user in users:
            assert same(seen.by_user(user), truth, ROUNDED)  # type: ignore[arg-type]
            assert not same(seen.by_user(user), own[user], ROUNDED)  # control
    every = [sum(parts) for parts in zip(*own.values(), strict=True)]
    assert same(seen.by_server(), every, ROUNDED)  # type: ignore[arg-type]


def opened_by(seen: SVMRun, user: int) -> list[np.ndarray]:
    """The sums of its group that a user opens with its agent's pads."""
    pads = {p[2]: v for _, p, v in seen.insiders.parties[user].opened if p[1] == "pad"}
    found = []
    for asked in seen.requests(wire.StepWithAgentRequest, user):
        if asked.round > 1:
            pad = pads[asked.round - 1].view(np.uint64)
            assert pad.size == asked.padded.size == asked.judged.size  # and of no statistics
            members = len(seen.groups[seen.parties[user].group]) + 1
            encoding = Encoding.fixed_point(DEFAULT_BOUND)
            found.append(encoding.decode(asked.padded - pad, members))
    return found


def test_users_who_make_their_center_open_what_they_could_compute_before() -> None:
    """The group's sum of models and duals, which follows from centers and global models."""
    before, seen = in_turn(), usual()
    for user in (0, 4):
        group = seen.parties[user].group
        centers = [np.zeros((1, 5)), *(c.reshape(1, 5) for c in before.unsealed(user, "center"))]
        local = list(before.requests(wire.LocalRequest, user))
        agents = [a for a in before.requests(wire.AgentRequest, before.agents[group]) if a.advance]
        count = len(centers) - 1
        computed = sums_of_centers(
            centers,
            [a.judged for a in local[:count]],
            [a.rho for a in local[:count]],
            [a.sigma for a in agents[:count]],
            3,
            1,
            local[0].relaxation,
        )
        assert same([s.ravel() for s in computed], opened_by(seen, user), ROUNDED)
    assert not same(opened_by(seen, 0), opened_by(seen, 4), ROUNDED)  # control


def test_what_the_server_opens_is_what_follows_from_the_public_model() -> None:
    """So users and agents know the agents' total as well."""
    seen = usual()
    opened = [t[:5].reshape(1, 5) for t in seen.totals(wire.AGENTS_SUM)]
    assert same(seen.terms()[1:], opened)
    assert not same(changes(seen.terms()[1:]), opened)  # control


def test_the_only_user_of_a_group_shows_its_row_to_the_agent() -> None:
    """Control of all inversions; refused unless allowed at both ends."""
    split = ((1, 10, 10, 10), (0, 1, 1, 1))
    with pytest.raises(OptionError, match="whose model its agent would see"):
        run(split)
    seen = run(split, single=True)
    gradient = seen.by_agent(0)[0]
    np.testing.assert_allclose(row_of_gradient(gradient), seen.rows(0)[0], atol=EXACT)
    assert label_of_gradient(gradient) == seen.labels(0)[0, 0]


def test_first_gradients_of_groups_show_no_row() -> None:
    """Their rows are all in it."""
    for seen in (usual(), long()):
        for group, users in seen.groups.items():
            assert not rows_found(seen.by_agent(group)[:3], seen.rows(*users))
        every = seen.rows(*itertools.chain(*seen.groups.values()))
        assert not rows_found(seen.by_server()[:3], every)


# -- what remains by design: small groups


def test_one_of_two_users_learns_the_gradients_of_the_other() -> None:
    seen = run(((8, 1, 10, 10), (0, 0, 1, 1)))
    others = [a - b for a, b in zip(seen.by_user(0), seen.own_gradients(0), strict=False)]
    assert same(others, seen.own_gradients(1))
    np.testing.assert_allclose(row_of_gradient(others[0]), seen.rows(1)[0], atol=EXACT)
    assert label_of_gradient(others[0]) == seen.labels(1)[0, 0]
    three = usual()  # control: of two others the sum
    rest = [a - b for a, b in zip(three.by_user(0), three.own_gradients(0), strict=False)]
    assert not rows_found(rest[:1], three.rows(1, 2))


def test_users_learn_means_and_deviations_over_all_users() -> None:
    """Documented: coordinates in which they work; of two users each has the other's."""
    for sizes, groups in (((8, 1), (0, 0)), ((8, 1, 5, 7), (0, 0, 1, 1))):
        seen = run((sizes, groups))
        x = [seen.insiders.parties[user].client.table.x for user in range(len(sizes))]
        every = np.concatenate(x)
        first, *later = seen.requests(wire.StepWithAgentRequest, 0)
        np.testing.assert_allclose(first.mean, every.mean(axis=0), atol=ROUNDED)
        np.testing.assert_allclose(first.deviation, every.std(axis=0), atol=ROUNDED)
        assert not any(request.mean.size for request in later)
        rest = first.mean * len(every) - x[0].sum(axis=0)
        found = np.abs(rest - x[1][0]).max() < ROUNDED
        assert found == (len(sizes) == 2)  # control: of three others a sum


def test_the_server_learns_how_many_rows_a_class_has_where_classes_are_weighted_only() -> None:
    for weights in (None, "balanced"):
        seen = run(PAIRS, rounds=2, class_weight=weights)
        names = {vector.order.name for vector in seen.masked()}
        (name,) = [n for n in names if n.startswith(wire.STATISTICS_SUM)]
        (total,) = seen.totals(name)
        assert total.size == 2 * 4 * DIGITS + (weights is not None)
    labels = np.concatenate([seen.labels(user) for user in range(4)])
    assert total[-1] == pytest.approx((labels > 0.0).mean(), abs=ROUNDED)


def test_each_of_two_agents_learns_the_gradients_of_the_other_group() -> None:
    """The total is public: nothing can hide a term from the only other agent."""
    seen = usual()
    assert same(seen.by_other_agent(0, 1), seen.by_agent(1), ROUNDED)
    assert same(seen.by_other_agent(1, 0), seen.by_agent(0), ROUNDED)
    four = run(FOUR_GROUPS)  # control: of three others the sum
    assert not same(four.by_other_agent(0, 1), four.by_agent(1), ROUNDED)


def test_a_group_of_fewer_rows_than_coefficients_shows_which_rows_are_in_it() -> None:
    seen = usual()
    inside, others = seen.rows(0, 1, 2), seen.rows(3, 4, 5)
    for gradients in (seen.by_agent(0), seen.by_user(0)):
        assert outside_span(gradients, inside).max() < ROUNDED
        assert outside_span(gradients, others).min() > 0.01
    assert outside_span(seen.by_agent(1), inside).max() < ROUNDED  # control: everything is


def test_random_features_show_which_rows_are_in_a_group() -> None:
    """There are more coefficients than rows, so guesses of rows can be told apart."""
    seen = run(((5,) * 6, (0, 0, 0, 1, 1, 1)), rounds=40, model="rbf", features=100, scale="none")
    inside, others = seen.rows(0, 1, 2), seen.rows(3, 4, 5)
    found = outside_span(seen.by_agent(0), inside)
    assert np.median(found) < 1e-5
    assert outside_span(seen.by_agent(0), others).min() > 0.05
    few = outside_span(seen.by_agent(0)[:3], inside)  # control: fewer gradients than rows
    assert few.min() > 0.05


# -- what remains by design: late iterations


def test_late_changes_show_single_rows_to_agent_and_users() -> None:
    """Near the optimum of the hinge all dual variables of a group but one rest at their bounds."""
    seen = long()
    shown = 0
    for group, users in seen.groups.items():
        rows = seen.rows(*users)
        for gradients in (seen.by_agent(group), seen.by_user(users[0])):
            for row in lone_rows(gradients):  # noticed without knowing any
                assert np.abs(rows - row).max(axis=1).min() < ROUNDED
                shown += 1
    assert shown >= 2
    early = [lone_rows(seen.by_agent(group)[:6]) for group in seen.groups]  # control
    assert early == [[], []]


def test_changes_of_logistic_models_show_no_rows() -> None:
    """All rows take part in all changes."""
    seen = run(PAIRS, rounds=30, model="logistic")
    for group, users in seen.groups.items():
        assert not rows_found(seen.by_agent(group), seen.rows(*users))
    assert not rows_found(seen.by_server(), seen.rows(0, 1, 2, 3))


def test_changes_of_the_total_of_many_users_show_no_rows() -> None:
    """Control: somebody's rows always move. The groups of the same run show some."""
    seen = run(((10,) * 8, (0, 0, 1, 1, 2, 2, 3, 3)), rounds=40)
    assert not rows_found(seen.by_server(), seen.rows(*range(8)))
    shown = [rows_found(seen.by_agent(g), seen.rows(*seen.groups[g])) for g in seen.groups]
    assert any(shown)


# -- the ring


def test_a_ring_of_two_is_refused() -> None:
    with pytest.raises(OptionError, match="a ring of 2 agents shows each the other's term"):
        run(PAIRS, agent_topology="ring")


def test_neighbours_in_a_ring_recover_the_term_between_them() -> None:
    ring = run(FOUR_GROUPS, columns=12, agent_topology="ring")
    encoding = Encoding.fixed_point(2.0**20)
    received, sent = ring.ring(ring.agents[1])  # known to agents 0 and 2
    for tick, (before, after) in enumerate(zip(received, sent, strict=True), start=1):
        between = encoding.decode(after - before, 4)
        assert np.abs(between[:13] - term_of(ring, 1, tick)).max() < EXACT
    for seen in (received, sent):  # control: one agent alone sees what is masked
        assert p_uniform(np.concatenate(seen)) > UNIFORM


@pytest.mark.parametrize("agents", [3, 4])
def test_with_pairwise_masks_colluding_agents_have_the_sum_of_the_others(agents: int) -> None:
    """Of three agents two have the term of the third, in any topology: the total is public."""
    split = ((5,) * (2 * agents), tuple(k // 2 for k in range(2 * agents)))
    seen = run(split)
    for tick, total in enumerate(seen.terms(), start=1):
        rest = (total - term_of(seen, 0, tick).reshape(1, -1)).ravel() - term_of(seen, 2, tick)
        exact = np.abs(rest - term_of(seen, 1, tick)).max() < ROUNDED
        assert exact == (agents == 3 or tick == 1)
    uploads = [v for v in seen.masked() if v.order.name == wire.AGENTS_SUM]
    pair = [v.ring for v in uploads if v.partition in (seen.agents[0], seen.agents[2])]
    assert p_uniform(np.concatenate(pair)) > UNIFORM


# -- losses


def lose_user(delivery: Delivery) -> Fault | None:
    late = delivery.phase in ("svm-local", "svm-step") and delivery.round > 8
    return Fault("vanished") if late and delivery.partition == 6 else None


@pytest.mark.parametrize("topology", ["pairwise", "ring"])
def test_a_group_that_is_left_out_shows_about_its_term_by_difference(topology: str) -> None:
    seen = run(
        FOUR_GROUPS,
        faults=lose_user,
        lost_groups="leave-out",
        agent_topology=topology,
        attempts=1,
        rounds=14,
    )
    asked = list(seen.requests(wire.AgentRequest, seen.agents[0]))
    counts = [a.groups for a in asked]
    last = counts.index(3)  # the first tick without the group
    terms, truth = seen.terms(), term_of(seen, 3, last)
    found = (terms[last - 1] - terms[last]).ravel()
    assert np.linalg.norm(found - truth) < 0.25 * np.linalg.norm(truth)
    assert fit_of(found, truth) > 0.97
    other = (terms[last - 2] - terms[last - 1]).ravel()  # control: nobody is lost there
    assert np.linalg.norm(other - truth) > 0.5 * np.linalg.norm(truth)


def test_the_default_stops_without_a_total_of_the_others() -> None:
    sizes, groups = FOUR_GROUPS
    insiders, transcript = SVMInsiders(), Transcript()
    strategy = HierarchicalSVM(attempts=1, **FIXED)
    client_fn = insiders.watch(serve(sizes, groups, 4, 1, False))
    with pytest.raises(CohortError, match="group 3 cannot go on"):
        simulate(strategy, client_fn, 12, num_rounds=14, transcript=transcript, faults=lose_user)
    seen = SVMRun(transcript, insiders)
    assert {a.groups for a in seen.requests(wire.CombineRequest)} == {4}
    sums: dict[int, set[int]] = {}
    for vector in seen.masked():
        if vector.order.name == wire.AGENTS_SUM:
            assert not vector.order.self_masks
            sums.setdefault(vector.order.index, set()).add(vector.partition)
    assert set(map(len, sums.values())) == {4}


# -- asynchronous


def hold_back(delivery: Delivery) -> Fault | None:
    if delivery.phase != "svm-local":
        return None
    group = FOUR_GROUPS[1][delivery.partition]
    return Fault("delay", seconds=0.004 - 0.01 * np.log(uniform(1, "delay", group, delivery.round)))


def test_two_totals_differ_by_two_groups_at_least() -> None:
    """Which is enough against the server, but not against one of the two agents."""
    seen = run(FOUR_GROUPS, staleness=3, rounds=10, faults=hold_back)
    advanced: dict[int, set[int]] = {}
    for passed in seen.messages:
        if isinstance(passed.message, wire.AgentRequest):
            group = passed.partition - 8
            advanced.setdefault(passed.message.round, set())
            advanced[passed.message.round] |= {group} if passed.message.advance else set()
    assert advanced.pop(1) == set()
    assert min(map(len, advanced.values())) >= 2
    assert min(map(len, advanced.values())) < 4  # control: groups did not wait for all
    terms = seen.terms()
    exact = 0
    for tick, groups in sorted(advanced.items()):
        if len(groups) == 2 and tick <= len(terms):
            moved = {g: term_of(seen, g, tick) - term_of(seen, g, tick - 1) for g in groups}
            change = (terms[tick - 1] - terms[tick - 2]).ravel()
            one, other = moved.values()
            assert np.abs(change - one - other).max() < ROUNDED  # what one agent has of the other
            assert np.abs(change - one).max() > ROUNDED  # what the server has
            exact += 1
    assert exact > 0


# -- chain


def test_the_end_of_a_chain_shows_its_row_to_its_neighbour() -> None:
    for rows in (1, 6):
        seen = run(((6, 6, rows), (0, 0, 0)), architecture="chain", rounds=8)
        end = [v.reshape(1, -1) for v in seen.unsealed(1, "model", source=2)]
        own = [kept["model"] for _, kept in seen.insiders.parties[1].steps[: len(end)]]
        rho = next(seen.requests(wire.ChainRequest)).rho
        found = gradients_of_chain_end(own, end, seen.ridge / 3, rho)
        shown = np.abs(row_of_gradient(found[0]) - seen.rows(2)).max(axis=1).min() < EXACT
        assert shown == (rows == 1)  # more rows: their sum
        if rows == 1:
            assert label_of_gradient(found[0]) == seen.labels(2)[0, 0]


def test_users_of_other_architectures_unseal_no_models() -> None:
    flat = run(((6, 6, 1), (0, 0, 0)), architecture="centralised", rounds=4)
    assert not any(insider.opened for insider in flat.insiders.parties.values())
    seen = usual()
    for users in seen.groups.values():
        for user in users:
            assert {place[1] for _, place, _ in seen.insiders.parties[user].opened} == {"pad"}


# -- vertical splits


class Columns:
    """A recorded run of a vertical split: groups of three and four columns, users with rows.

    The first column is binary.
    """

    def __init__(self, sizes: tuple[int, ...] = (20, 20), **options: Any) -> None:
        self.x, self.y = table(sum(sizes), 7, 1)
        self.x[:, 0] = self.x[:, 0] > 0.3
        self.sizes, self.users = sizes, len(sizes)
        self.owner = 2 * self.users + 2
        self.product = options.get("product", "local")
        self.insiders, transcript = SVMInsiders(), Transcript()
        simulate(
            HierarchicalSVM(partition="vertical", tolerance=1e-9, **options),
            self.insiders.watch(self.client_fn),
            self.owner + 1,
            num_rounds=40,
            transcript=transcript,
        )
        self.seen = SVMRun(transcript, self.insiders)
        self.session = next(p.message.session for p in self.seen.messages if not p.up)

    def client_fn(self, context: Context) -> SVMClient:
        k = int(context.node_config["partition-id"])
        ids, ends = np.arange(len(self.y)), np.cumsum([0, *self.sizes])
        if k == self.owner:
            common: dict[str, Any] = {"ids": ids, "y": self.y, "classes": [-1, 1]}
            return SVMClient(context, role="owner", alignment_key=KEY, **common)
        if k >= 2 * self.users:
            return SVMClient(context, role="agent", group=k - 2 * self.users)
        group, j = divmod(k, self.users)
        mine = np.random.default_rng(group).permutation(ids)[ends[j] : ends[j + 1]]
        own = self.x[mine][:, (slice(0, 3), slice(3, 7))[group]]
        more: dict[str, Any] = {"alignment_key": KEY, "product": self.product}
        return SVMClient(context, own, ids=mine, group=group, **more)

    @property
    def order(self) -> np.ndarray:
        """Which row of the table each row of the plan is."""
        table = self.insiders.parties[self.owner].client.table
        return np.asarray(table.order(self.session, KEY)[self.seen.kept(self.owner)["take"]])

    def rows_of(self, user: int) -> np.ndarray:
        """Which rows of the table a user has, in the order of its messages."""
        return np.asarray(self.order[self.seen.kept(user)["place"]])


@cache
def vertical() -> Columns:
    return Columns()


@cache
def orthogonal() -> Columns:
    return Columns((60, 60), product="orthogonal")


def test_the_label_owner_learns_inner_products_of_all_rows() -> None:
    done = vertical()
    kept = done.seen.kept(done.owner)
    sent = kept["sent"][:, : kept["outputs"].shape[1]]
    gram = gram_of_outputs(sent, kept["outputs"])
    x = ((done.x - done.x.mean(0)) / done.x.std(0))[done.order]
    assert gram is not None
    assert np.abs(gram - x @ x.T).max() < ROUNDED
    turned = rows_up_to_rotation(np.round(gram, 7))[:, :7]
    assert np.abs(turned @ turned.T - gram).max() < 1e-4
    known = np.arange(7)  # as many records as columns, which are centred
    assert np.abs(rows_by_known(gram, known, x[known]) - x).max() < 1e-4
    wrong = rows_by_known(gram, known, x[known[::-1]])  # controls
    assert np.abs(wrong - x).max() > 0.5
    assert gram_of_outputs(sent[:, :5], kept["outputs"][:, :5]) is None


def test_users_learn_the_labels_of_their_rows() -> None:
    done = vertical()
    for user in range(2 * done.users):
        first, *later = done.seen.unsealed(user, "message")
        truth = done.y[done.rows_of(user)]
        assert (labels_of_message(first[:, None]) == truth).all()
        assert any((np.sign(m) != truth).any() for m in later)  # control
    for agent in (4, 5):
        assert not done.insiders.parties[agent].opened  # agents have sums only
    assert not done.seen.kept(done.owner).keys() & {"mean", "deviation"}


def test_one_of_two_users_learns_the_only_row_of_the_other_from_the_means() -> None:
    for sizes in ((20, 1), (19, 1, 1)):
        done = Columns(sizes)
        x = done.insiders.parties[0].client.table.x
        rest = done.seen.kept(0)["mean"] * sum(sizes) - x.sum(axis=0)
        row = done.insiders.parties[1].client.table.x[0]
        assert (np.abs(rest - row).max() < ROUNDED) == (len(sizes) == 2)  # control: of two a sum


def test_orthogonal_products_let_the_agent_test_guesses_of_columns() -> None:
    """A true column passes in any units; of binary ones it is found among candidates."""
    done = orthogonal()
    vectors = done.seen.kept(4)["vectors 0"]
    rows = done.rows_of(0)
    assert columns_in_span(vectors, done.x[rows][:, :3]).max() < EXACT
    assert columns_in_span(vectors, 5.0 - 3.0 * done.x[rows][:, :1]).max() < EXACT
    guesses = np.random.default_rng(0).integers(0, 2, (len(rows), 1000)).astype(float)
    guesses[:, 345] = done.x[rows][:, 0]
    near = done.x[rows][:, 0].copy()
    near[0] = 1.0 - near[0]
    guesses[:, 346] = near  # one wrong value
    passed = np.flatnonzero(columns_in_span(vectors, guesses) < EXACT)
    assert passed.tolist() == [345]


def test_agents_of_local_products_have_nothing_to_test_guesses_with() -> None:
    done = vertical()
    assert not any(name.startswith("vectors") for name in done.seen.kept(4))
    assert not done.insiders.parties[4].opened
    sizes = {total.size for _, total in done.insiders.parties[4].totals}
    assert sizes == {24, 3}  # digits of statistics, and weights: sums over its users' rows


def test_orthogonal_products_show_users_most_of_the_multiplier_and_agents_all_of_it() -> None:
    done = orthogonal()
    truth = done.y[done.rows_of(0)]
    messages = done.seen.unsealed(4, "message")[:: done.users]
    masked = done.seen.unsealed(0, "message")
    fits = [fit_of(w, c) for c, w in zip(messages, masked, strict=True)]
    assert np.mean(fits) > 0.5
    assert (labels_of_message(messages[0][:, None]) == truth).all()
    assert (labels_of_message(masked[0][:, None]) == truth).mean() > 0.65
    rng = np.random.default_rng(0)  # control
    assert np.mean([abs(fit_of(rng.normal(size=60), c)) for c in messages]) < 0.5


class Mixed(Columns):
    """Nodes of local products in a run of orthogonal ones."""

    def client_fn(self, context: Context) -> SVMClient:
        self.product = "local"
        return super().client_fn(context)


def test_nodes_take_part_in_the_kind_of_product_that_they_chose_only() -> None:
    with pytest.raises(ProtocolError, match="takes part in runs with product 'local' only"):
        Mixed(product="orthogonal")
