"""Files and documents that are checked, bounded and private."""
