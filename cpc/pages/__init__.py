"""What commands show: tables, reports, charts and HTML."""
