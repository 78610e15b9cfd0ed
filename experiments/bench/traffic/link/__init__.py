"""Bytes and times of single collectives behind a link: `ranks` is what each rank runs."""
