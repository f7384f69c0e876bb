"""The command line and tables for it."""

from command_line import commands, finished, in_tmp, stars, tables

__all__ = ["commands", "finished", "in_tmp", "stars", "tables"]
