"""Masks that cancel in the sum."""

from __future__ import annotations

from canvas import BLUE, FAINT, GREEN, GREY, ORANGE, arrow, box, save, sheet

MODULUS = 100
VALUES = {"A": 5, "B": 2, "C": 9}
MASKS = {("A", "B"): 31, ("A", "C"): 58, ("B", "C"): 47}


def masked(name: str) -> tuple[str, int]:
    """Return how a party's value is masked, and what it sends: the earlier of a pair adds."""
    text, total = str(VALUES[name]), VALUES[name]
    for (first, second), mask in MASKS.items():
        if name in (first, second):
            text += f" + {mask}" if name == first else f" \N{MINUS SIGN} {mask}"
            total += mask if name == first else -mask
    return text, total % MODULUS


def draw() -> None:
    """Draw three parties, their pairwise masks and the server."""
    figure, axes = sheet(9.6, 3.9)
    sent = {name: masked(name) for name in VALUES}
    assert sum(s for _, s in sent.values()) % MODULUS == sum(VALUES.values())
    heights = {"A": 2.75, "B": 1.6, "C": 0.45}
    for (name, y), color in zip(heights.items(), (BLUE, ORANGE, GREEN), strict=True):
        text, number = sent[name]
        box(axes, 0.9, y, 1.45, 0.7, f"party {name}\nhas {VALUES[name]}", color=color, size=11)
        axes.text(2.6, y + 0.45, text, fontsize=12)
        axes.text(2.6, y + 0.15, f"modulo {MODULUS}", fontsize=9, color=FAINT)
        arrow(axes, (4.35, y + 0.35), (6.6, 1.95 + 0.35 * (y - 1.6)), color=color)
        axes.text(5.05, y + 0.45 - 0.28 * (y < 1), f"sends {number:02d}", fontsize=11, color=color)
    for y, mask in ((2.6, MASKS["A", "B"]), (1.45, MASKS["B", "C"])):
        axes.plot([1.6, 1.6], [y - 0.3, y + 0.15], color=FAINT, linestyle=":", linewidth=1.4)
        axes.text(1.7, y - 0.08, f"secret {mask}", fontsize=9, color=FAINT, va="center")
    axes.plot([0.9, 0.55, 0.55, 0.9], [3.1, 3.1, 0.8, 0.8], color=FAINT, linestyle=":", lw=1.4)
    text, turned = f"secret {MASKS['A', 'C']}", {"rotation": 90, "va": "center", "ha": "center"}
    axes.text(0.42, 1.95, text, fontsize=9, color=FAINT, **turned)
    numbers = " + ".join(f"{number:02d}" for _, number in sent.values())
    total = sum(VALUES.values())
    text = f"server\n\n{numbers}\n= {total}  modulo {MODULUS}\n\nthe sum, and nothing else"
    box(axes, 6.65, 1.05, 2.6, 1.8, text, color=GREY, size=11)
    save(figure, "secure-sum", "Three parties mask their numbers; the masks cancel in the sum")
