"""Files that are whole or not there: atomic writes, full disks, fingerprints. Read `atomic` first."""
