"""What a shadow node says of itself: steps, gaps, events, lags and load. Plain data and arithmetic."""
