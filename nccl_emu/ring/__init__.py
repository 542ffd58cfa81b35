"""The ring all-reduce."""
