"""The papers' algorithms as plain programs of one process: arrays in, result and transcript out."""
