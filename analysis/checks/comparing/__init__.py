"""What is wrong with a comparison, by topic; `table` has all checks.

A check takes one `Comparison` and names what it found by its own name. It speaks once, with the arms it is about,
however many they are. Where arms differ in something that all should have in common, those are meant that differ from
the baseline; where that has no value of its own, all are.
"""
