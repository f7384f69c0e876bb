"""What runs at a node, whatever its method: messages, sums, guard, ledger, state."""
