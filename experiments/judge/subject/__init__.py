"""The file that is judged: how it is loaded, what it touches, what each part of the judgement gets of it."""
