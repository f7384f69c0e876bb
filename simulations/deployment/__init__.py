"""A deployment on this machine: SuperLink, front and nodes with TLS and node authentication."""
