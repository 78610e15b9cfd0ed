"""All figures and tables of results rows, as a page, as Markdown, as LaTeX and as numbers."""
