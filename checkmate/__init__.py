"""The command-line program `checkmate`."""

from __future__ import annotations

import os

# Before anything imports grpc: the fabrics start child processes, which exec at once and so need none of gRPC's
# handlers around fork; with them gRPC writes a line to standard error for each child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
