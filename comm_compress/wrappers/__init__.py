"""Compressors around compressors: error feedback, warm-up, one method for each layer, entropy coding."""
