"""Sums of all patients, of women and of men: one whose sex is unknown is not their difference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frozen_tables import KEY, in_use, table, whole_blocks

from fedkern_flwr.guard.freeze import Freeze

UNKNOWN = 60  # the patient without a sex
SEX = np.array(["female"] * 60 + [""] + ["male"] * 60)
X = np.random.default_rng(0).normal(size=(len(SEX), 4))
TABLES = {"all": SEX >= "", "men": SEX == "male", "women": SEX == "female"}


def difference(rows: dict[str, Any]) -> Any:
    """Return by how much each patient weighs in all - men - women."""
    weights = np.zeros(len(SEX), int)
    for name, patients in rows.items():
        weights[patients] += 1 if name == "all" else -1
    return weights


def test_without_a_freeze_the_difference_of_three_sums_is_one_patient() -> None:
    weights = difference({name: np.flatnonzero(wanted) for name, wanted in TABLES.items()})
    np.testing.assert_allclose(weights @ X, X[UNKNOWN], atol=1e-9)


def test_with_strata_a_patient_without_sex_is_in_no_sum() -> None:
    rows = table(range(len(SEX)), strata=SEX.tolist())
    made, change = Freeze.deal(rows, least=5, key=KEY)
    assert change.waiting["new rows"] == 1
    frozen = np.array(in_use(made, range(len(SEX))))
    answered = {
        name: frozen[made.rows_of(whole_blocks(made, wanted[frozen]))]
        for name, wanted in TABLES.items()
    }
    assert {name: len(rows) for name, rows in answered.items()} == {
        "all": 120, "men": 60, "women": 60
    }  # fmt: skip
    assert not difference(answered).any()


@pytest.mark.parametrize("order", [["all", "men", "women"], ["men", "women", "all"]])
def test_filtered_tables_do_not_show_a_patient_without_sex(order: list[str]) -> None:
    """Without strata: the coordinator has each node load one table after the other."""
    made, answered = None, {}
    for name in order:
        ids = np.flatnonzero(TABLES[name])
        if made is None:
            made, _ = Freeze.deal(table(ids), least=5, key=KEY)
        else:
            made.update(table(ids), needed=0)
        answered[name] = in_use(made, range(len(SEX)))
    shown = np.count_nonzero(difference(answered))
    assert shown == 0 or shown >= 5
