"""What a step of each bucket takes, measured at start and while serving."""
