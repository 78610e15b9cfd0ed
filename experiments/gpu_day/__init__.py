"""Everything that needs a GPU, in half an hour: `table` says what is run, `running` runs it, `index` keeps it."""
