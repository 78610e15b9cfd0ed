"""One run around its training loop: its folder, its steps, what it shows, its results row and its end.

Read `run` first (what a run has from start to end), then `loop` (its optimizer steps). Each of the other files is one
thing that these two put together: `paths` and `folder`, where it writes; `progress`, `log` and `curve`, what it shows
and keeps; `counts`, `sampling`, `profiled_steps`, `evaluations` and `goals`, what it measures; `record` and `ending`,
the row and how it is written; `summary`, what it prints last. `entry` is how the program around it starts and exits.
"""
