"""Error codes: every refusal has one, each is explained once, and none is for all."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest
from test_structure import SOURCES, called

from fedkern_flwr import errors
from fedkern_flwr.codes import known_codes

FORM = re.compile(r"FK(-[A-Z0-9]+){1,4}")
KNOWN = {code: told for rows in known_codes().values() for code, told in rows.items()}
#: What makes an error of ours; their last argument is the code.
OURS = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
OURS |= {"refusal", "wrong", "RemovedOptionError", "NotKeptError", "UnknownOptionError"}


def without_code(module: str) -> list[str]:
    tree = ast.parse(SOURCES[module].read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [(called(call), call) for call in calls]
    return [
        f"{SOURCES[module]}:{call.lineno} {name}"
        for name, call in named
        if name in OURS and not any(word.arg in ("code", None) for word in call.keywords)
    ]


def used(module: str) -> Counter[str]:
    text = SOURCES[module].read_text(encoding="utf-8")
    return Counter(re.findall(r'"(FK-[A-Z0-9-]+)"', text))


def test_every_error_names_its_code() -> None:
    assert [line for module in SOURCES for line in without_code(module)] == []


def test_the_registry_has_what_is_raised_and_nothing_else() -> None:
    raised = {code for module in SOURCES for code in used(module)}
    assert raised - set(KNOWN) == set()
    assert {code for code in KNOWN if not code.startswith("FK-REMOVED-")} - raised == set()


def test_causes_and_remedies_are_sentences() -> None:
    for code, (cause, remedy) in KNOWN.items():
        assert FORM.fullmatch(code), code
        assert cause[0].isupper(), code
        assert cause.endswith("."), code
        assert len(remedy.split()) > 1, code
    assert not {"FK-ERROR", "FK-OTHER", "FK-UNKNOWN"} & set(KNOWN)
    causes = Counter(told.cause for told in KNOWN.values())
    assert [cause for cause, times in causes.items() if times > 1] == []


def test_a_code_ends_the_line_and_is_passed_on() -> None:
    first = errors.TableError("no rows", remedy="add some", party="partition 1", code="FK-ROWS-FEW")
    assert str(first) == "partition 1: no rows; add some [FK-ROWS-FEW]"
    told = errors.ProtocolError(str(first), remedy="start again", phase="fit")
    assert told.code == "FK-ROWS-FEW"
    assert str(told).endswith("start again [FK-ROWS-FEW]")
    assert str(told).count("FK-") == 1


@pytest.mark.parametrize("text", ["", "a [b]", "[FK-A] at the beginning"])
def test_other_brackets_are_no_code(text: str) -> None:
    assert errors.FedKernError(text).code == ""
