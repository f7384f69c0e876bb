"""How good a model is on held-out rows: what each party counts, and what is read from the sum."""
