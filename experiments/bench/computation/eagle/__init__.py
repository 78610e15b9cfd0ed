"""What training a draft in chunks saves: `training` is what is measured, each time in a process of its own."""
