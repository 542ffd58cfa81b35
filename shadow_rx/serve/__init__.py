"""What a shadow node answers: the side channel, metrics, and who may ask."""
