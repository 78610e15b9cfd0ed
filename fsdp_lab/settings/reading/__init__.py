"""From flags and YAML files to values: read `specs` (one setting), then `fields` (groups of them), then `cli`."""
