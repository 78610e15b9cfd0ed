"""Hugging Face folders of models, read with care and written: read `weights` first."""
