"""Tests of the RoCEv2/NCCL decoder and encoder."""
