"""The folder that is put on a program's PYTHONPATH: nothing but ``sitecustomize`` may lie here."""
