"""The command line and tables for it, and apps as modules."""

from command_line import commands, differs, finished, import_app, in_tmp, stars, table, tables

__all__ = ["commands", "differs", "finished", "import_app", "in_tmp", "stars", "table", "tables"]
