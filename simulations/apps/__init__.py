"""The Flower apps of the methods: a folder each, to be copied, and here what they share.

``server`` reads the options of a method off the run, ``node`` what the configuration of a node
names, ``simulated`` deals public data to the nodes of a simulation.
"""
