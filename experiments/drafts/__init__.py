"""A draft for a real model, from nothing: begin with `real_run`, the recipe, which prints every command it runs."""
