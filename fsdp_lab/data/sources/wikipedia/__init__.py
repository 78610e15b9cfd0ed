"""Articles of Wikipedia, from three packages: `dump` is read through `wikitext`, the others are text already."""
