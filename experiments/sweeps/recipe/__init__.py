"""What a sweep compares: recipes, arms and cells. Begin with `recipe`."""
