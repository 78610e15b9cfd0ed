"""What one collective costs a rank beyond memory and wire, part by part: `command` is where it begins."""
