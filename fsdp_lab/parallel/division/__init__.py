"""Dividing a model: `layouts` says what, `wiring` what travels, `split` cuts the weights."""
