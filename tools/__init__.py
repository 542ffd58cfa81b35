"""Helpers around the project: the Wireshark dissector of the frame format."""
