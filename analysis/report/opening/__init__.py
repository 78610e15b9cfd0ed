"""How a report begins: a verdict on every arm, a paragraph, an interactive figure. Begin with `answer`."""
