"""The task index: the state of each task, as a searchable view of the journal."""
