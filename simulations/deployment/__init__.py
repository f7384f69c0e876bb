"""A deployment on this machine: SuperLink and SuperNodes with TLS and node authentication."""

from __future__ import annotations

from .local import LocalDeployment
from .node_files import Secrets, write_node

__all__ = ["LocalDeployment", "Secrets", "write_node"]
