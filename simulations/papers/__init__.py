"""The algorithms as the papers print them: one plain program a paper, in one process."""
