"""Nodes that stay warm, and whole deployments on this machine with TLS and node authentication."""
