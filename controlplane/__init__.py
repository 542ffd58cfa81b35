"""From job files to switch state: what a switch must hold, what differs, and the client that changes it."""
