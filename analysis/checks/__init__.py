"""What makes a row or a comparison unfair, and the verdict on it: begin with `fairness`."""
