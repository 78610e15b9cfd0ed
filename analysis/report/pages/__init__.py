"""A report as a file: one HTML page with its style and script, or Markdown."""
