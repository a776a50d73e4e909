"""Job specs, cells, scheduling, tasks and graders, the store, paired statistics and the command line."""
