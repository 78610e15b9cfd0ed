"""Compressors inside FSDP2: `attach` puts them there, the other files are what it installs."""
