"""Documents out of JSON and JSON-lines files, streamed. Read `documents` first."""
