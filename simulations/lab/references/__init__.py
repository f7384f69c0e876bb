"""Methods to compare with that need all data in one place."""
