"""What a user may say: every setting with its limits, how flags and YAML are read, and what is refused early."""
