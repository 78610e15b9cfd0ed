"""`fsdp-lab new-method`: a package with a method of one's own. The files it is made of lie in `template/`."""
