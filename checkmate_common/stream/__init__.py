"""The byte stream of a flow: buckets, chunks and hops, frames, and the position of each byte."""
