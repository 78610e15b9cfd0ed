"""Training batches from several corpora mixed by weight, exactly resumable.

source.py    a corpus's documents, shuffled, pass after pass
plan.py      which tokens make the next row: sources chosen by weight, documents packed, rows shuffled
batches.py   the rows' tokens for this rank, read ahead in the background, each batch with the state after it

The plan moves references about (source, start, stop) and reads no token but to find where documents end. Every rank
follows the whole plan and reads its own rows: so the state is the same on all ranks, whatever their number.
"""
