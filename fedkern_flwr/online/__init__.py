"""Messages and mathematics of online multi-kernel learning."""
