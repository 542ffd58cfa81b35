"""From job files to switch state: desired state, differences, and the P4Runtime client that applies them."""
