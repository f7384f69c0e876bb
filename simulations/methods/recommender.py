"""FedCFK: a recommender on the users' devices."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedkern_flwr.errors import CheckpointError, OptionError, TableError
from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.gram.matrix import unpack
from fedkern_flwr.gram.messages import RANKING
from fedkern_flwr.gram.recommenders import (
    REGULARIZATION,
    ItemKernel,
    Recommender,
    best_items,
    rank_metrics,
    top_items,
    write_recommendations,
)
from fedkern_flwr.interactions import has_header, load_interactions
from fedkern_flwr.model_file import load_model
from fedkern_flwr.plain_text import read_json
from fedkern_flwr.tables.table import listing

from ...strategies import FedCFK
from .base import Config, chosen
from .gram import COLUMNS_READ, MatrixFamily
from .new_rows import NewRows
from .rating_data import PooledRatings, RatingData, RatingSettings, rows_of

_TOP = 100
COVERAGE = "coverage@10"


class RecommenderFamily(MatrixFamily[FedCFK, RatingSettings, RatingData]):
    """FedCFK."""

    strategies = (FedCFK,)
    settings, makes = RatingSettings, RatingData
    left_out = "they rated no item of the kernel"
    app, deployable = "fed_cfk", ("fed-cfk",)
    dealt_by_nodes = ("clients", "users_per_client")
    usual = "clients hold_out learner regularization min_support"
    checked = ("centralised_difference", COVERAGE)

    def deal_nodes(self, values: Mapping[str, Any], nodes: int) -> dict[str, Any]:
        """Deal the users to the nodes."""
        return {"clients": nodes, "users_per_client": None}

    def measure(self, strategy: FedCFK, prepared: RatingData, config: Config) -> dict[str, Any]:
        """Return the difference from the pooled learner, and baselines.

        A run warns if the most popular items are as good.
        """
        guessed = strategy.metrics_.get("auc", 1.0) <= 0.5
        simple = {"no_better_than": "items in any order"} if guessed else {}
        pooled, parts = prepared.split(strategy.seed or 0), prepared.parts
        users = rows_of(parts, strategy.survivors_)
        kernel = pooled_kernel(pooled.train[users], strategy.items_, strategy.dot_kernel_)
        given = strategy.regularization or REGULARIZATION[strategy.learner]
        start = strategy.recommender(kernel, given)

        def learned(node: int) -> Recommender:
            if not strategy.tunes:
                return start
            own = [likes(pooled.train, u) for u in rows_of(parts, [node]).tolist()]
            return start.tuned(own, summed=node in strategy.survivors_)[0]

        found, check = dict[str, Any](), self.checks_pooled(prepared, config)
        if check:
            judged = [(learned(node), rows_of(parts, [node])) for node in strategy.judged_]
            ranked = rank_all(judged, pooled)
            if not ranked:
                return simple
            worst = max(abs(ranked[name] - strategy.metrics_[name]) for name in RANKING)
            found = {"centralised_difference": worst, COVERAGE: ranked[COVERAGE]}
        if "method" not in config:  # a comparison has them in rows of their own
            return {**found, **simple}
        everybody = rows_of(parts, strategy.judged_)
        for name, learner in BASELINES.items():
            if check or name == "popularity":
                other = rank_all([(replace(start, learner=learner), everybody)], pooled)
                found |= {f"{name} {key}": value for key, value in other.items()}
        popular = found.get("popularity ndcg@10")
        if popular is not None and strategy.metrics_["ndcg@10"] <= popular:
            simple = {"no_better_than": "the most popular items"}
        return {**found, **simple}

    def outcome(self, strategy: FedCFK) -> dict[str, Any]:
        """Return the number of summed nodes, and the chosen lambda."""
        return {**super().outcome(strategy), **chosen(strategy)}

    def predict(self, folder: Path, config: Config, new: NewRows) -> tuple[int, int]:
        """Recommend to the users of a file with the kernel of a run.

        Columns and ``min_rating`` are those of the run. Unknown items are ignored, with a warning.
        Output: user, rank, item and score of at most 100 unrated items.

        Returns
        -------
        (int, int)
            Numbers of users with and without recommendations.
        """
        data = new.data
        if not isinstance(data, Path):
            raise OptionError("new ratings are in one file", code="FK-PREDICT-ROWS")
        if new.id_column is not None:
            raise OptionError("ratings have no ids of records", code="FK-DATA-OPTION")
        if new.client is not None:
            raise OptionError("all users of FedCFK have one kernel", code="FK-MODEL-CLIENT")
        for name, value in new.dialect.items():
            if value:
                problem = f"{name} is for tables, {data.name} holds ratings"
                raise OptionError(problem, code="FK-DATA-OPTION")
        (arrays, meta), own = load_model(folder / "model.npz", config["method"]), config["data"]
        try:
            scaling = read_json((folder / "scaling.json").read_text())
        except (OSError, ValueError):
            raise CheckpointError(
                f"{folder} has no scaling.json", code="FK-CHECKPOINT-DAMAGED"
            ) from None
        names, items = tuple(scaling["items"]), arrays["items"]
        run_columns = [own[n] or n for n in COLUMNS_READ if n != "rating" or own[n]]
        found = load_interactions(
            data,
            **({n: own[n] for n in COLUMNS_READ} if has_header(data) else {}),
            timed=False,
            catalogue=names,
            unknown="drop",
            column_remedy=f"give the columns of the run: {listing(run_columns)}",
        )
        likes, least = np.ones(found.rows, np.bool_), own["min_rating"]
        least = found.usual_least if least is None else least
        if least is not None:
            if not found.rated:
                raise TableError(
                    f"{data.name} has no ratings, the run counts those of at least {least:g}",
                    remedy="add them",
                    code="FK-COLUMN-MISSING",
                )
            likes = found.rating >= least
        strategy = FedCFK.of_model(meta)
        kernel = ItemKernel.of_gram(
            unpack(arrays["gram"], len(items)),
            items,
            len(names),
            int(meta["rows"]),
            strategy._kernel(int(meta["rows"])),
        )
        ranks = strategy.recommender(kernel)
        lines, made = [], 0
        order = np.argsort(found.user, kind="stable")
        ends = np.cumsum(np.bincount(found.user, minlength=found.users))
        for user, rows in zip(found.user_ids, np.split(order, ends[:-1]), strict=True):
            liked = np.sort(found.item[rows[likes[rows]]])
            if not np.isin(liked, items).any():
                continue
            made += 1
            scores = ranks.scores(liked)
            excluded = np.union1d(found.item[rows], kernel.missing)
            lines += best_items(user, scores, excluded, _TOP, names)
        if not made:
            raise TableError(
                f"{data.name} names no item of the kernel"
                if least is None
                else f"{data.name} rates no item of the kernel {least:g} or more",
                code="FK-ITEMS-NONE",
            )
        for note in found.notes:
            logging.getLogger("fedkern_flwr").warning(note)
        write_recommendations(new.out(), lines)
        return made, found.users - made

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return numbers of users, items and nodes."""
        return f"{facts['users']} users on {facts['clients']} nodes, {facts['items']} items"


