"""NCCL collectives over RoCEv2: from captured packets to reduced tensors, and back."""
