"""Code of a node for all methods: messages, sums, guard, ledger, state."""
