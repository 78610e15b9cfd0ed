"""All figures and tables of results rows, as a page, as Markdown, as LaTeX and as numbers. Begin with `contents`.

`entries` lists the figures, `drawn` draws them, and `html`, `markdown` and `numbers` write what `contents` composed."""
