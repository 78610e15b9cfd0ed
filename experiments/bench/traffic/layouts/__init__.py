"""Steps of a model that is divided among ranks in every layout, compressed and not: `arms` says which there are."""
