"""The papers' algorithms as plain programs in one process: arrays in, result and transcript out."""
