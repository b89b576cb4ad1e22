"""What the load goes to, one module for each kind."""
