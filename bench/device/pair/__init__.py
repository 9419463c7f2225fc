"""Both services as processes over models with random weights, on a device."""
