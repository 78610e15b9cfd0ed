"""What all figures share: style, colours, labels, fonts, the catalogue of words."""
