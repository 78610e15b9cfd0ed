"""A network of their own for the ranks on one machine, with links as slow as asked: begin with `namespaces`."""
