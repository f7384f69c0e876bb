"""What a kernel is: similarity, bumps at landmarks, random cosines."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from canvas import BLUE, FAINT, GREY, INK, ORANGE, PURPLE, save


def similarity(x: np.ndarray, y: np.ndarray | float, gamma: float) -> np.ndarray:
    """Return the Gaussian kernel of numbers."""
    return np.exp(-gamma * (x - y) ** 2)


def draw() -> None:
    """Draw the three panels from computed curves."""
    rng = np.random.default_rng(3)
    figure, panels = plt.subplots(1, 3, figsize=(9.6, 3.5))
    figure.subplots_adjust(left=0.055, right=0.985, top=0.78, bottom=0.14, wspace=0.26)
    x = np.linspace(0, 1, 300)

    axes = panels[0]
    axes.plot(x, similarity(x, 0.4, 20), color=BLUE, linewidth=2)
    axes.axvline(0.4, color=FAINT, linewidth=0.8, linestyle=":")
    for point, text in ((0.47, "near: .91"), (0.62, "farther: .38"), (0.85, "far: .02")):
        value = similarity(np.array(point), 0.4, 20)
        axes.plot(point, value, "o", color=ORANGE, markersize=6)
        axes.annotate(text, (point, value), (6, 4), textcoords="offset points", fontsize=9)
    axes.set(title="Similarity to the record at 0.4", xlabel="a feature", ylim=(-0.05, 1.12))

    axes = panels[1]
    rows = np.sort(rng.random(40))
    labels = np.sin(7 * rows) * 0.5 + 0.5 + 0.08 * rng.standard_normal(40)
    landmarks = np.array([0.06, 0.25, 0.44, 0.63, 0.82, 0.98])
    kernel = similarity(rows[:, None], landmarks, 40)
    weights = np.linalg.solve(kernel.T @ kernel + 0.05 * np.eye(6), kernel.T @ labels)
    for weight, landmark in zip(weights, landmarks, strict=True):
        axes.plot(x, weight * similarity(x, landmark, 40), color=PURPLE, linewidth=0.9, alpha=0.7)
    axes.plot(rows, labels, ".", color=GREY, markersize=5)
    axes.plot(x, similarity(x[:, None], landmarks, 40) @ weights, color=BLUE, linewidth=2)
    axes.plot(landmarks, np.full(6, -0.12), "^", color=PURPLE, markersize=6)
    axes.set(title="A bump at each landmark", xlabel="a feature", ylim=(-0.22, 1.3))

    axes = panels[2]
    frequencies = np.sqrt(2 * 20) * rng.standard_normal(300)
    distance = np.linspace(0, 0.8, 300)
    waves = np.cos(distance[:, None] * frequencies)
    axes.plot(distance, waves[:, :5], color=GREY, linewidth=0.8, alpha=0.8)
    axes.plot(distance, waves.mean(axis=1), color=ORANGE, linewidth=2, label="mean of 300")
    axes.plot(distance, np.exp(-20 * distance**2), color=BLUE, linewidth=1.4, label="kernel")
    axes.legend(fontsize=9, frameon=False, loc="upper right", ncols=2)
    axes.set(title="Random waves add up to it", xlabel="distance", ylim=(-1.1, 1.45))

    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        axes.set_title(axes.get_title(), fontsize=11, fontweight="bold", color=INK, pad=8)
    for left, text in (
        (0.055, "kernel"),
        (0.385, "landmarks: FedCG"),
        (0.71, "random features: POF-MKL, FDSKL"),
    ):
        figure.text(left, 0.925, text, fontsize=10, color=FAINT)
    save(figure, "kernels", "A kernel, a model of bumps at landmarks, and random features")
