"""One run around its training loop: its folder, its steps, what it shows, its results row and its end.

Read `run` first (what a run has from start to end), then `steps.loop` (its optimizer steps). `storage` is where it
writes, `steps` what happens and is measured step by step, `display` what it shows. `record` and `ending` are the row
and how it is written, `goals` times to quality, `environment` what it ran on, `trackers` where its numbers also go,
`card` what is said of the model. `entry` is how the program around it starts and exits.
"""
