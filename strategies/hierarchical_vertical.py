from __future__ import annotations


class VisitLoop:
    def __init__(self, steps):
        self.steps = steps
