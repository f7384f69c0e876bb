"""Before a run: common ids without showing the others, common ranges of columns."""
