"""The command-line program `checkmate`."""
