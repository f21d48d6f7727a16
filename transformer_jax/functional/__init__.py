"""Pure functions of features: projections, normalization, positions and pooling."""
