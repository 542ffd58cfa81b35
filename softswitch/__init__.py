"""The embedded switch: executes compiled P4 (BMv2 JSON, v1model) as generated Python, and serves P4Runtime."""
