"""The exit codes of a training run and of its launcher."""

OK = 0
FAILED = 1
USER_ERROR = 2  # nothing was begun, and the message says what to mend
PREEMPTED = 143  # told to stop, by whichever signal; as a shell names SIGTERM
