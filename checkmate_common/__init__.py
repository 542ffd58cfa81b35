"""What several packages share: the gradient stream, recovery points, the side channel, TLS, files."""
