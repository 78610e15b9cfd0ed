"""What commands and pages say of methods and settings, made from the code. Begin with `methods_file`."""
