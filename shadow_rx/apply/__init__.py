"""The live copy of a model, and how it goes on: by a gradient, or from an uploaded state."""
