"""Other shadow nodes of a group: frames to fill holes with, and newer recovery points."""
