"""Starting training runs and their processes. Begin with `training`; `quotas` makes some of them slower."""
