"""What a few seeds can tell: intervals, paired differences, fronts, times to quality. Begin with `intervals`."""
