"""One command from a user's score file to a verdict against protected random and matched nulls."""
