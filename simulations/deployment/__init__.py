"""A deployment on this machine: SuperLink and nodes with TLS and node authentication."""
