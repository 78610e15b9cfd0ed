"""What results mean: tables, figures, predictions. Reads files only and needs no torch."""
