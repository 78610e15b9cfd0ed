"""Decoding with a draft, and how much time that saves. Read `chain` first."""
