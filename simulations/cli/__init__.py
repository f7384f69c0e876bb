"""The command line ``fedkern``."""
