"""Every setting of the programs: its limits, how flags and YAML are read, and what is refused early.

Read `groups` first: the settings of a training run. `config` puts them together, `models` has the presets, which fill
in what depends on the model, `reading` turns flags and files into values, `conflicts` says which settings exclude each
other, `refusing` finds all that is wrong before any rank starts.
`flags` and `user_errors` serve every command of the project, and need nothing but Python.
"""
