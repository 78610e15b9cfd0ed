"""What becomes of a run when something breaks, and what hostile input does. Begin with `drills`."""
