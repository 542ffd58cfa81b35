"""The command-line program `checkmate`."""

from __future__ import annotations

import os

# Set before anything imports grpc: the fabrics start child processes, which exec at once and so do not need gRPC's fork
# handlers, with which gRPC writes a line to standard error for each child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
