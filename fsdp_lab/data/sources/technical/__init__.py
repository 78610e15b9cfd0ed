"""Programs and what is written about them: Python code, the kernel's documents, descriptions of services."""
