"""Families of methods: what differs between them for the command line and for comparisons."""
