"""What is typed wrong in Python: a line that names the option, the argument or the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.clients import (
    GramClient,
    HybridKernelClient,
    KernelPCAClient,
    SVMClient,
    VerticalKernelClient,
)
from fedkern_flwr.clients import OnlineKernelClient as StreamClient
from fedkern_flwr.errors import FedKernError, OptionError
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import (
    FDSKL,
    POFMKL,
    FedCFK,
    FedCG,
    HierarchicalSVM,
    KernelPCA,
    SecureGram,
)

NODES = 3
X = np.random.default_rng(0).random((NODES, 30, 3)) / 2.0
Y = (X.sum(2) > 0.75) * 1.0

STRATEGIES: dict[str, Callable[[], Any]] = {
    "fed-cg": lambda: FedCG(landmarks=10),
    "fdskl": lambda: FDSKL(features=20),
    "gram": lambda: SecureGram(encoding="fixed-point"),
    "svm": HierarchicalSVM,
    "stream": lambda: POFMKL(features=10),
    "pca": lambda: KernelPCA(features=10),
}


def client_of(name: str, convert: Callable[[np.ndarray], Any] = np.asarray) -> Callable[..., Any]:
    """Return what builds the clients of a method, whose tables are converted."""

    def build(context: Any) -> Any:
        k = int(context.node_config["partition-id"])
        x, y = convert(X[k]), convert(Y[k])
        labels: dict[str, Any] = {"classes": (0, 1), "alignment_key": b"k" * 32}
        if name == "fed-cg":
            return HybridKernelClient(context, x, y, ids=[f"{k}-{i}" for i in range(30)], **labels)
        if name == "fdskl":
            own = y if k == 0 else None
            return VerticalKernelClient(context, x, own, ids=list(map(str, range(30))), **labels)
        if name == "svm":
            if k == 0:
                return SVMClient(context, role="agent", group=0)
            return SVMClient(context, x, y, group=0, classes=(0, 1))
        if name == "stream":
            return StreamClient(context, x, y, x_test=x, y_test=y)
        return (GramClient if name == "gram" else KernelPCAClient)(context, x)

    return build


def fit(strategy: str, client: Callable[..., Any]) -> Any:
    rounds = {"num_rounds": 20} if strategy in ("stream", "svm") else {}
    made = STRATEGIES[strategy]()
    simulate(made, client, NODES, **rounds)
    return made.model()[0] or made.metrics_


@pytest.mark.parametrize(
    ("strategy", "wrong", "meant"),
    [
        (FedCG, "landmark", "did you mean landmarks?"),
        (FDSKL, "feature", "did you mean features?"),
        (HierarchicalSVM, "sigmas", "did you mean sigma?"),
        (SecureGram, "participations", "did you mean participation?"),
        (FedCFK, "regularisation", "did you mean regularization?"),
        (POFMKL, "num_kernels", "did you mean kernels?"),
        (KernelPCA, "width", "bandwidth"),
        (HierarchicalSVM, "c", "did you mean C?"),
    ],
)
def test_an_option_that_there_is_not_is_named(strategy: Any, wrong: str, meant: str) -> None:
    with pytest.raises(OptionError, match=f"^{strategy.__name__} has no option {wrong}; ") as error:
        strategy(**{wrong: 1})
    assert meant in str(error.value)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: FedCG(gamma="scale"), "gamma is 'scale'; use a number"),
        (lambda: KernelPCA(features="10"), "features is '10'; use a whole number"),
        (lambda: POFMKL(min_clients="all"), "min_clients is 'all'; use a number"),
        (lambda: FedCG(attempts=None), "attempts is None; use a number"),
    ],
)
def test_a_value_of_another_type_is_named(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(OptionError, match=f"^{text}"):
        make()


@pytest.mark.parametrize("strategy", [FedCG, FDSKL, HierarchicalSVM, SecureGram, POFMKL])
def test_an_option_without_a_name_is_refused_in_a_line(strategy: Any) -> None:
    with pytest.raises(TypeError, match=f"^{strategy.__name__} takes options by name only; write"):
        strategy(100)


def test_text_labels_without_classes_are_told_how_to_name_them() -> None:
    def client(context: Any) -> Any:
        labels = np.where(Y[int(context.node_config["partition-id"])] > 0.0, "ill", "well")
        return HybridKernelClient(context, X[0], labels)

    with pytest.raises(FedKernError, match=r'name classes of text: classes=\("no", "yes"\)'):
        fit("fed-cg", client)


@pytest.mark.parametrize("name", STRATEGIES)
def test_lists_are_as_good_as_arrays(name: str) -> None:
    first, second = (fit(name, client_of(name, how)) for how in (np.asarray, np.ndarray.tolist))
    assert first.keys() == second.keys()
    for key in first:
        assert np.shape(first[key]) == np.shape(second[key])
        if name not in ("fed-cg", "fdskl"):  # whose nodes draw in secret
            np.testing.assert_array_equal(first[key], second[key])


@pytest.mark.parametrize("other", STRATEGIES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_client_of_another_method_is_named_in_a_line(name: str, other: str) -> None:
    if name == other:
        return
    with pytest.raises(
        FedKernError, match="serve the client that belongs to the strategy"
    ) as error:
        fit(name, client_of(other))
    line = str(error.value)
    assert "\n" not in line
    assert len(line) < 160
    assert STRATEGIES[name]().method in line
