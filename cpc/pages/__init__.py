"""The output of commands: tables, reports, colours and HTML."""
