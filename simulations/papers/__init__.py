"""The papers' algorithms as plain programs: one process, arrays in, a result and a transcript."""
