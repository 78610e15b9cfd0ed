"""A draft for a real model, from nothing: `real_run` is the recipe, and says every command it runs."""
