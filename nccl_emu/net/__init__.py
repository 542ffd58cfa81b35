"""Network interfaces of a rank."""