# -- the ranking of pooled ratings, and baselines

#: What a recommender must be better than: name -> learner on pooled ratings.
BASELINES = {"popularity": "popularity", "item-knn": "knn"}


def pooled_kernel(train: csr_array, items: NDArray[Any], kernel: DotKernel) -> ItemKernel:
    """Return the kernel between items from ratings, shape (users, items)."""
    part = train[:, items]
    gram = np.asarray((part.T @ part).toarray(), np.int64)
    return ItemKernel.of_gram(gram, items, train.shape[1], train.shape[0], kernel)


def likes(ratings: csr_array, user: int) -> NDArray[Any]:
    """Return what a user likes, ascending."""
    return np.sort(ratings.indices[ratings.indptr[user] : ratings.indptr[user + 1]])


def rank_all(
    groups: Iterable[tuple[Recommender, NDArray[np.intp]]], pooled: PooledRatings
) -> dict[str, float]:
    """Return the mean metrics of groups of users, each with its recommender.

    AUC, nDCG and recall are over users with ratings in both parts. Coverage is the share of items
    among the ten best of any user.
    """
    totals, judged, shown = np.zeros(len(RANKING)), 0, np.zeros(pooled.train.shape[1], np.bool_)
    for recommender, users in groups:
        missing = recommender.kernel.missing
        for user in users.tolist():
            liked, held = likes(pooled.train, user), likes(pooled.test, user)
            if not len(liked):
                continue
            scores = recommender.scores(liked)
            shown[top_items(scores, np.union1d(liked, missing), 10)] = True
            found = rank_metrics(scores, held, liked) if len(held) else None
            if found is not None:
                totals, judged = totals + found, judged + 1
    if not judged:
        return {}
    means = dict(zip(RANKING, (totals / judged).tolist(), strict=True))
    return {**means, COVERAGE: float(shown.mean())}
