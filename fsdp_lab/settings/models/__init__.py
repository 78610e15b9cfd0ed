"""What settings know of models, without torch: read `presets` first; shapes, saved models' architectures."""
