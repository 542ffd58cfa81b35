"""From job files to switch state: what a switch must hold, what differs, and the P4Runtime client that changes it."""
