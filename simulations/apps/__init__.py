"""The Flower apps of the methods, a folder each to be copied, and their common code.

``server`` reads the options of a run, ``node`` a node's configuration, ``simulated`` deals public
data to the nodes of a simulation.
"""
