"""The embedded switch: executes compiled P4 (BMv2 JSON, v1model) as Python, and serves P4Runtime."""
