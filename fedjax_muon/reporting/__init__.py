"""Tables, figures and files of results."""
