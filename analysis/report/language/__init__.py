"""The report's sentences in Chinese; those of figures are in `analysis.figures.drawing.catalogue`."""
