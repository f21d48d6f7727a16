"""What each program trains: its data, model and objective, and how the result is evaluated."""
