"""The speedrun: a task that anyone can run and beat, behind a slow link. Begin with `task`.

Its rules: docs/comparing/speedrun.md. What lies here:

task.py      what every run has in common, the tracks, and the baselines
race.py      an entry's runs and those of the baselines: settings, seeds and order, as cells of a sweep
running.py   carrying them out, and what stays of them as a folder
entry.py     that folder, read and written
score.py     is the target reached beyond chance, and how many times as fast as the baselines?
checks/      what speaks against an entry, by its own files
verify.py    all checks together; the same entry run again
calibrate.py what `none` reaches, from which the target follows
records.py   all entries as a table, and as a page of the documents
"""
