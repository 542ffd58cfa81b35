"""Recovery points: state objects, tensors, format, and the reasons for gaps."""
