"""All figures and tables of results rows, as a page, as Markdown, as LaTeX and as numbers. Begin with `contents`.

`entries` lists the figures, `drawn` draws them; `opening` is the answer that comes first; `pages` and `numbers` write
what `contents` composed, and `language` has its sentences in Chinese. `making` goes through all of it, from flags to
files.
"""
