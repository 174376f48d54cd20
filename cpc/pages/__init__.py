"""The output of commands: tables, reports, charts and HTML."""
