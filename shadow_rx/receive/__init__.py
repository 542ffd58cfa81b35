"""Captured packets to the replicas of this node."""
