"""Programs as answers: taken out of a text, run in a sandbox, judged by their output."""
