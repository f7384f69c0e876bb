"""A node that stays warm: its SuperNode, and a process per message that has imported everything."""
