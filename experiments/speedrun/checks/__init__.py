"""What speaks against an entry, by its own files: one file for each kind, each a list of complaints."""
