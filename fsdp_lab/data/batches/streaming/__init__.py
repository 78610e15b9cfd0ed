"""Training batches from several corpora mixed by weight, exactly resumable.

Read `row_order` first. A row is one packed sequence; a source is one corpus of the mix.

shuffled_documents.py   the documents of one source, shuffled, pass after pass
row_order.py            which tokens make the next row: sources chosen by weight, documents packed, rows shuffled
batches.py              the tokens of this rank's rows, read ahead in the background

The row order handles references (source, start, stop) and reads tokens only to find where documents end. Every rank
computes the whole order and reads its own rows: so the state is the same on all ranks, whatever their number.
"""
