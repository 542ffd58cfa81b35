"""The job: its YAML file, the ring schedule, stream positions, frame format, layout and side-channel messages."""
