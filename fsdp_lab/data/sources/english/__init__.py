"""English that is no encyclopedia: dictionaries, plays and poems, speeches."""
