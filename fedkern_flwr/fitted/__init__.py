"""Models that are whole: what predicts new rows in one place, without nodes and exchanges."""

from .model import PREDICTOR, FittedModel, load_model

__all__ = ["PREDICTOR", "FittedModel", "load_model"]
