"""The page of options: what each method takes, made from what its strategy declares.

::

    python tests/helpers/options_page.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args, get_origin

from fedkern_flwr.simulations.methods.registry import METHODS, options

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
#: Page -> its title and methods. The first method has the defaults that are not named otherwise.
PAGES = {
    "online-methods": (
        "Online methods",
        "pof-mkl ofskl ofmkl-avg vm-kofl em-kofl per-fed-avg local-only pof-rls",
    ),
    "fed-cg": ("FedCG", "fed-cg"),
    "fdskl": ("FDSKL", "fdskl"),
    "secure-gram": ("Secure Gram and FedCFK", "secure-gram fed-cfk"),
    "hierarchical-svm": ("HierarchicalSVM", "hierarchical-svm"),
    "kernel-pca": ("Kernel PCA", "kernel-pca"),
    "summary": ("Summary", "summary"),
}
#: What the papers call an option, or the value that is theirs.
SYMBOLS: dict[str, dict[str, str]] = {
    "online-methods": {
        "kernels": "N", "kernels_per_round": "M", "features": "D", "exploration": "ξ",
        "selection": "`bins`", "regularization": "λ", "step_size": "η, ηₖ = 1/√T",
        "samples_per_round": "1",
    },
    "fed-cg": {
        "landmarks": "m", "sampling": "Tables 2-7: U, N", "gamma": "γ",
        "landmark_gamma": "γⱼ, eq. 4.1", "regularization": "λ", "penalty": "eq. 2.9, 2.10",
        "solver": "`cg`", "init": "`random`", "tolerance": "toll",
    },
    "fdskl": {
        "schedule": "`streaming`", "directions": "1", "batch": "1", "step": "γ",
        "step_schedule": "γₜ", "loss": "Table 1", "gamma": "1/(2σ²)", "regularization": "λ",
        "intercept": "none",
    },
    "secure-gram": {
        "degree": "d", "coefficients": "a_d", "participation": "share of users, Table 1",
        "learner": "`cf-komd`", "regularization": "λ",
    },
    "hierarchical-svm": {
        "architecture": "Table 3", "C": "C", "rho": "ρ", "staleness": "D, eq. 20",
        "step_sizes": "ρᵢ",
    },
}  # fmt: skip
_HEAD = """# Options

What each method takes, made from the declarations in its strategy. In Python these are arguments
of the strategy. `fedkern run METHOD` has them with dashes, and in addition options that deal one
table to the parties (`--help-all`). All strategies also have `seed`, `checkpoint` and `resume`
([API](api/strategies.rst)).
"""


def _values(kind: Any) -> str:
    """Return the values that an option takes, where they are few words."""
    named = [str(v) for arg in (kind, *get_args(kind)) for v in _literals(arg)]
    return ", ".join(f"`{value}`" for value in dict.fromkeys(named))


def _literals(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if getattr(get_origin(kind), "_name", "") == "Literal" else ()


def page() -> str:
    """Return the page."""
    lines = [_HEAD]
    for name, (title, methods) in PAGES.items():
        first, *others = methods.split()
        lines += [f"## {title}\n", f"[The page]({name}.md).\n"]
        lines += ["| option | default | values | meaning | in the paper |", "|---|---|---|---|---|"]
        found: dict[str, dict[str, Any]] = {}
        for method in (first, *others):
            for one in options(METHODS[method]):
                found.setdefault(one.name, {})[method] = one
        for option, by_method in found.items():
            usual = next(iter(by_method.values()))
            defaults = {m: o.default for m, o in by_method.items()}
            texts = [f"`{usual.default}`"] if first in by_method else []
            texts += [
                f"{m} `{value}`"
                for m, value in defaults.items()
                if m != first and (first not in by_method or value != usual.default)
            ]
            meaning = usual.help.replace("|", "\\|")
            symbol = SYMBOLS.get(name, {}).get(option, "")
            cells = (f"`{option}`", "; ".join(texts), _values(usual.type), meaning, symbol)
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE, file=sys.stderr)
