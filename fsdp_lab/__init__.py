"""An FSDP2 trainer that measures what compressed communication saves and costs."""
