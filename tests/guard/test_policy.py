"""A node's policy: what it may say, how it is written, what is refused in one line."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import raises

from fedkern_flwr.errors import OptionError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.policy import RULES, read_policy, write_policy
from fedkern_flwr.simulations.cli.main import run

COUNTS = st.integers(0, 2**40)
POLICIES = st.builds(
    NodePolicy,
    methods=st.lists(st.from_regex(r"[a-z0-9-]+", fullmatch=True), max_size=3).map(tuple),
    min_parties=st.none() | st.integers(2, 100),
    min_own_rows=COUNTS,
    min_sum_rows=COUNTS,
    min_evaluation_rows=COUNTS,
    require_secure_sums=st.booleans(),
    require_pinned_identities=st.booleans(),
    max_evaluations=COUNTS,
    counting=st.sampled_from([None, "refuse", "warn"]),
    allow_small_sums=st.booleans(),
    allow_recovery=st.booleans(),
    max_binary_columns=st.none() | COUNTS,
    max_epsilon=st.floats(0.0, allow_nan=False),
    strata=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), max_size=2).map(tuple),
    held_out=st.booleans(),
)


@settings(max_examples=40)
@given(policy=POLICIES)
def test_a_policy_survives_its_file(policy: NodePolicy, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("policy") / "policy.toml"
    path.write_text(write_policy(policy), encoding="utf-8")
    assert read_policy(path) == policy


def test_every_rule_has_a_line_and_what_is_commented_out_is_the_default(tmp_path: Path) -> None:
    """Without the marks of comments the file says the defaults, where a default has a value."""
    text = write_policy(NodePolicy())
    assert set(RULES) == {field.name for field in fields(NodePolicy)}
    (tmp_path / "all").write_text(text.split("\n\n")[1].replace("\n# ", "\n").removeprefix("# "))
    given = read_policy(tmp_path / "all")
    changed = {"min_parties": 3, "counting": "refuse", "max_binary_columns": 0}
    assert given.changed == changed  # by default they follow the method, or are warned of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("min_row = 5", "has a rule 'min_row'; choose from allow_party_change, "),
        ("min_own_rows = -1", "min_own_rows is '-1' in a policy; use a whole number from 0"),
        ("min_own_rows = 5.0", "use a whole number from 0"),
        ("min_own_rows = true", "use a whole number from 0"),
        ("min_parties = 1", "use a whole number from 2"),
        ("require_secure_sums = 1", "use true or false"),
        ('counting = "maybe"', "choose 'refuse' or 'warn'"),
        ('methods = "pof-mkl"', "use a list of names"),
        ("methods = [1]", "use a list of names"),
        ('methods = ["a b"]', "use a list of names"),
        ("[freeze]\nstratum = []", "; [freeze] has strata, labels, held_out"),
        ("strata = []", "has a rule 'strata'"),
        ("[freeze]\nlabels = [1]", "use a list of columns"),
        ("[freeze]\nheld_out = 0.2", "use true or false"),
        ("max_epsilon = nan", "use a number from 0"),
        ("max_epsilon = -1", "use a number from 0"),
        ("min_own_rows = ", "policy.toml cannot be read; write it as TOML"),
        (None, "policy.toml cannot be read"),
    ],
)
def test_bad_policies_are_one_line(text: str | None, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    if text is not None:
        path.write_text(text)
    error = raises(OptionError, read_policy, path)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("command", ["check", "show"])
def test_commands_refuse_bad_policies(command: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "policy.toml").write_text("min_parties = 1")
    assert run(["node", "policy", command, str(tmp_path / "policy.toml")]) == 2
    found = capsys.readouterr().err
    assert found.count("\n") == 1
    assert "use a whole number from 2" in found


def test_the_command_shows_what_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.toml"
    assert run(["node", "policy", "show", "--toml"]) == 0
    path.write_text(capsys.readouterr().out + "min_own_rows = 20\n")
    assert run(["node", "policy", "check", str(path)]) == 0
    assert "1 rules are not at their defaults" in capsys.readouterr().out
    assert run(["node", "policy", "show", str(path)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[3:-1]}
    assert set(lines) == set(RULES)
    assert lines["min_own_rows"].split()[1] == "20"
    changed = [name for name, line in lines.items() if "  default  " not in line]
    assert changed == ["min_own_rows"]


def test_the_least_number_of_parties_follows_the_method_unless_it_is_named() -> None:
    assert [NodePolicy().least_parties(enough) for enough in (2, 3)] == [2, 3]
    assert NodePolicy(min_parties=4).least_parties(2) == 4
    assert NodePolicy(colluders=2).least_parties(2) == 4
    assert NodePolicy(min_parties=4, colluders=1).least_parties(2) == 5
    assert NodePolicy.of_simulations().max_epsilon == math.inf
